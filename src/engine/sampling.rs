//! Sampling on the device, and the step that runs ahead.
//!
//! Where a device samples by itself, a decode step is one submission from token to token. The token also stays on the
//! device, where the embedding of the next step reads it, so that step is submitted before the host has read its token:
//! the device never waits for the host. When the next token is not what the step ahead assumed (a forced token, a mask, the
//! end), the step is taken back: its cell is freed, its sampling undone.
//!
//! Invariant: at most one step is ahead; its cell belongs to no slot's `cells`. Everything else the engine does settles it
//! first.

use super::{Engine, How, OutputRows, SlotId};
use crate::backend::{Batch, Children, SAMPLED, SampleProblem, SampleResult, SampleSpec, State};
use crate::graph::Part;
use crate::{Error, Result, Token};
use std::sync::atomic::AtomicBool;

/// A step under way behind the last token that the host knows.
pub(super) struct Ahead {
    slot: SlotId,
    cell: u32,
}

impl Engine {
    /// Sample the slot's tokens on its device by this chain from now on. `false` where the device does not do that, or
    /// not all of the chain: then logits have to be asked for.
    pub fn start_sampling(&mut self, slot: SlotId, spec: &SampleSpec) -> Result<bool> {
        self.settle()?;
        self.last_sampled = None;
        let head = self.model.place(Part::Head);
        self.states[head].start_sampling(spec, &self.slots[slot.0].tokens)
    }

    /// Append tokens (possibly none) and sample the one behind them on the device, as [`Engine::start_sampling`] has set.
    /// Only `children` may win, where there are any. With `ahead` the step behind the sampled token is started as well.
    /// `candidates` takes over the best ones, as many as the chain reports.
    pub fn sample(
        &mut self,
        slot: SlotId,
        tokens: &[Token],
        children: Option<Children<'_>>,
        ahead: bool,
        candidates: &mut Vec<(Token, f32, f32)>,
        cancel: &AtomicBool,
    ) -> Result<SampleResult> {
        self.check_tokens(tokens)?;
        let sampled = self.last_sampled.take();
        match (self.ahead.take(), tokens) {
            // The step ahead was this one.
            (Some(step), &[token]) if step.slot == slot && sampled == Some(token) && children.is_none() => {
                let s = &mut self.slots[slot.0];
                s.tokens.push(token);
                s.cells.push(step.cell);
            }
            (step, _) => {
                self.ahead = step;
                self.settle()?;
                self.submit(slot, tokens, sampled, children, cancel)?;
            }
        }
        if ahead && children.is_none() && self.room(slot) > 0 && self.cells.n_free() > 0 {
            self.compute(slot, &[SAMPLED], OutputRows::Last, How::Sample, cancel)?;
            self.ahead = self.inputs.cells.first().map(|&cell| Ahead { slot, cell });
        }
        let result = self.sampler().sampled(candidates)?;
        match result.problem {
            None => {
                self.last_sampled = Some(result.token);
                Ok(result)
            }
            Some(SampleProblem::Nan(token)) => Err(Error::NanLogits { row: 0, token: token as usize }),
            Some(SampleProblem::NoCandidate) => {
                Err(Error::InvalidArgument("Every logit is -inf: there is no token to sample".into()))
            }
        }
    }

    /// Evaluate tokens and sample behind them; `sampled` is the token that the device already took note of.
    fn submit(
        &mut self,
        slot: SlotId,
        tokens: &[Token],
        sampled: Option<Token>,
        children: Option<Children<'_>>,
        cancel: &AtomicBool,
    ) -> Result<()> {
        let known = usize::from(sampled.is_some() && tokens.first() == sampled.as_ref());
        if known < tokens.len() {
            self.sampler().accept(&tokens[known..])?;
        }
        self.sampler().arm(children)?;
        if let [_] = tokens {
            return self.run(slot, tokens, OutputRows::Last, How::Sample, cancel);
        }
        self.evaluate(slot, tokens, cancel)?;
        if self.hidden_of != Some(slot) {
            return Err(Error::InvalidArgument(
                "A token was to be sampled in a slot that was not evaluated last".into(),
            ));
        }
        self.stats.head_passes += 1;
        self.plans.head.run(&mut self.states, &Batch { sample: true, ..Batch::default() }, 1, cancel)
    }

    /// Take back the step that is ahead, where there is one.
    pub fn settle(&mut self) -> Result<()> {
        let Some(Ahead { slot, cell }) = self.ahead.take() else { return Ok(()) };
        self.cells.free(cell);
        self.hidden_of = None;
        let last = self.last_sampled.or(self.slots[slot.0].tokens.last().copied());
        let sampler = self.sampler();
        sampler.sampled(&mut Vec::new())?;
        sampler.take_back(last.unwrap_or(SAMPLED))
    }

    fn sampler(&mut self) -> &mut dyn State {
        &mut *self.states[self.model.place(Part::Head)]
    }
}
