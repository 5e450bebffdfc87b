//! The parts of an answer: what the user is to read, what the model thought, which functions it calls.
//!
//! Every family of models sets them off in its own way, which its template shows. [`Parts`] reads the text of an answer
//! as it comes, in pieces of any size, and gives the parts that are complete; the pieces' borders change nothing. What
//! looks like a call and is none stays text: nothing is lost.

mod blocks;
mod calls;
mod harmony;
mod json;
mod loose;
mod marks;
mod part;
#[cfg(test)]
mod tests;
mod tools;

pub(super) use marks::Family;
pub use part::{Part, ToolCall};

use crate::utf8;
use blocks::Blocks;
use harmony::Harmony;
use minijinja::Value;
use tools::Tools;

/// Reads the text of one answer. Control tokens have to be spelled in it: a session's setting `special_text` does that.
pub struct Parts {
    form: Form,
    /// Bytes that are no text yet: the beginning of a character.
    raw: Vec<u8>,
}

enum Form {
    Blocks(Box<Blocks>),
    Harmony(Harmony),
}

impl Parts {
    /// `prompt` is the text before the answer, `answer_start` what was given of the answer. Of that no part tells, but
    /// for a call that it begins.
    pub(super) fn new(family: &Family, tools: Option<&Value>, prompt: &str, answer_start: &str) -> Self {
        let form = match family.harmony {
            true => Form::Harmony(Harmony::new(prompt)),
            false => Form::Blocks(Box::new(Blocks::new(family, Tools::of(tools), prompt))),
        };
        let mut parts = Parts { form, raw: Vec::new() };
        parts.push(answer_start.as_bytes());
        parts
    }

    /// Reads a piece of the text and gives the parts that it completes.
    pub fn push(&mut self, text: &[u8]) -> Vec<Part> {
        self.read(text, false)
    }

    /// The text is over: gives what was held back.
    pub fn finish(&mut self) -> Vec<Part> {
        let mut parts = self.read(&[], true);
        let rest = match &mut self.form {
            Form::Blocks(blocks) => blocks.finish(),
            Form::Harmony(harmony) => harmony.finish(),
        };
        parts.extend(rest);
        parts
    }

    fn read(&mut self, bytes: &[u8], last: bool) -> Vec<Part> {
        self.raw.extend_from_slice(bytes);
        let mut text = String::new();
        utf8::assemble(&mut self.raw, last, &mut text);
        match &mut self.form {
            Form::Blocks(blocks) => blocks.push(&text),
            Form::Harmony(harmony) => harmony.push(&text),
        }
    }
}
