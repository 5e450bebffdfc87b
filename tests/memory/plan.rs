//! What a plan says of memory against what opening then allocates, and what happens where memory is not enough.
//!
//! Devices keep an account of what they allocate; on a GPU the driver's allocator is asked besides, which knows nothing
//! of that account. The CPU's account is the process's, so these tests take turns.

use crate::testing::fixture;
use crate::testing::fixtures::{Kind, Weights};
#[cfg(feature = "gpu")]
use crate::testing::has_gpu;
use crate::turn;
use elizainference::Token;
use elizainference::backend::Backend;
use elizainference::backend::cpu::CpuBackend;
use elizainference::engine::{self, Bytes, Component, Engine, EngineOptions, KvType};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

static NEVER: AtomicBool = AtomicBool::new(false);

fn used(backends: &[Arc<dyn Backend>]) -> Vec<Bytes> {
    backends.iter().map(|backend| backend.memory().unwrap().used).collect()
}

/// A plan, then the same opened: every component of every device is what the plan says, within 2 %. What is done with
/// the engine takes nothing more, and closing gives everything back.
fn check(backends: &[Arc<dyn Backend>], path: &Path, options: &EngineOptions, work: impl FnOnce(&mut Engine)) {
    let name = format!("{}: {options:?}", path.display());
    let plan = engine::plan_memory(path, None, options).unwrap();
    let before = used(backends);
    let model = engine::open_model(path, options, None).unwrap();
    let mut engine = Engine::new(model, options).unwrap();
    let open = used(backends);
    assert_eq!(plan.estimate.context, engine.context(), "{name}");
    let mut lines = Vec::new();
    for (i, need) in plan.estimate.needs.iter().enumerate() {
        let near = |what: &str, planned: u64, taken: u64| {
            assert!(planned.abs_diff(taken) * 50 <= taken, "{name}, {}: {what} {planned}, taken {taken}", need.device);
        };
        for (component, planned) in need.bytes.iter() {
            near(component.name(), planned, open[i].of(component) - before[i].of(component));
        }
        let taken = open[i].total() - before[i].total();
        near("in all", need.bytes.total(), taken);
        lines.push(format!("{}: planned {}, taken {taken}", need.device, need.bytes.total()));
    }
    println!("{name}\n    {}", lines.join("\n    "));

    work(&mut engine);
    assert_eq!(used(backends), open, "{name}: nothing may be allocated after open");
    drop(engine);
    assert_eq!(used(backends), before, "{name}: closing gives everything back");
}

fn prefill_and_decode(engine: &mut Engine) {
    let tokens: Vec<Token> = (0..40).map(|i| 3 + i * 7).collect();
    let slot = engine.take_slot(-1).unwrap();
    engine.prefill(slot, &tokens, &NEVER).unwrap();
    engine.head(slot).unwrap();
    engine.decode(slot, 9, &NEVER).unwrap();
    engine.logits_all(&tokens, &NEVER, &mut |_, _| Ok(())).unwrap();
}

fn options(context: u32, kv_type: KvType, gpu_layers: i32) -> EngineOptions {
    EngineOptions { context, kv_type, gpu_layers, threads: 2, slots: 2, ..EngineOptions::default() }
}

const KINDS: [(Kind, Weights, Weights); 3] = [
    (Kind::Llama, Weights::F32, Weights::Q8_0),
    (Kind::Qwen3, Weights::Q4_0, Weights::Q4_K),
    (Kind::Gemma3, Weights::F16, Weights::Q6_K),
];

#[test]
fn a_plan_for_the_cpu_is_what_is_taken() {
    let _turn = turn();
    let cpu: [Arc<dyn Backend>; 1] = [Arc::new(CpuBackend::new())];
    for (kind, first, second) in KINDS {
        for (weights, context, kv_type) in [
            (first, 256, KvType::F16),
            (first, 2048, KvType::Q8_0),
            (second, 256, KvType::Q8_0),
            (second, 4096, KvType::F32),
        ] {
            let alone = options(context, kv_type, 0);
            check(&cpu, &fixture(kind, weights), &alone, prefill_and_decode);
            let shared = EngineOptions { parallel: 3, ..alone };
            check(&cpu, &fixture(kind, weights), &shared, prefill_and_decode);
        }
    }
}

#[test]
fn small_passes_and_small_values_take_less_as_planned() {
    let _turn = turn();
    let cpu: [Arc<dyn Backend>; 1] = [Arc::new(CpuBackend::new())];
    let path = fixture(Kind::Llama, Weights::Q8_0);
    let part = |options: &EngineOptions, part| {
        check(&cpu, &path, options, prefill_and_decode);
        engine::plan_memory(&path, None, options).unwrap().estimate.needs[0].bytes.of(part)
    };
    let whole = options(256, KvType::F32, 0);
    let passes =
        [512, 100, 16, 1].map(|n_batch| part(&EngineOptions { n_batch, ..whole.clone() }, Component::Workspace));
    assert!(passes.is_sorted_by(|more, less| more > less), "{passes:?}");
    let values = [KvType::F32, KvType::F16, KvType::Q8_0]
        .map(|v| part(&EngineOptions { kv_type_v: Some(v), ..whole.clone() }, Component::Cache));
    // Keys take as much as before: of two halves one shrinks to a half, or to a quarter and scales.
    assert_eq!(values[1] * 4, values[0] * 3);
    assert!(values[2] > values[0] * 5 / 8 && values[2] < values[0] * 3 / 4, "{values:?}");
}

#[cfg(feature = "gpu")]
mod gpu {
    use super::*;
    use elizainference::Error;
    use elizainference::backend::gpu::device::adapters;
    use elizainference::backend::gpu::device::test_limits::TestLimits;
    use elizainference::backend::gpu::{Gpu, GpuBackend};
    use elizainference::backend::{CacheSpec, LayerCache, LoadProgress};
    use elizainference::gguf::File;
    use elizainference::model::{Model, Placement};
    use elizainference::quant::TensorType;

    /// Bytes that the driver's allocator has given out; `None` where it does not tell. What wgpu has yet to write is
    /// written first, so that its staging does not count.
    fn given_out(gpu: &Gpu) -> Option<u64> {
        gpu.queue.submit([]);
        gpu.wait().unwrap();
        gpu.raw.generate_allocator_report().map(|report| report.total_allocated_bytes)
    }

    #[test]
    fn a_plan_with_a_gpu_is_what_is_taken() {
        let _turn = turn();
        if !has_gpu() {
            return;
        }
        for (kind, weights, _) in KINDS {
            for (gpu_layers, context, kv_type) in [(-1, 256, KvType::F16), (1, 2048, KvType::Q8_0)] {
                // The device that everything below shares, and that nobody had before.
                let gpu = Gpu::best().unwrap();
                let backends: [Arc<dyn Backend>; 2] =
                    [Arc::new(CpuBackend::new()), Arc::new(GpuBackend::on(gpu.clone()))];
                let (path, options) = (fixture(kind, weights), options(context, kv_type, gpu_layers));
                let planned = engine::plan_memory(&path, None, &options).unwrap().estimate.needs[1].bytes.total();
                let before = given_out(&gpu);
                check(&backends, &path, &options, |engine| {
                    if let Some((after, before)) = given_out(&gpu).zip(before) {
                        // Small buffers are aligned, and wgpu has some of its own.
                        let most = planned + planned / 50 + (256 << 10);
                        assert!((planned..most).contains(&(after - before)), "{} beside {planned}", after - before);
                        println!("    the driver gave out {}", after - before);
                    }
                    // A software driver takes seconds to compile kernels.
                    if kind == Kind::Llama && gpu_layers == 1 {
                        prefill_and_decode(engine);
                    }
                });
            }
        }
    }

    /// A device of its own whose buffers may take so many bytes together.
    fn device(memory: Option<u64>) -> Arc<Gpu> {
        let restrictions = TestLimits { memory, ..TestLimits::default() };
        Arc::new(Gpu::new(&adapters()[0], &restrictions).unwrap())
    }

    fn backends(gpu: &Arc<Gpu>) -> Vec<Arc<dyn Backend>> {
        vec![Arc::new(CpuBackend::new()), Arc::new(GpuBackend::on(gpu.clone()))]
    }

    fn load(gpu: &Arc<Gpu>, path: &Path) -> Result<Arc<Model>, Error> {
        Model::load(File::open(path).unwrap(), backends(gpu), &Placement::layers(-1), 1, None).map(Arc::new)
    }

    fn text_of(result: Result<impl Sized, Error>, name: &str) -> String {
        match result.err() {
            Some(Error::OutOfMemory(text)) => {
                assert!(text.contains(name), "no device in: {text}");
                text
            }
            other => panic!("{other:?}"),
        }
    }

    /// The bits of some logits.
    fn logits(engine: &mut Engine) -> Vec<u32> {
        let slot = engine.take_slot(0).unwrap();
        engine.truncate(slot, 0);
        engine.prefill(slot, &[1, 2, 3, 4, 5], &NEVER).unwrap();
        engine.head(slot).unwrap().iter().map(|x| x.to_bits()).collect()
    }

    #[test]
    fn memory_that_runs_out_is_an_error_and_others_live_on() {
        let _turn = turn();
        if !has_gpu() {
            return;
        }
        let (path, options) = (fixture(Kind::Llama, Weights::Q8_0), options(256, KvType::F32, 0));
        let free = device(None);
        let model = load(&free, &path).unwrap();
        let weights = free.memory().used.total();
        let engine = Engine::new(model, &options).unwrap();
        let all = free.memory().used.total();
        let (name, state) = (free.info.name.clone(), all - weights);
        drop(engine);
        assert_eq!(free.memory().used.total(), 0);

        // Room for a model with its engine, and for half of another's weights.
        let tight = device(Some(all + weights / 2));
        let mut sound = Engine::new(load(&tight, &path).unwrap(), &options).unwrap();
        let expected = logits(&mut sound);
        assert_eq!(tight.memory().used.total(), all);
        for _ in 0..2 {
            let text = text_of(load(&tight, &path), &name);
            assert!(text.contains("bytes for the ") && text.contains("weight"), "{text}");
            assert_eq!(tight.memory().used.total(), all);
        }
        assert!(logits(&mut sound) == expected);
        // Where the first is closed there is room again.
        drop(sound);
        let mut next = Engine::new(load(&tight, &path).unwrap(), &options).unwrap();
        assert!(logits(&mut next) == expected);

        // Room for the weights, and for less and less of what an engine needs: refused before anything is taken.
        for part in [state - 1, state / 2, 0] {
            let tight = device(Some(weights + part));
            let model = load(&tight, &path).unwrap();
            let text = text_of(Engine::new(model.clone(), &options), &name);
            assert!(text.contains(&format!("needs {state} bytes")), "{text}");
            assert!(text.contains(&format!("{part} are available")) && text.contains("kv_cache"), "{text}");
            assert_eq!(tight.memory().used.total(), weights);
        }
        // Where nobody asked before, the buffer that is too much says so.
        let tight = device(Some(1 << 20));
        let layer = LayerCache::new(4, 64, 64);
        let cache = CacheSpec {
            context: 1024,
            types: TensorType::F16.into(),
            cells: [1024, 0],
            sequences: 1,
            layers: vec![Some(layer); 3],
            states: Vec::new(),
            state_cells: 0,
        };
        let text = text_of(GpuBackend::on(tight.clone()).new_state(&cache, 1), &name);
        assert!(text.contains("524288 bytes for the keys of layer 1"), "{text}");
        assert_eq!(tight.memory().used.total(), 0);
        let mut state = GpuBackend::on(tight.clone()).new_state(&CacheSpec { cells: [64, 0], ..cache }, 1).unwrap();
        let before = tight.memory().used;
        let text = text_of(state.reserve_reads(1 << 20), &name);
        assert!(text.contains("staging for rows"), "{text}");
        assert_eq!(tight.memory().used, before);
        state.reserve_reads(64 << 10).unwrap();
    }

    #[test]
    fn a_device_lost_while_weights_are_uploaded_is_an_error_and_the_next_open_works() {
        let _turn = turn();
        if !has_gpu() {
            return;
        }
        let path = fixture(Kind::Qwen3, Weights::Q8_0);
        let open = |gpu_layers, progress: LoadProgress<'_>| {
            let options = options(256, KvType::F32, gpu_layers);
            engine::open_model(&path, &options, progress).and_then(|model| Engine::new(model, &options))
        };
        let mut other = open(0, None).unwrap();
        let expected = logits(&mut other);
        // The device that the open will share.
        let gpu = Gpu::best().unwrap();
        let mut heard = 0;
        let mut lose = |done: f32| {
            // Before weights are uploaded the host is asked while memory is planned.
            heard += u32::from(done > 0.0);
            if heard == 3 {
                gpu.raw.destroy();
            }
            true
        };
        let error = open(-1, Some(&mut lose)).err().unwrap();
        assert!(matches!(&error, Error::Device(text) if text.contains(&gpu.info.name)), "{error}");
        assert!(heard >= 3, "{heard}");
        assert_eq!(gpu.memory().used.total(), 0);
        assert!(logits(&mut other) == expected);
        // The lost one is still held here; the next open gets another.
        let mut again = open(-1, None).unwrap();
        logits(&mut again);
        assert_eq!(gpu.memory().used.total(), 0);
        assert!(logits(&mut other) == expected);
    }
}
