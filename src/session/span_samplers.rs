//! The samplers of a generation whose grammar samples spans in ways of their own.

use crate::grammar::{SpanPlan, SpanSampling};
use crate::sampling::{Chain, ChainStep, Sampler};
use crate::{Result, Token};

/// A sampler for each way of sampling beside the session's. All of them see every token; one is in use.
#[derive(Default)]
pub(crate) struct SpanSamplers {
    /// By number in the plan; `None` where the session's sampler serves, as it does for greedy choices. In the place of
    /// the one in use is the session's.
    others: Vec<Option<Sampler>>,
    active: Option<usize>,
}

impl SpanSamplers {
    /// Samplers for all ways of a plan, which change `chain`.
    ///
    /// # Errors
    /// As [`Sampler::new`].
    pub(crate) fn new(
        plan: &SpanPlan,
        chain: &Chain,
        make: impl Fn(&Chain) -> Result<Sampler>,
    ) -> Result<SpanSamplers> {
        let other = |sampling: &SpanSampling| match *sampling {
            SpanSampling::Greedy => Ok(None),
            SpanSampling::Chain { temperature, top_k, top_p } => {
                make(&overridden(chain.clone(), temperature, top_k, top_p)).map(Some)
            }
        };
        Ok(SpanSamplers { others: plan.samplings().iter().map(other).collect::<Result<_>>()?, active: None })
    }

    /// Puts the sampler of a way, or with `None` the session's, into `sampler`. Whether it was another.
    pub(crate) fn switch(&mut self, sampler: &mut Sampler, to: Option<usize>) -> bool {
        let to = to.filter(|&index| self.active == Some(index) || matches!(self.others.get(index), Some(Some(_))));
        if to == self.active {
            return false;
        }
        for index in self.active.into_iter().chain(to) {
            if let Some(Some(other)) = self.others.get_mut(index) {
                std::mem::swap(other, sampler);
            }
        }
        self.active = to;
        true
    }

    /// [`Sampler::accept`] of those that are not in use.
    pub(crate) fn accept(&mut self, token: Token) {
        self.others.iter_mut().flatten().for_each(|sampler| sampler.accept(token));
    }

    /// [`Sampler::restart`] of those that are not in use.
    pub(crate) fn restart(&mut self, nth: u64) {
        self.others.iter_mut().flatten().for_each(|sampler| sampler.restart(nth));
    }
}

/// A chain with the given numbers in place of its own; see [`restated`]. With a temperature it draws, even if it was
/// greedy. A top-k that it does not have is inserted before the first step that compares candidates.
fn overridden(chain: Chain, temperature: Option<f32>, top_k: Option<i32>, top_p: Option<f32>) -> Chain {
    let mut chain = restated(chain, temperature, top_p);
    if temperature.is_some()
        && let Some(last) = chain.steps.last_mut()
        && *last == ChainStep::Greedy
    {
        *last = ChainStep::Draw;
    }
    if let Some(k) = top_k {
        let mut stated = chain.steps.iter_mut().filter(|step| matches!(step, ChainStep::TopK(_))).peekable();
        if stated.peek().is_some() {
            stated.for_each(|step| *step = ChainStep::TopK(k));
        } else {
            let at = chain.steps.iter().position(|step| !step.adjusts()).unwrap_or(chain.steps.len());
            chain.steps.insert(at, ChainStep::TopK(k));
        }
    }
    chain
}

/// A chain with the given temperature and top-p in place of its own. Where it has none, top-p is inserted before the
/// temperature and the temperature at the end, before what takes the token; a chain that ends with `greedy` stays
/// greedy. A dynamic temperature is replaced by the plain one.
pub(super) fn restated(mut chain: Chain, temperature: Option<f32>, top_p: Option<f32>) -> Chain {
    let steps = &mut chain.steps;
    let place =
        |steps: &[ChainStep], before: fn(&ChainStep) -> bool| steps.iter().position(before).unwrap_or(steps.len());
    if let Some(p) = top_p {
        let stated = steps.iter_mut().filter_map(|step| match step {
            ChainStep::TopP { p, .. } => Some(p),
            _ => None,
        });
        if stated.map(|old| *old = p).count() == 0 {
            let ends = |step: &ChainStep| {
                matches!(step, ChainStep::Temperature(_) | ChainStep::DynamicTemperature { .. }) || step.ends()
            };
            let at = place(steps, ends);
            steps.insert(at, ChainStep::TopP { p, min_keep: 0 });
        }
    }
    if let Some(temperature) = temperature {
        let is_temperature =
            |step: &&mut ChainStep| matches!(step, ChainStep::Temperature(_) | ChainStep::DynamicTemperature { .. });
        let stated = steps.iter_mut().filter(is_temperature);
        if stated.map(|step| *step = ChainStep::Temperature(temperature)).count() == 0 {
            let at = place(steps, ChainStep::ends);
            steps.insert(at, ChainStep::Temperature(temperature));
        }
    }
    chain
}
