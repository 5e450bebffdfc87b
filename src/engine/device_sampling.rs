//! The engine's record of the device that samples: the slots that are sampled there, what is in flight, the trie on the
//! device, and buffers for results.
//!
//! Invariants: at most one step or one walk is in flight. A device that samples a slot has all its tokens: any other
//! change of the tokens ends the sampling there ([`DeviceSampling::end`]). After an error of a device its state is
//! unknown, and all sampling there ends.

use super::held_trie::{HeldTrie, Reach};
use super::slots::SlotId;
use crate::backend::{
    DeviceSampler, Followed, Legal, SampleProblem, SampleResult, SampleSpec, SampledRow, State, WALK_CELLS,
    WALK_PASSES, Walked,
};
use crate::trie::{Node, Trie};
use crate::{Error, Result, Token};
use std::sync::Arc;

/// What the device may start after a token before the host knows the token.
#[derive(Debug, Clone, Copy)]
pub enum Speculation<'a> {
    /// Nothing.
    Nothing,
    /// The step after it.
    Step,
    /// A walk through this trie, which is on the device. The token is a child of the node; the walk adds at most so
    /// many tokens.
    Walk(&'a Trie, Node, usize),
}

/// What is in flight after the last token that the host knows.
pub(super) enum InFlight {
    /// A step of this slot; its row uses this cell.
    Step(SlotId, u32),
    /// A walk.
    Walk(WalkInFlight),
}

/// A walk in flight, or served in part.
pub(super) struct WalkInFlight {
    pub slot: SlotId,
    /// The cells of its rows, in order, without those that the host has asked for.
    cells: Vec<u32>,
    /// The next choice in [`DeviceSampling::walked`]; `None` until that was read.
    next: Option<usize>,
}

/// The state of a slot that a device samples.
#[derive(Clone, Copy)]
pub(super) struct Known {
    /// Whether a mask applies before every step of the chain that compares candidates.
    pub masks_first: bool,
    /// The token that the device sampled last, until it is appended to the slot. It is in the device's history.
    sampled: Option<Token>,
}

/// The engine's record of the device that samples.
pub(super) struct DeviceSampling {
    /// By slot; `None` where the host samples.
    known: Vec<Option<Known>>,
    /// The results of a step, with room for every slot.
    rows: Vec<SampledRow>,
    in_flight: Option<InFlight>,
    held: Option<HeldTrie>,
    /// The results of the last walk.
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

    /// Starts sampling a slot that holds `tokens` on the device; returns how many steps of the chain the device runs.
    pub fn start(&mut self, state: &mut dyn State, slot: SlotId, spec: &SampleSpec, tokens: &[Token]) -> Result<usize> {
        let followed = match state.sampler() {
            Some(sampler) => sampler.start(slot.0, spec, tokens)?,
            None => None,
        };
        self.known[slot.0] = followed.map(|_| Known { masks_first: spec.masks_first(), sampled: None });
        let Followed { steps, candidates } = followed.unwrap_or(Followed { steps: 0, candidates: 0 });
        // A row of results may belong to any slot.
        self.rows.iter_mut().for_each(|row| row.candidates.reserve(candidates));
        Ok(steps)
    }

    /// Ends the sampling of the slot on the device.
    pub fn end(&mut self, slot: SlotId) {
        self.known[slot.0] = None;
    }

    /// The slot's state, if the device samples it.
    pub fn known(&self, slot: SlotId) -> Option<Known> {
        self.known[slot.0]
    }

    /// Restores the slot's state after a run that the device took part in.
    pub fn resume(&mut self, slot: SlotId, known: Option<Known>) {
        self.known[slot.0] = known;
    }

    /// The token that was sampled last in the slot and is not appended yet.
    pub fn sampled(&self, slot: SlotId) -> Option<Token> {
        self.known[slot.0].and_then(|known| known.sampled)
    }

    /// Sets the token that was sampled last; `None` once it was appended.
    pub fn note(&mut self, slot: SlotId, sampled: Option<Token>) {
        if let Some(known) = &mut self.known[slot.0] {
            known.sampled = sampled;
        }
    }

    /// Sends the device the tokens of the slot that it did not sample itself, and the mask.
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

    /// Waits for the results of the oldest step: they are in [`DeviceSampling::rows`], and their number is returned.
    /// After an error the device's state is unknown.
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

    /// The first result read last, or the error of its logits.
    pub fn first_row(&self) -> Result<&SampledRow> {
        let row = &self.rows[0];
        problem(&row.result).map_or(Ok(row), Err)
    }

    /// Reads and drops the result of the step in flight, after which nothing could be started. Otherwise it would be
    /// read as the next step's.
    pub fn drop_step(&mut self, state: &mut dyn State, slot: SlotId) -> Result<()> {
        let dropped = self.read(state);
        self.end(slot);
        dropped.map(drop)
    }

    /// Rolls back the last `tokens` tokens of the slot that were sampled on the device and not asked for; `last` is the
    /// slot's last token after that.
    pub fn roll_back(&self, state: &mut dyn State, slot: SlotId, tokens: u32, last: Option<Token>) -> Result<()> {
        sampler_of(state)?.roll_back(slot.0, tokens, self.sampled(slot).or(last).unwrap_or_default())
    }

    /// Takes what is in flight, to be served or rolled back.
    pub fn take_in_flight(&mut self) -> Option<InFlight> {
        self.in_flight.take()
    }

    pub fn put_in_flight(&mut self, in_flight: Option<InFlight>) {
        self.in_flight = in_flight;
    }

    pub fn holds(&self, trie: &Trie) -> bool {
        self.held.as_ref().is_some_and(|held| held.is(trie))
    }

    /// Replaces the trie on the device by this one, where the device can hold it.
    pub fn hold(&mut self, state: &mut dyn State, trie: &Arc<Trie>) -> Result<()> {
        self.held = None;
        let Some(sampler) = state.sampler() else { return Ok(()) };
        let (held, nodes) = HeldTrie::new(trie)?;
        if sampler.hold_trie(&nodes)? {
            self.held = Some(held);
        }
        Ok(())
    }

    /// Whether the slot's chain and mask let the device walk.
    pub fn can_walk(&self, state: &mut dyn State, slot: SlotId) -> Result<bool> {
        Ok(sampler_of(state)?.walks(slot.0))
    }

    /// The passes and rows of a walk through this trie from this node; zeros where the trie is not on the device.
    pub fn reach(&self, trie: &Trie, node: Node) -> Reach {
        self.held.as_ref().filter(|held| held.is(trie)).map_or(Reach::default(), |held| held.reach(node))
    }

    /// Notes that a walk of the slot is in flight, which fills these cells.
    pub fn start_walk(&mut self, slot: SlotId, cells: &[u32]) {
        self.walk_cells.clear();
        self.walk_cells.extend_from_slice(cells);
        let cells = std::mem::take(&mut self.walk_cells);
        self.in_flight = Some(InFlight::Walk(WalkInFlight { slot, cells, next: None }));
    }

    /// Waits for the results of the walk; `None` where they were read before.
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
        // A node determines its tokens, so comparing nodes is enough.
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

    /// Ends a walk that was read: returns the cells that the host did not ask for, to be freed, and the number of
    /// tokens to roll back on the device.
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

/// The error of a result without a token.
pub(super) fn problem(result: &SampleResult) -> Option<Error> {
    Some(match result.problem? {
        SampleProblem::Nan(token) => Error::NanLogits { row: 0, token: token as usize },
        SampleProblem::NoCandidate => Error::InvalidArgument("Every logit is -inf: there is no token to sample".into()),
    })
}
