//! A draft model: a small one that guesses what the session's model writes next. One with another vocabulary is given
//! the text in its own tokens, and what it says is tokenized for the session's model ([`Translation`]).

use super::translation::Translation;
use crate::engine::{Engine, EngineOptions, SlotId};
use crate::model::Model;
use crate::sampling::likeliest;
use crate::vocab::{Vocab, VocabKind};
use crate::{Error, Result, Token};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// How many tokens one of two vocabularies may have more: rows that fill a matrix up.
const MOST_MORE: usize = 128;

/// What a draft model is asked.
pub(crate) struct Ask<'a> {
    /// What the guesses follow.
    pub text: &'a [Token],
    /// How many are wanted, at least one.
    pub most: usize,
    /// Chooses a token from logits for this position; `None` where it cannot.
    pub choose: &'a mut dyn FnMut(&mut [f32], u32) -> Option<Token>,
    /// Where they are put.
    pub guesses: &'a mut Vec<Token>,
    pub cancel: &'a AtomicBool,
}

impl Ask<'_> {
    /// Puts the token that is chosen from these logits after the other guesses; returns it where more are wanted.
    pub fn guess(&mut self, logits: &mut [f32]) -> Option<Token> {
        let token = (self.choose)(logits, (self.text.len() + self.guesses.len()) as u32)?;
        self.guesses.push(token);
        (self.guesses.len() < self.most).then_some(token)
    }
}

/// The draft model's engine, and the slot of the last prompt.
pub(crate) struct DraftModel {
    engine: Engine,
    slot: SlotId,
    /// Ids that the session's model has.
    n_vocab: usize,
    /// Where it has another vocabulary.
    translation: Option<Translation>,
}

impl DraftModel {
    /// Opens the model of the file at `path` to guess for the model of an engine, with these options of a draft model.
    /// `go_on` answers whether to go on.
    ///
    /// # Errors
    /// The engine's; [`Error::InvalidArgument`] for other tokens where one of the two has no vocabulary,
    /// [`Error::Unsupported`] for a model that does not go on from tokens.
    pub(crate) fn open(
        (path, model): (&Path, Arc<Model>),
        of: &Engine,
        options: &EngineOptions,
        mut go_on: impl FnMut() -> bool + Send,
    ) -> Result<DraftModel> {
        let in_file = |error: Error| error.in_file(path);
        let (first, own) = (of.model().vocab(), model.vocab());
        let translation = match difference(first, own) {
            None => None,
            Some(difference) if [first, own].iter().any(|one| one.kind() == VocabKind::None) => {
                return Err(another_vocabulary(path, &difference));
            }
            Some(difference) => {
                log::info!("{}: another vocabulary, so it guesses by text: {difference}", path.display());
                Some(Translation::new(first.clone(), own.clone()))
            }
        };
        if model.outline().pooled().is_some() || model.outline().answers() {
            return Err(in_file(Error::Unsupported("This model does not go on from tokens: it drafts none".into())));
        }
        let mut engine = Engine::open(model, options, Some(&mut |_| go_on()))?;
        let slot = engine.take_slot(-1)?;
        Ok(DraftModel { engine, slot, n_vocab: of.model().n_vocab(), translation })
    }

    /// Evaluates a prompt that fits and whose tokens the model has; of others nothing.
    pub(crate) fn prefill(&mut self, slot_id: i32, text: &[Token], cancel: &AtomicBool) -> Result<()> {
        let Some(tokens) = own_tokens(&mut self.translation, &self.engine, text, cancel)? else { return Ok(()) };
        if tokens.len() > self.engine.context() {
            return Ok(());
        }
        self.slot = self.engine.slot_for(slot_id, tokens)?;
        self.engine.prefill(self.slot, tokens, cancel).map(drop)
    }

    /// Guesses what the model says follows the text, each token as asked where the models have the same tokens, else
    /// the likeliest. None where the context is full, a token of the text is not the model's, or its logits are not
    /// numbers.
    pub(crate) fn draft(&mut self, ask: Ask<'_>) -> Result<()> {
        let Ask { text, most, choose, guesses, cancel } = ask;
        let by_text = self.translation.is_some();
        let Some(text) = own_tokens(&mut self.translation, &self.engine, text, cancel)? else { return Ok(()) };
        let (engine, slot, mut last) = (&mut self.engine, self.slot, [0]);
        let known = engine.tokens(slot).iter().zip(text).take_while(|(a, b)| a == b).count();
        let Some(known) = text.len().checked_sub(1).map(|most| known.min(most)) else { return Ok(()) };
        engine.truncate(slot, known);
        if text.len() + most > engine.context() {
            return Ok(());
        }
        while guesses.len() < most {
            let new = if guesses.is_empty() { &text[known..] } else { &last };
            let logits = engine.next_logits(slot, new, &[], cancel)?;
            let position = (text.len() + guesses.len()) as u32;
            let token = match logits.len() == self.n_vocab {
                _ if by_text => likeliest(logits),
                true => choose(logits, position),
                // A chain is made for the rows of its own model.
                false => likeliest(&logits[..logits.len().min(self.n_vocab)]),
            };
            // The token that ends a text need not be spelled as the other vocabulary's.
            let Some(token) = token.filter(|&token| !by_text || !engine.model().vocab().is_eog(token)) else { break };
            guesses.push(token);
            last = [token];
        }
        match &mut self.translation {
            Some(translation) => translation.back(guesses, most, cancel),
            None => Ok(()),
        }
    }
}

/// A text of the session's model in the tokens of the draft model; `None` where that lacks some of the same vocabulary.
fn own_tokens<'a>(
    translation: &'a mut Option<Translation>,
    engine: &Engine,
    text: &'a [Token],
    cancel: &AtomicBool,
) -> Result<Option<&'a [Token]>> {
    match translation {
        Some(translation) => translation.of(text, cancel).map(Some),
        None => {
            let n_vocab = engine.model().n_vocab();
            Ok(text.iter().all(|&token| (token as usize) < n_vocab).then_some(text))
        }
    }
}

/// Whether the vocabulary of the model at `path` is that of the first one.
///
/// # Errors
/// [`Error::InvalidArgument`] naming the first token that differs.
pub(super) fn same_vocabulary(first: &Vocab, other: &Vocab, path: &Path) -> Result<()> {
    difference(first, other).map_or(Ok(()), |difference| Err(another_vocabulary(path, &difference)))
}

fn another_vocabulary(path: &Path, difference: &str) -> Error {
    Error::InvalidArgument(format!("{}: another vocabulary: {difference}", path.display()))
}

/// What differs between two vocabularies first.
fn difference(first: &Vocab, other: &Vocab) -> Option<String> {
    let (n, of_other) = (first.n_tokens(), other.n_tokens());
    if n.abs_diff(of_other) > MOST_MORE {
        return Some(format!("it has {of_other} tokens, the first {n}"));
    }
    let (mut a, mut b) = (Vec::new(), Vec::new());
    for token in 0..n.min(of_other) as Token {
        a.clear();
        b.clear();
        first.piece(token, true, &mut a);
        other.piece(token, true, &mut b);
        if a != b {
            let [a, b] = [&a, &b].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
            return Some(format!("token {token} is {b:?}, the first's {a:?}"));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::open_model;
    use std::path::PathBuf;

    static NEVER: AtomicBool = AtomicBool::new(false);

    /// What the model itself says after a text.
    fn said(engine: &mut Engine, text: &[Token], most: usize) -> Vec<Token> {
        let slot = engine.take_slot(0).unwrap();
        engine.truncate(slot, 0);
        let mut said: Vec<Token> = Vec::new();
        let mut new = text.to_vec();
        while said.len() < most {
            let token = likeliest(engine.next_logits(slot, &new, &[], &NEVER).unwrap()).unwrap();
            said.push(token);
            new = vec![token];
        }
        said
    }

    #[test]
    fn a_model_drafts_for_itself_what_it_says() {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("models/demo.gguf");
        let options = EngineOptions { context: 64, threads: 1, ..EngineOptions::default() };
        let mut engine = Engine::new(open_model(&path, &options, None).unwrap(), &options).unwrap();
        let draft = open_model(&path, &options, None).unwrap();
        let mut drafter = DraftModel::open((&path, draft), &engine, &options, || true).unwrap();
        let mut text: Vec<Token> = vec![1, 300, 17, 301];
        drafter.prefill(-1, &text, &NEVER).unwrap();
        // Guesses that were taken, some of them, or none; and a text that has nothing of the one before.
        for (taken, own) in [(7, vec![]), (2, vec![40]), (0, vec![41, 42]), (0, vec![])] {
            let (mut guesses, mut asked) = (Vec::new(), Vec::new());
            let mut choose = |logits: &mut [f32], position| {
                asked.push(position as usize);
                likeliest(logits)
            };
            let ask = Ask { text: &text, most: 7, choose: &mut choose, guesses: &mut guesses, cancel: &NEVER };
            drafter.draft(ask).unwrap();
            assert_eq!(guesses, said(&mut engine, &text, 7));
            assert_eq!(asked, (text.len()..text.len() + 7).collect::<Vec<_>>());
            text.extend(guesses[..taken].iter().chain(&own));
        }
        let mut guesses = Vec::new();
        let unknown = engine.model().n_vocab() as Token;
        drafter.prefill(-1, &[1, unknown], &NEVER).unwrap();
        for full in [vec![5; 58], vec![5; 64], vec![], vec![1, unknown]] {
            let choose = &mut |logits: &mut [f32], _| likeliest(logits);
            let ask = Ask { text: &full, most: 7, choose, guesses: &mut guesses, cancel: &NEVER };
            drafter.draft(ask).unwrap();
            assert!(guesses.is_empty(), "there is no room, no text, or a token that the model has not");
        }
    }
}
