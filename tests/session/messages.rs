//! What errors say of texts that others wrote: bounded, and without control characters, which would steer a terminal.

use crate::testing;
use crate::testing::fixtures::{Kind, Weights};
use elizainference::engine::{self, EngineOptions, KvType};
use elizainference::gguf::{File, Writer};
use elizainference::quant::TensorType;
use elizainference::sampling::{Chain, ChainStep, Sampler};
use elizainference::session::{Mode, OpenOptions, Session};
use elizainference::trie::{Trie, TrieState};
use elizainference::{Error, Result};
use std::sync::Arc;

/// An error that quotes the beginning of a text and stays short and printable.
fn tame<T>(what: &str, outcome: Result<T>) {
    let Err(error) = outcome else { panic!("{what} was accepted") };
    let text = error.to_string();
    let shown: String = text.chars().take(300).collect();
    assert!(text.len() < 1000, "{what}: {} bytes: {shown}", text.len());
    assert!(!text.chars().any(char::is_control), "{what}: {shown:?}");
    assert!(text.contains("loud"), "{what}: {shown}");
}

fn loud() -> String {
    format!("loud\u{1b}[31m\u{7}{}", "x".repeat(1 << 20))
}

#[test]
fn l6_messages_quote_what_others_wrote_bounded_and_escaped() {
    let load = |file: &Writer| {
        let file = File::from_bytes(file.to_bytes().unwrap()).unwrap();
        engine::load_model(file, &EngineOptions::default(), None).map(drop)
    };
    let mut file = Writer::new(3);
    file.set("general.architecture", loud());
    tame("an architecture", load(&file));

    let path = testing::fixture(Kind::Llama, Weights::F32);
    let model = File::open(&path).unwrap();
    let copy = |change: &dyn Fn(&mut Writer)| {
        let mut copy = Writer::new(3);
        for (key, _) in model.metadata() {
            copy.copy_key(&model, key).unwrap();
        }
        for tensor in model.tensors() {
            let shape = &tensor.shape[..tensor.n_dims as usize];
            copy.tensor(&tensor.name, shape, tensor.tensor_type().unwrap(), model.read(tensor).unwrap());
        }
        change(&mut copy);
        copy
    };
    let unknown = |copy: &mut Writer| {
        copy.tensor("loud\u{1b}[31m", &[1], TensorType::F32, vec![0; 4]);
    };
    tame("a tensor's name", load(&copy(&unknown)));
    tame(
        "a kind of scaling",
        load(&copy(&|copy| {
            copy.set("llama.rope.scaling.type", loud());
        })),
    );

    tame("a type of cache", loud().parse::<KvType>());
    let options = EngineOptions { device: Some(loud()), ..EngineOptions::default() };
    tame("a device", engine::open_model(&path, &options, None));
    tame("a sampler's name", loud().parse::<Chain>());
    tame("a sampler's number", format!("temp={}", loud()).parse::<Chain>());
    tame("a pair", format!("logit_bias={}", loud()).parse::<Chain>());
    let biases = (0..200_000).map(|id| (id, 1.0)).collect();
    let error = Sampler::new(&Chain { steps: vec![ChainStep::LogitBias(biases)] }, 5, 0).err().unwrap().to_string();
    assert!(error.contains("logit_bias=0:1,") && error.len() < 1000, "{} bytes", error.len());

    let payload = |model: &str, paths: [&str; 2]| {
        let leaf = serde_json::json!([{"name": "n", "tokens": [5]}]);
        let paths = paths.map(|path| serde_json::json!({"path": path, "leaves": leaf}));
        serde_json::json!({"modelId": model, "descriptors": paths}).to_string()
    };
    tame("two paths", Trie::parse(payload("", [&loud(), &loud()]).as_bytes()));
    let trie = Trie::parse(payload("", [&loud(), "other"]).as_bytes()).unwrap();
    let mut state = TrieState::new(Arc::new(trie), Mode::Greedy);
    tame("a known path", state.arm(Some("third")));
    tame("an unknown path", state.arm(Some(&(loud() + "!"))));

    let session = Session::open(OpenOptions { path, ..OpenOptions::default() }).unwrap();
    let mut settings = session.settings();
    settings.strict_trie = true;
    session.configure(settings).unwrap();
    let foreign = session.set_trie(payload(&loud(), ["a", "b"]).as_bytes(), Mode::Greedy);
    assert!(matches!(&foreign, Err(Error::Trie { place, .. }) if place == "modelId"));
    tame("a model's name", foreign);
}
