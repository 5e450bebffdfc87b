//! Makes tokenizing cancellable: loops over a text count their steps here, and the caller's cancel function is called
//! at intervals.

use crate::{Error, Result};
use std::cell::Cell;

/// Steps between two calls: some hundred microseconds.
const STRIDE: usize = 1 << 14;

/// The steps of one call.
pub(super) struct Pace<'a> {
    cancelled: &'a dyn Fn() -> bool,
    left: Cell<usize>,
}

impl<'a> Pace<'a> {
    /// `cancelled` is asked at the first step, and then for every [`STRIDE`] of them.
    pub(super) fn new(cancelled: &'a dyn Fn() -> bool) -> Self {
        Pace { cancelled, left: Cell::new(0) }
    }

    /// Count steps, one for each symbol or byte read. [`Error::Cancelled`] ends the work.
    #[inline]
    pub(super) fn spend(&self, steps: usize) -> Result<()> {
        match self.left.get().checked_sub(steps) {
            Some(left) => {
                self.left.set(left);
                Ok(())
            }
            None => self.ask(steps),
        }
    }

    #[cold]
    fn ask(&self, steps: usize) -> Result<()> {
        let mut owed = steps - self.left.get();
        loop {
            if (self.cancelled)() {
                return Err(Error::Cancelled);
            }
            match owed.checked_sub(STRIDE) {
                Some(rest) => owed = rest,
                None => break,
            }
        }
        self.left.set(STRIDE - owed);
        Ok(())
    }
}
