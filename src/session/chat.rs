//! Chats over a session: the prompt of messages, and an answer's parts.

use super::Session;
use super::describe::json;
use crate::chat::{ChatTemplate, Inputs, Part};
use crate::{Error, Result, Token};
use serde::Serialize;

/// The content of [`Session::chat_prompt_json`].
#[derive(Serialize)]
struct ChatPrompt {
    text: String,
    tokens: Vec<Token>,
}

impl Session {
    /// The model's chat template.
    ///
    /// # Errors
    /// Those of [`ChatTemplate::of_model`].
    pub fn chat_template(&self) -> Result<&ChatTemplate> {
        let template = self.chat.get_or_init(|| ChatTemplate::of_model(&self.file, &self.vocab));
        template.as_ref().map_err(Error::clone)
    }

    /// The prompt that the model's chat template makes of messages, as one JSON object: `text` and `tokens`.
    /// `inputs` is what [`Inputs::from_json`] reads; messages are adapted as [`ChatTemplate::prompt`] does.
    ///
    /// # Errors
    /// Those of [`ChatTemplate::of_model`], [`Inputs::from_json`], [`ChatTemplate::prompt`] and
    /// [`tokenize`](Session::tokenize).
    pub fn chat_prompt_json(&self, inputs: &str) -> Result<String> {
        let prompt = self.chat_template()?.prompt(&Inputs::from_json(inputs)?)?;
        let tokens = prompt.tokens(&self.vocab, &self.shared.cancelled_since_now())?;
        json(&ChatPrompt { text: prompt.text(), tokens })
    }

    /// Takes an answer apart: `text` is its next piece, of any size, and the result are the parts that it completes.
    /// `inputs` begins a new answer, the one to these inputs of [`chat_prompt_json`](Session::chat_prompt_json); `last`
    /// ends it and gives what was held back. Both may come with the same piece.
    ///
    /// Control tokens have to be spelled in the text, see [`Settings::special_text`](super::Settings::special_text).
    /// Legal at any time; a session reads one answer.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where no answer was begun; with `inputs` those of
    /// [`chat_prompt_json`](Session::chat_prompt_json). Nothing has changed then.
    pub fn chat_parts(&self, inputs: Option<&str>, text: &[u8], last: bool) -> Result<Vec<Part>> {
        let begun = inputs.map(|inputs| self.chat_template()?.parts(&Inputs::from_json(inputs)?)).transpose()?;
        let mut reading = self.parts.lock();
        if begun.is_some() {
            *reading = begun;
        }
        let none =
            || Error::InvalidArgument("there is no answer to take apart: give the inputs that it answers".into());
        let parts = reading.as_mut().ok_or_else(none)?;
        let mut found = parts.push(text);
        if last {
            found.extend(parts.finish());
            *reading = None;
        }
        Ok(found)
    }

    /// [`chat_parts`](Session::chat_parts) as a JSON array of objects: `type` (`answer`, `reasoning` or `tool_call`)
    /// with `text`, or with `name`, `arguments` (a JSON object as text) and where there is one `id`.
    ///
    /// # Errors
    /// As [`chat_parts`](Session::chat_parts).
    pub fn chat_parts_json(&self, inputs: Option<&str>, text: &[u8], last: bool) -> Result<String> {
        json(&self.chat_parts(inputs, text, last)?)
    }
}
