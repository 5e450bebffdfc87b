//! Engines of a bundle's text model: sessions of the core, each used by one stream at a time, and what they have read
//! kept for the streams after it.

use crate::config::{Conversation, Placing};
use crate::later::Later;
use elizainference::session::{EngineOptions, OpenOptions, Session};
use elizainference::{Result, Token, engine};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// How many engines that no stream uses are kept. Streams that do not run at the same time share one.
const MAX_IDLE: usize = 2;
/// How many conversations of an engine are remembered: as many as it has slots.
const MAX_CONVERSATIONS: usize = 16;

/// A session of the core, which is opened on a thread of its own.
pub(crate) struct Engine {
    placing: Placing,
    pub(crate) session: Arc<Later<Arc<Session>>>,
    /// Prompts that are to be read ahead once the session is there.
    early: Arc<Mutex<Vec<Vec<Token>>>>,
    /// Those that it served last.
    conversations: Mutex<VecDeque<Conversation>>,
}

impl Engine {
    fn start(model: &Path, placing: Placing) -> Engine {
        let early = Arc::new(Mutex::new(Vec::new()));
        let (path, wanted, waiting) = (PathBuf::from(model), placing.clone(), early.clone());
        let session = Later::start(
            move || open(path, wanted).map(Arc::new),
            move |opened| {
                let prompts: Vec<Vec<Token>> = std::mem::take(&mut *waiting.lock());
                if let Ok(session) = opened {
                    prompts.iter().for_each(|prompt| ahead(session, prompt));
                }
            },
        );
        Engine { placing, session, early, conversations: Mutex::default() }
    }

    /// Reads a prompt while nothing else is asked for, and waits for nothing.
    pub(crate) fn read_ahead(&self, prompt: &[Token]) {
        let mut early = self.early.lock();
        match self.session.now() {
            None => *early = vec![prompt.to_vec()],
            Some(Ok(session)) => ahead(&session, prompt),
            // The call that needs the session tells the error.
            Some(Err(_)) => {}
        }
    }

    fn remember(&self, conversation: &Conversation) {
        let mut known = self.conversations.lock();
        known.retain(|other| other != conversation);
        known.push_back(conversation.clone());
        if known.len() > MAX_CONVERSATIONS {
            known.pop_front();
        }
    }
}

/// A refusal is no loss: the prompt is read when it is asked for, and its error told then.
fn ahead(session: &Session, prompt: &[Token]) {
    if let Err(error) = session.prewarm(prompt, -1) {
        session.take_error();
        drop(error);
    }
}

fn open(path: PathBuf, placing: Placing) -> Result<Session> {
    let gpu_layers = match placing.gpu_layers {
        -1 if !gpu_is_best()? => 0,
        layers => layers,
    };
    let engine = EngineOptions {
        context: placing.context,
        gpu_layers,
        kv_type: placing.keys,
        kv_type_v: Some(placing.values),
        ..EngineOptions::default()
    };
    Session::open(OpenOptions { path, engine, draft: placing.draft, ..OpenOptions::default() })
}

/// Asking the drivers takes longer than opening a small model, so it is done once.
fn gpu_is_best() -> Result<bool> {
    static BEST: OnceLock<bool> = OnceLock::new();
    if let Some(&best) = BEST.get() {
        return Ok(best);
    }
    let devices = engine::devices()?;
    let best = devices.first().is_some_and(|(device, _)| device.kind == engine::DeviceKind::Gpu && device.score > 0);
    Ok(*BEST.get_or_init(|| best))
}

/// The engines of a context that no stream uses, the one used last at the end.
#[derive(Default)]
pub(crate) struct Pool {
    idle: Mutex<Vec<Engine>>,
}

impl Pool {
    /// An engine for a conversation: one that served it before, else the one used last, else a new one. With a new one,
    /// idle engines of other placings go: the host has changed its mind about memory.
    pub(crate) fn take(&self, model: &Path, placing: &Placing, conversation: &Conversation) -> Engine {
        let mut idle = self.idle.lock();
        let fits = |engine: &Engine| engine.placing == *placing;
        let knows = |engine: &Engine| fits(engine) && engine.conversations.lock().contains(conversation);
        let engine = match idle.iter().rposition(knows).or_else(|| idle.iter().rposition(fits)) {
            Some(at) => idle.remove(at),
            None => {
                let gone = std::mem::take(&mut *idle);
                drop(idle);
                drop(gone);
                Engine::start(model, placing.clone())
            }
        };
        engine.remember(conversation);
        engine
    }

    /// An engine for a call without a stream: any that is there, else a new one.
    pub(crate) fn take_any(&self, model: &Path) -> Engine {
        let last = self.idle.lock().pop();
        last.unwrap_or_else(|| Engine::start(model, Placing::default()))
    }

    /// Takes an engine back, unless it could not be opened.
    pub(crate) fn give_back(&self, engine: Engine) {
        if matches!(engine.session.now(), Some(Err(_))) {
            return;
        }
        let mut idle = self.idle.lock();
        idle.push(engine);
        let gone = if idle.len() > MAX_IDLE { Some(idle.remove(0)) } else { None };
        drop(idle);
        drop(gone);
    }

    /// Closes those that are idle.
    pub(crate) fn clear(&self) {
        drop(std::mem::take(&mut *self.idle.lock()));
    }
}
