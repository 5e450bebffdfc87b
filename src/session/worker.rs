//! The thread that owns a session's engine.
//!
//! It waits for one command at a time, runs it, and ends once the session is closed and nothing is left to run; the
//! engine is dropped here. A panic in a command is an error of that command. When it came from the engine, nothing the
//! engine says can be trusted any more, and every later prompt is refused with that fault.

use super::decoder::Decoder;
use super::generate::{Generation, guarded};
use super::shared::{Command, Job, Phase, Prompt, Shared};
use super::{LeafScores, Usage};
use crate::engine::EngineStats;
use crate::trie::{Descriptor, TrieState};
use crate::vocab::Vocab;
use crate::{Error, Result, Token};
use std::sync::Arc;
use std::time::Instant;

/// The worker of one session.
pub(crate) struct Worker<D: Decoder> {
    decoder: D,
    shared: Arc<Shared>,
    vocab: Arc<Vocab>,
    /// The engine's counters before the last prompt.
    before: EngineStats,
}

impl<D: Decoder> Worker<D> {
    pub(crate) fn new(decoder: D, shared: Arc<Shared>, vocab: Arc<Vocab>) -> Worker<D> {
        Worker { decoder, shared, vocab, before: EngineStats::default() }
    }

    /// Serves commands until the session is closed.
    pub(crate) fn run(mut self) {
        while let Some(command) = self.next_command() {
            match command {
                Command::Prefill { tokens, slot_id, reply } => {
                    let outcome = self.prefill(&tokens, slot_id);
                    // A caller that is gone needs no answer.
                    let _ = reply.send(outcome);
                }
                Command::Score { trie, reply } => {
                    let _ = reply.send(self.score(&trie));
                }
                Command::Generate(job) => self.generate(*job),
            }
        }
    }

    fn next_command(&self) -> Option<Command> {
        let mut state = self.shared.lock();
        loop {
            if let Some(command) = state.command.take() {
                return Some(command);
            }
            if state.closed {
                return None;
            }
            self.shared.work.wait(&mut state);
        }
    }

    fn prefill(&mut self, tokens: &[Token], slot_id: i32) -> Result<usize> {
        self.shared.arena.clear();
        self.before = self.decoder.stats();
        let started = Instant::now();
        let decoder = &mut self.decoder;
        let ran = guarded("the engine", || decoder.prefill(slot_id, tokens, &self.shared.cancel));
        let mut state = self.shared.lock();
        state.note(ran.as_ref().map_or_else(Some, |outcome| outcome.as_ref().err()));
        state.usage = Usage {
            prompt_tokens: tokens.len() as u64,
            prefill_us: started.elapsed().as_micros() as u64,
            ..Usage::default()
        };
        state.usage.count(&self.before, &self.decoder.stats());
        state.phase = Phase::Idle;
        let reused = ran.inspect_err(|fault| state.fault = Some(fault.clone())).flatten()?;
        state.usage.prompt_tokens_reused = reused as u64;
        state.prompt = Some(Prompt { slot_id, room: self.decoder.room() });
        if let Some(trie) = &mut state.trie {
            trie.rearm();
        }
        Ok(tokens.len())
    }

    fn score(&mut self, trie: &TrieState) -> Result<LeafScores> {
        let (decoder, cancel) = (&mut self.decoder, &self.shared.cancel);
        let score = |descriptor: &Descriptor| decoder.score(trie.trie(), descriptor, cancel);
        let ran = guarded("the engine", || trie.descriptor().map_or(Ok(Vec::new()), score));
        let mut state = self.shared.lock();
        state.note(ran.as_ref().map_or_else(Some, |outcome| outcome.as_ref().err()));
        state.usage.count(&self.before, &self.decoder.stats());
        state.phase = Phase::Idle;
        let scores = ran.inspect_err(|fault| state.fault = Some(fault.clone())).flatten()?;
        Ok(LeafScores::new(trie, &scores))
    }

    fn generate(&mut self, job: Job) {
        self.shared.arena.clear();
        let mut generation = Generation::new(&mut self.decoder, &self.shared, &self.vocab, job, self.before);
        let ran = guarded("the engine", || generation.run());
        if let Err(fault) = &ran {
            self.shared.lock().fault = Some(fault.clone());
        }
        generation.finish(ran.flatten());
    }
}

/// What a session says when its engine is unusable.
pub(crate) fn refused(fault: &Error) -> Error {
    Error::Internal(format!("the session must be closed after a fault: {fault}"))
}
