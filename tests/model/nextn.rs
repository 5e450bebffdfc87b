//! What predicts further tokens, against the slow forward pass.

use crate::testing::fixtures::{Kind, Weights};
use crate::testing::judge::{NEVER, tokens};
use crate::testing::reference::{Cache, EXACT, Reference, Rounding};
use crate::testing::stats::{distance, widen};
use crate::testing::{self, assistant, fixture};
use elizainference::engine::{Engine, EngineOptions, KvType, open_drafted_model, open_model};
use elizainference::gguf::File;
use std::path::Path;

/// What the block says after each token but the first, and then after each of `more`, with its own hidden rows; the
/// model reads the tokens in passes of so many.
fn said(path: &Path, kv_type: KvType, n_batch: u32, tokens: &[i32], more: &[i32]) -> Vec<Vec<f64>> {
    let options = EngineOptions { context: 128, slots: 1, threads: 2, kv_type, n_batch, ..EngineOptions::default() };
    let model = open_drafted_model(path, Some(path), &options, None).unwrap();
    let mut block = Engine::new(model.nextn().unwrap().clone(), &options).unwrap();
    let mut engine = Engine::new(model, &options).unwrap();
    engine.keep_hidden_rows().unwrap();
    let (slot, of_block) = (engine.take_slot(-1).unwrap(), block.take_slot(-1).unwrap());
    let (width, mut said) = (block.model().hparams().n_embd, Vec::new());
    for pass in tokens.chunks(n_batch as usize) {
        engine.append(slot, pass, &NEVER).unwrap();
        let kept = engine.hidden_rows().unwrap();
        assert_eq!((kept.tokens.as_slice(), kept.rows.len()), (pass, pass.len() * width));
        let next = &tokens[kept.first + 1..(kept.first + 1 + pass.len()).min(tokens.len())];
        // Half of the rows in one pass, the others one by one.
        let (first, rest) = next.split_at(next.len() / 2);
        let rows = |at: usize, n: usize| kept.rows[at * width..(at + n) * width].to_vec();
        if !first.is_empty() {
            block.put_hidden_rows(&rows(0, first.len())).unwrap();
            let mut all = vec![Vec::new(); first.len()];
            block.append(of_block, first, &NEVER).unwrap();
            block
                .last_logits(of_block, 1, &NEVER, &mut |row| {
                    all[first.len() - 1] = widen(row);
                    Ok(())
                })
                .unwrap();
            said.extend(all);
        }
        for (i, &token) in rest.iter().enumerate() {
            block.put_hidden_rows(&rows(first.len() + i, 1)).unwrap();
            said.push(widen(block.decode(of_block, token, &NEVER).unwrap()));
        }
    }
    for &token in more {
        said.push(widen(block.decode(of_block, token, &NEVER).unwrap()));
    }
    // The model's own logits are not touched.
    let last = widen(engine.head(slot).unwrap());
    let plain = open_model(path, &options, None).unwrap();
    let mut plain = Engine::new(plain, &options).unwrap();
    let slot = plain.take_slot(-1).unwrap();
    plain.append(slot, tokens, &NEVER).unwrap();
    assert_eq!(last, widen(plain.head(slot).unwrap()));
    said
}

#[test]
fn a_block_reads_the_hidden_rows_of_its_model() {
    let (text, more) = (tokens(40, "nextn"), tokens(5, "more"));
    for (weights, kv_type) in [(Weights::F32, KvType::F32), (Weights::Q8_0, KvType::F16), (Weights::Q4_K, KvType::F16)]
    {
        let path = fixture(Kind::Qwen35, weights);
        let reference = Reference::new(&File::open(&path).unwrap());
        let exact = reference.nextn(&text, &more, EXACT);
        let cache = [if kv_type == KvType::F32 { Cache::Exact } else { Cache::F16 }; 2];
        let rounded = reference.nextn(&text, &more, Rounding { activations: true, cache, gelu_table: false });
        for n_batch in [64, 16, 7] {
            let got = said(&path, kv_type, n_batch, &text, &more);
            assert_eq!(got.len(), exact.len());
            let there = |rows: &[Vec<f64>]| -> Vec<_> {
                rows.iter().zip(&got).filter(|(_, got)| !got.is_empty()).map(|(row, _)| row.clone()).collect()
            };
            let (got, exact, rounded) = (there(&got), there(&exact), there(&rounded));
            check(&format!("{weights:?}, passes of {n_batch}"), weights, &got, (&exact, &rounded));
        }
    }
}

/// With F32 throughout both compute the same; else a run may be as far from the exact one as roundings take it.
fn check(what: &str, weights: Weights, got: &[Vec<f64>], (exact, rounded): (&[Vec<f64>], &[Vec<f64>])) {
    let (is, may) = (distance(got, exact), distance(rounded, exact));
    println!("{what}: max {:.2e}, relative RMS {:.2e}, may {:.2e}", is.max, is.relative_rms, may.relative_rms);
    match weights {
        Weights::F32 if may.max == 0.0 => assert!(is.max < 5e-5, "{what}: {}", is.max),
        _ => assert!(is.relative_rms < 1.5 * may.relative_rms + 2e-5, "{what}: {}", is.relative_rms),
    }
}

/// What an attached draft model says after the first of `next`, and after each of the others.
fn assisted(path: &Path, draft: &Path, kv_type: KvType, n_batch: u32, tokens: &[i32], next: &[i32]) -> Vec<Vec<f64>> {
    let options = EngineOptions { context: 128, slots: 2, threads: 2, kv_type, n_batch, ..EngineOptions::default() };
    let open = |path: &Path| open_model(path, &options, None).unwrap();
    let mut engine = Engine::new(open(path), &options).unwrap();
    engine.attach(&open(draft)).unwrap();
    let slot = engine.take_slot(1).unwrap();
    // Tokens that are taken back leave nothing.
    engine.append(slot, &[tokens, &[9, 8, 7]].concat(), &NEVER).unwrap();
    engine.truncate(slot, tokens.len() - 1);
    engine.append(slot, &tokens[tokens.len() - 1..], &NEVER).unwrap();
    assert!(!engine.assist_from(slot, tokens) && !engine.assist_from(slot, &[tokens, next].concat()));
    let mut text = tokens.to_vec();
    text.push(next[0]);
    assert!(engine.assist_from(slot, &text));
    let said = next.iter().map(|&token| widen(engine.assist(slot, token, &NEVER).unwrap())).collect();
    // What the model itself says goes on as before.
    let after = engine.next_logits(slot, next, &[], &NEVER).unwrap().to_vec();
    let mut plain = Engine::new(open(path), &options).unwrap();
    let slot = plain.take_slot(0).unwrap();
    assert_eq!(after, plain.next_logits(slot, &[tokens, next].concat(), &[], &NEVER).unwrap());
    said
}

#[test]
fn a_draft_model_attends_to_the_keys_of_its_model() {
    let (text, next) = (tokens(40, "assisted"), tokens(4, "next"));
    let path = fixture(Kind::Gemma3, Weights::F32);
    let file = File::open(&path).unwrap();
    let (draft, oracle) = assistant::write(&testing::fixture_folder(), &file);
    let reference = Reference::new(&file);
    for (kv_type, cache) in [(KvType::F32, Cache::Exact), (KvType::F16, Cache::F16), (KvType::Q8_0, Cache::Q8_0)] {
        let rounding = Rounding { activations: true, cache: [cache; 2], gelu_table: false };
        for n in [1, 3, 16, 40] {
            let [exact, rounded] = [EXACT, rounding].map(|how| oracle.logits(&reference, how, &text[..n], &next));
            for n_batch in [64, 7] {
                let got = assisted(&path, &draft, kv_type, n_batch, &text[..n], &next);
                check(&format!("{kv_type:?}, {n} tokens"), Weights::F32, &got, (&exact, &rounded));
            }
        }
    }
}

#[test]
fn a_draft_model_of_another_model_is_refused() {
    let [path, wide] = [Weights::F32, Weights::WideF32].map(|weights| fixture(Kind::Gemma3, weights));
    let (draft, _) = assistant::write(&testing::fixture_folder(), &File::open(&wide).unwrap());
    let options = EngineOptions { context: 64, ..EngineOptions::default() };
    let open = |path: &Path| open_model(path, &options, None).unwrap();
    let refused = |path: &Path, part: &str| {
        let mut engine = Engine::new(open(path), &options).unwrap();
        let error = engine.attach(&open(&draft)).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
        // It answers as before.
        let slot = engine.take_slot(0).unwrap();
        engine.next_logits(slot, &[5, 6], &[], &NEVER).unwrap();
    };
    refused(&path, "hidden rows of 256 values, the model's have 64");
    refused(&fixture(Kind::Llama, Weights::WideF32), "no layer whose keys its layer 0 reads");
    let error = Engine::new(open(&draft), &options).err().unwrap().to_string();
    assert!(error.contains("`gemma4-assistant` is a draft model of another model"), "{error}");
}
