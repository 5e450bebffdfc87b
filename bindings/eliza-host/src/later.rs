//! Work on a thread of its own, so that the host's thread need not wait for it.

use elizainference::{Error, Result, panic};
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::thread;
use std::time::Instant;

/// What a piece of work will have made.
pub(crate) struct Later<T> {
    outcome: Mutex<Option<Result<T>>>,
    done: Condvar,
}

impl<T: Clone + Send + 'static> Later<T> {
    /// Starts `work`; `then` is told, on the same thread, when the outcome can be asked for.
    pub(crate) fn start(
        work: impl FnOnce() -> Result<T> + Send + 'static,
        then: impl FnOnce(&Result<T>) + Send + 'static,
    ) -> Arc<Later<T>> {
        let later = Arc::new(Later { outcome: Mutex::new(None), done: Condvar::new() });
        let told = later.clone();
        // The name tells the panic boundary whose thread it is.
        let started = thread::Builder::new().name("eliza-host".into()).spawn(move || {
            let outcome = panic::catch(work);
            told.set(outcome.clone());
            let _ = panic::catch(|| {
                then(&outcome);
                Ok(())
            });
        });
        if let Err(error) = started {
            later.set(Err(Error::OutOfMemory(format!("no thread to open a model on: {error}"))));
        }
        later
    }

    fn set(&self, outcome: Result<T>) {
        *self.outcome.lock() = Some(outcome);
        self.done.notify_all();
    }

    /// The outcome, if there is one now.
    pub(crate) fn now(&self) -> Option<Result<T>> {
        self.outcome.lock().clone()
    }

    /// The outcome; `None` where there is none until `deadline`.
    pub(crate) fn by(&self, deadline: Instant) -> Option<Result<T>> {
        let mut outcome = self.outcome.lock();
        while outcome.is_none() && !self.done.wait_until(&mut outcome, deadline).timed_out() {}
        outcome.clone()
    }

    /// Waits for the outcome.
    ///
    /// # Errors
    /// The work's.
    pub(crate) fn wait(&self) -> Result<T> {
        let mut outcome = self.outcome.lock();
        loop {
            if let Some(outcome) = &*outcome {
                return outcome.clone();
            }
            self.done.wait(&mut outcome);
        }
    }
}
