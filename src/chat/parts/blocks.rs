//! Answers in which pairs of marks set off reasoning and calls.

use super::calls::calls_of;
use super::json::JsonScan;
use super::marks::{Begins, Family, Mark};
use super::part::{Out, Part, ToolCall, Voice};
use super::tools::Tools;

/// The longest call, in bytes; what is longer is text.
const MAX_CALL: usize = 16 << 20;

pub(super) struct Blocks {
    marks: Vec<&'static Mark>,
    /// An answer that is a JSON object may be a call.
    bare_calls: bool,
    tools: Tools,
    state: State,
    /// Text that is not decided yet; in a call all of it, with its opening mark.
    held: String,
    out: Out,
}

enum State {
    Answer,
    Reasoning(&'static Mark),
    Calls(Calls),
}

struct Calls {
    /// `None` where the answer is the call.
    mark: Option<&'static Mark>,
    /// From where the closing mark is looked for.
    searched: usize,
    /// The scan of a call that ends with its JSON, once that has begun.
    scan: Option<JsonScan>,
}

impl Blocks {
    /// `prompt` is the text before the answer.
    pub(super) fn new(family: &Family, tools: Tools, prompt: &str) -> Self {
        let mut blocks = Blocks {
            marks: family.marks.clone(),
            bare_calls: family.bare_calls && !tools.is_empty(),
            tools,
            state: State::Answer,
            held: String::new(),
            out: Out::new(),
        };
        if let Some(mark) = family.open_reasoning(prompt) {
            blocks.out.mark(Voice::Reasoning);
            blocks.state = State::Reasoning(mark);
        }
        blocks
    }

    pub(super) fn push(&mut self, text: &str) -> Vec<Part> {
        self.held.push_str(text);
        while self.advance() {}
        self.out.take()
    }

    pub(super) fn finish(&mut self) -> Vec<Part> {
        loop {
            let held = std::mem::take(&mut self.held);
            let State::Calls(calls) = &self.state else {
                self.out.text(&held);
                break;
            };
            let open = calls.mark.map_or(0, |mark| mark.open.len());
            match self.read(calls.mark, &held[open..]) {
                Some(calls) => self.out.calls(calls),
                // After what looked like a call there may be one.
                None => {
                    self.held = held;
                    self.give_up(open.max(1));
                    while self.advance() {}
                    continue;
                }
            }
            break;
        }
        self.out.finish();
        self.out.take()
    }

    /// The calls between two marks; where the answer itself is one, those of tools that there are.
    fn read(&self, mark: Option<&'static Mark>, text: &str) -> Option<Vec<ToolCall>> {
        let open = mark.map_or("", |mark| mark.open);
        // This mark is a part of what it begins.
        let calls = match open {
            "<function=" => calls_of(&format!("{open}{text}"), &self.tools),
            _ => calls_of(text, &self.tools),
        }?;
        (mark.is_some() || calls.iter().all(|call| self.tools.knows(&call.name))).then_some(calls)
    }

    /// Decides what can be decided; whether there may be more.
    fn advance(&mut self) -> bool {
        match self.state {
            State::Answer => self.in_answer(),
            State::Reasoning(mark) => self.in_reasoning(mark),
            State::Calls(_) => self.in_calls(),
        }
    }

    fn in_answer(&mut self) -> bool {
        if self.bare_calls && self.out.nothing_said() {
            // Some models put semicolons between calls.
            let between = self.out.after_mark();
            let begun = self.held.trim_start_matches(|c: char| c.is_whitespace() || (between && c == ';'));
            match begun.chars().next() {
                None => return false,
                Some('{') => {
                    let space = self.held.len() - begun.len();
                    if !between {
                        self.out.text(&self.held[..space]);
                    }
                    self.held.drain(..space);
                    self.state = State::Calls(Calls { mark: None, searched: 0, scan: None });
                    return true;
                }
                Some(_) => {}
            }
        }
        let found = self.marks.iter().filter_map(|mark| Some((self.held.find(mark.open)?, *mark)));
        let Some((at, mark)) = found.min_by_key(|(at, mark)| (*at, usize::MAX - mark.open.len())) else {
            let undecided = self.marks.iter().map(|mark| beginning(&self.held, mark.open)).max().unwrap_or(0);
            self.say(self.held.len() - undecided);
            return false;
        };
        self.say(at);
        match mark.begins {
            Begins::Reasoning => {
                self.held.drain(..mark.open.len());
                self.out.mark(Voice::Reasoning);
                self.state = State::Reasoning(mark);
            }
            Begins::Nothing => {
                self.held.drain(..mark.open.len());
                self.out.mark(Voice::Answer);
            }
            Begins::Calls => {
                let searched = mark.open.len();
                self.state = State::Calls(Calls { mark: Some(mark), searched, scan: None });
            }
        }
        true
    }

    fn in_reasoning(&mut self, mark: &'static Mark) -> bool {
        let Some(at) = self.held.find(mark.close) else {
            self.say(self.held.len() - beginning(&self.held, mark.close));
            return false;
        };
        self.say(at);
        self.held.drain(..mark.close.len());
        self.out.mark(Voice::Answer);
        self.state = State::Answer;
        true
    }

    fn in_calls(&mut self) -> bool {
        let State::Calls(calls) = &mut self.state else { return false };
        let (mark, open) = (calls.mark, calls.mark.map_or(0, |mark| mark.open.len()));
        let close = mark.map_or("", |mark| mark.close);
        let end = if close.is_empty() {
            if calls.scan.is_none() {
                calls.scan = json_begins(&self.held, open).map(JsonScan::from);
            }
            calls.scan.as_mut().and_then(|scan| scan.end(&self.held)).map(|end| (end, end))
        } else {
            let found = self.held[calls.searched..].find(close).map(|at| at + calls.searched);
            if found.is_none() {
                let from = self.held.len().saturating_sub(close.len()).max(calls.searched);
                calls.searched = (0..=from).rev().find(|&at| self.held.is_char_boundary(at)).unwrap_or(0);
            }
            found.map(|at| (at, at + close.len()))
        };
        let Some((body_end, end)) = end else {
            if self.held.len() > MAX_CALL {
                self.give_up(open.max(1));
                return true;
            }
            return false;
        };
        let body = &self.held[open..body_end];
        match self.read(mark, body) {
            Some(read) => {
                self.out.calls(read);
                self.held.drain(..end);
                self.state = State::Answer;
            }
            None if !close.is_empty() && ends_in_string(body) => {
                // The closing mark is a part of an argument.
                if let State::Calls(calls) = &mut self.state {
                    calls.searched = end;
                }
            }
            None => self.give_up(end),
        }
        true
    }

    /// What looked like a call is text, up to here.
    fn give_up(&mut self, end: usize) {
        self.say(end);
        self.state = State::Answer;
    }

    /// The held text up to here is whoever's it is.
    fn say(&mut self, end: usize) {
        self.out.text(&self.held[..end]);
        self.held.drain(..end);
    }
}

/// How many bytes at the end of the text are the beginning of the mark, and not all of it.
fn beginning(text: &str, mark: &str) -> usize {
    let longest = text.len().min(mark.len().saturating_sub(1));
    let starts = |n: &usize| text.is_char_boundary(text.len() - n) && mark.starts_with(&text[text.len() - n..]);
    (1..=longest).rev().find(starts).unwrap_or(0)
}

/// The longest name and id of a call before `[ARGS]`, in bytes.
const MAX_NAME: usize = 1024;

/// Where the JSON of a call begins: at once, or after `[ARGS]`.
fn json_begins(held: &str, open: usize) -> Option<usize> {
    let body = &held[open..];
    let begun = body.trim_start();
    let at = match begun.starts_with(['{', '[']) && !begun.starts_with("[ARGS]") && !begun.starts_with("[CALL_ID]") {
        true => body,
        false => &body[body.as_bytes()[..body.len().min(MAX_NAME)].windows(6).position(|w| w == b"[ARGS]")? + 6..],
    };
    let at = at.trim_start();
    at.starts_with(['{', '[']).then(|| held.len() - at.len())
}

/// Whether a text that is JSON, as far as it goes, ends within a string.
fn ends_in_string(text: &str) -> bool {
    let mut scan = JsonScan::default();
    text.trim_start().starts_with(['{', '[']) && scan.end(text).is_none() && scan.in_string()
}
