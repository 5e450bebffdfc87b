//! What errors of a server say: its address, its own text, and no secret.

use super::Key;
use super::watch::Watch;
use crate::Error;
use crate::gguf::shown;
use serde_json::Value;
use std::time::Duration;

/// For a connection, its encryption included.
pub(super) const CONNECT: Duration = Duration::from_secs(5);

/// What is said of one server, and what is not.
#[derive(Debug)]
pub(super) struct Errors {
    server: String,
    key: Key,
    watch: Watch,
}

impl Errors {
    pub fn new(server: String, key: Key, watch: Watch) -> Errors {
        Errors { server, key, watch }
    }

    pub fn key(&self) -> &Key {
        &self.key
    }

    pub fn watch(&self) -> &Watch {
        &self.watch
    }

    /// An error of this server.
    pub fn problem(&self, problem: impl AsRef<str>) -> Error {
        let problem = self.key.remove_from(problem.as_ref());
        Error::Remote { server: self.server.clone(), problem }
    }

    /// What a connection's error is to who asked.
    pub fn broken(&self, error: &ureq::Error) -> Error {
        if self.watch.is_cancelled() {
            return Error::Cancelled;
        }
        let silence = self.watch.silence().as_secs_f64();
        match error {
            ureq::Error::Timeout(ureq::Timeout::Connect) => {
                self.problem(format!("no connection within {} s", CONNECT.as_secs()))
            }
            ureq::Error::Timeout(_) => self.problem(format!("the server was silent for {silence} s")),
            ureq::Error::Io(error) => self.problem(format!("the connection failed: {error}")),
            other => self.problem(format!("the connection failed: {other}")),
        }
    }

    /// The error that an answer stands for, `code` as its status.
    pub fn refusal(&self, code: u16, text: &str) -> Error {
        let text = match text.trim() {
            "" => "no reason given".into(),
            text => shown_long(text),
        };
        let what = match code {
            401 | 403 => "the server refused the key, or that there is none",
            404 => "the server does not know this model or path",
            429 => "the server has had too many requests",
            500..=599 => "the server failed",
            300..=399 => "the server sends to another address, which is not followed",
            _ => "the server refused the request",
        };
        self.problem(format!("{what} ({code}): {text}"))
    }
}

/// The text of an error in any of the shapes that servers give it.
pub(super) fn message(value: &Value) -> String {
    let places = ["/error/message", "/error", "/detail", "/message", "/object/message"];
    let found = places.iter().find_map(|place| value.pointer(place)?.as_str());
    found.map_or_else(|| value.to_string(), str::to_owned)
}

/// The status that an error says for itself.
pub(super) fn code(value: &Value) -> Option<u16> {
    let code = value.pointer("/error/code")?;
    code.as_u64().or_else(|| code.as_str()?.parse().ok()).and_then(|code| u16::try_from(code).ok())
}

/// A server's text for a message, which may be longer than a name.
fn shown_long(text: &str) -> String {
    let mut chars = text.chars();
    let mut out = String::new();
    while !chars.as_str().is_empty() && out.len() < 1000 {
        let part: String = chars.by_ref().take(80).collect();
        out.push_str(&shown(&part));
    }
    if !chars.as_str().is_empty() {
        out.push('…');
    }
    out
}
