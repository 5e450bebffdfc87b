//! The compiled trie (prefix tree; Fredkin, "Trie memory", <https://doi.org/10.1145/367390.367400>): flat arrays in
//! breadth-first order, one tree per descriptor.
//!
//! Leaves are sorted by their tokens, so that a node is a range of them and its children are the runs of one token in
//! that range; no map is needed and equal payloads compile to equal arrays. Shared prefixes are merged; of two names
//! with one path the smaller (by UTF-16 code units, as the hosts compare) stays.

use std::ops::Range;
use std::sync::Weak;

use parking_lot::Mutex;

use super::payload::{self, MAX_NODES, RawDescriptor};
use crate::gguf::shown;
use crate::{Error, Result, Token};

/// A node of a [`Trie`], numbered parents first.
pub type Node = u32;

/// One closed set of words: a tree of its own inside the [`Trie`].
#[derive(Debug, Clone)]
pub struct Descriptor {
    path: String,
    nodes: Range<Node>,
    leaves: u32,
    depth: u32,
}

impl Descriptor {
    /// The path, the name of the set, verbatim from the payload.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The node before the first token.
    pub fn root(&self) -> Node {
        self.nodes.start
    }

    /// All nodes, the root first and every parent before its children.
    pub fn nodes(&self) -> Range<Node> {
        self.nodes.clone()
    }

    /// Leaves with different token sequences.
    pub fn leaves(&self) -> u32 {
        self.leaves
    }

    /// Tokens of the deepest leaf.
    pub fn depth(&self) -> u32 {
        self.depth
    }
}

/// A leaf: its name and its place in the payload.
#[derive(Debug)]
pub(super) struct Leaf {
    pub(super) name: String,
    pub(super) node: Node,
    pub(super) descriptor: u32,
    pub(super) index: u32,
}

/// One verdict of [`super::cache::spelling`]; the weak reference keeps the vocabulary's address from being reused.
pub(super) type Verdict = (Weak<dyn std::any::Any + Send + Sync>, Option<String>);

/// A compiled payload. Does not depend on a vocabulary; shared by streams through `Arc`.
#[derive(Debug)]
pub struct Trie {
    model_id: String,
    warnings: Vec<String>,
    descriptors: Vec<Descriptor>,
    /// Per node, and one more: its first edge.
    first_child: Vec<u32>,
    /// Per edge: its token, ascending inside a node.
    child_token: Vec<Token>,
    /// Per edge: the node it leads to.
    child_node: Vec<Node>,
    /// Per node: 1 + the index in `leaves`, or 0.
    leaf: Vec<u32>,
    /// Per node: the one above; a root is its own.
    parent: Vec<Node>,
    /// Per node: the token that leads to it; -1 at a root.
    token: Vec<Token>,
    /// In payload order.
    pub(super) leaves: Vec<Leaf>,
    max_token: Token,
    pub(super) verdicts: Mutex<Vec<Verdict>>,
}

impl Trie {
    /// Parses and compiles a payload (JSON in UTF-8).
    ///
    /// # Errors
    /// [`Error::Trie`], naming the place, for malformed JSON, a wrong type, a missing or duplicate key, two descriptors
    /// with one path, an id outside 0..2^31, a payload without any leaf, or one over the limits ([`super::MAX_NODES`]
    /// and its neighbours).
    pub fn parse(json: &[u8]) -> Result<Trie> {
        let payload = payload::read(json)?;
        let mut paths: Vec<(&str, usize)> =
            payload.descriptors.iter().enumerate().map(|(index, raw)| (raw.path.as_str(), index)).collect();
        paths.sort_unstable();
        let twin = paths.windows(2).filter(|pair| pair[0].0 == pair[1].0).min_by_key(|pair| pair[1].1);
        if let Some(&[(path, first), (_, second)]) = twin {
            return Err(Error::Trie {
                place: format!("descriptors[{second}].path"),
                problem: format!("\"{}\" is already the path of descriptors[{first}]", shown(path)),
            });
        }
        let mut trie = Trie {
            model_id: payload.model_id,
            warnings: Vec::new(),
            descriptors: Vec::new(),
            first_child: Vec::new(),
            child_token: Vec::new(),
            child_node: Vec::new(),
            leaf: Vec::new(),
            parent: Vec::new(),
            token: Vec::new(),
            leaves: Vec::new(),
            max_token: payload.tokens.iter().copied().max().unwrap_or(-1),
            verdicts: Mutex::new(Vec::new()),
        };
        for (index, raw) in payload.descriptors.into_iter().enumerate() {
            if raw.leaves.is_empty() {
                trie.warnings.push(format!(
                    "descriptors[{index}] (\"{}\") has no leaf with tokens and is left out",
                    shown(&raw.path)
                ));
            } else {
                trie.add(index, raw, &payload.tokens)?;
            }
        }
        if trie.descriptors.is_empty() {
            return Err(Error::Trie { place: "descriptors".into(), problem: "no leaf with tokens is left".into() });
        }
        trie.first_child.push(trie.child_token.len() as u32); // below MAX_NODES
        trie.leaves.shrink_to_fit();
        Ok(trie)
    }

    /// Compiles one descriptor and appends its nodes.
    fn add(&mut self, index: usize, mut raw: RawDescriptor, tokens: &[Token]) -> Result<()> {
        let path_of = |range: &Range<usize>| tokens.get(range.clone()).unwrap_or_default();
        // Sorting by index after the name makes the order total, so that equal leaves have the place of their first
        // occurrence.
        raw.leaves.sort_unstable_by(|a, b| {
            path_of(&a.tokens)
                .cmp(path_of(&b.tokens))
                .then_with(|| a.name.encode_utf16().cmp(b.name.encode_utf16()))
                .then(a.index.cmp(&b.index))
        });
        let root = self.parent.len() as Node;
        let first_leaf = self.leaves.len();
        let mut depth = 0;
        // Per node of this descriptor: its range of `raw.leaves` and its depth.
        let mut ranges = vec![(0..raw.leaves.len(), 0)];
        self.node(index, root, -1)?;
        let mut at = 0;
        while let Some((range, level)) = ranges.get(at).cloned() {
            let node = root + at as Node;
            at += 1;
            let mut rest = raw.leaves.get_mut(range.clone()).unwrap_or_default();
            let here = rest.partition_point(|leaf| leaf.tokens.len() == level);
            let mut start = range.start + here;
            let (ends, longer) = rest.split_at_mut(here);
            rest = longer;
            if let Some(place) = ends.iter().map(|leaf| leaf.index).min() {
                let name = std::mem::take(&mut ends[0].name);
                self.leaves.push(Leaf { name, node, descriptor: index as u32, index: place });
                depth = depth.max(level as u32);
            }
            self.first_child.push(self.child_token.len() as u32);
            let token_at = |leaf: &payload::RawLeaf| path_of(&leaf.tokens).get(level).copied().unwrap_or(-1);
            while let Some(token) = rest.first().map(token_at) {
                let run = rest.partition_point(|leaf| token_at(leaf) == token);
                self.child_token.push(token);
                self.child_node.push(self.parent.len() as Node);
                self.node(index, node, token)?;
                ranges.push((start..start + run, level + 1));
                start += run;
                rest = &mut rest[run..];
            }
        }
        let end = self.parent.len() as Node;
        let leaves = self.leaves.get_mut(first_leaf..).unwrap_or_default();
        leaves.sort_unstable_by_key(|leaf| leaf.index);
        for (number, leaf) in leaves.iter().enumerate() {
            self.leaf[leaf.node as usize] = (first_leaf + number) as u32 + 1;
        }
        let leaves = leaves.len() as u32;
        self.descriptors.push(Descriptor { path: raw.path, nodes: root..end, leaves, depth });
        Ok(())
    }

    fn node(&mut self, descriptor: usize, parent: Node, token: Token) -> Result<()> {
        if self.parent.len() >= MAX_NODES {
            return Err(Error::Trie {
                place: format!("descriptors[{descriptor}]"),
                problem: format!("the trie grows beyond {MAX_NODES} nodes"),
            });
        }
        self.parent.push(parent);
        self.token.push(token);
        self.leaf.push(0);
        Ok(())
    }

    /// The payload's `modelId`; empty when it had none.
    pub fn model_id(&self) -> &str {
        &self.model_id
    }

    /// What was left out of the payload, one sentence each.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The descriptors in payload order; those without a leaf are not among them. Never empty.
    pub fn descriptors(&self) -> &[Descriptor] {
        &self.descriptors
    }

    /// All nodes of all descriptors.
    pub fn nodes(&self) -> usize {
        self.parent.len()
    }

    /// The largest token id of any leaf.
    pub fn max_token(&self) -> Token {
        self.max_token
    }

    /// Bytes of memory the trie holds.
    pub fn bytes(&self) -> usize {
        let text: usize = self.leaves.iter().map(|leaf| leaf.name.capacity() + size_of::<Leaf>()).sum::<usize>()
            + self.descriptors.iter().map(|one| one.path.capacity() + size_of::<Descriptor>()).sum::<usize>()
            + self.warnings.iter().map(|one| one.capacity() + size_of::<String>()).sum::<usize>();
        let words = self.first_child.capacity()
            + self.child_token.capacity()
            + self.child_node.capacity()
            + self.leaf.capacity()
            + self.parent.capacity()
            + self.token.capacity();
        size_of::<Trie>() + self.model_id.capacity() + text + 4 * words
    }

    fn edges(&self, node: Node) -> Range<usize> {
        let at = node as usize;
        match self.first_child.get(at..at + 2) {
            Some(&[start, end]) => start as usize..end as usize,
            _ => 0..0,
        }
    }

    /// The tokens that continue from `node`, ascending.
    pub fn children(&self, node: Node) -> &[Token] {
        self.child_token.get(self.edges(node)).unwrap_or_default()
    }

    /// The child nodes, in the order of [`Self::children`].
    pub fn child_nodes(&self, node: Node) -> &[Node] {
        self.child_node.get(self.edges(node)).unwrap_or_default()
    }

    /// The child of `node` for `token`, if there is one.
    pub fn child(&self, node: Node, token: Token) -> Option<Node> {
        let index = self.children(node).binary_search(&token).ok()?;
        self.child_nodes(node).get(index).copied()
    }

    /// The name of the leaf that ends at `node`, if one does.
    pub fn leaf(&self, node: Node) -> Option<&str> {
        let number = *self.leaf.get(node as usize)?;
        self.leaves.get((number as usize).checked_sub(1)?).map(|leaf| leaf.name.as_str())
    }

    /// Whether a leaf ends at `node`.
    pub fn is_leaf(&self, node: Node) -> bool {
        self.leaf.get(node as usize).is_some_and(|&number| number != 0)
    }

    /// The node above `node`; a root is its own parent.
    pub fn parent(&self, node: Node) -> Node {
        self.parent.get(node as usize).copied().unwrap_or(node)
    }

    /// The token that leads to `node`; -1 at a root.
    pub fn token(&self, node: Node) -> Token {
        self.token.get(node as usize).copied().unwrap_or(-1)
    }

    /// The tokens from the root to `node`.
    pub fn path_to(&self, node: Node) -> Vec<Token> {
        let mut tokens = Vec::new();
        self.path_into(node, &mut tokens);
        tokens
    }

    /// [`Self::path_to`], written to `tokens`.
    pub(super) fn path_into(&self, mut node: Node, tokens: &mut Vec<Token>) {
        tokens.clear();
        while self.token(node) >= 0 {
            tokens.push(self.token(node));
            node = self.parent(node);
        }
        tokens.reverse();
    }

    /// Checks that every token is one of `0..n_vocab`.
    ///
    /// # Errors
    /// [`Error::Trie`] naming the first token, in payload order, that is not.
    pub fn check_vocab(&self, n_vocab: usize) -> Result<()> {
        let outside = |token: Token| usize::try_from(token).is_ok_and(|id| id >= n_vocab);
        if !outside(self.max_token) {
            return Ok(());
        }
        for leaf in &self.leaves {
            let tokens = self.path_to(leaf.node);
            if let Some((at, token)) = tokens.iter().enumerate().find(|(_, token)| outside(**token)) {
                return Err(Error::Trie {
                    place: format!("descriptors[{}].leaves[{}].tokens[{at}]", leaf.descriptor, leaf.index),
                    problem: format!("token {token} is outside the vocabulary of {n_vocab} tokens"),
                });
            }
        }
        Ok(())
    }
}
