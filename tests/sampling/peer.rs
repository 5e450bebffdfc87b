//! Chains over whole vocabularies against llama.cpp's samplers on the same logits: the same candidates, and with its
//! generator the same tokens.
//!
//! On request (`cargo test --release --test sampling peer:: -- --ignored`): `ELIZA_PEER` names a program with the
//! command `sampler_values --model M --lines F`, where a line is `chain | logits | accepted tokens | calls`.

use super::golden::{Chain, number, tokens};
use crate::testing::random_text::Random;
use crate::testing::{peer, real_vocabularies};
use elizainference::Token;
use elizainference::gguf::File;
use elizainference::sampling::MAX_KEPT_CANDIDATES;
use elizainference::vocab::Vocab;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

/// The best candidates that are compared.
const KEPT: usize = MAX_KEPT_CANDIDATES;

/// Vocabularies of 32,000, 128,256, 151,936 and 262,144 tokens.
const VOCABULARIES: [&str; 4] = ["llama-spm", "llama-bpe", "qwen2", "gemma-4"];

/// Truncations, penalties and temperatures; `N` is the size of the vocabulary, `S` a seed.
const CHAINS: [&str; 30] = [
    "top_k 40",
    "top_k 1",
    "top_k 3000",
    "top_p .95 1",
    "top_p .5 1",
    "top_p 0 7",
    "min_p .05 1",
    "min_p .001 1",
    "top_k 100; top_p .9 1; min_p .02 1",
    "typical .5 1",
    "typical .95 1",
    "top_k 200; typical .7 3",
    "typical .9 1; top_p .8 1",
    "top_n_sigma 1",
    "top_n_sigma 3; top_k 500",
    "xtc 1 .05 1 S",
    "top_k 60; xtc .5 .02 1 S",
    "min_p .05 1; xtc .5 .1 1 S; temp .7",
    "temp .5",
    "temp 0",
    "temp_ext 1 .5 1",
    "top_k 40; temp_ext .8 .3 1.5",
    "penalties 64 1.3 .5 .4",
    "penalties 256 1.1 0 0; top_k 40; top_p .95 1; min_p .05 1; temp .8",
    "dry .8 1.75 2 256 \\n : \" *",
    "dry 2 1.2 1 64; penalties 64 1 .2 .1; top_k 30",
    "top_k 50; dry 1 1.5 2 512 \\n; top_p .9 1",
    "penalties 64 1.1 0 0; dry .8 1.75 2 512 \\n : \" *; top_n_sigma 2; top_k 40; typical .95 1; top_p .95 1; \
     min_p .05 1; xtc .3 .1 1 S; temp_ext .8 .4 1",
    "top_k 40; top_p .95 1; infill; temp .8",
    "top_k 500; infill",
];

/// What draws after them.
const SELECTING: [&str; 6] = [
    "mirostat N S 5 .1 100",
    "temp .7; mirostat N S 2 .2 100",
    "mirostat_v2 S 5 .1",
    "temp 1.2; mirostat_v2 S 3 .05",
    "min_p .02 1; adaptive_p .3 .9 S",
    "top_k 100; adaptive_p .1 .5 S",
];

/// Sixty chains: those that leave something for a draw, with one; those that do not; and those that draw themselves.
fn chains(n_vocab: usize, random: &mut Random) -> Vec<String> {
    let drawn = CHAINS.iter().skip(6).map(|chain| format!("{chain}; dist S"));
    let all = CHAINS.iter().map(|chain| (*chain).to_owned()).chain(drawn);
    let all: Vec<String> = all.chain(SELECTING.iter().map(|chain| (*chain).to_owned())).collect();
    let seeded = |chain: String| {
        let seed = (random.bits() as u32).to_string();
        let words = chain.split(' ').map(|word| match word.trim_end_matches(';') {
            "S" => word.replace('S', &seed),
            "N" => word.replace('N', &n_vocab.to_string()),
            _ => word.to_owned(),
        });
        words.collect::<Vec<_>>().join(" ")
    };
    all.into_iter().map(seeded).collect()
}

/// Logits as a model has them: most around 0, some far above, no two alike.
fn row(n_vocab: usize, random: &mut Random) -> Vec<f32> {
    let mut uniform = || (random.bits() >> 11) as f64 / (1u64 << 53) as f64;
    let mut logit = || {
        let body = 2.2 * (-2.0 * (1.0 - uniform()).ln()).sqrt() * (std::f64::consts::TAU * uniform()).cos();
        let far = if uniform() < 0.001 { 7.0 * uniform() } else { 0.0 };
        (body + far) as f32
    };
    let mut row: Vec<f32> = (0..n_vocab).map(|_| logit()).collect();
    let mut order: Vec<usize> = (0..n_vocab).collect();
    order.sort_by(|a, b| row[*a].total_cmp(&row[*b]));
    for pair in 1..n_vocab {
        let below = row[order[pair - 1]];
        if row[order[pair]] <= below {
            row[order[pair]] = below.next_up();
        }
    }
    row
}

/// Tokens that repeat themselves, of a few words and breakers.
fn history(n_vocab: usize, vocab: &Vocab, random: &mut Random) -> Vec<Token> {
    let breaker = vocab.tokenize(b"\n", false, false).unwrap();
    let words: Vec<Token> = (0..4).map(|_| random.below(n_vocab) as Token).chain(breaker.last().copied()).collect();
    (0..random.below(200)).map(|_| words[random.below(words.len())]).collect()
}

/// What llama.cpp makes of these lines.
fn values(program: &Path, model: &Path, lines: &str) -> Vec<Value> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lines");
    std::fs::write(&path, lines).unwrap();
    let run = Command::new(program).args(["sampler_values", "--model"]).arg(model).arg("--lines").arg(&path).output();
    let run = run.unwrap();
    assert!(run.status.success(), "{}: {}", model.display(), String::from_utf8_lossy(&run.stderr));
    String::from_utf8(run.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// How far apart two sets of candidates are, of the best of them: how many are in one alone, and their probability.
fn apart(ours: &[(Token, f32, f32)], theirs: &Value) -> (usize, f64) {
    let logits = theirs["logits"].as_array().unwrap().iter().map(number);
    let mut left: Vec<(Token, f32)> = tokens(&theirs["ids"]).into_iter().zip(logits).collect();
    left.retain(|one| one.1 > f32::NEG_INFINITY);
    left.sort_by(|a, b| b.1.total_cmp(&a.1));
    let weight = |logit: f32| f64::from(logit - left[0].1).exp();
    let total: f64 = left.iter().map(|one| weight(one.1)).sum();
    let mut there: BTreeMap<Token, f32> = left.iter().take(KEPT).copied().collect();
    let mut apart = (0, 0.0);
    for &(token, logit, p) in ours {
        match there.remove(&token) {
            Some(there) if (there - logit).abs() <= 2e-5 * there.abs().max(1.0) => {}
            _ => apart = (apart.0 + 1, apart.1 + f64::from(p)),
        }
    }
    (apart.0 + there.len(), apart.1 + there.values().map(|&logit| weight(logit) / total).sum::<f64>())
}

#[test]
#[ignore = "60 chains over 4 vocabularies, minutes: make deep"]
fn sixty_chains_over_four_vocabularies_are_those_of_llama_cpp() {
    let (Some(program), Some(shared)) = (peer::program(), real_vocabularies::folder()) else { return };
    let (mut draws, mut sets, mut off) = (0, 0, Vec::new());
    for name in VOCABULARIES {
        let model = shared.join(format!("models/vocab/ggml-vocab-{name}.gguf"));
        let vocab = Arc::new(Vocab::from_gguf(&File::open(&model).unwrap()).unwrap());
        let n_vocab = vocab.n_tokens();
        let mut random = Random(name.len() as u64);
        let chains = chains(n_vocab, &mut random);
        assert_eq!(chains.len(), 60);
        for chain in chains {
            let (row, history) = (row(n_vocab, &mut random), history(n_vocab, &vocab, &mut random));
            let selects = ["dist", "mirostat", "adaptive_p"].iter().any(|name| chain.contains(name));
            let calls = if selects { 12 } else { 2 };
            let mut line = format!("{chain} |");
            row.iter().for_each(|logit| write!(line, " {logit}").unwrap());
            line.push_str(" |");
            history.iter().for_each(|token| write!(line, " {token}").unwrap());
            writeln!(line, " | {calls}").unwrap();
            let answer = &values(&program, &model, &line)[0];
            let mut sampler = Chain::of(&chain).sampler(n_vocab, "mt19937", &vocab);
            history.iter().for_each(|&token| sampler.accept(token));
            let results = answer["result"].as_array().unwrap();
            assert_eq!(results.len(), calls);
            for (at, result) in results.iter().enumerate() {
                sampler.keep_candidates(if selects { 0 } else { KEPT });
                let token = sampler.sample(&mut row.clone(), None, &[], at as u32).unwrap();
                let what = format!("{name}, call {at}: {chain}");
                if selects {
                    let expected = result["selected"].as_i64().unwrap() as Token;
                    if token != expected {
                        off.push(format!("{what}: token {token}, expected {expected}"));
                    }
                    sampler.accept(expected);
                    draws += 1;
                } else {
                    let (count, p) = apart(&sampler.last().candidates, result);
                    if count > 0 {
                        off.push(format!("{what}: {count} candidates of {p:e}"));
                    }
                    sets += 1;
                }
            }
        }
    }
    eprintln!("{draws} tokens, {sets} sets; apart:\n{}", off.join("\n"));
    assert!(off.is_empty(), "{off:?}");
}
