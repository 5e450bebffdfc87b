//! When a lazy grammar comes into force: at the first of its triggers.
//!
//! The text of a generation is collected until then. A word is searched in what is new, with as much before it as the
//! word is long. A pattern is searched in all of the text, as in llama.cpp, but in its last [`MAX_SEARCHED`] bytes
//! only, which bounds the time for each token; a pattern that begins with `^` is not tried on longer texts.

use crate::gguf::shown;
use crate::{Error, Result, Token, reserve};
use regex_lite::Regex;

/// The longest text that patterns are searched in, in bytes.
pub const MAX_SEARCHED: usize = 16 << 10;
/// The longest trigger, in bytes of text.
const MAX_TRIGGER_BYTES: usize = 16 << 10;
/// The most triggers.
const MAX_TRIGGERS: usize = 1024;
/// The largest compiled pattern, in bytes.
const MAX_PATTERN_BYTES: usize = 1 << 20;

/// What brings a lazy grammar into force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trigger {
    /// This text, anywhere. The grammar begins with it.
    Word(String),
    /// A regular expression, anywhere. The grammar begins with the first group that matched something, else with the
    /// match.
    Pattern(String),
    /// A regular expression for all of the text.
    PatternFull(String),
    /// A token. The grammar begins with it.
    Token(Token),
}

/// Triggers that are ready to be searched for.
#[derive(Debug, Default)]
pub(super) struct Triggers {
    words: Vec<String>,
    patterns: Vec<Pattern>,
    tokens: Vec<Token>,
    longest_word: usize,
}

#[derive(Debug)]
struct Pattern {
    regex: Regex,
    is_anchored: bool,
}

impl Triggers {
    pub(super) fn new(triggers: &[Trigger]) -> Result<Triggers> {
        if triggers.is_empty() {
            return Err(Error::InvalidArgument("Grammar: it is lazy and has no trigger".into()));
        }
        if triggers.len() > MAX_TRIGGERS {
            let problem = format!("Grammar: {} triggers, at most {MAX_TRIGGERS}", triggers.len());
            return Err(Error::InvalidArgument(problem));
        }
        let mut out = Triggers::default();
        for (index, trigger) in triggers.iter().enumerate() {
            let refused = |problem: String| Error::InvalidArgument(format!("Grammar: triggers[{index}]: {problem}"));
            match trigger {
                Trigger::Token(token) => out.tokens.push(*token),
                Trigger::Word(text) | Trigger::Pattern(text) | Trigger::PatternFull(text) => {
                    if text.is_empty() || text.len() > MAX_TRIGGER_BYTES {
                        return Err(refused(format!("{} bytes, 1 to {MAX_TRIGGER_BYTES} are allowed", text.len())));
                    }
                    if let Trigger::Word(word) = trigger {
                        out.longest_word = out.longest_word.max(word.len());
                        out.words.push(word.clone());
                        continue;
                    }
                    let full = format!("^(?:{text})$");
                    let is_full = matches!(trigger, Trigger::PatternFull(_));
                    let source = if is_full { &full } else { text };
                    let regex = regex_lite::RegexBuilder::new(source).size_limit(MAX_PATTERN_BYTES).build();
                    let regex = regex.map_err(|error| {
                        refused(format!(
                            "the pattern \"{}\" cannot be used: {}",
                            shown(text),
                            shown(&error.to_string())
                        ))
                    })?;
                    out.patterns.push(Pattern { regex, is_anchored: is_full || text.starts_with('^') });
                }
            }
        }
        Ok(out)
    }

    pub(super) fn has_token(&self, token: Token) -> bool {
        self.tokens.contains(&token)
    }

    /// Where the grammar begins in `text`, if a trigger is complete; the last `new` bytes were not there before.
    fn find(&self, text: &[u8], new: usize, is_whole: bool) -> Option<usize> {
        let from = text.len().saturating_sub(new + self.longest_word.saturating_sub(1));
        let recent = &text[from..];
        let mut first: Option<usize> = None;
        for word in &self.words {
            let at = recent.windows(word.len()).position(|window| window == word.as_bytes()).map(|at| at + from);
            first = first.or(at);
        }
        if first.is_some() || self.patterns.is_empty() {
            return first;
        }
        // Bytes that are no character become one that patterns do not look for; places stay what they are.
        let mut searched = String::new();
        for chunk in text.utf8_chunks() {
            searched.push_str(chunk.valid());
            searched.extend(chunk.invalid().iter().map(|_| '\u{7F}'));
        }
        for pattern in self.patterns.iter().filter(|pattern| is_whole || !pattern.is_anchored) {
            if let Some(found) = pattern.regex.captures(&searched) {
                let group = (1..found.len()).filter_map(|group| found.get(group)).find(|group| !group.is_empty());
                return group.or(found.get(0)).map(|found| found.start());
            }
        }
        None
    }
}

/// The text of a generation before a trigger, and its tokens.
#[derive(Debug, Clone, Default)]
pub(super) struct Collected {
    text: Vec<u8>,
    /// Each token with the end of its text; `None` for bytes without a token.
    pieces: Vec<(Option<Token>, usize)>,
    /// Bytes that were dropped at the beginning.
    dropped: usize,
}

const TEXT: &str = "bytes of text before a trigger";

/// What a lazy grammar begins with.
pub(super) struct Begin {
    /// The first piece to replay.
    pub(super) piece: usize,
    /// How much of its text is left out.
    pub(super) skip: usize,
}

impl Collected {
    pub(super) fn clear(&mut self) {
        self.text.clear();
        self.pieces.clear();
        self.dropped = 0;
    }

    /// Adds a token's text, and returns where the grammar begins if that completes a trigger.
    pub(super) fn add(&mut self, triggers: &Triggers, token: Option<Token>, text: &[u8]) -> Result<Option<Begin>> {
        // Without patterns, words need no more than their length.
        let kept = if triggers.patterns.is_empty() { triggers.longest_word } else { MAX_SEARCHED };
        if self.text.len() > 2 * kept + text.len() {
            let at = self.text.len() - kept;
            let pieces = self.pieces.partition_point(|&(_, end)| end <= at);
            let at = pieces.checked_sub(1).map_or(0, |last| self.pieces[last].1);
            self.text.drain(..at);
            self.pieces.drain(..pieces);
            self.pieces.iter_mut().for_each(|(_, end)| *end -= at);
            self.dropped += at;
        }
        reserve::extend(&mut self.text, text, TEXT)?;
        reserve::push(&mut self.pieces, (token, self.text.len()), TEXT)?;
        if token.is_some_and(|token| triggers.has_token(token)) {
            return Ok(Some(Begin { piece: self.pieces.len() - 1, skip: 0 }));
        }
        let searched = self.text.len().saturating_sub(MAX_SEARCHED.max(text.len() + triggers.longest_word));
        let is_whole = self.dropped + searched == 0;
        let found = triggers.find(&self.text[searched..], text.len(), is_whole).map(|at| at + searched);
        Ok(found.map(|at| {
            let piece = self.pieces.partition_point(|&(_, end)| end <= at);
            let begin = piece.checked_sub(1).map_or(0, |last| self.pieces[last].1);
            Begin { piece, skip: at - begin }
        }))
    }

    /// Takes back the last token.
    pub(super) fn take_back(&mut self) {
        self.pieces.pop();
        self.text.truncate(self.pieces.last().map_or(0, |&(_, end)| end));
    }

    /// The pieces from `piece` on: token and text.
    pub(super) fn pieces(&self, piece: usize) -> impl Iterator<Item = (Option<Token>, &[u8])> {
        (piece..self.pieces.len()).map(|index| {
            let begin = index.checked_sub(1).map_or(0, |last| self.pieces[last].1);
            (self.pieces[index].0, &self.text[begin..self.pieces[index].1])
        })
    }
}
