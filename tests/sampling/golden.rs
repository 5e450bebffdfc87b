//! Chains against the values that llama.cpp gave for them, where the shared folder has them.
//!
//! Every chain runs with llama.cpp's generator: the same candidates, logits within rounding, and the same tokens. Where
//! nothing is drawn the candidates are the same with the generator here.

use crate::testing;
use elizainference::gguf::File;
use elizainference::sampling::Sampler;
use elizainference::vocab::Vocab;
use elizainference::{Error, Token};
use serde_json::Value;
use std::sync::Arc;

/// What a chain of llama.cpp says.
#[derive(Default)]
pub struct Chain {
    steps: Vec<String>,
    seed: u32,
    /// What mirostat is told of the vocabulary.
    n_vocab: Option<usize>,
    /// Whether random numbers decide what is left.
    draws: bool,
}

impl Chain {
    pub fn of(text: &str) -> Chain {
        let mut chain = Chain::default();
        for step in text.split(';') {
            let step = chain.step(step);
            chain.steps.push(step);
        }
        chain
    }

    /// The step of ours for one of llama.cpp's, with its arguments.
    fn step(&mut self, text: &str) -> String {
        let mut words = text.split_whitespace();
        let (name, numbers) = (words.next().unwrap(), words.collect::<Vec<_>>());
        let of = |from: usize, to: usize| numbers[from..to.min(numbers.len())].join(",");
        let mut seed = |at: usize| self.seed = numbers[at].parse().unwrap();
        match name {
            "typical" => format!("typ_p={}", of(0, 2)),
            "temp_ext" => format!("dynatemp={}", of(0, 3)),
            "top_n_sigma" | "top_k" | "temp" => format!("{name}={}", of(0, 1)),
            "top_p" | "min_p" => format!("{name}={}", of(0, 2)),
            "penalties" => format!("{name}={}", of(0, 4)),
            "dry" => {
                format!("dry={},{}", of(0, 4), if numbers.len() > 4 { of(4, numbers.len()) } else { "none".into() })
            }
            "infill" => "infill".into(),
            "xtc" => {
                seed(3);
                self.draws |= numbers[0].parse::<f32>().is_ok_and(|p| p > 0.0 && p < 1.0);
                format!("xtc={}", of(0, 3))
            }
            "dist" => {
                seed(0);
                "dist".into()
            }
            "mirostat" => {
                seed(1);
                self.n_vocab = Some(numbers[0].parse().unwrap());
                format!("mirostat={}", of(2, 5))
            }
            "mirostat_v2" => {
                seed(0);
                format!("mirostat_v2={}", of(1, 3))
            }
            "adaptive_p" => {
                seed(2);
                format!("adaptive_p={}", of(0, 2))
            }
            _ => panic!("{text}"),
        }
    }

    pub fn sampler(&self, n_vocab: usize, generator: &str, vocab: &Arc<Vocab>) -> Sampler {
        let text = format!("rng={generator};{}", self.steps.join(";"));
        Sampler::with_vocab(&text.parse().unwrap(), self.n_vocab.unwrap_or(n_vocab), self.seed.into(), vocab).unwrap()
    }
}

pub fn number(value: &Value) -> f32 {
    match value.as_f64() {
        Some(number) => number as f32,
        None => value.as_str().unwrap().parse().unwrap(),
    }
}

pub fn tokens(value: &Value) -> Vec<Token> {
    value.as_array().into_iter().flatten().map(|id| id.as_i64().unwrap() as Token).collect()
}

/// Logits by id, or written as `id:logit`.
fn candidates(text: &str) -> Vec<(Token, f32)> {
    let one = |(at, word): (usize, &str)| match word.split_once(':') {
        Some((id, logit)) => (id.parse().unwrap(), logit.parse().unwrap()),
        None => (at as Token, word.parse().unwrap()),
    };
    text.split_whitespace().enumerate().map(one).collect()
}

/// Compares the candidates that a sampler left with those of a case.
fn compare(sampler: &Sampler, case: &Value, what: &str) {
    let mut got: Vec<(Token, f32)> = sampler.last().candidates.iter().map(|one| (one.0, one.1)).collect();
    got.sort_by_key(|one| one.0);
    let logits = case["out_logits"].as_array().unwrap().iter().map(number);
    let mut expected: Vec<(Token, f32)> =
        tokens(&case["ids"]).into_iter().zip(logits).filter(|(_, logit)| *logit > f32::NEG_INFINITY).collect();
    expected.sort_by_key(|one| one.0);
    assert_eq!(got.len(), expected.len(), "{what}: {got:?}, expected {expected:?}");
    for (got, expected) in got.iter().zip(&expected) {
        let off = (got.1 - expected.1).abs();
        assert!(
            got.0 == expected.0 && off <= 1e-5 * expected.1.abs().max(1.0),
            "{what}: {got:?}, expected {expected:?}"
        );
    }
}

#[test]
fn candidates_and_tokens_are_those_of_llama_cpp() {
    let Some(shared) = testing::shared() else {
        eprintln!("skipped: no folder with recorded values (ELIZA_SHARED)");
        return;
    };
    let file = File::open(shared.join("models/stories260k.gguf")).unwrap();
    let vocab = Arc::new(Vocab::from_gguf(&file).unwrap());
    let (mut checked, mut drawn) = (0, 0);
    for file in ["golden.json", "random.json"] {
        let text = std::fs::read(shared.join("models/samplers").join(file)).unwrap();
        let all: Value = serde_json::from_slice(&text).unwrap();
        for case in all["cases"].as_array().unwrap() {
            let text = case["chain"].as_str().unwrap();
            let row = candidates(case["logits"].as_str().unwrap());
            let what = format!("{file}: {text} of {row:?}");
            let chain = Chain::of(text);
            let n_vocab = row.iter().map(|one| one.0 as usize + 1).max().unwrap();
            let mut sampler = chain.sampler(n_vocab, "mt19937", &vocab);
            let steps = sampler.spec(&[]).steps.len();
            sampler.keep_candidates(row.len());
            tokens(&case["accepted"]).into_iter().for_each(|token| sampler.accept(token));
            checked += 1;
            for (at, call) in case["calls"].as_array().into_iter().flatten().enumerate() {
                let [selected, size] = tokens(call)[..] else { panic!("{what}") };
                let token = sampler.resume(steps, row.clone(), None, at as u32).unwrap();
                assert_eq!(sampler.last().candidates.len(), size as usize, "call {at}, {what}");
                if selected >= 0 {
                    assert_eq!(token, selected, "call {at}, {what}");
                    sampler.accept(token);
                    drawn += 1;
                }
            }
            if case.get("calls").is_some() {
                continue;
            }
            if row.iter().all(|one| one.1 == f32::NEG_INFINITY) {
                // Nothing is left there either, and nothing to draw.
                let refused = sampler.resume(steps, row.clone(), None, 0);
                assert!(matches!(refused, Err(Error::InvalidArgument(_))), "{what}");
                assert!(case["out_logits"].as_array().unwrap().iter().all(|x| number(x) == f32::NEG_INFINITY));
                continue;
            }
            let token = sampler.resume(steps, row.clone(), None, 0).unwrap_or_else(|error| panic!("{what}: {error}"));
            compare(&sampler, case, &what);
            let selected = case["selected"].as_i64().unwrap() as Token;
            assert!(selected < 0 || token == selected, "{what}: {token}, expected {selected}");
            // The candidates do not depend on the generator, but that tokens at -inf count for temp_ext with
            // llama.cpp's.
            let counts = text.contains("temp_ext") && row.iter().any(|one| one.1 == f32::NEG_INFINITY);
            if !chain.draws && !counts && !text.contains("infill") {
                let mut sampler = chain.sampler(n_vocab, "counter", &vocab);
                sampler.keep_candidates(row.len());
                tokens(&case["accepted"]).into_iter().for_each(|token| sampler.accept(token));
                let mut whole = vec![f32::NEG_INFINITY; n_vocab];
                row.iter().for_each(|&(token, logit)| whole[token as usize] = logit);
                sampler.sample(&mut whole, None, &[], 0).unwrap();
                compare(&sampler, case, &what);
            }
        }
    }
    eprintln!("{checked} chains of llama.cpp, {drawn} tokens drawn");
    assert!(checked >= 328 && drawn > 500, "{checked}, {drawn}");
}
