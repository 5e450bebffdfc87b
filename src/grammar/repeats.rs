//! Repetitions in the code, and what states inside of them have in common.
//!
//! A string of at most a hundred characters has a state for each count of them, and one for each place in the text that
//! comes after it. Most of what is legal in all of those depends neither on the count nor on what comes after: it is
//! found once in an endless loop of the same item, with the number of items that each token needs ([`Local`]).

use super::classes::DONE;
use super::code::{Code, Op, Repeat};
use super::mask::{Beyond, Local};
use super::tables::{CLASS, DEAD, HOLE, Stack, Step, Tables};
use crate::{Result, reserve};
use hashbrown::HashMap;
use sha2::{Digest, Sha256};
use std::sync::Arc;

/// What is repeated less often is looked at as it is.
const MIN_LEFT: u32 = 4;
/// The most positions of which it is noted that they are in a repetition.
const MAX_REPEATS: usize = 1 << 18;
/// The most positions of an item.
const MAX_ITEM: usize = 128;
/// So deep inside of an item a stack may be.
const MAX_INSIDE: usize = 16;
/// The most repetitions that a state may be inside of.
const MAX_PARTS: usize = 16;

/// Finds the repetitions of a code, and adds their endless loops to it.
///
/// # Errors
/// As [`Code::compile`].
pub(super) fn find(code: &mut Code) -> Result<()> {
    let rules = code.starts.len();
    // Rules of the form `R ::= item | ""` or `R ::= item S | ""`, where S is such a rule or R itself: the item, and how
    // often it may come.
    let mut chains: Vec<Option<(Op, u32)>> = reserve::filled(None, rules, "repetitions of a grammar")?;
    for rule in 0..rules {
        chains[rule] = chain(code, rule, &chains);
    }
    let mut found = Vec::new();
    let mut run: Option<(Op, Repeat)> = None;
    for at in (0..code.ops.len() as u32).rev() {
        let op = code.ops[at as usize];
        let chained = match op {
            Op::Rule(rule) => chains[rule as usize],
            _ => None,
        };
        run = match (op, chained, run) {
            (_, Some((item, left)), _) => Some((item, Repeat { endless: 0, needed: 0, left, exit: at + 1 })),
            (Op::Class(_) | Op::Rule(_), None, Some((item, next))) if item == op => {
                let (needed, left) = (next.needed + 1, next.left.saturating_add(1));
                Some((item, Repeat { needed, left, ..next }))
            }
            (Op::Class(_) | Op::Rule(_), None, _) => {
                Some((op, Repeat { endless: 0, needed: 1, left: 1, exit: at + 1 }))
            }
            _ => None,
        };
        found.extend(run.filter(|(_, repeat)| repeat.left >= MIN_LEFT).map(|(item, repeat)| (at, item, repeat)));
    }
    let mut loops: HashMap<Op, Option<u32>> = HashMap::new();
    let mut repeats = HashMap::with_capacity(found.len().min(MAX_REPEATS));
    for (at, item, repeat) in found.into_iter().take(MAX_REPEATS) {
        let endless = match loops.get(&item) {
            Some(&known) => known,
            None => {
                let added = if is_small(code, item) { Some(code.add_loop(item)?) } else { None };
                loops.insert(item, added);
                added
            }
        };
        if let Some(endless) = endless {
            repeats.insert(at, Repeat { endless, ..repeat });
        }
    }
    code.repeats = repeats;
    Ok(())
}

/// Whether an item has few positions. What is found inside of a large one, an object say, is seldom of use again.
fn is_small(code: &Code, item: Op) -> bool {
    let mut seen = Numbers::default();
    if let Op::Rule(rule) = item {
        seen.of(code.starts[rule as usize]);
    }
    while let Some(at) = seen.next() {
        match code.ops[at as usize] {
            Op::End | Op::Never => continue,
            Op::Fork(fork) => {
                let targets = code.targets(fork);
                if targets.len() > MAX_ITEM {
                    return false;
                }
                targets.iter().for_each(|&target| {
                    seen.of(target);
                });
                continue;
            }
            Op::Rule(rule) => {
                seen.of(code.starts[rule as usize]);
            }
            _ => {}
        }
        seen.of(at + 1);
        if seen.seen.len() > MAX_ITEM {
            return false;
        }
    }
    true
}

fn chain(code: &Code, rule: usize, chains: &[Option<(Op, u32)>]) -> Option<(Op, u32)> {
    let Op::Fork(fork) = code.ops[code.starts[rule] as usize] else { return None };
    let &[a, b] = code.targets(fork) else { return None };
    let op = |at: u32| code.ops[at as usize];
    let first = match (op(a), op(b)) {
        (Op::End, Op::Class(_) | Op::Rule(_)) => b,
        (Op::Class(_) | Op::Rule(_), Op::End) => a,
        _ => return None,
    };
    match (op(first), op(first + 1)) {
        (item, Op::End) => Some((item, 1)),
        (item, Op::Rule(next)) if op(first + 2) == Op::End => match next as usize {
            next if next == rule => Some((item, u32::MAX)),
            next => chains[next].filter(|(other, _)| *other == item).map(|(_, left)| (item, left.saturating_add(1))),
        },
        _ => None,
    }
}

/// The stacks of a state that are inside of one repetition.
pub(super) struct Part {
    pub(super) stacks: Vec<u32>,
    /// The same in the endless loop, with a hole after it.
    pub(super) open: u32,
    /// The state after the loop's last item, in the loop.
    pub(super) between: u32,
    pub(super) repeat: Repeat,
    /// The state after the repetition.
    pub(super) after: u32,
}

/// The longest description of a state, in words.
const MAX_DESCRIPTION: usize = 1 << 14;

/// Numbers in the order in which things are first seen.
#[derive(Default)]
struct Numbers {
    known: HashMap<u32, u32>,
    seen: Vec<u32>,
    done: usize,
}

impl Numbers {
    fn of(&mut self, what: u32) -> u32 {
        *self.known.entry(what).or_insert_with(|| {
            self.seen.push(what);
            self.seen.len() as u32 - 1
        })
    }

    /// The next one that was not returned yet.
    fn next(&mut self) -> Option<u32> {
        let next = self.seen.get(self.done).copied();
        self.done += usize::from(next.is_some());
        next
    }
}

/// Code as words that do not depend on where it is.
#[derive(Default)]
struct Description {
    positions: Numbers,
    classes: Numbers,
    words: Vec<u32>,
}

impl Description {
    /// Adds what was seen and not described yet, and all that it leads to.
    fn add(&mut self, code: &Code) -> Option<()> {
        while let Some(at) = self.positions.next() {
            let next = at + 1;
            match code.ops[at as usize] {
                Op::End => self.words.push(0),
                Op::Never => self.words.push(1),
                Op::Byte(byte) => self.words.extend([2, u32::from(byte), self.positions.of(next)]),
                Op::Class(class) => self.words.extend([3, self.classes.of(class), self.positions.of(next)]),
                Op::Rule(rule) => {
                    let start = self.positions.of(code.starts[rule as usize]);
                    self.words.extend([4, start, self.positions.of(next)]);
                }
                Op::Fork(fork) => {
                    let targets = code.targets(fork);
                    self.words.extend([5, targets.len() as u32]);
                    self.words.extend(targets.iter().map(|&target| self.positions.of(target)));
                }
                Op::Token(_) | Op::NotToken(_) => return None,
            }
            if self.words.len() > MAX_DESCRIPTION {
                return None;
            }
        }
        while let Some(class) = self.classes.next() {
            let edges = code.automata.edges(class);
            self.words.extend([6, edges.len() as u32]);
            for edge in edges {
                let next = if edge.next == DONE { DONE } else { self.classes.of(edge.next) };
                self.words.extend([u32::from(edge.low) << 8 | u32::from(edge.high), next]);
            }
            if self.words.len() > MAX_DESCRIPTION {
                return None;
            }
        }
        Some(())
    }
}

impl Tables {
    /// The parts of a state that are inside of repetitions, and the other stacks; `None` where there are no such parts,
    /// or too many.
    pub(super) fn parts(&mut self, state: u32) -> Step<Option<(Vec<Part>, Vec<u32>)>> {
        let code = self.code.clone();
        let (begin, end) = self.states[state as usize].stacks;
        // The stacks inside of each repetition, by the stack after one item.
        let mut groups: Vec<(u32, Vec<u32>, Vec<u32>)> = Vec::new();
        let mut others = Vec::new();
        for index in begin..end {
            let member = self.members[index as usize];
            let mut inside = Vec::new();
            let mut at = member;
            let repeat = loop {
                if at <= HOLE || inside.len() == MAX_INSIDE {
                    break None;
                }
                let stack = self.stacks[at as usize];
                let repeat = code.repeats.get(&stack.at).filter(|_| !inside.is_empty());
                if repeat.is_some() {
                    break repeat;
                }
                inside.push(stack.at);
                at = stack.rest;
            };
            let Some(repeat) = repeat else {
                others.push(member);
                continue;
            };
            let mut rest = HOLE;
            for at in [repeat.endless].into_iter().chain(inside.into_iter().rev()) {
                rest = self.intern_stack(Stack { at, rest, mark: 0 })?;
            }
            match groups.iter_mut().find(|group| group.0 == at) {
                Some(group) => {
                    group.1.push(rest);
                    group.2.push(member);
                }
                None => groups.push((at, vec![rest], vec![member])),
            }
        }
        if groups.is_empty() || groups.len() > MAX_PARTS {
            return Ok(None);
        }
        let mut parts = Vec::new();
        for (stack, tops, stacks) in groups {
            let stack = self.stacks[stack as usize];
            let Some(&repeat) = code.repeats.get(&stack.at) else { return Ok(None) };
            let open = self.state_of(&tops)?;
            let between = self.state_from(Stack { at: repeat.endless, rest: HOLE, mark: 0 })?;
            let after = self.state_from(Stack { at: repeat.exit, ..stack })?;
            parts.push(Part { stacks, open, between, repeat, after });
        }
        Ok(Some((parts, others)))
    }

    /// The state of these stacks.
    pub(super) fn state_of(&mut self, stacks: &[u32]) -> Step<u32> {
        self.found.clear();
        self.found.extend_from_slice(stacks);
        self.intern_found()
    }

    /// The state of what a position leads to.
    fn state_from(&mut self, stack: Stack) -> Step<u32> {
        debug_assert!(stack.at & CLASS == 0);
        self.found.clear();
        self.seen.clear();
        self.expand(stack)?;
        self.intern_found()
    }

    /// A description of a state in an endless loop, which says all that decides what is legal in it, the same in every
    /// grammar; `None` where it would be long, or asks for whole tokens.
    pub(super) fn description(&self, open: u32, repeat: Repeat) -> Option<[u8; 32]> {
        let mut description = Description::default();
        description.positions.of(repeat.endless - 2);
        description.add(&self.code)?;
        let (begin, end) = self.states[open as usize].stacks;
        let mut stacks: Vec<Vec<u32>> = Vec::new();
        for index in begin..end {
            let (mut at, mut stack) = (self.members[index as usize], Vec::new());
            while at > HOLE {
                let top = self.stacks[at as usize];
                stack.push(match top.at & CLASS {
                    0 => description.positions.of(top.at) << 1,
                    _ => description.classes.of(top.at & !CLASS) << 1 | 1,
                });
                at = top.rest;
            }
            stacks.push(stack);
        }
        stacks.sort_unstable();
        for stack in stacks {
            description.words.extend([7, stack.len() as u32]);
            description.words.extend(stack);
        }
        description.add(&self.code)?;
        let mut hash = Sha256::new();
        description.words.iter().for_each(|word| hash.update(word.to_le_bytes()));
        Some(hash.finalize().into())
    }

    /// Whether a hole is reached in a state.
    pub(super) fn has_hole(&self, state: u32) -> bool {
        let (begin, end) = self.states[state as usize].stacks;
        state != DEAD && self.members[begin as usize..end as usize].first() == Some(&HOLE)
    }

    /// What is known of a state in an endless loop.
    pub(super) fn local(&self, open: u32) -> Option<Option<Arc<Local>>> {
        self.locals.get(&open).cloned()
    }

    /// The tokens that go beyond a repetition from a state in its endless loop on, if they are known.
    pub(super) fn beyond(&self, open: u32, after: u32) -> Option<Arc<Beyond>> {
        self.beyond.get(&(open, after)).cloned()
    }

    pub(super) fn keep_beyond(&mut self, open: u32, after: u32, beyond: Arc<Beyond>) {
        self.mask_bytes += beyond.len() * 8;
        self.beyond.insert((open, after), beyond);
    }

    pub(super) fn keep_local(&mut self, open: u32, local: Option<Arc<Local>>) {
        self.mask_bytes += local.as_ref().map_or(0, |local| local.bytes());
        self.locals.insert(open, local);
    }
}
