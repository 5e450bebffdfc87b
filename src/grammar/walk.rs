//! Walks over the vocabulary: the tokens that fit in a state.
//!
//! Where much is legal, as in a free string, a walk reads most of the vocabulary. What is legal there depends little
//! on what comes after the string and on how long it may still be, and states that differ in that alone share the walk:
//! see `repeats.rs`.

use super::code::Op;
use super::mask::{Beyond, Local, Mask, set};
use super::tables::{DEAD, Step, Tables};
use super::vocabulary::Tree;
use crate::{Token, reserve};
use hashbrown::HashMap;
use std::sync::Arc;

const WORDS: &str = "words of a mask";
/// The most bytes of masks that a grammar keeps.
const MAX_MASK_BYTES: usize = 48 << 20;
/// Where so many nodes of the vocabulary are below legal bytes, it is worth while to look for repetitions.
const MANY_NODES: usize = 4096;

/// The mask of a state, which is kept.
pub(super) fn kept(tables: &mut Tables, tree: &Tree, state: u32) -> Step<Arc<Mask>> {
    if let Some(mask) = &tables.state(state).mask {
        return Ok(mask.clone());
    }
    let mask = mask(tables, tree, state)?;
    tables.keep_mask(state, &mask, MAX_MASK_BYTES);
    Ok(mask)
}

/// The mask of a state, computed now.
fn mask(tables: &mut Tables, tree: &Tree, state: u32) -> Step<Arc<Mask>> {
    let of = tables.state(state);
    let nodes = tree.below.iter().filter(|(byte, _)| has(&of.live, *byte)).map(|(_, nodes)| nodes).sum::<usize>();
    let (may_end, has_tokens) = (of.may_end, of.has_tokens);
    let by_parts = if nodes >= MANY_NODES && !has_tokens { by_parts(tables, tree, state)? } else { None };
    let mut bits = match by_parts {
        Some(bits) => bits,
        None => {
            let mut bits = empty(tree)?;
            tables.token_ops(state)?.into_iter().for_each(|op| add_token(&mut bits, tree, op));
            add_fitting(tables, tree, &mut bits, (0, tree.nodes.len() - 1), state)?;
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

/// The bits of a state by way of the repetitions that it is inside of; `None` where that is of no use.
fn by_parts(tables: &mut Tables, tree: &Tree, state: u32) -> Step<Option<Vec<u32>>> {
    let Some((parts, mut others)) = tables.parts(state)? else { return Ok(None) };
    let (mut bits, mut any) = (empty(tree)?, false);
    for part in parts {
        let local = match tables.local(part.open) {
            Some(known) => known,
            None => {
                let key = tables.description(part.open, part.repeat);
                let local = match key.and_then(|key| tree.locals.get(&key)) {
                    Some(known) => known,
                    None => {
                        let found = local(tables, tree, part.open, part.between)?.map(Arc::new);
                        key.into_iter().for_each(|key| tree.locals.keep(key, found.clone()));
                        found
                    }
                };
                tables.keep_local(part.open, local.clone());
                local
            }
        };
        let live = tables.state(part.after).live;
        // A byte may belong to the next item or to what comes after the last.
        let meets = |local: &Local| live.iter().zip(local.live).any(|(after, inside)| after & inside != 0);
        // Where more items must follow than a token has, none goes beyond them.
        let stays = |local: &Local| part.repeat.needed >= u32::from(local.most);
        let Some(local) = local.filter(|local| part.after != DEAD && (stays(local) || !meets(local))) else {
            others.extend(part.stacks);
            continue;
        };
        any = true;
        local.add(&mut bits, part.repeat.left.saturating_add(1));
        if stays(&local) {
            continue;
        }
        let beyond = match tables.beyond(part.open, part.after) {
            Some(known) => known,
            None => {
                let beyond = Arc::new(beyond(tables, tree, &local, part.after)?);
                tables.keep_beyond(part.open, part.after, beyond.clone());
                beyond
            }
        };
        let ends = |count: u16| (part.repeat.needed..=part.repeat.left).contains(&(u32::from(count) - 1));
        beyond.iter().filter(|(count, _)| ends(*count)).for_each(|&(_, token)| set(&mut bits, token));
    }
    if !any {
        return Ok(None);
    }
    if !others.is_empty() {
        // What is outside of the repetitions does not depend on the count either.
        let others = tables.state_of(&others)?;
        let others = kept(tables, tree, others)?;
        bits.iter_mut().zip(others.bits()).for_each(|(word, others)| *word |= others);
    }
    Ok(Some(bits))
}

/// The tokens that go beyond a repetition, with the whole items before that.
fn beyond(tables: &mut Tables, tree: &Tree, local: &Local, after: u32) -> Step<Beyond> {
    let mut beyond = Vec::new();
    let live = tables.state(after).live;
    for (&byte, nodes) in local.exits.iter().filter(|(byte, _)| has(&live, **byte)) {
        let next = tables.next(after, byte)?;
        for &(node, count) in nodes.iter().filter(|_| next != DEAD) {
            let node = node as usize;
            beyond.extend(tree.tokens(node).iter().map(|&token| (count, token)));
            fitting(tables, tree, (node + 1, tree.nodes[node].end as usize), next, &mut |_, _, _, tokens| {
                beyond.extend(tokens.iter().map(|&token| (count, token)));
                true
            })?;
        }
    }
    Ok(beyond)
}

fn has(bytes: &[u64; 4], byte: u8) -> bool {
    bytes[usize::from(byte) / 64] >> (byte % 64) & 1 == 1
}

/// What is legal in a state in an endless loop, whose state between two items is `between`; `None` where it is not
/// plain how many items a text has.
fn local(tables: &mut Tables, tree: &Tree, open: u32, between: u32) -> Step<Option<Local>> {
    let live = tables.state(between).live;
    let (mut needs, mut exits) = (Vec::new(), HashMap::<u8, Vec<(u32, u16)>>::new());
    // Whole items along the way to each depth.
    let mut counts: Vec<u16> = vec![0; tree.max_depth + 1];
    let (mut is_plain, mut whole) = (true, 0);
    fitting(tables, tree, (0, tree.nodes.len() - 1), open, &mut |tables, next, at, tokens| {
        let node = tree.nodes[at];
        let (depth, is_between) = (usize::from(node.depth), next == between);
        is_plain = is_between || !tables.has_hole(next);
        let count = counts[depth] + u16::from(is_between);
        counts[depth + 1] = count;
        whole = whole.max(count);
        // One that ends inside of an item needs that one too.
        let need = count + u16::from(!is_between);
        needs.extend(tokens.iter().map(|&token| (need, token)));
        if is_between {
            let mut child = at + 1;
            while child < node.end as usize {
                let byte = tree.nodes[child].byte;
                if !has(&live, byte) {
                    exits.entry(byte).or_default().push((child as u32, count));
                }
                child = tree.nodes[child].end as usize;
            }
        }
        is_plain
    })?;
    if !is_plain {
        return Ok(None);
    }
    Ok(Some(Local::new(needs, whole, tree.n_vocab, live, exits)?))
}

/// Adds the tokens of the nodes `begin..end` that fit from `state` on.
fn add_fitting(tables: &mut Tables, tree: &Tree, bits: &mut [u32], nodes: (usize, usize), state: u32) -> Step<()> {
    fitting(tables, tree, nodes, state, &mut |_, _, _, tokens| {
        tokens.iter().for_each(|&token| set(bits, token));
        true
    })
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
