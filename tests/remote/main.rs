//! Models on servers: a server of our own behind real sockets, which answers as each kind of server does.
#![allow(clippy::unwrap_used)]

mod fake;
mod fallbacks;
mod faults;
mod model;
mod program;
mod real;
mod same;
#[path = "../testing/mod.rs"]
mod testing;
mod transport;

use elizainference::session::{Event, FinishReason, Key, OpenOptions, RemoteOptions, Session, Sink};
use elizainference::{Error, Result, Token};
use std::sync::mpsc::channel;
use std::time::Duration;

/// How a session on a server is opened here.
fn options(address: &str, key: Option<&str>) -> OpenOptions {
    let remote = RemoteOptions {
        vocab: Some(testing::demo()),
        key: Key::new(key),
        timeout: Some(Duration::from_secs(10)),
        ..RemoteOptions::default()
    };
    OpenOptions { path: address.into(), remote, ..OpenOptions::default() }
}

fn open(address: &str) -> Session {
    Session::open(options(address, None)).unwrap()
}

/// What a generation gave until its end.
#[derive(Debug, PartialEq)]
struct Said {
    tokens: Vec<Token>,
    text: String,
    reason: FinishReason,
}

fn say(session: &Session, prompt: &[Token], most: i32, temperature: f32) -> Result<Said> {
    session.prefill(prompt, -1)?;
    go_on(session, most, temperature)
}

fn go_on(session: &Session, most: i32, temperature: f32) -> Result<Said> {
    let (sender, receiver) = channel();
    let sink = Sink::Callback(Box::new(move |event: Event<'_>| {
        let _ = sender.send((event.token, event.text.to_owned()));
    }));
    session.generate(most, Some(temperature), Some(1.0), sink)?;
    let (mut tokens, mut text) = (Vec::new(), String::new());
    for (token, piece) in receiver.iter() {
        tokens.extend((token >= 0).then_some(token));
        text += &piece;
    }
    let status = session.status();
    status.error.map_or(Ok(Said { tokens, text, reason: status.finish_reason }), Err)
}

/// The text of a server's error.
fn problem<T>(outcome: Result<T>) -> String {
    match outcome {
        Err(error @ Error::Remote { .. }) => error.to_string(),
        Err(other) => panic!("{other:?} is no error of a server"),
        Ok(_) => panic!("it worked"),
    }
}
