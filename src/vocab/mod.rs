//! Vocabularies of all kinds that llama.cpp has; special tokens; tokens to bytes.
//!
//! A [`Vocab`] is read once from a model file and never changes, so any number of threads may use it. Tokenizing has
//! the same result as the vocabulary's own tokenizer and llama.cpp with the same file, also for invalid UTF-8. What is
//! done, in this order:
//!
//! 1. special tokens are cut out of the text ([`parts`]);
//! 2. byte-level BPE cuts the rest into words ([`split`], [`pre`]), SPM escapes its spaces, WordPiece and Unigram write
//!    it in their way ([`wpm`], [`charsmap`]);
//! 3. BPE and SPM join characters, by merge rank or by score ([`merge`]). The others find all tokens in a text by an
//!    [`automaton`]: WordPiece and RWKV take the longest ones, Unigram and PLaMo-2 the best sum.
//!
//! Each kind is a [`Model`] in a file of its own, and a row in [`load`].

mod automaton;
mod bpe;
mod charsmap;
mod load;
mod merge;
mod merge_boundaries;
mod pace;
mod pairs;
mod parts;
mod pattern;
mod pieces;
mod plamo2;
mod pre;
mod rwkv;
mod special;
mod spelling;
mod split;
mod spm;
mod texts;
mod ugm;
mod unicode;
mod wpm;

pub use special::SpecialTokens;

use crate::{Error, Result, Token, reserve};
use merge::{Scratch, TOKENS};
use pace::Pace;
use parts::Parts;
use special::CONTROL;
use spelling::{SPACE_MARK, Spelling, escape_spaces};
use texts::Texts;

/// How a vocabulary makes tokens from text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VocabKind {
    /// SentencePiece-style joining by score.
    Spm,
    /// Byte-pair encoding by merge rank.
    Bpe,
    /// WordPiece: the longest tokens of each word.
    Wpm,
    /// SentencePiece-style Unigram: the largest sum of scores.
    Ugm,
    /// RWKV: the longest tokens over bytes.
    Rwkv,
    /// PLaMo-2: the smallest sum of costs.
    Plamo2,
    /// No texts at all: the model works on ids.
    None,
}

enum Model {
    Spm(Box<spm::Spm>),
    Bpe(Box<bpe::Bpe>),
    Wpm(Box<wpm::Wpm>),
    Ugm(Box<ugm::Ugm>),
    Rwkv(Box<rwkv::Rwkv>),
    Plamo2(Box<plamo2::Plamo2>),
    None,
}

/// A vocabulary.
pub struct Vocab {
    kind: VocabKind,
    n_tokens: usize,
    texts: Texts,
    /// One set of attribute bits per token.
    attributes: Vec<u8>,
    model: Model,
    spelling: Spelling,
    special: SpecialTokens,
    eog: Vec<Token>,
    suppressed: Vec<Token>,
    add_space_prefix: bool,
    /// What the file says of texts; see [`Vocab::add_bos`] for what is done.
    add_bos: bool,
    add_eos: bool,
    /// The tokens that are put before and after a text.
    around: [Option<Token>; 2],
    clean_spaces: bool,
    parts: Parts,
    max_piece: usize,
}

/// What the text of a control token in a text is.
#[derive(Clone, Copy, PartialEq)]
enum Special {
    /// Text.
    Text,
    /// The token.
    Tokens,
    /// The token, unless this character stands in it, which is no part of the text.
    Marked(char),
}

impl Special {
    fn of(parse_special: bool) -> Self {
        if parse_special { Special::Tokens } else { Special::Text }
    }

    /// The stretches of a text between its marks.
    fn between_marks(self, text: &[u8]) -> impl Iterator<Item = &[u8]> {
        let mut bytes = [0; 4];
        let mark = match self {
            Special::Marked(mark) => mark.encode_utf8(&mut bytes).len(),
            _ => 0,
        };
        let mut rest = Some(text);
        std::iter::from_fn(move || {
            let text = rest?;
            let is_mark = |window: &[u8]| window == &bytes[..mark];
            let at = if mark == 0 { None } else { text.windows(mark).position(is_mark) };
            rest = at.map(|at| &text[at + mark..]);
            Some(&text[..at.unwrap_or(text.len())])
        })
    }
}

/// The longest text: positions fit 32 bits, also where a space or a broken byte is written as three.
const MAX_TEXT: usize = 1 << 30;

impl Vocab {
    /// Number of tokens.
    pub fn n_tokens(&self) -> usize {
        self.n_tokens
    }

    /// How tokens are made from text.
    pub fn kind(&self) -> VocabKind {
        self.kind
    }

    /// The tokens of a text, which may be any bytes, 1 GiB of them at most. `add_special` adds the begin- and
    /// end-of-text tokens that the vocabulary asks for; `parse_special` recognises the texts of control tokens
    /// (user-defined ones always are).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a longer text, [`Error::OutOfMemory`].
    pub fn tokenize(&self, text: &[u8], add_special: bool, parse_special: bool) -> Result<Vec<Token>> {
        self.tokenize_unless(text, add_special, parse_special, &|| false)
    }

    /// As [`Vocab::tokenize`]; `cancelled` is asked every now and then, less than a millisecond apart, and ends it with
    /// [`Error::Cancelled`].
    ///
    /// # Errors
    /// As [`Vocab::tokenize`].
    pub fn tokenize_unless(
        &self,
        text: &[u8],
        add_special: bool,
        parse_special: bool,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<Vec<Token>> {
        let [before, after] = if add_special { self.around } else { [None; 2] };
        let mut out = Vec::from_iter(before);
        self.append_tokens(text, Special::of(parse_special), true, &Pace::new(cancelled), &mut out)?;
        out.extend(after);
        Ok(out)
    }

    /// The tokens of a whole text as [`Vocab::tokenize_unless`] makes them with both options, where `mark` is no part
    /// of the text: a special token's text with a mark inside is text.
    ///
    /// # Errors
    /// As [`Vocab::tokenize_unless`].
    pub fn tokenize_marked(&self, text: &str, mark: char, cancelled: &dyn Fn() -> bool) -> Result<Vec<Token>> {
        let mut out = Vec::from_iter(self.around[0]);
        self.append_tokens(text.as_bytes(), Special::Marked(mark), true, &Pace::new(cancelled), &mut out)?;
        out.extend(self.around[1]);
        Ok(out)
    }

    /// The texts of the tokens that are found in a text only where special tokens are parsed.
    pub fn control_texts(&self) -> impl Iterator<Item = &str> {
        let control = |id: &usize| self.attributes[*id] & (CONTROL | special::UNKNOWN) != 0;
        (0..self.n_tokens).filter(control).filter_map(|id| self.token_text(id as Token))
    }

    /// The tokens of a text that continues another text: neither the begin-of-text token nor the space that some
    /// vocabularies put before a text is added.
    ///
    /// # Errors
    /// As [`Vocab::tokenize_unless`].
    pub fn tokenize_inside(
        &self,
        text: &[u8],
        parse_special: bool,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<Vec<Token>> {
        let mut out = Vec::new();
        self.append_tokens(text, Special::of(parse_special), false, &Pace::new(cancelled), &mut out)?;
        Ok(out)
    }

    /// `begins` is set where a text begins here: at the start, and after a special token.
    fn append_tokens(
        &self,
        text: &[u8],
        special: Special,
        mut begins: bool,
        pace: &Pace<'_>,
        out: &mut Vec<Token>,
    ) -> Result<()> {
        if text.len() > MAX_TEXT {
            let problem = format!("a text of {} bytes: at most {MAX_TEXT} are tokenized at once", text.len());
            return Err(Error::InvalidArgument(problem));
        }
        reserve::reserve(out, text.len() / 6 + 4, TOKENS)?;
        let mut scratch = Scratch::default();
        let mut at = 0;
        for found in self.parts.find(&self.attributes, text, special != Special::Text, pace)? {
            let range = found.range();
            if at < range.start {
                self.append_between_marks(&text[at..range.start], special, begins, &mut scratch, pace, out)?;
            }
            reserve::push(out, found.token(), TOKENS)?;
            begins = true;
            at = range.end;
        }
        if at < text.len() {
            self.append_between_marks(&text[at..], special, begins, &mut scratch, pace, out)?;
        }
        Ok(())
    }

    /// The tokens of a stretch without special tokens, in which there may be marks. Marks are left out; but where the
    /// text of a control token in a text is that token, no token reaches over a mark.
    fn append_between_marks(
        &self,
        text: &[u8],
        special: Special,
        begins: bool,
        scratch: &mut Scratch,
        pace: &Pace<'_>,
        out: &mut Vec<Token>,
    ) -> Result<()> {
        let mut stretches = special.between_marks(text);
        if matches!(self.model, Model::Rwkv(_) | Model::Plamo2(_)) {
            return stretches.try_for_each(|stretch| self.append_raw(stretch, begins, scratch, pace, out));
        }
        let first = stretches.next().unwrap_or_default();
        if first.len() == text.len() {
            return self.append_raw(text, begins, scratch, pace, out);
        }
        let mut plain = reserve::list(text.len(), unicode::TEXT)?;
        plain.extend_from_slice(first);
        stretches.for_each(|stretch| plain.extend_from_slice(stretch));
        self.append_raw(&plain, begins, scratch, pace, out)
    }

    /// The tokens of a stretch without special tokens.
    fn append_raw(
        &self,
        text: &[u8],
        begins: bool,
        scratch: &mut Scratch,
        pace: &Pace<'_>,
        out: &mut Vec<Token>,
    ) -> Result<()> {
        match &self.model {
            Model::Spm(spm) => {
                let prefix: &[u8] = if self.add_space_prefix && begins { SPACE_MARK } else { b"" };
                escape_spaces(prefix, text, &mut scratch.written)?;
                spm.tokenize(&self.texts, &scratch.written, &mut scratch.merger, pace, out)
            }
            Model::Bpe(bpe) => bpe.tokenize(&self.texts, text, scratch, pace, out),
            Model::Wpm(wpm) => wpm.tokenize(text, scratch, pace, out),
            Model::Ugm(ugm) => ugm.tokenize(text, begins, self.add_space_prefix, scratch, pace, out),
            Model::Rwkv(rwkv) => rwkv.tokenize(text, scratch, pace, out),
            Model::Plamo2(plamo2) => plamo2.tokenize(text, pace, out),
            Model::None => Ok(()),
        }
    }

    /// The token's text as the file has it; `None` for an id outside the vocabulary.
    pub fn token_text(&self, id: Token) -> Option<&str> {
        let id = u32::try_from(id).ok().filter(|&id| (id as usize) < self.attributes.len())?;
        std::str::from_utf8(self.texts.get(id)).ok()
    }

    /// Whether the token ends a generation.
    pub fn is_eog(&self, id: Token) -> bool {
        self.eog.binary_search(&id).is_ok()
    }

    /// The tokens that end a generation, ascending.
    pub fn eog_tokens(&self) -> &[Token] {
        &self.eog
    }

    /// Whether the token is a control token, which has no text of its own.
    pub fn is_control(&self, id: Token) -> bool {
        usize::try_from(id).ok().and_then(|i| self.attributes.get(i)).is_some_and(|a| a & CONTROL != 0)
    }

    /// The names of the token's attributes; none for an id outside the vocabulary.
    pub fn attributes(&self, id: Token) -> impl Iterator<Item = &'static str> {
        let bits = usize::try_from(id).ok().and_then(|i| self.attributes.get(i)).copied().unwrap_or(0);
        special::NAMES.into_iter().filter(move |(bit, _)| bits & bit != 0).map(|(_, name)| name)
    }

    /// The tokens with a role.
    pub fn special(&self) -> &SpecialTokens {
        &self.special
    }

    /// Begin of text.
    pub fn bos(&self) -> Option<Token> {
        self.special.bos
    }

    /// End of text.
    pub fn eos(&self) -> Option<Token> {
        self.special.eos
    }

    /// End of turn.
    pub fn eot(&self) -> Option<Token> {
        self.special.eot
    }

    /// The token for what the vocabulary cannot spell.
    pub fn unk(&self) -> Option<Token> {
        self.special.unk
    }

    /// Whether [`Vocab::tokenize`] puts the begin-of-text token before a text.
    pub fn add_bos(&self) -> bool {
        self.around[0].is_some()
    }

    /// Whether [`Vocab::tokenize`] puts a token after a text: that for its end, or the separator in WordPiece.
    pub fn add_eos(&self) -> bool {
        self.around[1].is_some()
    }

    /// Tokens that are never to be sampled, by the model's file.
    pub fn suppressed(&self) -> &[Token] {
        &self.suppressed
    }
}
