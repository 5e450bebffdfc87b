//! An engine that several sessions share.
//!
//! Each session is a stream: it has a seat in the engine with slots of its own, or a slot of another session's seat,
//! and a worker that samples, assembles text and calls its host. What a worker needs of the engine it asks for here
//! (`seat.rs`) and waits. One thread makes passes for all of them: each pass has the next tokens of everyone who asked.
//! Between two of them a prompt is read for as long as the others' time for a token allows. A row's bits do not depend
//! on the rows beside it, nor on where other slots have their cells, so nobody's tokens change by sharing.
//!
//! Rules of a pass:
//! - It waits a moment for streams that were given logits and have not asked again ([`Pace::patience`]), so that they
//!   stay in step. One that did not come back in time (its callback takes long, its host pulls slowly) is not waited
//!   for until it does.
//! - Next tokens come first, those that wait longest before others, then prompts, short ones before long ones, but none
//!   waits for more than its own length. While somebody generates, the first prompt alone is read, in passes that are
//!   left when their time is over ([`Engine::read`]). What a host only wants warm runs while nothing else is asked for.
//! - A prompt waits while another one that begins as it does is evaluated, and goes on from there.
//! - A cancel ends the request of its stream before the next pass, and a pass that has no other stream at once.
//! - An error of one stream's part ends that stream's request alone.
//!
//! Everything else (saving, scoring, shifting) is done by a worker itself, which takes the engine between two passes.

use super::generate::guarded;
use crate::backend::{Legal, LegalTokens, MAX_SEQUENCES, SampledRow};
use crate::engine::{Engine, EngineOptions, EngineStats, Prefill, SlotId, SlotOutcome, SlotTokens, Then};
use crate::model::Model;
use crate::{Error, Result, Token};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// What a stream asks for; it goes back and forth, so nothing is allocated for a token.
pub(super) struct Request {
    pub kind: Kind,
    pub slot: SlotId,
    /// The tokens to append; of a prompt all that the slot is to hold.
    pub tokens: Vec<Token>,
    /// How many of the slot's last tokens go before that: guesses that were wrong.
    pub wrong: usize,
    /// How many of the tokens are guesses, the last ones, whose logits are all wanted. A pass that has no room for all
    /// of them leaves out the last.
    pub guesses: usize,
    /// How many of them are in the slot.
    pub done: usize,
    /// The only tokens whose logits are wanted; empty for all.
    pub listed: Vec<Token>,
    /// Whether the device samples after the last token, under which mask.
    pub samples: bool,
    pub mask: Mask,
    pub after: After,
    /// Ends the request.
    pub cancel: Arc<AtomicBool>,
    /// Whether a prompt has the beginning that other slots have.
    begun: bool,
    /// What a prompt took.
    pub prefill: Prefill,
    /// What the passes took that it was part of.
    pub spent: EngineStats,
    /// How long they took, and how many streams the last had.
    pub took: Duration,
    pub streams: usize,
    pub outcome: Result<()>,
}

/// What a request is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The logits after some tokens of a generation.
    Next,
    /// A slot that holds a prompt, and the logits after it.
    Prompt,
    /// As `Prompt`, for later.
    Warm,
}

impl Request {
    pub fn new() -> Request {
        Request {
            kind: Kind::Next,
            slot: SlotId::default(),
            tokens: Vec::new(),
            wrong: 0,
            guesses: 0,
            done: 0,
            listed: Vec::new(),
            samples: false,
            mask: Mask::default(),
            after: After::default(),
            cancel: Arc::default(),
            begun: false,
            prefill: Prefill::default(),
            spent: EngineStats::default(),
            took: Duration::ZERO,
            streams: 0,
            outcome: Ok(()),
        }
    }

    /// Makes it a request for the tokens that were put into it.
    pub fn begin(&mut self, kind: Kind, slot: SlotId) {
        (self.kind, self.slot, self.done, self.begun) = (kind, slot, 0, kind == Kind::Next);
        (self.prefill, self.spent, self.outcome) = (Prefill::default(), EngineStats::default(), Ok(()));
        (self.wrong, self.guesses, self.took, self.streams) = (0, 0, Duration::ZERO, 0);
    }

    fn left(&self) -> usize {
        self.tokens.len() - self.done
    }

    fn is_over(&self) -> bool {
        self.outcome.is_err() || self.begun && self.left() == 0
    }

    /// Whether it is a prompt that is being evaluated. One to be warmed up may rest for long: nobody waits for that.
    fn is_read(&self) -> bool {
        self.kind == Kind::Prompt && self.begun && !self.is_over()
    }
}

/// What is known after the last token of a request.
#[derive(Default)]
pub(super) struct After {
    /// The logits; with guesses those before and after each.
    pub rows: Vec<f32>,
    /// What the device sampled.
    pub sampled: SampledRow,
}

/// A token mask on its way to the device.
#[derive(Default)]
pub(super) struct Mask {
    is_set: bool,
    greedy: bool,
    list: Vec<Token>,
    /// Where it is one of bits: these, and their number.
    bits: Vec<u32>,
    number: Option<u64>,
}

impl Mask {
    /// Makes it a copy of this one.
    pub fn set(&mut self, legal: Option<Legal<'_>>) {
        self.list.clear();
        self.bits.clear();
        (self.is_set, self.greedy, self.number) = (legal.is_some(), legal.is_some_and(|legal| legal.greedy), None);
        match legal.map(|legal| legal.tokens) {
            Some(LegalTokens::List(list)) => self.list.extend_from_slice(list),
            Some(LegalTokens::Mask { bits, number }) => {
                self.bits.extend_from_slice(bits);
                self.number = Some(number);
            }
            None => {}
        }
    }

    fn legal(&self) -> Option<Legal<'_>> {
        self.is_set.then(|| match self.number {
            Some(number) => Legal::mask(&self.bits, number, self.greedy),
            None => Legal::list(&self.list, self.greedy),
        })
    }
}

/// A stream that shares an engine.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stream {
    /// Its place on the board.
    place: usize,
    /// Its seat in the engine, and its slot there, where it has that one alone and another stream has the seat.
    seat: usize,
    only: Option<SlotId>,
}

/// A stream's place on the board.
#[derive(Default)]
struct Place {
    /// The seat of the stream that has the place.
    seat: Option<usize>,
    asked: Option<Box<Request>>,
    answer: Option<Box<Request>>,
    /// When the request that was asked has its turn: those with less come first.
    due: u64,
    /// It was given logits and has not asked again.
    away: bool,
    /// It did not come back in time when it was last waited for.
    late: bool,
}

/// What workers and the hub's thread share.
struct Board {
    places: Vec<Place>,
    /// How many seats the engine has.
    seats: usize,
    /// Requests for next tokens so far.
    arrivals: u64,
    /// Tokens of prompts that were evaluated so far.
    read: u64,
    /// The error that made the engine unusable.
    fault: Option<Error>,
    closed: bool,
}

/// An engine and those who share it.
pub(super) struct Hub {
    model: Arc<Model>,
    options: EngineOptions,
    board: Mutex<Board>,
    /// Notified when something was asked for, or a stream will not ask.
    asked: Condvar,
    /// By place; notified when its stream's request was answered.
    answered: Vec<Condvar>,
    engine: Mutex<Engine>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Every hub that may have free seats.
static HUBS: Mutex<Vec<Weak<Hub>>> = Mutex::new(Vec::new());

impl Board {
    /// A stream with this seat, and with this slot of it alone, where it is another stream's seat.
    fn take(&mut self, seat: usize, only: Option<SlotId>) -> Option<Stream> {
        let place = self.places.iter().position(|place| place.seat.is_none()).filter(|_| !self.closed)?;
        self.places[place] = Place { seat: Some(seat), ..Place::default() };
        Some(Stream { place, seat, only })
    }

    /// Whether a stream has this seat, or a slot of it.
    fn has(&self, seat: usize) -> bool {
        self.places.iter().any(|place| place.seat == Some(seat))
    }
}

impl Hub {
    /// A stream with a seat at an engine for the model with these options: one that is there and has a free seat, else
    /// a new one, which `open` makes.
    ///
    /// # Errors
    /// Those of `open`, and [`Error::OutOfMemory`] where there is no thread.
    pub fn join(
        model: &Arc<Model>,
        options: &EngineOptions,
        open: impl FnOnce() -> Result<Engine>,
    ) -> Result<(Arc<Hub>, Stream)> {
        let free = |hubs: &mut Vec<Weak<Hub>>| {
            hubs.retain(|hub| hub.strong_count() > 0);
            let same = |hub: &Arc<Hub>| Arc::ptr_eq(&hub.model, model) && hub.options == *options;
            let mut hubs = hubs.iter().filter_map(Weak::upgrade).filter(same);
            hubs.find_map(|hub| hub.take_seat().map(|stream| (hub, stream)))
        };
        let found = free(&mut HUBS.lock());
        if let Some(found) = found {
            return Ok(found);
        }
        let engine = open()?;
        let pace = Pace::new(options.max_slowdown(), engine.can_leave(), engine.most_read());
        let mut hubs = HUBS.lock();
        // Somebody else may have made one meanwhile.
        if let Some(found) = free(&mut hubs) {
            return Ok(found);
        }
        let streams = options.streams()?;
        let board = Board {
            places: (0..streams).map(|_| Place::default()).collect(),
            seats: options.parallel()?,
            arrivals: 0,
            read: 0,
            fault: None,
            closed: false,
        };
        let hub = Arc::new(Hub {
            model: model.clone(),
            options: options.clone(),
            board: Mutex::new(board),
            asked: Condvar::new(),
            answered: (0..streams).map(|_| Condvar::new()).collect(),
            engine: Mutex::new(engine),
            thread: Mutex::new(None),
        });
        let scheduler = Scheduler {
            hub: hub.clone(),
            running: Vec::with_capacity(streams),
            afters: Vec::with_capacity(streams),
            of_pass: Vec::with_capacity(streams),
            never: AtomicBool::new(false),
            generating: false,
            reading: None,
            read_now: 0,
            was_reading: false,
            pace,
        };
        let started = thread::Builder::new().name("eliza-hub".into()).spawn(move || scheduler.run());
        let thread = started.map_err(|error| Error::OutOfMemory(format!("no thread for an engine: {error}")))?;
        *hub.thread.lock() = Some(thread);
        let stream = hub.take_seat().ok_or_else(|| Error::Internal("a new engine without a seat".into()))?;
        hubs.push(Arc::downgrade(&hub));
        Ok((hub, stream))
    }

    fn take_seat(&self) -> Option<Stream> {
        let mut board = self.board.lock();
        let seat = (0..board.seats).find(|&seat| !board.has(seat))?;
        board.take(seat, None)
    }

    /// A stream with a slot of this one's seat, that [`Engine::part`] gave it.
    ///
    /// # Errors
    /// [`Error::Internal`] where there are more streams than slots.
    pub fn take_slot(&self, of: Stream, slot: SlotId) -> Result<Stream> {
        let taken = self.board.lock().take(of.seat, Some(slot));
        taken.ok_or_else(|| Error::Internal("a slot for which there is no place".into()))
    }

    /// Gives a stream's slots and its place back; the last stream ends the hub.
    pub fn leave(&self, stream: Stream) {
        let mut engine = self.engine(stream);
        let mut board = self.board.lock();
        board.places[stream.place] = Place::default();
        let (left, closed) = (!board.has(stream.seat), !board.places.iter().any(|place| place.seat.is_some()));
        board.closed = closed;
        let usable = board.fault.is_none();
        self.asked.notify_one();
        drop(board);
        if usable {
            engine.leave();
        }
        if usable && left {
            engine.sit(stream.seat, None);
            engine.vacate();
        }
        drop(engine);
        if closed && let Some(thread) = self.thread.lock().take() {
            // The thread catches the panics of what it runs.
            let _ = thread.join();
        }
    }

    /// The engine between two passes, for what a pass cannot do.
    pub fn engine(&self, stream: Stream) -> MutexGuard<'_, Engine> {
        let mut engine = self.engine.lock();
        engine.sit(stream.seat, stream.only);
        engine
    }

    /// Asks for something and waits until it is answered.
    pub fn ask(&self, stream: Stream, request: Box<Request>) -> Box<Request> {
        let mut board = self.board.lock();
        let due = match request.kind {
            Kind::Next => {
                board.arrivals += 1;
                board.arrivals
            }
            // A short prompt before a long one, but not before one whose length was read since it came.
            Kind::Prompt | Kind::Warm => board.read + request.tokens.len() as u64,
        };
        let place = &mut board.places[stream.place];
        (place.asked, place.due) = (Some(request), due);
        (place.away, place.late) = (false, place.late && !place.away);
        self.asked.notify_one();
        loop {
            if let Some(answer) = board.places[stream.place].answer.take() {
                return answer;
            }
            self.answered[stream.place].wait(&mut board);
        }
    }

    /// The error that made the engine unusable.
    pub fn fault(&self) -> Option<Error> {
        self.board.lock().fault.clone()
    }

    /// Refuses everything from now on with this error, after which the state of the engine is unknown.
    pub fn fail(&self, fault: &Error) {
        self.board.lock().fault.get_or_insert_with(|| fault.clone());
    }

    /// Notes that a stream will not ask for a next token soon.
    pub fn pause(&self, stream: Stream) {
        let mut board = self.board.lock();
        let place = &mut board.places[stream.place];
        (place.away, place.late) = (false, false);
        self.asked.notify_one();
    }

    /// Whether slots of a seat can have streams of their own.
    pub fn has_concurrent_slots(&self) -> bool {
        self.options.concurrent_slots
    }

    /// Whether other streams have slots of this one's seat.
    pub fn shares_seat(&self, stream: Stream) -> bool {
        let board = self.board.lock();
        board.places.iter().filter(|place| place.seat == Some(stream.seat)).count() > 1
    }
}

/// A request in the hands of the hub's thread.
struct Running {
    /// The place of its stream.
    place: usize,
    due: u64,
    request: Box<Request>,
    /// How many of its tokens are in this pass.
    now: usize,
}

/// The hub's thread.
struct Scheduler {
    hub: Arc<Hub>,
    running: Vec<Running>,
    /// What those that are running had after their last requests, and will have.
    afters: Vec<After>,
    /// Those that have a part in the pass.
    of_pass: Vec<usize>,
    /// What ends a pass of several streams.
    never: AtomicBool,
    /// Whether somebody generates, be it that nobody asks for a token now.
    generating: bool,
    /// The place of the stream whose prompt is read beside others, and how many tokens of it are.
    reading: Option<(usize, usize)>,
    /// Tokens of prompts that were evaluated since the board was told.
    read_now: u64,
    /// Whether a prompt was read since the last pass.
    was_reading: bool,
    pace: Pace,
}

/// How long passes take, and what follows for prompts beside generations.
///
/// A generation's token takes a pass, and the time for which a prompt is read before the next. That is what is left of
/// the time that a token may take, less what earlier ones took too long.
struct Pace {
    slowdown: f64,
    /// Whether a pass over a prompt can be left between its steps.
    can_leave: bool,
    /// Seconds of a pass with next tokens, where no prompt is read.
    plain: f64,
    /// Seconds that generations were kept waiting beyond what they may be; below zero that may still be taken.
    debt: f64,
    /// Passes since one before which no prompt was read.
    disturbed: u32,
    /// How many tokens a pass over a prompt has, at most and now: so few that its steps fit into the time.
    most: usize,
    rows: usize,
    /// How many times as long as they might the pieces of such a pass took, at most so far.
    over: f64,
}

impl Pace {
    fn new(slowdown: f64, can_leave: bool, most: usize) -> Pace {
        Pace { slowdown, can_leave, plain: 0.0, debt: 0.0, disturbed: 0, most, rows: most, over: 0.0 }
    }

    /// How long a pass waits for streams that were given logits.
    fn patience(&self) -> Duration {
        Duration::from_secs_f64((self.plain / 4.0).clamp(100e-6, 5e-3))
    }

    /// For how long a prompt is read now; `None` for not at all.
    fn reading_time(&self) -> Option<Duration> {
        /// After so many passes with prompts between them one without tells anew what it takes.
        const LOOK: u32 = 64;
        let may = self.slowdown > 1.0 && self.debt < 0.0 && self.disturbed < LOOK;
        may.then(|| Duration::from_secs_f64(-self.debt))
    }

    /// For how long a prompt is read at once while nobody waits.
    fn piece(&self) -> Duration {
        const LEAST: f64 = 5e-3;
        Duration::from_secs_f64(((self.slowdown - 1.0) * self.plain).max(LEAST))
    }

    /// Learns from a pass with next tokens; `disturbed` where a prompt was read before it.
    fn passed(&mut self, took: Duration, disturbed: bool) {
        let took = took.as_secs_f64();
        self.disturbed = if disturbed { self.disturbed + 1 } else { 0 };
        if self.plain == 0.0 {
            self.plain = took;
        } else if !disturbed {
            self.plain = 0.75 * self.plain + 0.25 * took;
        }
        self.debt = self.debt.max(0.0) + took - self.slowdown * self.plain;
    }

    /// Learns from a piece of time for which a prompt was read; `done` where its pass was over with it, `others_wait`
    /// where others had asked for tokens.
    fn was_read(&mut self, might: Duration, took: Duration, done: bool, others_wait: bool) {
        let (might, took) = (might.as_secs_f64(), took.as_secs_f64());
        self.debt += if others_wait { took } else { 0.0 };
        self.over = self.over.max(took / might.max(1e-6));
        // Where a pass can be left, one of its steps is what takes longer; else all of it does.
        let (more, fewer) = if self.can_leave { (1.1, 1.3) } else { (0.6, 1.3) };
        if self.over > fewer {
            (self.rows, self.over) = ((self.rows / 2).max(1), 0.0);
        } else if done {
            self.rows = if self.over < more { (2 * self.rows).min(self.most) } else { self.rows };
            self.over = 0.0;
        }
    }
}

impl Scheduler {
    fn run(mut self) {
        while self.gather() {
            let ran = match self.hub.fault() {
                Some(fault) => Err(fault),
                None => guarded("the engine", || self.round()).inspect_err(|fault| self.hub.fail(fault)),
            };
            if let Err(fault) = ran {
                self.running.iter_mut().for_each(|of| of.request.outcome = Err(fault.clone()));
            }
            self.answer();
            self.put_back();
        }
    }

    /// Waits for requests and takes them; false once every stream is gone.
    fn gather(&mut self) -> bool {
        let mut board = self.hub.board.lock();
        while !board.places.iter().any(|place| place.asked.is_some()) {
            if board.closed {
                return false;
            }
            self.hub.asked.wait(&mut board);
        }
        let deadline = Instant::now() + self.pace.patience();
        while board.places.iter().any(|place| place.away && !place.late) {
            if self.hub.asked.wait_until(&mut board, deadline).timed_out() {
                board.places.iter_mut().for_each(|place| place.late |= place.away);
            }
        }
        for (place, of) in board.places.iter_mut().enumerate() {
            if let Some(request) = of.asked.take() {
                self.running.push(Running { place, due: of.due, request, now: 0 });
            }
        }
        let is_next = |of: &Running| of.request.kind == Kind::Next;
        self.generating = self.running.iter().any(is_next) || board.places.iter().any(|place| place.away || place.late);
        self.running.sort_unstable_by_key(|of| (of.request.kind as u8, of.due));
        self.afters.extend(self.running.iter_mut().map(|of| std::mem::take(&mut of.request.after)));
        true
    }

    /// Gives back what is over to its stream.
    fn answer(&mut self) {
        let mut board = self.hub.board.lock();
        for at in (0..self.running.len()).rev() {
            if !self.running[at].request.is_over() {
                continue;
            }
            let Running { place, mut request, .. } = self.running.remove(at);
            request.after = self.afters.remove(at);
            let of = &mut board.places[place];
            of.away = request.kind == Kind::Next && request.outcome.is_ok();
            of.answer = Some(request);
            self.hub.answered[place].notify_one();
        }
    }

    /// Gives back the rest to the board.
    fn put_back(&mut self) {
        let mut board = self.hub.board.lock();
        board.read += std::mem::take(&mut self.read_now);
        for (Running { place, mut request, .. }, after) in self.running.drain(..).zip(self.afters.drain(..)) {
            request.after = after;
            board.places[place].asked = Some(request);
        }
    }

    /// One pass for those that are running; then a prompt is read, where others generate.
    fn round(&mut self) {
        let hub = self.hub.clone();
        let mut engine = hub.engine.lock();
        for Running { place, request, .. } in &mut self.running {
            let wrong = std::mem::take(&mut request.wrong);
            if wrong > 0 {
                let kept = engine.position(request.slot).saturating_sub(wrong);
                engine.truncate(request.slot, kept);
            }
            if request.cancel.load(Ordering::Acquire) {
                request.outcome = Err(Error::Cancelled);
                if self.reading.take_if(|(of, _)| of == place).is_some() {
                    engine.stop_reading();
                }
            }
        }
        self.begin_prompts(&mut engine);
        self.leave_out_guesses(&engine);
        let (next, prompts) = self.share_out(&engine);
        let disturbed = std::mem::take(&mut self.was_reading) || prompts > 0;
        if next + prompts > 0 {
            let before = Instant::now();
            self.pass(&mut engine);
            let (took, streams) = (before.elapsed(), self.of_pass.len());
            for &at in &self.of_pass {
                let request = &mut self.running[at].request;
                (request.took, request.streams) = (request.took + took, streams);
            }
            self.read_now += prompts as u64;
            if next > 0 {
                self.pace.passed(took, disturbed);
            }
        }
        for Running { request, .. } in &mut self.running {
            if request.kind != Kind::Next && request.begun && request.left() == 0 && request.outcome.is_ok() {
                request.outcome = engine.end_prompt(request.slot, request.prefill.reused);
            }
        }
        if self.reads_beside() {
            self.answer();
            self.read(&mut engine, next > 0);
        }
        MutexGuard::unlock_fair(engine);
    }

    /// Whether prompts are read in pieces of time.
    fn reads_beside(&self) -> bool {
        self.generating || self.reading.is_some()
    }

    /// Reads on in the first prompt for as long as those who asked for tokens, if any did, may wait.
    fn read(&mut self, engine: &mut Engine, others_wait: bool) {
        let reading = self.reading;
        let is_read = |of: &Running| match reading {
            Some((place, _)) => of.place == place,
            None => of.request.is_read() && of.request.left() > 1,
        };
        let Some(of) = self.running.iter_mut().find(|of| is_read(of)) else { return };
        let might = match others_wait {
            true => self.pace.reading_time(),
            false => Some(self.pace.piece()),
        };
        let Some(might) = might else { return };
        let tokens = reading.map_or(self.pace.rows.min(of.request.left() - 1), |(_, tokens)| tokens);
        let (before, began) = (engine.stats(), Instant::now());
        let Running { place, request, now, .. } = of;
        let new = &request.tokens[request.done..][..tokens];
        let read = engine.read(request.slot, new, began + might, &request.cancel);
        self.was_reading = true;
        self.reading = matches!(read, Ok(false)).then_some((*place, tokens));
        match read {
            Ok(true) => {
                *now = tokens;
                self.read_now += tokens as u64;
                of.count(&before, &engine.stats(), 0);
            }
            Ok(false) => {}
            Err(error) => request.outcome = Err(error),
        }
        self.pace.was_read(might, began.elapsed(), self.reading.is_none(), others_wait);
    }

    /// Gives prompts the beginning that other slots have, but for those that wait for another one.
    fn begin_prompts(&mut self, engine: &mut Engine) {
        for at in 0..self.running.len() {
            let request = &self.running[at].request;
            if request.begun || request.outcome.is_err() {
                continue;
            }
            let there = engine.reusable(request.slot, &request.tokens);
            let longer = |other: &Request| {
                let common = other.tokens.iter().zip(&request.tokens).take_while(|(a, b)| a == b).count();
                other.is_read() && other.slot != request.slot && common > there
            };
            if self.running.iter().any(|other| longer(&other.request)) {
                continue;
            }
            let request = &mut self.running[at].request;
            match engine.begin_prompt(request.slot, &request.tokens) {
                Ok((reused, restored)) => {
                    (request.done, request.begun) = (reused, true);
                    request.prefill = Prefill { tokens: request.tokens.len(), reused, restored, passes: 0 };
                }
                Err(error) => request.outcome = Err(error),
            }
        }
    }

    /// Leaves out guesses for whose logits a pass has no room beside the results of everyone.
    fn leave_out_guesses(&mut self, engine: &Engine) {
        let waits = |of: &&mut Running| of.request.begun && !of.request.is_over() && of.request.kind != Kind::Warm;
        let mut room = engine.most_results().saturating_sub(self.running.iter_mut().filter(waits).count());
        room = room.min(engine.most_guesses());
        for Running { request, .. } in self.running.iter_mut().filter(waits) {
            let fit = engine.batch().saturating_sub(request.left() - request.guesses);
            let kept = request.guesses.min(room).min(fit);
            request.tokens.truncate(request.tokens.len() - (request.guesses - kept));
            request.guesses = kept;
            room -= kept;
        }
    }

    /// Sets how many tokens of each request are in this pass; returns how many those are of generations and of prompts.
    fn share_out(&mut self, engine: &Engine) -> (usize, usize) {
        let (mut rows, mut results) = (engine.batch(), engine.most_results());
        let (mut next, mut prompts, beside) = (0, 0, self.reads_beside());
        for Running { request, now, .. } in &mut self.running {
            *now = 0;
            if request.is_over() || !request.begun || request.kind == Kind::Warm && next + prompts > 0 {
                continue;
            }
            let most = match request.kind {
                Kind::Prompt if beside && request.left() > 1 => continue,
                Kind::Warm if beside => rows.min(self.pace.rows),
                _ => rows,
            };
            *now = request.left().min(most);
            let wanted = 1 + request.guesses;
            if *now == request.left() && results >= wanted {
                results -= wanted;
            } else {
                // Tokens whose logits are wanted wait for a pass with room for them all.
                *now = (*now).min(request.left() - wanted);
            }
            rows -= *now;
            if request.kind == Kind::Prompt && *now == request.left() {
                // It waits for what is read beside it.
                rows = rows.min(self.pace.most);
            }
            *if request.kind == Kind::Next { &mut next } else { &mut prompts } += *now;
        }
        (next, prompts)
    }

    /// Makes the pass. Those whose part has no room end with that error, and the others go on.
    fn pass(&mut self, engine: &mut Engine) {
        let (before, n_vocab) = (engine.stats(), engine.model().n_vocab());
        loop {
            self.of_pass.clear();
            self.of_pass.extend((0..self.running.len()).filter(|&at| self.running[at].now > 0));
            let Scheduler { running, afters, of_pass, never, .. } = self;
            let cancel = match of_pass[..] {
                [] => return,
                [only] => &running[only].request.cancel,
                _ => &*never,
            };
            let mut parts = [SlotTokens { slot: SlotId::default(), tokens: &[], then: Then::Nothing }; MAX_SEQUENCES];
            for (part, &at) in parts.iter_mut().zip(&*of_pass) {
                *part = running[at].part();
            }
            let parts = &parts[..of_pass.len()];
            let mut lost: Vec<(usize, Error)> = Vec::new();
            let done = engine.pass(parts, cancel, &mut |part, outcome| match outcome {
                Ok(SlotOutcome::Logits(logits)) => {
                    copy_logits(logits, parts[part].then, &mut afters[of_pass[part]].rows);
                }
                Ok(SlotOutcome::Sampled(result, candidates)) => {
                    let sampled = &mut afters[of_pass[part]].sampled;
                    sampled.result = *result;
                    sampled.candidates.clear();
                    sampled.candidates.extend_from_slice(candidates);
                }
                Err(error) => lost.push((of_pass[part], error)),
            });
            match done {
                Ok(()) => {
                    let after = engine.stats();
                    of_pass.iter().for_each(|&at| running[at].count(&before, &after, n_vocab));
                    lost.into_iter().for_each(|(at, error)| running[at].request.outcome = Err(error));
                    return;
                }
                Err((Some(part), error)) => {
                    let of = &mut running[of_pass[part]];
                    (of.request.outcome, of.now) = (Err(error), 0);
                }
                Err((None, error)) => {
                    of_pass.iter().for_each(|&at| running[at].request.outcome = Err(error.clone()));
                    return;
                }
            }
        }
    }
}

impl Running {
    /// Its part in the pass.
    fn part(&self) -> SlotTokens<'_> {
        let Running { request, now, .. } = self;
        let then = match *now == request.left() {
            true if request.samples => Then::Sample(request.mask.legal()),
            true if request.guesses > 0 => Then::Ahead(request.guesses),
            true => Then::Logits(&request.listed),
            false => Then::Nothing,
        };
        SlotTokens { slot: request.slot, tokens: &request.tokens[request.done..][..*now], then }
    }

    /// Notes that the pass was made.
    fn count(&mut self, before: &EngineStats, after: &EngineStats, n_vocab: usize) {
        let Running { request, now, .. } = self;
        request.done += *now;
        request.prefill.passes += 1;
        let logits = match request.listed.len() {
            _ if request.left() > 0 => 0,
            0 => (1 + request.guesses) * n_vocab,
            listed => listed,
        };
        // Of the pass all, of its rows and logits those of the stream.
        let pass = EngineStats { rows: *now as u64, logits: logits as u64, ..after.since(before) };
        request.spent.add(&pass);
    }
}

/// Copies the logits that are wanted.
fn copy_logits(logits: &[f32], then: Then<'_>, rows: &mut Vec<f32>) {
    rows.resize(logits.len(), 0.0);
    match then {
        Then::Logits(listed) if !listed.is_empty() => {
            listed.iter().for_each(|&token| rows[token as usize] = logits[token as usize]);
        }
        _ => rows.copy_from_slice(logits),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = 128;
    const MS: Duration = Duration::from_millis(1);

    /// Passes with next tokens of 20 ms, and a piece of reading after each where it is time: how many pieces, and how
    /// long they took.
    fn read(pace: &mut Pace, passes: usize, takes: impl Fn(&Pace, Duration) -> Duration) -> (usize, Duration) {
        let (mut pieces, mut all, mut disturbed) = (0, Duration::ZERO, false);
        for _ in 0..passes {
            pace.passed(20 * MS, disturbed);
            disturbed = false;
            if let Some(might) = pace.reading_time() {
                let took = takes(pace, might);
                pace.was_read(might, took, true, true);
                (pieces, all, disturbed) = (pieces + 1, all + took, true);
            }
        }
        (pieces, all)
    }

    #[test]
    fn a_prompt_is_read_for_as_long_as_tokens_may_wait() {
        let mut pace = Pace::new(2.5, true, MOST);
        assert_eq!(pace.reading_time(), None, "nothing is known of this machine");
        let (pieces, all) = read(&mut pace, 131, |_, might| might);
        // Two passes tell what they take alone.
        assert_eq!((pieces, pace.rows), (129, MOST));
        assert!(all.abs_diff(129 * 30 * MS) < MS, "{all:?}");
        assert_eq!(read(&mut Pace::new(1.0, true, MOST), 100, |_, might| might).0, 0);
        // A pass that takes longer while a prompt is read leaves less time for that.
        pace.passed(35 * MS, true);
        assert_eq!(pace.reading_time().map(|time| time.as_millis()), Some(15));
    }

    #[test]
    fn what_took_too_long_is_made_up_for_and_passes_get_fewer_rows() {
        let mut pace = Pace::new(2.5, true, MOST);
        pace.passed(20 * MS, false);
        pace.was_read(30 * MS, 3000 * MS, true, true);
        assert_eq!((pace.reading_time(), pace.rows), (None, MOST / 2), "others come first");
        let mut passes = 0;
        while pace.reading_time().is_none() {
            pace.passed(20 * MS, false);
            passes += 1;
        }
        assert!((99..=100).contains(&passes), "{passes} passes");
        // A pass that cannot be left takes 2 ms for each row.
        let mut pace = Pace::new(2.5, false, MOST);
        let whole = |pace: &Pace, _| 2 * MS * pace.rows as u32;
        read(&mut pace, 200, whole);
        assert!((8..=16).contains(&pace.rows), "{}", pace.rows);
        let (pieces, all) = read(&mut pace, 1000, whole);
        assert!(pieces > 900 && all <= 30_040 * MS, "{pieces} pieces, {all:?}");
    }

    #[test]
    fn nobody_owes_what_nobody_waited_for() {
        let mut pace = Pace::new(2.5, true, MOST);
        pace.passed(20 * MS, false);
        pace.was_read(pace.piece(), 30 * MS, false, false);
        assert_eq!(pace.reading_time(), Some(30 * MS));
    }
}
