//! The thread that owns a session's engine.
//!
//! It waits for one command at a time, runs it, and ends once the session is closed and nothing is left to run; the
//! engine is dropped here. A panic in a command is an error of that command. After a panic in the engine its state is
//! unknown, and every later prompt is refused with that error.

use super::constraint::Constraint;
use super::decoder::Decoder;
use super::generate::{Generation, guarded};
use super::shared::{Command, Job, Phase, Prewarm, Prompt, ResumePoint, Shared, Started, State};
use super::store::Store;
use super::{EmbedOptions, Embeddings, LeafScores, Settings, Usage, saved};
use crate::engine::EngineStats;
use crate::trie::{Descriptor, TrieState};
use crate::vocab::Vocab;
use crate::{Error, Result, Token};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::SyncSender;
use std::thread;
use std::time::Instant;

/// The worker of one session.
pub(crate) struct Worker {
    decoder: Box<dyn Decoder>,
    shared: Arc<Shared>,
    vocab: Arc<Vocab>,
    /// The engine's counters before the last prompt.
    before: EngineStats,
}

impl Worker {
    /// Starts the worker of an opened engine.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] where there is no thread.
    pub(crate) fn start(mut decoder: Box<dyn Decoder>, vocab: Arc<Vocab>, settings: Settings) -> Result<Started> {
        let shared = Arc::new(Shared::new(settings));
        decoder.watch(&shared.cancel);
        let worker = Worker { decoder, shared: shared.clone(), vocab, before: EngineStats::default() };
        let started = thread::Builder::new().name("eliza-session".into()).spawn(move || worker.run());
        let no_thread = |error| Error::OutOfMemory(format!("no thread for the session: {error}"));
        Ok(Started { shared, worker: started.map_err(no_thread)? })
    }

    /// Serves commands until the session is closed.
    fn run(mut self) {
        while let Some(command) = self.next_command() {
            match command {
                Command::Prewarm(warm) => self.prewarm(&warm),
                Command::Prefill { tokens, slot_id, reply } => {
                    let outcome = self.prefill(&tokens, slot_id);
                    // A caller that is gone needs no answer.
                    let _ = reply.send(outcome);
                }
                Command::Score { trie, reply } => {
                    let _ = reply.send(self.score(&trie));
                }
                Command::Logits { n_last, rows, reply } => {
                    let _ = reply.send(self.logits(n_last, rows));
                }
                Command::Embed { texts, options, reply } => {
                    let _ = reply.send(self.embed(&texts, &options));
                }
                Command::Save { slot_id, path, store, reply } => {
                    let _ = reply.send(self.save(slot_id, &path, store.as_ref()));
                }
                Command::Restore { slot_id, path, reply } => {
                    let _ = reply.send(self.restore(slot_id, &path));
                }
                Command::OpenSlot { slot_id, reply } => {
                    let _ = reply.send(self.open_slot(slot_id));
                }
                Command::Generate(job) => self.generate(*job),
            }
            self.shared.arrival.notify_all();
        }
    }

    /// The next command; while there is none and no prompt waits for its generate, a prompt to warm up.
    fn next_command(&mut self) -> Option<Command> {
        let mut state = self.shared.lock();
        loop {
            let command = state.command.take();
            let idle = command.is_none() && !state.closed && state.prompt.is_none() && state.fault.is_none();
            let warm = if idle { state.prewarms.pop_front() } else { None };
            state.prewarming = warm.is_some();
            if state.prewarming {
                self.shared.cancel.store(false, Ordering::Release);
                self.shared.give_way.store(false, Ordering::Release);
            }
            if let Some(command) = command.or(warm.map(Command::Prewarm)) {
                self.decoder.pin(state.pinned);
                return Some(command);
            }
            if state.closed {
                return None;
            }
            self.shared.work.wait(&mut state);
        }
    }

    /// Evaluates a prompt ahead of its prefill. A command or a cancel ends it, which is no error.
    fn prewarm(&mut self, warm: &Prewarm) {
        let (decoder, shared) = (&mut *self.decoder, &self.shared);
        let mut replaces = || shared.lock().resume_point = ResumePoint::default();
        let ran = guarded("the engine", || decoder.prewarm(warm, &shared.give_way, &mut replaces));
        let mut state = self.shared.lock();
        decoder.rest();
        let outcome = ran.inspect_err(|fault| state.fault = Some(fault.clone())).flatten();
        if let Err(error) = outcome
            && error != Error::Cancelled
        {
            log::warn!("A prompt of {} tokens could not be warmed up: {error}", warm.tokens.len());
            state.untaken = Some(error);
        }
    }

    fn prefill(&mut self, tokens: &[Token], slot_id: i32) -> Result<usize> {
        self.shared.arena.clear();
        self.before = self.decoder.stats();
        let started = Instant::now();
        let decoder = &mut *self.decoder;
        let ran = guarded("the engine", || decoder.prefill(slot_id, tokens, &self.shared.cancel));
        let mut state = self.shared.lock();
        state.usage = Usage {
            prompt_tokens: tokens.len() as u64,
            prefill_us: started.elapsed().as_micros() as u64,
            ..Usage::default()
        };
        state.usage.count(&self.before, &self.decoder.stats());
        state.served_by = self.decoder.model().map(Path::to_path_buf);
        if let Ok(Ok(done)) = &ran {
            state.usage.prompt_tokens_reused = done.reused as u64;
            state.usage.prompt_tokens_restored = done.restored as u64;
            state.prompt = Some(Prompt { slot_id, room: self.decoder.room() });
            state.constraint.rearm();
        }
        finish_command(&mut *self.decoder, &mut state, ran).map(|_| tokens.len())
    }

    fn score(&mut self, trie: &TrieState) -> Result<LeafScores> {
        let (decoder, shared) = (&mut *self.decoder, &self.shared);
        let ran = guarded("the engine", || {
            evaluate_pending(decoder, shared)?;
            let mut score = |descriptor: &Descriptor| loop {
                match decoder.score(trie.trie(), descriptor, &shared.cancel) {
                    Err(error) if decoder.fall_back(&error, &shared.cancel)? => {}
                    scores => return scores,
                }
            };
            trie.descriptor().map_or(Ok(Vec::new()), &mut score)
        });
        let mut state = self.shared.lock();
        state.usage.count(&self.before, &self.decoder.stats());
        state.served_by = self.decoder.model().map(Path::to_path_buf);
        let scores = finish_command(&mut *self.decoder, &mut state, ran)?;
        Ok(LeafScores::new(trie, &scores))
    }

    /// `rows` ends before the answer is given.
    fn logits(&mut self, n_last: usize, rows: SyncSender<Vec<f32>>) -> Result<()> {
        let (decoder, shared) = (&mut *self.decoder, &self.shared);
        let mut send = |logits: &[f32]| {
            let mut row = Vec::new();
            let no_room = |_| Error::OutOfMemory(format!("a row of {} logits", logits.len()));
            row.try_reserve_exact(logits.len()).map_err(no_room)?;
            row.extend_from_slice(logits);
            // A caller that is gone needs no rows.
            let _ = rows.send(row);
            Ok(())
        };
        let ran = guarded("the engine", || {
            evaluate_pending(decoder, shared)?;
            decoder.last_logits(n_last, &shared.cancel, &mut send)
        });
        let mut state = self.shared.lock();
        state.usage.count(&self.before, &self.decoder.stats());
        finish_command(&mut *self.decoder, &mut state, ran)
    }

    fn embed(&mut self, texts: &[Vec<Token>], options: &EmbedOptions) -> Result<Embeddings> {
        self.before = self.decoder.stats();
        let started = Instant::now();
        let (decoder, shared) = (&mut *self.decoder, &self.shared);
        let ran = guarded("the engine", || decoder.embed(texts, options, &shared.cancel));
        let mut state = self.shared.lock();
        state.usage = Usage {
            prompt_tokens: texts.iter().map(|text| text.len() as u64).sum(),
            prefill_us: started.elapsed().as_micros() as u64,
            ..Usage::default()
        };
        state.usage.count(&self.before, &self.decoder.stats());
        state.served_by = self.decoder.model().map(Path::to_path_buf);
        finish_command(&mut *self.decoder, &mut state, ran)
    }

    fn save(&mut self, slot_id: i32, path: &Path, store: Option<&Store>) -> Result<()> {
        let (decoder, shared) = (&mut *self.decoder, &self.shared);
        let ran = guarded("the engine", || {
            // Only for the slot of the last prompt is there more than tokens and cells.
            let (resume_point, trie) = match decoder.is_current(slot_id)? {
                true => {
                    let state = shared.lock();
                    (state.resume_point.clone(), state.constraint.trie().cloned())
                }
                false => (ResumePoint::default(), None),
            };
            let note = saved::note(resume_point, trie.as_ref())?;
            let Some(store) = store else { return decoder.save(slot_id, path, &note, &shared.cancel) };
            let bytes = decoder.saved_bytes(slot_id, note.len())?;
            store.write(path, bytes, || decoder.save(slot_id, path, &note, &shared.cancel))
        });
        finish_command(decoder, &mut shared.lock(), ran)
    }

    fn restore(&mut self, slot_id: i32, path: &Path) -> Result<usize> {
        let started = Instant::now();
        let (decoder, shared, n_vocab) = (&mut *self.decoder, &self.shared, self.vocab.n_tokens());
        let before = decoder.stats();
        let ran = guarded("the engine", || {
            let saved = decoder.open_saved(path, &shared.cancel)?;
            let trie = shared.lock().constraint.trie().cloned();
            let (resume_point, trie) = saved::resume(&saved, trie, n_vocab, decoder.tokens().len() + decoder.room())?;
            // The slot changes from here on.
            shared.arena.clear();
            let mut state = shared.lock();
            (state.prompt, state.resume_point, state.reading, state.usage) =
                (None, ResumePoint::default(), false, Usage::default());
            drop(state);
            decoder.restore(slot_id, saved, resume_point.pending.is_empty(), &shared.cancel)?;
            Ok((resume_point, trie))
        });
        let mut state = shared.lock();
        let mut resume = |(resume_point, trie): (ResumePoint, Option<TrieState>)| {
            self.before = before;
            let (held, pending) = (decoder.tokens().len(), resume_point.pending.len());
            state.usage = Usage {
                prompt_tokens: (held + pending) as u64,
                prompt_tokens_reused: held as u64,
                prompt_tokens_restored: held as u64,
                prefill_us: started.elapsed().as_micros() as u64,
                ..Usage::default()
            };
            state.usage.count(&self.before, &decoder.stats());
            state.prompt = Some(Prompt { slot_id, room: decoder.room() - pending });
            state.resume_point = resume_point;
            match trie {
                Some(trie) => state.constraint = Constraint::Trie(trie),
                // No place in a grammar is saved.
                None => state.constraint.rearm(),
            }
            held + pending
        };
        let ran = ran.map(|restored| restored.map(&mut resume));
        finish_command(decoder, &mut state, ran)
    }

    fn open_slot(&mut self, slot_id: i32) -> Result<Started> {
        let (decoder, shared, vocab) = (&mut *self.decoder, &self.shared, &self.vocab);
        let (is_kept, settings) = {
            let state = shared.lock();
            (state.prompt.is_some(), state.settings.clone())
        };
        let mut replaces = || shared.lock().resume_point = ResumePoint::default();
        let ran = guarded("the engine", || {
            let of_slot = decoder.open_slot(slot_id, is_kept, &mut replaces)?;
            Worker::start(of_slot, vocab.clone(), settings)
        });
        finish_command(decoder, &mut shared.lock(), ran)
    }

    fn generate(&mut self, job: Job) {
        self.shared.arena.clear();
        let mut generation = Generation::new(&mut *self.decoder, &self.shared, &self.vocab, job, self.before);
        let ran = guarded("the engine", || generation.run());
        if let Err(fault) = &ran {
            self.shared.lock().fault = Some(fault.clone());
        }
        generation.finish(ran.flatten());
    }
}

/// Ends a command: marks the session as idle and records the outcome.
fn finish_command<T>(decoder: &mut dyn Decoder, state: &mut State, ran: Result<Result<T>>) -> Result<T> {
    state.note(ran.as_ref().map_or_else(Some, |outcome| outcome.as_ref().err()));
    state.phase = Phase::Idle;
    if state.prompt.is_none() {
        decoder.rest();
    }
    ran.inspect_err(|fault| state.fault = Some(fault.clone())).flatten()
}

/// Append the pending tokens of the last generation to the slot, so that the slot's last position is the stream's.
fn evaluate_pending(decoder: &mut dyn Decoder, shared: &Shared) -> Result<()> {
    let pending = std::mem::take(&mut shared.lock().resume_point.pending);
    if pending.is_empty() {
        return Ok(());
    }
    let held = decoder.tokens().len();
    let ran = decoder.append(&pending, &shared.cancel);
    shared.lock().resume_point.pending = pending[decoder.tokens().len() - held..].to_vec();
    ran
}

/// The error of calls on a session whose engine is unusable.
pub(crate) fn refused(fault: &Error) -> Error {
    Error::Internal(format!("the session must be closed after a fault: {fault}"))
}
