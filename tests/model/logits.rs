//! The engine's logits against the slow forward pass, on the fixture models.
//!
//! With F32 weights and an F32 cache both compute the same thing, and only the order of additions sets them apart: one
//! small bound holds. Everywhere else the engine may round, and the bound is what rounding costs: the slow forward pass
//! is run once more with activations and cache rounded as the formats invite, and the engine must be about as close to
//! the exact logits as that run is.

use crate::testing;
use crate::testing::fixture;
use crate::testing::fixtures::{Kind, Weights};
use crate::testing::judge::{Judge, Kv, NEVER, all_rows, open, prefill_and_decode, tokens};
use crate::testing::rng::Stream;
use crate::testing::stats::widen;
use elizainference::Error;
use elizainference::engine::{self, Engine, EngineOptions, KvType};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// Prompt lengths: one row, an odd bucket, a full one, and more than one chunk of cache cells.
const PROMPTS: [usize; 4] = [1, 7, 64, 300];
/// Tokens decoded one at a time after each prompt.
const DECODED: usize = 8;

/// Every prompt length with decoding after it, each in a slot of its own, and every position at once.
fn check_model(kind: Kind, weights: Weights, kv: impl Into<Kv>) {
    check_prompts(kind, weights, kv, &PROMPTS);
}

fn check_prompts(kind: Kind, weights: Weights, kv: impl Into<Kv>, prompts: &[usize]) {
    let kv = kv.into();
    let longest = prompts[prompts.len() - 1] + DECODED;
    let judge = Judge::new(kind, weights, kv, tokens(longest, "prompts"));
    for threads in [1, 2] {
        let mut engine = open(&fixture(kind, weights), kv, threads, 1);
        for &prompt in prompts {
            let slot = engine.take_slot(-1).unwrap();
            let rows = prefill_and_decode(&mut engine, slot, &judge.tokens, prompt, DECODED);
            let what = format!("{threads} threads, prompt {prompt} + {DECODED}");
            judge.check(&what, prompt - 1..prompt + DECODED, &rows);
            engine.truncate(slot, 0);
        }
    }
    let mut engine = open(&fixture(kind, weights), kv, 1, 1);
    judge.check("every position", 0..longest, &all_rows(&mut engine, &judge.tokens));
}

#[test]
fn f32_weights_with_every_cache() {
    for kind in [Kind::Llama, Kind::Qwen3, Kind::Gemma3] {
        for kv_type in [KvType::F32, KvType::F16] {
            check_model(kind, Weights::F32, kv_type);
        }
    }
    // An 8-bit cache wants heads of a whole number of 32-wide blocks.
    for (kind, weights) in [(Kind::Llama, Weights::WideF32), (Kind::Qwen3, Weights::F32), (Kind::Gemma3, Weights::F32)]
    {
        check_model(kind, weights, KvType::Q8_0);
    }
}

#[test]
fn keys_and_values_in_a_type_each() {
    for k in KvType::ALL {
        for v in KvType::ALL.into_iter().filter(|v| *v != k) {
            check_prompts(Kind::Llama, Weights::WideF32, Kv(k, v), &PROMPTS[..3]);
            check_prompts(Kind::Gemma3, Weights::F32, Kv(k, v), &PROMPTS[..3]);
        }
    }
}

/// The rows of the last positions, as [`Engine::last_logits`] gives them.
fn last_rows(engine: &mut Engine, slot: engine::SlotId, n: usize) -> elizainference::Result<Vec<Vec<f32>>> {
    let mut rows = Vec::new();
    let done = engine.last_logits(slot, n, &NEVER, &mut |row| {
        rows.push(row.to_vec());
        Ok(())
    });
    done.map(|()| rows)
}

fn with_batch(path: &Path, n_batch: u32) -> Engine {
    let options = EngineOptions { n_batch, context: 256, threads: 2, slots: 2, ..EngineOptions::default() };
    Engine::new(engine::open_model(path, &options, None).unwrap(), &options).unwrap()
}

#[test]
fn passes_of_any_size_give_the_same_bits() {
    for (kind, weights) in [(Kind::Llama, Weights::Q8_0), (Kind::Gemma3, Weights::F32), (Kind::Qwen3, Weights::Q4_K)] {
        let tokens = tokens(150, "passes");
        let run = |n_batch: u32| {
            let mut engine = with_batch(&fixture(kind, weights), n_batch);
            let slot = engine.take_slot(0).unwrap();
            let done = engine.prefill(slot, &tokens, &NEVER).unwrap();
            assert_eq!(done.passes, tokens.len().div_ceil(engine.batch()), "{n_batch}");
            let mut rows = last_rows(&mut engine, slot, 40).unwrap();
            rows.push(engine.head(slot).unwrap().to_vec());
            // Taking tokens out of the middle runs in pieces of a pass as well.
            engine.remove(slot, 5..30).unwrap();
            rows.push(engine.decode(slot, 9, &NEVER).unwrap().to_vec());
            rows
        };
        let whole = run(0);
        for n_batch in [1, 2, 3, 7, 8, 64, 100, 511, 512] {
            assert!(run(n_batch) == whole, "{kind:?} {weights:?}: passes of {n_batch}");
        }
    }
    let options = EngineOptions { n_batch: 513, ..EngineOptions::default() };
    let model = engine::open_model(&fixture(Kind::Llama, Weights::F32), &EngineOptions::default(), None).unwrap();
    let error = Engine::new(model, &options).map(drop).unwrap_err().to_string();
    assert!(error.contains("n_batch is 513 (1 to 512 are possible)"), "{error}");
}

#[test]
fn last_positions_have_the_logits_of_a_prompt_that_ends_there() {
    for (kind, weights) in [(Kind::Llama, Weights::F32), (Kind::Gemma3, Weights::F16), (Kind::Qwen3, Weights::Q4_0)] {
        let (tokens, other) = (tokens(70, "last"), tokens(30, "other"));
        let mut engine = with_batch(&fixture(kind, weights), 16);
        let slots = [0, 1].map(|i| engine.take_slot(i).unwrap());
        engine.prefill(slots[1], &other, &NEVER).unwrap();
        engine.prefill(slots[0], &tokens, &NEVER).unwrap();
        let next = engine.decode(slots[0], 7, &NEVER).unwrap().to_vec();
        engine.prefill(slots[0], &tokens, &NEVER).unwrap();
        let before = engine.head(slots[0]).unwrap().to_vec();
        for n in [1, 2, 15, 16, 17, 70] {
            let rows = last_rows(&mut engine, slots[0], n).unwrap();
            assert_eq!((rows.len(), engine.position(slots[0])), (n, 70));
            for (i, row) in rows.iter().enumerate() {
                let mut alone = with_batch(&fixture(kind, weights), 0);
                let slot = alone.take_slot(0).unwrap();
                alone.prefill(slot, &tokens[..70 - n + 1 + i], &NEVER).unwrap();
                assert!(row == alone.head(slot).unwrap(), "{kind:?} {weights:?}: row {i} of {n}");
            }
            assert!(engine.head(slots[0]).unwrap() == before, "{kind:?} {weights:?}: the last row, behind {n}");
        }
        // As if nothing had happened, and the other slot was not touched.
        assert!(engine.decode(slots[0], 7, &NEVER).unwrap() == next, "{kind:?} {weights:?}");
        assert_eq!(engine.tokens(slots[1]), other);
    }
}

#[test]
fn last_positions_that_cannot_be_had_change_nothing() {
    let tokens = tokens(256, "last");
    let mut engine = with_batch(&fixture(Kind::Llama, Weights::F32), 32);
    let slot = engine.take_slot(0).unwrap();
    let error = |engine: &mut Engine, n| last_rows(engine, slot, n).unwrap_err();
    assert!(matches!(error(&mut engine, 1), Error::InvalidArgument(_)), "nothing was evaluated");
    // A context that is full to the last cell has room for nothing, and nothing is needed.
    engine.prefill(slot, &tokens, &NEVER).unwrap();
    let whole = last_rows(&mut engine, slot, 256).unwrap();
    for n in [0, 257] {
        assert!(matches!(error(&mut engine, n), Error::InvalidArgument(_)), "{n}");
    }
    let stopped = engine.last_logits(slot, 100, &AtomicBool::new(true), &mut |_| Ok(())).unwrap_err();
    assert_eq!(stopped, Error::Cancelled);
    // From the second pass on.
    let (cancel, mut rows) = (AtomicBool::new(false), 0);
    let stopped = engine.last_logits(slot, 100, &cancel, &mut |_| {
        rows += 1;
        cancel.store(rows == 40, Ordering::Relaxed);
        Ok(())
    });
    assert_eq!(stopped, Err(Error::Cancelled));
    assert!(rows < 100, "{rows}");
    let failed = engine.last_logits(slot, 3, &NEVER, &mut |_| Err(Error::Internal("enough".into())));
    assert_eq!(failed, Err(Error::Internal("enough".into())));
    assert!(last_rows(&mut engine, slot, 256).unwrap() == whole);
    // Tokens after a gap were computed after more tokens than are left.
    engine.remove(slot, 10..20).unwrap();
    engine.decode(slot, 3, &NEVER).unwrap();
    let row = engine.head(slot).unwrap().to_vec();
    assert_eq!(last_rows(&mut engine, slot, 1).unwrap(), [row]);
    let told = error(&mut engine, 2).to_string();
    assert!(told.contains("a gap at 10"), "{told}");
}

fn check_trained(name: &str, path: &Path, f32_weights: bool) {
    for kv_type in [KvType::F32, KvType::F16] {
        let judge = Judge::of(name, path, f32_weights, kv_type, tokens(300, name));
        let mut engine = open(path, kv_type, 2, 1);
        judge.check("every position", 0..300, &all_rows(&mut engine, &judge.tokens));
        let slot = engine.take_slot(-1).unwrap();
        let rows = prefill_and_decode(&mut engine, slot, &judge.tokens, 200, 40);
        judge.check("prompt 200 + 40", 199..240, &rows);
    }
}

#[test]
fn trained_models() {
    check_trained("demo", &testing::demo(), false);
    if let Some(path) = testing::stories260k() {
        check_trained("stories260k", &path, true);
    }
}

#[test]
fn the_less_common_parts_of_the_architectures() {
    for kind in [Kind::LlamaExtras, Kind::LlamaYarn, Kind::Gemma3Capped] {
        check_model(kind, Weights::F32, KvType::F32);
    }
    check_model(Kind::LlamaExtras, Weights::Q8_0, KvType::F16);
}

#[test]
fn blocks_of_32_and_half_precision() {
    for kind in [Kind::Llama, Kind::Qwen3, Kind::Gemma3] {
        for weights in [Weights::F16, Weights::Q8_0, Weights::Q4_0] {
            check_model(kind, weights, KvType::F16);
        }
        check_model(kind, Weights::Q8_0, KvType::F32);
    }
}

#[test]
fn blocks_of_256() {
    for kind in [Kind::Llama, Kind::Qwen3, Kind::Gemma3] {
        for weights in [Weights::Q4_K, Weights::Q6_K] {
            // Wider models make the slow pass slow: the long prompt is left to the others.
            check_prompts(kind, weights, KvType::F16, &PROMPTS[..3]);
        }
    }
}

/// What a constrained span relies on: a row's logits are the same bits, alone or in a batch, on one thread or three.
#[test]
fn a_row_is_the_same_bits_however_it_was_batched() {
    for kind in [Kind::Llama, Kind::Qwen3, Kind::Gemma3] {
        for weights in [Weights::F32, Weights::F16, Weights::Q8_0, Weights::Q4_K] {
            let tokens = tokens(45, "batches");
            let path = fixture(kind, weights);
            let mut engine = open(&path, KvType::F16, 1, 2);
            let together = all_rows(&mut engine, &tokens);
            for (prompt, threads) in [(1, 1), (7, 1), (20, 3)] {
                let mut engine = open(&path, KvType::F16, threads, 2);
                let slot = engine.take_slot(0).unwrap();
                let alone = prefill_and_decode(&mut engine, slot, &tokens, prompt, tokens.len() - prompt);
                for (i, row) in alone.iter().enumerate() {
                    let place = prompt - 1 + i;
                    assert!(*row == together[place], "{kind:?} {weights:?}: position {place}, prompt of {prompt}");
                }
            }
        }
    }
}

#[test]
fn a_reused_prefix_changes_nothing() {
    for (kind, weights) in [(Kind::Llama, Weights::F32), (Kind::Gemma3, Weights::F32), (Kind::Qwen3, Weights::Q8_0)] {
        let first = tokens(90, "first");
        let mut second = first.clone();
        second.truncate(61);
        second.extend(tokens(40, "second"));
        let judge = Judge::new(kind, weights, KvType::F32, second);
        let mut engine = open(&fixture(kind, weights), KvType::F32, 1, 1);
        let slot = engine.take_slot(0).unwrap();
        engine.prefill(slot, &first, &NEVER).unwrap();
        let done = engine.prefill(slot, &judge.tokens[..97], &NEVER).unwrap();
        assert_eq!((done.tokens, done.reused), (97, 61));
        let mut rows = vec![widen(engine.head(slot).unwrap())];
        for &token in &judge.tokens[97..] {
            rows.push(widen(engine.decode(slot, token, &NEVER).unwrap()));
        }
        judge.check("61 tokens reused", 96..101, &rows);

        // The very same prompt again, and a shorter one: the last position is there, but its logits are asked for.
        for prompt in [101, 50] {
            let done = engine.prefill(slot, &judge.tokens[..prompt], &NEVER).unwrap();
            assert_eq!((done.tokens, done.passes), (prompt, 1));
            let row = widen(engine.head(slot).unwrap());
            judge.check("the same prompt again", prompt - 1..prompt, &[row]);
        }
    }
}

#[test]
fn what_follows_a_truncation_is_as_if_the_tail_had_never_been() {
    for (kind, weights) in [(Kind::Llama, Weights::F32), (Kind::Gemma3, Weights::F32), (Kind::Qwen3, Weights::Q8_0)] {
        let kept = tokens(40, "kept");
        let whole: Vec<i32> = kept.iter().copied().chain(tokens(30, "after")).collect();
        let judge = Judge::new(kind, weights, KvType::F32, whole);
        let mut engine = open(&fixture(kind, weights), KvType::F32, 1, 1);
        let slot = engine.take_slot(0).unwrap();
        let dropped: Vec<i32> = kept.iter().copied().chain(tokens(24, "dropped")).collect();
        prefill_and_decode(&mut engine, slot, &dropped, 50, 14);
        engine.truncate(slot, 40);
        assert_eq!(engine.tokens(slot), &kept[..]);
        assert_eq!(engine.position(slot), 40);
        engine.append(slot, &judge.tokens[40..60], &NEVER).unwrap();
        let mut rows = vec![widen(engine.head(slot).unwrap())];
        for &token in &judge.tokens[60..] {
            rows.push(widen(engine.decode(slot, token, &NEVER).unwrap()));
        }
        judge.check("after a truncation", 59..70, &rows);
    }
}

#[test]
fn two_slots_do_not_disturb_each_other() {
    for (kind, weights) in [(Kind::Llama, Weights::F32), (Kind::Gemma3, Weights::F32), (Kind::Qwen3, Weights::Q8_0)] {
        let judges = ["left", "right"].map(|side| Judge::new(kind, weights, KvType::F32, tokens(60, side)));
        let mut engine = open(&fixture(kind, weights), KvType::F32, 1, 2);
        let slots = [engine.take_slot(0).unwrap(), engine.take_slot(1).unwrap()];
        let prompts = [33, 20];
        let mut rows = [Vec::new(), Vec::new()];
        for side in 0..2 {
            engine.prefill(slots[side], &judges[side].tokens[..prompts[side]], &NEVER).unwrap();
            rows[side].push(widen(engine.head(slots[side]).unwrap()));
        }
        for step in 0..27 {
            // A tail that one slot drops again leaves holes that the other one fills.
            if step == 9 {
                engine.append(slots[0], &tokens(11, "hole"), &NEVER).unwrap();
                engine.truncate(slots[0], prompts[0] + step);
            }
            for side in 0..2 {
                let token = judges[side].tokens[prompts[side] + step];
                rows[side].push(widen(engine.decode(slots[side], token, &NEVER).unwrap()));
            }
        }
        for side in 0..2 {
            let first = prompts[side] - 1;
            judges[side].check("beside another slot", first..first + rows[side].len(), &rows[side]);
        }
    }
}

#[test]
fn a_cancelled_prefill_keeps_what_it_evaluated_and_can_go_on() {
    let judge = Judge::new(Kind::Llama, Weights::F32, KvType::F32, tokens(1000, "cancelled"));
    let mut engine = open(&fixture(Kind::Llama, Weights::F32), KvType::F32, 1, 1);
    let slot = engine.take_slot(0).unwrap();
    // A cancel that is there from the start, and cancels that fall anywhere inside.
    let mut cancelled = 0;
    for delay in [None, Some(0), Some(200), Some(1_000), Some(3_000), Some(9_000), Some(20_000)] {
        engine.truncate(slot, 0);
        let cancel = AtomicBool::new(delay.is_none());
        let result = std::thread::scope(|scope| {
            if let Some(micros) = delay {
                let cancel = &cancel;
                scope.spawn(move || {
                    std::thread::sleep(std::time::Duration::from_micros(micros));
                    cancel.store(true, Ordering::Relaxed);
                });
            }
            engine.prefill(slot, &judge.tokens[..990], &cancel)
        });
        match result {
            Err(Error::Cancelled) => cancelled += 1,
            Err(other) => panic!("{other}"),
            Ok(done) => assert_eq!(done.tokens, 990),
        }
        let kept = engine.position(slot);
        assert_eq!(engine.tokens(slot), &judge.tokens[..kept]);
        let done = engine.prefill(slot, &judge.tokens[..990], &NEVER).unwrap();
        assert_eq!(done.reused, kept.min(989));
        let mut rows = vec![widen(engine.head(slot).unwrap())];
        for &token in &judge.tokens[990..] {
            rows.push(widen(engine.decode(slot, token, &NEVER).unwrap()));
        }
        judge.check(&format!("cancelled after {delay:?} us with {kept} tokens kept"), 989..1000, &rows);
    }
    assert!(cancelled >= 1, "no prefill was cancelled");
}

/// Threads must agree where a cancelled pass ends: one that left a step before the others would let them wait for ever.
#[test]
fn a_cancel_at_any_moment_ends_the_prefill_on_every_thread() {
    let (done, wait) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let tokens = tokens(400, "any moment");
        let moments = Stream::new(5, "moments");
        for threads in [2, 3] {
            let mut engine = open(&fixture(Kind::Llama, Weights::Q8_0), KvType::F16, threads, 1);
            let slot = engine.take_slot(0).unwrap();
            let start = std::time::Instant::now();
            engine.prefill(slot, &tokens, &NEVER).unwrap();
            let whole = start.elapsed().as_nanos() as u64;
            for round in 0..200 {
                engine.truncate(slot, 0);
                let cancel = AtomicBool::new(false);
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        let moment = std::time::Duration::from_nanos(moments.below(round, whole));
                        std::thread::sleep(moment);
                        cancel.store(true, Ordering::Relaxed);
                    });
                    match engine.prefill(slot, &tokens, &cancel) {
                        Ok(_) | Err(Error::Cancelled) => {}
                        Err(other) => panic!("{other}"),
                    }
                });
            }
        }
        done.send(()).unwrap();
    });
    wait.recv_timeout(std::time::Duration::from_secs(300)).expect("a cancelled prefill did not end");
}

#[test]
fn a_full_context_is_an_error_that_changes_nothing() {
    let judge = Judge::new(Kind::Llama, Weights::F32, KvType::F32, tokens(64, "full"));
    let options = EngineOptions { context: 64, kv_type: KvType::F32, threads: 1, slots: 1, ..EngineOptions::default() };
    let model = engine::open_model(&fixture(Kind::Llama, Weights::F32), &options, None).unwrap();
    let mut engine = Engine::new(model, &options).unwrap();
    let slot = engine.take_slot(0).unwrap();
    let rows = prefill_and_decode(&mut engine, slot, &judge.tokens, 60, 4);
    judge.check("up to the last cell", 59..64, &rows);
    assert_eq!(engine.room(slot), 0);
    assert!(matches!(engine.decode(slot, 5, &NEVER), Err(Error::OutOfMemory(_))));
    assert_eq!(engine.tokens(slot), &judge.tokens[..]);
    engine.truncate(slot, 63);
    let row = widen(engine.decode(slot, judge.tokens[63], &NEVER).unwrap());
    judge.check("after the refusal", 63..64, &[row]);
}

/// Long random comparisons over more sequences, for `make deep`.
#[test]
#[ignore = "long: part of make deep"]
fn many_random_sequences() {
    for kind in Kind::ALL {
        for weights in Weights::ALL {
            if matches!(kind, Kind::LlamaExtras | Kind::LlamaYarn | Kind::LlamaShallow | Kind::Gemma3Capped)
                && weights != Weights::Q8_0
            {
                continue;
            }
            for round in 0..6 {
                let stream = Stream::new(round, "lengths");
                let prompt = 1 + stream.below(0, 700) as usize;
                let judge = Judge::new(kind, weights, KvType::F16, tokens(prompt + 40, &format!("{kind:?} {round}")));
                let mut engine = open(&fixture(kind, weights), KvType::F16, 2, 1);
                let slot = engine.take_slot(0).unwrap();
                let rows = prefill_and_decode(&mut engine, slot, &judge.tokens, prompt, 40);
                judge.check(&format!("prompt {prompt} + 40"), prompt - 1..prompt + 40, &rows);
            }
        }
    }
}
