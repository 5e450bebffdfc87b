//! Sampling on the device, and the step that runs ahead.
//!
//! Where a device samples by itself, a decode step is one submission from token to token. The token also stays on the
//! device, where the embedding of the next step reads it, so that step is submitted before the host has read its token:
//! the device never waits for the host. When the next token is not what the step ahead assumed (a forced token, a mask,
//! the end), the step is taken back: its cell is freed, its sampling undone.
//!
//! Inside a span the device may go on by itself from choice to choice, see `walk.rs`.
//!
//! Invariants: at most one step, or one walk, is ahead; its cells belong to no slot's `cells`. Everything else the
//! engine does settles it first. A device that samples a slot knows all its tokens: whatever changes them otherwise
//! ends the sampling there.

use super::walk::Walking;
use super::{Engine, How, OutputRows, SlotId};
use crate::backend::{
    Children, DeviceSampler, Followed, SampleProblem, SampleResult, SampleRow, SampleSpec, SampledRow, sampled_by,
};
use crate::trie::{Node, Trie};
use crate::{Error, Result, Token};
use std::sync::atomic::AtomicBool;

/// What may be started behind a token before the host knows it.
#[derive(Debug, Clone, Copy)]
pub enum Following<'a> {
    /// Nothing.
    Nothing,
    /// The step behind it.
    Step,
    /// The walk through this trie, which the device holds, from this node, whose children the token is one of, and over
    /// at most so many tokens.
    Walk(&'a Trie, Node, usize),
}

/// What is under way behind the last token that the host knows.
pub(super) enum Ahead {
    /// A step, whose row is in this cell.
    Step(SlotId, u32),
    /// A walk.
    Walk(Walking),
}

/// What a device knows of the slot that it samples.
#[derive(Clone, Copy)]
pub(super) struct OnDevice {
    /// Whether a mask stands before everything in the chain that looks at other tokens' logits.
    masks_first: bool,
    /// The token sampled last, until it is appended: the device has taken note of it.
    pub sampled: Option<Token>,
}

impl Engine {
    /// Sample the slot's tokens on its device by this chain from now on. Says how many of the chain's steps the device
    /// follows: with all of them it draws; with fewer, results come with the candidates that the host goes on with
    /// ([`crate::sampling::Sampler::resume`]); with none, logits have to be asked for. A prefill or a truncation ends
    /// it.
    pub fn start_sampling(&mut self, slot: SlotId, spec: &SampleSpec) -> Result<usize> {
        self.settle()?;
        let head = self.model.outline().places().logits;
        let s = &mut self.slots[slot.0];
        let followed = match self.states[head].sampler() {
            Some(sampler) => sampler.start(slot.0, spec, &s.tokens)?,
            None => None,
        };
        s.on_device = followed.map(|_| OnDevice { masks_first: spec.masks_first(), sampled: None });
        let Followed { steps, candidates } = followed.unwrap_or(Followed { steps: 0, candidates: 0 });
        // A row of results can be any slot's.
        self.found.iter_mut().for_each(|row| row.candidates.reserve(candidates));
        Ok(steps)
    }

    /// Whether the logits are on a device that can sample, some chains at least: any but the CPU, where sampling is the
    /// host's.
    pub fn has_sampler(&self) -> bool {
        self.model.outline().places().logits != 0
    }

    /// Ask for the slot's logits again from now on.
    pub fn stop_sampling(&mut self, slot: SlotId) -> Result<()> {
        self.settle()?;
        self.slots[slot.0].on_device = None;
        Ok(())
    }

    /// Append tokens (possibly none) and sample the one behind them on the device, as [`Engine::start_sampling`] has
    /// set. Only `children` may win, where there are any. What is `following` the sampled token is started as well,
    /// where it can be. `candidates` takes over the best ones, as many as the chain reports, or those that the host
    /// goes on with; in that case there is no token, and nothing can follow.
    pub fn sample(
        &mut self,
        slot: SlotId,
        tokens: &[Token],
        children: Option<Children<'_>>,
        following: Following<'_>,
        candidates: &mut Vec<(Token, f32, f32)>,
        cancel: &AtomicBool,
    ) -> Result<SampleResult> {
        self.check_tokens(tokens)?;
        let sampled = self.slots[slot.0].on_device.and_then(|known| known.sampled);
        match self.ahead.take() {
            // The step ahead was this one.
            Some(Ahead::Step(whose, cell)) if whose == slot && sampled.as_slice() == tokens && children.is_none() => {
                let s = &mut self.slots[slot.0];
                s.tokens.extend_from_slice(tokens);
                s.cells.push(cell);
                self.note_sampled(slot, None);
            }
            Some(Ahead::Walk(mut walking)) => {
                let found = self.walked(&mut walking, slot, tokens, following);
                self.ahead = Some(Ahead::Walk(walking));
                if let Some(result) = found? {
                    candidates.clear();
                    return problem(&result).map_or(Ok(result), Err);
                }
                self.settle()?;
                self.submit(slot, tokens, children, cancel)?;
            }
            step => {
                self.ahead = step;
                self.settle()?;
                self.submit(slot, tokens, children, cancel)?;
            }
        }
        let places = self.model.outline().places();
        let stays = places.embedding == places.logits;
        match (following, children) {
            (Following::Step, None) if stays && self.room(slot) > 0 && self.cells.n_free() > 0 => {
                self.run_ahead(slot, cancel)?;
            }
            (Following::Walk(trie, node, most), Some(children)) => {
                self.walk(slot, trie, node, children, most, cancel)?;
            }
            _ => {}
        }
        self.read_sampled()?;
        let found = &self.found[0];
        if let Some(error) = problem(&found.result) {
            return Err(error);
        }
        candidates.clone_from(&found.candidates);
        Ok(found.result)
    }

    /// Start the step behind the one under way.
    fn run_ahead(&mut self, slot: SlotId, cancel: &AtomicBool) -> Result<()> {
        if let Err(error) = self.compute(slot, &[sampled_by(slot.0)], OutputRows::Last, How::Sample(&[]), cancel) {
            return self.abandon(slot, error);
        }
        self.ahead = self.inputs.cells.first().map(|&cell| Ahead::Step(slot, cell));
        Ok(())
    }

    /// Nothing could be started behind the step under way. Nobody gets its token then: left there, it would be read as
    /// the next one's.
    pub(super) fn abandon(&mut self, slot: SlotId, error: Error) -> Result<()> {
        let dropped = self.read_sampled();
        self.slots[slot.0].on_device = None;
        dropped.and(Err(error))
    }

    /// Evaluate tokens and sample behind them.
    fn submit(
        &mut self,
        slot: SlotId,
        tokens: &[Token],
        children: Option<Children<'_>>,
        cancel: &AtomicBool,
    ) -> Result<()> {
        self.tell(slot, tokens, children)?;
        let known = self.slots[slot.0].on_device.take();
        let masks_first = known.is_some_and(|known| known.masks_first);
        let listed = children.map_or(&[][..], |children| children.listed(masks_first));
        if let [_] = tokens {
            self.run(slot, tokens, OutputRows::Last, How::Sample(listed), cancel)?;
        } else {
            self.evaluate(slot, tokens, cancel)?;
            self.run_head(slot, listed, &[SampleRow { sequence: slot.0 as u32, row: 0 }], cancel)?;
        }
        self.slots[slot.0].on_device = known;
        Ok(())
    }

    /// Tell the device what comes next in a slot that it samples: tokens that it did not sample itself, and the mask.
    pub(super) fn tell(&mut self, slot: SlotId, tokens: &[Token], children: Option<Children<'_>>) -> Result<()> {
        let Some(OnDevice { sampled, .. }) = self.slots[slot.0].on_device else {
            return Err(Error::InvalidArgument("A token was to be sampled in a slot without a chain".into()));
        };
        let known = usize::from(sampled.is_some() && tokens.first() == sampled.as_ref());
        let accepted = match &tokens[known..] {
            [] => Ok(()),
            others => self.sampler().and_then(|sampler| sampler.accept(slot.0, others)),
        };
        self.note_sampled(slot, None);
        let told = accepted.and_then(|()| self.sampler()?.arm(slot.0, children));
        told.inspect_err(|_| self.slots[slot.0].on_device = None)
    }

    /// Wait for the oldest step that samples: its rows stand in `found`, as many as are returned. After an error nobody
    /// knows what the device holds of its slots.
    pub(super) fn read_sampled(&mut self) -> Result<usize> {
        let mut found = std::mem::take(&mut self.found);
        let read = self.sampler().and_then(|sampler| sampler.sampled(&mut found));
        self.found = found;
        let count = read.inspect_err(|_| self.slots.iter_mut().for_each(|slot| slot.on_device = None))?;
        for i in 0..count {
            let SampledRow { sequence, result, .. } = &self.found[i];
            let sampled = Some(result.token).filter(|&token| token >= 0);
            self.note_sampled(SlotId(*sequence as usize), sampled);
        }
        Ok(count)
    }

    pub(super) fn note_sampled(&mut self, slot: SlotId, sampled: Option<Token>) {
        if let Some(known) = &mut self.slots[slot.0].on_device {
            known.sampled = sampled;
        }
    }

    /// Take back what is ahead, where there is something.
    pub fn settle(&mut self) -> Result<()> {
        match self.ahead.take() {
            None => Ok(()),
            Some(Ahead::Walk(walking)) => self.end_walk(walking),
            Some(Ahead::Step(slot, cell)) => {
                self.cells.free(cell);
                self.hidden_of = None;
                let known = self.slots[slot.0].on_device;
                let last = known.and_then(|known| known.sampled).or(self.slots[slot.0].tokens.last().copied());
                // An error ends the sampling on the device.
                self.read_sampled()?;
                self.slots[slot.0].on_device = known;
                self.sampler()?.roll_back(slot.0, 1, last.unwrap_or_default())
            }
        }
    }

    pub(super) fn sampler(&mut self) -> Result<&mut dyn DeviceSampler> {
        let sampler = self.states[self.model.outline().places().logits].sampler();
        sampler.ok_or_else(|| Error::Internal("A device without a sampler was asked to sample".into()))
    }
}

/// What stands in the way of a result's token.
pub(super) fn problem(result: &SampleResult) -> Option<Error> {
    Some(match result.problem? {
        SampleProblem::Nan(token) => Error::NanLogits { row: 0, token: token as usize },
        SampleProblem::NoCandidate => Error::InvalidArgument("Every logit is -inf: there is no token to sample".into()),
    })
}
