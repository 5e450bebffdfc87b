//! The texts of a vocabulary's tokens as one byte trie, flat and depth first.
//!
//! A walk over it reads nodes in order and skips a whole subtree where no token can be legal. It is built once for each
//! vocabulary, and all grammars of that vocabulary share it. Texts are those of a reply with special tokens written
//! out, so that a grammar's characters can match a control token's text. Left out are tokens that end a generation,
//! which are judged apart, those without a text, and those that begin with a zero byte, which no grammar ever allows.

use super::mask::Locals;
use crate::vocab::Vocab;
use crate::{Result, Token, reserve};
use parking_lot::Mutex;
use std::sync::{Arc, Weak};

const NODES: &str = "nodes of a vocabulary's trie";

/// One byte after its parent's text.
#[derive(Debug, Clone, Copy)]
pub(super) struct Node {
    /// The first node that is no descendant.
    pub(super) end: u32,
    /// Its first token in [`Tree::ids`]; the next node's is the end.
    pub(super) tokens: u32,
    pub(super) depth: u16,
    pub(super) byte: u8,
}

/// The trie of a vocabulary.
pub(super) struct Tree {
    /// In depth-first order, the root left out; a last one closes the list.
    pub(super) nodes: Vec<Node>,
    /// Tokens in the order of the nodes.
    pub(super) ids: Vec<Token>,
    /// A bit for each token in the trie.
    pub(super) all: Vec<u32>,
    pub(super) eog: Vec<Token>,
    pub(super) n_vocab: usize,
    pub(super) max_depth: usize,
    /// How many nodes are at and below each first byte.
    pub(super) below: Vec<(u8, usize)>,
    pub(super) locals: Locals,
    /// What llguidance made of the vocabulary, from its first grammar in Lark on.
    #[cfg(feature = "llguidance")]
    pub(super) factory: Mutex<Option<Arc<llguidance::ParserFactory>>>,
    texts: Vec<u8>,
    /// For each token where its text begins; then the end.
    begins: Vec<u32>,
}

impl Tree {
    /// The trie of a vocabulary, built now if no grammar of it is in use.
    pub(super) fn of(vocab: &Arc<Vocab>) -> Result<Arc<Tree>> {
        static KNOWN: Mutex<Vec<(Weak<Vocab>, Arc<Tree>)>> = Mutex::new(Vec::new());
        // The lock is held while a trie is built, so that it is built once.
        let mut known = KNOWN.lock();
        known.retain(|(held, _)| held.strong_count() > 0);
        if let Some((_, tree)) = known.iter().find(|(held, _)| std::ptr::eq(held.as_ptr(), Arc::as_ptr(vocab))) {
            return Ok(tree.clone());
        }
        let tree = Arc::new(Tree::build(vocab)?);
        known.push((Arc::downgrade(vocab), tree.clone()));
        Ok(tree)
    }

    fn build(vocab: &Vocab) -> Result<Tree> {
        let n_vocab = vocab.n_tokens();
        let mut begins = reserve::list(n_vocab + 1, NODES)?;
        let mut texts = Vec::new();
        for token in 0..n_vocab as Token {
            begins.push(texts.len() as u32);
            reserve::reserve(&mut texts, vocab.max_piece_bytes(), NODES)?;
            // A token that its makers want never sampled is never legal: other tokens spell its text.
            if !vocab.is_eog(token) && !vocab.suppressed().contains(&token) {
                vocab.piece(token, true, &mut texts);
            }
        }
        begins.push(texts.len() as u32);
        let mut tree = Tree {
            nodes: Vec::new(),
            ids: reserve::list(n_vocab, NODES)?,
            all: reserve::filled(0, n_vocab.div_ceil(32), NODES)?,
            eog: reserve::copied(vocab.eog_tokens(), NODES)?,
            n_vocab,
            max_depth: 0,
            below: Vec::new(),
            locals: Locals::default(),
            #[cfg(feature = "llguidance")]
            factory: Mutex::default(),
            texts,
            begins,
        };
        // Sorted by the first eight bytes as one number, then by all.
        let mut order: Vec<(u64, Token)> = reserve::list(n_vocab, NODES)?;
        for token in 0..n_vocab as Token {
            let text = tree.text(token);
            if text.first().is_some_and(|&byte| byte != 0) {
                let mut key = [0; 8];
                let head = text.len().min(8);
                key[..head].copy_from_slice(&text[..head]);
                order.push((u64::from_be_bytes(key), token));
            }
        }
        order.sort_unstable_by(|a, b| {
            a.0.cmp(&b.0).then_with(|| tree.text(a.1).cmp(tree.text(b.1))).then(a.1.cmp(&b.1))
        });
        tree.fill(&order)?;
        let mut at = 0;
        while at + 1 < tree.nodes.len() {
            let end = tree.nodes[at].end as usize;
            tree.below.push((tree.nodes[at].byte, end - at));
            at = end;
        }
        Ok(tree)
    }

    fn fill(&mut self, order: &[(u64, Token)]) -> Result<()> {
        // The nodes of the last text, from the first byte on.
        let mut path: Vec<u32> = Vec::new();
        let mut last: &[u8] = &[];
        for &(_, token) in order {
            let range = self.begins[token as usize] as usize..self.begins[token as usize + 1] as usize;
            let text = &self.texts[range];
            let text = &text[..text.len().min(usize::from(u16::MAX))];
            let same = last.iter().zip(text).take_while(|(a, b)| a == b).count();
            for node in path.drain(same..) {
                self.nodes[node as usize].end = self.nodes.len() as u32;
            }
            for (depth, &byte) in text.iter().enumerate().skip(same) {
                path.push(self.nodes.len() as u32);
                let node = Node { end: 0, tokens: self.ids.len() as u32, depth: depth as u16, byte };
                reserve::push(&mut self.nodes, node, NODES)?;
            }
            self.max_depth = self.max_depth.max(text.len());
            self.all[token as usize / 32] |= 1 << (token % 32);
            self.ids.push(token);
            last = text;
        }
        for node in path {
            self.nodes[node as usize].end = self.nodes.len() as u32;
        }
        let close = Node { end: self.nodes.len() as u32, tokens: self.ids.len() as u32, depth: 0, byte: 0 };
        reserve::push(&mut self.nodes, close, NODES)
    }

    /// The text of a token; empty for one that ends a generation.
    #[inline]
    pub(super) fn text(&self, token: Token) -> &[u8] {
        let token = token as usize;
        &self.texts[self.begins[token] as usize..self.begins[token + 1] as usize]
    }

    /// Whether the token is in the trie.
    pub(super) fn has(&self, token: Token) -> bool {
        usize::try_from(token).is_ok_and(|t| self.all.get(t / 32).is_some_and(|word| word >> (t % 32) & 1 == 1))
    }

    pub(super) fn is_eog(&self, token: Token) -> bool {
        self.eog.binary_search(&token).is_ok()
    }

    /// The tokens of the node `index`.
    #[inline]
    pub(super) fn tokens(&self, index: usize) -> &[Token] {
        &self.ids[self.nodes[index].tokens as usize..self.nodes[index + 1].tokens as usize]
    }

    /// The nodes along a text, from the first byte on, as far as there are any.
    fn along(&self, text: &[u8]) -> impl Iterator<Item = usize> {
        let (mut next, mut end) = (0, self.nodes.len() - 1);
        text.iter().map_while(move |&byte| {
            let mut at = next;
            while at < end && self.nodes[at].byte != byte {
                at = self.nodes[at].end as usize;
            }
            (at < end).then(|| {
                (next, end) = (at + 1, self.nodes[at].end as usize);
                at
            })
        })
    }

    /// The longest token that a text begins with.
    pub(super) fn longest(&self, text: &[u8]) -> Option<Token> {
        self.along(text).filter_map(|node| self.tokens(node).first().copied()).last()
    }

    /// The node of a text, if there is one.
    pub(super) fn find(&self, text: &[u8]) -> Option<usize> {
        self.along(text).nth(text.len().checked_sub(1)?)
    }
}
