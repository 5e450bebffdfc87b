//! The verdicts and masks of llama.cpp in the shared folder: `models/grammars/cases.json`.
//!
//! Two things differ on purpose. Characters are exactly those of UTF-8: llama.cpp also takes the bytes 0xF5 to 0xFF as
//! beginnings of characters, surrogates and overlong forms, and its negated classes refuse the first byte of a
//! character that they refuse only in part. And a reference to any token but one means all tokens, also those that are
//! no whole characters. Where a mask differs, exactly that must be the difference.

use crate::texts::{Pieces, of_cases};
use elizainference::grammar::{Grammar, GrammarOptions, GrammarState, Rules, Trigger};
use elizainference::vocab::Vocab;
use serde_json::Value;
use std::sync::Arc;

/// Verdicts of ours that are not llama.cpp's: accepted bytes, and whether the grammar may end there.
const DIFFERENT: &[(&str, (usize, bool))] = &[
    // The byte 0xFF begins no character.
    ("stray continuation byte", (0, false)),
    // A surrogate is no character.
    ("overlong and surrogate", (1, false)),
    // 0xC3 may become another character than é.
    ("negated class against a partial character", (2, true)),
    ("negated class against a partial character", (1, false)),
];

fn fnv(ids: impl Iterator<Item = u32>) -> (u64, String) {
    let (mut count, mut hash) = (0, 1_469_598_103_934_665_603u64);
    for id in ids {
        count += 1;
        for byte in id.to_le_bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(1_099_511_628_211);
        }
    }
    (count, format!("{hash:016x}"))
}

fn allowed(state: &mut GrammarState, n: usize) -> Vec<u32> {
    let mask = state.mask().unwrap();
    (0..n as u32).filter(|&id| mask.as_ref().is_none_or(|mask| mask.allows(id as i32))).collect()
}

fn text_of(test: &Value) -> Vec<u8> {
    match test["hex"].as_str() {
        Some(hex) => (0..hex.len() / 2).map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap()).collect(),
        None => test["text"].as_str().unwrap().as_bytes().to_vec(),
    }
}

fn grammar(case: &Value, vocab: &Arc<Vocab>) -> elizainference::Result<Arc<Grammar>> {
    let rules = Rules::parse(case["grammar"].as_str().unwrap(), case["root"].as_str().unwrap_or("root"))?;
    let patterns = case["lazy_patterns"].as_array().map(Vec::as_slice).unwrap_or_default();
    let triggers: Vec<Trigger> =
        patterns.iter().map(|pattern| Trigger::Pattern(pattern.as_str().unwrap().to_owned())).collect();
    let options = GrammarOptions { lazy: !triggers.is_empty(), triggers, ..GrammarOptions::default() };
    Grammar::new(rules, vocab, options)
}

/// The mask as llama.cpp has it, of ours.
fn with_deviations(allowed: &[u32], vocab: &Vocab, not_a_token: bool) -> Vec<u32> {
    let text = |id: u32| {
        let mut text = Vec::new();
        vocab.piece(id as i32, true, &mut text);
        text
    };
    if not_a_token {
        // There it is refused where it begins with no whole character, or holds a broken one.
        let is_refused = |id: u32| {
            let broken = std::str::from_utf8(&text(id)).err();
            broken.is_some_and(|error| error.valid_up_to() == 0 || error.error_len().is_some())
        };
        return allowed.iter().copied().filter(|&id| !is_refused(id)).collect();
    }
    let begins_nothing = (0..vocab.n_tokens() as u32).filter(|&id| matches!(text(id)[..], [0xF5..=0xFF]));
    let mut all: Vec<u32> = allowed.iter().copied().chain(begins_nothing).collect();
    all.sort_unstable();
    all.dedup();
    all
}

#[test]
fn verdicts_and_masks_are_those_of_llama_cpp() {
    let vocabularies = of_cases();
    let Some(shared) = crate::testing::shared() else { return };
    let json = std::fs::read(shared.join("models/grammars/cases.json")).unwrap();
    let cases: Value = serde_json::from_slice(&json).unwrap();
    let mut wrong = Vec::new();
    let (mut n_cases, mut n_masks, mut n_different) = (0, 0, 0);
    for case in cases["cases"].as_array().unwrap() {
        n_cases += 1;
        let name = case["name"].as_str().unwrap();
        for (label, vocab) in &vocabularies {
            let own = case["vocab"].as_str();
            if own.is_some_and(|own| own != label) {
                continue;
            }
            let compiled = grammar(case, vocab);
            let parses = case["parses"].as_bool().unwrap() || name == "underscore in name";
            if compiled.is_ok() != parses {
                wrong.push(format!("{name}: {:?}", compiled.err()));
                continue;
            }
            let Ok(compiled) = compiled else { continue };
            let pieces = own.map(|_| Pieces::of(vocab));
            for test in case["tests"].as_array().unwrap() {
                let text = text_of(test);
                let shown = format!("{name} ({label}) {:?}", String::from_utf8_lossy(&text));
                let mut state = GrammarState::new(compiled.clone());
                let ok = match &pieces {
                    Some(pieces) => pieces.feed(&mut state, &text),
                    None => state.advance_bytes(&text, &mut |_, _| {}),
                };
                let verdict = (ok, ok == text.len() && state.may_end());
                let wanted = (test["ok_bytes"].as_u64().unwrap() as usize, test["complete"].as_bool().unwrap());
                if verdict != wanted && !DIFFERENT.contains(&(name, verdict)) {
                    wrong.push(format!("{shown}: {verdict:?}, llama.cpp {wanted:?}"));
                }
                let Some(mask) = test["masks"].get(label).filter(|_| verdict == wanted) else { continue };
                if let Some(pieces) = &pieces {
                    // These masks were taken after the text as tokens of one byte.
                    state.rearm();
                    assert_eq!(pieces.feed_bytes(&mut state, &text), text.len(), "{shown}");
                }
                n_masks += 1;
                let allowed = allowed(&mut state, vocab.n_tokens());
                let same = |ids: &[u32]| {
                    let (count, hash) = fnv(ids.iter().copied());
                    (Some(count), Some(&hash[..])) == (mask["allowed"].as_u64(), mask["hash"].as_str())
                };
                if !same(&allowed) {
                    n_different += 1;
                    if !same(&with_deviations(&allowed, vocab, name == "not this token")) {
                        wrong.push(format!("{shown}: mask of {}, llama.cpp {mask}", allowed.len()));
                    }
                }
            }
        }
    }
    println!("{n_cases} cases, {n_masks} masks, {n_different} of them different as documented");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
