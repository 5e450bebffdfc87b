//! Work that takes long: on a thread of its own, answered by a promise.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use elizainference::{Error, Result, panic};
use napi::Env;
use napi::bindgen_prelude::{Object, ToNapiValue};

use crate::edge;

/// A promise of what `work` gives. It keeps the process alive until then.
///
/// Where the environment ends first the answer is dropped on the thread that made it.
pub(crate) fn run<'env, T, W>(env: &'env Env, name: &str, work: W) -> napi::Result<Object<'env>>
where
    T: ToNapiValue + Send + 'static,
    W: FnOnce() -> Result<T> + Send + 'static,
{
    let (deferred, promise) = env.create_deferred::<T, _>()?;
    let settle = move || match panic::catch(work) {
        Ok(value) => deferred.resolve(move |_| Ok(value)),
        Err(error) => deferred.reject(edge::thrown(&error)),
    };
    let started = thread::Builder::new().name(format!("eliza-{name}")).spawn(settle);
    started.map_err(|error| edge::thrown(&Error::OutOfMemory(format!("no thread for {name}: {error}"))))?;
    Ok(promise)
}

/// Whether the JavaScript thread that asked is still there: a load ends early where it is not.
#[derive(Clone)]
pub(crate) struct Asker(Arc<AtomicBool>);

/// Lives as long as its thread.
struct Presence(Arc<AtomicBool>);

impl Drop for Presence {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

thread_local! {
    static PRESENT: Presence = Presence(Arc::new(AtomicBool::new(true)));
}

impl Asker {
    /// The thread that runs this.
    pub(crate) fn here() -> Asker {
        Asker(PRESENT.with(|presence| presence.0.clone()))
    }

    pub(crate) fn waits(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}
