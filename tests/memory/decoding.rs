//! Steady decoding allocates nothing: a counting allocator watches every thread of the process while tokens are
//! evaluated, sampled and turned into text.

use crate::testing::fixture;
use crate::testing::fixtures::{Kind, Weights};
use crate::{alone, generate};
use elizainference::engine::{self, Engine, EngineOptions, KvType};
use elizainference::sampling::{Chain, Sampler};
use elizainference::session::{Event, FinishReason, Mode, OpenOptions, Params, Session, Settings};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

static COUNTED: AtomicUsize = AtomicUsize::new(0);
static COUNTING: AtomicBool = AtomicBool::new(false);

/// Called before every allocation of the process.
pub fn count() {
    if COUNTING.load(Ordering::Relaxed) {
        COUNTED.fetch_add(1, Ordering::Relaxed);
    }
}

/// Allocations of `work`, on any thread.
fn allocations(work: impl FnOnce()) -> usize {
    COUNTED.store(0, Ordering::Relaxed);
    COUNTING.store(true, Ordering::SeqCst);
    work();
    COUNTING.store(false, Ordering::SeqCst);
    COUNTED.load(Ordering::Relaxed)
}

const WARM_UP: u32 = 16;
const TOKENS: u32 = 200;

fn check(kind: Kind, weights: Weights, kv_type: KvType, threads: u32, chain: &str) {
    let options = EngineOptions { kv_type, threads, ..EngineOptions::default() };
    let model = engine::open_model(&fixture(kind, weights), &options, None).unwrap();
    let vocab = model.vocab().clone();
    let mut engine = Engine::new(model.clone(), &options).unwrap();
    let chain: Chain = chain.parse().unwrap();
    let mut sampler = Sampler::new(&chain, model.n_vocab(), 42).unwrap();
    let slot = engine.take_slot(-1).unwrap();
    let never = AtomicBool::new(false);
    let banned = vocab.eog_tokens().to_vec();
    let mut text = Vec::with_capacity((WARM_UP + TOKENS) as usize * vocab.max_piece_bytes());
    engine.prefill(slot, &[1, 2, 3, 4, 5], &never).unwrap();
    let mut token = sampler.sample(engine.head(slot).unwrap(), None, &banned, 0).unwrap();
    let mut step = |position: u32| {
        sampler.accept(token);
        vocab.piece(token, false, &mut text);
        let logits = engine.decode(slot, token, &never).unwrap();
        token = sampler.sample(logits, None, &banned, position).unwrap();
    };
    (1..=WARM_UP).for_each(&mut step);
    let counted = allocations(|| (WARM_UP + 1..=WARM_UP + TOKENS).for_each(&mut step));
    assert_eq!(counted, 0, "{kind:?} {weights:?}, KV {kv_type:?}, {threads} threads, `{chain}`: {TOKENS} tokens");
}

/// The same through a session: worker thread, stop strings, penalties, kept candidates, text assembly and callback
/// included; with `span` also a token trie whose leaves are longer than the stretch that is counted.
fn check_session(kind: Kind, weights: Weights, span: bool) {
    let engine = EngineOptions { threads: 2, ..EngineOptions::default() };
    let session =
        Session::open(OpenOptions { path: fixture(kind, weights), engine, ..OpenOptions::default() }).unwrap();
    let stop = vec![b"no such text".to_vec(), b"nor this".to_vec()];
    let params = Params { repeat_penalty: 1.1, ..Params::default() };
    session.configure(Settings { params, stop, ignore_eos: true, candidates: 10, ..Settings::default() }).unwrap();
    if span {
        // Two leaves that part at their fourth token and are forced from there on.
        let leaf = |name: i32| {
            let token = |at: i32| if at == 3 { 60 + name } else { 300 + at % 7 };
            let tokens: Vec<String> = (0..400).map(|at| token(at).to_string()).collect();
            format!(r#"{{"name":"{name}","tokens":[{}]}}"#, tokens.join(","))
        };
        let json = format!(r#"{{"descriptors":[{{"path":"p","leaves":[{},{}]}}]}}"#, leaf(0), leaf(1));
        session.set_trie(json.as_bytes(), Mode::Sampled).unwrap();
    }
    session.prefill(&[1, 2, 3, 4, 5], -1).unwrap();
    let mut seen = 0;
    let callback = move |event: Event<'_>| {
        seen += 1;
        if seen == WARM_UP {
            COUNTED.store(0, Ordering::Relaxed);
            COUNTING.store(true, Ordering::SeqCst);
        } else if seen == WARM_UP + TOKENS {
            COUNTING.store(false, Ordering::SeqCst);
        }
        assert_eq!(event.done, seen == WARM_UP + TOKENS + 9);
    };
    generate(&session, WARM_UP + TOKENS + 8, Some(0.8), callback);
    assert_eq!(session.usage().finish_reason, FinishReason::Length);
    let counted = COUNTED.load(Ordering::Relaxed);
    assert_eq!(counted, 0, "session on {kind:?} {weights:?}, span {span}: {TOKENS} tokens");
}

#[test]
fn steady_decoding_allocates_nothing() {
    if !alone("decoding::steady_decoding_allocates_nothing") {
        return;
    }
    // The counter itself counts: else a zero would say nothing.
    assert_eq!(allocations(|| drop(std::hint::black_box(vec![1u8; 100]))), 1);
    assert!(allocations(|| std::thread::spawn(|| drop(std::hint::black_box(vec![1u8; 100]))).join().unwrap()) > 1);

    let default = "penalties=64,1.1,0,0;top_k=40;top_p=0.95;min_p=0.05;temp=0.8";
    for kind in [Kind::Llama, Kind::Qwen3, Kind::Gemma3] {
        for weights in [Weights::F32, Weights::Q8_0, Weights::Q4_0, Weights::Q4_K] {
            for threads in [1, 2] {
                check(kind, weights, KvType::F16, threads, default);
            }
        }
    }
    check(Kind::Qwen3, Weights::Q8_0, KvType::Q8_0, 1, "temp=0");
    check(Kind::Qwen3, Weights::F16, KvType::F32, 2, "top_p=0.9;temp=1");
    for span in [false, true] {
        check_session(Kind::Llama, Weights::Q8_0, span);
        check_session(Kind::Qwen3, Weights::Q4_0, span);
    }
}
