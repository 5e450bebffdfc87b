//! Server-sent events (<https://html.spec.whatwg.org/multipage/server-sent-events.html>): the JSON of their data.

use super::errors::{Errors, code, message};
use crate::Result;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use ureq::BodyReader;

/// The most bytes of one event.
const MAX_EVENT: usize = 16 << 20;

/// The events of an answer. Dropped before its end, its connection is closed.
pub(super) struct Events {
    reader: BufReader<BodyReader<'static>>,
    line: Vec<u8>,
    data: Vec<u8>,
    /// An event that was looked at before it was asked for.
    first: Option<Value>,
    done: bool,
}

impl Events {
    pub fn new(body: BodyReader<'static>) -> Events {
        let reader = BufReader::new(body);
        Events { reader, line: Vec::new(), data: Vec::new(), first: None, done: false }
    }

    /// The status that the first event says, where it is an error.
    pub fn first_code(&mut self, errors: &Errors) -> Result<Option<u16>> {
        self.first = self.read(errors)?;
        let error = self.first.as_ref().filter(|event| has_error(event));
        Ok(error.and_then(code))
    }

    /// The next event; `None` after the one that says that there are no more.
    ///
    /// # Errors
    /// [`Error::Remote`](crate::Error::Remote) for an event that is an error, for what is no event, and where the
    /// connection ends before the events do; [`Error::Cancelled`](crate::Error::Cancelled).
    pub fn next(&mut self, errors: &Errors) -> Result<Option<Value>> {
        let event = match self.first.take() {
            Some(first) => Some(first),
            None => self.read(errors)?,
        };
        match event {
            Some(event) if has_error(&event) => Err(errors.refusal(code(&event).unwrap_or(200), &message(&event))),
            event => Ok(event),
        }
    }

    fn read(&mut self, errors: &Errors) -> Result<Option<Value>> {
        self.data.clear();
        while !self.done {
            let ended = !self.read_line(errors)?;
            let line = self.line.trim_ascii_end();
            if let Some(data) = line.strip_prefix(b"data:") {
                self.data.extend_from_slice(data.strip_prefix(b" ").unwrap_or(data));
                self.data.push(b'\n');
            }
            if !(line.is_empty() || ended) || self.data.is_empty() {
                if ended {
                    return Err(errors.problem("the connection ended before the answer did"));
                }
                continue;
            }
            let data = self.data.trim_ascii();
            if data == b"[DONE]" {
                self.done = true;
                break;
            }
            let malformed = |error| errors.problem(format!("an event is malformed JSON: {error}"));
            return serde_json::from_slice(data).map(Some).map_err(malformed);
        }
        Ok(None)
    }

    /// Reads a line; false at the end of the body.
    fn read_line(&mut self, errors: &Errors) -> Result<bool> {
        self.line.clear();
        loop {
            let read = self.reader.fill_buf().map_err(|error| errors.broken(&ureq::Error::from(error)))?;
            if read.is_empty() {
                return Ok(false);
            }
            let end = read.iter().position(|&byte| byte == b'\n');
            let taken = end.map_or(read.len(), |end| end + 1);
            self.line.extend_from_slice(&read[..taken]);
            self.reader.consume(taken);
            if self.line.len() + self.data.len() > MAX_EVENT {
                return Err(errors.problem(format!("an event has more than {MAX_EVENT} bytes")));
            }
            if end.is_some() {
                return Ok(true);
            }
        }
    }
}

fn has_error(event: &Value) -> bool {
    event.get("error").is_some_and(|error| !error.is_null())
}
