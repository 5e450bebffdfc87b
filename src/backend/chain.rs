//! The steps of a sampler chain as data: what the host's sampler and a device both follow, to the same token.
//!
//! The rules that hold wherever a chain runs are here once: what a step does to the candidates, and where the token
//! trie's mask applies. So is its text: a new step is a variant, its name and its form, read and written.

use crate::Token;
use crate::gguf::shown;
use std::fmt;
use std::str::FromStr;

/// The names that a chain's text can have.
const KNOWN: &str = "logit_bias, penalties, top_k, top_p, min_p, temp, dynatemp, greedy, dist, trie";

/// One step of a chain.
#[derive(Debug, Clone, PartialEq)]
pub enum ChainStep {
    /// Takes tokens out, except those that a mask allows; what is no token of the vocabulary is ignored. Not part of a
    /// chain's text: what is banned is said with each row ([`Sampler::sample`](crate::sampling::Sampler::sample)).
    Ban(Vec<Token>),
    /// Adds numbers to logits; -inf takes a token out.
    LogitBias(Vec<(Token, f32)>),
    /// Makes the tokens of the last `last_n` less likely: a positive logit is divided by `repeat`, another multiplied,
    /// then `frequency` times the count and `presence` once are subtracted. `last_n <= 0` looks back on nothing.
    Penalties {
        /// Tokens looked back on.
        last_n: i32,
        /// Factor; 1 is neutral.
        repeat: f32,
        /// Loss per occurrence.
        frequency: f32,
        /// Loss for having occurred.
        presence: f32,
    },
    /// Keeps the k best; k <= 0 keeps all.
    TopK(i32),
    /// Keeps the fewest best whose probabilities reach `p`, but at least `min_keep`; p >= 1 keeps all.
    TopP {
        /// The probability to reach.
        p: f32,
        /// Candidates kept at least, if there are as many.
        min_keep: u32,
    },
    /// Keeps those at least `p` times as probable as the best, but at least `min_keep`; p <= 0 keeps all.
    MinP {
        /// The share of the best one's probability.
        p: f32,
        /// Candidates kept at least, if there are as many.
        min_keep: u32,
    },
    /// Divides the logits; 0 and below keep only the best.
    Temperature(f32),
    /// Divides the logits by a temperature between `temperature - range` (or 0) and `temperature + range`, the higher
    /// the more evenly the candidates are spread: the entropy's share of the greatest possible one, raised to
    /// `exponent`. Changes nothing where one candidate is left.
    DynamicTemperature {
        /// The middle.
        temperature: f32,
        /// The distance; 0 and below make it a plain temperature.
        range: f32,
        /// The power.
        exponent: f32,
    },
    /// Takes the best. Ends the chain.
    Greedy,
    /// Draws by probability. Ends the chain; a chain that ends with neither this nor [`ChainStep::Greedy`] draws all
    /// the same.
    Draw,
    /// The place at which the token trie's mask applies; without it that is before the first step that takes candidates
    /// out.
    Trie,
    /// Of a device that follows the first part of a chain: hands what is left to the host, at most so many candidates,
    /// and draws nothing: neither position nor history goes on. Ends the part; a step before it must see to it that no
    /// more are left. The mask applies only where it is named.
    HandOver(u32),
}

impl ChainStep {
    /// Whether the step compares candidates with one another, and so may take some out.
    pub fn truncates(&self) -> bool {
        match self {
            ChainStep::Ban(_) | ChainStep::LogitBias(_) | ChainStep::Penalties { .. } | ChainStep::Trie => false,
            ChainStep::Temperature(temperature) => *temperature <= 0.0,
            // A dynamic temperature takes none out, but looks at all of them.
            _ => true,
        }
    }

    /// Whether it changes single tokens' logits.
    pub fn adjusts(&self) -> bool {
        matches!(self, ChainStep::Ban(_) | ChainStep::LogitBias(_) | ChainStep::Penalties { .. })
    }

    /// Whether nothing can follow it.
    pub fn ends(&self) -> bool {
        matches!(self, ChainStep::Greedy | ChainStep::Draw | ChainStep::HandOver(_))
    }

    /// The most candidates that the step leaves, if it says so by itself.
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
            "top_p" | "min_p" => {
                let numbers = numbers::<2>(name, "p or p,min_keep", values)?;
                let (p, min_keep) = (numbers.at(0)?, if numbers.count > 1 { numbers.at(1)? } else { 0 });
                Ok(if name == "top_p" { ChainStep::TopP { p, min_keep } } else { ChainStep::MinP { p, min_keep } })
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
            ChainStep::Temperature(_) => "temp",
            ChainStep::DynamicTemperature { .. } => "dynatemp",
            ChainStep::Greedy => "greedy",
            ChainStep::Draw => "dist",
            ChainStep::Trie => "trie",
            ChainStep::HandOver(_) => "hand_over",
        }
    }
}

/// The place of the mask in a chain that may name it: where the first step follows that truncates, else at the end.
/// `None` where it is named, or the chain hands over without it.
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
            ChainStep::TopP { p, min_keep: 0 } | ChainStep::MinP { p, min_keep: 0 } => write!(out, "{name}={p}"),
            ChainStep::TopP { p, min_keep } | ChainStep::MinP { p, min_keep } => write!(out, "{name}={p},{min_keep}"),
            ChainStep::Temperature(temperature) => write!(out, "{name}={temperature}"),
            ChainStep::DynamicTemperature { temperature, range, exponent } => {
                write!(out, "{name}={temperature},{range},{exponent}")
            }
            ChainStep::Ban(_) | ChainStep::Greedy | ChainStep::Draw | ChainStep::Trie | ChainStep::HandOver(_) => {
                out.write_str(name)
            }
        }
    }
}

/// The texts of up to `N` numbers.
struct Numbers<'a, const N: usize> {
    texts: [&'a str; N],
    count: usize,
}

fn numbers<'a, const N: usize>(
    name: &str,
    form: &str,
    values: Option<&'a str>,
) -> std::result::Result<Numbers<'a, N>, String> {
    let wrong = || format!("`{name}` is written {name}={form}");
    let values = values.filter(|values| !values.is_empty()).ok_or_else(wrong)?;
    let mut numbers = Numbers { texts: [""; N], count: 0 };
    for value in values.split(',') {
        *numbers.texts.get_mut(numbers.count).ok_or_else(wrong)? = value.trim();
        numbers.count += 1;
    }
    Ok(numbers)
}

/// The texts of exactly `N` numbers.
fn all<'a, const N: usize>(
    name: &str,
    form: &str,
    values: Option<&'a str>,
) -> std::result::Result<[&'a str; N], String> {
    let Numbers { texts, count } = numbers::<N>(name, form, values)?;
    if count == N { Ok(texts) } else { Err(format!("`{name}` is written {name}={form}")) }
}

impl<const N: usize> Numbers<'_, N> {
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
