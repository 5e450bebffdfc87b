//! Scoring all leaves of a trie at once against running each of them alone.
//!
//! Weights here are F32 and F16. Quantised weights are multiplied with activations of eight bits, where a difference in
//! the last bit of an attention now and then becomes one of a whole step: then the same leaf, run alone twice in
//! different cells, already differs by up to 0.1.

use crate::testing::fixtures::{Kind, Weights};
use crate::testing::judge::{NEVER, tokens};
use crate::testing::rng::Stream;
use crate::testing::{fixture, has_gpu};
use elizainference::engine::{self, Engine, EngineOptions, KvType, SlotId};
use elizainference::trie::Trie;
use elizainference::{Error, Token};
use serde_json::json;
use std::path::Path;
use std::sync::atomic::AtomicBool;

fn open(kind: Kind, weights: Weights, kv_type: KvType, gpu_layers: i32) -> (Engine, [SlotId; 2]) {
    open_file(&fixture(kind, weights), kv_type, gpu_layers)
}

fn open_file(path: &Path, kv_type: KvType, gpu_layers: i32) -> (Engine, [SlotId; 2]) {
    let options = EngineOptions { slots: 2, threads: 2, kv_type, gpu_layers, ..EngineOptions::default() };
    let model = engine::open_model(path, &options, None).unwrap();
    let mut engine = Engine::new(model, &options).unwrap();
    let slots = [engine.take_slot(0).unwrap(), engine.take_slot(1).unwrap()];
    (engine, slots)
}

fn trie(leaves: &[Vec<Token>]) -> Trie {
    let leaf = |(i, tokens): (usize, &Vec<Token>)| json!({"name": format!("{i}"), "tokens": tokens});
    let leaves: Vec<_> = leaves.iter().enumerate().map(leaf).collect();
    Trie::parse(json!({"descriptors": [{"path": "x", "leaves": leaves}]}).to_string().as_bytes()).unwrap()
}

fn softmax(logits: &[f32]) -> Vec<f64> {
    let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weights: Vec<f64> = logits.iter().map(|&x| f64::from(x - best).exp()).collect();
    let total: f64 = weights.iter().sum();
    weights.iter().map(|w| w / total).collect()
}

/// The leaf's tokens one by one, in a slot of its own.
fn alone(engine: &mut Engine, slot: SlotId, prompt: &[Token], leaf: &[Token], leaves: &[Vec<Token>]) -> f64 {
    engine.prefill(slot, prompt, &NEVER).unwrap();
    let mut probabilities = softmax(engine.head(slot).unwrap());
    let mut logprob = 0.0;
    for &token in leaf {
        logprob += probabilities[token as usize].ln();
        probabilities = softmax(engine.decode(slot, token, &NEVER).unwrap());
    }
    let mut next: Vec<Token> = leaves
        .iter()
        .filter(|other| other.len() > leaf.len() && other.starts_with(leaf))
        .map(|l| l[leaf.len()])
        .collect();
    next.sort_unstable();
    next.dedup();
    if !next.is_empty() {
        let others = (0..probabilities.len()).filter(|&i| !next.contains(&(i as Token)));
        logprob += others.map(|i| probabilities[i]).sum::<f64>().ln();
    }
    logprob
}

/// Random leaves over a small alphabet, so that prefixes are shared and some leaves begin others.
fn random_leaves(dice: Stream, count: u64, n_vocab: usize) -> Vec<Vec<Token>> {
    let mut at = 0;
    let mut next = |n: u64| {
        at += 1;
        dice.below(at, n)
    };
    let alphabet: Vec<Token> = (0..2 + next(8)).map(|_| next(n_vocab as u64) as Token).collect();
    let deepest = 1 + next(6);
    let mut leaves: Vec<Vec<Token>> = (0..1 + next(count))
        .map(|_| (0..1 + next(deepest)).map(|_| alphabet[next(alphabet.len() as u64) as usize]).collect())
        .collect();
    leaves.sort_unstable();
    leaves.dedup();
    leaves
}

/// Nodes below the root that have children.
fn rows(leaves: &[Vec<Token>]) -> usize {
    let mut inner: Vec<&[Token]> = leaves.iter().flat_map(|leaf| (1..leaf.len()).map(|n| &leaf[..n])).collect();
    inner.sort_unstable();
    inner.dedup();
    inner.len()
}

fn compare(kind: Kind, weights: Weights, kv_type: KvType, gpu_layers: i32, tries: u64) {
    compare_file(&fixture(kind, weights), kv_type, gpu_layers, tries);
}

/// Compares random tries over the model of a file, of F32 or F16 weights.
pub fn compare_file(path: &Path, kv_type: KvType, gpu_layers: i32, tries: u64) {
    let (mut engine, slots) = open_file(path, kv_type, gpu_layers);
    let n_vocab = engine.model().n_vocab();
    for number in 0..tries {
        let leaves = random_leaves(Stream::new(number, "leaves"), 12, n_vocab);
        let trie = trie(&leaves);
        let prompt = tokens(1 + (number as usize * 7) % 40, &format!("scored {number}"));
        engine.prefill(slots[0], &prompt, &NEVER).unwrap();
        let before = engine.stats().forward_passes;
        let scores = engine.score(slots[0], &trie, &trie.descriptors()[0], &NEVER).unwrap();
        let passes = engine.stats().forward_passes - before;
        assert_eq!(passes as usize, rows(&leaves).div_ceil(512));
        assert_eq!(scores.len(), leaves.len());
        for score in scores {
            let leaf = trie.path_to(score.node);
            assert_eq!(score.tokens as usize, leaf.len());
            let expected = alone(&mut engine, slots[1], &prompt, &leaf, &leaves);
            let off = (score.logprob - expected).abs();
            assert!(off <= 1e-3, "{path:?} trie {number} {leaf:?}: {} for {expected}", score.logprob);
        }
    }
}

#[test]
fn scores_are_those_of_each_leaf_alone() {
    compare(Kind::Llama, Weights::F32, KvType::F32, 0, 8);
    compare(Kind::Qwen3, Weights::F16, KvType::F16, 0, 8);
    // A window of 16, which some leaves are beyond.
    compare(Kind::Gemma3Capped, Weights::F32, KvType::F32, 0, 8);
}

#[test]
fn scores_on_the_gpu_are_those_of_each_leaf_alone() {
    if has_gpu() {
        compare(Kind::Llama, Weights::F32, KvType::F32, -1, 3);
        compare(Kind::Gemma3, Weights::F16, KvType::F16, -1, 3);
    }
}

#[test]
#[ignore = "long: 500 tries"]
fn many_scores_are_those_of_each_leaf_alone() {
    for kind in [Kind::Llama, Kind::Qwen3, Kind::Gemma3, Kind::Gemma3Capped, Kind::LlamaYarn] {
        for (weights, kv_type) in [(Weights::F32, KvType::F32), (Weights::F16, KvType::F16)] {
            compare(kind, weights, kv_type, 0, 50);
        }
    }
}

#[test]
fn more_nodes_than_a_pass_takes_are_several_passes() {
    let (mut engine, slots) = open(Kind::Llama, Weights::F32, KvType::F32, 0);
    let dice = Stream::new(1, "wide");
    let leaves: Vec<Vec<Token>> = (0..300)
        .map(|i| (0..4).map(|k| if k == 0 { i as Token } else { dice.below(4 * i + k, 500) as Token }).collect())
        .collect();
    let trie = trie(&leaves);
    let prompt = tokens(20, "wide");
    engine.prefill(slots[0], &prompt, &NEVER).unwrap();
    let before = engine.stats().forward_passes;
    let scores = engine.score(slots[0], &trie, &trie.descriptors()[0], &NEVER).unwrap();
    assert_eq!(engine.stats().forward_passes - before, 2, "900 nodes with children");
    for score in scores.iter().step_by(37) {
        let leaf = trie.path_to(score.node);
        let expected = alone(&mut engine, slots[1], &prompt, &leaf, &leaves);
        assert!((score.logprob - expected).abs() <= 1e-3, "{leaf:?}: {} for {expected}", score.logprob);
    }
}

/// What a generation goes on with after scored leaves is what it goes on with where none were scored.
#[test]
fn scoring_leaves_the_slot_as_it_was() {
    for gpu_layers in [0, -1] {
        if gpu_layers != 0 && !has_gpu() {
            return;
        }
        let (mut engine, [slot, other]) = open(Kind::Llama, Weights::F32, KvType::F32, gpu_layers);
        let trie = trie(&random_leaves(Stream::new(5, "leaves"), 40, engine.model().n_vocab()));
        let prompt = tokens(30, "as it was");
        let mut expected = Vec::new();
        engine.prefill(other, &prompt, &NEVER).unwrap();
        expected.push(engine.head(other).unwrap().to_vec());
        expected.push(engine.decode(other, 7, &NEVER).unwrap().to_vec());
        engine.truncate(other, 0);
        let free = engine.room(slot);
        engine.prefill(slot, &prompt, &NEVER).unwrap();
        for cancelled in [false, true] {
            let scored = engine.score(slot, &trie, &trie.descriptors()[0], &AtomicBool::new(cancelled));
            assert_eq!(scored.err(), cancelled.then_some(Error::Cancelled));
            assert_eq!(engine.tokens(slot), prompt);
        }
        assert_eq!(engine.head(slot).unwrap(), expected[0]);
        assert_eq!(engine.decode(slot, 7, &NEVER).unwrap(), expected[1]);
        engine.truncate(slot, 0);
        assert_eq!(engine.room(slot), free);
    }
}

#[test]
fn what_cannot_be_scored_is_refused_and_changes_nothing() {
    let (mut engine, [slot, other]) = open(Kind::Llama, Weights::F32, KvType::F32, 0);
    let few = trie(&[vec![1, 2, 3]]);
    let score = |engine: &mut Engine, slot, trie: &Trie| {
        engine.score(slot, trie, &trie.descriptors()[0], &NEVER).map(|scores| scores.len())
    };
    assert!(matches!(score(&mut engine, slot, &few), Err(Error::InvalidArgument(_))), "no prompt yet");
    let context = engine.context();
    engine.prefill(slot, &tokens(context - 2, "full"), &NEVER).unwrap();
    let error = score(&mut engine, slot, &few).unwrap_err();
    assert!(matches!(&error, Error::OutOfMemory(text) if text.contains("3 tokens") && text.contains("room for 2")));
    assert_eq!(score(&mut engine, slot, &trie(&[vec![1, 2]])), Ok(1));
    // Cells for all nodes are more than the context has left.
    let leaves: Vec<Vec<Token>> = (0..500).map(|i| vec![i, i, 3]).collect();
    engine.prefill(slot, &tokens(context - 600, "full"), &NEVER).unwrap();
    let error = score(&mut engine, slot, &trie(&leaves)).unwrap_err();
    assert!(matches!(&error, Error::OutOfMemory(text) if text.contains("1000 nodes")), "{error}");
    assert_eq!(score(&mut engine, slot, &few), Ok(1));
    engine.truncate(slot, 0);
    assert_eq!(engine.room(other), context);
}
