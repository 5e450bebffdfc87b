//! The log sink: what the library's `log` records become, and that is nothing until a host asks for them.
//!
//! The `log` crate has one logger per process, so ours is installed once, at the first sink, and forwards to
//! whatever sink is set then. A record's text is formatted by the library's own code, which never puts prompt or
//! output text into one; of the crates below us only warnings and errors pass.

use std::ffi::{CString, c_char, c_void};
use std::sync::OnceLock;

use log::{Level, LevelFilter, Log, Metadata, Record};
use parking_lot::Mutex;

use super::panic;
use super::status::{self, ELIZA_OK};
use crate::Error;

/// `level` of a log line: something failed.
pub const ELIZA_LOG_ERROR: i32 = 1;
/// `level` of a log line: something is not as it should be, and work goes on.
pub const ELIZA_LOG_WARN: i32 = 2;
/// `level` of a log line: a rare event, such as a model loaded.
pub const ELIZA_LOG_INFO: i32 = 3;
/// `level` of a log line: details for finding a fault.
pub const ELIZA_LOG_DEBUG: i32 = 4;

/// Receives one log line: its level (`ELIZA_LOG_*`) and its text in UTF-8, valid during the call. Called on any
/// thread, several at once; it must not call back into the library.
pub type LogCallback = Option<unsafe extern "C" fn(level: i32, message: *const c_char, user_data: *mut c_void)>;

#[derive(Clone, Copy)]
struct Sink {
    callback: unsafe extern "C" fn(i32, *const c_char, *mut c_void),
    user_data: *mut c_void,
}

// SAFETY: the library only passes `user_data` on; the header demands that callback and data serve any thread.
unsafe impl Send for Sink {}

static SINK: Mutex<Option<Sink>> = Mutex::new(None);

struct Forward;

impl Log for Forward {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= Level::Warn || metadata.target().starts_with("elizainference")
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let Some(sink) = *SINK.lock() else { return };
        let text = record.args().to_string().replace('\0', "\u{fffd}");
        let Ok(text) = CString::new(text) else { return };
        let level = match record.level() {
            Level::Error => ELIZA_LOG_ERROR,
            Level::Warn => ELIZA_LOG_WARN,
            Level::Info => ELIZA_LOG_INFO,
            Level::Debug | Level::Trace => ELIZA_LOG_DEBUG,
        };
        // SAFETY: the host set this callback for any thread, and the text outlives the call; the lock is free again.
        panic::host(|| unsafe { (sink.callback)(level, text.as_ptr(), sink.user_data) });
    }

    fn flush(&self) {}
}

/// Sends the library's log lines to the host; without a sink there are none. No line holds prompt or
/// output text.
///
/// Ownership: `user_data` stays the host's and is only passed on. A line that another thread is just writing may
/// still arrive after the sink was replaced, so keep callback and data valid until every handle is closed. Null
/// rule: a NULL `sink` ends logging; `user_data` may be NULL. Threads: any; the sink is called on any.
/// Returns `ELIZA_OK`, `ELIZA_ERR_NOT_IMPLEMENTED` when the process has a Rust logger that is not ours, or
/// `ELIZA_ERR_FFI_FAULT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_set_log_sink(sink: LogCallback, user_data: *mut c_void) -> i32 {
    panic::catch(|| {
        static OURS: OnceLock<bool> = OnceLock::new();
        let ours = *OURS.get_or_init(|| log::set_logger(&Forward).is_ok());
        if !ours {
            return Err(Error::Unsupported("The process has another Rust logger".into()));
        }
        log::set_max_level(if sink.is_some() { LevelFilter::Debug } else { LevelFilter::Off });
        *SINK.lock() = sink.map(|callback| Sink { callback, user_data });
        Ok(ELIZA_OK)
    })
    .unwrap_or_else(|error| status::code(&error))
}
