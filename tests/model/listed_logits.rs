//! Only the logits of tokens that may win: the same bits as in a whole row, and so the same tokens as under a mask.

use crate::testing::fixtures::{Kind, Weights};
use crate::testing::judge::{NEVER, tokens};
use crate::testing::rng::Stream;
use crate::testing::{fixture, has_gpu};
use elizainference::engine::{self, Engine, EngineOptions, SlotId, Speculation};
use elizainference::sampling::{Chain, Legal, Sampler};
use elizainference::{Error, Token};

const WEIGHTS: [Weights; 6] = [Weights::F32, Weights::F16, Weights::Q8_0, Weights::Q4_0, Weights::Q4_K, Weights::Q6_K];
/// An output matrix of its own, a tied one, and one with a soft cap after it.
const HEADS: [Kind; 3] = [Kind::Llama, Kind::Qwen3, Kind::Gemma3Capped];

fn open(kind: Kind, weights: Weights, gpu_layers: i32) -> (Engine, [SlotId; 2]) {
    let options = EngineOptions { slots: 2, threads: 2, gpu_layers, ..EngineOptions::default() };
    let model = engine::open_model(&fixture(kind, weights), &options, None).unwrap();
    let mut engine = Engine::new(model, &options).unwrap();
    let slots = [engine.take_slot(0).unwrap(), engine.take_slot(1).unwrap()];
    (engine, slots)
}

/// Different tokens below `n`, ascending.
fn ascending(dice: Stream, from: u64, count: usize, n: usize) -> Vec<Token> {
    let mut found: Vec<Token> = (0..count as u64).map(|i| dice.below(from + i, n as u64) as Token).collect();
    found.sort_unstable();
    found.dedup();
    found
}

#[test]
fn listed_logits_are_the_bits_of_the_whole_row() {
    for kind in HEADS {
        for weights in WEIGHTS {
            let (mut engine, [slot, _]) = open(kind, weights, 0);
            let (n_vocab, dice) = (engine.model().n_vocab(), Stream::new(3, "listed"));
            let text = tokens(40, "listed");
            let prompt = &text[..10];
            for (round, count) in [1, 2, 3, 15, 40, 200, 500].into_iter().enumerate() {
                let listed = ascending(dice, 1000 * round as u64, count, n_vocab);
                // After the prompt, one token, several at once.
                for more in [0, 1, 3] {
                    let behind = &text[10..10 + more];
                    engine.prefill(slot, prompt, &NEVER).unwrap();
                    let whole = engine.next_logits(slot, behind, &[], &NEVER).unwrap();
                    let bits: Vec<u32> = whole.iter().map(|x| x.to_bits()).collect();
                    // Nothing of the row that is there may pass for a result.
                    whole.fill(f32::NAN);
                    engine.prefill(slot, prompt, &NEVER).unwrap();
                    let before = engine.stats().logits;
                    let row = engine.next_logits(slot, behind, &listed, &NEVER).unwrap();
                    for &token in &listed {
                        let (got, is) = (row[token as usize].to_bits(), bits[token as usize]);
                        assert_eq!(got, is, "{kind:?} {weights:?} token {token} of {}", listed.len());
                    }
                    let far = (0..n_vocab).filter(|i| listed.iter().all(|&t| t as usize / 16 != i / 16));
                    assert!(far.into_iter().all(|i| row[i].is_nan()), "{kind:?} {weights:?}: more was computed");
                    assert_eq!(engine.stats().logits - before, listed.len() as u64);
                }
            }
        }
    }
}

#[test]
fn what_cannot_be_listed_is_refused() {
    let (mut engine, [slot, _]) = open(Kind::Llama, Weights::F32, 0);
    engine.prefill(slot, &tokens(5, "refused"), &NEVER).unwrap();
    let n_vocab = engine.model().n_vocab() as Token;
    let many: Vec<Token> = (0..n_vocab.min(512)).chain(n_vocab..n_vocab + 1).collect();
    for (listed, problem) in [
        (vec![5, 3], "ascending"),
        (vec![3, 3], "ascending"),
        (vec![-1, 3], "Token -1"),
        (vec![3, n_vocab], &format!("Token {n_vocab}")),
        (many, "513 tokens"),
    ] {
        let error = engine.next_logits(slot, &[], &listed, &NEVER).unwrap_err();
        assert!(matches!(&error, Error::InvalidArgument(text) if text.contains(problem)), "{error}");
    }
    engine.next_logits(slot, &[], &[1, 7], &NEVER).unwrap();
}

/// Walks `count` spans: at each step a set of children, and a forced run now and then. Each step is made twice in the
/// same cells: with all logits, from which the host samples under the mask, then with those that may win.
fn spans(kind: Kind, weights: Weights, gpu_layers: i32, count: u64) {
    let (mut engine, [slot, _]) = open(kind, weights, gpu_layers);
    let n_vocab = engine.model().n_vocab();
    let chains =
        ["greedy", "temp=0.8", "logit_bias=5:2.5,9:-3;top_k=4;top_p=0.9;temp=0.7", "penalties=8,1.3,0.1,0.1;min_p=0.1"];
    let dice = Stream::new(11, "spans");
    let mut at = 0;
    let mut next = |n: u64| {
        at += 1;
        dice.below(at, n)
    };
    for span in 0..count {
        let chain: Chain = chains[(span % 4) as usize].parse().unwrap();
        let greedy = next(2) == 0;
        let mut prompt = tokens(1 + next(6) as usize, &format!("span {span}"));
        let mut sampler = Sampler::new(&chain, n_vocab, span).unwrap();
        prompt.iter().for_each(|&token| sampler.accept(token));
        engine.truncate(slot, 0);
        engine.prefill(slot, &prompt, &NEVER).unwrap();
        let mut pending = Vec::new();
        for _ in 0..1 + next(4) {
            let children = ascending(dice, next(1 << 40), [1, 2, 5, 30, 200][next(5) as usize], n_vocab);
            let legal = Legal::list(&children, greedy);
            let position = (prompt.len() + pending.len()) as u32;
            let row = engine.next_logits(slot, &pending, &[], &NEVER).unwrap();
            let whole = sampler.sample(row, Some(legal), &[], position).unwrap();
            // Nothing of that row may pass for a result, as far as the host can reach it.
            row.fill(f32::NAN);
            engine.truncate(slot, prompt.len());
            let before = engine.stats().logits;
            let quick = if gpu_layers == 0 {
                let row = engine.next_logits(slot, &pending, &children, &NEVER).unwrap();
                sampler.sample(row, Some(legal), &[], position).unwrap()
            } else {
                let spec = sampler.spec(&[]);
                assert_eq!(engine.start_sampling(slot, &spec).unwrap(), spec.steps.len());
                let mask = Some(Legal::list(&children, greedy));
                engine.sample(slot, &pending, mask, Speculation::Nothing, &NEVER).unwrap().result.token
            };
            assert_eq!(engine.stats().logits - before, children.len() as u64);
            assert_eq!(quick, whole, "{kind:?} {weights:?} span {span}, {} children, {chain}", children.len());
            prompt.append(&mut pending);
            pending.push(quick);
            pending.extend((0..[0, 0, 3][next(3) as usize]).map(|_| next(n_vocab as u64) as Token));
            pending.iter().for_each(|&token| sampler.accept(token));
        }
    }
}

#[test]
fn spans_over_listed_logits_are_those_under_a_mask() {
    for kind in HEADS {
        for weights in [Weights::F32, Weights::Q8_0, Weights::Q4_K] {
            spans(kind, weights, 0, 20);
        }
    }
}

#[test]
fn spans_on_the_gpu_are_those_under_a_mask() {
    if has_gpu() {
        spans(Kind::Llama, Weights::Q8_0, -1, 8);
        spans(Kind::Gemma3Capped, Weights::F16, -1, 8);
    }
}

#[test]
#[ignore = "long: 10,000 spans over every head"]
fn many_spans() {
    for kind in HEADS {
        for weights in WEIGHTS {
            spans(kind, weights, 0, 600);
        }
    }
}

#[test]
#[ignore = "long: 10,000 spans over every head on a software GPU"]
fn many_spans_on_the_gpu() {
    if has_gpu() {
        for kind in HEADS {
            for weights in WEIGHTS {
                spans(kind, weights, -1, 560);
            }
        }
    }
}
