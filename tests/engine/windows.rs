//! Sliding layers with the cells of a window: what is left of a slot says what a fresh run says, and what need not be
//! is not evaluated again.

use crate::testing::fixtures::{Kind, Weights};
use crate::testing::judge::{NEVER, tokens};
use crate::testing::stats::{distance, widen};
use crate::testing::{fixture, has_gpu};
use elizainference::Token;
use elizainference::engine::{self, Engine, EngineOptions, KvType, SlotId};

/// Sliding layers of the model have a window of 16: here they have 64 cells for each slot, and a few copies.
const BATCH: u32 = 16;

fn options(slots: u32, context: u32) -> EngineOptions {
    let threads = 1;
    EngineOptions { context, slots, n_batch: BATCH, threads, kv_type: KvType::F32, ..EngineOptions::default() }
}

fn open(slots: u32) -> Engine {
    let (path, options) = (fixture(Kind::Gemma3, Weights::F32), options(slots, 8192));
    Engine::new(engine::open_model(&path, &options, None).unwrap(), &options).unwrap()
}

/// The bits of the logits after a text in a fresh slot.
fn fresh(text: &[Token]) -> Vec<u32> {
    let (mut engine, slot) = (open(1), SlotId::default());
    engine.prefill(slot, text, &NEVER).unwrap();
    bits(engine.head(slot).unwrap())
}

fn bits(row: &[f32]) -> Vec<u32> {
    row.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn a_prompt_is_found_again_after_an_answer_longer_than_the_ring() {
    let (prompt, answer) = (tokens(300, "prompt"), tokens(200, "answer"));
    let (mut engine, slot) = (open(1), SlotId::default());
    engine.prefill(slot, &prompt, &NEVER).unwrap();
    for &token in &answer {
        engine.decode(slot, token, &NEVER).unwrap();
    }
    // The same prompt, one that goes on from it, and one that goes on from the answer.
    for (text, reused) in [
        (prompt.clone(), 299),
        ([&prompt[..], &tokens(40, "question")].concat(), 300),
        ([&prompt[..], &answer[..1]].concat(), 300),
    ] {
        let done = engine.prefill(slot, &text, &NEVER).unwrap();
        assert_eq!((done.reused, engine.position(slot)), (reused, text.len()));
        assert!(bits(engine.head(slot).unwrap()) == fresh(&text));
        for &token in &tokens(100, "other answer") {
            engine.decode(slot, token, &NEVER).unwrap();
        }
    }
}

#[test]
fn a_conversation_evaluates_every_token_once() {
    let (mut engine, slot, mut text) = (open(1), SlotId::default(), tokens(700, "system"));
    let mut evaluated = 0;
    for turn in 0..20 {
        text.extend(tokens(10 + 7 * turn, "question"));
        let before = engine.stats().rows;
        engine.prefill(slot, &text, &NEVER).unwrap();
        for token in tokens(5 + 3 * turn, "answer") {
            engine.decode(slot, token, &NEVER).unwrap();
            text.push(token);
        }
        evaluated += engine.stats().rows - before;
    }
    assert_eq!(evaluated, text.len() as u64);
    text.push(310);
    assert!(bits(engine.decode(slot, 310, &NEVER).unwrap()) == fresh(&text));
}

#[test]
fn what_was_forgotten_is_evaluated_again() {
    let text = tokens(500, "long");
    let (mut engine, slot) = (open(1), SlotId::default());
    engine.append(slot, &text, &NEVER).unwrap();
    // Without a mark nothing of the middle is left.
    engine.truncate(slot, 250);
    let before = engine.stats().rows;
    let row = bits(engine.decode(slot, 310, &NEVER).unwrap());
    assert_eq!(engine.stats().rows - before, 251);
    assert!(row == fresh(&[&text[..250], &[310]].concat()));
    // A few tokens back are still there.
    engine.append(slot, &text[..200], &NEVER).unwrap();
    engine.truncate(slot, 440);
    let before = engine.stats().rows;
    engine.decode(slot, 310, &NEVER).unwrap();
    assert_eq!(engine.stats().rows - before, 1);
}

#[test]
fn earlier_logits_come_from_any_place() {
    let text = tokens(300, "before");
    let (mut engine, slot) = (open(1), SlotId::default());
    engine.prefill(slot, &text, &NEVER).unwrap();
    for n in [2, 30, 90, 300] {
        let mut rows = Vec::new();
        let mut keep = |row: &[f32]| {
            rows.push(bits(row));
            Ok(())
        };
        engine.last_logits(slot, n, &NEVER, &mut keep).unwrap();
        assert_eq!(rows.len(), n);
        assert!(rows[0] == fresh(&text[..300 - n + 1]), "the last {n}");
    }
    assert!(bits(engine.decode(slot, 310, &NEVER).unwrap()) == fresh(&[&text[..], &[310]].concat()));
}

#[test]
fn many_slots_have_the_cells_that_they_need() {
    let (mut engine, n) = (open(8), 8);
    let texts: Vec<_> = (0..n).map(|i| tokens(100 + 17 * i, &format!("many {i}"))).collect();
    for round in 0..3 {
        for (i, text) in texts.iter().enumerate() {
            let slot = engine.take_slot(i as i32).unwrap();
            let done = engine.prefill(slot, text, &NEVER).unwrap();
            assert_eq!(done.reused, if round == 0 { 0 } else { text.len() - 1 }, "slot {i} in round {round}");
            for token in tokens(3 + 20 * round, "answer") {
                engine.decode(slot, token, &NEVER).unwrap();
            }
        }
    }
}

#[test]
fn a_shift_leaves_the_window_of_later_tokens() {
    let text = tokens(600, "shift");
    // Tokens that follow the gap and fill a window stay as they were computed; fewer are evaluated again.
    for (gap, again) in [(100..500, false), (100..590, true)] {
        let (mut engine, slot) = (open(1), SlotId::default());
        engine.prefill(slot, &text, &NEVER).unwrap();
        let before = engine.stats().rows;
        engine.remove(slot, gap.clone()).unwrap();
        assert_eq!(engine.stats().rows > before, again);
        let left = [&text[..gap.start], &text[gap.end..]].concat();
        assert_eq!(engine.tokens(slot), left);
        let row = engine.decode(slot, 310, &NEVER).unwrap().to_vec();
        let exact = fresh(&[&left[..], &[310]].concat());
        assert!(row.iter().all(|x| x.is_finite()));
        assert_eq!(bits(&row) == exact, again);
        // Back before the gap all is as in a fresh run again.
        engine.prefill(slot, &text, &NEVER).unwrap();
        assert!(bits(engine.decode(slot, 310, &NEVER).unwrap()) == fresh(&[&text[..], &[310]].concat()));
    }
}

#[test]
fn a_slot_is_restored_where_more_cells_are_kept() {
    let (folder, text) = (tempfile::tempdir().unwrap(), tokens(300, "saved"));
    let path = folder.path().join("saved");
    let open_as = |slots, context| {
        let (path, options) = (fixture(Kind::Gemma3, Weights::F32), options(slots, context));
        Engine::new(engine::open_model(&path, &options, None).unwrap(), &options).unwrap()
    };
    // 16 slots of 512 tokens have fewer cells than their windows would take, so that all tokens have one.
    let save = |engine: &mut Engine| {
        engine.prefill(SlotId::default(), &text, &NEVER).unwrap();
        engine.save(SlotId::default(), &path, &[], &NEVER).unwrap();
        std::fs::metadata(&path).unwrap().len()
    };
    let mut all = open_as(16, 512);
    let whole = save(&mut all);
    let expected = widen(all.decode(SlotId::default(), 310, &NEVER).unwrap());
    let mut sliding = open_as(1, 2048);
    for _ in 0..2 {
        let saved = sliding.open_saved(&path, &NEVER).unwrap();
        sliding.restore(SlotId::default(), saved, &NEVER).unwrap();
        // Attention of the other engine added up in another order.
        let row = widen(sliding.decode(SlotId::default(), 310, &NEVER).unwrap());
        assert!(distance(&[row], std::slice::from_ref(&expected)).relative_rms < 1e-5);
        sliding.truncate(SlotId::default(), 299);
        assert!(save(&mut sliding) < whole / 2);
    }
    let refused = open_as(16, 512).open_saved(&path, &NEVER).unwrap_err().to_string();
    assert!(refused.contains("window at byte 64") && refused.contains("context and number of slots"), "{refused}");
}

#[test]
fn a_gpu_says_what_the_cpu_says() {
    if !has_gpu() {
        return;
    }
    let (text, answer) = (tokens(300, "device"), tokens(90, "answer"));
    let said = |gpu_layers| {
        let path = fixture(Kind::Gemma3, Weights::F32);
        let options = EngineOptions { gpu_layers, ..options(2, 8192) };
        let mut engine = Engine::new(engine::open_model(&path, &options, None).unwrap(), &options).unwrap();
        let mut rows = Vec::new();
        // The second prompt finds the window of the first, in a copy; the third takes it into another slot.
        for (number, more) in [(0, 0), (0, 20), (1, 30)] {
            let slot = engine.take_slot(number).unwrap();
            let prompt = [&text[..], &answer[..more]].concat();
            let done = engine.prefill(slot, &prompt, &NEVER).unwrap();
            assert_eq!(done.reused, if more > 0 { 300 + 20 * number as usize } else { 0 });
            rows.push(widen(engine.head(slot).unwrap()));
            rows.extend(answer.iter().map(|&token| widen(engine.decode(slot, token, &NEVER).unwrap())));
        }
        let slot = engine.take_slot(1).unwrap();
        engine.remove(slot, 100..200).unwrap();
        rows.push(widen(engine.decode(slot, 310, &NEVER).unwrap()));
        rows
    };
    let (cpu, gpu) = (said(0), said(-1));
    let far = distance(&gpu, &cpu).relative_rms;
    assert!(far < 1e-4, "{far}");
}
