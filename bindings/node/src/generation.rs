//! A generation's way to JavaScript.
//!
//! The session's thread hands each event to a thread-safe function. Its queue is bounded: while JavaScript is busy the
//! session's thread waits while it is full, and with it the model. The wait ends when JavaScript goes on or its
//! environment ends.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use elizainference::session::{Event, FinishReason, Session, Sink};
use napi::Status;
use napi::bindgen_prelude::{Either, FnArgs, Function};
use napi::threadsafe_function::{ThreadsafeCallContext, ThreadsafeFunctionCallMode};

use crate::edge;

/// Events on their way that JavaScript has not taken; with as many, the model waits.
const ON_THE_WAY: usize = 64;

/// How a generation ended: its reason by number, or the code and message of its error.
type End = Either<i32, String>;

/// What JavaScript's function is called with: the token, the text, and with the last event the end.
pub(crate) type StepArgs = FnArgs<(i32, String, Option<End>)>;

/// The sink of a generation on `session`. `delivering` is true from now on until JavaScript has got the last event.
///
/// While it is, no call may wait for the session's thread: that may be waiting for this JavaScript thread.
pub(crate) fn sink(
    session: &Arc<Session>,
    on_step: &Function<'_, StepArgs, ()>,
    delivering: Rc<Cell<bool>>,
) -> napi::Result<Sink> {
    let hand_over = move |context: ThreadsafeCallContext<(i32, String, Option<End>)>| {
        if context.value.2.is_some() {
            delivering.set(false);
        }
        Ok(StepArgs::from(context.value))
    };
    let deliver = on_step
        .build_threadsafe_function::<(i32, String, Option<End>)>()
        .callee_handled::<false>()
        .max_queue_size::<ON_THE_WAY>()
        .build_callback(hand_over)?;
    let session = session.clone();
    let mut taken = true;
    Ok(Sink::Callback(Box::new(move |event: Event<'_>| {
        if taken {
            let end = event.done.then(|| end(&session));
            let step = (event.token, event.text.to_owned(), end);
            taken = deliver.call(step, ThreadsafeFunctionCallMode::Blocking) == Status::Ok;
        }
        if !taken {
            session.cancel(); // nobody is there any more
        }
    })))
}

/// Known when the last event comes, and the session's own until the next prompt.
fn end(session: &Session) -> End {
    let status = session.status();
    match (status.finish_reason, status.error) {
        (FinishReason::Error, Some(error)) => Either::B(edge::message(&error)),
        (reason, _) => Either::A(reason as i32),
    }
}
