//! Chat templates: from messages to a prompt; and the parts of an answer.
//!
//! A file's template (`tokenizer.chat_template`) is a Jinja text made for Python's `transformers`. It is run by
//! minijinja with that library's settings, functions and ways of writing values, so that its output is the one that the
//! model was trained on, byte for byte. A template comes with a downloaded file: its time, its memory and its depth are
//! bounded.
//!
//! What a host passes is text, whatever it spells: a message that contains `<|im_end|>` ends no turn, because only the
//! template's own special tokens become special tokens ([`Prompt::tokens`]).

mod builtins;
mod clock;
mod dialect;
mod families;
mod inputs;
mod messages;
mod operators;
mod parts;
mod python;
mod roles;
mod user_text;

pub use clock::Now;
use inputs::ANSWER_START;
pub use inputs::Inputs;
pub use parts::{Part, Parts, ToolCall};

use crate::gguf::File;
use crate::vocab::Vocab;
use crate::{Error, Result, Token};
use messages::Abilities;
use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, ErrorKind, Value};
use parts::Family;
use std::sync::OnceLock;
use user_text::ControlTexts;

/// The longest template.
const MAX_SOURCE: usize = 1 << 20;
/// Instructions, or 64 bytes of data, of a rendering, as minijinja counts them: at most 256 MB, half a second. A turn
/// takes a few hundred.
const FUEL: u64 = 4_000_000;
/// How deep macros call each other. Each takes a few KiB of the caller's stack.
const MAX_RECURSION: usize = 64;
/// The key of the default template.
const KEY: &str = "tokenizer.chat_template";
const DEFAULT: &str = "default";
/// The named template for conversations with tools.
const TOOL_USE: &str = "tool_use";

/// The chat templates of a model.
pub struct ChatTemplate {
    env: Environment<'static>,
    bos_token: String,
    eos_token: String,
    controls: ControlTexts,
    family: Family,
    abilities: OnceLock<Abilities>,
}

/// A rendered prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// The text, with a mark inside whatever the host's texts spell like a control token.
    marked: String,
    mark: char,
    /// Where the answer begins whose first text was given; the end where none was.
    answer_at: usize,
    bos_token: String,
    eos_token: String,
}

impl Prompt {
    /// The prompt as text.
    pub fn text(&self) -> String {
        self.unmarked(&self.marked)
    }

    fn unmarked(&self, text: &str) -> String {
        text.replace(self.mark, "")
    }

    /// The prompt as tokens. The template's special tokens are tokens; what the host's texts spell stays text. Where
    /// the vocabulary adds a begin- or end-of-text token, the template's own is not doubled.
    ///
    /// # Errors
    /// As [`Vocab::tokenize_unless`].
    pub fn tokens(&self, vocab: &Vocab, cancelled: &dyn Fn() -> bool) -> Result<Vec<Token>> {
        let mut text = self.marked.as_str();
        if vocab.add_bos() && !self.bos_token.is_empty() {
            text = text.strip_prefix(&self.bos_token).unwrap_or(text);
        }
        if vocab.add_eos() && !self.eos_token.is_empty() {
            text = text.strip_suffix(&self.eos_token).unwrap_or(text);
        }
        vocab.tokenize_marked(text, self.mark, cancelled)
    }
}

impl ChatTemplate {
    /// A template by its text. `bos_token` and `eos_token` are what the variables of these names hold.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] naming the line where the text is no template, or a text of more than 1 MiB.
    pub fn new(source: &str, bos_token: &str, eos_token: &str) -> Result<Self> {
        Self::with(&[(DEFAULT, source)], bos_token, eos_token, ControlTexts::default(), &|_| false)
    }

    /// The templates of a file. Without one, the form of a family of models that the vocabulary's tokens tell.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the file has no template and its family is not known; [`Error::InvalidArgument`]
    /// where a template is broken.
    pub fn of_model(file: &File, vocab: &Vocab) -> Result<Self> {
        let mut sources: Vec<(&str, &str)> = Vec::new();
        let named = format!("{KEY}.{TOOL_USE}");
        let (default, tools) = (file.get::<String>(KEY)?, file.get::<String>(&named)?);
        sources.extend(default.as_deref().map(|text| (DEFAULT, text)));
        sources.extend(tools.as_deref().map(|text| (TOOL_USE, text)));
        if default.is_none() {
            match families::of(vocab) {
                Some(text) => sources.push((DEFAULT, text)),
                None if tools.is_none() => {
                    let problem = format!(
                        "chat: the file has no `{KEY}`, and its tokens are of no family whose form is known; \
                         give a template, or tokenize the prompt yourself"
                    );
                    return Err(Error::Unsupported(problem));
                }
                None => {}
            }
        }
        let text = |id: Option<Token>| id.and_then(|id| vocab.token_text(id)).unwrap_or_default();
        let is_token =
            |text: &str| vocab.tokenize_inside(text.as_bytes(), true, &|| false).is_ok_and(|tokens| tokens.len() == 1);
        Self::with(&sources, text(vocab.bos()), text(vocab.eos()), ControlTexts::of(vocab), &is_token)
    }

    fn with(
        sources: &[(&str, &str)],
        bos_token: &str,
        eos_token: &str,
        controls: ControlTexts,
        is_token: &dyn Fn(&str) -> bool,
    ) -> Result<Self> {
        let mut env = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        env.set_syntax(syntax.map_err(|e| Error::Internal(format!("chat template: {e}")))?);
        env.set_fuel(Some(FUEL));
        env.set_recursion_limit(MAX_RECURSION);
        builtins::register(&mut env);
        for (name, source) in sources {
            if source.len() > MAX_SOURCE {
                return Err(fault(format!("{} bytes; at most {MAX_SOURCE} are read", source.len())));
            }
            let source = dialect::translate(source).map_err(fault)?;
            env.add_template_owned(name.to_string(), source).map_err(|e| fault(described(&e)))?;
        }
        let (bos_token, eos_token) = (bos_token.into(), eos_token.into());
        let family = Family::of(&|text| sources.iter().any(|(_, source)| source.contains(text)), is_token);
        Ok(ChatTemplate { env, bos_token, eos_token, controls, family, abilities: OnceLock::new() })
    }

    /// The prompt as the Python library renders it: messages as they are given.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] with the template's own words where it refuses the messages, with the line where it
    /// fails, or where it takes more time or memory than any conversation needs.
    pub fn render(&self, inputs: &Inputs) -> Result<Prompt> {
        // Python's library always defines these.
        let mut complete = inputs.clone();
        for name in ["tools", "documents"] {
            if complete.get(name).is_none() {
                complete.values.push((name.into(), Value::from(())));
            }
        }
        self.rendered(&complete)
    }

    fn rendered(&self, inputs: &Inputs) -> Result<Prompt> {
        let name = match inputs.has_tools() && self.env.get_template(TOOL_USE).is_ok() {
            true => TOOL_USE,
            false => DEFAULT,
        };
        let template = self.env.get_template(name).or_else(|_| self.env.get_template(TOOL_USE));
        let template = template.map_err(|e| fault(described(&e)))?;
        let mark = user_text::unused_mark(&inputs.values, template.source())
            .ok_or_else(|| fault("the inputs hold all 32 noncharacters U+FDD0 to U+FDEF".into()))?;

        let mut context: Vec<(String, Value)> = vec![("add_generation_prompt".into(), Value::from(false))];
        context.push(("bos_token".into(), Value::from(self.bos_token.as_str())));
        context.push(("eos_token".into(), Value::from(self.eos_token.as_str())));
        for (name, value) in inputs.values.iter().filter(|(name, _)| name != ANSWER_START) {
            context.retain(|(known, _)| known != name);
            context.push((name.clone(), self.controls.marked(value, mark)));
        }
        let now = inputs.now;
        let clock =
            move |format: &str| now.format(format).map_err(|e| minijinja::Error::new(ErrorKind::InvalidOperation, e));
        context.push(("strftime_now".into(), Value::from_function(clock)));
        let marked = template.render(Value::from_pairs(context)).map_err(|e| fault(described(&e)))?;
        let (bos_token, eos_token) = (self.bos_token.clone(), self.eos_token.clone());
        Ok(Prompt { answer_at: marked.len(), marked, mark, bos_token, eos_token })
    }

    /// The prompt for messages as hosts send them (the shape of OpenAI's API): what the template cannot read is given
    /// in the form that it reads. A `developer` becomes the `system`, which is joined with the next message where the
    /// template has no such role; typed parts of a content become a text, or a text a part; the arguments of a tool
    /// call become an object; a content that is missing beside tool calls becomes empty. `tools` and `documents` that
    /// are not given are not defined, as in llama.cpp, where [`ChatTemplate::render`] has None.
    ///
    /// The input `answer_start` is the text that the model's own turn begins with, after the generation prompt. It is
    /// the host's and not a user's: special tokens in it are tokens. Reasoning that the prompt has opened ends before
    /// it.
    ///
    /// # Errors
    /// As [`ChatTemplate::render`], and [`Error::InvalidArgument`] for a message without a role, or with one that
    /// nobody knows, and for an `answer_start` that is no text or has no turn to begin.
    pub fn prompt(&self, inputs: &Inputs) -> Result<Prompt> {
        roles::check(inputs, &|role| self.names(role))?;
        let answer_start = inputs.answer_start()?;
        let abilities = self.abilities.get_or_init(|| {
            let knows_developer = self.env.templates().any(|(_, template)| template.source().contains("'developer'"));
            Abilities::of(&|inputs| Ok(self.rendered(inputs)?.text()), knows_developer)
        });
        let mut prompt = self.rendered(&abilities.adapt(inputs))?;
        if let Some(text) = answer_start {
            let before = self.family.before_answer(&prompt.text(), text);
            prompt.answer_at = prompt.marked.len();
            prompt.marked.extend([before.as_str(), text]);
        }
        Ok(prompt)
    }

    /// What takes the answer to these inputs apart: into what the user is to read, what the model thought, and calls.
    ///
    /// # Errors
    /// As [`ChatTemplate::prompt`].
    pub fn parts(&self, inputs: &Inputs) -> Result<Parts> {
        let prompt = self.prompt(inputs)?;
        let (before, answer) = prompt.marked.split_at(prompt.answer_at);
        Ok(Parts::new(&self.family, inputs.get("tools"), &prompt.unmarked(before), &prompt.unmarked(answer)))
    }

    /// Whether a template has this text as a string.
    fn names(&self, text: &str) -> bool {
        let quoted = |quote: char| format!("{quote}{text}{quote}");
        let (single, double) = (quoted('\''), quoted('"'));
        self.env
            .templates()
            .any(|(_, template)| template.source().contains(&single) || template.source().contains(&double))
    }
}

/// A template's error, with its line and what caused it.
fn described(error: &minijinja::Error) -> String {
    let mut text = match error.kind() {
        ErrorKind::OutOfFuel => "it takes more time or memory than any conversation needs".to_string(),
        _ => error.detail().map_or_else(|| error.kind().to_string(), str::to_string),
    };
    if let Some(line) = error.line() {
        text = format!("{text} (line {line})");
    }
    text
}

fn fault(problem: String) -> Error {
    Error::InvalidArgument(format!("chat template: {problem}"))
}
