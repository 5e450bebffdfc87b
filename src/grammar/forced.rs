//! Text that a grammar forces, as bytes and as tokens.
//!
//! Forced bytes do not say which tokens: a run of them is tokenized as the vocabulary writes that text after the tokens
//! before it. The last token of the run is held back where a longer one may legally take its place, so that a run never
//! ends inside of a token that the model would rather write (token healing).

use super::compiled::JumpAhead;
use super::state::GrammarState;
use crate::{Result, Token};

/// So many tokens before the run are tokenized with it.
const CONTEXT: usize = 8;
/// The longest run of single legal tokens.
const MAX_TOKENS: usize = 4096;

impl GrammarState {
    /// Appends the bytes that must come next: none where there is a choice, where the grammar may end, and where it is
    /// not in force.
    ///
    /// # Errors
    /// As [`GrammarState::mask`].
    pub fn forced(&mut self, out: &mut Vec<u8>) -> Result<()> {
        if !self.in_force() {
            return Ok(());
        }
        self.matcher.forced(out)
    }

    /// Appends the tokens that are to come next without sampling, as the grammar's [`JumpAhead`] says. `tail` are the
    /// last tokens before them. The state stays as it is; the caller accepts each.
    ///
    /// # Errors
    /// As [`GrammarState::mask`].
    pub fn forced_tokens(&mut self, tail: &[Token], out: &mut Vec<Token>) -> Result<()> {
        if !self.in_force() {
            return Ok(());
        }
        match self.grammar.jump_ahead {
            JumpAhead::Off => Ok(()),
            JumpAhead::Tokens => self.single_tokens(out),
            JumpAhead::Bytes => self.run_tokens(tail, out),
        }
    }

    fn single_tokens(&mut self, out: &mut Vec<Token>) -> Result<()> {
        let mut ahead: Option<GrammarState> = None;
        for _ in 0..MAX_TOKENS {
            let state = ahead.as_mut().unwrap_or(self);
            let Some(mask) = state.mask()? else { break };
            let Some([token]) = mask.few() else { break };
            if self.grammar.tree.is_eog(*token) {
                break;
            }
            if ahead.is_none() {
                ahead = Some(self.clone());
            }
            if let Some(state) = &mut ahead {
                state.accept(*token)?;
            }
            out.push(*token);
        }
        Ok(())
    }

    fn run_tokens(&mut self, tail: &[Token], out: &mut Vec<Token>) -> Result<()> {
        let mut bytes = Vec::new();
        self.forced(&mut bytes)?;
        // A run ends with a whole character.
        if let Err(error) = std::str::from_utf8(&bytes)
            && error.error_len().is_none()
        {
            bytes.truncate(error.valid_up_to());
        }
        let Some(vocab) = self.grammar.vocab.upgrade().filter(|_| !bytes.is_empty()) else { return Ok(()) };
        let tree = self.grammar.tree.clone();
        let mut tail = &tail[tail.len().saturating_sub(CONTEXT)..];
        if let Some(special) = tail.iter().rposition(|&token| vocab.is_control(token) || !tree.has(token)) {
            tail = &tail[special + 1..];
        }
        let mut text: Vec<u8> = tail.iter().flat_map(|&token| tree.text(token).iter().copied()).collect();
        text.extend_from_slice(&bytes);
        let together = vocab.tokenize_inside(&text, false, &|| false)?;
        let mut tokens = match together.strip_prefix(tail) {
            Some(rest) => rest.to_vec(),
            None => vocab.tokenize_inside(&bytes, false, &|| false)?,
        };
        // What does not spell the run is left to be sampled.
        let mut spelled = 0;
        let fits = tokens.iter().take_while(|&&token| {
            let text = if tree.has(token) { tree.text(token) } else { &[] };
            let fits = !text.is_empty() && bytes[spelled..].starts_with(text);
            spelled += if fits { text.len() } else { 0 };
            fits
        });
        let fits = fits.count();
        tokens.truncate(fits);
        if spelled == bytes.len() && self.matcher.may_go_on(&tokens)? {
            tokens.pop();
        }
        out.extend(tokens);
        Ok(())
    }
}
