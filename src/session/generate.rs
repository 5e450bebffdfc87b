//! One generation, on the worker: choose a token, emit it, repeat.
//!
//! The loop keeps these rules. Every emitted token fits in the context after the prompt, or after what shifts left of
//! it. A forced token needs no logits: it is appended to `pending`, and the whole forced run is evaluated together with
//! the next position at which there is a choice. An end-of-generation token is never emitted. Nothing is allocated per
//! token.

use super::constraint::{Constraint, Kind, Next};
use super::decoder::{Decoder, PassTime};
use super::draft::Ask;
use super::guess::{By, Guesser, MOST};
use super::shared::{Job, Phase, ResumePoint, Shared};
use super::{ContextFull, Event, FinishReason, Sink, Usage};
use crate::engine::{EngineStats, LeafScore, Speculation};
use crate::grammar::GrammarState;
use crate::trie::{Accept, Mode, Node, TrieState};
use crate::vocab::Vocab;
use crate::{Error, Result, Token};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A generation in progress.
pub(crate) struct Generation<'a> {
    decoder: &'a mut dyn Decoder,
    shared: &'a Shared,
    vocab: &'a Vocab,
    job: Job,
    /// Emitted tokens that the engine has not evaluated.
    pending: Vec<Token>,
    /// Bytes of the token being emitted.
    piece: Vec<u8>,
    /// Steps of the chain that the device runs, and those that are left to the host.
    followed: usize,
    left_to_host: usize,
    /// Whether under a token mask only the logits of legal tokens matter.
    masks_first: bool,
    emitted: u64,
    /// Where next tokens are guessed: the guesses, the tokens of the stream and of those that are guessed now, how many
    /// of the last were right.
    guesser: Option<Guesser>,
    text: Vec<Token>,
    guesses: Vec<Token>,
    right: usize,
    /// Guesses before the last that were told right from wrong, and all that were right.
    drafted: u64,
    accepted: u64,
    /// Tokens of the stream, with those that are not in the slot yet, without those that shifts removed.
    stream: usize,
    /// [`ResumePoint::shifts`].
    shifts: u64,
    /// The remaining tokens of the leaf that was chosen as a whole, the next token last.
    chosen: Vec<Token>,
    /// The leaf that the span ended at, until the next token, which must be none of its children.
    ended_at: Option<Node>,
    /// Steps at which the constraint left a choice, and those of them that computed whole rows of logits.
    branches: u64,
    whole_rows: u64,
    /// How many more passes decoding token by token would have taken, without those that scored leaves.
    saved: u64,
    scoring: u64,
    started: Instant,
    /// The time of sampling on the host, and the number of sampled tokens.
    choosing: Duration,
    sampled: u64,
    /// The engine's counters before the prompt.
    before: EngineStats,
    /// Masks of the grammar that were computed before this generation.
    masks_before: u64,
}

impl<'a> Generation<'a> {
    /// A generation after the prompt in the decoder's slot; `before` are its counters before that prompt.
    pub(crate) fn new(
        decoder: &'a mut dyn Decoder,
        shared: &'a Shared,
        vocab: &'a Vocab,
        mut job: Job,
        before: EngineStats,
    ) -> Generation<'a> {
        let depth = |state: &TrieState| state.trie().descriptors().iter().map(|one| one.depth()).max();
        let run = job.constraint.trie().and_then(depth).unwrap_or(0) as usize;
        let ResumePoint { mut pending, mut chosen, ended_at, shifts } = std::mem::take(&mut job.resume_point);
        pending.reserve(run + 1);
        chosen.reserve(run);
        let guesser = (job.guessing && decoder.can_guess()).then(Guesser::new);
        let text = guesser.as_ref().map_or(0, |_| decoder.tokens().len() + decoder.room());
        Generation {
            guesser,
            text: Vec::with_capacity(text),
            guesses: Vec::with_capacity(MOST),
            right: 0,
            drafted: 0,
            accepted: 0,
            stream: decoder.tokens().len() + pending.len(),
            shifts,
            pending,
            piece: Vec::with_capacity(vocab.max_piece_bytes()),
            followed: 0,
            left_to_host: 0,
            masks_first: false,
            emitted: 0,
            chosen,
            ended_at,
            branches: 0,
            whole_rows: 0,
            saved: 0,
            scoring: 0,
            started: Instant::now(),
            choosing: Duration::ZERO,
            sampled: 0,
            before,
            masks_before: job.constraint.counts().masks,
            decoder,
            shared,
            vocab,
            job,
        }
    }

    /// Generates until something ends it; returns the reason.
    pub(crate) fn run(&mut self) -> Result<FinishReason> {
        let mut reason = self.attempt();
        while let Err(error) = &reason
            && self.sampled == 0
            && self.emitted as usize == self.pending.len()
            && self.decoder.fall_back(error, &self.shared.cancel)?
        {
            self.guesser = None;
            self.stream = self.decoder.tokens().len() + self.pending.len();
            reason = self.attempt();
        }
        reason.and_then(|reason| self.decoder.rollback().map(|()| reason))
    }

    fn attempt(&mut self) -> Result<FinishReason> {
        self.decoder.begin(&self.job, self.pending.len())?;
        self.look_back();
        self.look_for_reasoning();
        self.start_sampling()?;
        self.tokens()
    }

    /// The penalties see the tokens of the context, on the host and on a device.
    fn look_back(&mut self) {
        self.job.sampler.restart(self.shifts);
        self.job.span_samplers.restart(self.shifts);
        for &token in self.decoder.tokens().iter().chain(&self.pending) {
            self.job.sampler.accept(token);
            self.job.span_samplers.accept(token);
        }
        if let Constraint::Grammar(grammar) = &mut self.job.constraint {
            grammar.begin(self.decoder.tokens().iter().chain(&self.pending));
        }
        if self.guesser.is_some() {
            self.text.clear();
            self.text.extend(self.decoder.tokens().iter().chain(&self.pending));
        }
    }

    /// Whether the prompt opens a block of thinking.
    fn look_for_reasoning(&mut self) {
        if let Some(reasoning) = &mut self.job.reasoning {
            let (vocab, piece) = (self.vocab, &mut self.piece);
            reasoning.after(self.decoder.tokens(), |token| {
                piece.clear();
                vocab.piece(token, false, piece);
                piece.iter().all(u8::is_ascii_whitespace) && !vocab.is_control(token)
            });
        }
    }

    fn start_sampling(&mut self) -> Result<()> {
        let spec = self.job.sampler.spec(&self.job.banned);
        let steps = self.decoder.start_sampling(&spec)?;
        let greedy = self.job.constraint.has_greedy();
        // Under a greedy mask a device that runs only a part of the chain leaves only the best child.
        self.followed = if greedy && steps < spec.steps.len() && !spec.greedy_from(steps) { 0 } else { steps };
        self.left_to_host = spec.steps.len() - self.followed;
        self.masks_first = spec.masks_first();
        let walked =
            |trie: &&TrieState| self.followed > 0 && self.left_to_host == 0 && trie.mode() != Mode::ScoreLeaves;
        if let Some(trie) = self.job.constraint.trie().filter(walked) {
            self.decoder.hold_trie(trie.trie())?;
        }
        let chain = spec.describe(self.followed);
        let before = std::mem::replace(&mut self.shared.lock().chain, chain.clone());
        if before != chain {
            match self.left_to_host > 0 && self.decoder.has_sampler() {
                true => log::warn!("The GPU does not follow the whole sampler chain, the host does the `-`: {chain}"),
                false => log::debug!("Sampler chain: {chain}"),
            }
        }
        Ok(())
    }

    fn tokens(&mut self) -> Result<FinishReason> {
        loop {
            if self.shared.cancel.load(Ordering::Acquire) {
                return Ok(FinishReason::Cancelled);
            }
            let is_counted = !self.decoder.limits_itself() || self.job.max_new_tokens == Some(0);
            if is_counted && Some(self.emitted) == self.job.max_new_tokens {
                return Ok(FinishReason::Length);
            }
            if self.decoder.room() <= self.pending.len() {
                match self.job.on_context_full {
                    ContextFull::Stop => return Ok(FinishReason::Context),
                    ContextFull::Shift { keep } => match self.shift(keep as usize) {
                        Err(Error::Cancelled) => return Ok(FinishReason::Cancelled),
                        shifted => shifted?,
                    },
                }
            }
            let choosing = |trie: &TrieState| trie.mode() == Mode::ScoreLeaves && trie.at_root();
            if self.job.constraint.trie().is_some_and(choosing) {
                match self.choose() {
                    Err(Error::Cancelled) => return Ok(FinishReason::Cancelled),
                    chosen => chosen?,
                }
            }
            let next = self.next()?;
            let token = match next {
                Next::End => return Ok(FinishReason::Stop),
                Next::Forced(token) => token,
                Next::Choice => match self.sample() {
                    Err(Error::Cancelled) => return Ok(FinishReason::Cancelled),
                    sampled => sampled?,
                },
            };
            let allowed = self.job.constraint.allowed();
            let before = self.job.constraint.reporting();
            let step = self.accept(token)?;
            match step {
                Accept::EndedAtLeaf if self.job.stop_at_span_end => return Ok(FinishReason::Span),
                Accept::NetReleased => log::warn!("Token trie released: no leaf completed within the limit of tokens"),
                _ => {}
            }
            if self.vocab.is_eog(token) {
                return Ok(if self.decoder.reached_limit() { FinishReason::Length } else { FinishReason::Stop });
            }
            self.job.sampler.accept(token);
            self.job.span_samplers.accept(token);
            self.job.reasoning.iter_mut().for_each(|reasoning| reasoning.accept(token));
            let stopped = self.emit(token, next != Next::Choice, allowed, before);
            self.pending.push(token);
            if self.guesser.is_some() {
                self.text.push(token);
            }
            if stopped? {
                return Ok(FinishReason::Stop);
            }
            let scored = |trie: &&mut TrieState| trie.mode() == Mode::ScoreLeaves;
            if self.chosen.is_empty() {
                self.ended_at = self.job.constraint.trie_mut().filter(scored).and_then(TrieState::end_at_leaf);
            }
            if (step == Accept::Leaf || self.ended_at.is_some()) && self.job.stop_at_span_end {
                return Ok(FinishReason::Span);
            }
        }
    }

    /// What comes next: a choice, a token that is forced, or the end. Where the constraint leaves every token legal,
    /// the budget of reasoning may force one.
    fn next(&mut self) -> Result<Next> {
        let next = match &mut self.job.constraint {
            Constraint::Grammar(grammar) if self.decoder.samples_itself() => grammar.next_elsewhere()?,
            Constraint::Grammar(grammar) => grammar.next()?,
            constraint => {
                let forced = self.chosen.pop().or_else(|| constraint.trie().and_then(TrieState::forced));
                forced.map_or(Next::Choice, Next::Forced)
            }
        };
        if next == Next::Choice
            && let Some(reasoning) = &mut self.job.reasoning
            && self.job.constraint.legal().is_none()
            && !(self.decoder.samples_itself() && self.job.constraint.kind() == Some(Kind::Grammar))
            && let Some(token) = reasoning.forced(self.job.text.is_whole())
        {
            return Ok(Next::Forced(token));
        }
        Ok(next)
    }

    /// Moves the constraint on by a token.
    fn accept(&mut self, token: Token) -> Result<Accept> {
        match &mut self.job.constraint {
            Constraint::None => Ok(Accept::Ignored),
            Constraint::Trie(trie) => Ok(trie.accept(token)),
            Constraint::Grammar(grammar) => grammar.accept(token).map(|()| Accept::Ignored),
        }
    }

    /// Context shift: removes tokens from the full context. The last token is evaluated afterwards, with the next
    /// choice.
    fn shift(&mut self, keep: usize) -> Result<()> {
        let evaluated = self.pending.len().saturating_sub(1);
        let gone = self.decoder.shift(keep, &mut self.pending, &self.shared.cancel)?;
        if gone == 0 {
            return Err(Error::Internal(format!("A full context gave no room behind {keep} tokens")));
        }
        self.saved += evaluated.saturating_sub(1) as u64;
        self.stream -= gone;
        self.shifts = self.shifts.wrapping_add(1);
        self.shared.lock().usage.context_shifts += 1;
        self.look_back();
        self.start_sampling()
    }

    /// Scores the leaves of the descriptor and takes the most probable one, of several the first.
    fn choose(&mut self) -> Result<()> {
        // A trie is at its root where nothing was generated yet, and where it was set after a restore.
        if !self.pending.is_empty() {
            self.decoder.append(&self.pending, &self.shared.cancel)?;
            self.pending.clear();
        }
        let Some(trie) = self.job.constraint.trie() else { return Ok(()) };
        let Some(descriptor) = trie.descriptor() else { return Ok(()) };
        let before = self.decoder.stats().forward_passes;
        let scores = self.decoder.score(trie.trie(), descriptor, &self.shared.cancel)?;
        self.scoring = self.decoder.stats().forward_passes - before;
        let better = |best: LeafScore, one: LeafScore| if one.logprob > best.logprob { one } else { best };
        let best = scores.into_iter().reduce(better);
        self.chosen.extend(best.iter().flat_map(|best| trie.trie().path_to(best.node)).rev());
        Ok(())
    }

    /// Evaluates the pending tokens and samples the token after a leaf with children, which is none of the children.
    fn sample_behind(&mut self, leaf: Node) -> Result<Token> {
        if self.decoder.samples_itself() {
            let children = self.job.constraint.trie().map_or(&[][..], |trie| trie.trie().children(leaf));
            self.decoder.exclude(children);
            return self.sample_there();
        }
        let position = (self.decoder.tokens().len() + self.pending.len()) as u32;
        let logits = self.decoder.logits(&self.pending, &[], &self.shared.cancel)?;
        for &child in self.job.constraint.trie().iter().flat_map(|trie| trie.trie().children(leaf)) {
            logits[child as usize] = f32::NEG_INFINITY;
        }
        let sampler = &mut self.job.sampler;
        let token = timed(&mut self.choosing, || sampler.sample(logits, None, &self.job.banned, position))?;
        // The device did not sample this token, so its sampling is started again.
        self.start_sampling()?;
        Ok(token)
    }

    /// The next token where the decoder samples by itself.
    fn sample_there(&mut self) -> Result<Token> {
        let row = self.decoder.sample(&self.pending, None, Speculation::Nothing, &self.shared.cancel)?;
        self.job.sampler.note(&row.result, &row.candidates);
        Ok(row.result.token)
    }

    /// Puts the sampler of the span into use that the next token belongs to.
    fn switch_sampler(&mut self) -> Result<()> {
        let way = self.job.constraint.span_sampling();
        match self.job.span_samplers.switch(&mut self.job.sampler, way) {
            // What a device began for the old chain is of no use.
            true => self.decoder.rollback().and_then(|()| self.start_sampling()),
            false => Ok(()),
        }
    }

    /// Guesses what follows the pending tokens, where their logits are not there yet; says who did.
    fn guess(&mut self) -> Result<By> {
        let Some(guesser) = self.guesser.as_mut().filter(|_| !self.decoder.has_ahead(&self.pending)) else {
            return Ok(By::Text);
        };
        self.drafted += self.guesses.len() as u64;
        guesser.learn(std::mem::take(&mut self.right));
        let left = self.job.max_new_tokens.map_or(u64::MAX, |most| most - self.emitted - 1) as usize;
        let room = self.decoder.room().saturating_sub(self.pending.len());
        // Where few tokens are legal, few logits are computed, and whole rows would not pay.
        let legal = self.job.constraint.legal();
        let whole = legal.is_none_or(|legal| legal.listed(self.masks_first).is_empty());
        let most = if whole && !self.pending.is_empty() { MOST.min(left).min(room) } else { 0 };
        let (by, asked) = guesser.guess(&self.text, most, &mut self.guesses);
        if asked == 0 {
            return Ok(by);
        }
        let (sampler, banned) = (&mut self.job.sampler, &self.job.banned[..]);
        let mut choose = |logits: &mut [f32], position| sampler.propose(logits, banned, position);
        let (choose, guesses, cancel) = (&mut choose, &mut self.guesses, &*self.shared.cancel);
        self.decoder.draft(Ask { text: &self.text, most: asked, choose, guesses, cancel })?;
        Ok(by)
    }

    /// Evaluates the pending tokens and samples the next one.
    fn sample(&mut self) -> Result<Token> {
        self.switch_sampler()?;
        let began = Instant::now();
        let by = if self.ended_at.is_none() && self.followed == 0 { self.guess()? } else { By::Text };
        let legal = self.job.constraint.legal();
        let position = (self.decoder.tokens().len() + self.pending.len()) as u32;
        let listed = legal.map_or(&[][..], |legal| legal.listed(self.masks_first));
        self.branches += u64::from(legal.is_some());
        self.whole_rows += u64::from(legal.is_some() && listed.is_empty());
        self.saved += self.pending.len().saturating_sub(1) as u64;
        let token = if let Some(leaf) = self.ended_at.take() {
            self.sample_behind(leaf)?
        } else if self.decoder.samples_itself() {
            self.sample_there()?
        } else if self.followed > 0 {
            let speculation = speculation(&self.job, self.emitted, self.left_to_host);
            let row = self.decoder.sample(&self.pending, legal, speculation, &self.shared.cancel)?;
            let sampler = &mut self.job.sampler;
            if self.left_to_host > 0 {
                let handed = row.candidates.iter().map(|&(token, logit, _)| (token, logit));
                timed(&mut self.choosing, || sampler.resume(self.left_to_host, handed, legal, position))?
            } else {
                sampler.note(&row.result, &row.candidates);
                row.result.token
            }
        } else {
            let there = self.decoder.has_ahead(&self.pending);
            if there {
                (self.right, self.accepted) =
                    (self.right + self.pending.len(), self.accepted + self.pending.len() as u64);
                self.saved += 1;
            }
            let logits = match there || self.guesses.is_empty() {
                true => self.decoder.logits(&self.pending, listed, &self.shared.cancel)?,
                false => self.decoder.logits_ahead(&self.pending, &mut self.guesses, &self.shared.cancel)?,
            };
            let (took, sampler) = (began.elapsed(), &mut self.job.sampler);
            let token = timed(&mut self.choosing, || sampler.sample(logits, legal, &self.job.banned, position))?;
            // What follows the prompt takes no whole pass.
            if let Some(guesser) = self.guesser.as_mut().filter(|_| !there && !self.pending.is_empty()) {
                let alone = PassTime { took, streams: 1 };
                guesser.made(by, self.guesses.len(), self.decoder.pass_time().unwrap_or(alone));
            }
            token
        };
        self.sampled += 1;
        self.pending.clear();
        let mut state = self.shared.lock();
        self.job.sampler.swap_last(state.sampled.entry(self.job.slot_id).or_default());
        Ok(token)
    }

    /// Counts a token, one of `allowed` tokens that the constraint allowed, and passes it to the sink with the text
    /// that it completed. `before` is where a grammar that reports its spans was before it. True when a stop string is
    /// complete.
    fn emit(
        &mut self,
        token: Token,
        forced: bool,
        allowed: Option<usize>,
        before: Option<GrammarState>,
    ) -> Result<bool> {
        self.piece.clear();
        // What a grammar matched is in the text, whole.
        let spelled = self.job.special_text || self.job.constraint.spells_control_tokens();
        self.vocab.piece(token, spelled, &mut self.piece);
        let stopped = self.job.text.push(&self.piece);
        self.emitted += 1;
        self.stream += 1;
        let text = self.job.text.text();
        let mut state = self.shared.lock();
        state.usage.completion_tokens += 1;
        state.usage.forced_tokens += u64::from(forced);
        state.usage.span_tokens += u64::from(allowed.is_some());
        state.usage.span_candidates += allowed.unwrap_or(0) as u64;
        if let (Some(mut before), Some(plan)) = (before, self.job.constraint.spans()) {
            state.spans.token(plan, &mut before, &self.piece);
        }
        self.count(&mut state.usage);
        if self.emitted == 1 {
            state.usage.first_token_us = state.usage.decode_us;
        }
        if matches!(self.job.sink, Sink::Queue) {
            state.queue.push(token, text);
            self.shared.arrival.notify_all();
        }
        drop(state);
        if let Sink::Callback(callback) = &mut self.job.sink {
            let stored = self.shared.arena.store(text);
            call(callback, Event { token, text, stored, done: false })?;
        }
        Ok(stopped)
    }

    fn count(&self, usage: &mut Usage) {
        usage.decode_us = self.started.elapsed().as_micros() as u64;
        usage.sample_us = self.choosing.as_micros() as u64;
        usage.sampled_tokens = self.sampled;
        usage.drafted_tokens = self.drafted + self.right as u64;
        usage.accepted_tokens = self.accepted;
        usage.branching_steps = self.branches;
        usage.whole_row_steps = self.whole_rows;
        // The last token is never evaluated either way.
        let saved = self.saved + self.pending.len().saturating_sub(1) as u64;
        usage.forward_passes_saved = saved.saturating_sub(self.scoring);
        usage.count(&self.before, &self.decoder.stats());
    }

    /// Ends the generation: marks the session as idle, then delivers the one terminal event.
    pub(crate) fn finish(mut self, outcome: Result<FinishReason>) {
        self.job.text.finish();
        let tail = self.job.text.text();
        // Before anybody hears of the end.
        self.decoder.rest();
        {
            let mut state = self.shared.lock();
            state.note(outcome.as_ref().err());
            self.count(&mut state.usage);
            let known = self.job.constraint.counts();
            state.usage.grammar_masks = known.masks.saturating_sub(self.masks_before);
            state.usage.grammar_states = known.states;
            if let Some(plan) = self.job.constraint.spans() {
                state.spans.finish(plan);
            }
            state.usage.finish_reason = *outcome.as_ref().unwrap_or(&FinishReason::Error);
            state.served_by = self.decoder.model().map(Path::to_path_buf);
            state.constraint = self.job.constraint;
            // A cancelled evaluation may have appended some of the pending tokens to the slot.
            let missing = self.stream.saturating_sub(self.decoder.tokens().len());
            let pending = self.pending.split_off(self.pending.len().saturating_sub(missing));
            state.resume_point =
                ResumePoint { pending, chosen: self.chosen, ended_at: self.ended_at, shifts: self.shifts };
            state.phase = Phase::Idle;
            if matches!(self.job.sink, Sink::Queue) {
                state.queue.finish(tail, outcome.clone());
                self.shared.arrival.notify_all();
            }
        }
        if let Sink::Callback(mut callback) = self.job.sink {
            let stored = self.shared.arena.store(tail);
            let delivered = call(&mut callback, Event { token: -1, text: tail, stored, done: true });
            let dropped = guarded("dropping the token callback", move || drop(callback));
            let mut state = self.shared.lock();
            state.delivering = false;
            if let Err(error) = delivered.and(dropped) {
                state.note(Some(&error));
            }
        }
    }
}

/// The result of `choose`; its time is added to `total`.
fn timed<T>(total: &mut Duration, choose: impl FnOnce() -> T) -> T {
    let began = Instant::now();
    let chosen = choose();
    *total += began.elapsed();
    chosen
}

/// What the device may start after the token that is being sampled: only what will certainly be asked for.
/// `left_to_host` steps of the chain are the host's.
fn speculation(job: &Job, emitted: u64, left_to_host: usize) -> Speculation<'_> {
    let after = job.max_new_tokens.map_or(u64::MAX, |most| most - emitted - 1) as usize;
    let walked = job.constraint.trie().and_then(|trie| Some((trie.trie(), trie.node()?)));
    match (job.constraint.legal(), walked) {
        _ if left_to_host > 0 || after == 0 => Speculation::Nothing,
        (None, _) => Speculation::Step,
        (Some(_), Some((trie, node))) => Speculation::Walk(trie, node, after),
        (Some(_), None) => Speculation::Nothing,
    }
}

/// One call of the host's function; its panic is an error.
fn call(callback: &mut (dyn FnMut(Event<'_>) + Send), event: Event<'_>) -> Result<()> {
    guarded("the token callback", || callback(event))
}

/// Runs `body`; a panic in it becomes [`Error::Internal`] with its message.
pub(crate) fn guarded<T>(what: &str, body: impl FnOnce() -> T) -> Result<T> {
    catch_unwind(AssertUnwindSafe(body)).map_err(|payload| fault(what, &*payload))
}

fn fault(what: &str, payload: &(dyn Any + Send)) -> Error {
    let message = payload.downcast_ref::<&str>().copied();
    let message = message.or(payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message");
    Error::Internal(format!("{what} panicked: {message}"))
}
