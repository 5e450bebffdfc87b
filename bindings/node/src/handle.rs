//! An open model: open, prefill, generate, pull, tokens, usage.

use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use elizainference::session::{self, FinishReason, Session, Settings, Sink};
use elizainference::{Error, Result, ffi, panic};
use napi::Env;
use napi::bindgen_prelude::{Function, Int32Array, Int32ArraySlice, Object, ToNapiValue};
use napi::threadsafe_function::ThreadsafeFunctionCallMode;
use napi_derive::napi;

use crate::background::{self, Asker};
use crate::edge::{call, closed, terminated};
use crate::generation::{self, StepArgs};
use crate::options::{OpenOptions, SamplingOptions};

/// The version of the interface, as the C function says it.
#[napi]
pub fn version() -> String {
    // SAFETY: the version is a static string.
    unsafe { std::ffi::CStr::from_ptr(ffi::eliza_inference_abi_version()) }.to_string_lossy().into_owned()
}

/// Words of progress on their way that JavaScript has not taken; with as many, the next ones are not sent.
const PROGRESS_ON_THE_WAY: usize = 64;

/// A promise of a [`Handle`]. Where the environment ends first, so does the load. It does not wait for `on_progress`,
/// whose `false` ends it where it comes in time.
#[napi(ts_return_type = "Promise<Handle>")]
pub fn open<'env>(
    env: &'env Env,
    path: String,
    options: OpenOptions,
    on_progress: Option<Function<'_, f64, bool>>,
) -> napi::Result<Object<'env>> {
    let asker = Asker::here();
    let told = on_progress.map(|heard| {
        let told = heard.build_threadsafe_function::<f64>().callee_handled::<false>();
        told.max_queue_size::<PROGRESS_ON_THE_WAY>().build()
    });
    let told = told.transpose()?;
    let wanted = Arc::new(AtomicBool::new(true));
    background::run(env, "open", move || {
        let progress = Box::new(move |done: f32| {
            if let Some(told) = &told {
                let wanted = wanted.clone();
                let answer = move |go_on: napi::Result<bool>, _: Env| {
                    wanted.fetch_and(go_on.unwrap_or(false), Ordering::Relaxed);
                    Ok(())
                };
                told.call_with_return_value(done.into(), ThreadsafeFunctionCallMode::NonBlocking, answer);
            }
            asker.waits() && wanted.load(Ordering::Relaxed)
        });
        Ok(Opened(open_session(&path, &options, Some(progress))?))
    })
}

/// As [`open`], on the calling thread.
#[napi]
pub fn open_sync(path: String, options: OpenOptions) -> napi::Result<Handle> {
    call(|| open_session(&path, &options, None)).map(Handle::new)
}

fn open_session(
    path: &str,
    options: &OpenOptions,
    progress: Option<Box<dyn FnMut(f32) -> bool + Send>>,
) -> Result<Session> {
    let path = PathBuf::from(terminated(path, "modelPath")?);
    let (engine, draft, vocab_only) = (options.engine()?, options.draft()?, options.vocab_only.unwrap_or(false));
    Session::open(session::OpenOptions {
        path,
        engine,
        draft,
        vocab_only,
        store: options.store()?,
        remote: options.remote()?,
        fallback: options.fallback()?,
        progress,
    })
}

/// A session on its way from the thread that opened it to JavaScript.
pub(crate) struct Opened(Session);

impl ToNapiValue for Opened {
    unsafe fn to_napi_value(env: napi::sys::napi_env, opened: Self) -> napi::Result<napi::sys::napi_value> {
        // SAFETY: the caller's promise about `env`.
        unsafe { Handle::to_napi_value(env, Handle::new(opened.0)) }
    }
}

/// One step of a pull.
#[napi(object)]
pub struct Pulled {
    pub tokens: Vec<i32>,
    pub text: String,
    pub done: bool,
    pub drafter_drafted: i64,
    pub drafter_accepted: i64,
}

/// A session in the hands of JavaScript, on whose thread all of this runs.
#[napi]
pub struct Handle {
    /// `None` once it was closed.
    session: RefCell<Option<Arc<Session>>>,
    /// The settings right after open.
    opened: Settings,
    /// A generation's last event has not been handed out.
    delivering: Rc<Cell<bool>>,
}

/// Collected, or its environment ended.
impl Drop for Handle {
    fn drop(&mut self) {
        self.close();
    }
}

impl Handle {
    pub(crate) fn new(session: Session) -> Handle {
        Handle { opened: session.settings(), session: RefCell::new(Some(Arc::new(session))), delivering: Rc::default() }
    }

    pub(crate) fn session(&self) -> napi::Result<Arc<Session>> {
        self.session.borrow().clone().ok_or_else(closed)
    }

    /// The session, for a call that would wait for its thread.
    pub(crate) fn idle_session(&self) -> napi::Result<Arc<Session>> {
        let session = self.session()?;
        if self.delivering.get() {
            return call(|| Err(Error::Busy("the end of a generation has not been handed out".into())));
        }
        Ok(session)
    }
}

#[napi]
impl Handle {
    /// Never fails; doing it again does nothing. Of a running generation the end still comes.
    #[napi]
    pub fn close(&self) {
        let Some(session) = self.session.take() else { return };
        session.close();
        // A panic while it is freed would be the session's; no handle is left that could report it.
        let _ = panic::catch(|| {
            drop(session);
            Ok(())
        });
    }

    #[napi]
    pub fn tokenize(&self, text: String, add_special: bool, parse_special: bool) -> napi::Result<Int32Array> {
        let session = self.session()?;
        call(|| Ok(session.tokenize(text.as_bytes(), add_special, parse_special)?.into()))
    }

    #[napi]
    pub fn detokenize(
        &self,
        tokens: Int32ArraySlice<'_>,
        remove_special: bool,
        unparse_special: bool,
    ) -> napi::Result<String> {
        let session = self.session()?;
        call(|| {
            let text = session.detokenize(&tokens, remove_special, unparse_special)?;
            Ok(String::from_utf8_lossy(&text).into_owned())
        })
    }

    #[napi]
    pub fn configure(&self, options: SamplingOptions) -> napi::Result<()> {
        let session = self.session()?;
        call(|| session.configure(options.over(&self.opened)?))
    }

    #[napi]
    pub fn set_chain(&self, slot: i32, chain: Option<String>) -> napi::Result<()> {
        let session = self.session()?;
        call(|| {
            let chain = chain.as_deref().map(|text| terminated(text, "chain")?.parse()).transpose()?;
            session.set_chain(slot, chain)
        })
    }

    /// A promise of how many tokens are in place.
    #[napi(ts_return_type = "Promise<number>")]
    pub fn prefill<'env>(&self, env: &'env Env, tokens: Int32ArraySlice<'_>, slot: i32) -> napi::Result<Object<'env>> {
        let session = self.idle_session()?;
        let tokens = tokens.to_vec();
        background::run(env, "prefill", move || Ok(session.prefill(&tokens, slot)? as u32))
    }

    /// As `prefill`, on the calling thread.
    #[napi]
    pub fn prefill_sync(&self, tokens: Int32ArraySlice<'_>, slot: i32) -> napi::Result<u32> {
        let session = self.idle_session()?;
        call(|| Ok(session.prefill(&tokens, slot)? as u32))
    }

    /// Starts a generation whose events go to `on_step`.
    #[napi]
    pub fn generate(
        &self,
        max_tokens: i32,
        temperature: f64,
        top_p: f64,
        on_step: Function<'_, StepArgs, ()>,
    ) -> napi::Result<()> {
        let session = self.idle_session()?;
        let sink = generation::sink(&session, &on_step, self.delivering.clone())?;
        start(&session, max_tokens, temperature, top_p, sink)?;
        self.delivering.set(true);
        Ok(())
    }

    /// Starts a generation that `next` pulls.
    #[napi]
    pub fn generate_queued(&self, max_tokens: i32, temperature: f64, top_p: f64) -> napi::Result<()> {
        start(&*self.idle_session()?, max_tokens, temperature, top_p, Sink::Queue)
    }

    /// Waits for a token and takes up to `max_tokens` with at most `max_text_bytes` of text.
    #[napi]
    pub fn next(&self, max_tokens: u32, max_text_bytes: u32) -> napi::Result<Pulled> {
        let session = self.session()?;
        call(|| {
            let mut tokens = vec![0; max_tokens.max(1) as usize];
            let mut text = vec![0; max_text_bytes.max(8) as usize];
            let pulled = session.next(None, &mut tokens, &mut text)?;
            if pulled.done && session.usage().finish_reason == FinishReason::Cancelled {
                return Err(Error::Cancelled);
            }
            tokens.truncate(pulled.tokens);
            text.truncate(pulled.text_bytes);
            let [drafter_drafted, drafter_accepted] = session.take_guesses().map(|n| n as i64);
            let text = String::from_utf8_lossy(&text).into_owned();
            Ok(Pulled { tokens, text, done: pulled.done, drafter_drafted, drafter_accepted })
        })
    }

    /// Nothing happens when nothing runs.
    #[napi]
    pub fn cancel(&self) {
        if let Some(session) = &*self.session.borrow() {
            session.cancel();
        }
    }

    /// Usage, sizes and names as JSON.
    #[napi]
    pub fn usage(&self) -> napi::Result<String> {
        let session = self.session()?;
        call(|| Ok(session.usage_json()))
    }

    /// As `eliza_inference_llm_stream_status`.
    #[napi]
    pub fn status(&self) -> napi::Result<i32> {
        let session = self.session()?;
        let status = session.status();
        Ok(match (status.error, status.finish_reason) {
            _ if status.busy || self.delivering.get() => ffi::ELIZA_STATUS_GENERATING,
            (Some(error), _) => ffi::code(&error),
            (None, FinishReason::Cancelled) => ffi::ELIZA_ERR_CANCELLED,
            (None, FinishReason::Length | FinishReason::Context) => 1,
            (None, _) => ffi::ELIZA_OK,
        })
    }
}

/// NaN leaves a value to the options, the chain or the model.
fn start(session: &Session, max_tokens: i32, temperature: f64, top_p: f64, sink: Sink) -> napi::Result<()> {
    let given = |value: f64| if value.is_nan() { None } else { Some(value as f32) };
    call(|| session.generate(max_tokens, given(temperature), given(top_p), sink))
}
