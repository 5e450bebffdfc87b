//! Connections that a flag ends: waits for a server are made of short ones, with a look at the flag between them.

use crate::{Error, Result};
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use ureq::unversioned::transport::{Buffers, ConnectionDetails, Connector, NextTimeout, Transport, time};

/// Between two looks at the flag.
const STEP: Duration = Duration::from_millis(10);

/// The flag that ends what a client does now, and the longest silence of the server.
#[derive(Debug, Clone)]
pub(super) struct Watch {
    flag: Arc<Mutex<Arc<AtomicBool>>>,
    silence: Duration,
}

impl Watch {
    pub fn new(silence: Duration) -> Watch {
        Watch { flag: Arc::default(), silence }
    }

    pub fn silence(&self) -> Duration {
        self.silence
    }

    /// From now on this flag counts; returns the one before.
    pub fn set(&self, flag: &Arc<AtomicBool>) -> Arc<AtomicBool> {
        std::mem::replace(&mut self.flag.lock(), flag.clone())
    }

    pub fn is_cancelled(&self) -> bool {
        self.flag.lock().load(Ordering::Acquire)
    }

    /// Waits.
    ///
    /// # Errors
    /// [`Error::Cancelled`] as soon as the flag is set.
    pub fn wait(&self, time: Duration) -> Result<()> {
        let until = Instant::now() + time;
        loop {
            if self.is_cancelled() {
                return Err(Error::Cancelled);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(STEP));
        }
    }
}

impl<In: Transport> Connector<In> for Watch {
    type Out = Watched<In>;

    fn connect(
        &self,
        _: &ConnectionDetails<'_>,
        chained: Option<In>,
    ) -> std::result::Result<Option<Watched<In>>, ureq::Error> {
        Ok(chained.map(|inner| Watched { inner, watch: self.clone() }))
    }
}

/// A connection that is watched.
#[derive(Debug)]
pub(super) struct Watched<T> {
    inner: T,
    watch: Watch,
}

impl<T: Transport> Transport for Watched<T> {
    fn buffers(&mut self) -> &mut dyn Buffers {
        self.inner.buffers()
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> std::result::Result<(), ureq::Error> {
        // What is sent fits into the system's buffers, or the server has stopped reading.
        let after = time::Duration::Exact((*timeout.after).min(self.watch.silence));
        self.inner.transmit_output(amount, NextTimeout { after, ..timeout })
    }

    fn await_input(&mut self, timeout: NextTimeout) -> std::result::Result<bool, ureq::Error> {
        let until = Instant::now() + (*timeout.after).min(self.watch.silence);
        loop {
            if self.watch.is_cancelled() {
                return Err(ureq::Error::Io(io::ErrorKind::ConnectionAborted.into()));
            }
            let left = until.saturating_duration_since(Instant::now());
            let after = time::Duration::Exact(left.clamp(Duration::from_millis(1), STEP));
            match self.inner.await_input(NextTimeout { after, ..timeout }) {
                Err(ureq::Error::Timeout(_)) if !left.is_zero() => {}
                other => return other,
            }
        }
    }

    fn is_open(&mut self) -> bool {
        self.inner.is_open()
    }

    fn is_tls(&self) -> bool {
        self.inner.is_tls()
    }
}
