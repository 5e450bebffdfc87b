//! The engine on a GPU: its logits against the slow forward pass, on the fixture models, with every placement.
//!
//! A GPU computes with the weights as their format says and in single precision, so the bounds are those of plain F32,
//! whatever the weights' type; only a rounded cache may differ by what its rounding costs. Where it multiplies prompts
//! by integer dot products, the bounds are those of the CPU, which rounds its activations as well.

use crate::testing::fixtures::{Kind, Weights};
use crate::testing::judge::{Judge, Kv, NEVER, all_rows, prefill_and_decode, tokens};
use crate::testing::process;
use crate::testing::stats::widen;
use crate::testing::{fixture, has_gpu};
use crate::translation;
use elizainference::backend::cpu::CpuBackend;
use elizainference::backend::gpu::device::test_limits::TestLimits;
use elizainference::backend::gpu::device::{adapters, name_of};
use elizainference::backend::gpu::kernel::Binding;
use elizainference::backend::gpu::{Gpu, GpuBackend};
use elizainference::backend::{Backend, ChainStep, Legal, SampleSpec};
use elizainference::engine::{self, Engine, EngineOptions, KvType, Speculation};
use elizainference::gguf::File;
use elizainference::model::{Model, Placement};
use elizainference::sampling::Sampler;
use elizainference::session::{Event, FinishReason, Mode, OpenOptions, Session, Settings, Sink, Usage};
use elizainference::{Error, Token};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::channel;

const DECODED: usize = 4;

fn open(path: &Path, kv: impl Into<Kv>, gpu_layers: i32) -> Engine {
    let Kv(kv_type, v) = kv.into();
    let options =
        EngineOptions { kv_type, kv_type_v: Some(v), threads: 1, slots: 2, gpu_layers, ..EngineOptions::default() };
    let model = engine::open_model(path, &options, None).unwrap();
    Engine::new(model, &options).unwrap()
}

fn check(kind: Kind, weights: Weights, kv: impl Into<Kv>, gpu_layers: i32, prompts: &[usize]) {
    let kv = kv.into();
    let path = fixture(kind, weights);
    let name = format!("{kind:?} {weights:?} {kv:?}, {gpu_layers} layers on the GPU");
    let longest = prompts[prompts.len() - 1] + DECODED;
    let tokens = tokens(longest, "prompts");
    let gpu = Gpu::best().unwrap();
    let rounds = gpu.caps.int8_dots || gpu.caps.matrices.is_some();
    let judge = match rounds && !weights.is_f32() {
        true => Judge::of(&name, &path, false, kv, tokens),
        false => Judge::of_single_precision(&name, &path, kv, tokens),
    };
    let mut engine = open(&path, kv, gpu_layers);
    for &prompt in prompts {
        let slot = engine.take_slot(-1).unwrap();
        let rows = prefill_and_decode(&mut engine, slot, &judge.tokens, prompt, DECODED);
        judge.check(&format!("prompt {prompt} + {DECODED}"), prompt - 1..prompt + DECODED, &rows);
        engine.truncate(slot, 0);
    }
    judge.check("every position", 0..longest, &all_rows(&mut engine, &judge.tokens));
}

#[test]
fn every_architecture_with_every_cache() {
    if !has_gpu() {
        return;
    }
    // A software driver takes seconds to compile a kernel; these lengths share most of theirs.
    for kind in [Kind::Llama, Kind::Qwen3] {
        check(kind, Weights::F32, KvType::F32, -1, &[1, 64]);
    }
    // A few rows at once, where sums and their norms go into the products.
    check(Kind::Gemma3, Weights::F32, KvType::F32, -1, &[1, 6, 64]);
    check(Kind::Qwen35, Weights::F32, KvType::F32, -1, &[1, 6, 64]);
    check(Kind::Llama, Weights::F32, KvType::F16, -1, &[64]);
    check(Kind::LlamaExtras, Weights::F32, KvType::F32, -1, &[64]);
}

#[test]
fn quantised_weights() {
    if !has_gpu() {
        return;
    }
    // The kernels of every type have tests of their own; a block of 32 and one of 256 go all the way here.
    for weights in [Weights::Q8_0, Weights::Q4_K] {
        check(Kind::Llama, weights, KvType::F32, -1, &[40]);
    }
    for (k, v) in [(KvType::Q8_0, KvType::F16), (KvType::F16, KvType::F32)] {
        check(Kind::Llama, Weights::WideF32, Kv(k, v), -1, &[40]);
    }
}

#[test]
#[ignore = "long: every architecture, type of weights and prompt length"]
fn the_whole_matrix() {
    if !has_gpu() {
        return;
    }
    for kind in [Kind::Llama, Kind::Qwen3, Kind::Gemma3] {
        for weights in Weights::ALL {
            for kv_type in [KvType::F32, KvType::F16] {
                check(kind, weights, kv_type, -1, &[1, 7, 64, 300]);
            }
        }
        for gpu_layers in 0..=7 {
            check(kind, Weights::F32, KvType::F32, gpu_layers, &[1, 7, 64]);
        }
    }
    check(Kind::Qwen3, Weights::F32, KvType::Q8_0, -1, &[7, 64]);
    for kind in [Kind::LlamaYarn, Kind::Gemma3Capped] {
        check(kind, Weights::F32, KvType::F32, -1, &[7, 64]);
    }
}

/// A program refuses a kernel that has not, except for those for several rows on a software driver.
#[test]
fn every_kernel_in_use_has_given_a_known_answer() {
    if !has_gpu() {
        return;
    }
    for kind in [Kind::Llama, Kind::LlamaExtras, Kind::Qwen3, Kind::Qwen35, Kind::Gemma3, Kind::Gemma3Capped] {
        drop(open(&fixture(kind, Weights::Q4_K), KvType::Q8_0, -1));
    }
}

/// Translated for every platform, and written down for `make dxc`.
#[test]
#[ignore = "long: every architecture with every type of weights"]
fn every_shader_of_the_fixtures_can_be_translated() {
    if !has_gpu() {
        return;
    }
    let gpu = Gpu::best().unwrap();
    for kind in Kind::ALL {
        for weights in Weights::ALL {
            drop(open(&fixture(kind, weights), KvType::F16, -1));
        }
        for kv_type in [KvType::F32, KvType::Q8_0] {
            drop(open(&fixture(kind, Weights::WideF32), kv_type, -1));
        }
    }
    let texts = gpu.texts();
    assert!(texts.len() > 100, "{} texts", texts.len());
    texts.iter().for_each(|(name, text)| translation::check(name, text));
}

/// Every pass has one attention in each layer; without the option nothing is measured.
#[test]
fn the_times_of_kernels_are_measured_when_asked_for() {
    if !has_gpu() {
        return;
    }
    let path = fixture(Kind::Llama, Weights::Q8_0);
    let layers = engine::open_model(&path, &EngineOptions::default(), None).unwrap().hparams().n_layer as u64;
    let kernels = |more: &[&str]| -> Vec<serde_json::Value> {
        let program = std::process::Command::new(env!("CARGO_BIN_EXE_eliza-inference"))
            .args(["bench", "--gpu-layers", "-1", "--pp", "5", "--tg", "3", "--reps", "1", "--json", "--model"])
            .arg(&path)
            .args(more)
            .output()
            .unwrap();
        assert!(program.status.success(), "{}", String::from_utf8_lossy(&program.stderr));
        let report: serde_json::Value = serde_json::from_slice(&program.stdout).unwrap();
        report["kernels"].as_array().unwrap().clone()
    };
    let measured = kernels(&["--profile"]);
    let dispatches = |name: &str| -> u64 {
        let of_name = |kernel: &&serde_json::Value| kernel["kernel"].as_str().unwrap().split(' ').next() == Some(name);
        measured.iter().filter(of_name).map(|kernel| kernel["dispatches"].as_u64().unwrap()).sum()
    };
    // The prompt, the token before decoding, and the decoded ones.
    let attentions = dispatches("attention");
    assert!(attentions.is_multiple_of(layers) && attentions >= 5 * layers, "{attentions} in {layers} layers");
    assert!(dispatches("sampler") >= 3, "{measured:?}");
    assert!(measured.iter().all(|kernel| kernel["us"].as_f64().unwrap() >= 0.0), "{measured:?}");
    assert!(measured.iter().map(|kernel| kernel["us"].as_f64().unwrap()).sum::<f64>() > 0.0, "{measured:?}");
    assert_eq!(kernels(&[]), Vec::<serde_json::Value>::new());
}

/// The other layers are on the CPU, which rounds activations of quantised weights; so plain weights here.
#[test]
fn every_number_of_layers() {
    if !has_gpu() {
        return;
    }
    for gpu_layers in 0..=3 {
        check(Kind::Llama, Weights::F32, KvType::F32, gpu_layers, &[1, 40]);
    }
    check(Kind::Gemma3, Weights::F32, KvType::F32, 3, &[40]);
}

#[test]
fn slots_truncation_and_reuse() {
    if !has_gpu() {
        return;
    }
    let path = fixture(Kind::Llama, Weights::F32);
    let judges = ["left", "right"].map(|side| Judge::of_single_precision(side, &path, KvType::F32, tokens(60, side)));
    let mut engine = open(&path, KvType::F32, -1);
    let slots = [engine.take_slot(0).unwrap(), engine.take_slot(1).unwrap()];
    let mut rows = [Vec::new(), Vec::new()];
    for side in 0..2 {
        engine.prefill(slots[side], &judges[side].tokens[..20], &NEVER).unwrap();
        rows[side].push(widen(engine.head(slots[side]).unwrap()));
    }
    for step in 0..20 {
        // A tail that one slot drops again leaves holes that the other one fills.
        if step == 9 {
            engine.append(slots[0], &tokens(11, "hole"), &NEVER).unwrap();
            engine.truncate(slots[0], 20 + step);
        }
        for side in 0..2 {
            let token = judges[side].tokens[20 + step];
            rows[side].push(widen(engine.decode(slots[side], token, &NEVER).unwrap()));
        }
    }
    for side in 0..2 {
        judges[side].check("beside another slot", 19..40, &rows[side]);
    }
    let done = engine.prefill(slots[0], &judges[0].tokens[..30], &NEVER).unwrap();
    assert_eq!((done.tokens, done.reused), (30, 29));
    let again = widen(engine.head(slots[0]).unwrap());
    judges[0].check("reused", 29..30, &[again]);
}

fn session(path: &Path, gpu_layers: i32) -> Session {
    let engine = EngineOptions { kv_type: KvType::F32, slots: 2, threads: 1, gpu_layers, ..EngineOptions::default() };
    let session = Session::open(OpenOptions { path: path.into(), engine, ..OpenOptions::default() }).unwrap();
    session.configure(Settings { ignore_eos: true, candidates: 5, ..session.settings() }).unwrap();
    session
}

/// Prompts a session and generates; the tokens, and the last one's candidates.
fn generate(session: &Session, chain: &str, prompt: &[Token], count: i32) -> (Vec<Token>, Vec<Token>) {
    session.set_chain(0, Some(chain.parse().unwrap())).unwrap();
    session.prefill(prompt, 0).unwrap();
    let tokens = next_tokens(session, count);
    (tokens, session.sampled(0).unwrap().candidates.iter().map(|one| one.0).collect())
}

/// What a session generates next.
pub fn next_tokens(session: &Session, count: i32) -> Vec<Token> {
    let (sender, receiver) = channel();
    let sink = Sink::Callback(Box::new(move |event: Event<'_>| {
        if !event.done {
            let _ = sender.send(event.token);
        }
    }));
    session.generate(count, None, None, sink).unwrap();
    let tokens = receiver.iter().collect();
    assert_eq!(session.take_error(), None);
    tokens
}

/// A trie with four names, of which two share two tokens and three one.
pub fn four_names() -> String {
    let leaves = [("a", [300, 301, 302].as_slice()), ("b", &[300, 301, 77, 78, 79]), ("c", &[300, 42]), ("d", &[9])];
    let leaves: Vec<_> =
        leaves.iter().map(|(name, tokens)| serde_json::json!({"name": name, "tokens": tokens})).collect();
    serde_json::json!({"modelId": "", "descriptors": [{"path": "p", "leaves": leaves}]}).to_string()
}

/// The device computes the host's integers from logits that differ in the last bits only, so the same seed gives the
/// same stream, whatever the chain.
#[test]
fn a_stream_sampled_on_the_gpu_is_the_cpu_s() {
    if !has_gpu() {
        return;
    }
    let path = fixture(Kind::Llama, Weights::F32);
    let (cpu, gpu) = (session(&path, 0), session(&path, -1));
    let prompt = tokens(9, "stream");
    for chain in [
        "greedy",
        "top_k=40;top_p=0.95;min_p=0.05;temp=0.8",
        "penalties=32,1.3,0.1,0.1;logit_bias=7:-inf,9:2;top_k=20;temp=1.5",
        "temp=1.2",
        "dry=0.8,1.75,1,64;top_k=20;temp=1.5",
        // Wider than the device's window: the host samples from the copied logits.
        "penalties=2000,1.3,0,0;top_k=20;temp=1.1",
    ] {
        for session in [&cpu, &gpu] {
            let mut settings = session.settings();
            settings.params.seed = Some(7);
            session.configure(settings).unwrap();
        }
        let (expected, got) = (generate(&cpu, chain, &prompt, 30), generate(&gpu, chain, &prompt, 30));
        assert_eq!(expected.0.len(), 30, "{chain}");
        assert_eq!(got, expected, "{chain}");
    }
    // More candidates than the device reports.
    for session in [&cpu, &gpu] {
        session.configure(Settings { candidates: 65, ..session.settings() }).unwrap();
    }
    let (expected, got) = (generate(&cpu, "temp=1.2", &prompt, 5), generate(&gpu, "temp=1.2", &prompt, 5));
    assert_eq!(expected.1.len(), 65);
    assert_eq!(got, expected);
}

#[test]
fn a_constrained_span_on_the_gpu_is_the_cpu_s() {
    if !has_gpu() {
        return;
    }
    let path = fixture(Kind::Qwen3, Weights::F32);
    for mode in [Mode::Greedy, Mode::Sampled] {
        let mut streams = Vec::new();
        for gpu_layers in [0, -1] {
            let session = session(&path, gpu_layers);
            let mut settings = session.settings();
            settings.params.seed = Some(3);
            session.configure(settings).unwrap();
            session.set_trie(four_names().as_bytes(), mode).unwrap();
            streams.push(generate(&session, "penalties=8,1.2,0,0;top_k=30;temp=1.3", &tokens(5, "span"), 16).0);
        }
        assert_eq!(streams[0], streams[1], "{mode:?}");
    }
}

/// From token to token one submission and one wait, and a handful of bytes.
#[test]
fn a_decode_step_is_one_submission() {
    if !has_gpu() {
        return;
    }
    // With the dispatches of a layer, on the average at most.
    for (kind, of_layer) in [(Kind::Llama, 5), (Kind::Qwen3, 5), (Kind::Gemma3, 5), (Kind::Qwen35, 11)] {
        let path = fixture(kind, Weights::Q8_0);
        let session = session(&path, -1);
        session.configure(Settings { candidates: 0, ..session.settings() }).unwrap();
        let prompt = tokens(9, "steps");
        let chain = "top_k=40;top_p=0.95;min_p=0.05;temp=0.8";
        let mut usage = Vec::new();
        // The first evaluates the prompt, the others find it in its slot.
        for count in [1, 20, 50] {
            generate(&session, chain, &prompt, count);
            usage.push(session.usage());
        }
        let steps = 30;
        let layers = engine::open_model(&path, &EngineOptions::default(), None).unwrap().hparams().n_layer as u64;
        let per_step = |what: fn(&Usage) -> u64| (what(&usage[2]) - what(&usage[1])) as f64 / steps as f64;
        assert_eq!(per_step(|u| u.gpu_submissions), 1.0, "{kind:?}");
        assert_eq!(per_step(|u| u.gpu_waits), 1.0, "{kind:?}");
        assert!(per_step(|u| u.gpu_bytes_read) <= 64.0, "{kind:?}: {usage:?}");
        assert!(per_step(|u| u.gpu_dispatches) <= (of_layer * layers + 9) as f64, "{kind:?}: {usage:?}");
        println!(
            "{kind:?}: {} dispatches, {} bytes up a step",
            per_step(|u| u.gpu_dispatches),
            per_step(|u| u.gpu_bytes_uploaded)
        );
    }
}

#[test]
fn a_cancel_and_a_new_prompt_leave_no_step_behind() {
    if !has_gpu() {
        return;
    }
    let path = fixture(Kind::Llama, Weights::F32);
    let gpu = session(&path, -1);
    let mut settings = gpu.settings();
    settings.params.seed = Some(5);
    gpu.configure(settings).unwrap();
    let prompt = tokens(12, "again");
    let (first, _) = generate(&gpu, "top_k=40;temp=0.9", &prompt, 25);
    // A generation that is cancelled at its fifth token, with a step ahead under way.
    gpu.prefill(&prompt, 0).unwrap();
    let (sender, receiver) = channel();
    let mut seen = 0;
    let sink = Sink::Callback(Box::new(move |event: Event<'_>| {
        seen += 1;
        let _ = sender.send((seen, event.done));
    }));
    gpu.generate(-1, None, None, sink).unwrap();
    for (seen, _) in receiver.iter() {
        if seen == 5 {
            gpu.cancel();
        }
    }
    assert_eq!(gpu.status().finish_reason, FinishReason::Cancelled);
    assert_eq!(generate(&gpu, "top_k=40;temp=0.9", &prompt, 25).0, first);
}

/// The step that was ahead has become the present one when the next is cancelled: nobody reads its token any more.
#[test]
fn a_cancelled_step_leaves_no_token_for_the_next_stream() {
    if !has_gpu() {
        return;
    }
    let mut engine = open(&fixture(Kind::Llama, Weights::F32), KvType::F32, -1);
    let slots = [engine.take_slot(0).unwrap(), engine.take_slot(1).unwrap()];
    let spec = SampleSpec { steps: vec![ChainStep::Greedy], ..SampleSpec::default() };
    let stream = |engine: &mut Engine, slot, prompt: &[Token]| {
        engine.truncate(slot, 0);
        engine.prefill(slot, prompt, &NEVER).unwrap();
        engine.start_sampling(slot, &spec).unwrap();
        let mut tokens: Vec<Token> = Vec::new();
        for _ in 0..6 {
            let last = tokens.last().copied();
            let found = engine.sample(slot, last.as_slice(), None, Speculation::Step, &NEVER).unwrap();
            tokens.push(found.result.token);
        }
        engine.rollback().unwrap();
        tokens
    };
    let prompts = [tokens(9, "cancelled"), tokens(13, "next")];
    let expected = [stream(&mut engine, slots[0], &prompts[0]), stream(&mut engine, slots[1], &prompts[1])];
    assert_ne!(expected[0][1], expected[1][0], "else a token left behind would not show");
    for next in [0, 1] {
        engine.prefill(slots[0], &prompts[0], &NEVER).unwrap();
        engine.start_sampling(slots[0], &spec).unwrap();
        let first = engine.sample(slots[0], &[], None, Speculation::Step, &NEVER).unwrap().result.token;
        let cancelled = engine.sample(slots[0], &[first], None, Speculation::Step, &AtomicBool::new(true));
        assert_eq!(cancelled.unwrap_err(), Error::Cancelled);
        assert_eq!(stream(&mut engine, slots[next], &prompts[next]), expected[next]);
    }
}

/// A step under a mask of bits is one submission and one wait, and sends a few bytes where the device has the mask; the
/// tokens are those of the CPU.
#[test]
fn steps_under_masks_of_bits() {
    if !has_gpu() {
        return;
    }
    let path = fixture(Kind::Qwen3, Weights::F32);
    let [mut gpu, mut cpu] = [-1, 0].map(|layers| open(&path, KvType::F32, layers));
    let (n_vocab, prompt) = (gpu.model().n_vocab(), tokens(9, "masked"));
    let masks: Vec<Vec<u32>> = [0x5555_5555u32, 0x1248_1248, 0xffff_0000]
        .iter()
        .map(|pattern| {
            let mut bits = vec![*pattern; n_vocab.div_ceil(32)];
            let unused = (bits.len() * 32 - n_vocab) as u32;
            bits.last_mut().into_iter().for_each(|word| *word &= u32::MAX >> unused);
            bits
        })
        .collect();
    let mut sampler = Sampler::new(&"penalties=32,1.2,0,0;top_k=40;temp=0.9".parse().unwrap(), n_vocab, 5).unwrap();
    let slots = [gpu.take_slot(0).unwrap(), cpu.take_slot(0).unwrap()];
    gpu.prefill(slots[0], &prompt, &NEVER).unwrap();
    cpu.prefill(slots[1], &prompt, &NEVER).unwrap();
    prompt.iter().for_each(|&token| sampler.accept(token));
    let spec = sampler.spec(&[]);
    assert_eq!(gpu.start_sampling(slots[0], &spec).unwrap(), spec.steps.len());
    let mut last: Option<Token> = None;
    for step in 0..12 {
        let at = step % masks.len();
        let legal = Some(Legal::mask(&masks[at], at as u64 + 1, step % 4 == 3));
        let before = gpu.stats().traffic;
        let token = gpu.sample(slots[0], last.as_slice(), legal, Speculation::Step, &NEVER).unwrap().result.token;
        let after = gpu.stats().traffic;
        if step > 0 {
            assert_eq!((after.submissions - before.submissions, after.waits - before.waits), (1, 1), "{step}");
        }
        if step > masks.len() {
            let sent = after.bytes_uploaded - before.bytes_uploaded;
            assert!(sent < 400, "{sent} bytes with mask {at}");
        }
        let row = cpu.next_logits(slots[1], last.as_slice(), &[], &NEVER).unwrap();
        assert_eq!(sampler.sample(row, legal, &[], (prompt.len() + step) as u32), Ok(token), "{step}");
        sampler.accept(token);
        last = Some(token);
    }
}

/// The draft works on the CPU, whatever device the model is to be on.
#[test]
fn a_draft_beside_a_named_gpu() {
    if !has_gpu() {
        return;
    }
    let (path, name) = (fixture(Kind::Llama, Weights::F32), name_of(&adapters()[0].info));
    let engine = EngineOptions { slots: 1, threads: 1, gpu_layers: 1, device: Some(name), ..EngineOptions::default() };
    let draft = Some(path.clone());
    let session = Session::open(OpenOptions { path, engine, draft, ..OpenOptions::default() }).unwrap();
    session.configure(Settings { ignore_eos: true, ..session.settings() }).unwrap();
    assert_eq!(generate(&session, "greedy", &tokens(9, "draft"), 8).0.len(), 8);
}

#[test]
fn asking_for_a_gpu_that_is_not_there_says_which_are() {
    let options = EngineOptions { gpu_layers: -1, device: Some("no such device".into()), ..EngineOptions::default() };
    let error = engine::open_model(&fixture(Kind::Llama, Weights::F32), &options, None).err().unwrap().to_string();
    assert!(error.contains("no such device"), "{error}");
}

/// An engine with all layers on this device.
fn engine_on(device: &Arc<Gpu>, path: &Path) -> Engine {
    engine_over(std::slice::from_ref(device), path, &Placement::layers(-1), KvType::F32)
}

/// An engine placed on these devices and the CPU.
pub fn engine_over(devices: &[Arc<Gpu>], path: &Path, placement: &Placement, kv_type: KvType) -> Engine {
    let gpus = devices.iter().map(|gpu| Arc::new(GpuBackend::on(gpu.clone())) as Arc<dyn Backend>);
    let backends = [Arc::new(CpuBackend::new()) as Arc<dyn Backend>].into_iter().chain(gpus).collect();
    let model = Model::load(File::open(path).unwrap(), backends, placement, 1, None).unwrap();
    let options = EngineOptions { kv_type, threads: 1, slots: 1, ..EngineOptions::default() };
    Engine::new(Arc::new(model), &options).unwrap()
}

pub fn device(restrictions: &str) -> Arc<Gpu> {
    let best = adapters().into_iter().next().unwrap();
    Arc::new(Gpu::new(&best, &TestLimits::parse(restrictions).unwrap()).unwrap())
}

/// Prompts as the CPU reads them, with rounded activations; single tokens in single precision, after such a prompt.
#[test]
fn prompts_by_integer_dot_products_are_as_near_as_the_cpus() {
    if has_gpu() {
        let dots = device("dots=on,matrices=off");
        prompts_are_as_near_as_the_cpus(&dots, KvType::F32, &["quantize", "matmul_int8"]);
    }
}

#[test]
fn prompts_by_matrix_instructions_are_as_near_as_the_cpus() {
    if !has_gpu() {
        return;
    }
    let gpu = device("");
    match gpu.caps.matrices {
        Some(_) => prompts_are_as_near_as_the_cpus(&gpu, KvType::F16, &["halve", "matmul_halves", "attention_halves"]),
        None => println!("skipped: {} has no matrix instructions", gpu.info.name),
    }
}

fn prompts_are_as_near_as_the_cpus(gpu: &Arc<Gpu>, kv_type: KvType, names: &[&str]) {
    for (kind, weights) in [(Kind::Llama, Weights::Q8_0), (Kind::Gemma3, Weights::Q4_K)] {
        let judge = Judge::new(kind, weights, kv_type, tokens(220, "bytes"));
        let (devices, all) = (std::slice::from_ref(gpu), Placement::layers(-1));
        let mut engine = engine_over(devices, &fixture(kind, weights), &all, kv_type);
        let slot = engine.take_slot(0).unwrap();
        let rows = prefill_and_decode(&mut engine, slot, &judge.tokens, 36, 4);
        judge.check("prompt 36 + 4", 35..40, &rows);
        engine.truncate(slot, 0);
        judge.check("every position", 0..220, &all_rows(&mut engine, &judge.tokens));
    }
    let kernels = gpu.texts();
    for name in names {
        assert!(kernels.iter().any(|(kernel, _)| kernel == name), "{name}");
    }
}

#[test]
fn the_smallest_device_gives_the_same_results() {
    if !has_gpu() {
        return;
    }
    let small = device("binding=16M,threads=128,dots=off,matrices=off,checked=on");
    for (kind, weights) in [(Kind::Llama, Weights::Q8_0), (Kind::Gemma3, Weights::F32)] {
        let path = fixture(kind, weights);
        let judge = Judge::of_single_precision("small device", &path, KvType::F32, tokens(40, "small"));
        let mut engine = engine_on(&small, &path);
        let slot = engine.take_slot(0).unwrap();
        let rows = prefill_and_decode(&mut engine, slot, &judge.tokens, 36, 4);
        judge.check("prompt 36 + 4", 35..40, &rows);
    }
}

/// In processes of their own, since the folder is the environment's.
#[test]
fn compiled_shaders_are_kept_and_a_broken_file_is_replaced() {
    const TEST: &str = "engine::compiled_shaders_are_kept_and_a_broken_file_is_replaced";
    let path = fixture(Kind::Llama, Weights::Q8_0);
    if process::is_child() {
        open(&path, KvType::F16, -1);
        return;
    }
    if !has_gpu() || !device("").raw.features().contains(wgpu::Features::PIPELINE_CACHE) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let child = |folder: &Path| {
        let begun = std::time::Instant::now();
        process::run(process::of(TEST).env("ELIZA_CACHE_DIR", folder));
        println!("opened in {:.2} s", begun.elapsed().as_secs_f64());
    };
    let files = || std::fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().path()).collect::<Vec<_>>();
    child(folder.path());
    let [file] = &files()[..] else { panic!("{:?}", files()) };
    let kept = std::fs::read(file).unwrap();
    child(folder.path());
    std::fs::write(file, &kept[..kept.len() / 2]).unwrap();
    child(folder.path());
    assert_eq!(files(), std::slice::from_ref(file));
    assert_eq!(std::fs::read(file).unwrap().len(), kept.len());
    // Empty turns it off.
    child(Path::new(""));
}

#[test]
fn a_lost_device_is_an_error_with_its_name_and_others_live_on() {
    if !has_gpu() {
        return;
    }
    let path = fixture(Kind::Llama, Weights::Q8_0);
    let (lost, other) = (device(""), device(""));
    let (mut broken, mut sound) = (engine_on(&lost, &path), engine_on(&other, &path));
    let prompt = tokens(9, "lost");
    let slot = broken.take_slot(0).unwrap();
    broken.prefill(slot, &prompt, &NEVER).unwrap();
    lost.raw.destroy();
    let name = &lost.info.name;
    for _ in 0..2 {
        let error = broken.decode(slot, 5, &NEVER).err().unwrap();
        assert!(matches!(&error, Error::Device(text) if text.contains(name)), "{error}");
    }
    let error = broken.prefill(slot, &tokens(20, "again"), &NEVER).err().unwrap();
    assert!(matches!(error, Error::Device(_)), "{error}");
    let slot = sound.take_slot(0).unwrap();
    sound.prefill(slot, &prompt, &NEVER).unwrap();
    sound.decode(slot, 5, &NEVER).unwrap();
    let backends: Vec<Arc<dyn Backend>> = vec![Arc::new(CpuBackend::new()), Arc::new(GpuBackend::on(lost))];
    let error = Model::load(File::open(&path).unwrap(), backends, &Placement::layers(-1), 1, None).err().unwrap();
    assert!(matches!(error, Error::Device(_)), "{error}");
}

/// A fault is told to the one whose calls it comes of.
#[test]
fn l10_an_engine_hears_of_its_own_faults_alone() {
    if !has_gpu() {
        return;
    }
    let path = fixture(Kind::Llama, Weights::F32);
    let gpu = device("");
    let mut engine = engine_on(&gpu, &path);
    let judge = Judge::of_single_precision("beside faults", &path, KvType::F32, tokens(30, "faults"));
    let slot = engine.take_slot(0).unwrap();
    let mut rows = Vec::new();
    engine.prefill(slot, &judge.tokens[..9], &NEVER).unwrap();
    rows.push(widen(engine.head(slot).unwrap()));
    let faults = |count: u32| {
        for i in 0..count {
            // More buffers than any device binds.
            let error =
                gpu.kernel("faulty", &format!("// {i} of {count}"), &[Binding::Read; 2000]).map(drop).unwrap_err();
            assert!(matches!(&error, Error::Device(text) if text.contains(&gpu.info.name)), "{error}");
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| faults(1)).join().unwrap();
        let others = scope.spawn(|| faults(50));
        for token in &judge.tokens[9..29] {
            rows.push(widen(engine.decode(slot, *token, &NEVER).unwrap()));
        }
        others.join().unwrap();
    });
    judge.check("beside faults", 8..29, &rows);
}
