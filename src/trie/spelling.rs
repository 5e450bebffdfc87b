//! Whether the leaves of a trie spell their names in a vocabulary.
//!
//! Token ids do not identify the model that they were made for. But the tokens of every leaf must spell its name; one
//! that does not shows that the payload was made for another model. After the name there may be the closing delimiter,
//! the same in all leaves of a descriptor.

use super::compile::Trie;
use crate::Token;
use crate::gguf::shown;

/// The longest closing delimiter, in bytes: a leaf with more text after its name spells another name.
const DELIMITER: usize = 64 << 10;

impl Trie {
    /// The first leaf, in payload order, whose tokens do not spell its name, described; `None` when all do.
    ///
    /// `piece(token, special, out)` appends the bytes of one token, those of a special token only where `special` is
    /// set. A name may be spelled with or without its special tokens (a leaf may end in an end-of-generation token, or
    /// be one special token), and a space before it is allowed, as tokenizers put one before the first word. Text after
    /// the name is allowed where every leaf of the descriptor has the same.
    pub fn spelling(&self, mut piece: impl FnMut(Token, bool, &mut Vec<u8>)) -> Option<String> {
        let (mut tokens, mut plain, mut special) = (Vec::new(), Vec::new(), Vec::new());
        let mut delimiter = Vec::new();
        let mut descriptor = None;
        for leaf in &self.leaves {
            self.path_into(leaf.node, &mut tokens);
            let mut spell = |with_special: bool, out: &mut Vec<u8>| {
                out.clear();
                let mut rest = tokens.iter();
                while out.len() <= 1 + leaf.name.len() + DELIMITER
                    && let Some(&token) = rest.next()
                {
                    piece(token, with_special, out);
                }
            };
            let first = descriptor.replace(leaf.descriptor) != Some(leaf.descriptor);
            if first {
                delimiter.clear();
            }
            spell(false, &mut plain);
            if behind(&plain, &leaf.name).any(|rest| rest == delimiter) {
                continue;
            }
            spell(true, &mut special);
            if behind(&special, &leaf.name).any(|rest| rest == delimiter) {
                continue;
            }
            // The text after the name of a descriptor's first leaf is required after the names of all.
            if first && let Some(rest) = behind(&plain, &leaf.name).chain(behind(&special, &leaf.name)).next() {
                delimiter.extend_from_slice(rest);
                continue;
            }
            return Some(format!(
                "descriptors[{}].leaves[{}] is named \"{}\", but its tokens spell \"{}\"",
                leaf.descriptor,
                leaf.index,
                shown(&leaf.name),
                shown(&String::from_utf8_lossy(&special)),
            ));
        }
        None
    }
}

/// The text after a name in a text that begins with it, or with a space and it.
fn behind<'t>(text: &'t [u8], name: &str) -> impl Iterator<Item = &'t [u8]> {
    let spaced = text.strip_prefix(b" ");
    let rests = [Some(text), spaced].into_iter().filter_map(move |text| text?.strip_prefix(name.as_bytes()));
    rests.filter(|rest| rest.len() <= DELIMITER)
}
