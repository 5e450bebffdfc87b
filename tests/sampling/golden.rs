//! Chains against the values that llama.cpp gave for them, where the shared folder has them.

use crate::testing;
use elizainference::sampling::Sampler;
use serde_json::Value;

/// The step of ours for one of llama.cpp's, with its arguments; `None` where there is none, or it draws with the
/// generator there.
fn step(text: &str) -> Option<String> {
    let mut words = text.split_whitespace();
    let (name, numbers) = (words.next()?, words.collect::<Vec<_>>());
    let of = |n: usize| numbers.get(..n).map(|numbers| numbers.join(","));
    Some(match name {
        "typical" => format!("typ_p={}", of(2)?),
        "top_n_sigma" => format!("top_n_sigma={}", of(1)?),
        "xtc" if numbers[0].parse::<f32>().is_ok_and(|p| p <= 0.0 || p >= 1.0) => format!("xtc={}", of(3)?),
        "top_k" => format!("top_k={}", of(1)?),
        "top_p" | "min_p" => format!("{name}={}", of(2)?),
        "temp" => format!("temp={}", of(1)?),
        "temp_ext" => format!("dynatemp={}", of(3)?),
        "penalties" => format!("penalties={}", of(4)?),
        _ => return None,
    })
}

fn number(value: &Value) -> f32 {
    match value.as_f64() {
        Some(number) => number as f32,
        None => value.as_str().unwrap().parse().unwrap(),
    }
}

/// `id:logit`, or logits by id.
fn logits(text: &str) -> Option<Vec<f32>> {
    text.split_whitespace().map(|word| word.parse().ok()).collect()
}

#[test]
fn candidates_are_those_of_llama_cpp() {
    let Some(shared) = testing::shared() else {
        eprintln!("skipped: no folder with recorded values (ELIZA_SHARED)");
        return;
    };
    let (mut checked, mut left_out) = (0, 0);
    for file in ["golden.json", "random.json"] {
        let text = std::fs::read(shared.join("models/samplers").join(file)).unwrap();
        let all: Value = serde_json::from_slice(&text).unwrap();
        for case in all["cases"].as_array().unwrap() {
            let chain = case["chain"].as_str().unwrap();
            let steps: Option<Vec<String>> = chain.split(';').map(step).collect();
            let row = case["logits"].as_str().and_then(logits);
            // Of no candidate at all nothing is sampled. For a dynamic temperature llama.cpp counts tokens at -inf.
            let alone = |row: &Vec<f32>| match chain.contains("temp_ext") {
                true => row.iter().all(|x| *x > f32::NEG_INFINITY),
                false => row.iter().any(|x| *x > f32::NEG_INFINITY),
            };
            let row = row.filter(alone);
            let (Some(steps), Some(mut row), None) = (steps, row, case.get("calls")) else {
                left_out += 1;
                continue;
            };
            let mut sampler = Sampler::new(&steps.join(";").parse().unwrap(), row.len(), 1).unwrap();
            sampler.keep_candidates(row.len());
            for token in case["accepted"].as_array().into_iter().flatten() {
                sampler.accept(token.as_i64().unwrap() as i32);
            }
            let plain = row.clone();
            sampler.sample(&mut row, None, &[], 0).unwrap();
            let mut got: Vec<(i32, f32)> = sampler.last().candidates.iter().map(|one| (one.0, one.1)).collect();
            got.sort_by_key(|one| one.0);
            let ids = case["ids"].as_array().unwrap().iter().map(|id| id.as_i64().unwrap() as i32);
            let mut expected: Vec<(i32, f32)> = ids
                .zip(case["out_logits"].as_array().unwrap().iter().map(number))
                .filter(|(_, logit)| *logit > f32::NEG_INFINITY)
                .collect();
            expected.sort_by_key(|one| one.0);
            let what = format!("{file}: {chain} of {plain:?}: {got:?}, expected {expected:?}");
            assert_eq!(got.len(), expected.len(), "{what}");
            for (got, expected) in got.iter().zip(&expected) {
                let off = (got.1 - expected.1).abs();
                assert!(got.0 == expected.0 && off <= 1e-5 * expected.1.abs().max(1.0), "{what}");
            }
            checked += 1;
        }
    }
    eprintln!("{checked} chains of llama.cpp, {left_out} left out");
    assert!(checked > 100, "{checked}");
}
