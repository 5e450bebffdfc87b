//! Runs, panics and schedules of the pool.

use super::*;
use std::collections::HashSet;
use std::sync::atomic::AtomicI64;

static NEVER: AtomicBool = AtomicBool::new(false);

const SIZES: [usize; 5] = [1, 2, 3, 4, 9];

/// Sums 1..=n by chunks in each of `steps` steps with one counter, and checks between steps that all is there.
fn summing(pool: &Pool, threads: usize, steps: usize, n: usize, grain: usize) {
    let (counter, sums) = (Counter::new(), (0..steps).map(|_| AtomicI64::new(0)).collect::<Vec<_>>());
    let whole = (n * (n + 1) / 2) as i64;
    pool.run(threads, &NEVER, &|worker| {
        assert_eq!(worker.count(), threads.max(1));
        for sum in &sums {
            for range in worker.chunks(&counter, n, grain) {
                sum.fetch_add(range.map(|i| i as i64 + 1).sum(), Relaxed);
            }
            worker.barrier();
            assert_eq!(sum.load(Relaxed), whole);
        }
    })
    .unwrap();
    assert!(sums.iter().all(|sum| sum.load(Relaxed) == whole));
}

#[test]
fn many_runs_of_uneven_chunks() {
    let pool = Pool::new();
    for round in 0..60 {
        for threads in SIZES {
            summing(&pool, threads, 1 + round % 5, 1 + round * 7, 1 + round % 4);
        }
    }
    summing(&pool, 2, 3, 0, 1);
}

#[test]
fn a_slow_thread_holds_back_no_chunk() {
    let pool = Pool::new();
    let (counter, quick) = (Counter::new(), AtomicUsize::new(0));
    pool.run(2, &NEVER, &|worker| {
        for range in worker.chunks(&counter, 100, 1) {
            if range.start == 0 {
                let began = Instant::now();
                while quick.load(Relaxed) < 99 {
                    assert!(began.elapsed() < Duration::from_secs(60));
                    std::thread::yield_now();
                }
            } else {
                quick.fetch_add(1, Relaxed);
            }
        }
    })
    .unwrap();
}

#[test]
fn a_panic_anywhere_fails_the_run_and_nothing_else() {
    let pool = Pool::new();
    for threads in SIZES {
        for culprit in 0..threads {
            for step in 0..3 {
                let error = pool
                    .run(threads, &NEVER, &|worker| {
                        for i in 0..3 {
                            if i == step && worker.index() == culprit {
                                resume_unwind(Box::new(format!("thread {culprit} fell")));
                            }
                            worker.barrier();
                        }
                    })
                    .unwrap_err();
                assert_eq!(error, Error::Internal(format!("A CPU thread panicked: thread {culprit} fell")));
                summing(&pool, threads, 3, 50, 3);
            }
        }
        let all = pool.run(threads, &NEVER, &|_| resume_unwind(Box::new("all fell"))).unwrap_err();
        assert_eq!(all, Error::Internal("A CPU thread panicked: all fell".into()));
    }
}

#[test]
fn several_callers_never_interleave() {
    let pool = Pool::new();
    let inside = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for caller in 0..4 {
            let (pool, inside) = (&pool, &inside);
            scope.spawn(move || {
                for round in 0..100 {
                    let threads = 2 + (caller + round) % 3;
                    let run = pool.run(threads, &NEVER, &|worker| {
                        if worker.index() == 0 {
                            assert_eq!(inside.swap(threads, SeqCst), 0);
                        }
                        worker.barrier();
                        assert_eq!(inside.load(SeqCst), threads);
                        worker.barrier();
                        if worker.index() == 0 {
                            if round % 17 == 3 {
                                inside.store(0, SeqCst);
                                resume_unwind(Box::new(()));
                            }
                            inside.store(0, SeqCst);
                        }
                    });
                    assert_eq!(run.is_err(), round % 17 == 3);
                }
            });
        }
    });
}

#[test]
fn a_barrier_that_a_thread_never_meets_fails_the_run() {
    let pool = Pool::new();
    for threads in [2, 3, 5] {
        for (culprit, late) in [(0, false), (1, false), (threads - 1, true), (0, true)] {
            let run = pool.run(threads, &NEVER, &|worker| {
                worker.barrier();
                if worker.index() == culprit {
                    if late {
                        std::thread::sleep(SPIN * 4);
                    }
                    return;
                }
                worker.barrier();
            });
            assert!(matches!(&run, Err(Error::Internal(m)) if m.contains("left")), "{run:?}");
            summing(&pool, threads, 3, 50, 3);
        }
    }
}

/// Random schedules: threads that dawdle around barriers and claims, callers that overlap, panics here and there.
#[test]
fn random_schedules() {
    fn next(state: &Cell<u64>) -> u64 {
        state.set(state.get().wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407));
        state.get() >> 33
    }
    fn dawdle(state: &Cell<u64>) {
        match next(state) % 8 {
            0 => std::thread::yield_now(),
            1 => std::thread::sleep(Duration::from_micros(next(state) % 120)),
            2 => (0..next(state) % 2000).for_each(|_| std::hint::spin_loop()),
            _ => {}
        }
    }
    let pool = Pool::new();
    std::thread::scope(|scope| {
        for caller in 0..3 {
            let pool = &pool;
            scope.spawn(move || {
                let counters: [Counter; 2] = Default::default();
                for round in 0..150u64 {
                    let seed = Cell::new(caller * 1000 + round);
                    let (threads, steps, n) = (next(&seed) % 6 + 1, next(&seed) % 5 + 1, next(&seed) as usize % 90);
                    let grain = next(&seed) as usize % 9 + 1;
                    // One in eight runs loses a thread in some step.
                    let victim = next(&seed).is_multiple_of(8).then(|| (next(&seed) % threads, next(&seed) % steps));
                    let (sums, start): ([AtomicUsize; 5], u64) = (Default::default(), seed.get());
                    let run = pool.run(threads as usize, &NEVER, &|worker| {
                        let state = Cell::new(start ^ (worker.index() as u64) << 40);
                        for step in 0..steps {
                            dawdle(&state);
                            for range in worker.chunks(&counters[step as usize % 2], n, grain) {
                                dawdle(&state);
                                sums[step as usize].fetch_add(range.len(), Relaxed);
                            }
                            if victim == Some((worker.index() as u64, step)) {
                                resume_unwind(Box::new("victim"));
                            }
                            dawdle(&state);
                            worker.barrier();
                            assert_eq!(sums[step as usize].load(Relaxed), n);
                        }
                    });
                    let expected = match victim {
                        Some(_) => Err(Error::Internal("A CPU thread panicked: victim".into())),
                        None => Ok(()),
                    };
                    assert_eq!(run, expected, "caller {caller} round {round}");
                }
            });
        }
    });
}

#[test]
fn waiting_parks_and_wakes() {
    let pool = Pool::new();
    let guards: Vec<_> = (0..pool.cores + 1).map(|_| Pool::engine_started()).collect();
    summing(&pool, 3, 40, 20, 1);
    drop(guards);
    // Long enough for every thread to be parked, in the barrier, between runs, and at the end of a run.
    for late in 0..3 {
        pool.run(3, &NEVER, &|worker| {
            for _ in 0..2 {
                if worker.index() == late {
                    std::thread::sleep(SPIN * 20);
                }
                worker.barrier();
            }
            if worker.index() == late {
                std::thread::sleep(SPIN * 20);
            }
        })
        .unwrap();
        std::thread::sleep(SPIN * 20);
    }
}

#[test]
fn refusals() {
    let pool = Pool::new();
    assert!(matches!(pool.run(MAX_THREADS + 1, &NEVER, &|_| ()), Err(Error::InvalidArgument(_))));
    pool.run(2, &NEVER, &|_| {
        assert!(matches!(pool.run(2, &NEVER, &|_| ()), Err(Error::Internal(_))));
        pool.run(1, &NEVER, &|worker| worker.barrier()).unwrap();
    })
    .unwrap();
}

#[test]
fn shared_slices_are_written_in_parts() {
    let pool = Pool::new();
    let (counter, mut data) = (Counter::new(), vec![0u32; 1000]);
    let shared = SharedMut::new(&mut data);
    pool.run(3, &NEVER, &|worker| {
        for range in worker.chunks(&counter, shared.len(), 7) {
            // SAFETY: chunks are disjoint.
            let part = unsafe { shared.part(range.clone()) };
            part.iter_mut().zip(range).for_each(|(x, i)| *x = i as u32);
        }
    })
    .unwrap();
    assert!(data.iter().enumerate().all(|(i, &x)| x == i as u32));
}

/// What Miri would refuse: two threads with a `&mut` of the whole at once.
#[test]
fn l9_threads_name_one_memory_without_borrowing_it() {
    struct Shared(*mut u32, usize);
    // SAFETY: the threads write disjoint parts of it.
    unsafe impl Sync for Shared {}
    impl Shared {
        fn all(&self) -> SharedMut<'_, u32> {
            // SAFETY: so many elements, which live longer than the run; used by way of this alone.
            unsafe { SharedMut::from_raw(self.0, self.1) }
        }
    }
    let pool = Pool::new();
    let (counter, mut data) = (Counter::new(), vec![0u32; 64]);
    let memory = Shared(data.as_mut_ptr(), data.len());
    pool.run(3, &NEVER, &|worker| {
        for range in worker.chunks(&counter, memory.1, 5) {
            // SAFETY: chunks are disjoint.
            let part = unsafe { memory.all().part(range.clone()) };
            for (x, i) in part.iter_mut().zip(range) {
                std::thread::yield_now();
                *x = i as u32;
            }
        }
    })
    .unwrap();
    assert!(data.iter().enumerate().all(|(i, &x)| x == i as u32));
}

#[test]
fn m1_who_waits_for_a_run_of_others_sees_its_cancel() {
    let pool = Pool::new();
    let (cancel, go_on) = (AtomicBool::new(false), AtomicBool::new(false));
    let others = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pool.run(2, &NEVER, &|_| {
                others.fetch_add(1, SeqCst);
                while !go_on.load(SeqCst) {
                    std::thread::yield_now();
                }
            })
        });
        while others.load(SeqCst) < 2 {
            std::thread::yield_now();
        }
        let waiting = scope.spawn(|| pool.run(2, &cancel, &|_| panic!("it was cancelled")));
        let patient = scope.spawn(|| pool.run(2, &NEVER, &|_| ()));
        cancel.store(true, SeqCst);
        assert_eq!(waiting.join().unwrap(), Err(Error::Cancelled));
        // Who came after it has lost nothing.
        go_on.store(true, SeqCst);
        assert_eq!(patient.join().unwrap(), Ok(()));
    });
}

#[test]
fn runs_take_place_in_the_order_in_which_they_were_asked_for() {
    let pool = Pool::new();
    let (order, ran) = (Mutex::new(Vec::new()), Mutex::new(()));
    std::thread::scope(|scope| {
        let first = ran.lock();
        let hold = scope.spawn(|| pool.run(2, &NEVER, &|worker| drop((worker.index() == 0).then(|| ran.lock()))));
        let waiting = |n: usize| {
            while pool.queue.order.lock().waiting.len() < n || !pool.queue.order.lock().busy {
                std::thread::yield_now();
            }
        };
        waiting(0);
        for i in 0..5 {
            let (pool, order) = (&pool, &order);
            scope.spawn(move || {
                pool.run(2, &NEVER, &|worker| {
                    if worker.index() == 0 {
                        order.lock().push(i);
                    }
                })
            });
            waiting(i + 1);
        }
        drop(first);
        hold.join().unwrap().unwrap();
    });
    assert_eq!(*order.lock(), [0, 1, 2, 3, 4]);
}

#[test]
fn m1_a_background_job_works_on_the_threads_of_others_while_they_run() {
    let pool = Pool::new();
    let stop = AtomicBool::new(false);
    let lent = Mutex::new(HashSet::new());
    let (calls, after) = (AtomicUsize::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let running = scope.spawn(|| {
            while !stop.load(SeqCst) {
                pool.run(2, &NEVER, &|_| std::thread::sleep(Duration::from_micros(500))).unwrap();
            }
            std::thread::current().id()
        });
        let job = |until: Instant| {
            assert!(!after.load(SeqCst), "called after the end");
            lent.lock().insert(std::thread::current().id());
            calls.fetch_add(1, SeqCst);
            while Instant::now() < until {}
        };
        let mut looks = 0;
        pool.background(2, 8, &job, &mut || {
            looks += 1;
            Ok(calls.load(SeqCst) < 50)
        })
        .unwrap();
        after.store(true, SeqCst);
        std::thread::sleep(Duration::from_millis(20));
        stop.store(true, SeqCst);
        let other = running.join().unwrap();
        assert!(looks > 0);
        assert!(lent.lock().contains(&other), "the thread of another's run took no part");
    });
}

#[test]
fn a_background_job_alone_has_runs_of_its_own() {
    let pool = Pool::new();
    for threads in [1, 3] {
        let calls = AtomicUsize::new(0);
        let job = |_: Instant| {
            calls.fetch_add(1, SeqCst);
        };
        pool.background(threads, 8, &job, &mut || Ok(calls.load(SeqCst) < 10)).unwrap();
        assert!(calls.load(SeqCst) >= 10);
    }
}

#[test]
fn a_background_job_that_panics_or_is_given_up_harms_no_run() {
    let pool = Pool::new();
    let error = pool.background(2, 8, &|_| panic!("on purpose"), &mut || Ok(true)).unwrap_err();
    assert!(error.to_string().contains("on purpose"), "{error}");
    let calls = AtomicUsize::new(0);
    let job = |_: Instant| {
        calls.fetch_add(1, SeqCst);
    };
    let error = pool.background(2, 8, &job, &mut || Err(Error::Cancelled)).unwrap_err();
    assert!(matches!(error, Error::Cancelled));
    let before = calls.load(SeqCst);
    pool.run(2, &NEVER, &|_| std::thread::sleep(Duration::from_millis(1))).unwrap();
    assert_eq!(calls.load(SeqCst), before, "called after the end");
}

#[test]
fn background_jobs_take_turns_and_no_more_than_their_part() {
    let pool = Pool::new();
    let calls = [AtomicUsize::new(0), AtomicUsize::new(0)];
    let jobs = calls.each_ref().map(|calls| {
        move |_: Instant| {
            calls.fetch_add(1, SeqCst);
            std::thread::sleep(Duration::from_millis(3));
        }
    });
    let listed = jobs.each_ref().map(|job| Listed::new(&pool.shared, 8, job));
    let state = ThreadState::default();
    let runs =
        |count: usize| (0..count).for_each(|_| pool.shared.work_for_background(&state, Duration::from_micros(800)));
    runs(200);
    // An eighth of 160 ms is due, and a job begins as soon as 20 us are.
    let [a, b] = calls.each_ref().map(|calls| calls.load(SeqCst));
    assert!((1..=7).contains(&(a + b)) && a.abs_diff(b) <= 1, "{a} and {b} steps of 3 ms");
    drop(listed);
    runs(1000);
    assert_eq!(calls.map(AtomicUsize::into_inner), [a, b], "called after the end");
}

/// The time that threads of these speeds (units a second) need for a step of `total` units: each claims its next piece
/// when its clock says that it is done with the last one. `order` says who is first of those who are done at once.
fn virtual_time(speeds: &[f64], order: &[usize], total: usize, most: usize) -> f64 {
    let (counter, threads) = (Counter::new(), speeds.len());
    let claim = Claim { least: total / (threads * LEAST_SHARE), most };
    let claims = || Chunks::new(Some(&counter), 1, threads, total, claim);
    let mut working: Vec<_> = order.iter().map(|&thread| (0f64, speeds[thread], claims())).collect();
    let (mut end, mut done) = (0f64, 0);
    while !working.is_empty() {
        let clocks = working.iter().map(|(clock, ..)| *clock).enumerate();
        let Some((next, _)) = clocks.min_by(|a, b| a.1.total_cmp(&b.1)) else { break };
        let (clock, speed, claims) = &mut working[next];
        match claims.next() {
            Some(piece) => {
                assert_eq!(piece.start, done, "each piece once, in order");
                done = piece.end;
                *clock += piece.len() as f64 / *speed;
            }
            None => {
                end = end.max(*clock);
                working.swap_remove(next);
            }
        }
    }
    assert_eq!(done, total);
    end
}

/// `cargo test --lib uneven_cores -- --nocapture` prints the table.
#[test]
fn uneven_cores_share_a_step_as_the_best_split_would() {
    let machines: [&[f64]; 6] = [
        &[1.0; 2],
        &[1.0, 1.0, 1.0 / 3.0, 1.0 / 3.0],
        &[1.0, 1.0, 0.5, 0.5],
        &[3.0, 1.0, 1.0, 1.0],
        &[1.0, 1.0, 1.0, 1.0, 0.3, 0.3, 0.3, 0.3],
        &[1.0, 0.8, 0.8, 0.8, 0.35, 0.35, 0.35, 0.35],
    ];
    for speeds in machines {
        let fast: Vec<f64> = speeds.iter().copied().filter(|speed| *speed > 0.5).collect();
        // Panels of matrices of 1024 to 151,936 rows.
        for total in [64, 128, 192, 688, 9496] {
            // Whoever of those who are done at once is first.
            let time = |speeds: &[f64], most| {
                let up: Vec<usize> = (0..speeds.len()).collect();
                let down: Vec<usize> = up.iter().rev().copied().collect();
                virtual_time(speeds, &up, total, most).max(virtual_time(speeds, &down, total, most))
            };
            let best = total as f64 / speeds.iter().sum::<f64>();
            let (all, alone) = (time(speeds, total), time(&fast, total));
            let (of_best, of_alone) = (best / all, alone / all);
            println!("{speeds:.2?}, {total} panels: {of_best:.3} of the best split, {of_alone:.3} of the fast alone");
            assert!(of_best >= 0.9, "{speeds:?}, {total} panels: {of_best}");
            assert!(of_alone >= 1.0, "{speeds:?}, {total} panels: {of_alone}");
            // With a bound on a piece, as a thread's scratch memory sets one.
            assert!(best / time(speeds, 4) >= 0.9);
        }
    }
}
