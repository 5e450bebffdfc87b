//! The panic boundary: no unwinding ever crosses into a host's frames.
//!
//! Every call of a host runs its body through [`catch`]. A panic there becomes [`Error::Internal`], for C
//! `ELIZA_ERR_FFI_FAULT`, with the panic's message and place as its text; nothing is printed, because the library
//! writes nothing to stderr.
//!
//! The process has one panic hook, so it is wrapped once and intercepts only what is ours: panics inside a
//! library call, tracked per thread, and panics on the library's own threads, known by their name. Host code
//! that runs inside a callback is the host's again ([`host`]), and there, as everywhere else, the previous hook
//! sees the panic as if the library were not loaded.

use std::any::Any;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind, set_hook, take_hook};
use std::sync::Once;

use crate::{Error, Result};

/// Whose code the current thread is running.
#[derive(Clone, Copy, PartialEq)]
enum Side {
    /// No call of the library is on this thread's stack.
    Neither,
    /// The innermost boundary crossed was an export.
    Library,
    /// The innermost boundary crossed was a callback.
    Host,
}

/// Every thread that the library starts has a name with this prefix.
const THREAD_PREFIX: &str = "eliza-";

thread_local! {
    static SIDE: Cell<Side> = const { Cell::new(Side::Neither) };
    static CAUGHT: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Sets [`SIDE`] for the life of a scope, and back when it ends, by return or by unwinding.
struct Scope(Side);

impl Scope {
    fn enter(side: Side) -> Self {
        Scope(SIDE.replace(side))
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        SIDE.set(self.0);
    }
}

/// Runs the body of a call from a host; a panic in it becomes [`Error::Internal`] with message and place instead of
/// unwinding into the host, and writes nothing to stderr.
///
/// # Errors
/// The body's own, and [`Error::Internal`] for a panic.
pub fn catch<T>(body: impl FnOnce() -> Result<T>) -> Result<T> {
    let scope = Scope::enter(Side::Library);
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        install_hook();
        body()
    }));
    drop(scope);
    outcome.unwrap_or_else(|payload| {
        let message = CAUGHT.take().unwrap_or_else(|| text_of(payload.as_ref()).to_owned());
        Err(Error::Internal(message))
    })
}

/// Runs host code, a callback, from inside the library: its panics are not ours to silence.
pub fn host<T>(callback: impl FnOnce() -> T) -> T {
    let _scope = Scope::enter(Side::Host);
    callback()
}

/// The hook cannot be replaced on a panicking thread: a call from a destructor there leaves it to the next call.
fn install_hook() {
    static INSTALLED: Once = Once::new();
    if std::thread::panicking() {
        return;
    }
    INSTALLED.call_once(|| {
        let previous = take_hook();
        set_hook(Box::new(move |info| {
            if ours() {
                CAUGHT.set(Some(describe(info)));
            } else {
                previous(info);
            }
        }));
    });
}

fn ours() -> bool {
    match SIDE.get() {
        Side::Library => true,
        Side::Host => false,
        Side::Neither => std::thread::current().name().is_some_and(|name| name.starts_with(THREAD_PREFIX)),
    }
}

fn describe(info: &PanicHookInfo<'_>) -> String {
    let mut text = match info.location() {
        Some(place) => format!("Panicked at {}:{}: {}", place.file(), place.line(), text_of(info.payload())),
        None => format!("Panicked: {}", text_of(info.payload())),
    };
    // Captured only when the host asked for it by RUST_BACKTRACE.
    let trace = Backtrace::capture();
    if trace.status() == BacktraceStatus::Captured {
        text.push_str(&format!("\n{trace}"));
    }
    text
}

fn text_of(payload: &(dyn Any + Send)) -> &str {
    payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_a_fault_with_its_message_and_place() {
        let Err(Error::Internal(message)) = catch(|| -> Result<()> { panic!("row {} of {}", 3, 2) }) else {
            panic!("not a fault");
        };
        assert!(message.contains("row 3 of 2") && message.contains("panic.rs:"), "{message}");
    }

    #[test]
    fn sides_nest_and_are_restored_after_a_panic() {
        assert!(!ours());
        let _ = catch(|| {
            assert!(ours());
            host(|| assert!(!ours()));
            let _ = catch(|| -> Result<()> { panic!("inner") });
            assert!(ours());
            Ok(())
        });
        let _ = catch(|| -> Result<()> { host(|| std::panic::resume_unwind(Box::new("host"))) });
        assert!(!ours());
    }

    /// In a process of its own, whose first call of the library this is.
    #[test]
    fn l15_the_first_call_may_come_from_a_destructor_that_a_panic_runs() {
        const CHILD: &str = "ELIZA_TEST_FIRST_CALL";
        struct Host;
        impl Drop for Host {
            fn drop(&mut self) {
                assert_eq!(catch(|| Ok(7)), Ok(7));
                assert!(matches!(catch(|| -> Result<()> { panic!("inside") }), Err(Error::Internal(_))));
            }
        }
        if std::env::var_os(CHILD).is_some() {
            let unwound = catch_unwind(|| {
                let _host = Host;
                panic!("the host's own");
            });
            assert!(unwound.is_err());
            let Err(Error::Internal(text)) = catch(|| -> Result<()> { panic!("later") }) else {
                panic!("not a fault");
            };
            assert!(text.contains("panic.rs:"), "{text}");
            return;
        }
        let name = "panic::tests::l15_the_first_call_may_come_from_a_destructor_that_a_panic_runs";
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        let output = child.args(["--exact", name]).env(CHILD, "1").output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "{output:?}");
    }

    #[test]
    fn threads_of_the_library_are_known_by_name() {
        let named = |name: &str| std::thread::Builder::new().name(name.into()).spawn(ours).unwrap().join().unwrap();
        assert!(named("eliza-worker"));
        assert!(!named("host-worker"));
    }
}
