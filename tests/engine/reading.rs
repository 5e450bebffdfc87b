//! A prompt that is read in pieces of time, between the passes of other slots, is what it is in one pass, and so are
//! the others.

use crate::testing::fixture;
use crate::testing::fixtures::{Kind, Weights};
use crate::testing::judge::{NEVER, tokens};
use elizainference::engine::{self, Engine, EngineOptions, KvType, SlotId};
use elizainference::{Error, Token};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

fn open(kind: Kind, parallel: u32, kv_type: KvType) -> Engine {
    let path = fixture(kind, Weights::Q8_0);
    let options = EngineOptions { context: 512, slots: 3, parallel, threads: 2, kv_type, ..EngineOptions::default() };
    Engine::new(engine::open_model(&path, &options, None).unwrap(), &options).unwrap()
}

fn slots(engine: &mut Engine) -> [SlotId; 3] {
    [0, 1, 2].map(|i| engine.take_slot(i).unwrap())
}

fn bits(row: &[f32]) -> Vec<u32> {
    row.iter().map(|x| x.to_bits()).collect()
}

/// Reads tokens of a slot, one step of its passes at a time; `between` runs whenever a pass is left.
fn read(engine: &mut Engine, slot: SlotId, tokens: &[Token], mut between: impl FnMut(&mut Engine)) -> usize {
    let mut left = 0;
    for chunk in tokens.chunks(engine.most_read()) {
        while !engine.read(slot, chunk, Instant::now(), &NEVER).unwrap() {
            left += 1;
            between(engine);
        }
    }
    left
}

#[test]
fn a_prompt_in_pieces_between_others_is_the_prompt() {
    for (kind, kv_type) in [(Kind::Llama, KvType::F16), (Kind::Qwen3, KvType::Q8_0), (Kind::Gemma3, KvType::F16)] {
        let (prompt, text) = (tokens(200, "prompt"), tokens(400, "others"));
        let (mut alone, mut shared) = (open(kind, 1, kv_type), open(kind, 2, kv_type));
        let [a, b, c] = slots(&mut shared);
        assert!(shared.can_leave() && !alone.can_leave());
        let begin = 20;
        for engine in [&mut alone, &mut shared] {
            engine.prefill(b, &text[..begin], &NEVER).unwrap();
            // What the prompt begins with is another slot's.
            engine.prefill(c, &prompt[..30], &NEVER).unwrap();
            engine.prefill(a, &prompt[..37], &NEVER).unwrap();
        }
        let (mut at, mut rows) = (begin, Vec::new());
        let left = read(&mut shared, a, &prompt[37..199], |engine| {
            match at % 5 {
                // A pass that fails, and one that takes tokens back.
                0 => {
                    let cancelled = engine.append(b, &text[at..at + 3], &AtomicBool::new(true));
                    assert_eq!(cancelled, Err(Error::Cancelled));
                }
                1 => {
                    engine.append(c, &text[at..at + 40], &NEVER).unwrap();
                    engine.truncate(c, 30);
                }
                2 => engine.defragment().unwrap(),
                _ => {}
            }
            rows.push(bits(engine.decode(b, text[at], &NEVER).unwrap()));
            at += 1;
        });
        assert!(left > 10, "{kind:?}: left {left} times");
        let last = bits(shared.decode(a, prompt[199], &NEVER).unwrap());
        assert_eq!(shared.tokens(a), prompt);

        alone.append(a, &prompt[37..199], &NEVER).unwrap();
        assert!(bits(alone.decode(a, prompt[199], &NEVER).unwrap()) == last, "{kind:?}");
        for (i, row) in rows.iter().enumerate() {
            assert!(bits(alone.decode(b, text[begin + i], &NEVER).unwrap()) == *row, "{kind:?}, token {i}");
        }
        // All cells are there again.
        for engine in [&mut alone, &mut shared] {
            [a, b, c].into_iter().for_each(|slot| engine.truncate(slot, 0));
            engine.prefill(b, &text, &NEVER).unwrap();
        }
        assert!(bits(shared.head(b).unwrap()) == bits(alone.head(b).unwrap()), "{kind:?}");
    }
}

#[test]
fn a_pass_that_was_left_may_end() {
    let mut engine = open(Kind::Gemma3, 2, KvType::F16);
    let [a, b, _] = slots(&mut engine);
    let (prompt, soon) = (tokens(100, "prompt"), Instant::now());
    let now = |engine: &mut Engine| engine.read(a, &prompt, soon, &NEVER);
    assert_eq!(now(&mut engine), Ok(false));
    let other = engine.read(b, &prompt, soon, &NEVER).unwrap_err();
    assert!(other.to_string().contains("Slot 1 was to be read while slot 0 is"), "{other}");
    // By itself, by a cancel, and by an end.
    engine.stop_reading();
    assert!(engine.tokens(a).is_empty());
    assert_eq!(now(&mut engine), Ok(false));
    assert_eq!(engine.read(a, &prompt, soon, &AtomicBool::new(true)), Err(Error::Cancelled));
    assert!(engine.tokens(a).is_empty());
    assert_eq!(now(&mut engine), Ok(false));
    let later = soon + Duration::from_secs(3600);
    assert_eq!(engine.read(a, &prompt, later, &NEVER), Ok(true));
    assert_eq!(engine.tokens(a), prompt);
    let refused = engine.read(a, &tokens(200, "long"), soon, &NEVER).unwrap_err();
    assert!(matches!(refused, Error::InvalidArgument(_)), "{refused}");
    assert!(matches!(engine.read(a, &[999_999], soon, &NEVER), Err(Error::InvalidArgument(_))));
}
