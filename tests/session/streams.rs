//! Sessions over real engines, on the fixture models: what comes out of the whole path.

use crate::testing;
use crate::testing::fixtures::{self, Kind, Weights};
use crate::testing::reference::{EXACT, Reference};
use elizainference::Error;
use elizainference::Token;
use elizainference::gguf::File;
use elizainference::session::{EngineOptions, Event, FinishReason, KvType, Mode, OpenOptions, Session, Sink, SpanEnd};
use elizainference::trie::Surroundings;
use std::path::Path;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

const PROMPT: [Token; 6] = [1, 40, 300, 77, 410, 150];

fn open(path: &Path, slots: u32) -> Session {
    let engine = EngineOptions { kv_type: KvType::F32, slots, threads: 1, ..EngineOptions::default() };
    Session::open(OpenOptions { path: path.into(), engine, ..OpenOptions::default() }).unwrap()
}

/// Tokens and text of one generation by callback.
fn listen(session: &Session, max_new_tokens: i32, temperature: f32) -> (Vec<Token>, String) {
    let (sender, receiver) = channel();
    let sink = Sink::Callback(Box::new(move |event: Event<'_>| {
        let _ = sender.send((event.token, event.text.to_owned(), event.done));
    }));
    session.generate(max_new_tokens, Some(temperature), Some(1.0), sink).unwrap();
    let events: Vec<_> = receiver.iter().collect();
    assert_eq!(events.iter().filter(|event| event.2).count(), 1);
    let tokens = events.iter().filter(|event| !event.2).map(|event| event.0).collect();
    (tokens, events.into_iter().map(|event| event.1).collect())
}

/// The same by pulling.
fn pull(session: &Session, max_new_tokens: i32, temperature: f32) -> (Vec<Token>, String) {
    session.generate(max_new_tokens, Some(temperature), Some(1.0), Sink::Queue).unwrap();
    let (mut tokens, mut text) = ([0; 3], [0; 16]);
    let (mut all_tokens, mut all_text) = (Vec::new(), String::new());
    loop {
        let step = session.next(None, &mut tokens, &mut text).unwrap();
        all_tokens.extend_from_slice(&tokens[..step.tokens]);
        all_text.push_str(std::str::from_utf8(&text[..step.text_bytes]).unwrap());
        if step.done {
            return (all_tokens, all_text);
        }
    }
}

/// The text that the pieces of these tokens spell, without any word on tokens that have none.
fn spelled(session: &Session, tokens: &[Token]) -> String {
    let mut bytes = Vec::new();
    tokens.iter().for_each(|&token| session.vocab().piece(token, false, &mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

#[test]
fn a_greedy_stream_takes_the_slow_forward_pass_s_best_token_at_every_step() {
    for kind in [Kind::Llama, Kind::Qwen3, Kind::Gemma3] {
        let path = testing::fixture(kind, Weights::F32);
        let reference = Reference::new(&File::open(&path).unwrap());
        let session = open(&path, 1);
        let mut settings = session.settings();
        settings.ignore_eos = true;
        settings.no_guessing = true;
        session.configure(settings).unwrap();
        assert_eq!(session.prefill(&PROMPT, 0), Ok(PROMPT.len()));
        let (tokens, text) = listen(&session, 24, 0.0);
        assert_eq!(tokens.len(), 24);
        assert_eq!(text, spelled(&session, &tokens), "{kind:?}");
        let all = [PROMPT.as_slice(), &tokens].concat();
        let rows = reference.logits(&all, EXACT);
        let eog = session.vocab().eog_tokens();
        for (step, &token) in tokens.iter().enumerate() {
            let row = &rows[PROMPT.len() - 1 + step];
            let allowed = (0..row.len()).filter(|&id| !eog.contains(&(id as Token)));
            let best = allowed.map(|id| row[id]).fold(f64::NEG_INFINITY, f64::max);
            let taken = row[token as usize];
            assert!(best - taken < 4e-3, "{kind:?}, step {step}: token {token} has {taken}, the best {best}");
        }
        let usage = session.usage();
        assert_eq!((usage.completion_tokens, usage.finish_reason), (24, FinishReason::Length));
        assert_eq!(usage.forward_passes, 1 + 23, "the prompt, and every token but the last");
    }
}

#[test]
fn a_seeded_stream_is_the_same_however_it_is_prefilled_and_read() {
    // Quantised: a row's bits do not depend on the rows evaluated beside it (tests/model/logits.rs).
    let path = testing::fixture(Kind::Llama, Weights::Q8_0);
    let session = open(&path, 4);
    let mut settings = session.settings();
    settings.params.seed = Some(11);
    settings.ignore_eos = true;
    session.configure(settings).unwrap();
    session.prefill(&PROMPT, -1).unwrap();
    let first = listen(&session, 40, 0.9);
    session.prefill(&PROMPT, 2).unwrap();
    assert_eq!(pull(&session, 40, 0.9), first);
    session.prefill(&PROMPT, 2).unwrap();
    assert_eq!(session.usage().prompt_tokens_reused as usize, PROMPT.len() - 1);
    assert_eq!(pull(&session, 40, 0.9), first);

    // Cancelled half way and continued as a prompt: draws depend on the position, not on the history of calls.
    let (head, tail) = first.0.split_at(15);
    session.prefill(&[PROMPT.as_slice(), head].concat(), 2).unwrap();
    assert_eq!(listen(&session, 25, 0.9).0, tail);
}

#[test]
fn a_span_holds_only_legal_tokens_and_forced_runs_share_a_pass() {
    let path = testing::fixture(Kind::Llama, Weights::F32);
    let session = open(&path, 1);
    let leaves = [[50, 60, 70, 80], [50, 60, 71, 81], [51, 61, 72, 82]];
    let json: Vec<String> =
        leaves.iter().enumerate().map(|(at, tokens)| format!(r#"{{"name":"{at}","tokens":{tokens:?}}}"#)).collect();
    let json = format!(r#"{{"descriptors":[{{"path":"p","leaves":[{}]}}]}}"#, json.join(","));
    let mut settings = session.settings();
    settings.on_span_end = SpanEnd::Stop;
    session.configure(settings).unwrap();
    let reference = Reference::new(&File::open(&path).unwrap());
    for mode in [Mode::Greedy, Mode::Sampled] {
        session.set_trie(json.as_bytes(), mode).unwrap();
        for _ in 0..8 {
            session.prefill(&PROMPT, -1).unwrap();
            let (tokens, _) = listen(&session, -1, 1.0);
            assert!(leaves.iter().any(|leaf| leaf[..] == tokens[..]), "{tokens:?}");
            let usage = session.usage();
            assert_eq!(usage.finish_reason, FinishReason::Span);
            let forced = if tokens[0] == 50 { 2 } else { 3 };
            assert_eq!((usage.completion_tokens, usage.forced_tokens), (4, forced));
            assert_eq!(usage.forward_passes, if forced == 2 { 2 } else { 1 }, "one pass for 50 and 60 together");
            if mode == Mode::Greedy {
                let row = &reference.logits(&PROMPT, EXACT)[PROMPT.len() - 1];
                assert_eq!(tokens[0] == 50, row[50] >= row[51]);
            }
        }
    }
}

#[test]
fn eight_sessions_on_one_model_each_say_what_they_say_alone() {
    let path = testing::fixture(Kind::Qwen3, Weights::Q8_0);
    let prompts: Vec<Vec<Token>> = (0..8).map(|n| PROMPT.iter().map(|&token| token + n).collect()).collect();
    let story = |prompt: &[Token]| {
        let session = open(&path, 1);
        session.prefill(prompt, -1).unwrap();
        listen(&session, 60, 0.0)
    };
    let alone: Vec<_> = prompts.iter().map(|prompt| story(prompt)).collect();
    thread::scope(|scope| {
        let running: Vec<_> = prompts.iter().map(|prompt| scope.spawn(|| story(prompt))).collect();
        for (thread, expected) in running.into_iter().zip(&alone) {
            assert_eq!(&thread.join().unwrap(), expected);
        }
    });
}

#[test]
fn a_cancelled_prompt_leaves_a_slot_that_continues_rightly() {
    let path = testing::fixture(Kind::Gemma3, Weights::F32);
    let prompt: Vec<Token> = (0..600).map(|at| 3 + (at * 37) % 500).collect();
    let session = open(&path, 2);
    session.prefill(&prompt, 0).unwrap();
    let expected = listen(&session, 12, 0.0);
    let mut cancelled = 0;
    for delay in 0..16 {
        // Another prompt first, so that nothing of this one is left in the slot.
        session.prefill(&[9, 8, 7], 1).unwrap();
        let outcome = thread::scope(|scope| {
            let prefill = scope.spawn(|| session.prefill(&prompt, 1));
            thread::sleep(Duration::from_micros(delay * 700));
            session.cancel();
            prefill.join().unwrap()
        });
        match outcome {
            Err(Error::Cancelled) => cancelled += 1,
            done => assert_eq!(done, Ok(prompt.len())),
        }
        session.prefill(&prompt, 1).unwrap();
        assert_eq!(listen(&session, 12, 0.0), expected, "cancelled after {delay} steps of delay");
    }
    println!("{cancelled} of 16 prompts were cancelled");
}

#[test]
fn m5_a_cancel_ends_what_is_tokenized_then_and_nothing_later() {
    let session = open(&testing::fixture(Kind::Llama, Weights::Q8_0), 2);
    session.cancel();
    assert!(!session.tokenize(b"one day", true, false).unwrap().is_empty(), "a cancel from before");
    let name = "a little girl ".repeat(1 << 18);
    let around = Surroundings::default();
    let calls: [&(dyn Fn() -> Result<(), Error> + Sync); 2] =
        [&|| session.tokenize(name.as_bytes(), true, false).map(drop), &|| {
            session.build_trie("p", &[name.as_str()], around).map(drop)
        }];
    for call in calls {
        thread::scope(|scope| {
            let running = scope.spawn(call);
            let mut asked = Instant::now();
            while !running.is_finished() {
                asked = Instant::now();
                session.cancel();
                thread::sleep(Duration::from_millis(5));
            }
            assert_eq!(running.join().unwrap(), Err(Error::Cancelled));
            assert!(asked.elapsed() < Duration::from_secs(5), "{:?}", asked.elapsed());
        });
    }
    // A tokenize that is cancelled takes nothing from a prefill or a generation, and the other way round.
    let tokens = session.tokenize(b"one day", true, false).unwrap();
    session.prefill(&tokens, -1).unwrap();
    assert_eq!(pull(&session, 5, 0.0).0.len(), 5);
}

#[test]
fn what_cannot_be_opened_says_why_and_a_load_can_be_cancelled() {
    let options = |path: &Path| OpenOptions { path: path.into(), ..OpenOptions::default() };
    let missing = Session::open(options(Path::new("no-such-model.gguf"))).err();
    assert!(matches!(&missing, Some(Error::Io { path, .. }) if path.ends_with("no-such-model.gguf")), "{missing:?}");
    let dir = tempfile::tempdir().unwrap();
    let not_gguf = dir.path().join("text.gguf");
    std::fs::write(&not_gguf, "This is no model.").unwrap();
    let error = Session::open(options(&not_gguf)).err().unwrap();
    assert!(matches!(&error, Error::InFile { source, .. } if matches!(**source, Error::Gguf { .. })), "{error:?}");
    assert!(error.to_string().starts_with(not_gguf.to_str().unwrap()), "{error}");
    let path = fixtures::write(dir.path(), Kind::Llama, Weights::F16);
    let mut cancelled = options(&path);
    cancelled.progress = Some(Box::new(|_| false));
    assert!(matches!(Session::open(cancelled), Err(Error::Cancelled)));
    let mut watched = options(&path);
    let (sender, receiver) = channel();
    watched.progress = Some(Box::new(move |done| sender.send(done).is_ok()));
    let session = Session::open(watched).unwrap();
    let heard: Vec<f32> = receiver.iter().collect();
    assert!(heard.is_sorted() && heard.last() == Some(&1.0), "{heard:?}");
    assert!(session.info().ids.contains(&"llama-f16".to_owned()), "{:?}", session.info());
    assert_eq!(session.info().n_vocab, session.vocab().n_tokens());
}

/// A payload of one descriptor.
fn leaves(leaves: &[(&str, &[Token])]) -> String {
    let leaves: Vec<_> =
        leaves.iter().map(|(name, tokens)| serde_json::json!({"name": name, "tokens": tokens})).collect();
    serde_json::json!({"modelId": "", "descriptors": [{"path": "choice", "leaves": leaves}]}).to_string()
}

/// Mode 2 takes the leaf that scoring puts first, on every device; a leaf that begins others ends with a token that
/// makes none of those of it.
#[test]
fn the_most_probable_leaf_is_taken_as_a_whole() {
    for gpu_layers in [0, -1] {
        if gpu_layers != 0 && !testing::has_gpu() {
            return;
        }
        let engine = EngineOptions { kv_type: KvType::F32, threads: 1, gpu_layers, ..EngineOptions::default() };
        let path = testing::fixture(Kind::Llama, Weights::F32);
        let session = Session::open(OpenOptions { path, engine, ..OpenOptions::default() }).unwrap();
        // The end of the short one leaves hundreds of tokens, so it is far more probable than those that go on.
        let choice =
            leaves(&[("long", &[60, 61, 62]), ("short", &[60]), ("other", &[60, 90]), ("far", &[70, 61, 62, 63])]);
        session.set_trie(choice.as_bytes(), Mode::ScoreLeaves).unwrap();
        session.prefill(&PROMPT, 0).unwrap();
        let ranking = session.score_trie().unwrap();
        assert_eq!((ranking.path.as_str(), ranking.leaves.len()), ("choice", 4));
        assert!(ranking.leaves.is_sorted_by(|a, b| a.logprob >= b.logprob));
        let passes = session.usage().forward_passes;
        assert_eq!(session.score_trie().unwrap(), ranking);
        assert_eq!(session.usage().forward_passes - passes, 1, "four nodes with children are one pass");
        assert_eq!(ranking.leaves[0].name, "short");
        for temperature in [0.0, 3.0] {
            session.prefill(&PROMPT, 0).unwrap();
            let (tokens, _) = listen(&session, 4, temperature);
            assert_eq!(tokens[0], 60);
            assert!(tokens.len() == 4 && ![61, 90].contains(&tokens[1]), "{tokens:?}");
        }
        let mut settings = session.settings();
        settings.on_span_end = SpanEnd::Stop;
        session.configure(settings).unwrap();
        session.prefill(&PROMPT, 0).unwrap();
        assert_eq!(listen(&session, 9, 1.0).0, [60]);
        assert_eq!(session.status().finish_reason, FinishReason::Span);
        // Without it, a leaf of several tokens: none of them is sampled, all are evaluated together.
        session
            .set_trie(leaves(&[("far", &[70, 61, 62, 63]), ("near", &[71, 5])]).as_bytes(), Mode::ScoreLeaves)
            .unwrap();
        session.prefill(&PROMPT, 0).unwrap();
        let best = session.score_trie().unwrap().leaves[0].clone();
        let expected: &[Token] = if best.name == "far" { &[70, 61, 62, 63] } else { &[71, 5] };
        session.prefill(&PROMPT, 0).unwrap();
        assert_eq!(listen(&session, 9, 1.0).0, expected);
        let usage = session.usage();
        assert_eq!((usage.forced_tokens, usage.branching_steps), (expected.len() as u64, 0));
        // The run is not evaluated at all, but scoring was a pass; token by token it would have been all but the last.
        assert_eq!((usage.forward_passes, usage.forward_passes_saved), (2, expected.len() as u64 - 2));
    }
}

#[test]
fn leaves_are_scored_only_behind_a_prompt_and_with_a_trie() {
    let session = open(&testing::fixture(Kind::Llama, Weights::F32), 1);
    assert!(matches!(session.score_trie(), Err(Error::InvalidArgument(_))));
    session.set_trie(leaves(&[("a", &[5]), ("b", &[6])]).as_bytes(), Mode::Greedy).unwrap();
    assert!(matches!(session.score_trie(), Err(Error::Busy(_))));
    session.prefill(&PROMPT, 0).unwrap();
    let scores = session.score_trie().unwrap();
    // In mode 0 the greedy child is the most probable leaf here, each being one token.
    let token = if scores.leaves[0].name == "a" { 5 } else { 6 };
    assert_eq!(listen(&session, 1, 0.0).0, [token]);
    assert!(matches!(session.score_trie(), Err(Error::Busy(_))), "the prompt is used up");
}

#[test]
fn logits_between_a_prompt_and_its_generation_change_neither() {
    let session = open(&testing::fixture(Kind::Llama, Weights::F32), 2);
    let n_vocab = session.info().n_vocab;
    session.prefill(&PROMPT, 0).unwrap();
    let expected = listen(&session, 12, 0.0);
    let mut rows = vec![0.0; 4 * n_vocab];
    let busy = session.logits(4, &mut rows).unwrap_err();
    assert!(matches!(busy, Error::Busy(_)), "{busy}: a generate has used the prompt");
    session.prefill(&PROMPT, 0).unwrap();
    assert_eq!(session.logits(4, &mut []).unwrap(), 4 * n_vocab);
    assert_eq!(session.logits(4, &mut rows).unwrap(), 4 * n_vocab);
    assert!(session.status().prefilled);
    // The first token of the greedy generation is the best of the last row.
    let last = &rows[3 * n_vocab..];
    let best = (0..n_vocab).max_by(|&a, &b| last[a].total_cmp(&last[b])).unwrap();
    assert_eq!(expected.0[0], best as Token);
    assert_eq!(listen(&session, 12, 0.0), expected);
    let usage = session.usage();
    assert_eq!((usage.sampled_tokens, usage.completion_tokens), (12, 12));
    assert!(usage.sample_us > 0 && usage.sample_us < usage.decode_us, "{usage:?}");
    // After what was restored too, whose last tokens are evaluated first.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("slot");
    session.save_slot(0, &path).unwrap();
    let other = open(&testing::fixture(Kind::Llama, Weights::F32), 2);
    let held = other.restore_slot(1, &path).unwrap();
    let mut all = vec![0.0; held * n_vocab];
    assert_eq!(other.logits(held, &mut all).unwrap(), all.len());
    assert!(all[..(PROMPT.len()) * n_vocab].ends_with(last));
}

#[test]
fn logits_are_cancelled_and_refused_like_a_prompt() {
    let session = std::sync::Arc::new(open(&testing::fixture(Kind::Llama, Weights::F32), 1));
    let n_vocab = session.info().n_vocab;
    let prompt: Vec<Token> = (0..400).map(|i| 3 + i % 400).collect();
    session.prefill(&prompt, -1).unwrap();
    let mut row = vec![0.0; n_vocab];
    session.logits(1, &mut row).unwrap();
    let mut rows = vec![0.0; 400 * n_vocab];
    // Cancelled as soon as it works, which another thread sees by its status.
    let watcher = session.clone();
    let cancelling = thread::spawn(move || {
        while !watcher.status().busy {
            thread::yield_now();
        }
        let busy = watcher.logits(1, &mut vec![0.0; n_vocab]).unwrap_err();
        watcher.cancel();
        busy
    });
    let stopped = session.logits(400, &mut rows);
    let busy = cancelling.join().unwrap();
    assert!(matches!(busy, Error::Busy(_)) && matches!(stopped, Err(Error::Cancelled)), "{busy}, {stopped:?}");
    // Nothing was lost.
    let mut again = vec![0.0; n_vocab];
    session.logits(1, &mut again).unwrap();
    assert_eq!(again, row);
    let (inside, heard) = (std::sync::Arc::downgrade(&session), channel());
    session
        .generate(
            2,
            None,
            None,
            Sink::Callback(Box::new(move |event| {
                let session = inside.upgrade().unwrap();
                heard.0.send((event.done, session.logits(1, &mut vec![0.0; n_vocab]))).unwrap();
            })),
        )
        .unwrap();
    for (done, answer) in heard.1 {
        assert!(matches!(answer, Err(Error::Busy(_))), "{done}: {answer:?}");
    }
}
