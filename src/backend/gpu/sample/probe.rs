//! The sampler's known-answer test, see `probe/mod.rs`.
//!
//! Some chains and masks, which together take every path through the kernels and every step, sample from one row at
//! once. The expected results are computed here in double precision over all candidates; the row is chosen so that no
//! cut and no draw is near enough to a boundary for rounding to decide it.

use super::{ChainStep, RESULT_BYTES, SampleProgram, SampleRow, SampleSpec, read_candidates, read_result};
use crate::backend::gpu::device::STORAGE;
use crate::backend::gpu::kernel::{Gpu, Kernel, Trial};
use crate::backend::gpu::probe::{Expected, compare, input};
use crate::backend::{BreakerHead, Breakers, Dry, Legal};
use crate::{Error, Result, Token};
use std::sync::Arc;

/// Tokens of the row: more than a list takes, half of them too.
const N_VOCAB: usize = 3400;
/// Candidates that are reported.
const REPORTED: usize = 4;
/// The uniform number of seed 0 at position 0, from the known answers that Random123 publishes of Threefry2x32-20.
const UNIFORM: f64 = 0x6b20_0159u32 as f64 / 4_294_967_296.0;

const TOP_K: usize = 40;
const TOP_P: f32 = 0.9;
const MIN_P: f32 = 0.15;
const TEMPERATURE: f32 = 0.8;
const SIGMAS: f32 = 3.0;
const TYPICAL: f32 = 0.9;
const CHOICE: f32 = 0.02;
const RANGE: f32 = 0.5;
const EXPONENT: f32 = 1.5;
/// A token that would be far from the best, and its bias.
const BIAS: (Token, f32) = (77, 41.0);
/// What the token loses for a repetition of one token. It would prolong one of three, of which the breaker 3, 4 leaves
/// one.
const LOSS: f32 = 2.0;
const HISTORY: [Token; 8] = [3, 4, 1, BIAS.0, 9, 3, 4, 1];

/// How candidates are chosen and the token is taken.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Way {
    Greedy,
    /// From all candidates.
    Draw,
    /// From those after bias, DRY, top-k, top-p and min-p.
    Chain,
    /// From those after top-n-sigma, typical sampling and XTC, at a dynamic temperature.
    Others,
}

/// Chains, and how far apart the tokens of a mask are.
const CASES: [(Way, Option<usize>); 7] = [
    (Way::Greedy, None),
    (Way::Draw, None),
    (Way::Chain, None),
    (Way::Chain, Some(2)),
    (Way::Chain, Some(20)),
    (Way::Others, None),
    (Way::Others, Some(2)),
];

/// Adds the known-answer test of the sampler's kernels.
pub fn add_trial(gpu: &Gpu) -> Result<()> {
    let kernels = super::kernels(gpu)?;
    gpu.add_trial(&kernels, || Ok(SamplerTrial { kernels: kernels.clone() }))
}

struct SamplerTrial {
    kernels: Vec<Arc<Kernel>>,
}

impl Trial for SamplerTrial {
    fn kernels(&self) -> Vec<Arc<Kernel>> {
        self.kernels.clone()
    }

    fn run(&self, gpu: &Arc<Gpu>) -> Result<()> {
        let logits = logits();
        let expected: Vec<_> = CASES.iter().map(|&(way, apart)| expected(&logits, way, apart, UNIFORM, 0.0)).collect();
        run(gpu, SampleProgram::new(gpu, N_VOCAB, CASES.len())?, &logits, &expected)
    }
}

fn logits() -> Vec<f32> {
    (0..N_VOCAB).map(|i| 40.0 * input(i).powi(3)).collect()
}

fn run(gpu: &Gpu, mut program: SampleProgram, logits: &[f32], expected: &[Vec<Expected>]) -> Result<()> {
    let bytes = (CASES.len() * N_VOCAB) as u64 * 4;
    let rows = gpu.buffer("probe", bytes, STORAGE)?;
    gpu.queue.write_buffer(&rows, 0, bytemuck::cast_slice(&logits.repeat(CASES.len())));
    program.bind(&rows, 0, bytes, N_VOCAB)?;
    for (sequence, &(way, apart)) in CASES.iter().enumerate() {
        program.set_chain(sequence, &spec(way))?;
        let tokens: Vec<Token> = (0..N_VOCAB as Token).step_by(apart.unwrap_or(1)).collect();
        program.arm(sequence, apart.map(|_| Legal::list(&tokens, false)))?;
        program.restart(sequence, 0, &HISTORY)?;
    }
    let all: Vec<_> = (0..CASES.len() as u32).map(|i| SampleRow { sequence: i, row: i }).collect();
    let mut encoder = gpu.raw.create_command_encoder(&Default::default());
    let mut pass = encoder.begin_compute_pass(&Default::default());
    program.encode(&mut pass, &all)?;
    drop(pass);
    gpu.queue.submit([encoder.finish()]);
    let place = program.results();
    let results = gpu.read(place.buffer, place.offset, place.bytes as usize)?;
    for (sequence, (result, expected)) in results.chunks_exact(RESULT_BYTES).zip(expected).enumerate() {
        let result = read_result(result).ok_or_else(|| Error::Internal("A result of a sampler".into()))?;
        let place = program.candidates(sequence);
        let reported = gpu.read(place.buffer, place.offset, place.bytes as usize)?;
        let mut got = vec![result.token.into(), result.prob.into(), result.logprob.into(), result.kept.into()];
        for (token, logit, prob) in read_candidates(&reported, result.reported) {
            got.extend([f64::from(token), f64::from(logit), f64::from(prob)]);
        }
        // What is missing is wrong.
        got.resize(expected.len(), f64::NAN);
        let (way, apart) = CASES[sequence];
        let mask = apart.map_or(String::new(), |apart| format!(" under a mask of every {apart}th token"));
        let what = format!("sampling by {}{mask}", spec(way).describe(usize::MAX));
        compare(gpu, &program.kernels, &what, got.into_iter(), expected)?;
    }
    Ok(())
}

fn spec(way: Way) -> SampleSpec {
    let steps = match way {
        Way::Greedy => vec![ChainStep::Greedy],
        Way::Draw => vec![ChainStep::Temperature(TEMPERATURE)],
        Way::Chain => vec![
            ChainStep::LogitBias(vec![BIAS]),
            dry(),
            ChainStep::TopK(TOP_K as i32),
            ChainStep::TopP { p: TOP_P, min_keep: 0 },
            ChainStep::MinP { p: MIN_P, min_keep: 0 },
            ChainStep::Temperature(TEMPERATURE),
        ],
        Way::Others => vec![
            ChainStep::TopNSigma(SIGMAS),
            ChainStep::Typical { p: TYPICAL, min_keep: 0 },
            ChainStep::Xtc { probability: 1.0, threshold: CHOICE, min_keep: 0 },
            ChainStep::DynamicTemperature { temperature: TEMPERATURE, range: RANGE, exponent: EXPONENT },
        ],
    };
    let candidates = if matches!(way, Way::Chain | Way::Others) { REPORTED as u32 } else { 0 };
    SampleSpec { steps, seed: 0, candidates }
}

fn dry() -> ChainStep {
    let breakers = Breakers::new(vec![BreakerHead { token: HISTORY[0], tail: 0..1 }], vec![HISTORY[1]]);
    let (allowed_length, last_n) = (1, HISTORY.len() as i32);
    let dry = Dry { multiplier: LOSS, base: 2.0, allowed_length, last_n, ..Dry::default() };
    ChainStep::Dry(dry, Some(Arc::new(breakers)))
}

/// What top-n-sigma, typical sampling and XTC leave, best first, and the dynamic temperature. `nudge` is added to the
/// factors.
fn others(left: &mut Vec<(usize, f64)>, nudge: f64) -> f64 {
    let factor = |given: f32| f64::from(given) * (1.0 + nudge);
    let best = left[0].1;
    let count = left.len() as f64;
    let mean = left.iter().map(|(_, x)| x).sum::<f64>() / count;
    let variance = left.iter().map(|(_, x)| (x - mean).powi(2)).sum::<f64>() / count;
    left.retain(|(_, x)| *x >= best - factor(SIGMAS) * variance.sqrt());

    let weight = |x: f64, best: f64| (x - best).exp();
    let total: f64 = left.iter().map(|(_, x)| weight(*x, best)).sum();
    let distance = left.iter().map(|(_, x)| weight(*x, best) * (best - x)).sum::<f64>() / total;
    left.sort_by(|a, b| (best - a.1 - distance).abs().total_cmp(&(best - b.1 - distance).abs()));
    let mut sum = 0.0;
    let reached = left.iter().position(|(_, x)| {
        sum += weight(*x, best);
        sum > factor(TYPICAL) * total
    });
    left.truncate(reached.map_or(left.len(), |at| at + 1));
    left.sort_by(|a, b| b.1.total_cmp(&a.1));

    let best = left[0].1;
    let total: f64 = left.iter().map(|(_, x)| weight(*x, best)).sum();
    let choices = left.iter().take_while(|(_, x)| weight(*x, best) >= factor(CHOICE) * total).count();
    left.drain(..choices.saturating_sub(1));

    let best = left[0].1;
    let total: f64 = left.iter().map(|(_, x)| weight(*x, best)).sum();
    let shares = left.iter().map(|(_, x)| weight(*x, best) / total).filter(|share| *share > 0.0);
    let evenness = shares.map(|share| -share * share.ln()).sum::<f64>() / (left.len() as f64).ln();
    let low = f64::from((TEMPERATURE - RANGE).max(0.0));
    low + (f64::from(TEMPERATURE + RANGE) - low) * evenness.powf(EXPONENT.into())
}

/// Token, probability, its logarithm, number of candidates, and of each that is reported token, logit, probability.
fn expected(logits: &[f32], way: Way, apart: Option<usize>, uniform: f64, nudge: f64) -> Vec<Expected> {
    let mut left: Vec<(usize, f64)> = logits.iter().map(|&x| f64::from(x)).enumerate().collect();
    if way == Way::Chain {
        left[BIAS.0 as usize].1 += f64::from(BIAS.1 - LOSS);
    }
    left.retain(|(token, _)| token % apart.unwrap_or(1) == 0);
    left.sort_by(|a, b| b.1.total_cmp(&a.1));
    let best = left[0].1;
    let weights = |of: &[(usize, f64)]| of.iter().map(|(_, x)| (x - best).exp()).collect::<Vec<_>>();
    let mut warmth = if way == Way::Greedy { 1.0 } else { f64::from(TEMPERATURE) };
    match way {
        Way::Greedy => left.truncate(1),
        Way::Draw => {}
        Way::Others => warmth = others(&mut left, nudge),
        Way::Chain => {
            left.truncate(TOP_K);
            let weights = weights(&left);
            let need = weights.iter().sum::<f64>() * f64::from(TOP_P);
            let reach = weights.iter().scan(0.0, |sum, w| {
                let before = *sum;
                *sum += w;
                Some(before)
            });
            left.truncate(reach.take_while(|&before| before < need).count());
            left.retain(|(_, x)| (x - best).exp() >= f64::from(MIN_P));
        }
    }
    let best = left[0].1;
    left.iter_mut().for_each(|(_, x)| *x /= warmth);
    let total: f64 = left.iter().map(|(_, x)| (x - best / warmth).exp()).sum();
    let share = |x: f64| (x - best / warmth).exp() / total;
    // The draw goes through the tokens in their order.
    let mut by_token = left.clone();
    by_token.sort_by_key(|(token, _)| *token);
    let mut sum = 0.0;
    let drawn = by_token.iter().find(|(_, x)| {
        sum += share(*x);
        sum > uniform
    });
    let &(token, x) = drawn.unwrap_or(&left[0]);
    // Without a cut, candidates of weight 0 may or may not be counted.
    let kept = if way == Way::Draw { f64::INFINITY } else { 0.0 };
    let mut all = vec![(token as f64, 0.0), (share(x), 1e-5), (share(x).ln(), 1e-5), (left.len() as f64, kept)];
    if matches!(way, Way::Chain | Way::Others) {
        for &(token, x) in left.iter().take(REPORTED) {
            all.extend([(token as f64, 0.0), (x, 1e-4), (share(x), 1e-5)]);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::backend::gpu::testing::harness::devices;

    fn all(uniform: f64, nudge: f64) -> Vec<Vec<Expected>> {
        CASES.iter().map(|&(way, apart)| expected(&logits(), way, apart, uniform, nudge)).collect()
    }

    #[test]
    fn a_wrong_token_names_driver_and_kernels() {
        for gpu in devices() {
            SamplerTrial { kernels: Vec::new() }.run(gpu).unwrap();
            for case in 0..CASES.len() {
                for value in 0..all(UNIFORM, 0.0)[case].len() {
                    let mut expected = all(UNIFORM, 0.0);
                    if expected[case][value].1.is_infinite() {
                        continue;
                    }
                    expected[case][value].0 += 1.0;
                    let program = SampleProgram::new(gpu, N_VOCAB, CASES.len()).unwrap();
                    let Err(Error::Device(text)) = run(gpu, program, &logits(), &expected) else {
                        panic!("{:?} passed with another value {value}", CASES[case])
                    };
                    let (result, driver) = (format!("result {value} "), &gpu.info.driver);
                    for part in [&gpu.info.name, driver, "`sample_exact`", &spec(CASES[case].0).describe(99), &result] {
                        assert!(text.contains(part), "no {part} in: {text}");
                    }
                }
            }
        }
    }

    /// Rounding cannot decide which token it is, nor how many are left.
    #[test]
    fn no_cut_is_near() {
        let told =
            |uniform, nudge| all(uniform, nudge).into_iter().map(|case| (case[0].0, case[3].0)).collect::<Vec<_>>();
        for (uniform, nudge) in [(2e-3, 0.0), (-2e-3, 0.0), (0.0, 1e-4), (0.0, -1e-4)] {
            assert_eq!(told(UNIFORM, 0.0), told(UNIFORM + uniform, nudge));
        }
        let tokens: Vec<_> = told(UNIFORM, 0.0);
        assert!(tokens[1..].windows(2).any(|pair| pair[0] != pair[1]), "{tokens:?}");
    }
}
