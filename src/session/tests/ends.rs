//! Cancel, close, errors and panics: one terminal event each, and nothing waits that must not.

use super::*;

/// A model whose evaluations hang until they are cancelled.
fn stuck() -> Fake {
    Fake::new(Box::new(|_, cancel, _| {
        while !cancel.load(Ordering::Acquire) {
            thread::sleep(Duration::from_millis(1));
        }
        Err(Error::Cancelled)
    }))
}

#[test]
fn cancel_from_another_thread_and_from_the_callback_ends_with_one_terminal_event() {
    let session = open(stuck());
    session.prefill(&PROMPT, -1).unwrap();
    let (sink, receiver) = listener();
    session.generate(-1, None, None, sink).unwrap();
    session.cancel();
    assert!(Heard::all(&receiver).tokens.is_empty());
    assert_eq!((reason(&session), session.status().error), (FinishReason::Cancelled, None));

    let session = Arc::new(open(spell("\u{2603}\u{2603}\u{2603}".as_bytes())));
    session.prefill(&PROMPT, -1).unwrap();
    let (sender, receiver) = channel();
    let inside = session.clone();
    let mut left = 5;
    let sink = Sink::Callback(Box::new(move |event: Event<'_>| {
        sender.send(Seen { token: event.token, text: event.text.into(), done: event.done }).unwrap();
        left -= 1;
        if left == 0 {
            inside.cancel();
        }
    }));
    session.generate(-1, Some(0.0), None, sink).unwrap();
    let heard = Heard::all(&receiver);
    assert_eq!((heard.tokens.len(), heard.text().as_str()), (5, "\u{2603}\u{FFFD}"));
    assert_eq!(reason(&session), FinishReason::Cancelled);
    session.cancel();
    assert_eq!(generate(&session, -1).tokens.len(), 9, "a cancel while idle does nothing");
}

#[test]
fn a_cancelled_prefill_fails_and_the_next_one_works() {
    let mut fake = say([HELLO]);
    let mut first = true;
    fake.on_prefill = Box::new(move |cancel| {
        if !std::mem::take(&mut first) {
            return Ok(());
        }
        while !cancel.load(Ordering::Acquire) {
            thread::sleep(Duration::from_millis(1));
        }
        Err(Error::Cancelled)
    });
    let watch = fake.watch.clone();
    let session = Arc::new(open(fake));
    let prefill = thread::spawn({
        let session = session.clone();
        move || session.prefill(&PROMPT, -1)
    });
    eventually("the prefill", || watch.prefills.load(Ordering::Relaxed) == 1);
    assert!(is_busy(session.prefill(&PROMPT, -1)) && is_busy(session.clear_trie()));
    session.cancel();
    assert_eq!(prefill.join().unwrap(), Err(Error::Cancelled));
    assert!(!session.status().prefilled);
    assert_eq!(generate(&session, -1).tokens, [HELLO]);
}

#[test]
fn close_from_inside_the_callback_waits_for_nothing_and_frees_after_the_terminal_event() {
    let fake = drone();
    let watch = fake.watch.clone();
    let session = Arc::new(open(fake));
    session.prefill(&PROMPT, -1).unwrap();
    let (sender, receiver) = channel();
    // The callback holds the only reference in the end, so the session is dropped on its own worker.
    let mut inside = Some(session.clone());
    let sink = Sink::Callback(Box::new(move |event: Event<'_>| {
        sender.send(Seen { token: event.token, text: event.text.into(), done: event.done }).unwrap();
        if let Some(session) = inside.take_if(|session| session.usage().completion_tokens == 3) {
            session.close();
            assert!(is_busy(session.prefill(&PROMPT, -1)));
            drop(session);
        }
    }));
    session.generate(-1, Some(0.0), None, sink).unwrap();
    drop(session);
    assert_eq!(Heard::all(&receiver).tokens.len(), 3);
    eventually("freeing the engine", || watch.freed.load(Ordering::Acquire));
}

#[test]
fn dropping_the_session_does_not_wait_for_a_callback_that_waits_for_the_dropper() {
    let fake = drone();
    let watch = fake.watch.clone();
    let session = open(fake);
    session.prefill(&PROMPT, -1).unwrap();
    let (entered, inside) = channel();
    let (go, wait) = channel::<()>();
    let (sender, receiver) = channel();
    let sink = Sink::Callback(Box::new(move |event: Event<'_>| {
        entered.send(()).unwrap();
        sender.send(Seen { token: event.token, text: event.text.into(), done: event.done }).unwrap();
        wait.recv().unwrap();
    }));
    session.generate(-1, Some(0.0), None, sink).unwrap();
    inside.recv().unwrap();
    drop(session);
    assert!(!watch.freed.load(Ordering::Acquire));
    go.send(()).unwrap();
    // Also inside the terminal call, when nothing is generated any more.
    inside.recv().unwrap();
    go.send(()).unwrap();
    assert_eq!(Heard::all(&receiver).tokens.len(), 1);
    eventually("freeing the engine", || watch.freed.load(Ordering::Acquire));
}

#[test]
fn dropping_inside_the_terminal_call_does_not_wait_either() {
    let session = open(say([HELLO]));
    session.prefill(&PROMPT, -1).unwrap();
    let (entered, inside) = channel();
    let (go, wait) = channel::<()>();
    let sink = Sink::Callback(Box::new(move |event: Event<'_>| {
        if event.done {
            entered.send(()).unwrap();
            wait.recv().unwrap();
        }
    }));
    session.generate(-1, Some(0.0), None, sink).unwrap();
    inside.recv().unwrap();
    drop(session);
    go.send(()).unwrap();
}

#[test]
fn an_idle_session_has_freed_its_engine_when_its_drop_returns() {
    for generated in [false, true] {
        let fake = say([HELLO]);
        let watch = fake.watch.clone();
        let session = open(fake);
        if generated {
            session.prefill(&PROMPT, -1).unwrap();
            session.generate(-1, Some(0.0), None, Sink::Queue).unwrap();
            let mut buffers = ([0; 8], [0; 64]);
            while !session.next(None, &mut buffers.0, &mut buffers.1).unwrap().done {}
        }
        drop(session);
        assert!(watch.freed.load(Ordering::Acquire));
    }
}

#[test]
fn a_closed_session_refuses_everything_that_would_start_something() {
    let session = open(say([HELLO]));
    session.prefill(&PROMPT, -1).unwrap();
    session.close();
    session.close();
    let (sink, receiver) = listener();
    assert!(is_busy(session.generate(1, None, None, sink)));
    assert_eq!(receiver.iter().count(), 0, "a refused generate has no events");
    assert!(is_busy(session.prefill(&PROMPT, -1)) && is_busy(session.clear_trie()));
    session.cancel();
    assert!(!session.status().busy);
}

#[test]
fn an_error_of_the_engine_ends_the_generation_and_the_next_prompt_works() {
    let mut calls = 0;
    let session = open(Fake::new(Box::new(move |_, _, row| {
        calls += 1;
        row[usize::from(b'a')] = if calls == 3 { f32::NAN } else { 1.0 };
        if calls == 6 { Err(Error::OutOfMemory("a test".into())) } else { Ok(()) }
    })));
    let heard = generate(&session, -1);
    assert_eq!((heard.tokens.len(), reason(&session)), (2, FinishReason::Error));
    let error = session.take_error().unwrap();
    assert!(matches!(error, Error::NanLogits { token: 97, .. }), "{error}");
    assert_eq!(session.status().error, Some(error));
    assert_eq!(generate(&session, -1).tokens.len(), 2);
    assert_eq!(session.take_error(), Some(Error::OutOfMemory("a test".into())));
    assert_eq!(generate(&session, 3).tokens.len(), 3);
    assert_eq!((reason(&session), session.status().error), (FinishReason::Length, None));
}

#[test]
fn a_panic_in_the_callback_is_an_error_and_the_terminal_event_still_comes() {
    let session = open(drone());
    for at in [1, 3] {
        session.prefill(&PROMPT, -1).unwrap();
        let (sender, receiver) = channel();
        let mut calls = 0;
        let sink = Sink::Callback(Box::new(move |event: Event<'_>| {
            sender.send(Seen { token: event.token, text: event.text.into(), done: event.done }).unwrap();
            calls += 1;
            assert!(calls != at, "a test's own panic");
        }));
        session.generate(2, Some(0.0), None, sink).unwrap();
        assert_eq!(Heard::all(&receiver).tokens.len(), at.min(2));
        eventually("noting the panic", || session.status().error.is_some());
        let error = session.take_error().unwrap();
        assert!(matches!(&error, Error::Internal(text) if text.contains("callback") && text.contains("own panic")));
        let expected = if at == 1 { FinishReason::Error } else { FinishReason::Length };
        assert_eq!(reason(&session), expected);
    }
    assert_eq!(generate(&session, 2).tokens.len(), 2, "the engine is sound, so the session goes on");
}

#[test]
fn a_panic_in_the_engine_ends_the_generation_and_bars_further_prompts() {
    let fake = Fake::new(Box::new(|_, _, _| panic!("a test's own panic")));
    let watch = fake.watch.clone();
    let session = open(fake);
    assert!(generate(&session, -1).tokens.is_empty());
    assert_eq!(reason(&session), FinishReason::Error);
    assert!(matches!(session.take_error(), Some(Error::Internal(text)) if text.contains("own panic")));
    assert!(matches!(session.prefill(&PROMPT, -1), Err(Error::Internal(text)) if text.contains("own panic")));
    drop(session);
    eventually("freeing the engine", || watch.freed.load(Ordering::Acquire));

    let mut fake = say([HELLO]);
    fake.on_prefill = Box::new(|_| panic!("another"));
    let session = open(fake);
    assert!(matches!(session.prefill(&PROMPT, -1), Err(Error::Internal(text)) if text.contains("another")));
    assert!(!session.status().busy);
}

#[test]
fn eight_sessions_at_once_with_cancels_and_closes_each_keep_the_rules() {
    let threads: Vec<_> = (0..8u64)
        .map(|number| {
            thread::spawn(move || {
                for round in 0..30u64 {
                    let session = Arc::new(open(drone()));
                    session.prefill(&PROMPT, (number % 4) as i32).unwrap();
                    let (sink, receiver) = listener();
                    session.generate(-1, Some(0.0), None, sink).unwrap();
                    let other = thread::spawn({
                        let session = session.clone();
                        move || {
                            thread::sleep(Duration::from_micros((number * 37 + round * 91) % 400));
                            match round % 3 {
                                0 => session.cancel(),
                                1 => session.close(),
                                _ => drop(session.usage()),
                            }
                        }
                    });
                    let count = Heard::all(&receiver).tokens.len();
                    let usage = session.usage();
                    assert_eq!(usage.completion_tokens as usize, count);
                    if count < CONTEXT - PROMPT.len() {
                        assert_eq!(usage.finish_reason, FinishReason::Cancelled);
                        assert!(round % 3 != 2, "nobody stopped it");
                    }
                    other.join().unwrap();
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
}
