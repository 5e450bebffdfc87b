//! Whether the leaves of a trie spell their names in a vocabulary.
//!
//! Token ids say nothing about the model they were made for. That the tokens of every leaf spell its name is the true
//! sign; one that does not betrays a payload made for another model.

use super::compile::Trie;
use crate::Token;

/// The longest spelling quoted, in characters.
const QUOTED: usize = 60;

impl Trie {
    /// The first leaf, in payload order, whose tokens do not spell its name, described; `None` when all do.
    ///
    /// `piece(token, special, out)` appends the bytes of one token, those of a special token only where `special` is
    /// set. A name may be spelled with or without its special tokens (a leaf may end in an end-of-generation token, or
    /// be one special token), and a space in front of it is allowed, as tokenizers put one before the first word.
    pub fn spelling(&self, mut piece: impl FnMut(Token, bool, &mut Vec<u8>)) -> Option<String> {
        let mut spelled = Vec::new();
        for leaf in &self.leaves {
            let tokens = self.path_to(leaf.node);
            let name = leaf.name.as_bytes();
            let mut spells = |special: bool| {
                spelled.clear();
                tokens.iter().for_each(|&token| piece(token, special, &mut spelled));
                spelled == name || spelled.strip_prefix(b" ").is_some_and(|rest| rest == name)
            };
            if spells(false) || spells(true) {
                continue;
            }
            return Some(format!(
                "descriptors[{}].leaves[{}] is named \"{}\", but its tokens spell \"{}\"",
                leaf.descriptor,
                leaf.index,
                quoted(&leaf.name),
                quoted(&String::from_utf8_lossy(&spelled)),
            ));
        }
        None
    }
}

fn quoted(text: &str) -> String {
    let mut short: String = text.chars().take(QUOTED).flat_map(char::escape_debug).collect();
    if text.chars().nth(QUOTED).is_some() {
        short.push('…');
    }
    short
}
