//! Guessed tokens save passes and change nothing of what is said.

use crate::testing::fixtures::{Kind, Weights};
use crate::testing::{self, assistant};
use elizainference::gguf::File;
use elizainference::session::{
    ContextFull, EngineOptions, Event, FinishReason, Mode, OpenOptions, Session, Settings, Sink, Usage,
};
use elizainference::{Error, Token};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;

const GRAMMAR: &str = r#"{"gbnf":"root ::= [a-z ]+"}"#;
const TRIE: &str = r#"{"descriptors":[{"path":"p","leaves":[
    {"name":"a","tokens":[300,301,302]},{"name":"b","tokens":[300,301,303]},{"name":"c","tokens":[300,304]}]}]}"#;

fn open(kind: Kind, weights: Weights, draft: Option<PathBuf>) -> Session {
    open_beside(1, kind, weights, draft)
}

fn open_beside(parallel: u32, kind: Kind, weights: Weights, draft: Option<PathBuf>) -> Session {
    let path = testing::fixture(kind, weights);
    let engine = EngineOptions {
        context: 256,
        slots: if parallel > 1 { 1 } else { 2 },
        threads: 1,
        parallel,
        ..EngineOptions::default()
    };
    Session::open(OpenOptions { path, engine, draft, ..OpenOptions::default() }).unwrap()
}

/// A draft model that reads the hidden rows, keys and values of a model.
fn assistant_of(kind: Kind, weights: Weights) -> PathBuf {
    let file = File::open(testing::fixture(kind, weights)).unwrap();
    assistant::write(&testing::fixture_folder(), &file).0
}

/// Tokens, text, reason and counts of one generation.
type Said = (Vec<Token>, String, FinishReason, Usage);

/// After a prompt that has what is said several times.
fn said(session: &Session, settings: &Settings, most: i32, temperature: f32) -> Said {
    let turn: Vec<Token> = (0..20).map(|i| 300 + i * 7 % 50).collect();
    let prompt = [vec![1], turn.clone(), turn.clone(), turn].concat();
    generated(session, settings, &prompt, most, temperature)
}

fn generated(session: &Session, settings: &Settings, prompt: &[Token], most: i32, temperature: f32) -> Said {
    session.configure(settings.clone()).unwrap();
    session.prefill(prompt, -1).unwrap();
    let (sender, receiver) = channel();
    let sink = Sink::Callback(Box::new(move |event: Event<'_>| {
        let _ = sender.send((event.token, event.text.to_owned()));
    }));
    session.generate(most, Some(temperature), None, sink).unwrap();
    let (mut tokens, mut text) = (Vec::new(), String::new());
    for (token, piece) in receiver {
        text += &piece;
        tokens.push(token);
    }
    let usage = session.usage();
    (tokens, text, usage.finish_reason, usage)
}

#[test]
fn what_is_said_is_the_same_with_fewer_passes() {
    let (mut right, mut of_states, mut saved) = (0, 0, 0);
    let draft = |weights| Some(testing::fixture(Kind::Llama, weights));
    for (kind, parallel, draft) in [
        (Kind::Llama, 1, None),
        (Kind::Llama, 1, draft(Weights::Q8_0)),
        (Kind::Llama, 1, draft(Weights::Q4_0)),
        (Kind::Gemma3, 1, None),
        (Kind::Qwen35, 1, None),
        (Kind::Qwen35, 1, Some(testing::fixture(Kind::Qwen35, Weights::Q4_0))),
        // By its own block, and by one that reads what it keeps.
        (Kind::Qwen35, 1, Some(testing::fixture(Kind::Qwen35, Weights::Q8_0))),
        (Kind::Gemma3, 1, Some(assistant_of(Kind::Gemma3, Weights::Q8_0))),
        (Kind::Llama, 2, None),
        (Kind::Gemma3, 8, None),
        (Kind::Qwen35, 2, None),
    ] {
        let session = open_beside(parallel, kind, Weights::Q8_0, draft);
        for (case, temperature) in [0.0, 0.3, 1.0, 0.0, 0.0, 0.3, 0.0].into_iter().enumerate() {
            let mut settings = session.settings();
            settings.params.seed = Some(case as u64);
            settings.params.repeat_penalty = if case == 1 { 1.1 } else { 1.0 };
            settings.ignore_eos = true;
            settings.stop = if case == 3 { vec![b"e ".to_vec()] } else { Vec::new() };
            settings.on_context_full = if case == 6 { ContextFull::Shift { keep: 4 } } else { ContextFull::Stop };
            match case {
                4 => session.set_grammar(GRAMMAR.as_bytes()).unwrap(),
                5 => session.set_trie(TRIE.as_bytes(), Mode::Sampled).unwrap(),
                _ => session.clear_grammar().and_then(|()| session.clear_trie()).unwrap(),
            }
            // A generation that shifts has no end of its own.
            let shifts = case == 6;
            let most = if shifts { 400 } else { -1 };
            let plain = said(&session, &Settings { no_guessing: true, ..settings.clone() }, most, temperature);
            let guessed = said(&session, &Settings { no_guessing: false, ..settings }, most, temperature);
            assert_eq!((&guessed.0, &guessed.1, guessed.2), (&plain.0, &plain.1, plain.2), "{kind:?}, case {case}");
            assert_eq!((plain.3.drafted_tokens, plain.3.accepted_tokens), (0, 0));
            let usage = guessed.3;
            assert!(usage.accepted_tokens <= usage.drafted_tokens, "{usage:?}");
            assert_eq!((plain.3.context_shifts > 0, usage.context_shifts), (shifts, plain.3.context_shifts));
            if !shifts {
                let fewer = plain.3.forward_passes - usage.forward_passes;
                assert_eq!(fewer, usage.accepted_tokens, "{kind:?}, case {case}");
                right += usage.accepted_tokens;
                of_states += if kind == Kind::Qwen35 { usage.accepted_tokens } else { 0 };
                saved += usage.forward_passes_saved - plain.3.forward_passes_saved;
            }
        }
    }
    // Texts of random weights that are drawn greedily run in circles.
    assert!(right > 20 && saved == right, "{right} guesses were right, {saved} passes saved");
    assert!(of_states > 20, "{of_states} guesses were right where states are kept");
}

/// More guesses than a pass has room for, and chains and seeds of each stream.
#[test]
fn streams_that_share_an_engine_guess_beside_each_other() {
    for kind in [Kind::Llama, Kind::Gemma3, Kind::Qwen35] {
        let settings = |session: &Session, stream: u64| {
            let mut settings = Settings { ignore_eos: true, ..session.settings() };
            (settings.params.seed, settings.params.top_k) = (Some(stream), [0, 5][stream as usize % 2]);
            settings
        };
        let heat = |stream: u64| [0.0, 0.5][stream as usize / 2 % 2];
        let streams: Vec<_> = (0..6)
            .map(|stream| {
                std::thread::spawn(move || {
                    let session = open_beside(6, kind, Weights::Q8_0, None);
                    said(&session, &settings(&session, stream), 150, heat(stream))
                })
            })
            .collect();
        let alone = open(kind, Weights::Q8_0, None);
        let mut right = 0;
        for (stream, shared) in (0..).zip(streams) {
            let (tokens, text, reason, usage) = shared.join().unwrap();
            let plain = Settings { no_guessing: true, ..settings(&alone, stream) };
            let (said, said_text, said_reason, _) = said(&alone, &plain, 150, heat(stream));
            assert_eq!((tokens, text, reason), (said, said_text, said_reason), "{kind:?}: stream {stream}");
            right += usage.accepted_tokens;
        }
        assert!(right > 0, "{kind:?}: no guess of six streams was right");
    }
}

/// Also when a prompt in another slot came in between.
#[test]
fn a_draft_model_changes_nothing_from_prompt_to_prompt() {
    for (kind, draft) in [
        (Kind::Llama, testing::fixture(Kind::Llama, Weights::Q8_0)),
        (Kind::Qwen35, testing::fixture(Kind::Qwen35, Weights::Q8_0)),
        (Kind::Gemma3, assistant_of(Kind::Gemma3, Weights::Q8_0)),
    ] {
        let session = open(kind, Weights::Q8_0, Some(draft));
        for (prompt, temperature) in [(1, 0.0), (7, 1.0), (30, 0.0)] {
            let mut settings = Settings { ignore_eos: true, ..session.settings() };
            settings.params.seed = Some(3);
            let plain = said(&session, &Settings { no_guessing: true, ..settings.clone() }, 100, temperature);
            session.prefill(&(0..prompt).collect::<Vec<Token>>(), 1).unwrap();
            let guessed = said(&session, &settings, 100, temperature);
            assert_eq!((guessed.0, guessed.1, guessed.2), (plain.0, plain.1, plain.2));
            assert!(guessed.3.drafted_tokens > 0, "{:?}", guessed.3);
            assert!(kind != Kind::Llama || guessed.3.accepted_tokens > 0, "{:?}", guessed.3);
        }
    }
}

#[test]
fn a_draft_model_that_does_not_fit_is_refused() {
    let open = |kind, draft: PathBuf, parallel| {
        let engine = EngineOptions { context: 256, threads: 1, parallel, ..EngineOptions::default() };
        let path = testing::fixture(kind, Weights::Q8_0);
        Session::open(OpenOptions { path, engine, draft: Some(draft), ..OpenOptions::default() }).err().unwrap()
    };
    let refused = |kind, draft, parallel, named: &str| {
        let error = open(kind, draft, parallel);
        assert!(error.to_string().contains(named), "{error}");
        error
    };
    let fixture = |kind| testing::fixture(kind, Weights::Q8_0);
    assert!(matches!(refused(Kind::Llama, "/nonexistent/draft.gguf".into(), 1, "draft.gguf"), Error::Io { .. }));
    assert!(matches!(refused(Kind::Llama, fixture(Kind::Llama), 2, "parallel is 2"), Error::InvalidArgument(_)));
    // For models of other widths and vocabularies.
    let wide = assistant_of(Kind::Gemma3, Weights::WideF32);
    assert!(matches!(refused(Kind::Gemma3, wide.clone(), 1, "assistant-256.gguf"), Error::InvalidArgument(_)));
    assert!(matches!(refused(Kind::Llama, wide, 1, "another vocabulary"), Error::InvalidArgument(_)));
}

/// The demo model in another vocabulary: two words have each other's number.
fn renumbered(folder: &Path) -> PathBuf {
    let mut model = fs::read(testing::demo()).unwrap();
    let spelled = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    let words = ["Ġgym", "Ġnot"].map(spelled);
    let places = words.each_ref().map(|word| model.windows(word.len()).position(|window| window == word).unwrap());
    for (place, word) in places.into_iter().zip(words.iter().rev()) {
        model[place..][..word.len()].copy_from_slice(word);
    }
    let path = folder.join("renumbered.gguf");
    fs::write(&path, model).unwrap();
    path
}

/// Its tokens are other ones, its text is a guess all the same.
#[test]
fn a_draft_model_of_another_vocabulary_guesses_by_text() {
    let open = |path: PathBuf, draft: PathBuf| {
        let engine = EngineOptions { context: 256, threads: 1, ..EngineOptions::default() };
        Session::open(OpenOptions { path, engine, draft: Some(draft), ..OpenOptions::default() }).unwrap()
    };
    let fixture = || testing::fixture(Kind::Llama, Weights::Q8_0);
    let folder = tempfile::tempdir().unwrap();
    let renumbered = renumbered(folder.path());
    for (path, draft, alike) in
        [(testing::demo(), renumbered, true), (testing::demo(), fixture(), false), (fixture(), testing::demo(), false)]
    {
        let session = open(path, draft);
        let mut drafted = 0;
        for (prompt, temperature) in [("User: what is the weather", 0.0), ("User: play", 0.8), ("Zeichen ž≠🙂", 0.0)]
        {
            let mut settings = Settings { ignore_eos: true, ..session.settings() };
            settings.params.seed = Some(3);
            let said = |no_guessing| {
                let prompt = session.tokenize(prompt.as_bytes(), true, true).unwrap();
                generated(&session, &Settings { no_guessing, ..settings.clone() }, &prompt, 100, temperature)
            };
            let (plain, guessed) = (said(true), said(false));
            assert_eq!((guessed.0, guessed.1, guessed.2), (plain.0, plain.1, plain.2));
            assert_eq!(plain.3.forward_passes - guessed.3.forward_passes, guessed.3.accepted_tokens);
            // What is drawn repeats next to nothing: the text alone guesses two of these tokens.
            let right = guessed.3.accepted_tokens;
            assert!(!alike || temperature == 0.0 || right > 10, "{right} guesses were right");
            drafted += guessed.3.drafted_tokens;
        }
        assert!(drafted > 0);
    }
}
