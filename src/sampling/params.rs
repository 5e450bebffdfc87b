//! Sampling parameters, and the chain that they make.

use super::chain::Chain;
use super::sequence::{Kind, Sequence};
use super::steps::penalties::MAX_LAST_N;
use crate::backend::{ChainStep, Dry, Generator, MIROSTAT_M};
use crate::gguf::{File, FromValue, shown};
use crate::{Error, Result, Token};

/// Which mirostat, if any.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mirostat {
    /// None: the samplers of the sequence.
    #[default]
    Off,
    /// Version 1 in their place, after the temperature.
    First,
    /// Version 2.
    Second,
}

impl Mirostat {
    /// Of its number in llama.cpp: 0, 1 or 2.
    pub fn of(number: u32) -> Option<Mirostat> {
        [Mirostat::Off, Mirostat::First, Mirostat::Second].get(number as usize).copied()
    }

    /// Of an option.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for another number.
    pub fn checked(number: u32) -> Result<Mirostat> {
        let problem = || Error::InvalidArgument(format!("mirostat is {number}, must be 0, 1 or 2"));
        Mirostat::of(number).ok_or_else(problem)
    }
}

/// Sampling parameters. The default is `top_k=40;top_p=0.95;min_p=0.05;temp=0.8`.
#[derive(Debug, Clone, PartialEq)]
pub struct Params {
    /// The seed; `None` takes a random one ([`super::random::unchosen_seed`]).
    pub seed: Option<u64>,
    /// The generator of the draws.
    pub generator: Generator,
    /// The samplers and their order.
    pub sequence: Sequence,
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
    /// Standard deviations below the greatest logit that top-n-sigma keeps; 0 and below turn it off.
    pub top_n_sigma: f32,
    /// Probability that typical-p keeps, 0 to 1; 1 and above turn it off.
    pub typical_p: f32,
    /// How often XTC acts, 0 to 1; 0 and below turn it off.
    pub xtc_probability: f32,
    /// The probability from which on XTC removes candidates; above 0.5 it does nothing.
    pub xtc_threshold: f32,
    /// DRY; a multiplier of 0 turns it off.
    pub dry: Dry,
    /// Mirostat, which takes the place of the sequence.
    pub mirostat: Mirostat,
    /// The surprise that mirostat aims at, in bits.
    pub mirostat_tau: f32,
    /// How far mirostat moves with every token.
    pub mirostat_eta: f32,
    /// The probability that adaptive-p aims at, 0 to 1; below 0 it is off, or only draws where the sequence has it.
    pub adaptive_target: f32,
    /// How much of its mean adaptive-p keeps with every token, 0 to 0.99.
    pub adaptive_decay: f32,
    /// The least number of candidates that top-p, min-p, typical-p and XTC keep.
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
            generator: Generator::Counter,
            sequence: Sequence::default(),
            logit_bias: Vec::new(),
            repeat_last_n: 64,
            repeat_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            top_n_sigma: -1.0,
            typical_p: 1.0,
            xtc_probability: 0.0,
            xtc_threshold: 0.1,
            dry: Dry::default(),
            mirostat: Mirostat::Off,
            mirostat_tau: 5.0,
            mirostat_eta: 0.1,
            adaptive_target: -1.0,
            adaptive_decay: 0.9,
            min_keep: 0,
            temperature: 0.8,
            dynatemp_range: 0.0,
            dynatemp_exponent: 1.0,
        }
    }
}

impl Params {
    /// The chain: the logit bias, then the samplers of the sequence without those that change nothing, then adaptive-p
    /// where it is on or in the sequence. With mirostat it is the temperature and mirostat.
    pub fn chain(&self) -> Chain {
        let mut steps = Vec::new();
        if self.generator != Generator::Counter {
            steps.push(ChainStep::Rng(self.generator));
        }
        if !self.logit_bias.is_empty() {
            steps.push(ChainStep::LogitBias(self.logit_bias.clone()));
        }
        let (tau, eta) = (self.mirostat_tau, self.mirostat_eta);
        match self.mirostat {
            Mirostat::Off => {
                steps.extend(self.sequence.kinds.iter().filter_map(|&kind| self.step(kind)));
                // A NaN is put into the chain, whose check refuses it.
                let (target, listed) = (self.adaptive_target, self.sequence.kinds.contains(&Kind::AdaptiveP));
                if listed || target >= 0.0 || target.is_nan() {
                    steps.push(ChainStep::AdaptiveP { target, decay: self.adaptive_decay });
                }
            }
            Mirostat::First => {
                steps.extend(self.step(Kind::Temperature));
                steps.push(ChainStep::Mirostat { tau, eta, m: MIROSTAT_M });
            }
            Mirostat::Second => {
                steps.extend(self.step(Kind::Temperature));
                steps.push(ChainStep::MirostatV2 { tau, eta });
            }
        }
        Chain { steps }
    }

    /// The step of a sampler; `None` where it changes nothing. A NaN counts as a change, and is refused later.
    fn step(&self, kind: Kind) -> Option<ChainStep> {
        let min_keep = self.min_keep;
        let above_0 = |number: f32| number > 0.0 || number.is_nan();
        match kind {
            Kind::Penalties => {
                let penalties = (self.repeat_penalty, self.frequency_penalty, self.presence_penalty);
                let (repeat, frequency, presence) = penalties;
                (self.repeat_last_n > 0 && penalties != (1.0, 0.0, 0.0)).then_some(ChainStep::Penalties {
                    last_n: self.repeat_last_n,
                    repeat,
                    frequency,
                    presence,
                })
            }
            Kind::Dry => (self.dry.multiplier != 0.0).then(|| ChainStep::Dry(self.dry.clone(), None)),
            Kind::TopNSigma => above_0(self.top_n_sigma).then_some(ChainStep::TopNSigma(self.top_n_sigma)),
            Kind::TopK => (self.top_k > 0).then_some(ChainStep::TopK(self.top_k)),
            Kind::Typical => {
                above_0(1.0 - self.typical_p).then_some(ChainStep::Typical { p: self.typical_p, min_keep })
            }
            Kind::TopP => above_0(1.0 - self.top_p).then_some(ChainStep::TopP { p: self.top_p, min_keep }),
            Kind::MinP => above_0(self.min_p).then_some(ChainStep::MinP { p: self.min_p, min_keep }),
            Kind::Xtc => above_0(self.xtc_probability).then_some(ChainStep::Xtc {
                probability: self.xtc_probability,
                threshold: self.xtc_threshold,
                min_keep,
            }),
            Kind::Temperature if above_0(self.dynatemp_range) => Some(ChainStep::DynamicTemperature {
                temperature: self.temperature,
                range: self.dynatemp_range,
                exponent: self.dynatemp_exponent,
            }),
            Kind::Temperature => (self.temperature != 1.0).then_some(ChainStep::Temperature(self.temperature)),
            Kind::Infill => Some(ChainStep::Infill),
            Kind::AdaptiveP => None,
        }
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
        float("xtc_probability", &mut self.xtc_probability, f32::NEG_INFINITY);
        float("xtc_threshold", &mut self.xtc_threshold, f32::NEG_INFINITY);
        float("mirostat_tau", &mut self.mirostat_tau, f32::NEG_INFINITY);
        float("mirostat_eta", &mut self.mirostat_eta, f32::NEG_INFINITY);
        if let Some(number) = read::<i32>(file, "mirostat", &mut unused) {
            match u32::try_from(number).ok().and_then(Mirostat::of) {
                Some(mirostat) => self.mirostat = mirostat,
                None => unused.push(format!("general.sampling.mirostat is ignored: {number} is not 0, 1 or 2")),
            }
        }
        if let Some(names) = read::<String>(file, "sequence", &mut unused) {
            let (sequence, unknown) = Sequence::of_known(&names);
            self.sequence = sequence;
            let name =
                |name: &&str| format!("`{}` in general.sampling.sequence is ignored: no such sampler", shown(name));
            unused.extend(unknown.iter().map(name));
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
