//! Text that a grammar forces, as bytes and as tokens.
//!
//! Forced bytes do not say which tokens: a run of them is tokenized as the vocabulary writes that text after the tokens
//! before it. The last token of the run is held back where a longer one may legally take its place, so that a run never
//! ends inside of a token that the model would rather write (token healing).

use super::compiled::JumpAhead;
use super::state::GrammarState;
use super::tables::{DEAD, Step, Tables};
use super::vocabulary::Tree;
use super::walk;
use crate::{Result, Token};

/// The longest run, in bytes. The rest of a longer one is forced again after it.
const MAX_RUN: usize = 16 << 10;
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
        let begin = out.len();
        let out = std::cell::RefCell::new(out);
        self.with(|tables, state| {
            let mut out = out.borrow_mut();
            out.truncate(begin);
            run(tables, state, &mut out).map(|_| ())
        })
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
        if spelled == bytes.len()
            && let Some(&last) = tokens.last()
            && self.with(|tables, state| may_go_on(tables, &tree, state, &bytes, last))?
        {
            tokens.pop();
        }
        out.extend(tokens);
        Ok(())
    }
}

/// Appends the run of forced bytes from a state, and returns the state after it.
fn run(tables: &mut Tables, mut state: u32, out: &mut Vec<u8>) -> Step<u32> {
    for _ in 0..MAX_RUN {
        let of = tables.state(state);
        let live: u32 = of.live.iter().map(|word| word.count_ones()).sum();
        if of.may_end || of.has_tokens || live != 1 {
            break;
        }
        let word = of.live.iter().position(|&word| word != 0).unwrap_or(0);
        let byte = (word as u32 * 64 + of.live[word].trailing_zeros()) as u8;
        let next = tables.next(state, byte)?;
        if next == DEAD {
            break;
        }
        out.push(byte);
        state = next;
    }
    Ok(state)
}

/// Whether a longer token may take the place of `last`, the last one of the run `bytes` from `state` on.
fn may_go_on(tables: &mut Tables, tree: &Tree, state: u32, bytes: &[u8], last: Token) -> Step<bool> {
    let end = tables.after_text(state, bytes)?;
    let Some(node) = tree.find(tree.text(last)) else { return Ok(false) };
    if end == DEAD || node + 1 == tree.nodes[node].end as usize {
        return Ok(false);
    }
    let mut found = false;
    let below = (node + 1, tree.nodes[node].end as usize);
    walk::fitting(tables, tree, below, end, &mut |_, _, _, tokens| {
        found = !tokens.is_empty();
        !found
    })?;
    Ok(found)
}
