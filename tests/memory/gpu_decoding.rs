//! Steady decoding on a GPU makes nothing: no buffer, bind group or pipeline on the device (and so no plan, which would
//! make all three), and no allocation in code of ours. What wgpu allocates in its calls is counted apart and printed.
//!
//! Whose an allocation is says the stack: the innermost frame of this library or of wgpu's crates.

use crate::testing::fixtures::{Kind, Weights};
use crate::testing::{fixture, has_gpu};
use crate::{alone, generate};
use elizainference::backend::gpu::Gpu;
use elizainference::backend::gpu::device::Made;
use elizainference::engine::EngineOptions;
use elizainference::session::{Event, FinishReason, Mode, OpenOptions, Session, Settings, Usage};
use std::backtrace::Backtrace;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

static COUNTING: AtomicBool = AtomicBool::new(false);
static THEIRS: AtomicUsize = AtomicUsize::new(0);
static OURS: Mutex<Vec<String>> = Mutex::new(Vec::new());

thread_local! {
    /// Whether this thread is about to look at its stack, which allocates.
    static LOOKING: Cell<bool> = const { Cell::new(false) };
}

/// Called before every allocation of the process.
pub fn count() {
    if !COUNTING.load(Ordering::Relaxed) || LOOKING.try_with(|looking| looking.replace(true)) != Ok(false) {
        return;
    }
    let stack = Backtrace::force_capture().to_string();
    match owner(&stack) {
        Some(Owner::Wgpu) => drop(THEIRS.fetch_add(1, Ordering::Relaxed)),
        _ => OURS.lock().unwrap_or_else(|e| e.into_inner()).push(stack),
    }
    LOOKING.set(false);
}

#[derive(Debug, PartialEq)]
enum Owner {
    Ours,
    Wgpu,
}

/// Of a stack, the innermost frame that is this library's or wgpu's. Others, as those of containers, are nobody's. A
/// frame is told by its file, or where there is none by its function's path.
fn owner(stack: &str) -> Option<Owner> {
    stack.lines().map(str::trim).find_map(|line| {
        if let Some(file) = line.strip_prefix("at ") {
            let ours = ["./src/", concat!(env!("CARGO_MANIFEST_DIR"), "/src/")].iter().any(|dir| file.starts_with(dir));
            let wgpu = file.split('/').any(|part| part.starts_with("wgpu-"));
            return ours.then_some(Owner::Ours).or(wgpu.then_some(Owner::Wgpu));
        }
        let path = line.split_once(": ")?.1.trim_start_matches(['<', '&']);
        let roots = [("elizainference::", Owner::Ours), ("wgpu", Owner::Wgpu)];
        roots.into_iter().find(|(root, _)| path.starts_with(root)).map(|(_, owner)| owner)
    })
}

fn start() {
    OURS.lock().unwrap().clear();
    THEIRS.store(0, Ordering::Relaxed);
    COUNTING.store(true, Ordering::SeqCst);
}

/// Ends counting: stacks of our allocations, and how many wgpu made.
fn stop() -> (Vec<String>, usize) {
    COUNTING.store(false, Ordering::SeqCst);
    (std::mem::take(&mut OURS.lock().unwrap()), THEIRS.load(Ordering::Relaxed))
}

const WARM_UP: u32 = 40;
const TOKENS: u32 = 40;

/// A trie whose span is longer than all that is counted, by a chain that stays on its long way: a choice at every third
/// token, forced ones in between.
fn long_span() -> (String, &'static str) {
    let choices = (WARM_UP + TOKENS + 8) / 3 + 1;
    let way = |at: u32| [300, 310 + at % 50, 310 + (7 * at) % 50];
    let leaf = |ends: u32| (0..ends).flat_map(way).chain([301]).collect::<Vec<u32>>();
    let leaves = (0..=choices).map(|ends| serde_json::json!({"name": ends.to_string(), "tokens": leaf(ends)}));
    let descriptor = serde_json::json!({"path": "p", "leaves": leaves.collect::<Vec<_>>()});
    let payload = serde_json::json!({"modelId": "", "descriptors": [descriptor]}).to_string();
    (payload, "logit_bias=300:1000;penalties=64,1.1,0,0;temp=0.8")
}

/// A session with all layers on the GPU, from its worker to the callback; with `candidates` more is read back.
fn check(kind: Kind, chain: &str, candidates: usize, trie: Option<&str>) {
    let engine = EngineOptions { threads: 1, gpu_layers: -1, ..EngineOptions::default() };
    let session =
        Session::open(OpenOptions { path: fixture(kind, Weights::Q8_0), engine, ..OpenOptions::default() }).unwrap();
    session.configure(Settings { ignore_eos: true, candidates, ..session.settings() }).unwrap();
    session.set_chain(0, Some(chain.parse().unwrap())).unwrap();
    if let Some(trie) = trie {
        session.set_trie(trie.as_bytes(), Mode::Sampled).unwrap();
    }
    session.prefill(&[1, 2, 3, 4, 5], 0).unwrap();
    // The device that the session has opened.
    let gpu = Gpu::best().unwrap();
    let made: Arc<Mutex<Vec<Made>>> = Arc::new(Mutex::new(Vec::with_capacity(2)));
    let (device, noted) = (gpu.clone(), made.clone());
    let mut seen = 0;
    let callback = move |_: Event<'_>| {
        seen += 1;
        if seen == WARM_UP {
            noted.lock().unwrap().push(device.made());
            start();
        } else if seen == WARM_UP + TOKENS {
            COUNTING.store(false, Ordering::SeqCst);
            noted.lock().unwrap().push(device.made());
        }
    };
    generate(&session, WARM_UP + TOKENS + 8, None, callback);
    assert_eq!(session.take_error(), None);
    assert_eq!(session.usage().finish_reason, FinishReason::Length);
    if trie.is_some() {
        let Usage { branching_steps, gpu_waits, .. } = session.usage();
        assert!(branching_steps > u64::from(TOKENS) / 3 && gpu_waits < branching_steps / 2, "{:?}", session.usage());
    }
    let ((ours, theirs), made) = (stop(), made.lock().unwrap());
    println!("{kind:?} `{chain}`: {} allocations of wgpu's a token", theirs as f64 / f64::from(TOKENS));
    assert_eq!(made[0], made[1], "{kind:?} `{chain}`");
    assert!(theirs > 0, "{kind:?} `{chain}`: nothing ran on the GPU");
    assert!(ours.is_empty(), "{kind:?} `{chain}`: {} allocations in {TOKENS} tokens, first:\n{}", ours.len(), ours[0]);
}

#[test]
fn steady_decoding_on_a_gpu_makes_nothing() {
    if !alone("gpu_decoding::steady_decoding_on_a_gpu_makes_nothing") {
        return;
    }
    // A debug build of wgpu looks at its own stack with every lock it takes when backtraces are asked for, and an
    // allocation in there cannot look at its own. SAFETY: the only test of this process; no other thread of it reads
    // the environment yet.
    unsafe { std::env::set_var("RUST_LIB_BACKTRACE", "0") };
    // The counter tells the two apart: else a zero would say nothing.
    start();
    let chain: elizainference::sampling::Chain = "top_k=40".parse().unwrap();
    let (ours, theirs) = stop();
    assert!(!ours.is_empty() && theirs == 0, "{chain:?}: {} and {theirs}", ours.len());
    if !has_gpu() {
        return;
    }
    let gpu = Gpu::best().unwrap();
    let before = gpu.made();
    start();
    let buffer = gpu.buffer("test", 64, wgpu::BufferUsages::STORAGE).unwrap();
    let (ours, theirs) = stop();
    assert!(ours.is_empty() && theirs > 0, "{ours:?}, {theirs}");
    assert_eq!(gpu.made().buffers, before.buffers + 1);
    drop((buffer, gpu));
    if !cfg!(debug_assertions) {
        eprintln!("skipped: an optimised build makes parts of wgpu parts of our functions, and their allocations ours");
        return;
    }
    check(Kind::Llama, "penalties=64,1.1,0,0;top_k=40;top_p=0.95;min_p=0.05;temp=0.8", 0, None);
    check(Kind::Gemma3, "greedy", 0, None);
    check(Kind::Qwen3, "top_k=20;temp=1.2", 5, None);
    let (trie, chain) = long_span();
    check(Kind::Llama, chain, 0, Some(&trie));
}
