//! Steps of several slots in one pass: each slot gets what it gets alone, whoever samples it, and loses nothing to the
//! errors of others.

use crate::testing::fixtures::{Kind, Weights};
use crate::testing::judge::{NEVER, tokens};
use crate::testing::{fixture, has_gpu};
use elizainference::backend::{ChainStep, SampleSpec};
use elizainference::engine::{self, Engine, EngineOptions, SlotId, SlotOutcome, SlotToken};
use elizainference::sampling::{Chain, Sampler};
use elizainference::{Error, Token};
use std::sync::atomic::AtomicBool;

fn open(slots: u32, context: u32, gpu_layers: i32) -> Engine {
    let path = fixture(Kind::Llama, Weights::Q8_0);
    let options = EngineOptions { context, slots, gpu_layers, threads: 2, ..EngineOptions::default() };
    Engine::new(engine::open_model(&path, &options, None).unwrap(), &options).unwrap()
}

fn turn(slot: SlotId, token: Token) -> SlotToken<'static> {
    SlotToken { slot, token, legal: None }
}

fn bits(row: &[f32]) -> Vec<u32> {
    row.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn logits_of_a_step_are_the_bits_of_single_decodes() {
    // More slots than one pass takes.
    let mut together = open(11, 0, 0);
    // The same slots one after the other, which gives all of them the same cells.
    let mut alone = open(11, 0, 0);
    let text: Vec<Vec<Token>> = (0..11).map(|i| tokens(9 + 5 * i, &format!("slot {i}"))).collect();
    let slots: Vec<SlotId> = (0..11).map(|i| together.take_slot(i).unwrap()).collect();
    for (slot, text) in slots.iter().zip(&text) {
        together.prefill(*slot, &text[..text.len() - 5], &NEVER).unwrap();
        alone.prefill(*slot, &text[..text.len() - 5], &NEVER).unwrap();
    }
    for back in (1..=5).rev() {
        let turns: Vec<_> = slots.iter().zip(&text).map(|(slot, text)| turn(*slot, text[text.len() - back])).collect();
        let mut found = vec![Vec::new(); 11];
        let mut hear = |i: usize, outcome: elizainference::Result<SlotOutcome<'_>>| match outcome.unwrap() {
            SlotOutcome::Logits(row) => found[i] = bits(row),
            other => panic!("{other:?}"),
        };
        together.step(&turns, &NEVER, &mut hear).unwrap();
        for (turn, found) in turns.iter().zip(&found) {
            assert!(bits(alone.decode(turn.slot, turn.token, &NEVER).unwrap()) == *found);
        }
    }
}

#[test]
fn a_step_that_fails_changes_no_slot() {
    let mut engine = open(3, 64, 0);
    let slots = [0, 1, 2].map(|i| engine.take_slot(i).unwrap());
    let texts = [tokens(30, "failing"), tokens(33, "other")];
    engine.prefill(slots[0], &texts[0], &NEVER).unwrap();
    engine.prefill(slots[1], &texts[1], &NEVER).unwrap();
    let both = |token| [turn(slots[0], token), turn(slots[1], token)];
    let nothing =
        &mut |_: usize, _: elizainference::Result<SlotOutcome<'_>>| panic!("an outcome of a step that failed");

    let wrong = engine.step(&[turn(slots[0], 1), turn(slots[0], 2)], &NEVER, nothing);
    assert!(matches!(&wrong, Err(Error::InvalidArgument(problem)) if problem.contains("Slot 0")), "{wrong:?}");
    let wrong = engine.step(&[turn(slots[0], 1), turn(slots[1], 512)], &NEVER, nothing);
    assert!(matches!(&wrong, Err(Error::InvalidArgument(problem)) if problem.contains("512")), "{wrong:?}");
    // One cell is left for two tokens, and neither slot may be evicted for the other.
    let full = engine.step(&both(3), &NEVER, nothing);
    assert!(matches!(&full, Err(Error::OutOfMemory(problem)) if problem.contains("64")), "{full:?}");
    assert_eq!(slots.map(|slot| engine.position(slot)), [30, 33, 0]);

    engine.truncate(slots[1], 32);
    let cancelled = AtomicBool::new(true);
    assert_eq!(engine.step(&both(3), &cancelled, nothing), Err(Error::Cancelled));
    assert_eq!(slots.map(|slot| engine.position(slot)), [30, 32, 0]);

    let mut rows = Vec::new();
    let mut hear = |_: usize, outcome: elizainference::Result<SlotOutcome<'_>>| match outcome.unwrap() {
        SlotOutcome::Logits(row) => rows.push(bits(row)),
        other => panic!("{other:?}"),
    };
    engine.step(&both(32), &NEVER, &mut hear).unwrap();
    let mut alone = open(3, 64, 0);
    for (slot, prompt) in slots.into_iter().zip([&texts[0], &texts[1][..32]]) {
        alone.prefill(slot, prompt, &NEVER).unwrap();
    }
    for (slot, row) in slots.into_iter().zip(rows) {
        assert!(bits(alone.decode(slot, 32, &NEVER).unwrap()) == row);
    }
}

/// Chains of four sequences, with seeds of their own. No device looks back on 2000 tokens, so of the third one it
/// follows two steps (the mask's place and top-k) and leaves the rest to the host.
const CHAINS: [&str; 4] = [
    "top_k=40;top_p=0.95;min_p=0.05;temp=0.9",
    "penalties=32,1.3,0.1,0.1;temp=1.2",
    "top_k=30;penalties=2000,1.3,0.1,0.2;top_p=0.9;temp=0.9",
    "greedy",
];
const STEPS: usize = 18;

fn chain(sequence: usize) -> Sampler {
    Sampler::new(&CHAINS[sequence].parse::<Chain>().unwrap(), 512, 7 + sequence as u64).unwrap()
}

/// Every sequence alone, sampled on the host.
fn single_runs(gpu_layers: i32, prompts: &[Vec<Token>; 4]) -> [Vec<Token>; 4] {
    let mut engine = open(1, 0, gpu_layers);
    let slot = engine.take_slot(0).unwrap();
    [0, 1, 2, 3].map(|i| {
        let mut sampler = chain(i);
        prompts[i].iter().for_each(|&token| sampler.accept(token));
        engine.truncate(slot, 0);
        engine.prefill(slot, &prompts[i], &NEVER).unwrap();
        let mut position = prompts[i].len() as u32;
        let mut token = sampler.sample(engine.head(slot).unwrap(), None, &[], position).unwrap();
        let mut run = vec![token];
        for _ in 0..STEPS {
            position += 1;
            sampler.accept(token);
            token = sampler.sample(engine.decode(slot, token, &NEVER).unwrap(), None, &[], position).unwrap();
            run.push(token);
        }
        run
    })
}

/// Whether the device samples a sequence in a step: two always do, and every few steps others.
fn on_device(step: usize, sequence: usize) -> bool {
    (sequence + step / 5) % 4 < 2
}

#[test]
fn sequences_sampled_here_and_there_are_their_single_runs() {
    if !has_gpu() {
        return;
    }
    let prompts = [0, 1, 2, 3].map(|i| tokens(6 + 3 * i, &format!("sequence {i}")));
    let expected = single_runs(-1, &prompts);
    let mut engine = open(4, 0, -1);
    let mut samplers = [0, 1, 2, 3].map(chain);
    let slots = [0, 1, 2, 3].map(|i| engine.take_slot(i).unwrap());
    let mut run: [Vec<Token>; 4] = Default::default();
    for i in 0..4 {
        prompts[i].iter().for_each(|&token| samplers[i].accept(token));
        engine.prefill(slots[i], &prompts[i], &NEVER).unwrap();
        let position = prompts[i].len() as u32;
        let token = samplers[i].sample(engine.head(slots[i]).unwrap(), None, &[], position).unwrap();
        run[i].push(token);
    }
    let far = ChainStep::Penalties { last_n: i32::MAX, repeat: 1.1, frequency: 0.0, presence: 0.0 };
    let far = SampleSpec { steps: vec![far], ..SampleSpec::default() };
    let before = engine.stats().traffic;
    for step in 0..STEPS {
        let last = [0, 1, 2, 3].map(|i| run[i][step]);
        for i in 0..4 {
            samplers[i].accept(last[i]);
            match (on_device(step, i), step > 0 && on_device(step - 1, i)) {
                (true, false) => {
                    let spec = samplers[i].spec(&[]);
                    let followed = engine.start_sampling(slots[i], &spec).unwrap();
                    assert_eq!(followed, if i == 2 { 2 } else { spec.steps.len() });
                }
                // A chain that no device follows leaves the slot to the host.
                (false, true) => assert_eq!(engine.start_sampling(slots[i], &far).unwrap(), 0),
                _ => {}
            }
        }
        let turns = [0, 1, 2, 3].map(|i| turn(slots[i], last[i]));
        let mut next = [-1; 4];
        let mut hear = |i: usize, outcome: elizainference::Result<SlotOutcome<'_>>| {
            let sampled = matches!(outcome, Ok(SlotOutcome::Sampled(..)));
            assert_eq!(sampled, on_device(step, i), "sequence {i}, step {step}");
            let position = (prompts[i].len() + step + 1) as u32;
            next[i] = match outcome.unwrap() {
                SlotOutcome::Sampled(result, candidates) if i == 2 => {
                    assert_eq!((result.token, candidates.len()), (-1, 30));
                    let handed = candidates.iter().map(|&(token, logit, _)| (token, logit));
                    samplers[i].resume(3, handed, None, position).unwrap()
                }
                SlotOutcome::Sampled(result, _) => result.token,
                SlotOutcome::Logits(row) => samplers[i].sample(row, None, &[], position).unwrap(),
            };
        };
        engine.step(&turns, &NEVER, &mut hear).unwrap();
        next.iter().zip(&mut run).for_each(|(token, run)| run.push(*token));
    }
    assert_eq!(run, expected);
    let traffic = engine.stats().traffic - before;
    // The step itself, and the copy of those rows that the host samples.
    assert_eq!((traffic.submissions, traffic.waits), (2 * STEPS as u64, 2 * STEPS as u64), "{traffic:?}");
}
