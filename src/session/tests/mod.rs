//! The rules of a session against an engine whose every logit is scripted.

mod edges;
mod ends;
mod flow;
mod grammars;
mod passes;
mod pull;
mod reasoning;
mod shifts;
mod span_samplings;
mod spans;

use super::*;
use crate::engine::{EngineStats, Prefill};
use crate::gguf;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};

/// The end-of-generation token of the test vocabulary, whose ids 0 to 255 are single bytes.
const EOG: Token = 256;
const HELLO: Token = 257;
const WORLD: Token = 258;
const LONG: Token = 259;
/// A token its makers want never sampled.
const NEVER: Token = 260;
const WORDS: [&str; 4] = ["Hello", " world", " a-word-of-many-letters", "never"];
const N_VOCAB: usize = 257 + WORDS.len();
const CONTEXT: usize = 64;
const PROMPT: [Token; 3] = [1, 2, 3];

/// Fills the logits after these tokens of the slot.
type Script = Box<dyn FnMut(&[Token], &AtomicBool, &mut [f32]) -> Result<()> + Send>;

/// Runs in every prefill.
type Hook = Box<dyn FnMut(&AtomicBool) -> Result<()> + Send>;

/// What a test may look at while the worker owns the engine.
#[derive(Clone, Default)]
struct Watch {
    freed: Arc<AtomicBool>,
    /// The tokens of each evaluation after the prompt.
    batches: Arc<parking_lot::Mutex<Vec<Vec<Token>>>>,
    prefills: Arc<AtomicUsize>,
    /// The slot after each shift.
    shifts: Arc<parking_lot::Mutex<Vec<Vec<Token>>>>,
}

struct Fake {
    script: Script,
    on_prefill: Hook,
    slots: BTreeMap<i32, Vec<Token>>,
    slot: i32,
    passes: u64,
    row: Vec<f32>,
    watch: Watch,
}

impl Fake {
    fn new(script: Script) -> Fake {
        Fake {
            script,
            on_prefill: Box::new(|_| Ok(())),
            slots: BTreeMap::new(),
            slot: -1,
            passes: 0,
            row: vec![0.0; N_VOCAB],
            watch: Watch::default(),
        }
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.watch.freed.store(true, Ordering::Release);
    }
}

impl Decoder for Fake {
    fn prefill(&mut self, slot_id: i32, tokens: &[Token], cancel: &AtomicBool) -> Result<Prefill> {
        self.watch.prefills.fetch_add(1, Ordering::Relaxed);
        (self.on_prefill)(cancel)?;
        if tokens.len() > CONTEXT {
            return Err(Error::OutOfMemory(format!("a prompt of {} tokens in a context of {CONTEXT}", tokens.len())));
        }
        self.slot = slot_id;
        let slot = self.slots.entry(slot_id).or_default();
        let reused = if slot_id == -1 { 0 } else { slot.iter().zip(tokens).take_while(|(a, b)| a == b).count() };
        *slot = tokens.to_vec();
        self.passes += 1;
        Ok(Prefill { tokens: tokens.len(), reused: reused.min(tokens.len() - 1), ..Prefill::default() })
    }

    fn logits(&mut self, tokens: &[Token], _: &[Token], cancel: &AtomicBool) -> Result<&mut [f32]> {
        let slot = self.slots.entry(self.slot).or_default();
        slot.extend_from_slice(tokens);
        assert!(slot.len() <= CONTEXT, "more tokens than the context holds");
        self.watch.batches.lock().push(tokens.to_vec());
        self.passes += u64::from(!tokens.is_empty());
        self.row.fill(0.0);
        (self.script)(slot, cancel, &mut self.row)?;
        Ok(&mut self.row)
    }

    fn shift(&mut self, keep: usize, pending: &mut Vec<Token>, _: &AtomicBool) -> Result<usize> {
        let slot = self.slots.entry(self.slot).or_default();
        slot.append(pending);
        pending.extend(slot.pop());
        let gone = (slot.len() - keep) / 2;
        slot.drain(keep..keep + gone);
        self.watch.shifts.lock().push(slot.clone());
        Ok(gone)
    }

    fn tokens(&self) -> &[Token] {
        &self.slots[&self.slot]
    }

    fn room(&self) -> usize {
        CONTEXT - self.tokens().len()
    }

    fn stats(&self) -> EngineStats {
        EngineStats { forward_passes: self.passes, ..EngineStats::default() }
    }
}

/// A model that wants to say `tokens` and then ends, whatever it is made to say in between.
fn say(tokens: impl IntoIterator<Item = Token>) -> Fake {
    let tokens: Vec<Token> = tokens.into_iter().collect();
    Fake::new(Box::new(move |slot, _, row| {
        let wanted = tokens.get(slot.len() - PROMPT.len()).copied().unwrap_or(EOG);
        row[wanted as usize] = 10.0;
        Ok(())
    }))
}

/// A model that says the bytes of `text`, one token each.
fn spell(text: &[u8]) -> Fake {
    say(text.iter().map(|&byte| Token::from(byte)))
}

/// A model that says "a" for ever.
fn drone() -> Fake {
    Fake::new(Box::new(|_, _, row| {
        row[usize::from(b'a')] = 10.0;
        Ok(())
    }))
}

fn file() -> gguf::File {
    let bytes = (0..=255u8).map(|byte| format!("<0x{byte:02X}>"));
    let tokens: Vec<String> =
        bytes.chain(["</s>".into()]).chain(WORDS.map(|word| word.replace(' ', "\u{2581}"))).collect();
    let (byte, control, normal) = (6i32, 3, 1);
    let types = [vec![byte; 256], vec![control], vec![normal; WORDS.len()]].concat();
    let mut file = gguf::Writer::new(3);
    file.set("general.architecture", "llama").set("tokenizer.ggml.model", "llama");
    file.set("tokenizer.ggml.scores", vec![0f32; tokens.len()]).set("tokenizer.ggml.token_type", types);
    file.set("tokenizer.ggml.tokens", tokens);
    for special in ["bos", "eos", "unknown"] {
        file.set(format!("tokenizer.ggml.{special}_token_id"), EOG as u32);
    }
    file.set("tokenizer.ggml.suppress_tokens", vec![NEVER]);
    gguf::File::from_bytes(file.to_bytes().unwrap()).unwrap()
}

fn vocab() -> Arc<Vocab> {
    Arc::new(Vocab::from_gguf(&file()).unwrap())
}

fn open(fake: Fake) -> Session {
    let info = ModelInfo {
        ids: vec!["tiny".into()],
        n_vocab: N_VOCAB,
        generates: true,
        context: CONTEXT as u32,
        slots: 4,
        ..ModelInfo::default()
    };
    Session::start(fake, vocab(), file(), info, Settings::default()).unwrap()
}

fn set(session: &Session, change: impl FnOnce(&mut Settings)) {
    let mut settings = session.settings();
    change(&mut settings);
    session.configure(settings).unwrap();
}

/// What a callback saw of one event.
#[derive(Debug, Clone, PartialEq)]
struct Seen {
    token: Token,
    text: String,
    done: bool,
}

/// A sink that passes on what it sees; it hangs up when it is dropped.
fn listener() -> (Sink, Receiver<Seen>) {
    let (sender, receiver) = channel();
    let sink = Sink::Callback(Box::new(move |event: Event<'_>| {
        let _ = sender.send(Seen { token: event.token, text: event.text.into(), done: event.done });
    }));
    (sink, receiver)
}

/// All events that a generation's callback received.
#[derive(Debug, PartialEq)]
struct Heard {
    tokens: Vec<Token>,
    /// The text of each token, then that of the terminal event.
    texts: Vec<String>,
}

impl Heard {
    /// Listens until the sink hangs up; there must be one terminal event and it must be the last.
    fn all(receiver: &Receiver<Seen>) -> Heard {
        let events: Vec<Seen> = receiver.iter().collect();
        let terminal: Vec<usize> = (0..events.len()).filter(|&at| events[at].done).collect();
        assert_eq!(terminal, [events.len() - 1], "one terminal event, at the end: {events:?}");
        assert!(events.iter().all(|event| (event.token == -1) == event.done), "{events:?}");
        Heard {
            tokens: events.iter().filter(|event| !event.done).map(|event| event.token).collect(),
            texts: events.into_iter().map(|event| event.text).collect(),
        }
    }

    fn text(&self) -> String {
        self.texts.concat()
    }
}

/// Prefill, generate greedily, listen to the end.
fn generate(session: &Session, max_new_tokens: i32) -> Heard {
    session.prefill(&PROMPT, -1).unwrap();
    let (sink, receiver) = listener();
    session.generate(max_new_tokens, Some(0.0), None, sink).unwrap();
    Heard::all(&receiver)
}

fn reason(session: &Session) -> FinishReason {
    session.status().finish_reason
}

/// Waits for something another thread is about to do.
fn eventually(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < deadline, "{what} did not happen");
        thread::sleep(Duration::from_millis(1));
    }
}

fn is_busy<T>(outcome: Result<T>) -> bool {
    matches!(outcome, Err(Error::Busy(_)))
}
