//! The cache rearranged: tokens taken out of the middle, cells brought together. In a model of one layer keys and
//! values depend on no other token, so what is left has to give the logits of a text that never held the rest.

use crate::testing::fixtures::{Kind, Weights};
use crate::testing::judge::{Judge, NEVER, tokens};
use crate::testing::stats::{distance, widen};
use crate::testing::{fixture, has_gpu};
use elizainference::Error;
use elizainference::engine::{self, Engine, EngineOptions, KvType, SlotId};
use std::ops::Range;

fn open(kind: Kind, kv_type: KvType, slots: u32, gpu_layers: i32) -> Engine {
    let path = fixture(kind, Weights::F32);
    let options = EngineOptions { context: 2048, slots, gpu_layers, kv_type, threads: 2, ..EngineOptions::default() };
    Engine::new(engine::open_model(&path, &options, None).unwrap(), &options).unwrap()
}

/// Where layers can be: the CPU, and a GPU if this machine has one or has to have one.
fn devices() -> Vec<i32> {
    if has_gpu() { vec![0, -1] } else { vec![0] }
}

/// Logits after each of the tokens.
fn decoded(engine: &mut Engine, slot: SlotId, tokens: &[i32]) -> Vec<Vec<f64>> {
    tokens.iter().map(|&token| widen(engine.decode(slot, token, &NEVER).unwrap())).collect()
}

const GAPS: [Range<usize>; 3] = [3..4, 40..600, 7..30];

/// The first 700 tokens less [`GAPS`], one after the other, then 5 more.
fn left(text: &[i32]) -> Vec<i32> {
    let mut left = text[..700].to_vec();
    GAPS.into_iter().for_each(|gap| drop(left.drain(gap)));
    left.extend_from_slice(&text[700..705]);
    left
}

#[test]
fn what_is_left_stands_as_if_it_had_always_stood_alone() {
    let text = tokens(705, "gaps");
    let left = left(&text);
    let path = fixture(Kind::LlamaShallow, Weights::F32);
    let judge = Judge::of_single_precision("gaps", &path, KvType::F32, left.clone());
    for gpu_layers in devices() {
        let mut engine = open(Kind::LlamaShallow, KvType::F32, 2, gpu_layers);
        let slot = engine.take_slot(0).unwrap();
        engine.prefill(slot, &text[..700], &NEVER).unwrap();
        GAPS.into_iter().for_each(|gap| engine.remove(slot, gap).unwrap());
        assert_eq!(engine.tokens(slot), &left[..left.len() - 5]);
        let rows = decoded(&mut engine, slot, &text[700..]);
        judge.check(&format!("{gpu_layers} layers on the GPU"), left.len() - 5..left.len(), &rows);
    }
}

#[test]
fn a_rounded_cache_is_rounded_twice_at_most() {
    let text = tokens(705, "gaps");
    let left = left(&text);
    let (known, rest) = left.split_at(left.len() - 5);
    let mut exact = open(Kind::LlamaShallow, KvType::F32, 1, 0);
    exact.prefill(SlotId::default(), known, &NEVER).unwrap();
    let truth = decoded(&mut exact, SlotId::default(), rest);
    for kv_type in [KvType::F16, KvType::Q8_0] {
        let mut engine = open(Kind::LlamaShallow, kv_type, 1, 0);
        engine.prefill(SlotId::default(), known, &NEVER).unwrap();
        let once = distance(&decoded(&mut engine, SlotId::default(), rest), &truth).relative_rms;
        engine.truncate(SlotId::default(), 0);
        engine.prefill(SlotId::default(), &text[..700], &NEVER).unwrap();
        GAPS.into_iter().for_each(|gap| engine.remove(SlotId::default(), gap).unwrap());
        // Three removals turn some keys three times.
        let more = distance(&decoded(&mut engine, SlotId::default(), rest), &truth).relative_rms;
        assert!(once > 0.0 && more <= 4.0 * once, "{kv_type:?}: {more} after removals, {once} without");
    }
}

#[test]
fn a_gap_is_no_prefix_to_reuse() {
    let text = tokens(60, "patched");
    let mut engine = open(Kind::Llama, KvType::F32, 2, 0);
    let slot = engine.take_slot(0).unwrap();
    engine.prefill(slot, &text, &NEVER).unwrap();
    engine.remove(slot, 20..30).unwrap();
    let left = [&text[..20], &text[30..]].concat();
    assert_eq!(engine.tokens(slot), left);
    // Two layers: tokens after the gap were computed after tokens that are gone, so they are computed again.
    assert_eq!(engine.prefill(slot, &left, &NEVER).unwrap().reused, 20);
    let judge = Judge::of_single_precision("patched", &fixture(Kind::Llama, Weights::F32), KvType::F32, left.clone());
    judge.check("after the gap", left.len() - 1..left.len(), &[widen(engine.head(slot).unwrap())]);
    assert_eq!(engine.prefill(slot, &left, &NEVER).unwrap().reused, left.len() - 1);

    engine.remove(slot, 45..50).unwrap();
    assert_eq!((engine.tokens(slot), engine.position(slot)), (&left[..45], 45));
    assert_eq!(engine.prefill(slot, &left, &NEVER).unwrap().reused, 45);
    #[allow(clippy::reversed_empty_ranges)]
    for range in [3..51, 51..51, 9..8] {
        let wrong = engine.remove(slot, range.clone());
        assert!(
            matches!(&wrong, Err(Error::InvalidArgument(p)) if p.contains("of a slot of 50")),
            "{range:?} {wrong:?}"
        );
    }
    engine.remove(slot, 8..8).unwrap();
    assert_eq!(engine.tokens(slot), left);
}

#[test]
fn cells_brought_together_hold_what_they_held() {
    let texts = [0, 1, 2, 3].map(|i| tokens(705, &format!("scattered {i}")));
    let judges = [2, 3].map(|i| {
        let path = fixture(Kind::Llama, Weights::F32);
        Judge::of_single_precision(&format!("slot {i}"), &path, KvType::F32, texts[i][..305].to_vec())
    });
    for gpu_layers in devices() {
        let mut engine = open(Kind::Llama, KvType::F32, 4, gpu_layers);
        let slots = [0, 1, 2, 3].map(|i| engine.take_slot(i).unwrap());
        for (slot, (text, n)) in slots.into_iter().zip(texts.iter().zip([700, 400, 300, 300])) {
            engine.prefill(slot, &text[..n], &NEVER).unwrap();
        }
        engine.truncate(slots[0], 0);
        engine.truncate(slots[1], 0);
        engine.defragment().unwrap();
        for (slot, judge) in slots[2..].iter().zip(&judges) {
            assert_eq!(engine.tokens(*slot), &judge.tokens[..300]);
            let rows = decoded(&mut engine, *slot, &judge.tokens[300..]);
            judge.check(&format!("{gpu_layers} layers on the GPU"), 300..305, &rows);
        }
        // A second time there is nothing to do; a prefill finds the cells after the others.
        engine.defragment().unwrap();
        engine.prefill(slots[0], &judges[0].tokens, &NEVER).unwrap();
        judges[0].check("a later prefill", 304..305, &[widen(engine.head(slots[0]).unwrap())]);
    }
}
