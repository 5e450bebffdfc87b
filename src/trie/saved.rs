//! A trie state in a form that can be saved.
//!
//! Nodes are identified by the tokens that lead to them and the trie by a hash of its content, so that neither depends
//! on how a trie is compiled.

use super::compile::Node;
use super::{Descriptor, Trie, TrieState};
use crate::gguf::shown;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// A [`TrieState`] without its trie.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedState {
    /// [`Trie::digest`], in hexadecimal.
    trie: String,
    mode: i32,
    /// Path of the descriptor armed last.
    descriptor: String,
    /// Tokens from its root to the current node; `None` when released.
    at: Option<Vec<crate::Token>>,
    /// Tokens of the leaf completed last.
    completed: Option<Vec<crate::Token>>,
    counted: u32,
}

impl Trie {
    /// A hash of the descriptors, their leaves' names and tokens. Payloads that say the same have the same.
    pub fn digest(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        let mut text = |text: &str| {
            hash.update((text.len() as u64).to_le_bytes());
            hash.update(text);
        };
        for descriptor in self.descriptors() {
            text(descriptor.path());
            // In breadth-first order the numbers of children and the tokens determine the tree.
            for node in descriptor.nodes() {
                text(&format!("{} {}", self.token(node), self.children(node).len()));
                self.leaf(node).into_iter().for_each(&mut text);
            }
        }
        hash.finalize().into()
    }

    /// The node of a descriptor that these tokens lead to.
    fn node_at(&self, descriptor: &Descriptor, tokens: &[crate::Token]) -> Option<Node> {
        tokens.iter().try_fold(descriptor.root(), |node, &token| self.child(node, token))
    }
}

fn hexadecimal(digest: [u8; 32]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl SavedState {
    /// Whether the constraint was in force.
    pub fn is_armed(&self) -> bool {
        self.at.is_some()
    }
}

impl TrieState {
    /// The state for [`TrieState::restored`].
    pub fn saved(&self) -> SavedState {
        let path = |node: Option<Node>| node.map(|node| self.trie().path_to(node));
        SavedState {
            trie: hexadecimal(self.trie().digest()),
            mode: self.mode() as i32,
            descriptor: self.descriptor().map_or("", Descriptor::path).into(),
            at: path(self.node()),
            completed: path(self.completed()),
            counted: self.counted(),
        }
    }

    /// The saved state over this state's trie and mode.
    ///
    /// # Errors
    /// The reason as text: another trie or mode.
    pub fn restored(&self, saved: &SavedState) -> std::result::Result<TrieState, String> {
        let own = hexadecimal(self.trie().digest());
        if saved.trie != own {
            return Err(format!(
                "saved with the token trie {}, where {} is set",
                shown(&short(&saved.trie)),
                short(&own)
            ));
        }
        if saved.mode != self.mode() as i32 {
            return Err(format!("saved in mode {} of the token trie, where {} is set", saved.mode, self.mode() as i32));
        }
        let nowhere = || format!("a place that the token trie does not have in \"{}\"", shown(&saved.descriptor));
        let index = self.trie().descriptors().iter().position(|one| one.path() == saved.descriptor);
        let index = index.ok_or_else(nowhere)?;
        let find = |tokens: &Option<Vec<crate::Token>>| {
            let tokens = tokens.as_ref();
            tokens
                .map(|tokens| self.trie().node_at(&self.trie().descriptors()[index], tokens).ok_or_else(nowhere))
                .transpose()
        };
        let (node, completed) = (find(&saved.at)?, find(&saved.completed)?);
        let stands = |node: Node| !self.trie().children(node).is_empty();
        if !node.is_none_or(stands) || !completed.is_none_or(|leaf| self.trie().is_leaf(leaf)) {
            return Err(nowhere());
        }
        let restored = TrieState::at(self.trie().clone(), self.mode(), index, node, completed, saved.counted);
        if restored.is_armed() && restored.is_overdue() {
            return Err(format!("a span of {} tokens that is still in force", saved.counted));
        }
        Ok(restored)
    }
}

/// The first digits of a hash, for messages.
fn short(hash: &str) -> String {
    hash.chars().take(16).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::Token;
    use crate::trie::Mode;
    use std::sync::Arc;

    fn state(json: &str, mode: Mode) -> TrieState {
        TrieState::new(Arc::new(Trie::parse(json.as_bytes()).unwrap()), mode)
    }

    const TWO: &str = r#"{"descriptors":[
        {"path":"a","leaves":[{"name":"x","tokens":[1,2,3]},{"name":"y","tokens":[1,2]},{"name":"z","tokens":[4,5]}]},
        {"path":"b","leaves":[{"name":"x","tokens":[7,8]}]}]}"#;

    /// What a state can be asked, and what it will do.
    fn seen(state: &TrieState) -> String {
        format!(
            "{:?} {:?} {:?} {:?}",
            state.descriptor().unwrap().path(),
            state.node(),
            state.leaf_name(),
            state.counted()
        )
    }

    #[test]
    fn every_place_comes_back() {
        for (path, walk) in [("a", &[1, 2, 3][..]), ("a", &[1, 2, 9]), ("a", &[4, 5]), ("a", &[6, 1]), ("b", &[7, 8])] {
            let mut state = state(TWO, Mode::Sampled);
            state.arm(Some(path)).unwrap();
            for &token in walk.iter().chain(&[1]) {
                let text = serde_json::to_string(&state.saved()).unwrap();
                let saved: SavedState = serde_json::from_str(&text).unwrap();
                assert_eq!(saved.is_armed(), state.is_armed());
                let fresh = TrieState::new(state.trie().clone(), Mode::Sampled);
                let mut back = fresh.restored(&saved).unwrap();
                assert_eq!(seen(&back), seen(&state));
                assert_eq!(back.accept(token), state.accept(token));
                assert_eq!(seen(&back), seen(&state));
            }
        }
    }

    #[test]
    fn another_trie_or_mode_is_told() {
        let saved = state(TWO, Mode::Greedy).saved();
        let refusal = |json: &str, mode| state(json, mode).restored(&saved).unwrap_err();
        assert!(refusal(TWO, Mode::Sampled).contains("mode 0"));
        for (from, to) in
            [("[4,5]", "[4,6]"), ("\"z\"", "\"w\""), ("\"b\"", "\"c\""), ("[1,2]", "[1]"), ("[1,2,3]", "[1,3]")]
        {
            assert!(refusal(&TWO.replacen(from, to, 1), Mode::Greedy).contains("saved with the token trie"), "{from}");
        }
        // The same in other words.
        let same = TWO.replace(['\n', ' '], "").replacen('{', r#"{"modelId":"other","#, 1);
        assert_eq!(seen(&state(&same, Mode::Greedy).restored(&saved).unwrap()), seen(&state(TWO, Mode::Greedy)));
    }

    #[test]
    fn l2_a_count_that_would_release_the_constraint_is_refused() {
        let state = state(TWO, Mode::Greedy);
        let with = |counted| state.restored(&SavedState { counted, ..state.saved() });
        assert!(with(499).unwrap().is_armed());
        for counted in [500, 501, u32::MAX] {
            assert!(with(counted).unwrap_err().contains(&format!("{counted} tokens")), "{counted}");
        }
        // Released, it counts nothing any more.
        let mut over = state.clone();
        for token in [4, 5] {
            over.accept(token);
        }
        assert!(!state.restored(&SavedState { counted: 500, ..over.saved() }).unwrap().is_armed());
    }

    #[test]
    fn places_that_are_none_are_refused() {
        let state = state(TWO, Mode::Greedy);
        let nowhere = |at: Option<&[Token]>, completed: Option<&[Token]>, descriptor: &str| {
            let (at, completed) = (at.map(<[_]>::to_vec), completed.map(<[_]>::to_vec));
            let saved = SavedState { at, completed, descriptor: descriptor.into(), ..state.saved() };
            state.restored(&saved).unwrap_err()
        };
        let leaf = [1, 2, 3];
        for text in [
            nowhere(Some(&[2]), None, "a"),
            nowhere(Some(&leaf), None, "a"),
            nowhere(None, Some(&[1]), "a"),
            nowhere(Some(&[1]), None, "b"),
            nowhere(None, None, "c"),
        ] {
            assert!(text.contains("a place that the token trie does not have"), "{text}");
        }
    }
}
