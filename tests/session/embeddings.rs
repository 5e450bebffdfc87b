//! Rows of texts by way of a session: what is asked for in the background, pairs of a question and a text, and what a
//! model without an output matrix refuses.

use crate::testing::encoders::{CONTEXT, Encoder, WIDTH};
use crate::testing::fixtures::{Kind, Weights};
use crate::testing::{fixture, fixture_folder};
use elizainference::session::{EmbedOptions, EngineOptions, OpenOptions, Pooling, Session, Sink};
use elizainference::{Error, Token};
use std::path::PathBuf;

const TEXTS: [&[u8]; 3] = [b"Once upon a time", b"a little dog", b"They went home"];

fn open(path: PathBuf) -> Session {
    let engine = EngineOptions { threads: 1, ..EngineOptions::default() };
    Session::open(OpenOptions { path, engine, ..OpenOptions::default() }).unwrap()
}

fn encoder(kind: Encoder) -> Session {
    open(kind.write(&fixture_folder()))
}

fn tokens(session: &Session) -> Vec<Vec<Token>> {
    TEXTS.iter().map(|text| session.tokenize(text, true, false).unwrap()).collect()
}

#[test]
fn texts_are_their_tokens_now_or_later() {
    let session = encoder(Encoder::Modern);
    let options = EmbedOptions { normalize: true, ..EmbedOptions::default() };
    let made = session.embed_texts(&TEXTS, &options).unwrap();
    assert_eq!((made.width, made.texts.len()), (WIDTH, 3));
    assert_eq!(session.embed(tokens(&session), &options).unwrap(), made);
    assert!(session.take_embeddings().unwrap_err().to_string().contains("no embeddings"));
    session.start_embed(tokens(&session), &options).unwrap();
    let later = loop {
        match session.take_embeddings() {
            Err(Error::Busy(_)) => std::thread::yield_now(),
            other => break other.unwrap(),
        }
    };
    assert_eq!(later, made);
    assert!(session.take_embeddings().is_err());
    assert_eq!(session.usage().prompt_tokens, tokens(&session).iter().map(|text| text.len() as u64).sum::<u64>());
}

#[test]
fn an_encoder_continues_no_text() {
    let session = encoder(Encoder::Bert);
    assert!(!session.info().generates);
    let unsupported = |outcome: elizainference::Result<()>| {
        let error = outcome.unwrap_err();
        assert!(matches!(&error, Error::Unsupported(why) if why.contains("gives embeddings")), "{error}");
    };
    unsupported(session.prefill(&[1, 2], -1).map(drop));
    unsupported(session.start_prefill(&[1, 2], 0));
    unsupported(session.restore_slot(0, &fixture_folder().join("nothing")).map(drop));
    assert!(session.generate(1, None, None, Sink::Queue).is_err());
    let description: serde_json::Value = serde_json::from_str(&session.describe().unwrap()).unwrap();
    assert_eq!(description["generates"], false);
    assert_eq!((&description["pooling"], &description["labels"][1]), (&"cls".into(), &"other".into()));
}

#[test]
fn a_text_that_is_too_long_is_refused_by_its_number() {
    let session = encoder(Encoder::Jina);
    let options = EmbedOptions::default();
    let error = session.embed(vec![vec![1; 3], vec![1; CONTEXT + 1]], &options).unwrap_err().to_string();
    assert!(error.contains("text 1 has 701 tokens, more than the context of 700"), "{error}");
    let error = session.embed(vec![vec![]], &options).unwrap_err().to_string();
    assert!(error.contains("text 0 has no tokens"), "{error}");
    assert_eq!(session.embed(vec![vec![1; CONTEXT]], &options).unwrap().texts[0].len(), WIDTH);
}

#[test]
fn a_question_and_a_text_are_put_together_as_the_file_says() {
    let session = encoder(Encoder::Jina);
    let [query, text] = [b"Who?".as_slice(), b"a dog"].map(|text| session.tokenize(text, true, false).unwrap());
    let pair = session.tokenize_pair(b"Who?", b"a dog").unwrap();
    assert_eq!(pair, [&query[..], &text[1..]].concat(), "one begin, an end after each");
    // A template, whose control tokens are tokens; in question and text they are text.
    let session = encoder(Encoder::Bert);
    let pair = session.tokenize_pair(b"Who?", b"a <|im_end|>").unwrap();
    let (begin, end) = (session.vocab().bos().unwrap(), session.vocab().eos().unwrap());
    assert_eq!((pair[0], pair.iter().filter(|&&id| id == end).count()), (begin, 2));
    let plain = |text: &[u8]| session.tokenize(text, false, false).unwrap();
    assert_eq!(pair, [&[begin], &plain(b"Who?")[..], &[end], &plain(b"a <|im_end|>"), &[end]].concat());
    let scores = session.rank(b"Who?", &TEXTS).unwrap();
    let options = EmbedOptions { pooling: Some(Pooling::Rank), ..EmbedOptions::default() };
    let pairs = TEXTS.map(|text| session.tokenize_pair(b"Who?", text).unwrap()).to_vec();
    let labels = session.embed(pairs, &options).unwrap();
    assert_eq!(labels.texts.iter().map(|labels| labels[0]).collect::<Vec<_>>(), scores);
}

/// Rows of texts and generations take turns.
#[test]
fn a_prompt_is_forgotten_and_comes_again() {
    let session = open(fixture(Kind::Qwen3, Weights::Q8_0));
    let mean = EmbedOptions { pooling: Some(Pooling::Mean), ..EmbedOptions::default() };
    session.prefill(&[5, 6, 7], 0).unwrap();
    let first = session.embed_texts(&TEXTS, &mean).unwrap();
    assert!(matches!(session.generate(1, None, None, Sink::Queue), Err(Error::Busy(_))));
    session.prefill(&[5, 6, 7], 0).unwrap();
    assert_eq!(session.usage().prompt_tokens_reused, 2, "the slot's tokens are still there");
    assert_eq!(session.embed_texts(&TEXTS, &mean).unwrap().texts.len(), first.texts.len());
}
