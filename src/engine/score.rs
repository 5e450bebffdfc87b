//! The probability of each leaf of a trie as the continuation of a slot, for all leaves in few passes.
//!
//! Every node with children is a row. It sees the slot's cells and those of its ancestors: tree attention
//! ([`crate::backend::tree_row`]; Miao et al., "SpecInfer", <https://arxiv.org/abs/2305.09781>). Nodes run depth-first,
//! as many in a pass as a pass can have rows, in cells that are freed at the end. Where the model keeps a state or has
//! windows, the ancestors of a pass's first node run again, so that every pass is a tree that goes on from the slot's
//! last token; its cells are freed after it. The slot is unchanged, and its next logits are those of its own last
//! position.

use super::{Engine, SlotId};
use crate::backend::{MAX_TREE_NODES, NO_STATE, StateRows, tree_cell, tree_row};
use crate::trie::{Descriptor, Node, Trie};
use crate::{Error, Result, Token, reserve};
use std::ops::Range;
use std::sync::atomic::AtomicBool;

/// What memory is reserved for, in errors.
const NODES: &str = "nodes of a trie";

/// The probability of a leaf.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LeafScore {
    /// The leaf.
    pub node: Node,
    /// Its number of tokens.
    pub tokens: u32,
    /// Natural logarithm of the probability that exactly this leaf follows: the product of its tokens' probabilities,
    /// each among the whole vocabulary, and, where the leaf is a prefix of others, of the probability that none of
    /// their tokens follows.
    pub logprob: f64,
}

impl LeafScore {
    /// `logprob` divided by the number of tokens, which does not favour short leaves.
    pub fn logprob_per_token(&self) -> f64 {
        self.logprob / f64::from(self.tokens.max(1))
    }
}

impl Engine {
    /// Score the leaves of a descriptor as continuations of the slot's tokens, in the order of their nodes. The slot
    /// must be the one that was evaluated last. The logits are the model's own, without chain or bias.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] where the context has no room for the deepest leaf, or no cells for all nodes;
    /// [`Error::InvalidArgument`] for more than 32,768 nodes and for a slot that was not evaluated last;
    /// [`Error::NanLogits`]; [`Error::Cancelled`]; [`Error::Device`] where a device fails. The slot is unchanged then,
    /// too.
    pub fn score(
        &mut self,
        slot: SlotId,
        trie: &Trie,
        descriptor: &Descriptor,
        cancel: &AtomicBool,
    ) -> Result<Vec<LeafScore>> {
        self.rollback()?;
        if self.hidden_of != Some(slot) {
            return Err(Error::InvalidArgument(
                "Leaves were to be scored in a slot that was not evaluated last".into(),
            ));
        }
        let tree = Tree::new(trie, descriptor)?;
        let room = self.room(slot);
        if tree.deepest as usize > room {
            let deepest = tree.deepest;
            return Err(Error::OutOfMemory(format!("A leaf of {deepest} tokens in a context with room for {room}")));
        }
        let again = self.slots.forgets();
        if again && tree.deepest as usize > self.plans.batch() {
            let (deepest, batch) = (tree.deepest, self.plans.batch());
            return Err(Error::InvalidArgument(format!("A leaf of {deepest} tokens, above the {batch} of a pass")));
        }
        self.catch_up(slot, cancel)?;
        let last = self.last_hidden()?;
        let mut cells = reserve::list(tree.rows.len(), "cells")?;
        let scored = self.score_nodes(slot, &tree, &mut cells, cancel);
        self.slots.free_cells(cells);
        self.put_last_hidden(slot, &last)?;
        scored
    }

    /// Score all nodes; `cells` takes those that have to be freed.
    fn score_nodes(
        &mut self,
        slot: SlotId,
        tree: &Tree<'_>,
        cells: &mut Vec<u32>,
        cancel: &AtomicBool,
    ) -> Result<Vec<LeafScore>> {
        let mut logprobs = reserve::filled(0.0, tree.nodes.len(), NODES)?;
        let mut none_goes_on = reserve::filled(0.0, tree.nodes.len(), NODES)?;
        let mut score = |node: Node, logits: &[f32]| -> Result<()> {
            let at = tree.index(node);
            let (children, tokens) = (tree.trie.child_nodes(node), tree.trie.children(node));
            let mut all = Shares::of(logits)?;
            for (&child, &token) in children.iter().zip(tokens) {
                logprobs[tree.index(child)] = logprobs[at] + all.logprob(logits[token as usize]);
                all.take_out(logits[token as usize]);
            }
            if tree.trie.is_leaf(node) {
                none_goes_on[at] = all.logprob_of_rest(logits, tokens);
            }
            Ok(())
        };
        self.run_head(slot, &[], &[], cancel)?;
        score(tree.nodes.start, self.logits(1)?)?;
        let mut rest = &tree.rows[..];
        while let Some(&first) = rest.first() {
            let again = self.slots.forgets();
            let mut nodes = if again { tree.ancestors(first)? } else { Vec::new() };
            let above = nodes.len();
            let (rows, later) = rest.split_at(rest.len().min(self.plans.batch() - above));
            reserve::extend(&mut nodes, rows, NODES)?;
            self.enter_nodes(slot, tree, (cells.len(), &nodes), above)?;
            self.hidden_of = None;
            let done = self.run_inputs(true, cancel);
            match done.is_ok() && !again {
                true => cells.extend_from_slice(&self.inputs.cells),
                false => self.free_input_cells(),
            }
            done?;
            self.each_logits(rows.len(), cancel, &mut |row, logits| score(rows[row], logits))?;
            rest = later;
        }
        let leaves = tree.nodes.clone().filter(|&node| tree.trie.is_leaf(node));
        let leaf = |node: Node| {
            let at = tree.index(node);
            LeafScore { node, tokens: tree.depths[at], logprob: logprobs[at] + none_goes_on[at] }
        };
        let mut scores = reserve::list(tree.nodes.len(), "scores of leaves")?;
        scores.extend(leaves.map(leaf));
        Ok(scores)
    }

    /// Enter nodes, parents before their children, into the inputs as rows after the slot's tokens and `held` nodes
    /// whose cells are kept, with a cell for each. Those from index `wanted` on are output rows.
    fn enter_nodes(
        &mut self,
        slot: SlotId,
        tree: &Tree<'_>,
        (held, nodes): (usize, &[Node]),
        wanted: usize,
    ) -> Result<()> {
        let (bit, len) = (slot.bit(), self.position(slot));
        self.spare_window(slot, len + nodes.len())?;
        if held == 0 {
            self.unstick(slot, 0)?;
        }
        self.inputs.clear();
        self.make_room(slot, held + nodes.len(), 0);
        let place = self.slots.next_place(slot) + held;
        for (i, &node) in nodes.iter().enumerate() {
            let at = tree.index(node);
            let (position, word) =
                ((len - 1) as i32 + tree.depths[at] as i32, tree_cell(tree.numbers[at], tree.ends[at]));
            let mut cell = self.slots.take_cell(slot, place + i, position, word);
            if self.slots.windows().any() && cell.is_some() {
                match self.slots.windows_mut().enter(slot.0, len + i, position, word, bit) {
                    Some(window) => self.inputs.window.push(window),
                    None => self.slots.free_cells(cell.take()),
                }
            }
            let Some(cell) = cell else {
                self.free_input_cells();
                let (n, max) = (tree.rows.len(), self.context());
                return Err(Error::OutOfMemory(format!("{n} nodes of a trie to score, in a context of {max}")));
            };
            self.inputs.push(tree.trie.token(node), position, tree_row(tree.numbers[at], bit), cell);
        }
        self.inputs.outputs.extend(wanted as u32..nodes.len() as u32);
        if self.slots.states().any() {
            let (_, from) = self.slots.states().nearest(slot.0, self.position(slot));
            self.inputs.states.push(StateRows { first: 0, rows: nodes.len() as u32, from, to: NO_STATE });
            // Depth-first: a parent is the last node before its child that has it among its descendants.
            let parents = (0..nodes.len()).map(|row| {
                let parent = tree.trie.parent(nodes[row]);
                nodes[..row].iter().rposition(|&node| node == parent).map_or(NO_STATE, |row| row as u32)
            });
            self.inputs.parents.extend(parents);
        }
        Ok(())
    }
}

/// A descriptor's nodes, prepared for tree attention. Indices count from the root.
struct Tree<'a> {
    trie: &'a Trie,
    nodes: Range<Node>,
    /// Nodes below the root that have children, depth-first.
    rows: Vec<Node>,
    depths: Vec<u32>,
    deepest: u32,
    /// Depth-first numbers: those of a node's descendants follow its own, up to its end.
    numbers: Vec<u32>,
    ends: Vec<u32>,
}

impl<'a> Tree<'a> {
    fn new(trie: &'a Trie, descriptor: &Descriptor) -> Result<Tree<'a>> {
        let nodes = descriptor.nodes();
        let n = nodes.len();
        let root = nodes.start;
        let index = |node: Node| (node - root) as usize;
        let is_row = |node: Node| node != root && !trie.children(node).is_empty();
        let mut rows: Vec<Node> = reserve::list(n, NODES)?;
        rows.extend(nodes.clone().filter(|&node| is_row(node)));
        if rows.len() > MAX_TREE_NODES {
            let problem = format!("{} nodes of a trie to score, above {MAX_TREE_NODES}", rows.len());
            return Err(Error::InvalidArgument(problem));
        }
        // Of rows alone, itself included.
        let mut sizes = reserve::filled(0u32, n, NODES)?;
        for node in nodes.clone().rev() {
            sizes[index(node)] += u32::from(is_row(node));
            if node != root {
                sizes[index(trie.parent(node))] += sizes[index(node)];
            }
        }
        let [mut depths, mut numbers, mut ends] =
            [reserve::filled(0, n, NODES)?, reserve::filled(0, n, NODES)?, reserve::filled(0, n, NODES)?];
        for node in nodes.clone() {
            let at = index(node);
            ends[at] = numbers[at] + sizes[at];
            let mut next = numbers[at] + u32::from(is_row(node));
            for child in trie.child_nodes(node).iter().map(|&child| index(child)) {
                depths[child] = depths[at] + 1;
                numbers[child] = next;
                next += sizes[child];
            }
        }
        rows.sort_unstable_by_key(|&node| numbers[index(node)]);
        Ok(Tree { trie, nodes, rows, depths, deepest: descriptor.depth(), numbers, ends })
    }

    /// The nodes between the root and this one, from above.
    fn ancestors(&self, node: Node) -> Result<Vec<Node>> {
        let mut above = reserve::list(self.depths[self.index(node)] as usize, NODES)?;
        let mut parent = self.trie.parent(node);
        while parent != self.nodes.start {
            above.push(parent);
            parent = self.trie.parent(parent);
        }
        above.reverse();
        Ok(above)
    }

    fn index(&self, node: Node) -> usize {
        (node - self.nodes.start) as usize
    }
}

/// The probabilities of tokens by a row of logits.
struct Shares {
    best: f64,
    /// Sum of e^(logit - best) over the row.
    total: f64,
    /// The part of it that was subtracted.
    out: f64,
}

impl Shares {
    fn of(logits: &[f32]) -> Result<Shares> {
        if let Some(token) = logits.iter().position(|x| x.is_nan()) {
            return Err(Error::NanLogits { row: 0, token });
        }
        let best = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        let total = logits.iter().map(|&x| (f64::from(x) - best).exp()).sum();
        Ok(Shares { best, total, out: 0.0 })
    }

    fn logprob(&self, logit: f32) -> f64 {
        f64::from(logit) - self.best - self.total.ln()
    }

    fn take_out(&mut self, logit: f32) {
        self.out += (f64::from(logit) - self.best).exp();
    }

    /// The log-probability of all tokens but `tokens`, which were subtracted. Where little is left it is summed again,
    /// because the difference of the two sums would be mostly rounding error.
    fn logprob_of_rest(&self, logits: &[f32], tokens: &[Token]) -> f64 {
        let mut rest = self.total - self.out;
        if rest < 1e-3 * self.total {
            let others = (0..logits.len()).filter(|&i| tokens.binary_search(&(i as Token)).is_err());
            rest = others.map(|i| (f64::from(logits[i]) - self.best).exp()).sum();
        }
        rest.ln() - self.total.ln()
    }
}
