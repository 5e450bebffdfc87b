//! Layers on several devices: a plan that is cut at every possible border gives the bits of the plan that is not cut.
//!
//! Two CPU backends stand for two devices, so only the cutting and copying is judged here, not another device's
//! kernels.

use crate::testing::fixture;
use crate::testing::fixtures::{Kind, Weights};
use crate::testing::rng::Stream;
use elizainference::backend::cpu::CpuBackend;
use elizainference::backend::memory::Memory;
use elizainference::backend::{
    self, Backend, CacheSpec, DeviceInfo, LoadProgress, Program, Sizing, State, Wanted, WeightBytes, Work,
};
use elizainference::engine::{Engine, EngineOptions};
use elizainference::gguf::File;
use elizainference::graph::{Node, Op, WeightSpec};
use elizainference::model::{Model, Outline, Placement, TensorDevice};
use elizainference::schedule::assign;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

static NEVER: AtomicBool = AtomicBool::new(false);

/// Logits after a prompt of each length, then after three decoded tokens each, then of every position of one prompt.
fn everything(model: Arc<Model>) -> Vec<u32> {
    let mut engine = Engine::new(model, &EngineOptions { threads: 2, ..EngineOptions::default() }).unwrap();
    let stream = Stream::new(11, "placement");
    let tokens: Vec<i32> = (0..600).map(|i| stream.below(i, 512) as i32).collect();
    let mut bits = Vec::new();
    for length in [1, 7, 600] {
        let slot = engine.take_slot(-1).unwrap();
        engine.prefill(slot, &tokens[..length], &NEVER).unwrap();
        bits.extend(engine.head(slot).unwrap().iter().map(|x| x.to_bits()));
        for &token in &tokens[..3] {
            bits.extend(engine.decode(slot, token, &NEVER).unwrap().iter().map(|x| x.to_bits()));
        }
    }
    let mut all = |_: usize, row: &[f32]| {
        bits.extend(row.iter().map(|x| x.to_bits()));
        Ok(())
    };
    engine.logits_all(&tokens[..30], &NEVER, &mut all).unwrap();
    bits
}

#[test]
fn every_border_gives_the_same_bits() {
    for (kind, weights) in [(Kind::Llama, Weights::Q8_0), (Kind::Qwen3, Weights::F32), (Kind::Gemma3, Weights::Q4_0)] {
        let path = fixture(kind, weights);
        let cpu = || Arc::new(CpuBackend::new()) as Arc<dyn Backend>;
        let load = |backends: Vec<Arc<dyn Backend>>, gpu_layers| {
            Arc::new(
                Model::load(File::open(&path).unwrap(), backends, &Placement::layers(gpu_layers), 2, None).unwrap(),
            )
        };
        let whole = everything(load(vec![cpu()], 0));
        let layers = load(vec![cpu()], 0).hparams().n_layer as i32;
        for gpu_layers in (-1..=layers + 1).chain([1000]) {
            let cut = everything(load(vec![cpu(), cpu()], gpu_layers));
            assert!(cut == whole, "{kind:?} {weights:?}, {gpu_layers} layers on the second device");
        }
    }
}

/// A device without kernels for some operations.
struct Poor {
    cpu: CpuBackend,
    lacks: fn(&Op) -> bool,
}

impl Backend for Poor {
    fn device(&self) -> DeviceInfo {
        self.cpu.device()
    }

    fn supports(&self, node: &Node, _: &[WeightSpec]) -> Result<(), String> {
        if (self.lacks)(&node.op) { Err("a test".into()) } else { Ok(()) }
    }

    fn load(
        &self,
        file: &File,
        specs: &[WeightSpec],
        wanted: &Wanted,
        threads: usize,
        progress: LoadProgress<'_>,
    ) -> elizainference::Result<backend::Weights> {
        self.cpu.load(file, specs, wanted, threads, progress)
    }

    fn weight_bytes(&self, specs: &[WeightSpec], wanted: &Wanted) -> elizainference::Result<WeightBytes> {
        self.cpu.weight_bytes(specs, wanted)
    }

    fn sizing(&self, cache: &CacheSpec, wanted: &Wanted, threads: usize) -> elizainference::Result<Box<dyn Sizing>> {
        self.cpu.sizing(cache, wanted, threads)
    }

    fn memory(&self) -> elizainference::Result<Memory> {
        self.cpu.memory()
    }

    fn bandwidth(&self, threads: usize) -> elizainference::Result<f64> {
        self.cpu.bandwidth(threads)
    }

    fn new_state(&self, cache: &CacheSpec, threads: usize) -> elizainference::Result<Box<dyn State>> {
        self.cpu.new_state(cache, threads)
    }

    fn compile(&self, work: &Work<'_>, weights: &backend::Weights) -> elizainference::Result<Box<dyn Program>> {
        self.cpu.compile(work, weights)
    }
}

/// What one device cannot do the other does, and what belongs to it goes along: the cache, the logits.
#[test]
fn an_operation_that_a_device_lacks_is_done_elsewhere() {
    let lacks: [fn(&Op) -> bool; 5] = [
        |op| matches!(op, Op::Attention(_) | Op::ShiftKeys(_) | Op::CopyCells(_)),
        |op| matches!(op, Op::MatMul(parts) if parts.len() == 1),
        |op| matches!(op, Op::Norm { .. }),
        |op| matches!(op, Op::Embed { .. }),
        |op| matches!(op, Op::Map(_) | Op::GatedMatMul { .. }),
    ];
    let path = fixture(Kind::Gemma3Capped, Weights::Q8_0);
    let load = |backends| {
        Arc::new(Model::load(File::open(&path).unwrap(), backends, &Placement::layers(-1), 2, None).unwrap())
    };
    let whole = everything(load(vec![Arc::new(CpuBackend::new())]));
    for (i, lacks) in lacks.into_iter().enumerate() {
        let poor = Arc::new(Poor { cpu: CpuBackend::new(), lacks });
        assert!(everything(load(vec![Arc::new(CpuBackend::new()), poor])) == whole, "case {i}");
    }
}

#[test]
fn a_load_over_two_devices_reports_growing_progress_and_can_be_cancelled() {
    let path = fixture(Kind::Llama, Weights::Q8_0);
    let backends = || vec![Arc::new(CpuBackend::new()) as Arc<dyn Backend>, Arc::new(CpuBackend::new())];
    let mut seen = Vec::new();
    let mut hear = |fraction| {
        seen.push(fraction);
        true
    };
    Model::load(File::open(&path).unwrap(), backends(), &Placement::layers(1), 1, Some(&mut hear)).unwrap();
    assert!(seen.is_sorted() && (seen.last().unwrap() - 1.0).abs() < 1e-6, "{seen:?}");
    let mut refuse = |fraction: f32| fraction < 0.5;
    let cancelled = Model::load(File::open(&path).unwrap(), backends(), &Placement::layers(1), 1, Some(&mut refuse));
    assert_eq!(cancelled.err(), Some(elizainference::Error::Cancelled));
}

#[test]
fn several_devices_have_layers_one_after_the_other() {
    let cpu = || Arc::new(CpuBackend::new()) as Arc<dyn Backend>;
    for (kind, weights) in [(Kind::Llama, Weights::Q8_0), (Kind::Gemma3, Weights::Q4_0), (Kind::Qwen35, Weights::F32)] {
        let path = fixture(kind, weights);
        let load = |backends: usize, gpu_layers, split: &str| {
            let placement = Placement { tensor_split: split.parse().unwrap(), ..Placement::layers(gpu_layers) };
            let backends = (0..backends).map(|_| cpu()).collect();
            Arc::new(Model::load(File::open(&path).unwrap(), backends, &placement, 2, None).unwrap())
        };
        let whole = everything(load(1, 0, ""));
        let n = load(1, 0, "").hparams().n_layer;
        for (gpu_layers, split) in
            [(-1, ""), (-1, "1,1,1"), (-1, "1,0,5"), (-1, "0,1,0"), (2, "1,1,0"), (n as i32, "2,1,1")]
        {
            let model = load(4, gpu_layers, split);
            let outline = model.outline();
            let layers: Vec<_> = (0..4).map(|device| outline.layers_of(device)).collect();
            assert_eq!(layers.iter().map(|layers| layers.len()).sum::<usize>(), n);
            assert!(layers.windows(2).all(|two| two[0].is_empty() || two[1].is_empty() || two[0].end == two[1].start));
            let on_cpu = if gpu_layers < 0 { 0 } else { n - gpu_layers as usize };
            assert_eq!(layers[0], 0..on_cpu, "{split}");
            for (share, layers) in split.split(',').zip(&layers[1..]) {
                assert!(share != "0" || layers.is_empty(), "{split}: {layers:?}");
            }
            assert_eq!(outline.head() > 0, gpu_layers < 0);
            // A pass goes from one device to the next and never back.
            let backends: Vec<&dyn Backend> = model.devices().iter().map(|device| &*device.backend).collect();
            for graph in [outline.body_graph(), outline.decode_graph(), outline.walk_graph()] {
                let devices = assign(&graph.unwrap(), &backends, &|node| outline.place(node), outline.specs());
                assert!(devices[..].is_sorted() || gpu_layers >= 0, "{split}: {devices:?}");
            }
            assert!(everything(model) == whole, "{kind:?} {weights:?}, {gpu_layers} layers by `{split}`: {layers:?}");
        }
    }
}

#[test]
fn rules_place_tensors_whatever_their_layer() {
    let path = fixture(Kind::Llama, Weights::F32);
    let file = File::open(&path).unwrap();
    let cpu = || Arc::new(CpuBackend::new()) as Arc<dyn Backend>;
    let read = |gpu_layers, rules: &str| {
        let tensor_devices = TensorDevice::list(rules).unwrap();
        let placement = Placement { tensor_devices, ..Placement::layers(gpu_layers) };
        Outline::read(&file, &[cpu(), cpu()], &placement)
    };
    let outline = read(-1, "ffn_(gate|up)=cpu;blk.1=cpu;blk=gpu").unwrap();
    let layers = outline.hparams().n_layer;
    for node in outline.decode_graph().unwrap().nodes {
        let first = outline.specs().get(node.weights().first().map_or(usize::MAX, |(weight, _)| weight.0 as usize));
        let expected = match &node.op {
            Op::GatedMatMul { .. } => 0,
            Op::MatMul(_) => usize::from(first.is_none_or(|spec| !spec.name.starts_with("blk.1."))),
            _ => 1,
        };
        assert_eq!(outline.place(&node), expected, "{:?}", node.op);
    }
    let counts: Vec<usize> = outline.placed().iter().map(|(tensors, _)| *tensors).collect();
    // Of each layer nine tensors: two gates and ups, three of attention's input, its output, down, and two norms.
    assert_eq!(counts, [2 * layers, 7, 7 * (layers - 1)]);
    let error = read(-1, "ffn=cpu;experts=cpu").err().unwrap().to_string();
    assert!(error.contains("`experts=cpu`") && error.contains("no tensor"), "{error}");
}
