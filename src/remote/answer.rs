//! The tokens of a completion as they arrive.

use super::client::Client;
use super::dialect::Dialect;
use super::events::Events;
use crate::{Result, Token};
use serde_json::Value;
use std::collections::VecDeque;
use std::sync::Arc;

/// A part of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// A token.
    Token(Token),
    /// Text whose tokens the server does not tell.
    Text(String),
    /// The end, by the server's limit of tokens or not.
    End {
        /// Whether that limit ended it.
        by_length: bool,
    },
}

/// An answer that is being generated. Dropped before its end, it is cancelled.
pub struct Answer {
    client: Arc<Client>,
    dialect: &'static Dialect,
    /// `None` once it has ended.
    events: Option<Events>,
    ready: VecDeque<Part>,
    end: Part,
    /// Whether only the texts of events are taken.
    as_text: bool,
    /// Tokens and bytes of text so far, where events repeat them.
    seen: (usize, usize),
    cached: Option<u64>,
}

impl Answer {
    pub(super) fn new(client: Arc<Client>, events: Events, as_text: bool) -> Answer {
        let dialect = client.address().dialect;
        let end = Part::End { by_length: false };
        Answer {
            client,
            dialect,
            events: Some(events),
            ready: VecDeque::new(),
            end,
            as_text,
            seen: (0, 0),
            cached: None,
        }
    }

    /// How many tokens of the prompt the server still had, where it said so.
    pub fn cached(&self) -> Option<u64> {
        self.cached
    }

    /// The next part; after the end always the end.
    ///
    /// # Errors
    /// [`Error::Remote`](crate::Error::Remote) where the server fails, is silent for too long or answers what cannot be
    /// read; [`Error::Cancelled`](crate::Error::Cancelled).
    pub fn part(&mut self) -> Result<Part> {
        loop {
            if let Some(part) = self.ready.pop_front() {
                return Ok(part);
            }
            let Some(events) = &mut self.events else { return Ok(self.end.clone()) };
            match events.next(self.client.errors())? {
                Some(event) => self.read(&event)?,
                None => return Err(self.client.errors().problem("the answer ended without a reason")),
            }
        }
    }

    /// Waits for the end of an answer that needs no more of it, so that its connection can be used again.
    pub fn end(mut self) {
        while self.part().is_ok_and(|part| !matches!(part, Part::End { .. })) {}
    }

    fn read(&mut self, event: &Value) -> Result<()> {
        let places = &self.dialect.event;
        self.cached = event.pointer(places.cached).and_then(Value::as_u64).or(self.cached);
        let text = event.pointer(places.text).and_then(Value::as_str).unwrap_or_default();
        let known = places.tokens.filter(|_| !self.as_text);
        let tokens = known.and_then(|place| event.pointer(place)).and_then(Value::as_array);
        match (known, tokens) {
            (Some(_), Some(tokens)) => {
                for token in tokens.iter().skip(if places.cumulative { self.seen.0 } else { 0 }) {
                    let id = token.as_i64().and_then(|id| Token::try_from(id).ok());
                    let id = id.ok_or_else(|| self.client.errors().problem(format!("{token} is no token id")))?;
                    self.ready.push_back(Part::Token(id));
                }
                self.seen.0 = tokens.len();
            }
            (Some(_), None) if !text.is_empty() => {
                let problem = "the server sends text without token ids: it is another kind, or too old";
                return Err(self.client.errors().problem(problem));
            }
            (Some(_), None) => {}
            (None, _) => {
                let new = text.get(if places.cumulative { self.seen.1 } else { 0 }..).unwrap_or_default();
                if !new.is_empty() {
                    self.ready.push_back(Part::Text(new.to_owned()));
                }
                self.seen.1 = text.len();
            }
        }
        let reason = event.pointer(places.finish).and_then(Value::as_str).filter(|&reason| reason != "none");
        match reason {
            None => Ok(()),
            Some("abort" | "error") => {
                let text = event.pointer("/meta_info/finish_reason/message").and_then(Value::as_str);
                Err(self
                    .client
                    .errors()
                    .problem(format!("the server gave the answer up: {}", text.unwrap_or("no reason given"))))
            }
            Some(reason) => {
                self.end = Part::End { by_length: reason == places.length };
                self.finish();
                Ok(())
            }
        }
    }

    /// Reads what follows the end, so that the connection can be used again.
    fn finish(&mut self) {
        let Some(mut events) = self.events.take() else { return };
        // The answer is there whatever comes after it.
        while let Ok(Some(event)) = events.next(self.client.errors()) {
            self.cached = event.pointer(self.dialect.event.cached).and_then(Value::as_u64).or(self.cached);
        }
    }
}
