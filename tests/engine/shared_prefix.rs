//! Prompts that begin as another slot's tokens do: they go on from there, in the same cells.

use crate::testing::fixture;
use crate::testing::fixtures::{Kind, Weights};
use crate::testing::judge::{NEVER, tokens};
use crate::testing::stats::{distance, widen};
use elizainference::Token;
use elizainference::engine::{self, Engine, EngineOptions, KvType, SlotId};

const CONTEXT: usize = 1024;

fn open(kind: Kind, slots: u32) -> Engine {
    let path = fixture(kind, Weights::F32);
    let kv_type = KvType::F32;
    let options =
        EngineOptions { context: CONTEXT as u32, slots, n_batch: 16, threads: 1, kv_type, ..EngineOptions::default() };
    Engine::new(engine::open_model(&path, &options, None).unwrap(), &options).unwrap()
}

/// The logits after a text in a fresh engine.
fn fresh(kind: Kind, text: &[Token]) -> Vec<f64> {
    let mut engine = open(kind, 1);
    engine.prefill(SlotId::default(), text, &NEVER).unwrap();
    widen(engine.head(SlotId::default()).unwrap())
}

fn check(kind: Kind, engine: &mut Engine, slot: SlotId) {
    let text = engine.tokens(slot).to_vec();
    let row = widen(engine.decode(slot, 310, &NEVER).unwrap());
    let far = distance(&[row], &[fresh(kind, &[&text[..], &[310]].concat())]).relative_rms;
    assert!(far < 1e-5, "{kind:?}: {far} in slot {}", slot.number());
    engine.truncate(slot, text.len());
}

const KINDS: [Kind; 3] = [Kind::Llama, Kind::Gemma3, Kind::Qwen35];

#[test]
fn conversations_share_their_beginning() {
    for kind in KINDS {
        let (mut engine, system) = (open(kind, 3), tokens(300, "system"));
        let slots = [0, 1, 2].map(|number| engine.take_slot(number).unwrap());
        engine.prefill(slots[0], &system, &NEVER).unwrap();
        for (i, &slot) in slots.iter().enumerate().skip(1) {
            let text = [&system[..], &tokens(20 + 5 * i, &format!("question {i}"))].concat();
            assert_eq!(engine.prefill(slot, &text, &NEVER).unwrap().reused, 300, "{kind:?}");
        }
        // In a context of 1024, so that each does not have its own.
        let more = tokens(200, "more");
        for slot in slots {
            engine.append(slot, &more, &NEVER).unwrap();
        }
        assert_eq!(slots.map(|slot| engine.position(slot)), [500, 525, 530]);
        slots.into_iter().for_each(|slot| check(kind, &mut engine, slot));
        // The first leaves; the others still have what it gave them.
        engine.truncate(slots[0], 0);
        engine.append(slots[0], &tokens(250, "other"), &NEVER).unwrap();
        slots.into_iter().for_each(|slot| check(kind, &mut engine, slot));
    }
}

#[test]
fn a_shift_of_one_leaves_the_others() {
    for kind in KINDS {
        let (mut engine, system) = (open(kind, 2), tokens(300, "system"));
        let slots = [0, 1].map(|number| engine.take_slot(number).unwrap());
        engine.prefill(slots[0], &system, &NEVER).unwrap();
        engine.prefill(slots[1], &[&system[..], &tokens(30, "question")].concat(), &NEVER).unwrap();
        engine.remove(slots[1], 100..150).unwrap();
        engine.remove(slots[0], 10..40).unwrap();
        assert_eq!(slots.map(|slot| engine.position(slot)), [270, 280]);
        // The tokens after the gap of the second were evaluated again. Those of the first were then its own.
        check(kind, &mut engine, slots[1]);
        engine.prefill(slots[0], &system, &NEVER).unwrap();
        check(kind, &mut engine, slots[0]);
        engine.defragment().unwrap();
        slots.into_iter().for_each(|slot| check(kind, &mut engine, slot));
    }
}

#[test]
fn a_prompt_for_any_slot_takes_the_one_that_it_goes_on_from() {
    let mut engine = open(Kind::Llama, 3);
    let (one, other) = (tokens(100, "one"), tokens(100, "other"));
    let first = engine.slot_for(-1, &one).unwrap();
    engine.prefill(first, &one, &NEVER).unwrap();
    let second = engine.slot_for(-1, &other).unwrap();
    assert_ne!(first, second);
    engine.prefill(second, &other, &NEVER).unwrap();
    assert_eq!(engine.slot_for(-1, &[&one[..], &[7]].concat()).unwrap(), first);
    // Half of a slot's tokens: an empty slot, which gets them as well.
    let half = [&one[..50], &[7]].concat();
    let third = engine.slot_for(-1, &half).unwrap();
    assert!(![first, second].contains(&third));
    assert_eq!(engine.prefill(third, &half, &NEVER).unwrap().reused, 50);
    // None is empty: the least recently used, but not the one whose tokens the prompt needs.
    engine.slot_for(first.number(), &[]).unwrap();
    let half = [&other[..50], &[7]].concat();
    assert_eq!(engine.slot_for(-1, &half).unwrap(), third);
}

#[test]
fn a_pinned_slot_keeps_its_tokens() {
    let mut engine = open(Kind::Llama, 2);
    let system = tokens(400, "system");
    let slots = [0, 1].map(|number| engine.take_slot(number).unwrap());
    engine.prefill(slots[0], &system, &NEVER).unwrap();
    engine.pin(0b001);
    // A prompt that needs more cells than are left has to do without them.
    let long = tokens(CONTEXT, "long");
    assert!(engine.prefill(slots[1], &long, &NEVER).is_err());
    assert_eq!(engine.tokens(slots[0]), system);
    assert_eq!(engine.slot_for(-1, &long).unwrap(), slots[1]);
    // One that begins with them takes another slot.
    assert_eq!(engine.slot_for(-1, &[&system[..], &[7]].concat()).unwrap(), slots[1]);
    engine.pin(0b011);
    let refused = engine.slot_for(-1, &long).unwrap_err().to_string();
    assert!(refused.contains("Every slot is pinned"), "{refused}");
    engine.pin(0b010);
    assert_eq!(engine.slot_for(-1, &long).unwrap(), slots[0]);
}
