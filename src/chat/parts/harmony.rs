//! Answers of gpt-oss: messages, each with a channel and maybe a recipient in its head.
//!
//! `<|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…<|return|>`, and for a call
//! `<|channel|>commentary to=functions.f <|constrain|>json<|message|>{…}<|call|>`
//! (<https://github.com/openai/harmony>).

use super::part::{Out, Part, ToolCall, Voice};
use serde_json::value::RawValue;

const START: &str = "<|start|>";
const CHANNEL: &str = "<|channel|>";
const MESSAGE: &str = "<|message|>";
/// What ends a message, and is dropped.
const ENDS: [&str; 3] = ["<|end|>", "<|return|>", "<|call|>"];
/// The longest head, and the longest call, in bytes.
const MAX_HEAD: usize = 4 << 10;
const MAX_CALL: usize = 16 << 20;

pub(super) struct Harmony {
    state: State,
    held: String,
    out: Out,
}

enum State {
    /// Between two messages.
    Head,
    Text,
    /// What is said to a tool, with the head before it.
    Call {
        name: String,
        head: String,
    },
}

impl Harmony {
    /// `prompt` is the text before the answer.
    pub(super) fn new(prompt: &str) -> Self {
        let mut harmony = Harmony { state: State::Head, held: String::new(), out: Out::new() };
        if let Some((_, head)) = prompt.rsplit_once(START) {
            harmony.push(head.strip_prefix("assistant").unwrap_or(head));
        }
        harmony
    }

    pub(super) fn push(&mut self, text: &str) -> Vec<Part> {
        self.held.push_str(text);
        while self.advance() {}
        self.out.take()
    }

    pub(super) fn finish(&mut self) -> Vec<Part> {
        let held = std::mem::take(&mut self.held);
        match std::mem::replace(&mut self.state, State::Head) {
            State::Call { name, head } => self.call(&name, &head, &held),
            State::Text => self.out.text(&held),
            // A head without a message says nothing.
            State::Head if held.starts_with(START) || held.starts_with(CHANNEL) => {}
            State::Head => self.out.text(&held),
        }
        self.out.finish();
        self.out.take()
    }

    fn advance(&mut self) -> bool {
        match self.state {
            State::Head => self.in_head(),
            State::Text => self.in_text(),
            State::Call { .. } => self.in_call(),
        }
    }

    fn in_head(&mut self) -> bool {
        if self.held.is_empty() {
            return false;
        }
        let message = self.held.find(MESSAGE);
        if !could_be_head(&self.held) || message.unwrap_or(self.held.len()) > MAX_HEAD {
            // A model that keeps to no channel answers.
            self.out.message(Voice::Answer);
            self.state = State::Text;
            // At least one character, which may look like a mark that begins a head.
            let first = self.held.chars().next().map_or(0, char::len_utf8);
            self.out.text(&self.held[..first]);
            self.held.drain(..first);
            return true;
        }
        let Some(at) = message else { return false };
        let head: String = self.held.drain(..at + MESSAGE.len()).collect();
        let word = |after: &str| {
            let rest = head.split_once(after).map(|(_, rest)| rest);
            rest.map(|rest| rest.split(|c: char| c.is_whitespace() || c == '<').next().unwrap_or_default().to_string())
        };
        let recipient = word("to=").filter(|to| !to.is_empty() && to != "user" && to != "assistant");
        self.state = match recipient {
            Some(to) => State::Call { name: to.strip_prefix("functions.").unwrap_or(&to).into(), head },
            None => {
                let thinks = word(CHANNEL).is_some_and(|channel| channel == "analysis");
                self.out.message(if thinks { Voice::Reasoning } else { Voice::Answer });
                State::Text
            }
        };
        true
    }

    /// The first mark after a message: its place, and its length where it is dropped.
    fn end_of_message(&self) -> Option<(usize, usize)> {
        let ends = ENDS.iter().map(|end| (*end, end.len())).chain([(START, 0), (CHANNEL, 0)]);
        ends.filter_map(|(mark, len)| Some((self.held.find(mark)?, len))).min()
    }

    fn in_text(&mut self) -> bool {
        let found = self.end_of_message();
        let end = found.map_or_else(
            || {
                // What may be the beginning of a mark waits.
                let at = self.held.rfind('<').unwrap_or(self.held.len());
                let tail = &self.held[at..];
                let waits = ENDS.iter().chain([&START, &CHANNEL]).any(|mark| mark.starts_with(tail));
                if waits { at } else { self.held.len() }
            },
            |(at, _)| at,
        );
        self.out.text(&self.held[..end]);
        self.held.drain(..end);
        let Some((_, dropped)) = found else { return false };
        self.held.drain(..dropped);
        self.state = State::Head;
        true
    }

    fn in_call(&mut self) -> bool {
        let found = self.end_of_message();
        if found.is_none() && self.held.len() <= MAX_CALL {
            return false;
        }
        let (end, dropped) = found.unwrap_or((self.held.len(), 0));
        let body: String = self.held.drain(..end).collect();
        self.held.drain(..dropped);
        if let State::Call { name, head } = std::mem::replace(&mut self.state, State::Head) {
            self.call(&name, &head, &body);
        }
        true
    }

    /// A call, or where its arguments are no object the text that it is.
    fn call(&mut self, name: &str, head: &str, body: &str) {
        let arguments = body.trim();
        if arguments.starts_with('{') && serde_json::from_str::<&RawValue>(arguments).is_ok() {
            let call = ToolCall { id: None, name: name.into(), arguments: arguments.into() };
            return self.out.calls(vec![call]);
        }
        self.out.message(Voice::Answer);
        self.out.text(&format!("{head}{body}"));
    }
}

/// Whether the text is, or may become, the head of a message.
fn could_be_head(text: &str) -> bool {
    let mut rest = text.trim_start();
    for skipped in [START, "assistant"] {
        if skipped.starts_with(rest) {
            return true;
        }
        rest = rest.strip_prefix(skipped).unwrap_or(rest).trim_start();
    }
    [CHANNEL, MESSAGE, "to="].iter().any(|mark| mark.starts_with(rest) || rest.starts_with(mark))
}
