//! What an engine knows of the device that samples: the slots that are sampled there, what is in flight, the trie that
//! it holds, and room for results.
//!
//! Invariants: at most one step or one walk is in flight. A device that samples a slot knows all its tokens: whatever
//! changes them otherwise ends the sampling there ([`DeviceSampling::end`]). Where a device fails, what it knows of the
//! slots is unknown, and all sampling there ends.

use super::held_trie::{HeldTrie, Reach};
use super::slots::SlotId;
use crate::backend::{
    DeviceSampler, Followed, Legal, SampleProblem, SampleResult, SampleSpec, SampledRow, State, WALK_CELLS,
    WALK_PASSES, Walked,
};
use crate::trie::{Node, Trie};
use crate::{Error, Result, Token};
use std::sync::Arc;

/// What may be started after a token before the host knows it.
#[derive(Debug, Clone, Copy)]
pub enum Speculation<'a> {
    /// Nothing.
    Nothing,
    /// The step after it.
    Step,
    /// The walk through this trie, which the device holds, from this node, whose children the token is one of, and over
    /// at most so many tokens.
    Walk(&'a Trie, Node, usize),
}

/// What is under way after the last token that the host knows.
pub(super) enum InFlight {
    /// A step of this slot, whose row is in this cell.
    Step(SlotId, u32),
    /// A walk.
    Walk(WalkInFlight),
}

/// A walk under way, or served in part.
pub(super) struct WalkInFlight {
    pub slot: SlotId,
    /// The cells of its rows, in order, as far as the host has not asked for them.
    cells: Vec<u32>,
    /// The next choice in [`DeviceSampling::walked`]; `None` until that was read.
    next: Option<usize>,
}

/// What a device knows of a slot that it samples.
#[derive(Clone, Copy)]
pub(super) struct Known {
    /// Whether a mask is applied before everything in the chain that looks at other tokens' logits.
    pub masks_first: bool,
    /// The token sampled last, until it is appended: the device has taken note of it.
    sampled: Option<Token>,
}

/// The device that samples, as the engine knows it.
pub(super) struct DeviceSampling {
    /// By slot; `None` where the host samples.
    known: Vec<Option<Known>>,
    /// What a step sampled, with room for a row of every slot.
    rows: Vec<SampledRow>,
    in_flight: Option<InFlight>,
    held: Option<HeldTrie>,
    /// What the last walk found.
    walked: Walked,
    /// Room for the cells of the next walk.
    walk_cells: Vec<u32>,
}

impl DeviceSampling {
    pub fn new(slots: usize) -> DeviceSampling {
        DeviceSampling {
            known: vec![None; slots],
            rows: vec![SampledRow::default(); slots],
            in_flight: None,
            held: None,
            walked: Walked { steps: Vec::with_capacity(WALK_PASSES), ..Walked::default() },
            walk_cells: Vec::with_capacity(WALK_CELLS),
        }
    }

    /// Has the device sample a slot that holds `tokens`; says how many steps of the chain it follows.
    pub fn start(&mut self, state: &mut dyn State, slot: SlotId, spec: &SampleSpec, tokens: &[Token]) -> Result<usize> {
        let followed = match state.sampler() {
            Some(sampler) => sampler.start(slot.0, spec, tokens)?,
            None => None,
        };
        self.known[slot.0] = followed.map(|_| Known { masks_first: spec.masks_first(), sampled: None });
        let Followed { steps, candidates } = followed.unwrap_or(Followed { steps: 0, candidates: 0 });
        // A row of results can be any slot's.
        self.rows.iter_mut().for_each(|row| row.candidates.reserve(candidates));
        Ok(steps)
    }

    /// The device samples the slot no longer.
    pub fn end(&mut self, slot: SlotId) {
        self.known[slot.0] = None;
    }

    /// What the device knows of the slot, if it samples that.
    pub fn known(&self, slot: SlotId) -> Option<Known> {
        self.known[slot.0]
    }

    /// Goes on with what the device knew of the slot before a run that it does know of.
    pub fn resume(&mut self, slot: SlotId, known: Option<Known>) {
        self.known[slot.0] = known;
    }

    /// The token that was sampled last in the slot and is not appended yet.
    pub fn sampled(&self, slot: SlotId) -> Option<Token> {
        self.known[slot.0].and_then(|known| known.sampled)
    }

    /// Notes which token was sampled last; `None`: it was appended.
    pub fn note(&mut self, slot: SlotId, sampled: Option<Token>) {
        if let Some(known) = &mut self.known[slot.0] {
            known.sampled = sampled;
        }
    }

    /// Tells the device what comes next in a slot that it samples: tokens that it did not sample itself, and the mask.
    pub fn tell(
        &mut self,
        state: &mut dyn State,
        slot: SlotId,
        tokens: &[Token],
        legal: Option<Legal<'_>>,
    ) -> Result<()> {
        let Some(Known { sampled, .. }) = self.known[slot.0] else {
            return Err(Error::InvalidArgument("A token was to be sampled in a slot without a chain".into()));
        };
        let known = usize::from(sampled.is_some() && tokens.first() == sampled.as_ref());
        let accepted = match &tokens[known..] {
            [] => Ok(()),
            others => sampler_of(state)?.accept(slot.0, others),
        };
        self.note(slot, None);
        accepted.and_then(|()| sampler_of(state)?.arm(slot.0, legal)).inspect_err(|_| self.end(slot))
    }

    /// Waits for the oldest step that samples: its rows are in [`DeviceSampling::rows`], as many as are returned. After
    /// an error nobody knows what the device holds of its slots.
    pub fn read(&mut self, state: &mut dyn State) -> Result<usize> {
        let count = sampler_of(state).and_then(|sampler| sampler.sampled(&mut self.rows));
        let count = count.inspect_err(|_| self.known.fill(None))?;
        for row in &self.rows[..count] {
            if let Some(known) = &mut self.known[row.sequence as usize] {
                known.sampled = token_of(&row.result);
            }
        }
        Ok(count)
    }

    /// What was read last.
    pub fn rows(&self) -> &[SampledRow] {
        &self.rows
    }

    /// The first row of what was read last, or the error of its logits.
    pub fn first_row(&self) -> Result<&SampledRow> {
        let row = &self.rows[0];
        problem(&row.result).map_or(Ok(row), Err)
    }

    /// Nothing could be started after the step under way. Nobody gets its token then: left there, it would be read as
    /// the next one's.
    pub fn drop_step(&mut self, state: &mut dyn State, slot: SlotId) -> Result<()> {
        let dropped = self.read(state);
        self.end(slot);
        dropped.map(drop)
    }

    /// Rolls back the last tokens of the slot, so many, that were sampled on the device and not asked for; `last` is
    /// the slot's last one.
    pub fn roll_back(&self, state: &mut dyn State, slot: SlotId, tokens: u32, last: Option<Token>) -> Result<()> {
        sampler_of(state)?.roll_back(slot.0, tokens, self.sampled(slot).or(last).unwrap_or_default())
    }

    /// What is in flight, to be served or rolled back.
    pub fn take_in_flight(&mut self) -> Option<InFlight> {
        self.in_flight.take()
    }

    pub fn put_in_flight(&mut self, in_flight: Option<InFlight>) {
        self.in_flight = in_flight;
    }

    pub fn holds(&self, trie: &Trie) -> bool {
        self.held.as_ref().is_some_and(|held| held.is(trie))
    }

    /// Has the device let go of its trie, and hold this one where it can.
    pub fn hold(&mut self, state: &mut dyn State, trie: &Arc<Trie>) -> Result<()> {
        self.held = None;
        let Some(sampler) = state.sampler() else { return Ok(()) };
        let (held, nodes) = HeldTrie::new(trie)?;
        if sampler.hold_trie(&nodes)? {
            self.held = Some(held);
        }
        Ok(())
    }

    /// Whether the chain of the slot and what may win there let the device walk.
    pub fn can_walk(&self, state: &mut dyn State, slot: SlotId) -> Result<bool> {
        Ok(sampler_of(state)?.walks(slot.0))
    }

    /// What a walk through this trie from this node takes; nothing where the device does not hold it.
    pub fn reach(&self, trie: &Trie, node: Node) -> Reach {
        self.held.as_ref().filter(|held| held.is(trie)).map_or(Reach::default(), |held| held.reach(node))
    }

    /// A walk of the slot is in flight that fills these cells.
    pub fn start_walk(&mut self, slot: SlotId, cells: &[u32]) {
        self.walk_cells.clear();
        self.walk_cells.extend_from_slice(cells);
        let cells = std::mem::take(&mut self.walk_cells);
        self.in_flight = Some(InFlight::Walk(WalkInFlight { slot, cells, next: None }));
    }

    /// Waits for what the walk found; `None` where that was read before.
    pub fn read_walk(&mut self, state: &mut dyn State, walk: &mut WalkInFlight) -> Result<Option<&Walked>> {
        if walk.next.is_some() {
            return Ok(None);
        }
        let read = sampler_of(state).and_then(|sampler| sampler.walked(&mut self.walked));
        read.inspect_err(|_| self.known[walk.slot.0] = None)?;
        walk.next = Some(0);
        Ok(Some(&self.walked))
    }

    /// Serves the choice at `node` after `tokens` of the slot, where it is the next one of the walk: the cells of the
    /// tokens, with the choice in the first row.
    pub fn serve_walk<'w>(
        &mut self,
        walk: &'w mut WalkInFlight,
        slot: SlotId,
        tokens: &[Token],
        node: Node,
    ) -> Option<impl Iterator<Item = u32> + use<'w>> {
        let (next, sampled) = (walk.next.unwrap_or_default(), self.sampled(slot));
        // The nodes of a trie stand for their tokens.
        let asked = self.walked.steps.get(next).filter(|step| {
            let same = walk.slot == slot && node == step.node && tokens.len() == step.rows as usize;
            same && sampled.is_some() && sampled == tokens.first().copied()
        });
        let result = asked?.result;
        walk.next = Some(next + 1);
        self.note(slot, token_of(&result));
        let row = &mut self.rows[0];
        row.result = result;
        row.candidates.clear();
        Some(walk.cells.drain(..tokens.len()))
    }

    /// Ends a walk that was read: the cells that the host did not ask for, which are to be freed, and their number of
    /// tokens on the device.
    pub fn end_walk(&mut self, walk: WalkInFlight) -> (impl Iterator<Item = u32>, u32) {
        let rows = self.walked.steps.iter().skip(walk.next.unwrap_or_default()).map(|step| step.rows).sum();
        self.walk_cells = walk.cells;
        (self.walk_cells.drain(..), rows)
    }
}

fn sampler_of(state: &mut dyn State) -> Result<&mut dyn DeviceSampler> {
    state.sampler().ok_or_else(|| Error::Internal("A device without a sampler was asked to sample".into()))
}

fn token_of(result: &SampleResult) -> Option<Token> {
    Some(result.token).filter(|&token| token >= 0)
}

/// What stands in the way of a result's token.
pub(super) fn problem(result: &SampleResult) -> Option<Error> {
    Some(match result.problem? {
        SampleProblem::Nan(token) => Error::NanLogits { row: 0, token: token as usize },
        SampleProblem::NoCandidate => Error::InvalidArgument("Every logit is -inf: there is no token to sample".into()),
    })
}
