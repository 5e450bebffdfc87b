//! The object of an open handle: a session, and the errors that were not taken.

use std::sync::atomic::{AtomicI32, Ordering};

use parking_lot::Mutex;

use super::recent::Recent;
use super::status::{self, ELIZA_OK};
use crate::Error;
use crate::session::Session;

/// The object of an open handle.
pub(super) struct Stream {
    pub(super) session: Session,
    /// Errors that were moved here from the session or never reached it, because a call was refused before.
    errors: Mutex<Recent<Error>>,
    /// The code of the last call, when it was refused before the session saw it; else 0.
    refusal: AtomicI32,
}

impl Stream {
    pub(super) fn new(session: Session) -> Self {
        Stream { session, errors: Mutex::new(Recent::new()), refusal: AtomicI32::new(ELIZA_OK) }
    }

    /// Begins a call on the handle: the refusal of an earlier call is no longer the status.
    pub(super) fn begin_call(&self) {
        self.refusal.store(ELIZA_OK, Ordering::Relaxed);
    }

    /// Keeps the error of a failed call, whether the session has it or not. While the session works, the status will be
    /// the outcome of that work, so a refusal does not change it.
    pub(super) fn keep_error(&self, error: Error) {
        let stands = self.session.status();
        if !stands.busy && stands.error.as_ref() != Some(&error) {
            self.refusal.store(status::code(&error), Ordering::Relaxed);
        }
        let mut errors = self.errors.lock();
        // The session has its own copy of an error that it returned, and maybe that of a generation that failed.
        let mut older = Vec::new();
        while let Some(left) = self.session.take_error() {
            older.push(left);
        }
        for left in older.into_iter().rev().filter(|left| *left != error) {
            errors.push(left);
        }
        errors.push(error);
    }

    /// The newest error that was not taken: one still in the session is newer than those moved here.
    pub(super) fn take_error(&self) -> Option<Error> {
        self.session.take_error().or_else(|| self.errors.lock().take())
    }

    pub(super) fn refusal(&self) -> Option<i32> {
        match self.refusal.load(Ordering::Relaxed) {
            ELIZA_OK => None,
            code => Some(code),
        }
    }
}
