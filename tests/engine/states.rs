//! Slots under any sequence of operations: what an engine then says of the tokens that are left is what a fresh run of
//! them says, bit for bit on the CPU. With a hybrid model, whose state cannot forget, a model with sliding windows, and
//! a plain one.

use crate::testing::fixtures::{Kind, Weights};
use crate::testing::judge::NEVER;
use crate::testing::rng::Dice;
use crate::testing::{fixture, has_gpu};
use elizainference::engine::{self, Engine, EngineOptions, KvType, SlotId, SlotOutcome, SlotToken};
use elizainference::trie::Trie;
use elizainference::{Error, Token};
use std::sync::atomic::AtomicBool;

const CONTEXT: usize = 512;
const KINDS: [Kind; 3] = [Kind::Qwen35, Kind::Gemma3, Kind::Llama];

fn open(kind: Kind, slots: u32, gpu_layers: i32) -> Engine {
    let options = EngineOptions {
        context: CONTEXT as u32,
        slots,
        n_batch: 16,
        threads: 1,
        kv_type: KvType::F32,
        gpu_layers,
        ..EngineOptions::default()
    };
    let path = fixture(kind, Weights::F32);
    Engine::new(engine::open_model(&path, &options, None).unwrap(), &options).unwrap()
}

/// Whether two rows are the same: bit for bit, or but for rounding.
fn same(exact: bool, row: &[f32], expected: &[f32]) -> bool {
    let spread = (expected.iter().map(|x| x * x).sum::<f32>() / expected.len() as f32).sqrt();
    let far = |(a, b): (&f32, &f32)| if exact { a.to_bits() != b.to_bits() } else { (a - b).abs() > 2e-4 * spread };
    row.len() == expected.len() && !row.iter().zip(expected).any(far)
}

/// One program: some ten operations on the slots of `engine`, then every slot against a fresh run in `fresh`, which
/// gives the same bits where `exact`.
fn program(kind: Kind, exact: bool, engine: &mut Engine, fresh: &mut Engine, trie: &Trie, dice: &mut Dice) {
    let (cancelled, slots) = (AtomicBool::new(true), engine.slots());
    let most = CONTEXT / slots;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("slot");
    let mut saved = None;
    // What the slots must hold.
    let mut texts: Vec<Vec<Token>> = vec![Vec::new(); slots];
    for number in 0..slots as i32 {
        let slot = engine.take_slot(number).unwrap();
        engine.truncate(slot, 0);
    }
    for _ in 0..4 + dice.below(12) {
        let i = dice.below(texts.len());
        let slot = engine.take_slot(i as i32).unwrap();
        let room = most - texts[i].len();
        match dice.below(10) {
            // A prompt that shares some of what a slot holds.
            0 | 1 => {
                let whose = &texts[dice.below(slots)];
                let shared = dice.below(whose.len().min(most - 1) + 1);
                let more = 1 + dice.below(30.min(most - shared));
                let text = [&whose[..shared], &dice.tokens(more)].concat();
                engine.prefill(slot, &text, &NEVER).unwrap();
                texts[i] = text;
            }
            2 | 3 => {
                let more = dice.tokens(room.min(3));
                for &token in &more {
                    engine.decode(slot, token, &NEVER).unwrap();
                }
                texts[i].extend(more);
            }
            4 => {
                let more = dice.tokens(room.min(20));
                engine.append(slot, &more, &NEVER).unwrap();
                texts[i].extend(more);
            }
            5 => {
                let left = dice.below(texts[i].len() + 1);
                engine.truncate(slot, left);
                texts[i].truncate(left);
            }
            // Cancelled before it begins: what was there stays.
            6 => {
                let more = dice.tokens(room.min(20));
                if !more.is_empty() {
                    assert!(matches!(engine.append(slot, &more, &cancelled), Err(Error::Cancelled)));
                }
            }
            // A removal from the middle is exact where the model keeps a state; else keys stay as they were computed.
            7 if kind == Kind::Qwen35 => {
                let first = dice.below(texts[i].len() + 1);
                let last = first + dice.below(texts[i].len() - first + 1);
                engine.remove(slot, first..last).unwrap();
                texts[i].drain(first..last);
            }
            8 if !texts[i].is_empty() => {
                engine.save(slot, &file, &[], &NEVER).unwrap();
                saved = Some(texts[i].clone());
            }
            9 if saved.is_some() => {
                let restored = engine.open_saved(&file, &NEVER).unwrap();
                engine.restore(slot, restored, &NEVER).unwrap();
                texts[i] = saved.clone().unwrap();
            }
            // A token in every slot that has some, in one pass; or the leaves of a trie.
            _ if dice.below(2) == 0 => {
                let turns: Vec<_> = (0..texts.len())
                    .filter(|&i| !texts[i].is_empty() && texts[i].len() < most)
                    .map(|i| (i, 300 + dice.below(200) as Token))
                    .collect();
                let slots: Vec<_> = turns.iter().map(|&(i, _)| engine.take_slot(i as i32).unwrap()).collect();
                let steps: Vec<_> = turns
                    .iter()
                    .zip(&slots)
                    .map(|(&(_, token), &slot)| SlotToken { slot, token, legal: None })
                    .collect();
                let mut rows = vec![Vec::new(); turns.len()];
                engine
                    .step(&steps, &NEVER, &mut |turn, outcome| {
                        if let SlotOutcome::Logits(row) = outcome.unwrap() {
                            rows[turn] = row.to_vec();
                        }
                    })
                    .unwrap();
                for (&(i, token), row) in turns.iter().zip(rows) {
                    texts[i].push(token);
                    assert!(same(exact, &row, &said(fresh, &texts[i])), "{kind:?}: a step of slot {i}");
                }
            }
            _ if !texts[i].is_empty() && room > 8 => {
                engine.prefill(slot, &texts[i], &NEVER).unwrap();
                let descriptor = &trie.descriptors()[0];
                let scores = engine.score(slot, trie, descriptor, &NEVER).unwrap();
                let other = fresh.take_slot(0).unwrap();
                fresh.truncate(other, 0);
                fresh.prefill(other, &texts[i], &NEVER).unwrap();
                let expected = fresh.score(other, trie, descriptor, &NEVER).unwrap();
                for (score, expected) in scores.iter().zip(&expected) {
                    let far = (score.logprob - expected.logprob).abs();
                    assert!(if exact { score == expected } else { far < 1e-3 }, "{kind:?}: scores of slot {i}");
                }
            }
            _ => {}
        }
        assert_eq!(engine.tokens(slot), &texts[i][..], "{kind:?}: slot {i}");
    }
    for (i, text) in texts.iter().enumerate().filter(|(_, text)| !text.is_empty() && text.len() < most) {
        let slot = engine.take_slot(i as i32).unwrap();
        let next = [&text[..], &[310]].concat();
        let row = engine.decode(slot, 310, &NEVER).unwrap().to_vec();
        assert!(same(exact, &row, &said(fresh, &next)), "{kind:?}: slot {i} of {} tokens", text.len());
    }
}

/// The logits after a text in a fresh slot.
fn said(fresh: &mut Engine, text: &[Token]) -> Vec<f32> {
    let slot = SlotId::default();
    fresh.truncate(slot, 0);
    fresh.prefill(slot, text, &NEVER).unwrap();
    fresh.head(slot).unwrap().to_vec()
}

fn programs(kinds: &[Kind], gpu_layers: i32, n: u64) {
    const TRIE: &str = r#"{"descriptors":[{"path":"p","leaves":[
        {"name":"a","tokens":[300,301,302]},{"name":"b","tokens":[300,301,303]},{"name":"c","tokens":[300,304]},
        {"name":"d","tokens":[305,301,302,303]},{"name":"e","tokens":[305,301,302,304]}]}]}"#;
    let trie = Trie::parse(TRIE.as_bytes()).unwrap();
    for &kind in kinds {
        for slots in [1, 3] {
            let (mut engine, mut fresh) = (open(kind, slots, gpu_layers), open(kind, 1, gpu_layers));
            // A GPU has other kernels for batches of several rows.
            let exact = gpu_layers == 0;
            for round in 0..n {
                let mut dice = Dice::new(round, "programs");
                program(kind, exact, &mut engine, &mut fresh, &trie, &mut dice);
            }
        }
    }
}

#[test]
fn what_is_left_after_any_operations_is_as_in_a_fresh_run() {
    programs(&KINDS, 0, 20);
}

#[test]
fn states_on_a_gpu_are_kept_as_on_the_cpu() {
    if has_gpu() {
        programs(&[Kind::Qwen35], -1, 3);
    }
}

#[test]
#[ignore = "long: part of make deep"]
fn ten_thousand_programs() {
    programs(&KINDS, 0, 1700);
}
