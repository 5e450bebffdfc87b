//! What an answer is made of, and how text becomes parts.

use serde::Serialize;

/// A part of an answer. Texts come in pieces: neighbours of one type belong together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Part {
    /// What the user is to read.
    Answer {
        /// The next piece of it.
        text: String,
    },
    /// What the model thinks before it answers.
    Reasoning {
        /// The next piece of it.
        text: String,
    },
    /// A function that the model calls, whole.
    ToolCall(ToolCall),
}

/// A call of a function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ToolCall {
    /// What the model calls this call, in the families whose models do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The function's name.
    pub name: String,
    /// Its arguments, a JSON object as text.
    pub arguments: String,
}

/// Whose text it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Voice {
    Answer,
    Reasoning,
}

/// The parts that are complete. White space beside a mark belongs to no part.
pub(super) struct Out {
    parts: Vec<Part>,
    voice: Voice,
    /// White space after the text so far, which may be beside a mark.
    space: String,
    /// A mark came last: white space is dropped.
    after_mark: bool,
    /// No text came since the beginning or the last call.
    nothing_said: bool,
}

impl Out {
    pub(super) fn new() -> Self {
        Out { parts: Vec::new(), voice: Voice::Answer, space: String::new(), after_mark: false, nothing_said: true }
    }

    /// More text of whoever speaks.
    pub(super) fn text(&mut self, text: &str) {
        let text = if self.after_mark { text.trim_start() } else { text };
        let said = text.trim_end();
        if !said.is_empty() {
            self.after_mark = false;
            self.nothing_said = false;
            let mut whole = std::mem::take(&mut self.space);
            whole.push_str(said);
            self.say(whole);
        }
        self.space.push_str(&text[said.len()..]);
    }

    fn say(&mut self, more: String) {
        match (self.parts.last_mut(), self.voice) {
            (Some(Part::Answer { text }), Voice::Answer) | (Some(Part::Reasoning { text }), Voice::Reasoning) => {
                text.push_str(&more);
            }
            (_, Voice::Answer) => self.parts.push(Part::Answer { text: more }),
            (_, Voice::Reasoning) => self.parts.push(Part::Reasoning { text: more }),
        }
    }

    /// A mark, after which `voice` speaks.
    pub(super) fn mark(&mut self, voice: Voice) {
        self.space.clear();
        self.after_mark = true;
        self.voice = voice;
    }

    /// A mark between two messages; where both are of one voice, their texts are paragraphs.
    pub(super) fn message(&mut self, voice: Voice) {
        let goes_on = voice == self.voice && !self.nothing_said;
        self.mark(voice);
        if goes_on {
            self.space.push_str("\n\n");
        }
    }

    /// Calls.
    pub(super) fn calls(&mut self, calls: Vec<ToolCall>) {
        self.mark(Voice::Answer);
        self.nothing_said = true;
        self.parts.extend(calls.into_iter().map(Part::ToolCall));
    }

    /// The text is over: white space that no mark followed is a part of it.
    pub(super) fn finish(&mut self) {
        let space = std::mem::take(&mut self.space);
        if !space.is_empty() && !self.after_mark {
            self.say(space);
        }
    }

    pub(super) fn after_mark(&self) -> bool {
        self.after_mark
    }

    pub(super) fn nothing_said(&self) -> bool {
        self.nothing_said
    }

    /// What came since the last time.
    pub(super) fn take(&mut self) -> Vec<Part> {
        std::mem::take(&mut self.parts)
    }
}
