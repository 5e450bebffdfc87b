//! The session's part of a saved slot, besides tokens and cells: where a generation stopped, and the state of the trie.
//!
//! It is the note of the file ([`SavedSlot::note`]), as JSON. Chains, settings, seed and stop strings are not in it:
//! those of the restoring session apply. The trie is not in it either; where a constraint was in force, the trie must
//! be set before. Impossible states are refused, but the file determines the state of its stream: it is trusted as a
//! model file is.

use super::shared::ResumePoint;
use crate::engine::SavedSlot;
use crate::gguf::shown;
use crate::trie::{SavedState, TrieState};
use crate::{Error, Result, Token};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Note {
    /// [`ResumePoint::pending`].
    pending: Vec<Token>,
    constraint: Option<Constraint>,
    /// [`ResumePoint::shifts`].
    #[serde(default, skip_serializing_if = "is_zero")]
    shifts: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Constraint {
    state: SavedState,
    /// [`ResumePoint::chosen`].
    chosen: Vec<Token>,
    /// Whether there is a [`ResumePoint::ended_at`], which is then the leaf completed last.
    ended: bool,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The note of a slot whose generation stopped at this point, with the trie's state, if any.
pub(crate) fn note(resume_point: ResumePoint, trie: Option<&TrieState>) -> Result<Vec<u8>> {
    let ResumePoint { pending, chosen, ended_at, shifts } = resume_point;
    let constraint = |trie: &TrieState| Constraint { state: trie.saved(), chosen, ended: ended_at.is_some() };
    let note = Note { pending, constraint: trie.map(constraint), shifts };
    serde_json::to_vec(&note).map_err(|error| Error::Internal(format!("The note of a saved slot: {error}")))
}

/// The point at which the saved stream goes on in a session with this trie, and the trie's state. For a stream that was
/// saved without a constraint in force, the trie of the session is armed, as by a prefill.
///
/// # Errors
/// [`Error::SavedSlot`] where the saved stream was inside a constraint by another trie, and for a note that cannot be
/// read.
pub(crate) fn resume(
    saved: &SavedSlot,
    trie: Option<TrieState>,
    n_vocab: usize,
    context: usize,
) -> Result<(ResumePoint, Option<TrieState>)> {
    let broken = |problem: String| saved.error("note", problem);
    let note: Note = serde_json::from_slice(saved.note()).map_err(|error| broken(shown(&error.to_string())))?;
    let outside = |token: &&Token| usize::try_from(**token).map_or(true, |id| id >= n_vocab);
    if let Some(token) = note.pending.iter().find(outside) {
        return Err(broken(format!("token {token}, where the vocabulary has {n_vocab}")));
    }
    let total = saved.tokens().len() + note.pending.len();
    if total > context {
        let problem = format!("{total} tokens with those not evaluated, where the context has room for {context}");
        return Err(saved.error("tokens", problem));
    }
    let mut resume_point = ResumePoint { pending: note.pending, shifts: note.shifts, ..ResumePoint::default() };
    let constraint = note.constraint;
    let in_force = constraint.as_ref().is_some_and(|saved| saved.state.is_armed() || saved.ended);
    let found = match (&constraint, &trie) {
        (Some(constraint), Some(trie)) => trie.restored(&constraint.state),
        (Some(_), None) => Err("saved with a token trie, where none is set".into()),
        (None, _) => Err("saved without a token trie".into()),
    };
    match (found, constraint) {
        (Ok(state), Some(constraint)) => {
            let step = |node, token: &Token| state.trie().child(node, *token);
            let end = state.node().and_then(|node| constraint.chosen.iter().rev().try_fold(node, step));
            if !constraint.chosen.is_empty() && end.is_none_or(|node| !state.trie().is_leaf(node)) {
                return Err(broken("a chosen leaf that the token trie does not have".into()));
            }
            if constraint.ended && (state.is_armed() || state.completed().is_none()) {
                return Err(broken("a span that is said to have ended and did not".into()));
            }
            resume_point.chosen = constraint.chosen;
            resume_point.ended_at = state.completed().filter(|_| constraint.ended);
            Ok((resume_point, Some(state)))
        }
        (Err(problem), _) if in_force => Err(saved.error("constraint", problem)),
        _ => {
            let armed = trie.map(|mut trie| {
                trie.rearm();
                trie
            });
            Ok((resume_point, armed))
        }
    }
}
