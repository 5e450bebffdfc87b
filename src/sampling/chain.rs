//! A chain of samplers as data, and its text form: `top_k=40;top_p=0.95;min_p=0.05;temp=0.8`.

use std::fmt;
use std::str::FromStr;

use crate::backend::{ChainStep, Generator};
use crate::{Error, Result};

/// An ordered list of samplers.
///
/// The text form joins the steps with `;`, each in the form that [`ChainStep::parse`] reads. The empty text is the
/// empty chain, which only draws.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Chain {
    /// The samplers, first applied first.
    pub steps: Vec<ChainStep>,
}

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
            let step = ChainStep::parse(part).map_err(|problem| {
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
    /// [`Error::InvalidArgument`] when a step follows one that ends the chain, or the trie's place or the generator is
    /// named twice.
    pub(super) fn check_order(&self) -> Result<()> {
        let (mut tries, mut generators) = (0, 0);
        for (index, step) in self.steps.iter().enumerate() {
            let last = index + 1 == self.steps.len();
            if step.ends() && !last {
                return Err(Error::InvalidArgument(format!(
                    "Sampler chain, step {}: `{step}` takes the token, so nothing can follow it",
                    index + 1
                )));
            }
            tries += u32::from(matches!(step, ChainStep::Trie));
            generators += u32::from(matches!(step, ChainStep::Rng(_)));
            if tries > 1 || generators > 1 {
                return Err(Error::InvalidArgument(format!(
                    "Sampler chain, step {}: `{}` can stand in one place only",
                    index + 1,
                    step.name()
                )));
            }
        }
        Ok(())
    }

    /// Where the random numbers come from.
    pub fn generator(&self) -> Generator {
        let named = self.steps.iter().find_map(|step| match step {
            ChainStep::Rng(generator) => Some(*generator),
            _ => None,
        });
        named.unwrap_or_default()
    }
}

impl fmt::Display for Chain {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, step) in self.steps.iter().enumerate() {
            write!(out, "{}{step}", if index == 0 { "" } else { ";" })?;
        }
        Ok(())
    }
}
