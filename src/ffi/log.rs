//! The log sink: passes the library's `log` records to a host that asks for them; without one they are dropped.
//!
//! The `log` crate has one logger per process, so ours is installed once, when a host first asks, and passes each line
//! to the current listener: the host's sink, or a short queue that the host empties. A record's text is formatted by
//! the library's own code, which never puts prompt or output text into one; of the crates below us only warnings and
//! errors pass.

use std::collections::VecDeque;
use std::ffi::{CString, c_char, c_void};
use std::sync::OnceLock;

use log::{Level, LevelFilter, Log, Metadata, Record};
use parking_lot::Mutex;

use super::status::{self, ELIZA_OK};
use super::{args, strings};
use crate::panic;
use crate::{Error, Result};

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

/// What log lines go to.
enum Listener {
    Nobody,
    Sink(Sink),
    /// The newest lines that were not taken, the oldest first.
    Queue(VecDeque<(i32, String)>),
}

/// Lines that wait to be taken.
const WAITING: usize = 256;

static LISTENER: Mutex<Listener> = Mutex::new(Listener::Nobody);

struct Forward;

impl Log for Forward {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= Level::Warn || metadata.target().starts_with("elizainference")
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let text = record.args().to_string().replace('\0', "\u{fffd}");
        let level = match record.level() {
            Level::Error => ELIZA_LOG_ERROR,
            Level::Warn => ELIZA_LOG_WARN,
            Level::Info => ELIZA_LOG_INFO,
            Level::Debug | Level::Trace => ELIZA_LOG_DEBUG,
        };
        let sink = match &mut *LISTENER.lock() {
            Listener::Nobody => return,
            Listener::Sink(sink) => *sink,
            Listener::Queue(lines) => {
                if lines.len() == WAITING {
                    lines.pop_front();
                }
                return lines.push_back((level, text));
            }
        };
        let Ok(text) = CString::new(text) else { return };
        // SAFETY: the host set this callback for any thread, and the text outlives the call; the lock is free again.
        panic::host(|| unsafe { (sink.callback)(level, text.as_ptr(), sink.user_data) });
    }

    fn flush(&self) {}
}

/// Installs our logger, once. Fails where the process has another.
fn install() -> Result<()> {
    static OURS: OnceLock<bool> = OnceLock::new();
    match *OURS.get_or_init(|| log::set_logger(&Forward).is_ok()) {
        true => Ok(()),
        false => Err(Error::Unsupported("The process has another Rust logger".into())),
    }
}

/// The oldest line that waits, with its level; see [`eliza_inference_next_log_line`].
///
/// # Errors
/// [`Error::Unsupported`] where the process has another logger of Rust.
pub fn next_log_line() -> Result<Option<(i32, String)>> {
    install()?;
    let mut listener = LISTENER.lock();
    if let Listener::Queue(lines) = &mut *listener {
        return Ok(lines.pop_front());
    }
    *listener = Listener::Queue(VecDeque::with_capacity(WAITING));
    log::set_max_level(LevelFilter::Debug);
    Ok(None)
}

/// Sends the library's log lines to the host; without a sink there are none. No line holds prompt or
/// output text. A sink, and NULL too, takes the place of the queue of `eliza_inference_next_log_line`.
///
/// Ownership: `user_data` stays the host's and is only passed on. A line that another thread is just writing may
/// still arrive after the sink was replaced, so keep callback and data valid until every handle is closed. Null
/// rule: a NULL `sink` ends logging; `user_data` may be NULL. Threads: any; the sink is called on any.
/// Returns `ELIZA_OK`, `ELIZA_ERR_NOT_IMPLEMENTED` when the process has a Rust logger that is not ours, or
/// `ELIZA_ERR_FFI_FAULT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_set_log_sink(sink: LogCallback, user_data: *mut c_void) -> i32 {
    panic::catch(|| {
        install()?;
        let mut listener = LISTENER.lock();
        log::set_max_level(if sink.is_some() { LevelFilter::Debug } else { LevelFilter::Off });
        *listener = sink.map_or(Listener::Nobody, |callback| Listener::Sink(Sink { callback, user_data }));
        Ok(ELIZA_OK)
    })
    .unwrap_or_else(|error| status::code(&error))
}

/// The oldest log line that was not taken: for hosts whose functions cannot be called on the library's threads, and
/// which poll instead.
///
/// The first call makes lines wait for it, in place of a sink, until `eliza_inference_set_log_sink` is called; the
/// newest 256 do. The lines are those that a sink would get.
///
/// Ownership: the host frees the string with `eliza_inference_free_string`. Null rule: `out_level` may be NULL.
/// Threads: any. Returns NULL when there is no line; `*out_level` is then `ELIZA_OK`, or `ELIZA_ERR_NOT_IMPLEMENTED`
/// when there never will be one because the process has a Rust logger that is not ours. Otherwise `*out_level` is
/// `ELIZA_LOG_*`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eliza_inference_next_log_line(out_level: *mut i32) -> *mut c_char {
    let taken = panic::catch(next_log_line);
    let level = taken.as_ref().map_or_else(status::code, |line| line.as_ref().map_or(ELIZA_OK, |(level, _)| *level));
    // SAFETY: the host's out_level is null or writable.
    unsafe { args::store(out_level, level) };
    taken.ok().flatten().map_or(std::ptr::null_mut(), |(_, text)| strings::give(&text))
}
