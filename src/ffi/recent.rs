//! The last few errors that were not taken: bounded, the oldest is dropped first, the newest is returned first.

use std::collections::VecDeque;

/// The last few errors that were not taken.
pub(super) struct Recent<T>(VecDeque<T>);

impl<T> Recent<T> {
    const CAPACITY: usize = 16;

    pub(super) const fn new() -> Self {
        Recent(VecDeque::new())
    }

    pub(super) fn push(&mut self, error: T) {
        if self.0.len() == Self::CAPACITY {
            self.0.pop_front();
        }
        self.0.push_back(error);
    }

    pub(super) fn take(&mut self) -> Option<T> {
        self.0.pop_back()
    }
}
