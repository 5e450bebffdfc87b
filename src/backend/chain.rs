//! The steps of a sampler chain as data. The host's sampler and a device run the same steps and choose the same token.
//!
//! The rules that hold wherever a chain runs are defined here once: what a step does to the candidates, and where the
//! token trie's mask applies. So is its text: a new step is a variant, its name and its form, read and written.

use super::breakers::Breakers;
use crate::Token;
use crate::gguf::shown;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// The names that a chain's text can have.
const KNOWN: &str = "logit_bias, penalties, dry, top_n_sigma, top_k, typ_p, top_p, min_p, xtc, temp, dynatemp, infill, \
                     mirostat, mirostat_v2, adaptive_p, greedy, dist, trie, rng";

/// The texts at which a repetition that DRY follows ends, where a chain names none.
pub const DRY_BREAKERS: [&str; 4] = ["\n", ":", "\"", "*"];

/// DRY, "don't repeat yourself": makes a token that would prolong a repetition less likely, the more the longer the
/// repetition is (p-e-w, <https://github.com/oobabooga/text-generation-webui/pull/5677>). A multiplier of 0, a base
/// below 1 and a window of 0 and below turn it off.
#[derive(Debug, Clone, PartialEq)]
pub struct Dry {
    /// What is subtracted for a repetition of the allowed length.
    pub multiplier: f32,
    /// The factor for each token more.
    pub base: f32,
    /// The longest repetition that costs nothing is one token shorter.
    pub allowed_length: i32,
    /// Length of the window in tokens.
    pub last_n: i32,
    /// Texts at which a repetition ends.
    pub breakers: Vec<String>,
}

impl Default for Dry {
    /// As llama.cpp's: off.
    fn default() -> Dry {
        let breakers = DRY_BREAKERS.map(str::to_owned).to_vec();
        Dry { multiplier: 0.0, base: 1.75, allowed_length: 2, last_n: 64, breakers }
    }
}

/// Where the random numbers of a chain come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Generator {
    /// A function of seed and position ([`crate::sampling::random`]).
    #[default]
    Counter,
    /// llama.cpp's: one generator for each sampler that draws, which every draw advances. With it the tokens are those
    /// of llama.cpp with the same seed.
    Mt19937,
}

/// The candidates that mirostat looks at, where a chain does not say.
pub const MIROSTAT_M: u32 = 100;

/// One step of a chain.
#[derive(Debug, Clone, PartialEq)]
pub enum ChainStep {
    /// Removes tokens, except those that a mask allows; ids outside the vocabulary are ignored. Not part of a chain's
    /// text: banned tokens are an argument of each [`Sampler::sample`](crate::sampling::Sampler::sample).
    Ban(Vec<Token>),
    /// Adds numbers to logits; -inf removes a token.
    LogitBias(Vec<(Token, f32)>),
    /// Makes the tokens among the last `last_n` less likely. A positive logit is divided by `repeat`, any other is
    /// multiplied by it (Keskar et al., "CTRL", <https://arxiv.org/abs/1909.05858>, section 4.1); then `frequency`
    /// times the token's count and `presence` once are subtracted, as in OpenAI's API. `last_n <= 0` turns the step
    /// off.
    Penalties {
        /// Length of the window in tokens.
        last_n: i32,
        /// Repeat penalty; 1 changes nothing.
        repeat: f32,
        /// Subtracted for each occurrence in the window.
        frequency: f32,
        /// Subtracted once where the token occurs in the window.
        presence: f32,
    },
    /// Keeps the k candidates with the greatest logits; k <= 0 keeps all (Fan et al., "Hierarchical Neural Story
    /// Generation", <https://arxiv.org/abs/1805.04833>).
    TopK(i32),
    /// Nucleus sampling: keeps the fewest most probable candidates whose probabilities sum to at least `p`, but at
    /// least `min_keep`; p >= 1 keeps all (Holtzman et al., "The Curious Case of Neural Text Degeneration",
    /// <https://arxiv.org/abs/1904.09751>).
    TopP {
        /// The probability that the kept candidates sum to, 0 to 1.
        p: f32,
        /// Candidates kept at least, if there are as many.
        min_keep: u32,
    },
    /// Keeps the candidates that are at least `p` times as probable as the most probable one, but at least `min_keep`;
    /// p <= 0 keeps all (Nguyen et al., "Turning Up the Heat: Min-p Sampling", <https://arxiv.org/abs/2407.01082>).
    MinP {
        /// Threshold relative to the greatest probability, 0 to 1.
        p: f32,
        /// Candidates kept at least, if there are as many.
        min_keep: u32,
    },
    /// Keeps the candidates whose logits are at most so many standard deviations below the greatest; 0 and below keep
    /// all (Tang et al., "Top-nσ: Not All Logits Are You Need", <https://arxiv.org/abs/2411.07641>).
    TopNSigma(f32),
    /// Locally typical sampling: keeps the fewest candidates whose surprise is nearest to the entropy and whose
    /// probabilities sum to more than `p`, but at least `min_keep`; p >= 1 keeps all (Meister et al., "Locally Typical
    /// Sampling", <https://arxiv.org/abs/2202.00666>).
    Typical {
        /// The probability that the kept candidates exceed, 0 to 1.
        p: f32,
        /// Candidates kept at least, if there are as many.
        min_keep: u32,
    },
    /// XTC, "exclude top choices": with this probability removes all candidates that are at least as probable as the
    /// threshold, but for the least probable of them, where at least `min_keep` stay (Weidmann,
    /// <https://github.com/oobabooga/text-generation-webui/pull/6335>). A probability of 0 and below and a threshold
    /// above 0.5 change nothing.
    Xtc {
        /// How often it acts, 0 to 1.
        probability: f32,
        /// The probability from which on a candidate is a top choice, 0 to 0.5.
        threshold: f32,
        /// Where fewer candidates would stay, all do.
        min_keep: u32,
    },
    /// Divides the logits; 0 and below keep only the candidate with the greatest logit.
    Temperature(f32),
    /// Divides the logits by a temperature from `temperature - range` (at least 0) to `temperature + range`, which
    /// grows with the entropy of the candidates' probabilities: see [`crate::sampling`], `dynamic_temperature.rs`.
    /// Changes nothing where one candidate is left.
    DynamicTemperature {
        /// Middle of the range.
        temperature: f32,
        /// Half the width of the range; 0 and below make it a plain temperature.
        range: f32,
        /// Power to which the normalised entropy is raised.
        exponent: f32,
    },
    /// See [`Dry`]; with its breakers as tokens, where there are any, once the chain is for a vocabulary.
    Dry(Dry, Option<Arc<Breakers>>),
    /// Mirostat: keeps so many of the most probable candidates that the surprise of the drawn token, over many tokens,
    /// comes to be tau bits (Basu et al., <https://arxiv.org/abs/2007.14966>, algorithm 1). Ends the chain.
    Mirostat {
        /// The surprise aimed at, in bits.
        tau: f32,
        /// How far the bound moves with every token.
        eta: f32,
        /// The number of most probable candidates from which the exponent of their distribution is estimated.
        m: u32,
    },
    /// Mirostat 2.0: keeps the candidates whose surprise is at most a bound, which follows the surprise of what was
    /// drawn (as above, algorithm 2). Ends the chain.
    MirostatV2 {
        /// The surprise aimed at, in bits.
        tau: f32,
        /// How far the bound moves with every token.
        eta: f32,
    },
    /// Adaptive-p: prefers candidates near a probability, such that the mean probability of the drawn tokens comes to
    /// be the target, as in llama.cpp. A target below 0 only draws. Ends the chain.
    AdaptiveP {
        /// The probability aimed at, 0 to 1.
        target: f32,
        /// How much of the mean each token keeps, 0 to 0.99.
        decay: f32,
    },
    /// For filling a gap in a text, as llama.cpp's: adds up the candidates that begin alike, keeps those that are
    /// probable enough, and ends the text where it is the likeliest way on or where none is.
    Infill,
    /// The generator of the whole chain, wherever it is named.
    Rng(Generator),
    /// Chooses the candidate with the greatest logit. Ends the chain.
    Greedy,
    /// Draws a candidate by its probability. Ends the chain; a chain that ends with neither this nor
    /// [`ChainStep::Greedy`] also draws.
    Draw,
    /// The place at which the token trie's mask applies; without this step the mask applies before the first step that
    /// compares candidates.
    Trie,
    /// Only for a device that runs the first part of a chain: returns the candidates that are left, at most so many, to
    /// the host and draws nothing; position and history stay as they are. Ends the part. An earlier step must leave no
    /// more candidates than that. The mask applies only where [`ChainStep::Trie`] names its place.
    HandOver(u32),
}

impl ChainStep {
    /// Whether the step compares candidates with one another, and so may remove some.
    pub fn truncates(&self) -> bool {
        match self {
            ChainStep::Trie | ChainStep::Rng(_) => false,
            step if step.adjusts() => false,
            ChainStep::Temperature(temperature) => *temperature <= 0.0,
            // A dynamic temperature removes none, but depends on all of them.
            _ => true,
        }
    }

    /// Whether it changes the logits of single tokens.
    pub fn adjusts(&self) -> bool {
        matches!(self, ChainStep::Ban(_) | ChainStep::LogitBias(_) | ChainStep::Penalties { .. } | ChainStep::Dry(..))
    }

    /// Whether it must be the last step.
    pub fn ends(&self) -> bool {
        matches!(self, ChainStep::Greedy | ChainStep::Draw | ChainStep::HandOver(_)) || self.selects()
    }

    /// Whether it draws in its own way, and so ends the chain.
    pub fn selects(&self) -> bool {
        matches!(self, ChainStep::Mirostat { .. } | ChainStep::MirostatV2 { .. } | ChainStep::AdaptiveP { .. })
    }

    /// The most candidates that the step leaves, where the step alone bounds them.
    pub(super) fn leaves(&self) -> Option<u32> {
        match *self {
            ChainStep::TopK(k) => u32::try_from(k).ok().filter(|&k| k > 0),
            ChainStep::Temperature(temperature) => (temperature <= 0.0).then_some(1),
            _ => None,
        }
    }

    /// The step that has this form in a chain's text.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> std::result::Result<ChainStep, String> {
        let (name, values) = match text.split_once('=') {
            Some((name, values)) => (name.trim(), Some(values.trim())),
            None => (text.trim(), None),
        };
        let plain = |step: ChainStep| match values {
            None => Ok(step),
            Some(_) => Err(format!("`{name}` takes no value")),
        };
        match name {
            "" => Err(format!("a sampler is missing; known are {KNOWN}")),
            "greedy" => plain(ChainStep::Greedy),
            "dist" => plain(ChainStep::Draw),
            "trie" => plain(ChainStep::Trie),
            "infill" => plain(ChainStep::Infill),
            "rng" => match values {
                Some("counter") => Ok(ChainStep::Rng(Generator::Counter)),
                Some("mt19937") => Ok(ChainStep::Rng(Generator::Mt19937)),
                _ => Err("`rng` is written rng=counter or rng=mt19937".into()),
            },
            "dry" => dry(values).map(|dry| ChainStep::Dry(dry, None)),
            "mirostat" => {
                let numbers = numbers::<3>(name, "tau,eta or tau,eta,m", values)?.at_least(2)?;
                let m = if numbers.count > 2 { numbers.at(2)? } else { MIROSTAT_M };
                Ok(ChainStep::Mirostat { tau: numbers.at(0)?, eta: numbers.at(1)?, m })
            }
            "mirostat_v2" => {
                let [tau, eta] = all(name, "tau,eta", values)?;
                Ok(ChainStep::MirostatV2 { tau: number(tau)?, eta: number(eta)? })
            }
            "adaptive_p" => {
                let [target, decay] = all(name, "target,decay", values)?;
                Ok(ChainStep::AdaptiveP { target: number(target)?, decay: number(decay)? })
            }
            "logit_bias" => biases(values.unwrap_or_default()).map(ChainStep::LogitBias),
            "top_k" => numbers::<1>(name, "k", values)?.one().map(ChainStep::TopK),
            "temp" => numbers::<1>(name, "t", values)?.one().map(ChainStep::Temperature),
            "dynatemp" => {
                let [temperature, range, exponent] = all(name, "t,range,exponent", values)?;
                Ok(ChainStep::DynamicTemperature {
                    temperature: number(temperature)?,
                    range: number(range)?,
                    exponent: number(exponent)?,
                })
            }
            "top_n_sigma" => numbers::<1>(name, "n", values)?.one().map(ChainStep::TopNSigma),
            "top_p" | "min_p" | "typ_p" => {
                let numbers = numbers::<2>(name, "p or p,min_keep", values)?;
                let (p, min_keep) = (numbers.at(0)?, if numbers.count > 1 { numbers.at(1)? } else { 0 });
                Ok(match name {
                    "top_p" => ChainStep::TopP { p, min_keep },
                    "min_p" => ChainStep::MinP { p, min_keep },
                    _ => ChainStep::Typical { p, min_keep },
                })
            }
            "xtc" => {
                let form = "probability,threshold or probability,threshold,min_keep";
                let numbers = numbers::<3>(name, form, values)?.at_least(2)?;
                let min_keep = if numbers.count > 2 { numbers.at(2)? } else { 0 };
                Ok(ChainStep::Xtc { probability: numbers.at(0)?, threshold: numbers.at(1)?, min_keep })
            }
            "penalties" => {
                let [last_n, repeat, frequency, presence] = all(name, "last_n,repeat,frequency,presence", values)?;
                Ok(ChainStep::Penalties {
                    last_n: number(last_n)?,
                    repeat: number(repeat)?,
                    frequency: number(frequency)?,
                    presence: number(presence)?,
                })
            }
            _ => Err(format!("unknown sampler `{}`; known are {KNOWN}", shown(name))),
        }
    }

    /// The name in a chain's text.
    pub fn name(&self) -> &'static str {
        match self {
            ChainStep::Ban(_) => "ban",
            ChainStep::LogitBias(_) => "logit_bias",
            ChainStep::Penalties { .. } => "penalties",
            ChainStep::TopK(_) => "top_k",
            ChainStep::TopP { .. } => "top_p",
            ChainStep::MinP { .. } => "min_p",
            ChainStep::TopNSigma(_) => "top_n_sigma",
            ChainStep::Typical { .. } => "typ_p",
            ChainStep::Xtc { .. } => "xtc",
            ChainStep::Temperature(_) => "temp",
            ChainStep::DynamicTemperature { .. } => "dynatemp",
            ChainStep::Dry(..) => "dry",
            ChainStep::Mirostat { .. } => "mirostat",
            ChainStep::MirostatV2 { .. } => "mirostat_v2",
            ChainStep::AdaptiveP { .. } => "adaptive_p",
            ChainStep::Infill => "infill",
            ChainStep::Rng(_) => "rng",
            ChainStep::Greedy => "greedy",
            ChainStep::Draw => "dist",
            ChainStep::Trie => "trie",
            ChainStep::HandOver(_) => "hand_over",
        }
    }
}

/// The index of the step before which the mask applies: the first step that truncates, else the end of the chain.
/// `None` where the chain names the place itself, or ends with [`ChainStep::HandOver`].
pub fn mask_place(steps: &[ChainStep]) -> Option<usize> {
    if steps.contains(&ChainStep::Trie) || matches!(steps.last(), Some(ChainStep::HandOver(_))) {
        return None;
    }
    Some(steps.iter().position(ChainStep::truncates).unwrap_or(steps.len()))
}

/// The step in a chain's text.
impl fmt::Display for ChainStep {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name();
        match self {
            ChainStep::LogitBias(biases) => {
                for (index, (token, bias)) in biases.iter().enumerate() {
                    write!(out, "{}{token}:{bias}", if index == 0 { "logit_bias=" } else { "," })?;
                }
                Ok(())
            }
            ChainStep::Penalties { last_n, repeat, frequency, presence } => {
                write!(out, "{name}={last_n},{repeat},{frequency},{presence}")
            }
            ChainStep::TopK(k) => write!(out, "{name}={k}"),
            ChainStep::TopP { p, min_keep } | ChainStep::MinP { p, min_keep } | ChainStep::Typical { p, min_keep } => {
                write!(out, "{name}={p}")?;
                at_least(out, *min_keep)
            }
            ChainStep::Xtc { probability, threshold, min_keep } => {
                write!(out, "{name}={probability},{threshold}")?;
                at_least(out, *min_keep)
            }
            ChainStep::Temperature(number) | ChainStep::TopNSigma(number) => write!(out, "{name}={number}"),
            ChainStep::DynamicTemperature { temperature, range, exponent } => {
                write!(out, "{name}={temperature},{range},{exponent}")
            }
            ChainStep::Dry(dry, _) => write!(out, "{name}={dry}"),
            ChainStep::Mirostat { tau, eta, m } => {
                write!(out, "{name}={tau},{eta}")?;
                if *m == MIROSTAT_M { Ok(()) } else { write!(out, ",{m}") }
            }
            ChainStep::MirostatV2 { tau, eta } => write!(out, "{name}={tau},{eta}"),
            ChainStep::AdaptiveP { target, decay } => write!(out, "{name}={target},{decay}"),
            ChainStep::Rng(Generator::Counter) => write!(out, "{name}=counter"),
            ChainStep::Rng(Generator::Mt19937) => write!(out, "{name}=mt19937"),
            // Those without numbers.
            _ => out.write_str(name),
        }
    }
}

fn at_least(out: &mut fmt::Formatter<'_>, min_keep: u32) -> fmt::Result {
    if min_keep > 0 { write!(out, ",{min_keep}") } else { Ok(()) }
}

/// The numbers, then the breakers where they are not the default ones.
impl fmt::Display for Dry {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Dry { multiplier, base, allowed_length, last_n, breakers } = self;
        write!(out, "{multiplier},{base},{allowed_length},{last_n}")?;
        if breakers.is_empty() {
            return out.write_str(",none");
        }
        if *breakers == DRY_BREAKERS {
            return Ok(());
        }
        for breaker in breakers {
            out.write_str(",")?;
            for c in breaker.chars() {
                match c {
                    '\n' => out.write_str("\\n")?,
                    ' ' | ',' | ';' | '\\' | '\0'..='\x1f' | '\x7f' => write!(out, "\\x{:02x}", u32::from(c))?,
                    _ => write!(out, "{c}")?,
                }
            }
        }
        Ok(())
    }
}

/// Four numbers, and perhaps breakers ([`Dry::breaker`]).
fn dry(values: Option<&str>) -> std::result::Result<Dry, String> {
    let form = || "`dry` is written dry=multiplier,base,allowed_length,last_n or with ,breaker,breaker".to_owned();
    let mut values = values.unwrap_or_default().split(',').map(str::trim);
    let mut next = || values.next().filter(|text| !text.is_empty()).ok_or_else(form);
    let (multiplier, base) = (number(next()?)?, number(next()?)?);
    let (allowed_length, last_n) = (number(next()?)?, number(next()?)?);
    let breakers = values.map(Dry::breaker).collect::<std::result::Result<Vec<String>, String>>()?;
    Ok(Dry { multiplier, base, allowed_length, last_n, ..Dry::default() }.with(&breakers))
}

/// The natural logarithm of the greatest f32, above which no power may be.
const LN_MAX: f32 = 88.722_84;

impl Dry {
    /// Whether these numbers leave anything to do.
    pub(crate) fn acts(&self) -> bool {
        self.multiplier != 0.0 && self.base >= 1.0 && self.last_n > 0
    }

    /// What a token loses that would prolong a repetition of so many tokens.
    pub(crate) fn loss(&self, length: u32) -> f32 {
        // Without a limit where the base is as good as 1.
        let most = if self.base > 1.000_001 { i64::from((LN_MAX / self.base.ln()) as i32) } else { i64::MAX };
        let power = (i64::from(length) - i64::from(self.allowed_length)).min(most);
        (f64::from(self.multiplier) * f64::from(self.base).powf(power as f64)) as f32
    }

    /// With these breakers, where there are any; `none` alone is no text.
    pub fn with(mut self, breakers: &[impl AsRef<str>]) -> Dry {
        match breakers {
            [] => {}
            [none] if none.as_ref() == "none" => self.breakers.clear(),
            texts => self.breakers = texts.iter().map(|text| text.as_ref().to_owned()).collect(),
        }
        self
    }

    /// The breaker that a text writes in which `\n` is a line feed and `\xHH` an ASCII character.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn breaker(text: &str) -> std::result::Result<String, String> {
        let mut parts = text.split('\\');
        let mut breaker = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let escaped = match (part.as_bytes().first(), part.get(1..3)) {
                (Some(b'n'), _) => Some(('\n', 1)),
                (Some(b'x'), Some(digits)) => u8::from_str_radix(digits, 16).ok().map(|byte| (char::from(byte), 3)),
                _ => None,
            };
            let (c, length) = escaped.filter(|(c, _)| c.is_ascii()).ok_or_else(|| {
                format!("`{}` has a backslash without n or an ASCII character's xHH after it", shown(text))
            })?;
            breaker.push(c);
            breaker.push_str(&part[length..]);
        }
        Ok(breaker)
    }
}

/// The texts of up to `N` numbers of a step that has this name and form.
struct Numbers<'a, const N: usize> {
    texts: [&'a str; N],
    count: usize,
    name: &'a str,
    form: &'a str,
}

fn numbers<'a, const N: usize>(
    name: &'a str,
    form: &'a str,
    values: Option<&'a str>,
) -> std::result::Result<Numbers<'a, N>, String> {
    let wrong = || format!("`{name}` is written {name}={form}");
    let values = values.filter(|values| !values.is_empty()).ok_or_else(wrong)?;
    let mut numbers = Numbers { texts: [""; N], count: 0, name, form };
    for value in values.split(',') {
        *numbers.texts.get_mut(numbers.count).ok_or_else(wrong)? = value.trim();
        numbers.count += 1;
    }
    Ok(numbers)
}

/// The texts of exactly `N` numbers.
fn all<'a, const N: usize>(
    name: &'a str,
    form: &'a str,
    values: Option<&'a str>,
) -> std::result::Result<[&'a str; N], String> {
    Ok(numbers::<N>(name, form, values)?.at_least(N)?.texts)
}

impl<const N: usize> Numbers<'_, N> {
    fn at_least(self, count: usize) -> std::result::Result<Self, String> {
        let Numbers { name, form, .. } = self;
        if self.count >= count { Ok(self) } else { Err(format!("`{name}` is written {name}={form}")) }
    }

    fn at<T: FromStr>(&self, index: usize) -> std::result::Result<T, String> {
        let text = self.texts.get(index).copied().unwrap_or_default();
        number(text)
    }

    fn one<T: FromStr>(&self) -> std::result::Result<T, String> {
        self.at(0)
    }
}

fn number<T: FromStr>(text: &str) -> std::result::Result<T, String> {
    text.parse().map_err(|_| format!("`{}` is not a number it can take", shown(text)))
}

fn biases(values: &str) -> std::result::Result<Vec<(Token, f32)>, String> {
    if values.is_empty() {
        return Err("`logit_bias` is written logit_bias=id:value,id:value".into());
    }
    let one = |pair: &str| {
        let (id, bias) =
            pair.split_once(':').ok_or_else(|| format!("`{}` is not of the form id:value", shown(pair.trim())))?;
        Ok((number(id.trim())?, number(bias.trim())?))
    };
    values.split(',').map(one).collect()
}
