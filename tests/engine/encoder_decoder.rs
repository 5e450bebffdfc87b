//! An encoder that reads the prompt, and a decoder that answers it.

use crate::leaf_scores::compare_file;
use crate::testing::judge::NEVER;
use crate::testing::rng::Stream;
use crate::testing::t5::{BEGIN, CONTEXT, T5};
use crate::testing::{fixture_folder, has_gpu, vocabulary};
use elizainference::engine::{EmbedOptions, Engine, EngineOptions, KvType, SlotId, SlotOutcome, SlotToken, open_model};
use elizainference::session::{OpenOptions, Session, Sink};
use elizainference::{Error, Token};
use std::path::Path;
use std::sync::atomic::AtomicBool;

fn open(path: &Path, slots: u32, gpu_layers: i32) -> Engine {
    let kv_type = KvType::F32;
    let options = EngineOptions { context: 0, slots, threads: 2, kv_type, gpu_layers, ..EngineOptions::default() };
    Engine::new(open_model(path, &options, None).unwrap(), &options).unwrap()
}

fn text(n: usize, seed: u64) -> Vec<Token> {
    let stream = Stream::new(seed, "texts to answer");
    (0..n as u64).map(|i| stream.below(i, vocabulary::SIZE as u64) as Token).collect()
}

fn bits(row: &[f32]) -> Vec<u32> {
    row.iter().map(|x| x.to_bits()).collect()
}

/// Rows before an answer's first token and after each, one by one.
fn rows(engine: &mut Engine, slot: SlotId, prompt: &[Token], answer: &[Token]) -> Vec<Vec<f32>> {
    engine.prefill(slot, prompt, &NEVER).unwrap();
    let mut rows = vec![engine.head(slot).unwrap().to_vec()];
    rows.extend(answer.iter().map(|&token| engine.decode(slot, token, &NEVER).unwrap().to_vec()));
    rows
}

#[track_caller]
fn near(got: &[Vec<f32>], expected: &[Vec<f64>]) {
    assert_eq!(got.len(), expected.len());
    for (got, expected) in got.iter().zip(expected) {
        let off = got.iter().zip(expected).map(|(&x, y)| (f64::from(x) - y).abs()).fold(0.0, f64::max);
        assert!(off < 2e-4, "{off}");
    }
}

fn equations(gpu_layers: i32) {
    let model = T5::new([3, 2]);
    let mut engine = open(&model.write(&fixture_folder()), 1, gpu_layers);
    for (i, (prompt, answer)) in [(1, 3), (7, 20), (64, 1), (65, 140), (200, 9)].into_iter().enumerate() {
        let (prompt, answer) = (text(prompt, i as u64), text(answer, 50 + i as u64));
        let got = rows(&mut engine, SlotId::default(), &prompt, &answer);
        near(&got, &model.logits(&prompt, &answer));
    }
}

#[test]
fn rows_are_those_of_the_equations() {
    equations(0);
}

#[test]
fn rows_are_those_of_the_equations_on_a_gpu() {
    if has_gpu() {
        [-1, 3].into_iter().for_each(equations);
    }
}

#[test]
fn an_answer_at_once_has_the_bits_of_its_tokens_one_by_one() {
    let mut engine = open(&T5::new([3, 2]).write(&fixture_folder()), 1, 0);
    let (slot, prompt, answer) = (SlotId::default(), text(40, 1), text(30, 2));
    let one_by_one = rows(&mut engine, slot, &prompt, &answer);
    for n in [1, 2, 17, 30] {
        engine.prefill(slot, &prompt, &NEVER).unwrap();
        assert_eq!(bits(engine.next_logits(slot, &answer[..n], &[], &NEVER).unwrap()), bits(&one_by_one[n]));
        assert_eq!(engine.tokens(slot), [&[BEGIN], &answer[..n]].concat());
    }
}

#[test]
fn the_same_prompt_is_read_once() {
    let mut engine = open(&T5::new([3, 2]).write(&fixture_folder()), 2, 0);
    let (prompt, answer) = (text(40, 1), text(5, 2));
    let slot = engine.slot_for(-1, &prompt).unwrap();
    let first = rows(&mut engine, slot, &prompt, &answer);
    assert!(engine.holds(-1, &prompt) && !engine.holds(-1, &prompt[..39]));
    assert_eq!(engine.slot_for(-1, &prompt).unwrap(), slot);
    let again = engine.prefill(slot, &prompt, &NEVER).unwrap();
    assert_eq!((again.tokens, again.reused, again.passes), (40, 40, 1));
    assert_eq!(rows(&mut engine, slot, &prompt, &answer), first);
    // One that begins with it is another one.
    let longer = [&prompt[..], &[7]].concat();
    assert_eq!(engine.prefill(slot, &longer, &NEVER).unwrap().reused, 0);
    assert!(!engine.holds(-1, &prompt));
}

#[test]
fn slots_answer_prompts_of_their_own() {
    let model = T5::new([3, 2]);
    let mut engine = open(&model.write(&fixture_folder()), 3, 0);
    let slots = [0, 1, 2].map(|number| engine.take_slot(number).unwrap());
    let prompts = [text(30, 1), text(50, 2), text(9, 3)];
    let answers = [text(6, 4), text(6, 5), text(6, 6)];
    for (&slot, prompt) in slots.iter().zip(&prompts) {
        engine.prefill(slot, prompt, &NEVER).unwrap();
    }
    let expected: Vec<_> = prompts.iter().zip(&answers).map(|(prompt, answer)| model.logits(prompt, answer)).collect();
    for at in 0..6 {
        let tokens: Vec<_> = slots
            .iter()
            .zip(&answers)
            .map(|(&slot, answer)| SlotToken { slot, token: answer[at], legal: None })
            .collect();
        let mut done = 0;
        engine
            .step(&tokens, &NEVER, &mut |i, outcome| {
                let Ok(SlotOutcome::Logits(row)) = outcome else { panic!("{outcome:?}") };
                near(&[row.to_vec()], &expected[i][at + 1..at + 2]);
                done += 1;
            })
            .unwrap();
        assert_eq!(done, slots.len());
    }
    // The cells of prompts are shared by all: the least recently used slot loses its prompt.
    engine.prefill(slots[2], &text(CONTEXT - 40, 9), &NEVER).unwrap();
    assert!(!engine.holds(0, &prompts[0]));
    let error = engine.decode(slots[0], 3, &NEVER).unwrap_err();
    assert!(matches!(&error, Error::InvalidArgument(why) if why.contains("no prompt")), "{error}");
    let again = rows(&mut engine, slots[0], &prompts[0], &answers[0]);
    near(&again, &expected[0]);
}

#[test]
fn leaves_score_as_alone() {
    compare_file(&T5::new([3, 2]).write(&fixture_folder()), KvType::F32, 0, 12);
}

/// With one block keys and values depend on no other token.
#[test]
fn tokens_can_be_removed_from_an_answer() {
    let model = T5::new([2, 1]);
    let mut engine = open(&model.write(&fixture_folder()), 1, 0);
    let (slot, prompt, answer) = (SlotId::default(), text(40, 1), text(60, 2));
    rows(&mut engine, slot, &prompt, &answer[..50]);
    engine.remove(slot, 3..20).unwrap();
    let left = [&answer[..2], &answer[19..]].concat();
    let got: Vec<_> = answer[50..].iter().map(|&token| engine.decode(slot, token, &NEVER).unwrap().to_vec()).collect();
    let expected = model.logits(&prompt, &left);
    near(&got, &expected[expected.len() - got.len()..]);
}

#[test]
fn what_cannot_be_is_refused_and_loses_nothing() {
    let mut engine = open(&T5::new([3, 2]).write(&fixture_folder()), 2, 0);
    let (slot, prompt, answer) = (engine.take_slot(0).unwrap(), text(20, 1), text(4, 2));
    let error = engine.append(slot, &[1], &NEVER).unwrap_err();
    assert!(matches!(&error, Error::InvalidArgument(why) if why.contains("no prompt")), "{error}");
    let first = rows(&mut engine, slot, &prompt, &answer);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("slot");
    let refused = [
        engine.embed(std::slice::from_ref(&prompt), &EmbedOptions::default(), &NEVER).unwrap_err(),
        engine.logits_all(&prompt, &NEVER, &mut |_, _| Ok(())).unwrap_err(),
        engine.save(slot, &path, &[], &NEVER).unwrap_err(),
    ];
    assert!(refused.iter().all(|error| matches!(error, Error::Unsupported(_))), "{refused:?}");
    let long = engine.prefill(slot, &text(CONTEXT + 1, 3), &NEVER).unwrap_err();
    assert!(matches!(&long, Error::OutOfMemory(why) if why.contains("257 tokens")), "{long}");
    assert_eq!(engine.prefill(slot, &prompt, &NEVER).unwrap().reused, 20, "all that was refused left the prompt");
    let cancelled = engine.prefill(slot, &text(30, 4), &AtomicBool::new(true)).unwrap_err();
    assert!(matches!(cancelled, Error::Cancelled));
    assert_eq!(rows(&mut engine, slot, &prompt, &answer), first);
    // A pinned slot keeps its prompt.
    engine.pin(1);
    let other = engine.take_slot(1).unwrap();
    let error = engine.prefill(other, &text(CONTEXT - 10, 5), &NEVER).unwrap_err();
    assert!(matches!(&error, Error::OutOfMemory(why) if why.contains("pinned")), "{error}");
    assert!(engine.holds(0, &prompt));
}

#[test]
fn a_session_answers_greedily() {
    let model = T5::new([3, 2]);
    let path = model.write(&fixture_folder());
    let session = Session::open(OpenOptions { path, ..OpenOptions::default() }).unwrap();
    let prompt = text(20, 1);
    let mut expected = Vec::new();
    for _ in 0..6 {
        let rows = model.logits(&prompt, &expected);
        let row = rows.last().unwrap();
        expected.push((0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap() as Token);
    }
    for _ in 0..2 {
        session.prefill(&prompt, -1).unwrap();
        session.generate(6, Some(0.0), None, Sink::Queue).unwrap();
        let mut got = Vec::new();
        let (mut tokens, mut bytes) = ([0; 8], [0; 64]);
        loop {
            let pull = session.next(None, &mut tokens, &mut bytes).unwrap();
            got.extend_from_slice(&tokens[..pull.tokens]);
            if pull.done {
                break;
            }
        }
        assert_eq!(got, expected);
    }
    assert_eq!(session.usage().prompt_tokens_reused, 20);
}
