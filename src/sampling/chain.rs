//! A chain of samplers as data, and its text form: `top_k=40;top_p=0.95;min_p=0.05;temp=0.8`.

use std::fmt;
use std::str::FromStr;

use crate::backend::ChainStep;
use crate::gguf::shown;
use crate::{Error, Result, Token};

/// An ordered list of samplers.
///
/// The text form joins the steps with `;`. They are `logit_bias=id:value,…`,
/// `penalties=last_n,repeat,frequency,presence`, `top_k=k`, `top_p=p` or `top_p=p,min_keep`, `min_p=p` or
/// `min_p=p,min_keep`, `temp=t`, `dynatemp=t,range,exponent`, `greedy`, `dist` and `trie`. White space around names and
/// values is ignored. The empty text is the empty chain, which only draws.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Chain {
    /// The samplers, first applied first.
    pub steps: Vec<ChainStep>,
}

const KNOWN: &str = "logit_bias, penalties, top_k, top_p, min_p, temp, dynatemp, greedy, dist, trie";

impl FromStr for Chain {
    type Err = Error;

    /// # Errors
    /// [`Error::InvalidArgument`] naming the step, its byte position in the text and what is wrong with it.
    fn from_str(text: &str) -> Result<Chain> {
        let mut steps = Vec::new();
        if text.trim().is_empty() {
            return Ok(Chain { steps });
        }
        let mut position = 0;
        for part in text.split(';') {
            let step = step(part).map_err(|problem| {
                let at = position + (part.len() - part.trim_start().len());
                Error::InvalidArgument(format!("Sampler chain, step {} at byte {at}: {problem}", steps.len() + 1))
            })?;
            steps.push(step);
            position += part.len() + 1;
        }
        let chain = Chain { steps };
        chain.check_order()?;
        Ok(chain)
    }
}

impl Chain {
    /// # Errors
    /// [`Error::InvalidArgument`] when a step follows one that ends the chain, or the trie's place is named twice.
    pub(super) fn check_order(&self) -> Result<()> {
        let mut tries = 0;
        for (index, step) in self.steps.iter().enumerate() {
            let last = index + 1 == self.steps.len();
            if step.ends() && !last {
                return Err(Error::InvalidArgument(format!(
                    "Sampler chain, step {}: `{step}` takes the token, so nothing can follow it",
                    index + 1
                )));
            }
            tries += u32::from(matches!(step, ChainStep::Trie));
            if tries > 1 {
                return Err(Error::InvalidArgument(format!(
                    "Sampler chain, step {}: `trie` can stand in one place only",
                    index + 1
                )));
            }
        }
        Ok(())
    }
}

/// One step from its text, or what is wrong with it.
fn step(text: &str) -> std::result::Result<ChainStep, String> {
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

impl fmt::Display for Chain {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, step) in self.steps.iter().enumerate() {
            write!(out, "{}{step}", if index == 0 { "" } else { ";" })?;
        }
        Ok(())
    }
}
