//! Walks over the vocabulary: the tokens that fit in a state.
//!
//! Where much is legal, as in a free string, a walk reads most of the vocabulary. What is legal there depends little on
//! what comes after the string, and states that differ in that alone share that part: see [`Local`].

use super::code::Op;
use super::mask::{Local, Mask};
use super::tables::{DEAD, Step, Tables};
use super::vocabulary::Tree;
use crate::{Token, reserve};
use std::sync::Arc;

const WORDS: &str = "words of a mask";
/// From so many legal bytes on it is worth while to look for a shared part.
const MANY_BYTES: u32 = 64;
/// With more nodes at its end than this a shared part saves nothing.
const MAX_BEYOND: usize = 1 << 14;

/// The mask of a state, computed now.
pub(super) fn mask(tables: &mut Tables, tree: &Tree, state: u32) -> Step<Arc<Mask>> {
    let of = tables.state(state);
    let live: u32 = of.live.iter().map(|word| word.count_ones()).sum();
    let (may_end, has_tokens) = (of.may_end, of.has_tokens);
    let shared = if live >= MANY_BYTES && !has_tokens { with_shared_part(tables, tree, state)? } else { None };
    let mut bits = match shared {
        Some(bits) => bits,
        None => {
            let mut bits = empty(tree)?;
            tables.token_ops(state)?.into_iter().for_each(|op| add_token(&mut bits, tree, op));
            fitting(tables, tree, (0, tree.nodes.len() - 1), state, &mut |_, _, _, tokens| {
                tokens.iter().for_each(|&token| set(&mut bits, token));
                true
            })?;
            bits
        }
    };
    if may_end {
        tree.eog.iter().for_each(|&token| set(&mut bits, token));
    }
    Ok(Arc::new(Mask::new(bits)))
}

fn empty(tree: &Tree) -> Step<Vec<u32>> {
    Ok(reserve::filled(0u32, tree.n_vocab.div_ceil(32), WORDS)?)
}

fn set(bits: &mut [u32], token: Token) {
    bits[token as usize / 32] |= 1 << (token % 32);
}

/// Adds what a reference to whole tokens allows.
fn add_token(bits: &mut [u32], tree: &Tree, op: Op) {
    match op {
        Op::Token(token) if tree.has(token) => set(bits, token),
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

/// The bits of a state by way of the part that it shares with others; `None` where there is none of use.
fn with_shared_part(tables: &mut Tables, tree: &Tree, state: u32) -> Step<Option<Vec<u32>>> {
    let Some((open, rest)) = tables.without_rest(state)? else { return Ok(None) };
    let local = match tables.local(open) {
        Some(known) => known,
        None => {
            let local = local(tables, tree, open)?.map(Arc::new);
            tables.keep_local(open, local.clone());
            local
        }
    };
    let Some(local) = local else { return Ok(None) };
    let mut bits = reserve::copied(&local.bits, WORDS)?;
    let after = tables.after_rest(rest)?;
    if after != DEAD {
        local.ends.iter().for_each(|&token| set(&mut bits, token));
        for &node in &local.beyond {
            let below = (node as usize + 1, tree.nodes[node as usize].end as usize);
            fitting(tables, tree, below, after, &mut |_, _, _, tokens| {
                tokens.iter().for_each(|&token| set(&mut bits, token));
                true
            })?;
        }
    }
    Ok(Some(bits))
}

/// What is legal in a state whose stacks end in a hole; `None` where too much goes beyond it.
fn local(tables: &mut Tables, tree: &Tree, open: u32) -> Step<Option<Local>> {
    let mut local = Local { bits: empty(tree)?, ends: Vec::new(), beyond: Vec::new() };
    fitting(tables, tree, (0, tree.nodes.len() - 1), open, &mut |tables, next, node, tokens| {
        let (hole, others) = tables.reaches(next);
        if others {
            tokens.iter().for_each(|&token| set(&mut local.bits, token));
        }
        if hole {
            if !others {
                local.ends.extend_from_slice(tokens);
            }
            if tree.nodes[node].end as usize > node + 1 {
                local.beyond.push(node as u32);
            }
        }
        local.beyond.len() <= MAX_BEYOND
    })?;
    Ok((local.beyond.len() <= MAX_BEYOND).then_some(local))
}

/// Gets the state after a node that fits, the node and its tokens; false ends the walk.
pub(super) type Each<'e> = dyn FnMut(&Tables, u32, usize, &[Token]) -> bool + 'e;

/// Walks the nodes `begin..end`, which are siblings with all below them, from `state` on, and calls `each`
/// for every node that fits.
pub(super) fn fitting(
    tables: &mut Tables,
    tree: &Tree,
    (begin, end): (usize, usize),
    state: u32,
    each: &mut Each<'_>,
) -> Step<()> {
    if begin >= end {
        return Ok(());
    }
    let mut path = std::mem::take(&mut tables.path);
    if path.len() <= tree.max_depth {
        path.resize(tree.max_depth + 1, DEAD);
    }
    path[usize::from(tree.nodes[begin].depth)] = state;
    let (mut at, mut visited) = (begin, 0);
    let mut done = Ok(());
    while at < end {
        let node = tree.nodes[at];
        let depth = usize::from(node.depth);
        visited += 1;
        let next = match tables.next(path[depth], node.byte) {
            Ok(next) => next,
            Err(stop) => {
                done = Err(stop);
                break;
            }
        };
        if next == DEAD {
            at = node.end as usize;
            continue;
        }
        if !each(tables, next, at, tree.tokens(at)) {
            break;
        }
        path[depth + 1] = next;
        at += 1;
    }
    tables.path = path;
    done.and_then(|()| tables.spend(visited))
}
