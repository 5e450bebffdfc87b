//! The map of characters in files of SentencePiece vocabularies: what parts of a text are written as before the text is
//! tokenized (a Unicode normal form, mostly).
//!
//! It is a double array (Aoe, <https://doi.org/10.1109/32.31365>) of 32-bit nodes and a list of texts that end in NUL.
//! The node after a node at a byte is the one whose index is the exclusive or of the node's base and the byte, if it
//! names that byte. All texts that can be reached are checked when the file is read.

use crate::{Error, Result, reserve};

const KEY: &str = "tokenizer.ggml.precompiled_charsmap";
/// The most bytes of a part that is replaced, and of what it becomes. Unicode's normal forms stay below 64.
const LONGEST: usize = 128;
/// The most nodes; the maps of published vocabularies have some 60,000.
const MOST_NODES: usize = 1 << 20;
/// What memory is for, in errors.
const NODES: &str = "nodes of the map of characters";

#[derive(Default)]
pub(super) struct Charsmap {
    nodes: Vec<u32>,
    texts: Vec<u8>,
}

fn broken(problem: impl std::fmt::Display) -> Error {
    Error::Vocab(format!("Key `{KEY}`: {problem}"))
}

/// What a node has as its base.
fn base(node: u32) -> u32 {
    node >> 10 << ((node & 0x200) >> 6)
}

/// The byte that leads to a node; nodes with values lead nowhere.
fn is_at(node: u32, byte: u8) -> bool {
    node & 0x8000_00ff == u32::from(byte)
}

/// Whether a text ends at a node.
fn ends(node: u32) -> bool {
    node >> 8 & 1 == 1
}

/// Where the text of a value begins.
fn offset(value: u32) -> usize {
    (value & 0x7fff_ffff) as usize
}

impl Charsmap {
    /// From the bytes in a file: the size of the nodes in bytes, the nodes, the texts.
    pub(super) fn new(blob: &[u8]) -> Result<Self> {
        let Some((size, rest)) = blob.split_first_chunk() else {
            return Err(broken(format_args!("{} bytes are too few", blob.len())));
        };
        let size = u32::from_le_bytes(*size) as usize;
        let Some((nodes, texts)) = rest.split_at_checked(size).filter(|_| size.is_multiple_of(4) && size > 0) else {
            return Err(broken(format_args!("nodes of {size} bytes in a map of {} bytes", rest.len())));
        };
        if size / 4 > MOST_NODES {
            return Err(broken(format_args!("{} nodes; {MOST_NODES} are allowed", size / 4)));
        }
        let mut map = Charsmap { nodes: reserve::list(size / 4, NODES)?, texts: reserve::copied(texts, NODES)? };
        map.nodes.extend(nodes.chunks_exact(4).map(|node| u32::from_le_bytes([node[0], node[1], node[2], node[3]])));
        map.check()?;
        Ok(map)
    }

    /// The node after the one that has this place as its children's base, as that place of its own.
    fn follow(&self, place: u32, byte: u8) -> Option<(u32, u32)> {
        let at = place ^ u32::from(byte);
        let node = *self.nodes.get(at as usize).filter(|node| is_at(**node, byte))?;
        Some((node, at ^ base(node)))
    }

    /// The replacement at an offset of the texts.
    fn text_at(&self, value: u32) -> Option<&[u8]> {
        let rest = self.texts.get(offset(value)..)?;
        rest.iter().take(LONGEST + 1).position(|&b| b == 0).map(|len| &rest[..len])
    }

    /// Visit every node that can be reached, each once, and refuse texts that are not there.
    fn check(&self) -> Result<()> {
        // A place may be up to 255 after the last node whose bytes it shares; one further on leads nowhere.
        let mut is_seen = reserve::filled(false, self.nodes.len().next_multiple_of(256), NODES)?;
        let mut open = reserve::list(is_seen.len() + 1, NODES)?;
        open.push(base(self.nodes[0]));
        while let Some(place) = open.pop() {
            for (node, next) in (1..=u8::MAX).filter_map(|byte| self.follow(place, byte)) {
                if ends(node) {
                    let value = self.nodes.get(next as usize).copied();
                    let value =
                        value.ok_or_else(|| broken(format_args!("node {next} of {} is named", self.nodes.len())))?;
                    let text = self.text_at(value);
                    text.ok_or_else(|| {
                        broken(format_args!("no text of at most {LONGEST} bytes at {}", offset(value)))
                    })?;
                }
                if is_seen.get(next as usize) == Some(&false) {
                    is_seen[next as usize] = true;
                    open.push(next);
                }
            }
        }
        Ok(())
    }

    /// The longest part at the start of a text that is replaced, in bytes, and what it becomes.
    pub(super) fn replacement(&self, text: &[u8]) -> Option<(usize, &[u8])> {
        let mut place = base(*self.nodes.first()?);
        let mut found = None;
        // Nodes may lead to each other in a circle.
        for (len, &byte) in (1..=LONGEST).zip(text).take_while(|(_, byte)| **byte != 0) {
            let Some((node, next)) = self.follow(place, byte) else { break };
            place = next;
            if ends(node) {
                found = Some((len, place));
            }
        }
        let (len, place) = found?;
        Some((len, self.text_at(*self.nodes.get(place as usize)?)?))
    }
}
