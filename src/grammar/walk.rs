//! Walks over the vocabulary: the tokens that fit in a state.

use super::code::Op;
use super::mask::Mask;
use super::tables::{DEAD, Step, Tables};
use super::vocabulary::Tree;
use crate::{Token, reserve};
use std::sync::Arc;

const WORDS: &str = "words of a mask";

/// The mask of a state, computed now.
pub(super) fn mask(tables: &mut Tables, tree: &Tree, state: u32) -> Step<Arc<Mask>> {
    let mut bits = reserve::filled(0u32, tree.n_vocab.div_ceil(32), WORDS)?;
    if tables.state(state).has_tokens {
        for op in tables.token_ops(state) {
            match op {
                Op::Token(token) if tree.has(token) => set(&mut bits, token),
                Op::NotToken(token) => {
                    let had = bits[token as usize / 32] >> (token % 32) & 1 == 1;
                    bits.iter_mut().zip(&tree.all).for_each(|(word, all)| *word |= all);
                    if !had {
                        bits[token as usize / 32] &= !(1 << (token % 32));
                    }
                }
                _ => {}
            }
        }
    }
    fitting(tables, tree, 0, tree.nodes.len() - 1, state, &mut |token| {
        set(&mut bits, token);
        true
    })?;
    if tables.state(state).may_end {
        tree.eog.iter().for_each(|&token| set(&mut bits, token));
    }
    Ok(Arc::new(Mask::new(bits)))
}

fn set(bits: &mut [u32], token: Token) {
    bits[token as usize / 32] |= 1 << (token % 32);
}

/// Calls `put` with the tokens of the nodes `begin..end`, which are siblings with all below them, that fit in `state`,
/// until it returns false.
pub(super) fn fitting(
    tables: &mut Tables,
    tree: &Tree,
    begin: usize,
    end: usize,
    state: u32,
    put: &mut dyn FnMut(Token) -> bool,
) -> Step<()> {
    let mut path = std::mem::take(&mut tables.path);
    path.clear();
    path.resize(tree.max_depth + 1, DEAD);
    let mut at = begin;
    let top = usize::from(tree.nodes[begin].depth);
    path[top] = state;
    let mut visited = 0;
    while at < end {
        let node = tree.nodes[at];
        let depth = usize::from(node.depth);
        visited += 1;
        let next = tables.next(path[depth], node.byte)?;
        if next == DEAD {
            at = node.end as usize;
            continue;
        }
        for &token in tree.tokens(at) {
            if !put(token) {
                tables.path = path;
                return Ok(());
            }
        }
        path[depth + 1] = next;
        at += 1;
    }
    tables.path = path;
    tables.spend(visited)
}
