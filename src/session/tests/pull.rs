//! Taking tokens without a callback.

use super::*;

/// Reads a generation to its end with buffers of these sizes.
fn read_all(session: &Session, token_cap: usize, text_cap: usize) -> Result<(Vec<Token>, String, usize)> {
    let (mut tokens, mut text) = (vec![0; token_cap], vec![0; text_cap]);
    let (mut all_tokens, mut all_text, mut steps) = (Vec::new(), String::new(), 0);
    loop {
        let step = session.next(None, &mut tokens, &mut text)?;
        steps += 1;
        all_tokens.extend_from_slice(&tokens[..step.tokens]);
        all_text.push_str(std::str::from_utf8(&text[..step.text_bytes]).unwrap());
        assert_eq!(text[step.text_bytes], 0);
        if step.done {
            return Ok((all_tokens, all_text, steps));
        }
    }
}

fn start(session: &Session, max_new_tokens: i32) {
    session.prefill(&PROMPT, -1).unwrap();
    session.generate(max_new_tokens, Some(0.0), None, Sink::Queue).unwrap();
}

#[test]
fn the_stream_is_the_same_for_every_buffer_size() {
    let story = [HELLO, WORLD, LONG, 0xE2, 0x98, 0x83, 0, WORLD];
    let session = open(say(story));
    let expected = format!("{}{}{}\u{2603}\u{FFFD}{}", WORDS[0], WORDS[1], WORDS[2], WORDS[1]);
    for (token_cap, text_cap) in [(1, 8), (2, 8), (8, 9), (3, 24), (64, 1024)] {
        start(&session, -1);
        let (tokens, text, _) = read_all(&session, token_cap, text_cap).unwrap();
        assert_eq!((tokens.as_slice(), text.as_str()), (&story[..], expected.as_str()), "{token_cap} {text_cap}");
        assert_eq!(reason(&session), FinishReason::Stop);
    }
}

#[test]
fn next_blocks_poll_does_not_and_the_end_comes_once() {
    let (go, wait) = channel::<()>();
    let session = open(Fake::new(Box::new(move |_, _, row| {
        wait.recv().unwrap();
        row[HELLO as usize] = 1.0;
        Ok(())
    })));
    let mut buffers = ([0; 4], [b'#'; 64]);
    start(&session, 1);
    let step = session.next(Some(Duration::ZERO), &mut buffers.0, &mut buffers.1);
    assert_eq!((step, buffers.1[0]), (Ok(Pull::default()), 0));
    let before = Instant::now();
    session.next(Some(Duration::from_millis(20)), &mut buffers.0, &mut buffers.1).unwrap();
    assert!(before.elapsed() >= Duration::from_millis(20));
    go.send(()).unwrap();
    let (tokens, text, _) = read_all(&session, 4, 64).unwrap();
    assert_eq!((tokens, text), (vec![HELLO], "Hello".into()));
    let after = session.next(None, &mut buffers.0, &mut buffers.1);
    assert!(matches!(after, Err(Error::InvalidArgument(_))), "{after:?}");
}

#[test]
fn buffers_that_cannot_advance_are_refused_and_lose_nothing() {
    let session = open(say([HELLO]));
    start(&session, -1);
    for (token_cap, text_cap) in [(0, 64), (4, 7), (4, 0)] {
        let refused = session.next(None, &mut vec![0; token_cap], &mut vec![0; text_cap]);
        assert!(matches!(refused, Err(Error::InvalidArgument(_))));
    }
    assert_eq!(read_all(&session, 1, 8).unwrap().0, [HELLO]);
}

#[test]
fn cancel_and_close_wake_a_blocked_reader() {
    for close in [false, true] {
        let session = Arc::new(open(Fake::new(Box::new(|_, cancel, _| {
            while !cancel.load(Ordering::Acquire) {
                thread::sleep(Duration::from_millis(1));
            }
            Err(Error::Cancelled)
        }))));
        start(&session, -1);
        let reader = thread::spawn({
            let session = session.clone();
            move || read_all(&session, 4, 64)
        });
        thread::sleep(Duration::from_millis(5));
        if close {
            session.close()
        } else {
            session.cancel()
        }
        assert!(reader.join().unwrap().unwrap().0.is_empty());
        assert_eq!(reason(&session), FinishReason::Cancelled);
    }
}

#[test]
fn a_failed_generation_gives_its_tokens_and_then_its_error() {
    let session = open(Fake::new(Box::new(|slot, _, row| {
        row[HELLO as usize] = 1.0;
        if slot.len() > PROMPT.len() { Err(Error::OutOfMemory("a test".into())) } else { Ok(()) }
    })));
    start(&session, -1);
    let mut buffers = ([0; 4], [0; 64]);
    let step = session.next(None, &mut buffers.0, &mut buffers.1).unwrap();
    assert_eq!(step, Pull { tokens: 1, text_bytes: 5, done: false });
    assert_eq!(session.next(None, &mut buffers.0, &mut buffers.1), Err(Error::OutOfMemory("a test".into())));
    assert!(matches!(session.next(None, &mut buffers.0, &mut buffers.1), Err(Error::InvalidArgument(_))));
    assert_eq!(reason(&session), FinishReason::Error);
}

#[test]
fn a_generation_nobody_reads_ends_by_itself_and_a_prefill_discards_it() {
    let session = open(drone());
    start(&session, -1);
    eventually("the end", || !session.status().busy);
    assert_eq!(session.usage().completion_tokens as usize, CONTEXT - PROMPT.len());
    start(&session, 2);
    assert_eq!(read_all(&session, 64, 1024).unwrap().1, "aa");
}
