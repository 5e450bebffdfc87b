//! Stacks of positions, sets of them as states, and what each byte makes of a state.
//!
//! A stack is where a parse is: the position of the byte that comes next, and where to go on after each rule that is
//! not at its end. Stacks are kept hash-consed: equal ones are one node. A state is a set of stacks; equal sets are one
//! state, and what follows it for each byte is computed once. All of this is a cache that can be dropped and made again
//! from the states that are in use; where even those are too large, an error names the limit.

use super::classes::DONE;
use super::code::{Code, Op};
use super::mask::{Beyond, Local, Mask};
use crate::{Error, Token};
use hashbrown::{HashMap, HashSet, HashTable};
use std::hash::{BuildHasher, Hash};
use std::sync::Arc;

/// The most nodes of stacks.
const MAX_NODES: usize = 1 << 20;
/// The most states.
const MAX_STATES: usize = 1 << 17;
/// The most stacks and byte transitions of all states together.
const MAX_ENTRIES: usize = 1 << 22;
/// The most stacks in one state.
pub const MAX_STACKS: usize = 1 << 16;
/// The most steps of one call: for a mask or an accepted token.
pub const MAX_STEPS: u64 = 1 << 25;

/// The state without stacks: nothing fits.
pub(super) const DEAD: u32 = 0;
/// A transition that is not known.
const UNKNOWN: u32 = u32::MAX;
/// The stack without positions: the grammar is complete.
const EMPTY: u32 = 0;
/// What stands for the rest of a stack that is not looked at.
pub(super) const HOLE: u32 = 1;
/// Set in positions that are states of a class; without it they are positions of the code.
pub(super) const CLASS: u32 = 1 << 31;

/// Why a call ended early.
#[derive(Debug)]
pub(super) enum Stop {
    /// The tables are full: drop what is not in use and try again.
    Full,
    Error(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Stop::Error(error)
    }
}

pub(super) type Step<T> = std::result::Result<T, Stop>;

/// The top of a stack, and the rest of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Stack {
    pub(super) at: u32,
    pub(super) rest: u32,
    /// The mark of the innermost marked rule that is not at its end.
    pub(super) mark: u32,
}

pub(super) struct State {
    pub(super) stacks: (u32, u32),
    /// The bytes that some stack may go on with.
    pub(super) live: [u64; 4],
    /// Where its transitions are, one for each live byte; [`UNKNOWN`] before the first.
    row: u32,
    pub(super) may_end: bool,
    /// Whether whole tokens are asked for somewhere.
    pub(super) has_tokens: bool,
    pub(super) mark: u32,
    pub(super) mask: Option<Arc<Mask>>,
}

impl State {
    /// A state of these members, of which nothing is known yet.
    fn of(begin: u32, end: u32) -> State {
        let (live, row, mask) = ([0; 4], UNKNOWN, None);
        State { stacks: (begin, end), live, row, may_end: false, has_tokens: false, mark: 0, mask }
    }
}

pub(super) struct Tables {
    pub(super) code: Arc<Code>,
    pub(super) stacks: Vec<Stack>,
    known_stacks: HashTable<u32>,
    pub(super) states: Vec<State>,
    known_states: HashTable<u32>,
    /// The stacks of all states.
    pub(super) members: Vec<u32>,
    /// The transitions of all states.
    rows: Vec<u32>,
    hasher: hashbrown::DefaultHashBuilder,
    /// The places in use: a state each, [`DEAD`] in free ones.
    places: Vec<u32>,
    free: Vec<u32>,
    steps: u64,
    /// By the state in an endless loop; `None` where it is of no use.
    pub(super) locals: HashMap<u32, Option<Arc<Local>>>,
    /// By that state and the one after the repetition: the tokens that go beyond it, with the items before that.
    pub(super) beyond: HashMap<(u32, u32), Arc<Beyond>>,
    pub(super) mask_bytes: usize,
    /// How often the tables were dropped.
    pub(super) rebuilt: u64,
    /// How many masks were computed.
    pub(super) masks: u64,
    // Scratch memory of one expansion.
    todo: Vec<Stack>,
    pub(super) seen: HashSet<Stack>,
    pub(super) found: Vec<u32>,
    /// States on the way to a node of the vocabulary.
    pub(super) path: Vec<u32>,
}

impl Tables {
    pub(super) fn new(code: Arc<Code>) -> Step<Tables> {
        let mut tables = Tables {
            code,
            stacks: Vec::new(),
            known_stacks: HashTable::new(),
            states: Vec::new(),
            known_states: HashTable::new(),
            members: Vec::new(),
            rows: Vec::new(),
            hasher: hashbrown::DefaultHashBuilder::default(),
            places: Vec::new(),
            free: Vec::new(),
            steps: 0,
            locals: HashMap::new(),
            beyond: HashMap::new(),
            mask_bytes: 0,
            rebuilt: 0,
            masks: 0,
            todo: Vec::new(),
            seen: HashSet::new(),
            found: Vec::new(),
            path: Vec::new(),
        };
        tables.clear();
        let start = tables.start()?;
        let place = tables.add_place(start);
        debug_assert_eq!(place, 0);
        Ok(tables)
    }

    fn clear(&mut self) {
        self.stacks.clear();
        self.known_stacks.clear();
        self.states.clear();
        self.known_states.clear();
        self.members.clear();
        self.rows.clear();
        self.locals.clear();
        self.beyond.clear();
        self.mask_bytes = 0;
        self.stacks.push(Stack { at: u32::MAX, rest: 0, mark: 0 });
        self.stacks.push(Stack { at: u32::MAX, rest: 0, mark: 0 });
        self.states.push(State::of(0, 0));
    }

    // ------------------------------------------------------------------------------------------- places

    /// A place that holds a state while it is in use. Place 0 holds the start.
    pub(super) fn add_place(&mut self, state: u32) -> u32 {
        match self.free.pop() {
            Some(place) => {
                self.places[place as usize] = state;
                place
            }
            None => {
                self.places.push(state);
                // So that giving a place back never allocates.
                self.free.reserve(self.places.len());
                self.places.len() as u32 - 1
            }
        }
    }

    pub(super) fn free_place(&mut self, place: u32) {
        self.places[place as usize] = DEAD;
        self.free.push(place);
    }

    #[inline]
    pub(super) fn state_at(&self, place: u32) -> u32 {
        self.places[place as usize]
    }

    pub(super) fn set_place(&mut self, place: u32, state: u32) {
        self.places[place as usize] = state;
    }

    #[inline]
    pub(super) fn n_states(&self) -> usize {
        self.states.len()
    }

    pub(super) fn state(&self, state: u32) -> &State {
        &self.states[state as usize]
    }

    // ------------------------------------------------------------------------------------------- limits

    /// Begins a call with its own number of steps.
    pub(super) fn begin(&mut self) {
        self.steps = 0;
    }

    #[inline]
    pub(super) fn spend(&mut self, steps: u64) -> Step<()> {
        self.steps += steps;
        if self.steps > MAX_STEPS {
            return Err(Stop::Error(Error::OutOfMemory(format!(
                "Grammar: more than {MAX_STEPS} steps for one token: too many ways to read the text"
            ))));
        }
        Ok(())
    }

    /// Drops everything but the states in use.
    pub(super) fn rebuild(&mut self) -> Step<()> {
        let old_stacks = std::mem::take(&mut self.stacks);
        let old_members = std::mem::take(&mut self.members);
        let old_states = std::mem::take(&mut self.states);
        self.clear();
        self.rebuilt += 1;
        let mut moved: Vec<u32> = vec![UNKNOWN; old_stacks.len()];
        moved[EMPTY as usize] = EMPTY;
        moved[HOLE as usize] = HOLE;
        let mut chain = Vec::new();
        for place in 0..self.places.len() {
            let state = &old_states[self.places[place] as usize];
            let mut found = std::mem::take(&mut self.found);
            found.clear();
            for &stack in &old_members[state.stacks.0 as usize..state.stacks.1 as usize] {
                let mut at = stack;
                while moved[at as usize] == UNKNOWN {
                    chain.push(at);
                    at = old_stacks[at as usize].rest;
                }
                while let Some(at) = chain.pop() {
                    let old = old_stacks[at as usize];
                    let rest = moved[old.rest as usize];
                    moved[at as usize] = self.intern_stack(Stack { rest, ..old })?;
                }
                found.push(moved[stack as usize]);
            }
            self.found = found;
            self.places[place] = self.intern_found()?;
        }
        Ok(())
    }

    /// Bytes of memory.
    pub(super) fn bytes(&self) -> usize {
        self.stacks.capacity() * (size_of::<Stack>() + 8)
            + self.states.capacity() * (size_of::<State>() + 8)
            + (self.members.capacity() + self.rows.capacity()) * 4
            + self.mask_bytes
    }

    // ------------------------------------------------------------------------------------------- states

    pub(super) fn intern_stack(&mut self, stack: Stack) -> Step<u32> {
        let hash = self.hasher.hash_one(stack);
        if let Some(&known) = self.known_stacks.find(hash, |&other| self.stacks[other as usize] == stack) {
            return Ok(known);
        }
        if self.stacks.len() == MAX_NODES {
            return Err(Stop::Full);
        }
        let index = self.stacks.len() as u32;
        self.stacks.push(stack);
        let (stacks, hasher) = (&self.stacks, &self.hasher);
        self.known_stacks.insert_unique(hash, index, |&other| hasher.hash_one(stacks[other as usize]));
        Ok(index)
    }

    /// The state of the stacks in `found`.
    pub(super) fn intern_found(&mut self) -> Step<u32> {
        let mut found = std::mem::take(&mut self.found);
        found.sort_unstable();
        found.dedup();
        let state = self.intern_state(&found);
        self.found = found;
        state
    }

    fn intern_state(&mut self, members: &[u32]) -> Step<u32> {
        if members.is_empty() {
            return Ok(DEAD);
        }
        if members.len() > MAX_STACKS {
            return Err(Stop::Error(Error::OutOfMemory(format!(
                "Grammar: more than {MAX_STACKS} ways to read the same text"
            ))));
        }
        let hash = self.hasher.hash_one(members);
        let of = |states: &[State], state: u32| {
            let (begin, end) = states[state as usize].stacks;
            begin as usize..end as usize
        };
        let same = |&other: &u32| self.members[of(&self.states, other)] == *members;
        if let Some(&known) = self.known_states.find(hash, same) {
            return Ok(known);
        }
        if self.states.len() == MAX_STATES || self.members.len() + members.len() > MAX_ENTRIES {
            return Err(Stop::Full);
        }
        let begin = self.members.len() as u32;
        self.members.extend_from_slice(members);
        let index = self.states.len() as u32;
        let state = self.describe(begin);
        self.states.push(state);
        let (states, all, hasher) = (&self.states, &self.members, &self.hasher);
        self.known_states.insert_unique(hash, index, |&other| hasher.hash_one(&all[of(states, other)]));
        Ok(index)
    }

    /// What is known of a state from its stacks alone: the last ones, from `begin` on.
    fn describe(&self, begin: u32) -> State {
        let mut state = State::of(begin, self.members.len() as u32);
        for &member in &self.members[begin as usize..] {
            let stack = self.stacks[member as usize];
            if stack.mark != 0 && (state.mark == 0 || stack.mark < state.mark) {
                state.mark = stack.mark;
            }
            if member == EMPTY || member == HOLE {
                state.may_end |= member == EMPTY;
                continue;
            }
            let mut add = |low: u8, high: u8| {
                for byte in low..=high {
                    state.live[usize::from(byte) / 64] |= 1 << (byte % 64);
                }
            };
            if stack.at & CLASS != 0 {
                self.code.automata.edges(stack.at & !CLASS).iter().for_each(|edge| add(edge.low, edge.high));
                continue;
            }
            match self.code.ops[stack.at as usize] {
                Op::Byte(byte) => add(byte, byte),
                Op::Token(_) | Op::NotToken(_) => state.has_tokens = true,
                _ => {}
            }
        }
        state
    }

    /// What the stacks of a state ask for whose top is a whole token, and that can go on after it.
    pub(super) fn token_ops(&mut self, state: u32) -> Step<Vec<Op>> {
        let of = &self.states[state as usize];
        let (begin, end) = if of.has_tokens { of.stacks } else { (0, 0) };
        let mut ops = Vec::new();
        for index in begin..end {
            let stack = self.stacks[self.members[index as usize] as usize];
            if stack.at >= CLASS {
                continue;
            }
            let op = self.code.ops[stack.at as usize];
            if matches!(op, Op::Token(_) | Op::NotToken(_)) {
                self.found.clear();
                self.seen.clear();
                self.expand(Stack { at: stack.at + 1, ..stack })?;
                ops.extend((!self.found.is_empty()).then_some(op));
            }
        }
        Ok(ops)
    }

    // ------------------------------------------------------------------------------------------- steps

    fn start(&mut self) -> Step<u32> {
        self.found.clear();
        self.seen.clear();
        let root = self.code.root as usize;
        self.expand(Stack { at: self.code.starts[root], rest: EMPTY, mark: self.code.marks[root] })?;
        self.intern_found()
    }

    /// The state after a byte.
    #[inline]
    pub(super) fn next(&mut self, state: u32, byte: u8) -> Step<u32> {
        let of = &self.states[state as usize];
        let word = usize::from(byte) / 64;
        let below = of.live[word] & ((1u64 << (byte % 64)) - 1);
        if of.live[word] >> (byte % 64) & 1 == 0 {
            return Ok(DEAD);
        }
        let rank = of.live[..word].iter().map(|word| word.count_ones()).sum::<u32>() + below.count_ones();
        if of.row != UNKNOWN {
            let known = self.rows[(of.row + rank) as usize];
            if known != UNKNOWN {
                return Ok(known);
            }
        }
        self.compute(state, byte, rank)
    }

    /// The smallest mark of the stacks that go on with a byte.
    pub(super) fn mark_of(&self, state: u32, byte: u8) -> u32 {
        let (begin, end) = self.states[state as usize].stacks;
        let matching = self.members[begin as usize..end as usize].iter().filter(|&&member| member != EMPTY);
        let marks = matching.map(|&member| self.stacks[member as usize]).filter(|stack| match stack.at & CLASS {
            0 => self.code.ops[stack.at as usize] == Op::Byte(byte),
            _ => self.code.automata.next(stack.at & !CLASS, byte).is_some(),
        });
        marks.map(|stack| stack.mark).filter(|&mark| mark != 0).min().unwrap_or(0)
    }

    #[cold]
    fn compute(&mut self, state: u32, byte: u8, rank: u32) -> Step<u32> {
        let of = &self.states[state as usize];
        if of.row == UNKNOWN {
            let length = of.live.iter().map(|word| word.count_ones()).sum::<u32>() as usize;
            if self.rows.len() + length > MAX_ENTRIES {
                return Err(Stop::Full);
            }
            let row = self.rows.len() as u32;
            self.rows.resize(self.rows.len() + length, UNKNOWN);
            self.states[state as usize].row = row;
        }
        self.found.clear();
        self.seen.clear();
        let (begin, end) = self.states[state as usize].stacks;
        self.spend(u64::from(end - begin))?;
        for index in begin..end {
            let member = self.members[index as usize];
            if member == EMPTY || member == HOLE {
                continue;
            }
            let stack = self.stacks[member as usize];
            if stack.at & CLASS != 0 {
                self.step_in_class(stack, byte)?;
            } else if self.code.ops[stack.at as usize] == Op::Byte(byte) {
                self.expand(Stack { at: stack.at + 1, ..stack })?;
            }
        }
        let next = self.intern_found()?;
        let row = self.states[state as usize].row;
        self.rows[(row + rank) as usize] = next;
        Ok(next)
    }

    fn step_in_class(&mut self, stack: Stack, byte: u8) -> Step<()> {
        match self.code.automata.next(stack.at & !CLASS, byte) {
            None => Ok(()),
            Some(DONE) => self.pop(stack.rest),
            Some(next) => {
                let top = self.intern_stack(Stack { at: CLASS | next, ..stack })?;
                self.found.push(top);
                Ok(())
            }
        }
    }

    /// Goes on with the rest of a stack.
    fn pop(&mut self, rest: u32) -> Step<()> {
        if rest == EMPTY || rest == HOLE {
            self.found.push(rest);
            return Ok(());
        }
        self.expand(self.stacks[rest as usize])
    }

    /// Adds to `found` what a position leads to: stacks whose top is a byte, a class or a token.
    pub(super) fn expand(&mut self, from: Stack) -> Step<()> {
        let code = self.code.clone();
        let mut todo = std::mem::take(&mut self.todo);
        todo.clear();
        todo.push(from);
        while let Some(stack) = todo.pop() {
            self.spend(1)?;
            let op = code.ops[stack.at as usize];
            let branches = matches!(op, Op::End | Op::Rule(_) | Op::Fork(_));
            if branches && !self.seen.insert(stack) {
                continue;
            }
            // Where to go on after what is at this position; at the end of a rule, that is the rest of the stack.
            let rest_after = |tables: &mut Tables| match code.ops[stack.at as usize + 1] {
                Op::End => Ok(stack.rest),
                _ => tables.intern_stack(Stack { at: stack.at + 1, ..stack }),
            };
            match op {
                Op::Byte(_) | Op::Token(_) | Op::NotToken(_) => {
                    let top = self.intern_stack(stack)?;
                    self.found.push(top);
                }
                Op::Class(state) => {
                    let rest = rest_after(self)?;
                    let top = self.intern_stack(Stack { at: CLASS | state, rest, mark: stack.mark })?;
                    self.found.push(top);
                }
                Op::Rule(rule) => {
                    let rest = rest_after(self)?;
                    let mark = Some(code.marks[rule as usize]).filter(|&mark| mark != 0).unwrap_or(stack.mark);
                    todo.push(Stack { at: code.starts[rule as usize], rest, mark });
                }
                Op::Fork(fork) => todo.extend(code.targets(fork).iter().map(|&at| Stack { at, ..stack })),
                Op::End if stack.rest == EMPTY || stack.rest == HOLE => self.found.push(stack.rest),
                Op::End => todo.push(self.stacks[stack.rest as usize]),
                Op::Never => {}
            }
        }
        self.todo = todo;
        Ok(())
    }

    /// The state after bytes.
    pub(super) fn after_text(&mut self, mut state: u32, text: &[u8]) -> Step<u32> {
        for &byte in text {
            state = self.next(state, byte)?;
            if state == DEAD {
                break;
            }
        }
        Ok(state)
    }

    /// Keeps a state's mask. Where masks are more than `limit` bytes together, the others are dropped.
    pub(super) fn keep_mask(&mut self, state: u32, mask: &Arc<Mask>, limit: usize) {
        if self.mask_bytes + mask.bytes() > limit {
            self.states.iter_mut().for_each(|state| state.mask = None);
            self.locals.clear();
            self.beyond.clear();
            self.mask_bytes = 0;
        }
        self.mask_bytes += mask.bytes();
        self.masks += 1;
        self.states[state as usize].mask = Some(mask.clone());
    }

    /// The state after a whole token: by the bytes of its text, or where it is asked for.
    pub(super) fn after_token(&mut self, state: u32, token: Token, text: &[u8]) -> Step<u32> {
        let by_bytes = self.after_text(state, text)?;
        if !self.states[state as usize].has_tokens {
            return Ok(by_bytes);
        }
        self.found.clear();
        self.seen.clear();
        let (begin, end) = self.states[state as usize].stacks;
        for index in begin..end {
            let stack = self.stacks[self.members[index as usize] as usize];
            if stack.at & CLASS != 0 {
                continue;
            }
            let fits = match self.code.ops[stack.at as usize] {
                Op::Token(wanted) => wanted == token,
                Op::NotToken(refused) => refused != token,
                _ => false,
            };
            if fits {
                self.expand(Stack { at: stack.at + 1, ..stack })?;
            }
        }
        let (begin, end) = self.states[by_bytes as usize].stacks;
        self.found.extend_from_slice(&self.members[begin as usize..end as usize]);
        self.intern_found()
    }
}
