//! A session's part of an engine that several share (`hub.rs`).
//!
//! The slot's tokens and the last row of logits are kept here, so that a worker asks the engine only for what takes a
//! pass. Where a device samples it does so in the pass of all, but begins nothing before it is asked for; else each
//! worker samples from logits on its own thread.

use super::decoder::{Ahead, Decoder, PassTime, evaluate_last, numbered_slot, restore_slot, shift_slot, take_turns};
use super::generate::guarded;
use super::hub::{Hub, Kind, Request, Stream};
use super::shared::Prewarm;
use crate::backend::{Legal, SampleSpec, SampledRow};
use crate::engine::{
    EmbedOptions, Embeddings, Engine, EngineStats, LeafScore, Prefill, SavedSlot, SlotId, Speculation,
};
use crate::trie::{Descriptor, Trie};
use crate::{Error, Result, Token};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// A stream's part of a shared engine, with the slot of its last prefill or restore.
pub(crate) struct Seat {
    hub: Arc<Hub>,
    stream: Stream,
    slot: SlotId,
    /// See [`Engine::resting`].
    resting: Arc<AtomicU32>,
    /// The tokens of the slot, without guesses that nobody asked for.
    tokens: Vec<Token>,
    /// Guesses that the engine's slot has, with their rows in the request.
    ahead: Ahead,
    can_guess: bool,
    context: usize,
    /// Ends what the session asks for.
    cancel: Arc<AtomicBool>,
    /// Goes to the hub and back.
    request: Option<Box<Request>>,
    /// Whether a device has the logits, and the chain by which it samples.
    has_sampler: bool,
    chain: SampleSpec,
    /// Whether the request has all logits after the slot's last token.
    is_fresh: bool,
    stats: EngineStats,
}

/// What is wanted after tokens.
#[derive(Clone, Copy)]
enum Wanted<'a> {
    /// The logits of these tokens; all where there are none.
    Logits(&'a [Token]),
    /// All logits, and those after each of these guesses.
    Ahead(&'a [Token]),
    /// A token that the device samples under this mask.
    Token(Option<Legal<'a>>),
}

impl Seat {
    /// The part of a stream that begins in this slot, or in an empty one.
    ///
    /// # Errors
    /// The hub's fault, and that of [`Engine::take_slot`].
    pub fn new(hub: Arc<Hub>, stream: Stream, slot: Option<SlotId>) -> Result<Seat> {
        let resting = hub.engine(stream).resting().clone();
        let mut seat = Seat {
            hub,
            stream,
            slot: slot.unwrap_or_default(),
            resting,
            tokens: Vec::new(),
            ahead: Ahead::new(0),
            can_guess: false,
            context: 0,
            cancel: Arc::default(),
            request: Some(Box::new(Request::new())),
            has_sampler: false,
            chain: SampleSpec::default(),
            is_fresh: false,
            stats: EngineStats::default(),
        };
        // From here on an error gives the seat back.
        let results;
        (seat.context, seat.has_sampler, seat.can_guess, results) = seat.alone(|engine, current| {
            *current = slot.map_or_else(|| engine.take_slot(-1), Ok)?;
            Ok((engine.context(), engine.has_sampler(), engine.most_guesses() > 0, engine.most_results()))
        })?;
        seat.ahead = Ahead::new(results);
        seat.tokens.reserve(seat.context);
        seat.rest();
        Ok(seat)
    }

    /// Runs `body` on the engine between two passes, and notes what that took and left. A panic makes the engine
    /// unusable for everyone.
    fn alone<T>(&mut self, body: impl FnOnce(&mut Engine, &mut SlotId) -> Result<T>) -> Result<T> {
        let hub = self.hub.clone();
        let mut engine = hub.engine(self.stream);
        if let Some(fault) = hub.fault() {
            return Err(fault);
        }
        let before = engine.stats();
        self.ahead.take_back(&mut engine, self.slot);
        let ran = guarded("the engine", || body(&mut engine, &mut self.slot));
        let result = ran.inspect_err(|fault| hub.fail(fault))?;
        engine.hold(self.slot);
        self.stats.add(&engine.stats().since(&before));
        self.tokens.clear();
        self.tokens.extend_from_slice(engine.tokens(self.slot));
        self.is_fresh = false;
        result
    }

    /// As `alone`, where the slot is the one that was evaluated last.
    fn alone_after_last<T>(
        &mut self,
        cancel: &AtomicBool,
        body: impl FnOnce(&mut Engine, SlotId) -> Result<T>,
    ) -> Result<T> {
        self.alone(|engine, slot| {
            if !engine.is_last(*slot) {
                evaluate_last(engine, *slot, cancel)?;
            }
            body(engine, *slot)
        })
    }

    /// Sends a request for these tokens and waits for it.
    fn ask(
        &mut self,
        (kind, slot): (Kind, SlotId),
        tokens: &[Token],
        wanted: Wanted<'_>,
        cancel: &Arc<AtomicBool>,
    ) -> Result<Prefill> {
        let mut request = self.request();
        request.begin(kind, slot);
        request.tokens.clear();
        request.tokens.extend_from_slice(tokens);
        request.listed.clear();
        (request.samples, request.guesses) = (false, 0);
        match wanted {
            Wanted::Logits(listed) => request.listed.extend_from_slice(listed),
            Wanted::Ahead(guesses) => {
                request.tokens.extend_from_slice(guesses);
                request.guesses = guesses.len();
            }
            Wanted::Token(legal) => {
                request.samples = true;
                request.mask.set(legal);
            }
        }
        if kind == Kind::Next {
            request.wrong = self.ahead.forget();
        }
        request.cancel = cancel.clone();
        let mut request = self.hub.ask(self.stream, request);
        self.stats.add(&request.spent);
        let outcome = std::mem::replace(&mut request.outcome, Ok(()));
        let answer = (request.done, request.prefill);
        if outcome.is_ok() && request.guesses > 0 {
            self.ahead.begin(&request.tokens[tokens.len()..]);
        }
        self.request = Some(request);
        if slot == self.slot {
            match kind {
                Kind::Next => self.tokens.extend_from_slice(&tokens[..answer.0.min(tokens.len())]),
                // Those that other slots had are there after an error as well; how many, the engine knows.
                _ if outcome.is_err() => {
                    // Only an engine that is unusable has no answer, and its error is the outcome's already.
                    let _ = self.alone(|_, _| Ok(()));
                }
                _ => {
                    self.tokens.clear();
                    self.tokens.extend_from_slice(tokens);
                }
            }
            self.is_fresh = outcome.is_ok() && matches!(wanted, Wanted::Logits([]));
        }
        outcome.map(|()| answer.1)
    }

    fn request(&mut self) -> Box<Request> {
        self.request.take().unwrap_or_else(|| Box::new(Request::new()))
    }

    /// The logits of the last request, after those of its guesses that were asked for.
    fn row(&mut self) -> Result<&mut [f32]> {
        let (rows, at) = (1 + self.ahead.len(), self.ahead.asked());
        let row = self.request.as_mut().and_then(|request| {
            let all = &mut request.after.rows;
            let n_vocab = all.len() / rows;
            all.get_mut(at * n_vocab..(at + 1) * n_vocab)
        });
        row.ok_or_else(|| Error::Internal("a row of logits that was never asked for".into()))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.hub.leave(self.stream);
    }
}

impl Decoder for Seat {
    fn watch(&mut self, cancel: &Arc<AtomicBool>) {
        self.cancel = cancel.clone();
    }

    fn prefill(&mut self, slot_id: i32, tokens: &[Token], _: &AtomicBool) -> Result<Prefill> {
        self.alone(|engine, slot| {
            engine.check_prompt(tokens)?;
            *slot = engine.slot_for(slot_id, tokens)?;
            Ok(())
        })?;
        self.ask((Kind::Prompt, self.slot), tokens, Wanted::Logits(&[]), &self.cancel.clone())
    }

    fn prewarm(&mut self, warm: &Prewarm, cancel: &Arc<AtomicBool>, replaces: &mut dyn FnMut()) -> Result<()> {
        let slot = self.alone(|engine, slot| {
            engine.check_prompt(&warm.tokens)?;
            if engine.holds(warm.slot_id, &warm.tokens) {
                return Ok(None);
            }
            let found = engine.slot_for(warm.slot_id, &warm.tokens)?;
            if found == *slot {
                replaces();
            }
            Ok(Some(found))
        })?;
        let Some(slot) = slot else { return Ok(()) };
        self.ask((Kind::Warm, slot), &warm.tokens, Wanted::Logits(&[]), cancel).map(drop)
    }

    fn pin(&mut self, slots: u32) {
        self.hub.engine(self.stream).pin(slots);
    }

    fn logits(&mut self, tokens: &[Token], listed: &[Token], cancel: &AtomicBool) -> Result<&mut [f32]> {
        if self.ahead.has(tokens) {
            self.ahead.ask(tokens.len());
            self.tokens.extend_from_slice(tokens);
        } else if !tokens.is_empty() {
            self.ask((Kind::Next, self.slot), tokens, Wanted::Logits(listed), &self.cancel.clone())?;
        } else if !self.is_fresh {
            let mut request = self.request();
            let row = &mut request.after.rows;
            let done = self.alone_after_last(cancel, |engine, slot| {
                row.clear();
                row.extend_from_slice(engine.next_logits(slot, &[], listed, cancel)?);
                Ok(())
            });
            self.request = Some(request);
            done?;
        }
        // The caller may change the row.
        self.is_fresh = false;
        self.row()
    }

    fn can_guess(&self) -> bool {
        self.can_guess
    }

    fn has_ahead(&self, tokens: &[Token]) -> bool {
        self.ahead.has(tokens)
    }

    fn logits_ahead(&mut self, tokens: &[Token], guesses: &mut Vec<Token>, cancel: &AtomicBool) -> Result<&mut [f32]> {
        if tokens.is_empty() {
            guesses.clear();
            return self.logits(tokens, &[], cancel);
        }
        self.ask((Kind::Next, self.slot), tokens, Wanted::Ahead(guesses), &self.cancel.clone())?;
        guesses.truncate(self.ahead.len());
        self.row()
    }

    fn pass_time(&self) -> Option<PassTime> {
        self.request.as_ref().map(|request| PassTime { took: request.took, streams: request.streams.max(1) })
    }

    fn start_sampling(&mut self, spec: &SampleSpec) -> Result<usize> {
        if !self.has_sampler {
            return Ok(0);
        }
        self.chain = spec.clone();
        // The logits of the prompt stay what they are.
        let is_fresh = self.is_fresh;
        let steps = self.alone(|engine, slot| engine.start_sampling(*slot, spec))?;
        self.is_fresh = is_fresh;
        Ok(steps)
    }

    fn has_sampler(&self) -> bool {
        self.has_sampler
    }

    fn sample(
        &mut self,
        tokens: &[Token],
        legal: Option<Legal<'_>>,
        _: Speculation<'_>,
        cancel: &AtomicBool,
    ) -> Result<&SampledRow> {
        if !tokens.is_empty() {
            self.ask((Kind::Next, self.slot), tokens, Wanted::Token(legal), &self.cancel.clone())?;
        } else {
            let (mut request, chain) = (self.request(), std::mem::take(&mut self.chain));
            let sampled = &mut request.after.sampled;
            let done = self.alone(|engine, &mut slot| {
                if !engine.is_last(slot) {
                    evaluate_last(engine, slot, cancel)?;
                    engine.start_sampling(slot, &chain)?;
                }
                sampled.clone_from(engine.sample(slot, &[], legal, Speculation::Nothing, cancel)?);
                Ok(())
            });
            (self.request, self.chain) = (Some(request), chain);
            done?;
        }
        let sampled = self.request.as_ref().map(|request| &request.after.sampled);
        sampled.ok_or_else(|| Error::Internal("a token that was never asked for".into()))
    }

    fn shift(&mut self, keep: usize, pending: &mut Vec<Token>, cancel: &AtomicBool) -> Result<usize> {
        self.alone(|engine, slot| shift_slot(engine, *slot, keep, pending, cancel))
    }

    fn score(&mut self, trie: &Trie, descriptor: &Descriptor, cancel: &AtomicBool) -> Result<Vec<LeafScore>> {
        self.alone_after_last(cancel, |engine, slot| engine.score(slot, trie, descriptor, cancel))
    }

    fn last_logits(&mut self, n: usize, cancel: &AtomicBool, each: &mut dyn FnMut(&[f32]) -> Result<()>) -> Result<()> {
        self.alone_after_last(cancel, |engine, slot| engine.last_logits(slot, n, cancel, each))
    }

    fn embed(&mut self, texts: &[Vec<Token>], options: &EmbedOptions, cancel: &AtomicBool) -> Result<Embeddings> {
        self.alone(|engine, _| engine.embed(texts, options, cancel))
    }

    fn is_current(&self, slot_id: i32) -> Result<bool> {
        Ok(slot_id == -1 || self.hub.engine(self.stream).number(self.slot) == slot_id)
    }

    fn save(&mut self, slot_id: i32, path: &Path, note: &[u8], cancel: &AtomicBool) -> Result<()> {
        self.alone(|engine, slot| {
            let slot = numbered_slot(engine, *slot, slot_id)?;
            engine.save(slot, path, note, cancel)
        })
    }

    fn saved_bytes(&mut self, slot_id: i32, note: usize) -> Result<u64> {
        self.alone(|engine, slot| {
            let slot = numbered_slot(engine, *slot, slot_id)?;
            Ok(engine.saved_bytes(slot, note))
        })
    }

    fn open_saved(&self, path: &Path, cancel: &AtomicBool) -> Result<SavedSlot> {
        self.hub.engine(self.stream).open_saved(path, cancel)
    }

    fn restore(&mut self, slot_id: i32, saved: SavedSlot, ready: bool, cancel: &AtomicBool) -> Result<()> {
        self.alone(|engine, slot| {
            *slot = engine.take_slot(slot_id)?;
            restore_slot(engine, *slot, saved, ready, cancel)
        })
    }

    fn rollback(&mut self) -> Result<()> {
        self.hub.pause(self.stream);
        Ok(())
    }

    fn open_slot(&mut self, slot_id: i32, is_kept: bool, replaces: &mut dyn FnMut()) -> Result<Box<dyn Decoder>> {
        if !self.hub.has_concurrent_slots() {
            return Err(take_turns());
        }
        let before = self.slot;
        let slot = self.alone(|engine, current| engine.part(slot_id, current, is_kept))?;
        if slot == before {
            replaces();
        }
        Ok(Box::new(Seat::new(self.hub.clone(), self.hub.take_slot(self.stream, slot)?, Some(slot))?))
    }

    fn rest(&mut self) {
        // Where the context is this stream's alone, its slot has its cells.
        if self.hub.shares_seat(self.stream) {
            self.resting.fetch_or(self.slot.bit(), Ordering::Relaxed);
        }
    }

    fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    fn room(&self) -> usize {
        self.context - self.tokens.len()
    }

    fn stats(&self) -> EngineStats {
        self.stats
    }
}
