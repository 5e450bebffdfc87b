//! A model on several GPUs. A software driver stands for both: as two logical devices, or as two adapters by
//! `ELIZA_GPU_RESTRICT=twins=on`.

use crate::engine::{device, engine_over, four_names, next_tokens};
use crate::testing::fixtures::{Kind, Weights};
use crate::testing::judge::{Judge, NEVER, all_rows, prefill_and_decode, tokens};
use crate::testing::{fixture, has_gpu, process};
use elizainference::engine::{self, Engine, EngineOptions, KvType};
use elizainference::model::Placement;
use elizainference::session::{ContextFull, Mode, OpenOptions, Session, Settings};
use elizainference::{Error, Token};
use std::path::Path;

/// Whether the test goes on in this process: a child in which each adapter counts as two, started here.
fn has_twins(test: &str) -> bool {
    if has_gpu() && !process::is_child() {
        process::run(process::of(test).env("ELIZA_GPU_RESTRICT", "twins=on"));
    }
    has_gpu() && process::is_child()
}

/// Two devices that are not alike. When one of them is lost, that is an error with its name, as often as it is asked.
#[test]
fn every_split_gives_the_results_of_the_model() {
    if !has_gpu() {
        return;
    }
    let devices = [device(""), device("binding=16M,threads=128,registers=few,checked=on")];
    let mut engines = Vec::new();
    for (kind, gpu_layers, split) in [(Kind::Llama, -1, "1,1"), (Kind::Gemma3, 3, "1,1"), (Kind::Qwen35, -1, "1,2")] {
        let path = fixture(kind, Weights::F32);
        let judge = Judge::of_single_precision("two devices", &path, KvType::F32, tokens(40, "two devices"));
        let placement = Placement { tensor_split: split.parse().unwrap(), ..Placement::layers(gpu_layers) };
        let mut engine = engine_over(&devices, &path, &placement, KvType::F32);
        let outline = engine.model().outline();
        let layers = [0, 1, 2].map(|device| outline.layers_of(device).len());
        assert!(layers[1] > 0 && layers[2] > 0, "{kind:?} by {split}: {layers:?}");
        let slot = engine.take_slot(0).unwrap();
        let rows = prefill_and_decode(&mut engine, slot, &judge.tokens, 36, 4);
        judge.check(&format!("{kind:?} by {split}, prompt 36 + 4"), 35..40, &rows);
        engine.truncate(slot, 0);
        judge.check(&format!("{kind:?} by {split}, every position"), 0..40, &all_rows(&mut engine, &judge.tokens));
        engines.push((engine, slot));
    }
    devices[1].raw.destroy();
    for (engine, slot) in &mut engines {
        engine.truncate(*slot, 30);
        let error = engine.decode(*slot, 5, &NEVER).err().unwrap();
        assert!(matches!(&error, Error::Device(text) if text.contains(&devices[1].info.name)), "{error}");
    }
}

fn session(path: &Path, tensor_split: &str) -> Session {
    let engine = EngineOptions {
        context: 64,
        kv_type: KvType::F32,
        slots: 2,
        threads: 1,
        gpu_layers: -1,
        tensor_split: tensor_split.parse().unwrap(),
        ..EngineOptions::default()
    };
    let session = Session::open(OpenOptions { path: path.into(), engine, ..OpenOptions::default() }).unwrap();
    let on_context_full = ContextFull::Shift { keep: 4 };
    session.configure(Settings { ignore_eos: true, on_context_full, ..session.settings() }).unwrap();
    session
}

/// Chains on the device and on the host, past the end of the context, a span, and a slot that is saved and restored.
fn everything(session: &Session) -> Vec<Vec<Token>> {
    let mut all = Vec::new();
    for chain in ["greedy", "penalties=32,1.3,0.1,0.1;top_k=20;temp=1.5", "penalties=2000,1.3,0,0;top_k=20;temp=1.1"] {
        let mut settings = session.settings();
        settings.params.seed = Some(7);
        session.configure(settings).unwrap();
        session.set_chain(0, Some(chain.parse().unwrap())).unwrap();
        session.prefill(&tokens(30, chain), 0).unwrap();
        all.push(next_tokens(session, 60));
    }
    session.set_trie(four_names().as_bytes(), Mode::Greedy).unwrap();
    session.prefill(&tokens(5, "span"), 0).unwrap();
    all.push(next_tokens(session, 16));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("slot");
    session.save_slot(0, &file).unwrap();
    session.prefill(&tokens(12, "other"), 0).unwrap();
    session.restore_slot(0, &file).unwrap();
    all.push(next_tokens(session, 8));
    all
}

#[test]
fn two_adapters_give_the_tokens_of_one() {
    if !has_twins("several::two_adapters_give_the_tokens_of_one") {
        return;
    }
    let path = fixture(Kind::Gemma3, Weights::F32);
    let (one, two) = (session(&path, ""), session(&path, "1,1"));
    assert_eq!(everything(&two), everything(&one));
}

/// What is planned for each device is what each takes; there is no third.
#[test]
fn a_plan_for_two_adapters_is_what_they_take() {
    if !has_twins("several::a_plan_for_two_adapters_is_what_they_take") {
        return;
    }
    let path = fixture(Kind::Llama, Weights::Q8_0);
    let mut options = EngineOptions { threads: 1, gpu_layers: -1, ..EngineOptions::default() };
    for split in ["1,1", "3,1", "0,1"] {
        options.tensor_split = split.parse().unwrap();
        let plan = engine::plan_memory(&path, None, &options).unwrap();
        let model = engine::open_model(&path, &options, None).unwrap();
        let engine = Engine::new(model, &options).unwrap();
        let devices = engine.model().devices();
        assert_eq!((plan.estimate.needs.len(), devices.len()), (3, 3));
        for (i, (need, device)) in plan.estimate.needs.iter().zip(devices).enumerate().skip(1) {
            assert_eq!(need.bytes, device.backend.memory().unwrap().used, "{split}: {}", need.device);
            assert_eq!(need.layers, engine.model().outline().layers_of(i));
        }
        let layers = [1, 2].map(|i| plan.estimate.needs[i].layers.len());
        match split {
            "1,1" => assert!(layers[0] > 0 && layers[1] > 0, "{layers:?}"),
            "3,1" => assert!(layers[0] > layers[1], "{layers:?}"),
            _ => assert!(layers[0] == 0 && layers[1] > 0, "{layers:?}"),
        }
    }
    let wanted = |device: Option<&str>, split: &str| EngineOptions {
        device: device.map(str::to_owned),
        tensor_split: split.parse().unwrap(),
        ..options.clone()
    };
    let name = plan_names(&path, &wanted(None, "1"))[1].clone();
    let twice = plan_names(&path, &wanted(Some(&format!("{name};{name}")), ""));
    assert_eq!(twice[1..], [name.clone(), name.clone()]);
    let error = engine::plan_memory(&path, None, &wanted(Some(&name), "1,1,1")).err().unwrap().to_string();
    assert!(error.contains(", 3 of 3"), "{error}");
}

fn plan_names(path: &Path, options: &EngineOptions) -> Vec<String> {
    engine::plan_memory(path, None, options).unwrap().estimate.needs.into_iter().map(|need| need.device).collect()
}
