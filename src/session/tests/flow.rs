//! Prefill, generate, text, settings: what happens when nothing goes wrong, and who may do what when.

use super::*;

#[test]
fn tokens_come_one_by_one_and_the_end_of_generation_is_not_one_of_them() {
    let session = open(say([HELLO, WORLD]));
    assert_eq!(session.prefill(&PROMPT, -1), Ok(3));
    assert_eq!((session.status().prefilled, session.status().busy), (true, false));
    let (sink, receiver) = listener();
    session.generate(10, Some(0.0), None, sink).unwrap();
    let heard = Heard::all(&receiver);
    assert_eq!(heard.tokens, [HELLO, WORLD]);
    assert_eq!(heard.texts, ["Hello", " world", ""]);
    let usage = session.usage();
    assert_eq!(usage.finish_reason, FinishReason::Stop);
    assert_eq!((usage.prompt_tokens, usage.prompt_tokens_reused, usage.completion_tokens), (3, 0, 2));
    assert_eq!(
        (usage.forward_passes, usage.forced_tokens),
        (3, 0),
        "the prompt and two tokens; the head makes no pass"
    );
    assert!(usage.first_token_us <= usage.decode_us);
    assert!(session.status().error.is_none() && session.take_error().is_none());
    assert_eq!(session.sampled(-1).unwrap().token, EOG);
    let telemetry: serde_json::Value = serde_json::from_str(&session.usage_json()).unwrap();
    assert_eq!(telemetry["usage"]["completion_tokens"], 2);
    assert_eq!(telemetry["usage"]["finish_reason"], "stop");
    assert_eq!(telemetry["model"]["ids"][0], "tiny");
}

#[test]
fn a_generation_ends_at_its_limit_or_when_the_context_is_full() {
    let session = open(drone());
    for (limit, tokens, expected) in [
        (0, 0, FinishReason::Length),
        (5, 5, FinishReason::Length),
        (-1, CONTEXT - PROMPT.len(), FinishReason::Context),
        (1000, CONTEXT - PROMPT.len(), FinishReason::Context),
        (61, 61, FinishReason::Length),
    ] {
        let heard = generate(&session, limit);
        assert_eq!((heard.tokens.len(), reason(&session)), (tokens, expected), "limit {limit}");
        assert_eq!(session.usage().completion_tokens as usize, tokens);
    }
    session.prefill(&[1; CONTEXT], -1).unwrap();
    let (sink, receiver) = listener();
    session.generate(-1, None, None, sink).unwrap();
    assert_eq!((Heard::all(&receiver).texts, reason(&session)), (vec![String::new()], FinishReason::Context));
}

#[test]
fn zero_new_tokens_cost_no_evaluation() {
    let fake = drone();
    let watch = fake.watch.clone();
    let session = open(fake);
    generate(&session, 0);
    assert!(watch.batches.lock().is_empty());
}

#[test]
fn characters_split_over_tokens_arrive_whole() {
    let text = "a\u{e9}\u{2603}\u{1F600}b";
    let session = open(spell(text.as_bytes()));
    let heard = generate(&session, -1);
    assert_eq!(heard.text(), text);
    assert_eq!(heard.texts, ["a", "", "\u{e9}", "", "", "\u{2603}", "", "", "", "\u{1F600}", "b", ""]);
    for limit in 0..text.len() {
        let heard = generate(&session, limit as i32);
        assert_eq!(heard.tokens.len(), limit);
        assert_eq!(heard.text(), String::from_utf8_lossy(&text.as_bytes()[..limit]), "the rest comes at the end");
    }
}

#[test]
fn a_stop_string_ends_the_generation_across_tokens_and_is_not_delivered() {
    let session = open(spell(b"Hi<|end|>more"));
    set(&session, |settings| settings.stop = vec![b"<|end|>".to_vec(), b"<|eot|>".to_vec()]);
    let heard = generate(&session, -1);
    assert_eq!((heard.text().as_str(), heard.tokens.len()), ("Hi", 9));
    assert_eq!(reason(&session), FinishReason::Stop);
    let heard = generate(&session, 6);
    assert_eq!(heard.texts, ["H", "i", "", "", "", "", "<|en"], "what was held back comes with the terminal event");
    assert_eq!(reason(&session), FinishReason::Length);
    let unchanged = session.settings();
    let empty = Settings { stop: vec![b"x".to_vec(), vec![]], ..unchanged.clone() };
    assert!(matches!(session.configure(empty), Err(Error::InvalidArgument(problem)) if problem.contains("stop[1]")));
    assert_eq!(session.settings().stop, unchanged.stop);
    let mut unusable = unchanged.clone();
    unusable.params.logit_bias = vec![(N_VOCAB as Token, 1.0)];
    assert!(matches!(session.configure(unusable), Err(Error::InvalidArgument(_))));
    assert_eq!(session.settings().params, unchanged.params);
}

#[test]
fn the_text_of_events_stays_readable_until_the_next_prefill_and_with_the_arena_beyond_close() {
    let session = open(spell("nul:\0 snow:\u{2603}".as_bytes()));
    session.prefill(&PROMPT, -1).unwrap();
    let (sender, receiver) = channel();
    let sink = Sink::Callback(Box::new(move |event: Event<'_>| {
        let text = event.stored;
        sender.send((event.text.to_owned(), text.exact as usize, text.len, text.c_string as usize)).unwrap();
    }));
    session.generate(-1, Some(0.0), None, sink).unwrap();
    let events: Vec<_> = receiver.iter().collect();
    let arena = session.arena();
    drop(session);
    for (text, exact, len, c_string) in events {
        // SAFETY: the arena is held and no later prefill or generate cleared it, so `exact` has `len` readable bytes.
        let bytes = unsafe { std::slice::from_raw_parts(exact as *const u8, len) };
        // SAFETY: as above; `c_string` is NUL-terminated.
        let c_text = unsafe { std::ffi::CStr::from_ptr(c_string as *const std::ffi::c_char) };
        assert_eq!((bytes, c_text.to_str().unwrap()), (text.as_bytes(), text.replace('\0', "\u{FFFD}").as_str()));
    }
    drop(arena);
}

#[test]
fn every_generate_needs_its_own_prefill() {
    let session = open(say([HELLO]));
    let (sink, _receiver) = listener();
    assert!(is_busy(session.generate(1, None, None, sink)), "never prefilled");
    generate(&session, 1);
    let (sink, _receiver) = listener();
    assert!(is_busy(session.generate(1, None, None, sink)), "used up");
    assert!(matches!(session.status().error, Some(Error::Busy(_))));
    assert!(session.take_error().is_some() && session.take_error().is_none(), "an error is given once");
    assert!(session.status().error.is_some(), "the status still tells it");
    generate(&session, 1);
    assert!(session.status().error.is_none());
}

#[test]
fn a_slot_keeps_what_it_holds_and_a_bad_prompt_is_refused_by_name() {
    let session = open(say([HELLO]));
    session.prefill(&[1, 2, 3, 4], 2).unwrap();
    session.prefill(&[1, 2, 9, 9, 9], 2).unwrap();
    assert_eq!(session.usage().prompt_tokens_reused, 2);
    for (tokens, slot, word) in [
        (&[][..], 0, "no tokens"),
        (&[1, N_VOCAB as Token][..], 0, "prompt token 1"),
        (&[-7][..], 0, "prompt token 0"),
        (&[1][..], 4, "slot 4"),
        (&[1][..], -2, "slot -2"),
    ] {
        let refused = session.prefill(tokens, slot);
        assert!(matches!(&refused, Err(Error::InvalidArgument(problem)) if problem.contains(word)), "{refused:?}");
    }
    assert!(session.status().prefilled, "a refused call changes nothing");
    assert!(matches!(session.prefill(&[1; CONTEXT + 1], 2), Err(Error::OutOfMemory(_))));
    assert!(!session.status().prefilled, "a failed prefill leaves no prompt");
    assert!(session.set_chain(4, None).is_err());
}

#[test]
fn everything_but_looking_and_stopping_is_refused_while_a_generation_runs() {
    let session = Arc::new(open(drone()));
    session.set_trie(br#"{"descriptors":[{"path":"p","leaves":[{"name":"a","tokens":[97]}]}]}"#, Mode::Greedy).unwrap();
    let trie = session.shared.lock().constraint.trie().cloned().unwrap();
    session.prefill(&PROMPT, -1).unwrap();
    let (sender, receiver) = channel();
    let inside = session.clone();
    let sink = Sink::Callback(Box::new(move |event: Event<'_>| {
        if event.done {
            return;
        }
        let (again, _receiver) = listener();
        let mut buffers = ([0; 4], [0; 64]);
        let refused = [
            is_busy(inside.prefill(&PROMPT, -1)),
            is_busy(inside.generate(1, None, None, again)),
            is_busy(inside.configure(Settings::default())),
            is_busy(inside.set_chain(0, None)),
            is_busy(inside.set_trie(b"{}", Mode::Greedy)),
            is_busy(inside.clear_trie()),
            is_busy(inside.arm_trie(None)),
            is_busy(inside.next(None, &mut buffers.0, &mut buffers.1)),
        ];
        let looked = (inside.status(), inside.usage(), inside.sampled(-1), inside.take_error());
        sender.send((refused, looked.0.busy, looked.1.completion_tokens)).unwrap();
    }));
    session.generate(2, Some(0.0), None, sink).unwrap();
    let seen: Vec<_> = receiver.iter().collect();
    assert_eq!(seen, [([true; 8], true, 1), ([true; 8], true, 2)]);
    let state = session.shared.lock();
    assert!(
        Arc::ptr_eq(state.constraint.trie().unwrap().trie(), trie.trie()),
        "a refused set or clear changes nothing"
    );
    assert!(state.check_constraint().is_ok());
}

#[test]
fn a_prefill_waits_for_the_terminal_call_and_is_refused_inside_it() {
    let session = Arc::new(open(say([HELLO])));
    session.prefill(&PROMPT, -1).unwrap();
    let (go, wait) = channel::<()>();
    let (sender, receiver) = channel();
    let inside = session.clone();
    let sink = Sink::Callback(Box::new(move |event: Event<'_>| {
        if event.done {
            sender.send(is_busy(inside.prefill(&PROMPT, -1))).unwrap();
            wait.recv().unwrap();
        }
    }));
    session.generate(1, Some(0.0), None, sink).unwrap();
    assert!(receiver.recv().unwrap());
    let waiting = thread::spawn({
        let session = session.clone();
        move || session.prefill(&PROMPT, -1)
    });
    eventually("the prefill", || session.status().busy);
    go.send(()).unwrap();
    assert_eq!(waiting.join().unwrap(), Ok(3));
}

#[test]
fn a_chain_of_the_slot_replaces_the_parameters_but_not_stated_arguments() {
    // "b" is a little less likely than "a"; a bias decides.
    let session = open(Fake::new(Box::new(|_, _, row| {
        row[usize::from(b'a')] = 10.0;
        row[usize::from(b'b')] = 9.0;
        Ok(())
    })));
    let first = |slot, temperature, top_p| {
        session.prefill(&PROMPT, slot).unwrap();
        let (sink, receiver) = listener();
        session.generate(1, temperature, top_p, sink).unwrap();
        Heard::all(&receiver).text()
    };
    session.set_chain(1, Some("logit_bias=98:5;temp=0".parse().unwrap())).unwrap();
    assert_eq!((first(0, Some(0.0), None), first(1, None, None)), ("a".into(), "b".into()));
    set(&session, |settings| settings.params.logit_bias = vec![(97, -20.0)]);
    assert_eq!(first(0, Some(0.0), None), "b", "settings hold for slots without a chain");
    session.set_chain(1, None).unwrap();
    assert_eq!(first(1, Some(0.0), None), "b");
    for chain in ["dynatemp=5,4,1", "temp=9"] {
        session.set_chain(1, Some(chain.parse().unwrap())).unwrap();
        let drawn: Vec<String> = (0..40).map(|_| first(1, Some(0.0), None)).collect();
        assert!(drawn.iter().all(|text| text == "a"), "the stated temperature stands over that of `{chain}`");
    }
    let drawn: Vec<String> = (0..40).map(|_| first(1, None, Some(0.01))).collect();
    assert!(drawn.iter().all(|text| text == "a"), "a stated top-p is added to a chain without one");
    assert!(session.set_chain(1, Some("logit_bias=99999:1".parse().unwrap())).is_err());
    session.prefill(&PROMPT, 0).unwrap();
    let (sink, _receiver) = listener();
    assert!(matches!(session.generate(1, Some(f32::NAN), None, sink), Err(Error::InvalidArgument(_))));
    assert!(session.status().prefilled, "a refused generate changes nothing");
}

#[test]
fn one_seed_gives_one_stream_and_no_seed_gives_others() {
    let session = open(Fake::new(Box::new(|_, _, row| {
        row[usize::from(b'a')..=usize::from(b'z')].fill(10.0);
        Ok(())
    })));
    let story = |seed| {
        set(&session, |settings| settings.params.seed = seed);
        session.prefill(&PROMPT, -1).unwrap();
        let (sink, receiver) = listener();
        session.generate(20, Some(1.0), None, sink).unwrap();
        Heard::all(&receiver).text()
    };
    assert_eq!(story(Some(7)), story(Some(7)));
    assert_ne!(story(Some(7)), story(Some(8)));
    assert_ne!(story(None), story(None));
    set(&session, |settings| settings.candidates = 3);
    story(Some(1));
    let sampled = session.sampled(-1).unwrap();
    assert_eq!(sampled.candidates.len(), 3);
    assert!(session.sampled(0).is_none());
}

#[test]
fn penalties_look_back_on_the_prompt_and_on_forced_tokens() {
    // The model would repeat the prompt's last token, or the span's "x", rather than say "a".
    let session = open(Fake::new(Box::new(|_, _, row| {
        row[PROMPT[2] as usize] = 10.0;
        row[usize::from(b'x')] = 9.0;
        row[usize::from(b'a')] = 8.0;
        Ok(())
    })));
    assert_eq!(generate(&session, 1).tokens, [PROMPT[2]]);
    set(&session, |settings| settings.params.presence_penalty = 5.0);
    assert_eq!(generate(&session, 1).text(), "x");
    session
        .set_trie(br#"{"descriptors":[{"path":"p","leaves":[{"name":"x","tokens":[120]}]}]}"#, Mode::Greedy)
        .unwrap();
    assert_eq!(generate(&session, 2).text(), "xa");
}

#[test]
#[cfg(unix)]
fn l3_usage_is_json_whatever_bytes_the_path_has() {
    use std::os::unix::ffi::OsStrExt;
    let info = ModelInfo {
        path: std::ffi::OsStr::from_bytes(b"m\xff.gguf").into(),
        n_vocab: N_VOCAB,
        generates: true,
        context: CONTEXT as u32,
        slots: 4,
        ..ModelInfo::default()
    };
    let session = Session::start(say([HELLO]), vocab(), file(), info, Settings::default()).unwrap();
    let json: serde_json::Value = serde_json::from_str(&session.usage_json()).unwrap();
    assert_eq!(json["model"]["path"], "m\u{fffd}.gguf");
}
