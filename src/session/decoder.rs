//! The interface between the worker and an engine.
//!
//! The trait exists so that the rules of a session can be tested against an engine whose every logit is scripted.

use super::draft::{Ask, DraftModel, same_vocabulary};
use super::nextn::NextnBlock;
use super::shared::{Job, Prewarm};
use crate::backend::{Legal, SampleSpec, SampledRow};
use crate::engine::{
    EmbedOptions, Embeddings, Engine, EngineOptions, EngineStats, LeafScore, Prefill, SavedSlot, SlotId, Speculation,
    open_model,
};
use crate::trie::{Descriptor, Trie};
use crate::{Error, Result, Token};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// What a pass of several streams took.
pub(crate) struct PassTime {
    pub took: Duration,
    pub streams: usize,
}

/// Guesses that an engine's slot has after the tokens that were asked for, whose logits are there.
pub(super) struct Ahead {
    tokens: Vec<Token>,
    /// How many of them were asked for since.
    asked: usize,
}

impl Ahead {
    /// With room for the guesses of a pass with so many results.
    pub fn new(results: usize) -> Ahead {
        Ahead { tokens: Vec::with_capacity(results), asked: 0 }
    }

    /// Notes the guesses of a pass.
    pub fn begin(&mut self, guesses: &[Token]) {
        self.tokens.clear();
        self.tokens.extend_from_slice(guesses);
        self.asked = 0;
    }

    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    pub fn asked(&self) -> usize {
        self.asked
    }

    /// How many of the slot's tokens nobody asked for.
    pub fn unasked(&self) -> usize {
        self.tokens.len() - self.asked
    }

    /// Whether these tokens are the next that were guessed.
    pub fn has(&self, tokens: &[Token]) -> bool {
        !tokens.is_empty() && self.tokens[self.asked..].starts_with(tokens)
    }

    /// Notes that so many more are tokens of the slot.
    pub fn ask(&mut self, tokens: usize) {
        self.asked += tokens;
    }

    /// Forgets all guesses; returns how many tokens the slot has to lose.
    pub fn forget(&mut self) -> usize {
        let unasked = self.unasked();
        self.begin(&[]);
        unasked
    }

    /// Takes those back that nobody asked for. A slot that was emptied for others meanwhile has none.
    pub fn take_back(&mut self, engine: &mut Engine, slot: SlotId) {
        let unasked = self.forget();
        if unasked > 0 {
            engine.truncate(slot, engine.position(slot).saturating_sub(unasked));
        }
    }
}

/// One slot of an engine at a time: the slot of the last prefill.
pub(crate) trait Decoder: Send {
    /// Sets the flag that ends waits for a device; see [`Engine::watch`].
    fn watch(&mut self, cancel: &Arc<AtomicBool>) {
        let _ = cancel;
    }

    /// Makes slot `slot_id` (-1: a fresh one) hold exactly `tokens`. After an error or a cancel the slot holds what was
    /// evaluated until then.
    fn prefill(&mut self, slot_id: i32, tokens: &[Token], cancel: &AtomicBool) -> Result<Prefill>;

    /// As `prefill`, but the slot of the last prefill stays that. Where it is that slot whose tokens change, `replaces`
    /// is called before.
    fn prewarm(&mut self, warm: &Prewarm, cancel: &Arc<AtomicBool>, replaces: &mut dyn FnMut()) -> Result<()> {
        let _ = (warm, cancel, replaces);
        Err(Error::Internal("A decoder that keeps no prompts was asked to".into()))
    }

    /// Pins these slots, a bit each, and no others; see [`Engine::pin`].
    fn pin(&mut self, slots: u32) {
        let _ = slots;
    }

    /// Appends `tokens` (possibly none) and returns the logits of the last position, one per token of the vocabulary;
    /// see [`Engine::next_logits`].
    fn logits(&mut self, tokens: &[Token], listed: &[Token], cancel: &AtomicBool) -> Result<&mut [f32]>;

    /// The model that has the prompt, where there are several.
    fn model(&self) -> Option<&Path> {
        None
    }

    /// After an error before the first token was chosen: whether another model has the prompt now, which goes on.
    fn fall_back(&mut self, error: &Error, cancel: &AtomicBool) -> Result<bool> {
        let _ = (error, cancel);
        Ok(false)
    }

    /// Appends `tokens` alone.
    fn append(&mut self, tokens: &[Token], cancel: &AtomicBool) -> Result<()> {
        self.logits(tokens, &[], cancel).map(drop)
    }

    /// Whether tokens are chosen where the model is, whatever the chain: only [`sample`](Decoder::sample) gives any.
    fn samples_itself(&self) -> bool {
        false
    }

    /// Whether the engine counts the tokens of a generation's limit in its own way, and ends it there by itself.
    fn limits_itself(&self) -> bool {
        false
    }

    /// Whether the last token stands for an end by that limit.
    fn reached_limit(&self) -> bool {
        false
    }

    /// Begins a generation; so many tokens come with its first evaluation.
    fn begin(&mut self, job: &Job, pending: usize) -> Result<()> {
        let _ = (job, pending);
        Ok(())
    }

    /// These tokens must not be sampled next, where the decoder samples by itself.
    fn exclude(&mut self, tokens: &[Token]) {
        let _ = tokens;
    }

    /// Whether [`logits_ahead`](Decoder::logits_ahead) evaluates guesses.
    fn can_guess(&self) -> bool {
        false
    }

    /// Whether these tokens are the next that were guessed: [`logits`](Decoder::logits) then makes no pass for them.
    fn has_ahead(&self, tokens: &[Token]) -> bool {
        let _ = tokens;
        false
    }

    /// As `logits` of all tokens; evaluates `guesses` after `tokens` in the same pass, and leaves in `guesses` those
    /// for which it had room. They are no tokens of the slot until they are asked for.
    fn logits_ahead(&mut self, tokens: &[Token], guesses: &mut Vec<Token>, cancel: &AtomicBool) -> Result<&mut [f32]> {
        guesses.clear();
        self.logits(tokens, &[], cancel)
    }

    /// What the last pass took, where it was made for several streams; else it took as long as its caller waited.
    fn pass_time(&self) -> Option<PassTime> {
        None
    }

    /// Asks the draft model for guesses, where there is one.
    fn draft(&mut self, ask: Ask<'_>) -> Result<()> {
        let _ = ask;
        Ok(())
    }

    /// Context shift: makes room in a full slot by removing the first half of the tokens between the first `keep` and
    /// the last one. `pending` are the tokens after the slot's; all but the last of them are appended to the slot.
    /// Returns the number of removed tokens. After a cancel nothing was removed; after an error of a device the slot
    /// may be empty.
    fn shift(&mut self, keep: usize, pending: &mut Vec<Token>, cancel: &AtomicBool) -> Result<usize> {
        let _ = (keep, pending, cancel);
        Err(Error::Internal("A decoder that cannot shift was asked to".into()))
    }

    /// Sample on the device by this chain from now on; see [`Engine::start_sampling`].
    fn start_sampling(&mut self, spec: &SampleSpec) -> Result<usize> {
        let _ = spec;
        Ok(0)
    }

    /// Whether the logits are on a device that could sample; see [`Engine::has_sampler`].
    fn has_sampler(&self) -> bool {
        false
    }

    /// As `logits`, with a token sampled on the device; see [`Engine::sample`].
    fn sample(
        &mut self,
        tokens: &[Token],
        legal: Option<Legal<'_>>,
        speculation: Speculation<'_>,
        cancel: &AtomicBool,
    ) -> Result<&SampledRow> {
        let _ = (tokens, legal, speculation, cancel);
        Err(Error::Internal("A decoder without a sampler was asked to sample".into()))
    }

    /// Upload this trie for [`Speculation::Walk`]; see [`Engine::hold_trie`].
    fn hold_trie(&mut self, trie: &Arc<Trie>) -> Result<()> {
        let _ = trie;
        Ok(())
    }

    /// Scores the leaves of a descriptor as continuations; see [`Engine::score`].
    fn score(&mut self, trie: &Trie, descriptor: &Descriptor, cancel: &AtomicBool) -> Result<Vec<LeafScore>> {
        let _ = (trie, descriptor, cancel);
        Err(Error::Internal("A decoder that cannot score was asked to".into()))
    }

    /// The logits of the slot's last `n` positions; see [`Engine::last_logits`].
    fn last_logits(&mut self, n: usize, cancel: &AtomicBool, each: &mut dyn FnMut(&[f32]) -> Result<()>) -> Result<()> {
        let _ = (n, cancel, each);
        Err(Error::Internal("A decoder that keeps no logits was asked for them".into()))
    }

    /// The rows of texts; see [`Engine::embed`].
    fn embed(&mut self, texts: &[Vec<Token>], options: &EmbedOptions, cancel: &AtomicBool) -> Result<Embeddings> {
        let _ = (texts, options, cancel);
        Err(Error::Internal("A decoder without embeddings was asked for them".into()))
    }

    /// Whether `slot_id` is the slot of the last prefill or restore; -1 always is.
    fn is_current(&self, slot_id: i32) -> Result<bool> {
        let _ = slot_id;
        Err(cannot_save())
    }

    /// Saves a slot (-1: the one of the last prefill or restore); see [`Engine::save`].
    fn save(&mut self, slot_id: i32, path: &Path, note: &[u8], cancel: &AtomicBool) -> Result<()> {
        let _ = (slot_id, path, note, cancel);
        Err(cannot_save())
    }

    /// The most bytes that a saved slot with such a note takes; see [`Engine::saved_bytes`].
    fn saved_bytes(&mut self, slot_id: i32, note: usize) -> Result<u64> {
        let _ = (slot_id, note);
        Err(cannot_save())
    }

    /// Opens and checks a saved slot; see [`Engine::open_saved`].
    fn open_saved(&self, path: &Path, cancel: &AtomicBool) -> Result<SavedSlot> {
        let _ = (path, cancel);
        Err(cannot_save())
    }

    /// Makes slot `slot_id` (-1: a fresh one) hold what was saved. With `ready` logits can be asked for at once: the
    /// last position is evaluated again where its hidden row was not saved. After an error or a cancel the slot is
    /// empty, or lacks its last token.
    fn restore(&mut self, slot_id: i32, saved: SavedSlot, ready: bool, cancel: &AtomicBool) -> Result<()> {
        let _ = (slot_id, saved, ready, cancel);
        Err(cannot_save())
    }

    /// Ends the generation: rolls back speculative work.
    fn rollback(&mut self) -> Result<()> {
        Ok(())
    }

    /// A decoder of slot `slot_id` (-1: one that is no other's) alone, which works beside this one until it is dropped.
    /// That of the last prefill is not given away where it `is_kept`; else another slot takes its place, and
    /// `replaces` is called.
    fn open_slot(&mut self, slot_id: i32, is_kept: bool, replaces: &mut dyn FnMut()) -> Result<Box<dyn Decoder>> {
        let _ = (slot_id, is_kept, replaces);
        Err(take_turns())
    }

    /// Nothing follows soon: no prompt waits for its generate.
    fn rest(&mut self) {}

    /// The tokens in the slot.
    fn tokens(&self) -> &[Token];

    /// How many more tokens the slot can take.
    fn room(&self) -> usize;

    /// Counters since the engine opened.
    fn stats(&self) -> EngineStats;
}

/// [`Decoder::shift`] of an engine's slot.
pub(super) fn shift_slot(
    engine: &mut Engine,
    slot: SlotId,
    keep: usize,
    pending: &mut Vec<Token>,
    cancel: &AtomicBool,
) -> Result<usize> {
    match pending.split_last() {
        Some((&last, before)) => {
            engine.append(slot, before, cancel)?;
            pending.clear();
            pending.push(last);
        }
        None => {
            pending.extend(engine.tokens(slot).last().copied());
            engine.truncate(slot, engine.position(slot).saturating_sub(1));
        }
    }
    let gone = engine.position(slot).saturating_sub(keep) / 2;
    engine.remove(slot, keep..keep + gone)?;
    Ok(gone)
}

/// [`Decoder::restore`] of an engine's slot.
pub(super) fn restore_slot(
    engine: &mut Engine,
    slot: SlotId,
    saved: SavedSlot,
    ready: bool,
    cancel: &AtomicBool,
) -> Result<()> {
    if !engine.restore(slot, saved, cancel)? && ready {
        evaluate_last(engine, slot, cancel)?;
    }
    Ok(())
}

/// Evaluates a slot's last token again, so that its hidden row is the kept one.
pub(super) fn evaluate_last(engine: &mut Engine, slot: SlotId, cancel: &AtomicBool) -> Result<()> {
    let tokens = engine.tokens(slot).to_vec();
    engine.prefill(slot, &tokens, cancel).map(drop)
}

/// Guesses what the draft model attached to an engine says follows the text. None where the row before the last token
/// is not there.
fn draft_attached((engine, slot): (&mut Engine, SlotId), mut ask: Ask<'_>) -> Result<()> {
    let cancel = ask.cancel;
    let mut next = ask.text.last().copied().filter(|_| engine.assist_from(slot, ask.text));
    while let Some(token) = next {
        next = ask.guess(engine.assist(slot, token, cancel)?);
    }
    Ok(())
}

/// The slot with this number; -1 is `current`.
pub(super) fn numbered_slot(engine: &mut Engine, current: SlotId, slot_id: i32) -> Result<SlotId> {
    if slot_id == -1 { Ok(current) } else { engine.take_slot(slot_id) }
}

/// The error of slots that cannot generate at the same time.
pub(super) fn take_turns() -> Error {
    let problem = "the slots of this handle take turns: open a model on this machine with concurrent slots";
    Error::Unsupported(problem.into())
}

fn cannot_save() -> Error {
    Error::Internal("A decoder that cannot save was asked to".into())
}

/// What guesses by another model than the one that answers.
pub(crate) enum Drafter {
    /// A small model.
    Model(Box<DraftModel>),
    /// A block of the model's own file.
    Nextn(Box<NextnBlock>),
    /// A draft model that is attached to the engine.
    Attached,
}

impl Drafter {
    /// Opens what guesses for an engine's model, on the CPU with the engine's context and options: the model's own
    /// block, where it was loaded with one, else the model at `path`. `go_on` answers whether to load on.
    ///
    /// # Errors
    /// Those of [`open_model`], [`DraftModel::open`], [`NextnBlock::open`] and [`Engine::attach`].
    pub(crate) fn open(
        path: &Path,
        of: &mut Engine,
        wanted: &EngineOptions,
        mut go_on: impl FnMut() -> bool + Send,
    ) -> Result<Drafter> {
        let options = wanted.of_draft(of.context())?;
        if let Some(block) = of.model().nextn().cloned() {
            return Ok(Drafter::Nextn(Box::new(NextnBlock::open(block, of, &options, go_on)?)));
        }
        let model = open_model(path, &options, Some(&mut |_| go_on()))?;
        if model.outline().assists().is_none() {
            return Ok(Drafter::Model(Box::new(DraftModel::open((path, model), of, &options, go_on)?)));
        }
        same_vocabulary(of.model().vocab(), model.vocab(), path)?;
        of.attach(&model).map(|()| Drafter::Attached).map_err(|error| error.in_draft(path))
    }
}

/// An engine and the slot of its last prefill or restore.
pub(crate) struct EngineSlot {
    engine: Engine,
    slot: SlotId,
    /// Guesses that the engine's slot has, with their rows of logits.
    ahead: Ahead,
    /// The tokens of a pass with guesses.
    pass: Vec<Token>,
    drafter: Option<Drafter>,
}

impl EngineSlot {
    pub(crate) fn new(mut engine: Engine, drafter: Option<Drafter>) -> Result<EngineSlot> {
        let slot = engine.take_slot(-1)?;
        let (ahead, pass) = (Ahead::new(engine.most_results()), Vec::with_capacity(engine.batch()));
        Ok(EngineSlot { engine, slot, ahead, pass, drafter })
    }

    /// The engine, without guesses.
    fn engine(&mut self) -> &mut Engine {
        self.ahead.take_back(&mut self.engine, self.slot);
        &mut self.engine
    }

    /// [`Engine::prefill`], which the model's own block follows.
    fn prefill_slot(&mut self, slot: SlotId, tokens: &[Token], cancel: &AtomicBool) -> Result<Prefill> {
        let EngineSlot { engine, drafter, .. } = self;
        let mut follow = |engine: &Engine| match drafter {
            Some(Drafter::Nextn(block)) => block.follow(engine, slot, tokens, cancel),
            _ => Ok(()),
        };
        // The rows of the pass before, which the next one replaces.
        follow(engine)?;
        engine.prefill_each(slot, tokens, cancel, &mut follow)
    }

    /// The slot with this number; -1 is the one of the last prefill or restore.
    fn numbered(&mut self, slot_id: i32) -> Result<SlotId> {
        let slot = self.slot;
        numbered_slot(self.engine(), slot, slot_id)
    }
}

impl Decoder for EngineSlot {
    fn watch(&mut self, cancel: &Arc<AtomicBool>) {
        self.engine.watch(cancel);
    }

    fn prefill(&mut self, slot_id: i32, tokens: &[Token], cancel: &AtomicBool) -> Result<Prefill> {
        self.slot = self.engine().slot_for(slot_id, tokens)?;
        let prefill = self.prefill_slot(self.slot, tokens, cancel)?;
        match &mut self.drafter {
            Some(Drafter::Model(model)) => model.prefill(slot_id, tokens, cancel).map(|()| prefill),
            _ => Ok(prefill),
        }
    }

    fn prewarm(&mut self, warm: &Prewarm, cancel: &Arc<AtomicBool>, replaces: &mut dyn FnMut()) -> Result<()> {
        if self.engine().holds(warm.slot_id, &warm.tokens) {
            return Ok(());
        }
        let slot = self.engine.slot_for(warm.slot_id, &warm.tokens)?;
        if slot == self.slot {
            replaces();
        }
        self.prefill_slot(slot, &warm.tokens, cancel).map(drop)
    }

    fn pin(&mut self, slots: u32) {
        self.engine.pin(slots);
    }

    fn logits(&mut self, tokens: &[Token], listed: &[Token], cancel: &AtomicBool) -> Result<&mut [f32]> {
        let slot = self.slot;
        if !self.has_ahead(tokens) {
            return self.engine().next_logits(slot, tokens, listed, cancel);
        }
        self.ahead.ask(tokens.len());
        self.engine.row_ahead(self.ahead.asked())
    }

    fn can_guess(&self) -> bool {
        self.engine.most_guesses() > 0
    }

    fn has_ahead(&self, tokens: &[Token]) -> bool {
        self.ahead.has(tokens)
    }

    fn logits_ahead(&mut self, tokens: &[Token], guesses: &mut Vec<Token>, cancel: &AtomicBool) -> Result<&mut [f32]> {
        let slot = self.slot;
        if tokens.is_empty() || tokens.len() + guesses.len() > self.engine.batch() {
            guesses.clear();
            return self.engine().next_logits(slot, tokens, &[], cancel);
        }
        self.engine();
        guesses.truncate(self.engine.most_guesses());
        self.pass.clear();
        self.pass.extend_from_slice(tokens);
        self.pass.extend_from_slice(guesses);
        self.engine.logits_ahead(slot, &self.pass, guesses.len(), cancel)?;
        self.ahead.begin(guesses);
        self.engine.row_ahead(0)
    }

    fn draft(&mut self, ask: Ask<'_>) -> Result<()> {
        let Some(drafter) = &mut self.drafter else { return Ok(()) };
        // The engine's slot has the text but its last token.
        self.ahead.take_back(&mut self.engine, self.slot);
        match drafter {
            Drafter::Model(model) => model.draft(ask),
            Drafter::Nextn(block) => block.draft((&self.engine, self.slot), ask),
            Drafter::Attached => draft_attached((&mut self.engine, self.slot), ask),
        }
    }

    fn shift(&mut self, keep: usize, pending: &mut Vec<Token>, cancel: &AtomicBool) -> Result<usize> {
        let slot = self.slot;
        shift_slot(self.engine(), slot, keep, pending, cancel)
    }

    fn start_sampling(&mut self, spec: &SampleSpec) -> Result<usize> {
        let slot = self.slot;
        self.engine().start_sampling(slot, spec)
    }

    fn has_sampler(&self) -> bool {
        self.engine.has_sampler()
    }

    fn sample(
        &mut self,
        tokens: &[Token],
        legal: Option<Legal<'_>>,
        speculation: Speculation<'_>,
        cancel: &AtomicBool,
    ) -> Result<&SampledRow> {
        let slot = self.slot;
        self.engine().sample(slot, tokens, legal, speculation, cancel)
    }

    fn hold_trie(&mut self, trie: &Arc<Trie>) -> Result<()> {
        self.engine.hold_trie(trie)
    }

    fn score(&mut self, trie: &Trie, descriptor: &Descriptor, cancel: &AtomicBool) -> Result<Vec<LeafScore>> {
        let slot = self.slot;
        self.engine().score(slot, trie, descriptor, cancel)
    }

    fn last_logits(&mut self, n: usize, cancel: &AtomicBool, each: &mut dyn FnMut(&[f32]) -> Result<()>) -> Result<()> {
        let slot = self.slot;
        self.engine().last_logits(slot, n, cancel, each)
    }

    fn embed(&mut self, texts: &[Vec<Token>], options: &EmbedOptions, cancel: &AtomicBool) -> Result<Embeddings> {
        self.engine().embed(texts, options, cancel)
    }

    fn is_current(&self, slot_id: i32) -> Result<bool> {
        Ok(slot_id == -1 || self.slot.number() == slot_id)
    }

    fn save(&mut self, slot_id: i32, path: &Path, note: &[u8], cancel: &AtomicBool) -> Result<()> {
        let slot = self.numbered(slot_id)?;
        self.engine().save(slot, path, note, cancel)
    }

    fn saved_bytes(&mut self, slot_id: i32, note: usize) -> Result<u64> {
        let slot = self.numbered(slot_id)?;
        Ok(self.engine().saved_bytes(slot, note))
    }

    fn open_saved(&self, path: &Path, cancel: &AtomicBool) -> Result<SavedSlot> {
        self.engine.open_saved(path, cancel)
    }

    fn restore(&mut self, slot_id: i32, saved: SavedSlot, ready: bool, cancel: &AtomicBool) -> Result<()> {
        self.slot = self.engine().take_slot(slot_id)?;
        restore_slot(&mut self.engine, self.slot, saved, ready, cancel)
    }

    fn rollback(&mut self) -> Result<()> {
        self.engine().rollback()
    }

    fn tokens(&self) -> &[Token] {
        let tokens = self.engine.tokens(self.slot);
        &tokens[..tokens.len() - self.ahead.unasked()]
    }

    fn room(&self) -> usize {
        self.engine.room(self.slot) + self.ahead.unasked()
    }

    fn stats(&self) -> EngineStats {
        self.engine.stats()
    }
}
