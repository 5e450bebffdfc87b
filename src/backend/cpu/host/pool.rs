//! The process-wide pool of CPU threads.
//!
//! A *run* is one job executed by the calling thread (index 0) and n - 1 workers, in steps separated by barriers. There
//! is one pool per process; runs of several engines queue, first come, first served, and never interleave. A waiting
//! engine checks its cancel flag. A run with one thread does not queue at all: it is a plain call on the caller's
//! thread.
//!
//! Invariants:
//! - A job is borrowed for the length of [`Pool::run`], which returns only after every worker has left it.
//! - Waiting spins for at most [`SPIN`], then parks the thread; it does not spin at all while more engines are active
//!   than there are cores, or when a run has more threads than cores. The waker stores the condition before it reads
//!   the waiter's `sleeping` flag, and the waiter stores the flag before it reads the condition again, all sequentially
//!   consistent, so no wake-up is lost. The stores are read-modify-write operations: qemu 7.2, which runs ARM's code on
//!   x86, lets a load go before another sequentially consistent store.
//! - A panic on any thread ends the run: the others leave at their next (or present) barrier, `run` returns
//!   [`Error::Internal`] with the message, and the pool stays usable. A thread that returns while others wait for it at
//!   a barrier ends the run in the same way, instead of hanging it.
//! - A run allocates nothing, except threads that no run needed before and the message of a panic.
//!
//! Work within a step is claimed in chunks from a [`Counter`], either of one size or, for the large products, shrinking
//! with the work that is left (guided self-scheduling; Polychronopoulos and Kuck,
//! <https://doi.org/10.1109/TC.1987.5009495>): so a core at a third of the speed of the others makes them wait for one
//! small chunk at most. Counters need no resetting: each claim carries the
//! number of the step (which never repeats), and the first claim of a new step finds an old number and starts from 0.
//! Hence no thread can see a counter that is half reset, and one counter serves any number of steps.

#[cfg(test)]
mod tests;

use crate::{Error, Result};
use parking_lot::{Condvar, Mutex, RwLock};
use std::any::Any;
use std::cell::Cell;
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicPtr, AtomicU64, AtomicUsize};
use std::sync::{self, Arc, OnceLock};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// Most threads in one run, the caller's included.
pub const MAX_THREADS: usize = 256;

/// Longest time that a waiting thread spins before it is parked.
pub const SPIN: Duration = Duration::from_micros(50);

/// The pool. One per process in production, see [`Pool::global`].
pub struct Pool {
    shared: Arc<Shared>,
    queue: Queue,
    /// The number of threads started so far, the caller included.
    started: Mutex<usize>,
    cores: usize,
}

/// The queue of runs: one at a time, first come, first served.
struct Queue {
    order: Mutex<Order>,
    moved: Condvar,
}

struct Order {
    busy: bool,
    /// Numbers of the waiting runs, in order.
    waiting: VecDeque<u64>,
    /// The number of the next run to enter.
    next: u64,
}

/// How often a run that waits checks its cancel flag, and [`Pool::background`] its `look`.
const LOOK: Duration = Duration::from_millis(2);

impl Queue {
    fn new() -> Queue {
        // Room for as many as usually wait, so that waiting does not allocate.
        let order = Order { busy: false, waiting: VecDeque::with_capacity(64), next: 0 };
        Queue { order: Mutex::new(order), moved: Condvar::new() }
    }

    /// Wait for this run's turn; `None` where `cancel` was set first.
    fn enter(&self, cancel: &AtomicBool) -> Option<InTurn<'_>> {
        let mut order = self.order.lock();
        if order.busy || !order.waiting.is_empty() {
            let number = order.next;
            order.next += 1;
            order.waiting.push_back(number);
            while order.busy || order.waiting.front() != Some(&number) {
                if cancel.load(Relaxed) {
                    order.waiting.retain(|&other| other != number);
                    self.moved.notify_all();
                    return None;
                }
                self.moved.wait_for(&mut order, LOOK);
            }
            order.waiting.pop_front();
        }
        order.busy = true;
        Some(InTurn(self))
    }
}

/// The run whose turn it is, until this is dropped.
struct InTurn<'a>(&'a Queue);

impl Drop for InTurn<'_> {
    fn drop(&mut self) {
        let mut order = self.0.order.lock();
        order.busy = false;
        if !order.waiting.is_empty() {
            self.0.moved.notify_all();
        }
    }
}

/// What the caller and the workers of a run share.
struct Shared {
    states: Box<[ThreadState]>,
    /// The thread that called the present or last run. A worker of the last run may look at it while the present one
    /// begins, and of `parking_lot`'s locks a thread's first wait allocates: this one is the standard library's.
    caller: sync::Mutex<Option<Thread>>,
    /// The present job: a `&Job` whose lifetime is the run's.
    job: AtomicPtr<Job<'static>>,
    /// Threads of the present run.
    count: AtomicUsize,
    /// Runs of several threads so far.
    runs: AtomicU64,
    /// What the threads of a run work on after it; see [`Pool::background`].
    background: RwLock<Vec<BackgroundJob>>,
    /// The number of `background` jobs.
    background_jobs: AtomicUsize,
    /// Runs of one thread in progress, which do not queue.
    alone: AtomicUsize,
    /// Workers that have not left the present run.
    running: Line<AtomicUsize>,
    /// Threads waiting at the present barrier.
    arrived: Line<AtomicUsize>,
    /// Steps begun since the pool exists; a barrier is passed when it moves on.
    step: Line<AtomicU64>,
    /// Threads that have returned from the present job.
    left: AtomicUsize,
    /// Whether the present run has failed.
    failed: AtomicBool,
    /// Why it failed first.
    message: Mutex<Option<String>>,
    /// Whether waiting may spin in the present run.
    spin: AtomicBool,
}

/// A value on cache lines of its own, so that threads that poll it are not slowed down by writes to its neighbours.
#[repr(align(128))]
struct Line<T>(T);

impl<T> std::ops::Deref for Line<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

/// One thread's mailbox, on cache lines of its own.
#[repr(align(128))]
#[derive(Default)]
struct ThreadState {
    /// Number of the last run that this worker was woken for.
    run: AtomicU64,
    /// Set while the thread may be parked.
    sleeping: AtomicBool,
    /// Nanoseconds that the thread owes the background; negative where that took more than its share.
    owed: AtomicI64,
    /// How often the thread has worked for the background; the jobs there take turns.
    turn: AtomicUsize,
    /// The worker; the first is the caller's and has none.
    thread: OnceLock<Thread>,
}

struct Job<'a>(&'a (dyn Fn(&Worker<'_>) + Sync));

/// What the threads of a run work on after it.
#[derive(Clone, Copy)]
struct BackgroundJob {
    /// Works until the time given, or until nothing is left.
    work: &'static (dyn Fn(Instant) + Sync),
    /// It is worked on for this part of the time that a run took.
    part: u32,
}

/// A thread works for the background once it owes this much, and at most for so long at once.
const BACKGROUND_LEAST: Duration = Duration::from_micros(20);
const BACKGROUND_MOST: Duration = Duration::from_millis(10);

/// Longest run of a background job while no other run wants the pool.
const BACKGROUND_RUN: Duration = Duration::from_millis(1);

/// Unwinds a thread out of a run that another thread's panic has ended.
struct Stopped;

const DESERTED: &str = "A thread of a run left it while others waited at a barrier";

impl Pool {
    /// The process's pool. It starts without threads.
    pub fn global() -> &'static Pool {
        static POOL: OnceLock<Pool> = OnceLock::new();
        POOL.get_or_init(Pool::new)
    }

    /// A pool of its own, for tests. Its threads live as long as the process.
    pub fn new() -> Pool {
        let shared = Shared {
            states: (0..MAX_THREADS).map(|_| ThreadState::default()).collect(),
            caller: sync::Mutex::default(),
            job: AtomicPtr::new(std::ptr::null_mut()),
            count: AtomicUsize::new(0),
            runs: AtomicU64::new(0),
            background: RwLock::default(),
            background_jobs: AtomicUsize::new(0),
            alone: AtomicUsize::new(0),
            running: Line(AtomicUsize::new(0)),
            arrived: Line(AtomicUsize::new(0)),
            step: Line(AtomicU64::new(0)),
            left: AtomicUsize::new(0),
            failed: AtomicBool::new(false),
            message: Mutex::new(None),
            spin: AtomicBool::new(true),
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Pool { shared: Arc::new(shared), queue: Queue::new(), started: Mutex::new(1), cores }
    }

    /// Run `job` on `threads` threads (at least 1), the calling one being index 0; return when all are done.
    ///
    /// # Errors
    /// [`Error::Cancelled`] when `cancel` was set while the run waited for its turn; [`Error::Internal`] when a thread
    /// panicked, or when called from inside a run of several threads (it would wait for itself);
    /// [`Error::InvalidArgument`] for more than [`MAX_THREADS`]; [`Error::OutOfMemory`] when the system starts no more
    /// threads.
    pub fn run(&self, threads: usize, cancel: &AtomicBool, job: &(dyn Fn(&Worker<'_>) + Sync)) -> Result<()> {
        if threads <= 1 {
            let shared = &*self.shared;
            let alone = Worker { index: 0, count: 1, step: Cell::new(0), shared };
            shared.alone.fetch_add(1, Relaxed);
            let done = catch_unwind(AssertUnwindSafe(|| job(&alone)));
            shared.alone.fetch_sub(1, Relaxed);
            return done.map_err(|panic| Error::Internal(message(&*panic)));
        }
        if threads > MAX_THREADS {
            return Err(Error::InvalidArgument(format!("{threads} threads asked for, the most is {MAX_THREADS}")));
        }
        if IN_RUN.get() {
            return Err(Error::Internal("A run of the thread pool was started inside another".into()));
        }
        let _turn = self.queue.enter(cancel).ok_or(Error::Cancelled)?;
        self.grow(threads)?;
        let shared = &*self.shared;
        *shared.caller() = Some(std::thread::current());
        shared.failed.store(false, Relaxed);
        shared.arrived.store(0, Relaxed);
        shared.left.store(0, Relaxed);
        shared.count.store(threads, Relaxed);
        shared.runs.fetch_add(1, Relaxed);
        shared.running.store(threads - 1, Relaxed);
        shared.spin.store(threads.max(ACTIVE_ENGINES.load(Relaxed)) <= self.cores, Relaxed);
        let step = shared.step.load(Relaxed) + 1;
        shared.step.store(step, Relaxed);
        let job = Job(job);
        shared.job.store((&raw const job).cast_mut().cast(), Relaxed);
        for index in 1..threads {
            // Publishes everything above.
            shared.states[index].run.fetch_add(1, SeqCst);
            shared.wake(index);
        }
        IN_RUN.set(true);
        shared.work(0, threads, step, &job);
        IN_RUN.set(false);
        // Only now may `job` be dropped.
        shared.wait(0, || shared.running.load(SeqCst) == 0);
        if shared.failed.load(Acquire) {
            let message = shared.message.lock().take().unwrap_or_default();
            return Err(Error::Internal(message));
        }
        Ok(())
    }

    /// Call `job` again and again, on up to `threads` threads at once, until `look` returns false or fails.
    ///
    /// While there are runs of several threads, `job` gets no run of its own: the threads of each run call it at the
    /// end of the run, for one `part`-th of the time that the run took; where its steps take longer than that, only
    /// after some of the runs. Several jobs take turns. A further thread that wants a core would slow those
    /// runs down more: the system would take a core from one of their threads for milliseconds, and the others would
    /// wait for it at a barrier. While there is no other run, `job` gets short runs.
    ///
    /// `job` returns at the time given, or when no work is left. `look` is called on this thread every few
    /// milliseconds; it may start runs.
    ///
    /// # Errors
    /// The error of `look`, and those of [`Pool::run`].
    pub fn background(
        &self,
        threads: usize,
        part: u32,
        job: &(dyn Fn(Instant) + Sync),
        look: &mut dyn FnMut() -> Result<bool>,
    ) -> Result<()> {
        let shared = &*self.shared;
        let failed = Mutex::new(None);
        let guarded = |until: Instant| {
            if failed.lock().is_none()
                && let Err(panic) = catch_unwind(AssertUnwindSafe(|| job(until)))
            {
                *failed.lock() = Some(message(&*panic));
            }
        };
        let _listed = Listed::new(shared, part, &guarded);
        let never = AtomicBool::new(false);
        let (mut runs, mut length) = (shared.runs.load(Relaxed), BACKGROUND_LEAST);
        loop {
            // Leave their cores to runs of one thread, which do not queue.
            let threads = threads.saturating_sub(shared.alone.load(Relaxed)).max(1);
            let now = shared.runs.load(Relaxed);
            if threads > 1 && (now != runs || self.queue.order.lock().busy) {
                (runs, length) = (now, BACKGROUND_LEAST);
                std::thread::sleep(LOOK);
            } else {
                self.run(threads, &never, &|_| guarded(Instant::now() + length))?;
                runs += u64::from(threads > 1);
                length = (2 * length).min(BACKGROUND_RUN);
            }
            if let Some(message) = failed.lock().take() {
                return Err(Error::Internal(message));
            }
            if !look()? {
                return Ok(());
            }
        }
    }

    /// Count an engine as active (about to run, or in a generation) until the guard is dropped. While more engines
    /// are active than there are cores no thread spins.
    pub fn engine_started() -> ActiveEngine {
        ACTIVE_ENGINES.fetch_add(1, Relaxed);
        ActiveEngine(())
    }

    /// Start the workers that a run of `threads` threads needs.
    fn grow(&self, threads: usize) -> Result<()> {
        let mut started = self.started.lock();
        while *started < threads {
            let (index, shared) = (*started, Arc::clone(&self.shared));
            let thread = std::thread::Builder::new()
                .name(format!("eliza-cpu-{index}"))
                .spawn(move || shared.serve(index))
                .map_err(|e| Error::OutOfMemory(format!("CPU thread {index} could not be started: {e}")))?;
            // The join handle is dropped: the thread lives as long as the process and does not keep it alive.
            let _ = self.shared.states[index].thread.set(thread.thread().clone());
            *started += 1;
        }
        Ok(())
    }
}

impl Default for Pool {
    fn default() -> Self {
        Self::new()
    }
}

/// A background job in the list, until this is dropped.
struct Listed<'a> {
    shared: &'a Shared,
    job: BackgroundJob,
}

impl<'a> Listed<'a> {
    fn new(shared: &'a Shared, part: u32, job: &'a (dyn Fn(Instant) + Sync)) -> Self {
        // SAFETY: only the threads that hold the list's lock use the reference, and dropping this, within the life of
        // `job`, waits for that lock and takes the reference out.
        let work =
            unsafe { std::mem::transmute::<&'a (dyn Fn(Instant) + Sync), &'static (dyn Fn(Instant) + Sync)>(job) };
        let job = BackgroundJob { work, part };
        let mut jobs = shared.background.write();
        jobs.push(job);
        shared.background_jobs.store(jobs.len(), Relaxed);
        Listed { shared, job }
    }
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        let mut jobs = self.shared.background.write();
        jobs.retain(|job| !std::ptr::addr_eq(job.work, self.job.work));
        self.shared.background_jobs.store(jobs.len(), Relaxed);
    }
}

static ACTIVE_ENGINES: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static IN_RUN: Cell<bool> = const { Cell::new(false) };
}

/// An engine that is active; see [`Pool::engine_started`].
pub struct ActiveEngine(());

impl Drop for ActiveEngine {
    fn drop(&mut self) {
        ACTIVE_ENGINES.fetch_sub(1, Relaxed);
    }
}

impl Shared {
    /// The loop of a worker.
    fn serve(&self, index: usize) {
        IN_RUN.set(true);
        let state = &self.states[index];
        // A pool thread is called to its first run right after it was started.
        let mut seen = 0;
        loop {
            self.wait(index, || state.run.load(SeqCst) != seen);
            seen += 1;
            let (count, step) = (self.count.load(Relaxed), self.step.load(Relaxed));
            // SAFETY: the caller stored a pointer to its `Job` before this worker's `run` moved on, and keeps the
            // job alive until `running` has fallen to 0, which needs the decrement below.
            let job = unsafe { &*self.job.load(Relaxed) };
            self.work(index, count, step, job);
            if self.running.fetch_sub(1, SeqCst) == 1 {
                self.wake(0);
            }
        }
    }

    /// One thread's part of a run; notes a panic and releases the other threads.
    fn work(&self, index: usize, count: usize, step: u64, job: &Job<'_>) {
        let worker = Worker { index, count, step: Cell::new(step), shared: self };
        let began = (self.background_jobs.load(Relaxed) != 0).then(Instant::now);
        match catch_unwind(AssertUnwindSafe(|| job.0(&worker))) {
            Ok(()) => {
                self.left.fetch_add(1, SeqCst);
                // A thread that is counted here waits for this one. (A barrier that was passed counts none.)
                if self.arrived.load(SeqCst) != 0 {
                    self.fail(count, || DESERTED.into());
                }
                if let Some(began) = began {
                    self.work_for_background(&self.states[index], began.elapsed());
                }
            }
            Err(panic) if panic.is::<Stopped>() => {}
            Err(panic) => self.fail(count, || message(&*panic)),
        }
    }

    /// Works on the background job whose turn it is, after a run that took `run`.
    fn work_for_background(&self, state: &ThreadState, run: Duration) {
        // Do not wait for a thread that changes the list.
        let Some(jobs) = self.background.try_read() else { return };
        let turn = state.turn.load(Relaxed);
        let Some(job) = jobs.get(turn % jobs.len().max(1)) else { return };
        let nanos = |time: Duration| i64::try_from(time.as_nanos()).unwrap_or(i64::MAX);
        let due = state.owed.load(Relaxed).saturating_add(nanos(run / job.part)).min(nanos(BACKGROUND_MOST));
        let began = Instant::now();
        if due >= nanos(BACKGROUND_LEAST) {
            (job.work)(began + Duration::from_nanos(due.unsigned_abs()));
            state.turn.store(turn.wrapping_add(1), Relaxed);
        }
        state.owed.store(due.saturating_sub(nanos(began.elapsed())), Relaxed);
    }

    /// End the run: the other threads leave it at their present or next barrier.
    fn fail(&self, count: usize, why: impl FnOnce() -> String) {
        self.message.lock().get_or_insert_with(why);
        self.failed.swap(true, SeqCst);
        for other in 0..count {
            self.wake(other);
        }
    }

    /// Wait until `ready`, as thread `index` of the pool.
    fn wait(&self, index: usize, ready: impl Fn() -> bool) {
        if ready() {
            return;
        }
        if self.spin.load(Relaxed) {
            let began = Instant::now();
            while began.elapsed() < SPIN {
                for _ in 0..16 {
                    if ready() {
                        return;
                    }
                    std::hint::spin_loop();
                }
            }
        }
        let state = &self.states[index];
        state.sleeping.swap(true, SeqCst);
        while !ready() {
            std::thread::park();
        }
        state.sleeping.store(false, Relaxed);
    }

    fn caller(&self) -> sync::MutexGuard<'_, Option<Thread>> {
        self.caller.lock().unwrap_or_else(sync::PoisonError::into_inner)
    }

    /// Wake a thread if it may be parked. Its condition was stored before, sequentially consistent.
    fn wake(&self, index: usize) {
        let state = &self.states[index];
        if !state.sleeping.load(SeqCst) {
            return;
        }
        if index == 0 {
            // The lock is not held during the call, in which the system may give this core to another thread.
            let caller = self.caller().clone();
            if let Some(caller) = caller {
                caller.unpark();
            }
        } else if let Some(thread) = state.thread.get() {
            thread.unpark();
        }
    }
}

/// One thread's view of a run.
pub struct Worker<'a> {
    index: usize,
    count: usize,
    step: Cell<u64>,
    shared: &'a Shared,
}

impl Worker<'_> {
    /// This thread's number, 0 being the caller.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Threads in the run.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Wait until every thread of the run is here. All writes before it are seen by all threads after it.
    ///
    /// Every thread must meet the same barriers. Does not return when a thread of the run has panicked, or has
    /// returned from the job before this barrier: the run is unwound.
    pub fn barrier(&self) {
        if self.count == 1 {
            return;
        }
        let shared = self.shared;
        let step = self.step.get();
        if shared.arrived.fetch_add(1, SeqCst) + 1 == self.count {
            shared.arrived.store(0, Relaxed);
            shared.step.fetch_add(1, SeqCst);
            for other in (0..self.count).filter(|&other| other != self.index) {
                shared.wake(other);
            }
        } else {
            // A thread may also have left because all, this one included, passed the barrier meanwhile and it was the
            // last of the run; then the step had moved on before that thread was counted as gone.
            if shared.left.load(SeqCst) != 0 && shared.step.load(SeqCst) == step {
                shared.fail(self.count, || DESERTED.into());
            }
            shared.wait(self.index, || shared.step.load(SeqCst) != step || shared.failed.load(SeqCst));
            if shared.step.load(SeqCst) == step {
                resume_unwind(Box::new(Stopped));
            }
        }
        self.step.set(step + 1);
    }

    /// Chunks of at most `grain` of `0..total`, claimed one by one, so that together the threads of the run get each
    /// chunk once and a slow core does not delay the others.
    ///
    /// Between two barriers a counter serves one such loop, with the same `total` and `grain` on every thread.
    pub fn chunks<'c>(&self, counter: &'c Counter, total: usize, grain: usize) -> Chunks<'c> {
        self.claims(counter, total, Claim { least: grain, most: grain })
    }

    /// As [`Worker::chunks`], in pieces that begin large and shrink with what is left.
    pub fn shrinking_chunks<'c>(&self, counter: &'c Counter, total: usize, most: usize) -> Chunks<'c> {
        self.claims(counter, total, Claim { least: total / (self.count * LEAST_SHARE), most })
    }

    fn claims<'c>(&self, counter: &'c Counter, total: usize, claim: Claim) -> Chunks<'c> {
        // A thread alone needs no counter.
        let counter = (self.count > 1).then_some(counter);
        Chunks::new(counter, self.step.get(), self.count, total, claim)
    }
}

/// A thread's share of a step is cut into so many pieces of the smallest size at most.
const LEAST_SHARE: usize = 64;
/// A shrinking piece is this part of what would be left for each thread.
const NEXT_SHARE: usize = 3;

/// The size of pieces of work.
#[derive(Clone, Copy)]
struct Claim {
    least: usize,
    most: usize,
}

const CHUNK_BITS: u32 = 24;
const CHUNK_MASK: u64 = (1 << CHUNK_BITS) - 1;

/// Counts the claimed chunks of a step, within one pool: the step's number is in the upper 40 bits, the next chunk in
/// the lower 24.
#[repr(align(64))]
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// A counter for any number of steps.
    pub const fn new() -> Self {
        Counter(AtomicU64::new(0))
    }
}

/// The chunks that one thread claims; see [`Worker::chunks`].
pub struct Chunks<'c> {
    counter: Option<&'c Counter>,
    tag: u64,
    alone: usize,
    total: usize,
    /// Size of the smallest chunk, in whose number all are counted.
    grain: usize,
    /// Of what is left a claim takes one part in so many, `most` smallest chunks at most.
    divisor: usize,
    most: usize,
}

impl<'c> Chunks<'c> {
    /// For one of so many threads, in the step with this number.
    fn new(counter: Option<&'c Counter>, step: u64, threads: usize, total: usize, claim: Claim) -> Chunks<'c> {
        let grain = claim.least.clamp(1, claim.most.max(1));
        assert!(total.div_ceil(grain) < CHUNK_MASK as usize, "A step has more than 2^24 chunks");
        let (divisor, most) = (NEXT_SHARE * threads, (claim.most / grain).max(1));
        Chunks { counter, tag: step << CHUNK_BITS, alone: 0, total, grain, divisor, most }
    }
}

impl Iterator for Chunks<'_> {
    type Item = Range<usize>;

    fn next(&mut self) -> Option<Range<usize>> {
        let chunks = self.total.div_ceil(self.grain);
        let take = |chunk: usize| ((chunks - chunk) / self.divisor).clamp(1, self.most);
        let (chunk, taken) = match self.counter {
            None if self.alone >= chunks => return None,
            None => (self.alone, take(self.alone)),
            Some(Counter(next)) => {
                let mut seen = next.load(Relaxed);
                loop {
                    let chunk = if seen & !CHUNK_MASK == self.tag { (seen & CHUNK_MASK) as usize } else { 0 };
                    if chunk >= chunks {
                        return None;
                    }
                    let taken = take(chunk);
                    match next.compare_exchange_weak(seen, self.tag | (chunk + taken) as u64, Relaxed, Relaxed) {
                        Ok(_) => break (chunk, taken),
                        Err(now) => seen = now,
                    }
                }
            }
        };
        self.alone = chunk + taken;
        Some(chunk * self.grain..((chunk + taken) * self.grain).min(self.total))
    }
}

/// A slice that the threads of a run write in parts that do not overlap.
#[derive(Clone, Copy)]
pub struct SharedMut<'a, T> {
    start: *mut T,
    len: usize,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: it is a `&mut [T]` whose parts go to threads; the callers of `part` promise that the parts are disjoint.
unsafe impl<T: Send> Send for SharedMut<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for SharedMut<'_, T> {}

impl<'a, T> SharedMut<'a, T> {
    /// Share a slice for as long as it is borrowed.
    pub fn new(slice: &'a mut [T]) -> Self {
        // SAFETY: the slice is borrowed mutably for as long.
        unsafe { SharedMut::from_raw(slice.as_mut_ptr(), slice.len()) }
    }

    /// Share memory to which several threads have pointers at once: none of them may ever make a `&mut` of the whole.
    ///
    /// # Safety
    ///
    /// So many elements from `start` on are valid for `'a`, and used by way of copies of this alone.
    pub unsafe fn from_raw(start: *mut T, len: usize) -> Self {
        SharedMut { start, len, slice: PhantomData }
    }

    /// Elements of the whole slice.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the slice is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// First element of the whole slice.
    pub fn as_mut_ptr(&self) -> *mut T {
        self.start
    }

    /// A part of the slice. Panics when it reaches beyond the end.
    ///
    /// # Safety
    ///
    /// While the part lives nobody else reads or writes any element of it.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn part(&self, range: Range<usize>) -> &'a mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "Part beyond the end of a shared slice");
        // SAFETY: inside the slice that was borrowed mutably; nobody else uses it, as the caller promises.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.end - range.start) }
    }
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("A CPU thread panicked: {}", text.unwrap_or("no message"))
}
