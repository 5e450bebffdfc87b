//! A context that does not end, on real engines. In a model of one layer keys and values depend on no other token, so
//! what a shift leaves has to give the logits of a fresh run of the kept tokens. In a deeper one the kept tokens were
//! computed with those in view that are gone; there a session has to say what the same removals done by hand give.

use crate::testing::fixtures::{Kind, Weights};
use crate::testing::judge::NEVER;
use crate::testing::stats::{distance, widen};
use crate::testing::{fixture, has_gpu};
use elizainference::Token;
use elizainference::engine::{self, Engine, EngineOptions, KvType, SlotId};
use elizainference::session::{ContextFull, Event, FinishReason, Mode, OpenOptions, Session, Settings, Sink, SpanEnd};
use std::sync::mpsc::channel;

const PROMPT: [Token; 6] = [1, 40, 300, 77, 410, 150];
const CONTEXT: u32 = 64;
const KEEP: usize = 4;
const TYPES: [KvType; 3] = [KvType::F32, KvType::F16, KvType::Q8_0];

fn options(kv_type: KvType, gpu_layers: i32) -> EngineOptions {
    EngineOptions { context: CONTEXT, kv_type, slots: 2, threads: 1, gpu_layers, ..EngineOptions::default() }
}

fn engine(kind: Kind, kv_type: KvType, gpu_layers: i32) -> Engine {
    let options = options(kv_type, gpu_layers);
    Engine::new(engine::open_model(&fixture(kind, Weights::F32), &options, None).unwrap(), &options).unwrap()
}

fn session(kind: Kind, kv_type: KvType, gpu_layers: i32) -> Session {
    let (path, engine) = (fixture(kind, Weights::F32), options(kv_type, gpu_layers));
    let session = Session::open(OpenOptions { path, engine, ..OpenOptions::default() }).unwrap();
    let mut params = session.settings().params;
    params.seed = Some(11);
    let on_context_full = ContextFull::Shift { keep: KEEP as u32 };
    session.configure(Settings { params, ignore_eos: true, on_context_full, ..Settings::default() }).unwrap();
    session
}

/// Where layers can be: the CPU, and a GPU if this machine has one or has to have one.
fn devices() -> Vec<i32> {
    if has_gpu() { vec![0, -1] } else { vec![0] }
}

fn listen(session: &Session, max_new_tokens: i32, temperature: f32) -> Vec<Token> {
    let (sender, receiver) = channel();
    let sink = Sink::Callback(Box::new(move |event: Event<'_>| {
        if !event.done {
            let _ = sender.send(event.token);
        }
    }));
    session.generate(max_new_tokens, Some(temperature), None, sink).unwrap();
    let said = receiver.iter().collect();
    assert_eq!(session.take_error(), None);
    said
}

/// The tokens between two shifts, and the logits after each.
#[derive(Default)]
struct Stretch {
    /// What the slot held when it began.
    held: Vec<Token>,
    tokens: Vec<Token>,
    rows: Vec<Vec<f64>>,
}

/// Greedy decoding, with the removals by hand. The first stretch begins with the prompt, each other one after a shift.
fn by_hand(kind: Kind, kv_type: KvType, gpu_layers: i32, n: usize) -> Vec<Stretch> {
    let mut engine = engine(kind, kv_type, gpu_layers);
    let slot = SlotId::default();
    let vocab = engine.model().vocab().clone();
    let banned = [vocab.eog_tokens(), vocab.suppressed()].concat();
    engine.prefill(slot, &PROMPT, &NEVER).unwrap();
    let mut row = widen(engine.head(slot).unwrap());
    let mut stretches = vec![Stretch { held: PROMPT.to_vec(), ..Stretch::default() }];
    for at in 0..n {
        let legal = (0..row.len()).filter(|&id| !banned.contains(&(id as Token)));
        let token = legal.reduce(|best, id| if row[id] > row[best] { id } else { best }).unwrap() as Token;
        // The last token of all is said and never evaluated.
        if at + 1 < n && engine.room(slot) == 1 {
            let gone = (engine.position(slot) - KEEP) / 2;
            engine.remove(slot, KEEP..KEEP + gone).unwrap();
            stretches.push(Stretch { held: engine.tokens(slot).to_vec(), ..Stretch::default() });
        }
        row = widen(engine.decode(slot, token, &NEVER).unwrap());
        let stretch = stretches.last_mut().unwrap();
        stretch.tokens.push(token);
        stretch.rows.push(row.clone());
    }
    stretches
}

#[test]
fn a_session_says_what_the_same_removals_by_hand_give() {
    for gpu_layers in devices() {
        for (kind, kv_type) in [Kind::Llama, Kind::Qwen3, Kind::Gemma3].into_iter().zip(TYPES).chain([
            (Kind::Llama, KvType::Q8_0),
            (Kind::Qwen3, KvType::F32),
            (Kind::LlamaYarn, KvType::F16),
        ]) {
            let name = format!("{kind:?}, {kv_type:?}, {gpu_layers} layers on the GPU");
            let stretches = by_hand(kind, kv_type, gpu_layers, 150);
            let expected: Vec<Token> = stretches.iter().flat_map(|stretch| stretch.tokens.clone()).collect();
            let session = session(kind, kv_type, gpu_layers);
            session.prefill(&PROMPT, 0).unwrap();
            assert_eq!(listen(&session, 150, 0.0), expected, "{name}");
            let usage = session.usage();
            assert_eq!(usage.context_shifts, stretches.len() as u64 - 1, "{name}");
            assert_eq!((usage.context_shifts, usage.finish_reason), (4, FinishReason::Length), "{name}");
        }
    }
}

#[test]
fn after_a_shift_a_model_of_one_layer_goes_on_as_a_fresh_run_of_the_kept_tokens() {
    let fresh = |kv_type, stretch: &Stretch| {
        let mut engine = engine(Kind::LlamaShallow, kv_type, 0);
        engine.prefill(SlotId::default(), &stretch.held, &NEVER).unwrap();
        let decode = |&token: &Token| widen(engine.decode(SlotId::default(), token, &NEVER).unwrap());
        stretch.tokens.iter().map(decode).collect::<Vec<_>>()
    };
    for gpu_layers in devices() {
        for kv_type in TYPES {
            let stretches = by_hand(Kind::LlamaShallow, kv_type, gpu_layers, 150);
            assert_eq!(stretches.len(), 5);
            for (at, stretch) in stretches.iter().enumerate() {
                let truth = fresh(KvType::F32, stretch);
                let shifted = distance(&stretch.rows, &truth);
                match kv_type {
                    KvType::F32 => assert!(shifted.max < 5e-5, "stretch {at}: {shifted:?}"),
                    // A key is rounded once more each time it is turned.
                    _ => {
                        let once = distance(&fresh(kv_type, stretch), &truth).relative_rms;
                        let more = shifted.relative_rms;
                        assert!(once > 0.0 && more <= 4.0 * once, "{kv_type:?}, stretch {at}: {more} for {once}");
                    }
                }
            }
        }
    }
}

fn leaves(count: i32, length: i32) -> Vec<Vec<Token>> {
    // They part at three places, with runs without a choice between.
    let token = |leaf: i32, at: i32| if at % 20 == 19 { 300 + leaf % (1 + at / 10) } else { 270 + at % 20 };
    let mut leaves: Vec<Vec<Token>> =
        (0..count).map(|leaf| (0..length).map(|at| token(leaf, at)).chain([400 + leaf]).collect()).collect();
    leaves.dedup();
    leaves
}

#[test]
fn a_span_goes_on_over_a_shift_in_every_mode() {
    for gpu_layers in devices() {
        let session = session(Kind::Llama, KvType::F32, gpu_layers);
        session.configure(Settings { on_span_end: SpanEnd::Stop, ..session.settings() }).unwrap();
        // Longer than what the prompt leaves free, and in the last case than the whole context.
        for (count, length) in [(1, 59), (3, 59), (5, 62), (1, 150), (4, 150)] {
            let leaves = leaves(count, length);
            let quoted = |(at, tokens): (usize, &Vec<Token>)| format!(r#"{{"name":"{at}","tokens":{tokens:?}}}"#);
            let quoted: Vec<String> = leaves.iter().enumerate().map(quoted).collect();
            let json = format!(r#"{{"descriptors":[{{"path":"p","leaves":[{}]}}]}}"#, quoted.join(","));
            for mode in [Mode::Greedy, Mode::Sampled, Mode::ScoreLeaves] {
                let name = format!("{count} leaves of {length}, {mode:?}, {gpu_layers} layers on the GPU");
                session.set_trie(json.as_bytes(), mode).unwrap();
                session.prefill(&PROMPT, -1).unwrap();
                if mode == Mode::ScoreLeaves && session.score_trie().is_err() {
                    // The leaves have to fit beside the prompt to be scored.
                    session.take_error();
                    continue;
                }
                let said = listen(&session, -1, 1.0);
                assert!(leaves.contains(&said), "{name}: {said:?}");
                let usage = session.usage();
                assert_eq!(usage.finish_reason, FinishReason::Span, "{name}");
                assert!(usage.context_shifts >= 1, "{name}");
            }
        }
    }
}

#[test]
fn a_stream_that_shifted_is_saved_and_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("slot");
    for gpu_layers in devices() {
        let both = [0, 1].map(|_| {
            let session = session(Kind::Llama, KvType::F32, gpu_layers);
            session.set_chain(0, Some("penalties=64,1.3,0.1,0.1;top_k=40;temp=1.2".parse().unwrap())).unwrap();
            session
        });
        let [first, second] = &both;
        first.prefill(&PROMPT, 0).unwrap();
        let expected = listen(first, 130, 1.2);
        assert_eq!(first.usage().context_shifts, 3);
        for cut in [1, 57, 58, 59, 60, 86, 87, 88, 89, 100, 129] {
            first.prefill(&PROMPT, 0).unwrap();
            let begun = listen(first, cut, 1.2);
            first.save_slot(0, &path).unwrap();
            second.restore_slot(0, &path).unwrap();
            assert_eq!(second.usage().context_shifts, 0);
            let rest = listen(second, 130 - cut, 1.2);
            assert_eq!([begun, rest].concat(), expected, "cut at {cut}, {gpu_layers} layers on the GPU");
        }
    }
}

#[test]
fn other_slots_go_before_anything_shifts() {
    let session = session(Kind::Llama, KvType::F32, 0);
    let other: Vec<Token> = (0..30).map(|at| 100 + at).collect();
    session.prefill(&other, 1).unwrap();
    session.prefill(&PROMPT, 0).unwrap();
    assert_eq!(listen(&session, 55, 0.0).len(), 55);
    assert_eq!(session.usage().context_shifts, 0);
    session.prefill(&other, 1).unwrap();
    assert_eq!(session.usage().prompt_tokens_reused, 0);
    // What a shift left is no prompt's beginning but for the kept tokens.
    session.prefill(&PROMPT, 0).unwrap();
    let said = listen(&session, 70, 0.0);
    assert_eq!(session.usage().context_shifts, 1);
    session.prefill(&[&PROMPT[..], &said[..20]].concat(), 0).unwrap();
    assert_eq!(session.usage().prompt_tokens_reused, KEEP as u64);
}
