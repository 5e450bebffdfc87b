//! What the worker needs of an engine, and nothing more.
//!
//! The trait exists so that the rules of a session can be tested against an engine whose every logit is scripted.

use crate::backend::{Children, SampleResult, SampleSpec};
use crate::engine::{Engine, EngineStats, Following, LeafScore, SlotId};
use crate::trie::{Descriptor, Trie};
use crate::{Error, Result, Token};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// One slot of an engine at a time: the slot of the last prefill.
pub(crate) trait Decoder: Send {
    /// Makes slot `slot_id` (-1: a fresh one) hold exactly `tokens` and returns how many of them it held before. After
    /// an error or a cancel the slot holds what was evaluated until then.
    fn prefill(&mut self, slot_id: i32, tokens: &[Token], cancel: &AtomicBool) -> Result<usize>;

    /// Appends `tokens` (possibly none) and returns the logits of the last position, one per token of the vocabulary; see
    /// [`Engine::next_logits`].
    fn logits(&mut self, tokens: &[Token], listed: &[Token], cancel: &AtomicBool) -> Result<&mut [f32]>;

    /// Sample on the device by this chain from now on; see [`Engine::start_sampling`].
    fn start_sampling(&mut self, spec: &SampleSpec) -> Result<usize> {
        let _ = spec;
        Ok(0)
    }

    /// As `logits`, with a token sampled on the device; see [`Engine::sample`].
    fn sample(
        &mut self,
        tokens: &[Token],
        children: Option<Children<'_>>,
        following: Following<'_>,
        candidates: &mut Vec<(Token, f32, f32)>,
        cancel: &AtomicBool,
    ) -> Result<SampleResult> {
        let _ = (tokens, children, following, candidates, cancel);
        Err(Error::Internal("A decoder without a sampler was asked to sample".into()))
    }

    /// Have this trie at hand for [`Following::Walk`]; see [`Engine::hold_trie`].
    fn hold_trie(&mut self, trie: &Arc<Trie>) -> Result<()> {
        let _ = trie;
        Ok(())
    }

    /// Scores the leaves of a descriptor as what follows; see [`Engine::score`].
    fn score(&mut self, trie: &Trie, descriptor: &Descriptor, cancel: &AtomicBool) -> Result<Vec<LeafScore>> {
        let _ = (trie, descriptor, cancel);
        Err(Error::Internal("A decoder that cannot score was asked to".into()))
    }

    /// The generation is over: nothing has to be ready for a further token.
    fn settle(&mut self) -> Result<()> {
        Ok(())
    }

    /// The tokens in the slot.
    fn tokens(&self) -> &[Token];

    /// How many more tokens the slot can take.
    fn room(&self) -> usize;

    /// Counters since the engine opened.
    fn stats(&self) -> EngineStats;
}

/// An engine and the slot of its last prefill.
pub(crate) struct EngineSlot {
    engine: Engine,
    slot: SlotId,
}

impl EngineSlot {
    pub(crate) fn new(mut engine: Engine) -> Result<EngineSlot> {
        let slot = engine.take_slot(-1)?;
        Ok(EngineSlot { engine, slot })
    }
}

impl Decoder for EngineSlot {
    fn prefill(&mut self, slot_id: i32, tokens: &[Token], cancel: &AtomicBool) -> Result<usize> {
        self.slot = self.engine.take_slot(slot_id)?;
        self.engine.prefill(self.slot, tokens, cancel).map(|done| done.reused)
    }

    fn logits(&mut self, tokens: &[Token], listed: &[Token], cancel: &AtomicBool) -> Result<&mut [f32]> {
        self.engine.next_logits(self.slot, tokens, listed, cancel)
    }

    fn start_sampling(&mut self, spec: &SampleSpec) -> Result<usize> {
        self.engine.start_sampling(self.slot, spec)
    }

    fn sample(
        &mut self,
        tokens: &[Token],
        children: Option<Children<'_>>,
        following: Following<'_>,
        candidates: &mut Vec<(Token, f32, f32)>,
        cancel: &AtomicBool,
    ) -> Result<SampleResult> {
        self.engine.sample(self.slot, tokens, children, following, candidates, cancel)
    }

    fn hold_trie(&mut self, trie: &Arc<Trie>) -> Result<()> {
        self.engine.hold_trie(trie)
    }

    fn score(&mut self, trie: &Trie, descriptor: &Descriptor, cancel: &AtomicBool) -> Result<Vec<LeafScore>> {
        self.engine.score(self.slot, trie, descriptor, cancel)
    }

    fn settle(&mut self) -> Result<()> {
        self.engine.settle()
    }

    fn tokens(&self) -> &[Token] {
        self.engine.tokens(self.slot)
    }

    fn room(&self) -> usize {
        self.engine.room(self.slot)
    }

    fn stats(&self) -> EngineStats {
        self.engine.stats()
    }
}
