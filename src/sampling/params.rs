//! Sampling parameters, and the chain that they make.

use super::chain::Chain;
use super::steps::penalties::MAX_LAST_N;
use crate::Token;
use crate::backend::ChainStep;
use crate::gguf::{File, FromValue};

/// Keys of `general.sampling.` that a file may have and that no sampler here implements.
const WITHOUT_SAMPLER: [&str; 6] =
    ["sequence", "xtc_probability", "xtc_threshold", "mirostat", "mirostat_tau", "mirostat_eta"];

/// Sampling parameters. The default is `top_k=40;top_p=0.95;min_p=0.05;temp=0.8`.
#[derive(Debug, Clone, PartialEq)]
pub struct Params {
    /// The seed; `None` takes a random one ([`super::random::unchosen_seed`]).
    pub seed: Option<u64>,
    /// Numbers added to the logits of tokens.
    pub logit_bias: Vec<(Token, f32)>,
    /// Window of the penalties in tokens; 0 and below turn them off.
    pub repeat_last_n: i32,
    /// Repeat penalty; 1 changes nothing.
    pub repeat_penalty: f32,
    /// Frequency penalty: subtracted per occurrence in the window; 0 changes nothing.
    pub frequency_penalty: f32,
    /// Presence penalty: subtracted once for a token in the window; 0 changes nothing.
    pub presence_penalty: f32,
    /// Number of candidates that top-k keeps; 0 and below turn it off.
    pub top_k: i32,
    /// Probability that top-p keeps, 0 to 1; 1 and above turn it off.
    pub top_p: f32,
    /// Threshold of min-p relative to the greatest probability, 0 to 1; 0 and below turn it off.
    pub min_p: f32,
    /// The least number of candidates that top-p and min-p keep.
    pub min_keep: u32,
    /// Temperature; 0 and below choose the token with the greatest logit.
    pub temperature: f32,
    /// Half the width of the dynamic temperature's range; 0 and below make it a plain temperature.
    pub dynatemp_range: f32,
    /// Power to which the normalised entropy is raised.
    pub dynatemp_exponent: f32,
}

impl Default for Params {
    fn default() -> Params {
        Params {
            seed: None,
            logit_bias: Vec::new(),
            repeat_last_n: 64,
            repeat_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            min_keep: 0,
            temperature: 0.8,
            dynatemp_range: 0.0,
            dynatemp_exponent: 1.0,
        }
    }
}

impl Params {
    /// The chain: logit bias, penalties, top-k, top-p, min-p, temperature (plain or dynamic), without those that change
    /// nothing.
    pub fn chain(&self) -> Chain {
        let mut steps = Vec::new();
        if !self.logit_bias.is_empty() {
            steps.push(ChainStep::LogitBias(self.logit_bias.clone()));
        }
        let penalties = (self.repeat_penalty, self.frequency_penalty, self.presence_penalty);
        if self.repeat_last_n > 0 && penalties != (1.0, 0.0, 0.0) {
            let (repeat, frequency, presence) = penalties;
            steps.push(ChainStep::Penalties { last_n: self.repeat_last_n, repeat, frequency, presence });
        }
        if self.top_k > 0 {
            steps.push(ChainStep::TopK(self.top_k));
        }
        // A NaN is put into the chain, whose check refuses it.
        if self.top_p < 1.0 || self.top_p.is_nan() {
            steps.push(ChainStep::TopP { p: self.top_p, min_keep: self.min_keep });
        }
        if self.min_p > 0.0 || self.min_p.is_nan() {
            steps.push(ChainStep::MinP { p: self.min_p, min_keep: self.min_keep });
        }
        if self.dynatemp_range > 0.0 || self.dynatemp_range.is_nan() {
            let Params { temperature, dynatemp_range: range, dynatemp_exponent: exponent, .. } = *self;
            steps.push(ChainStep::DynamicTemperature { temperature, range, exponent });
        } else if self.temperature != 1.0 {
            steps.push(ChainStep::Temperature(self.temperature));
        }
        Chain { steps }
    }

    /// Sets the defaults of a model's file (`general.sampling.*`); the user's choices are set afterwards. Returns a
    /// sentence for each key that cannot be used; such a key changes nothing.
    pub fn apply_metadata(&mut self, file: &File) -> Vec<String> {
        let mut unused = Vec::new();
        let mut integer = |key: &str, target: &mut i32, most: i32| {
            if let Some(value) = read::<i32>(file, key, &mut unused) {
                if value <= most {
                    *target = value;
                } else {
                    unused.push(format!("general.sampling.{key} is ignored: {value} is above {most}"));
                }
            }
        };
        integer("top_k", &mut self.top_k, i32::MAX);
        integer("penalty_last_n", &mut self.repeat_last_n, MAX_LAST_N);
        let mut float = |key: &str, target: &mut f32, above: f32| {
            if let Some(value) = read::<f32>(file, key, &mut unused) {
                if value.is_finite() && value > above {
                    *target = value;
                } else {
                    unused.push(format!(
                        "general.sampling.{key} is ignored: {value} is not a finite number above {above}"
                    ));
                }
            }
        };
        float("top_p", &mut self.top_p, f32::NEG_INFINITY);
        float("min_p", &mut self.min_p, f32::NEG_INFINITY);
        float("temp", &mut self.temperature, f32::NEG_INFINITY);
        float("penalty_repeat", &mut self.repeat_penalty, 0.0);
        for key in WITHOUT_SAMPLER {
            if file.value(&format!("general.sampling.{key}")).is_some() {
                unused.push(format!("general.sampling.{key} is ignored: there is no sampler for it"));
            }
        }
        unused
    }
}

fn read<T: FromValue>(file: &File, key: &str, unused: &mut Vec<String>) -> Option<T> {
    match file.get::<T>(&format!("general.sampling.{key}")) {
        Ok(value) => value,
        Err(error) => {
            unused.push(format!("general.sampling.{key} is ignored: {error}"));
            None
        }
    }
}
