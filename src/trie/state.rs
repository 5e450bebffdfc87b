//! One stream's walk through a trie.
//!
//! Armed at a node, only its children may come next, except at a leaf that also has children, where anything may: a
//! child continues the span, any other token ends it at that leaf. Completing a leaf releases. The constraint is never
//! lost silently: a token that leaves the trie without completing a leaf is reported by [`Accept`]. No transition
//! allocates.

use std::sync::Arc;

use super::Mode;
use super::compile::{Descriptor, Node, Trie};
use crate::gguf::shown;
use crate::{Error, Result, Token};

/// A constraint that is still armed after this many tokens, or as many as the deepest leaf has if that is more, is
/// released ([`Accept::NetReleased`]).
const SAFETY_NET_TOKENS: u32 = 500;

/// How many paths an error lists.
const LISTED_PATHS: usize = 16;

/// What accepting a token did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accept {
    /// The token was a child; the span goes on.
    Moved,
    /// The token completed a leaf without children: released.
    Leaf,
    /// The token was no child of a leaf that has some: the span ended before it: released.
    EndedAtLeaf,
    /// The token was no child: armed at the root again. Worth a warning.
    Rearmed,
    /// The safety net caught a constraint that never completed a leaf: released. Worth a warning.
    NetReleased,
    /// Released before, or a replayed prompt token: nothing changed.
    Ignored,
}

/// The state of one stream's constraint. A clone is independent and continues from the same place.
#[derive(Debug, Clone)]
pub struct TrieState {
    trie: Arc<Trie>,
    mode: Mode,
    /// The descriptor armed last.
    descriptor: usize,
    /// The current node; `None` when released.
    node: Option<Node>,
    /// The leaf completed last, since arming.
    completed: Option<Node>,
    /// Tokens accepted since arming.
    counted: u32,
    /// Whether the mask was applied since the last accept, arming or creation.
    applied: bool,
}

impl TrieState {
    /// A state armed at the root of the first descriptor.
    pub fn new(trie: Arc<Trie>, mode: Mode) -> TrieState {
        let mut state =
            TrieState { trie, mode, descriptor: 0, node: None, completed: None, counted: 0, applied: false };
        state.rearm();
        state
    }

    /// A state at a node of a descriptor, for [`super::SavedState`].
    pub(super) fn at(
        trie: Arc<Trie>,
        mode: Mode,
        descriptor: usize,
        node: Option<Node>,
        completed: Option<Node>,
        counted: u32,
    ) -> TrieState {
        TrieState { trie, mode, descriptor, node, completed, counted, applied: false }
    }

    /// The trie walked.
    pub fn trie(&self) -> &Arc<Trie> {
        &self.trie
    }

    /// How tokens are chosen inside the span.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The descriptor armed last.
    pub fn descriptor(&self) -> Option<&Descriptor> {
        self.trie.descriptors().get(self.descriptor)
    }

    /// Arms the root of the descriptor with this path, or, without one, of the next in payload order after the one
    /// armed last (the first again after the last).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] listing the paths there are, for a path that is not among them; nothing changes.
    pub fn arm(&mut self, path: Option<&str>) -> Result<()> {
        let descriptors = self.trie.descriptors();
        self.descriptor = match path {
            None => (self.descriptor + 1) % descriptors.len().max(1),
            Some(path) => descriptors.iter().position(|one| one.path() == path).ok_or_else(|| {
                let known: Vec<String> =
                    descriptors.iter().take(LISTED_PATHS).map(|one| format!("\"{}\"", shown(one.path()))).collect();
                let more = descriptors.len().saturating_sub(LISTED_PATHS);
                let more = if more > 0 { format!(" and {more} more") } else { String::new() };
                Error::InvalidArgument(format!(
                    "The trie has no descriptor with path \"{}\"; it has {}{more}",
                    shown(path),
                    known.join(", ")
                ))
            })?,
        };
        self.rearm();
        Ok(())
    }

    /// Arms the root of the descriptor armed last.
    pub fn rearm(&mut self) {
        self.node = self.descriptor().map(Descriptor::root);
        self.completed = None;
        self.counted = 0;
        self.applied = false;
    }

    /// The only legal tokens, ascending; `None` when any token is legal (released, or at a leaf with children).
    pub fn mask(&self) -> Option<&[Token]> {
        let node = self.node.filter(|&node| !self.trie.is_leaf(node))?;
        Some(self.trie.children(node))
    }

    /// The current node; `None` when released.
    pub fn node(&self) -> Option<Node> {
        self.node
    }

    /// Whether the constraint is in force.
    pub fn is_armed(&self) -> bool {
        self.node.is_some()
    }

    /// The next token, when there is no choice.
    pub fn forced(&self) -> Option<Token> {
        match self.mask() {
            Some(&[token]) => Some(token),
            _ => None,
        }
    }

    /// Whether the current node is the root of the descriptor armed last.
    pub fn at_root(&self) -> bool {
        self.node.is_some() && !self.inside()
    }

    /// Whether it is armed and below the root.
    pub fn inside(&self) -> bool {
        self.node.is_some() && self.node != self.descriptor().map(Descriptor::root)
    }

    /// The leaf completed last; arming forgets it.
    pub fn completed(&self) -> Option<Node> {
        self.completed
    }

    /// Tokens accepted since arming.
    pub(super) fn counted(&self) -> u32 {
        self.counted
    }

    /// Whether so many tokens were accepted that the safety net releases an armed constraint.
    pub(super) fn is_overdue(&self) -> bool {
        let deepest = self.descriptor().map_or(0, Descriptor::depth);
        self.counted >= SAFETY_NET_TOKENS.max(deepest)
    }

    /// The name of the leaf completed last; arming forgets it.
    pub fn leaf_name(&self) -> Option<&str> {
        self.trie.leaf(self.completed?)
    }

    /// Advances the state by a token of the stream.
    pub fn accept(&mut self, token: Token) -> Accept {
        self.applied = false;
        let Some(node) = self.node else { return Accept::Ignored };
        self.counted = self.counted.saturating_add(1);
        let done = match self.trie.child(node, token) {
            Some(child) => {
                self.node = Some(child);
                if self.trie.is_leaf(child) && self.trie.children(child).is_empty() {
                    return self.release(child, Accept::Leaf);
                }
                Accept::Moved
            }
            None if self.trie.is_leaf(node) => return self.release(node, Accept::EndedAtLeaf),
            None => {
                self.node = self.descriptor().map(Descriptor::root);
                Accept::Rearmed
            }
        };
        if self.is_overdue() {
            self.node = None;
            return Accept::NetReleased;
        }
        done
    }

    /// Ends the span where the current node is a leaf with children, and returns the leaf; does nothing elsewhere.
    pub fn end_at_leaf(&mut self) -> Option<Node> {
        let leaf = self.node.filter(|&node| self.trie.is_leaf(node))?;
        self.release(leaf, Accept::EndedAtLeaf);
        Some(leaf)
    }

    fn release(&mut self, leaf: Node, how: Accept) -> Accept {
        self.node = None;
        self.completed = Some(leaf);
        how
    }

    /// Notes that the mask was applied to candidates, so that the next [`Self::accept_replay`] counts.
    pub fn note_apply(&mut self) {
        self.applied = true;
    }

    /// [`Self::accept`] for hosts that also replay prompt tokens: at the root a token counts only if the mask was
    /// applied since the last accept, arming or creation; any other there is replay and changes nothing. Inside a span
    /// every token counts, so a forced run may be accepted at once.
    pub fn accept_replay(&mut self, token: Token) -> Accept {
        let replay = !self.inside() && !self.applied;
        if replay { Accept::Ignored } else { self.accept(token) }
    }
}
