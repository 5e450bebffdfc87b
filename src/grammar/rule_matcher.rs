//! Rules compiled for a vocabulary, with what is known of their states, and a place in them.

use super::code::Code;
use super::mask::Mask;
use super::matcher::Matcher;
use super::repeats;
use super::rules::Rules;
use super::tables::{DEAD, Step, Stop, Tables};
use super::vocabulary::Tree;
use super::walk;
use crate::vocab::Vocab;
use crate::{Error, Result, Token};
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The longest run of forced bytes. The rest of a longer one is forced again after it.
const MAX_RUN: usize = 16 << 10;

/// Rules that were compiled. Any number of matchers may follow them at once; what one finds out helps the others.
pub(super) struct CompiledRules {
    tree: Arc<Tree>,
    pub(super) has_tokens: bool,
    tables: Mutex<Tables>,
    fixed_bytes: usize,
    bytes: AtomicUsize,
}

impl CompiledRules {
    /// # Errors
    /// [`Error::InvalidArgument`] for token references that the vocabulary does not have, [`Error::OutOfMemory`] also
    /// beyond the limits of a grammar.
    pub(super) fn new(rules: &Rules, vocab: &Arc<Vocab>) -> Result<CompiledRules> {
        let mut code = Code::compile(rules, vocab)?;
        repeats::find(&mut code)?;
        let code = Arc::new(code);
        let (fixed_bytes, has_tokens) = (code.bytes(), code.has_tokens);
        let tables = Mutex::new(Tables::new(code).map_err(limit)?);
        let tree = Tree::of(vocab)?;
        Ok(CompiledRules { tree, has_tokens, tables, fixed_bytes, bytes: AtomicUsize::new(fixed_bytes) })
    }

    /// Bytes of memory that they take now.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(super) fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock()
    }

    /// Runs `work` on the tables; where they are full, once more after what is not in use was dropped.
    fn run<T>(&self, tables: &mut Tables, mut work: impl FnMut(&mut Tables) -> Step<T>) -> Result<T> {
        tables.begin();
        let done = match work(tables) {
            Err(Stop::Full) => tables.rebuild().and_then(|()| {
                tables.begin();
                work(tables)
            }),
            done => done,
        };
        self.bytes.store(self.fixed_bytes + tables.bytes(), Ordering::Relaxed);
        done.map_err(limit)
    }
}

fn limit(stop: Stop) -> Error {
    match stop {
        Stop::Full => Error::OutOfMemory("Grammar: its states do not fit the tables".into()),
        Stop::Error(error) => error,
    }
}

/// A place in compiled rules.
pub(super) struct RuleMatcher {
    rules: Arc<CompiledRules>,
    /// Its place in the tables, which holds its state.
    place: u32,
}

impl RuleMatcher {
    /// At the start of the rules.
    pub(super) fn new(rules: Arc<CompiledRules>) -> RuleMatcher {
        let place = {
            let mut tables = rules.tables();
            let start = tables.state_at(0);
            tables.add_place(start)
        };
        RuleMatcher { rules, place }
    }

    /// Runs `work` from this state.
    fn with<T>(&self, work: impl Fn(&mut Tables, u32) -> Step<T>) -> Result<T> {
        let mut tables = self.rules.tables();
        self.rules.run(&mut tables, |tables| {
            let state = tables.state_at(self.place);
            work(tables, state)
        })
    }

    /// Moves to the state that `work` finds from this one, unless nothing fits.
    fn step(&mut self, work: impl Fn(&mut Tables, u32) -> Step<u32>) -> Result<bool> {
        let mut tables = self.rules.tables();
        let next = self.rules.run(&mut tables, |tables| {
            let state = tables.state_at(self.place);
            work(tables, state)
        })?;
        if next != DEAD {
            tables.set_place(self.place, next);
        }
        Ok(next != DEAD)
    }
}

impl Matcher for RuleMatcher {
    fn restart(&mut self) {
        let mut tables = self.rules.tables();
        let start = tables.state_at(0);
        tables.set_place(self.place, start);
    }

    fn mask(&mut self) -> Result<Arc<Mask>> {
        {
            let tables = self.rules.tables();
            if let Some(mask) = &tables.state(tables.state_at(self.place)).mask {
                return Ok(mask.clone());
            }
        }
        self.with(|tables, state| walk::kept(tables, &self.rules.tree, state))
    }

    fn follow_token(&mut self, token: Token) -> Result<bool> {
        let rules = self.rules.clone();
        self.step(|tables, state| tables.after_token(state, token, rules.tree.text(token)))
    }

    fn follow_text(&mut self, text: &[u8]) -> Result<bool> {
        self.step(|tables, state| tables.after_text(state, text))
    }

    fn may_end(&self) -> bool {
        let tables = self.rules.tables();
        tables.state(tables.state_at(self.place)).may_end
    }

    fn has_no_next(&self) -> bool {
        let tables = self.rules.tables();
        let state = tables.state(tables.state_at(self.place));
        state.live == [0; 4] && !state.has_tokens
    }

    fn forced(&mut self, out: &mut Vec<u8>) -> Result<()> {
        let begin = out.len();
        let out = std::cell::RefCell::new(out);
        self.with(|tables, state| {
            let mut out = out.borrow_mut();
            out.truncate(begin);
            run(tables, state, &mut out).map(|_| ())
        })
    }

    fn may_go_on(&self, run: &[Token]) -> Result<bool> {
        let tree = &self.rules.tree;
        let Some(&last) = run.last() else { return Ok(false) };
        let bytes: Vec<u8> = run.iter().flat_map(|&token| tree.text(token).iter().copied()).collect();
        self.with(|tables, state| longer_fits(tables, tree, state, &bytes, last))
    }

    fn mark(&self) -> u32 {
        let tables = self.rules.tables();
        tables.state(tables.state_at(self.place)).mark
    }

    fn mark_of(&self, byte: u8) -> u32 {
        let tables = self.rules.tables();
        tables.mark_of(tables.state_at(self.place), byte)
    }
}

impl Clone for RuleMatcher {
    fn clone(&self) -> Self {
        let place = {
            let mut tables = self.rules.tables();
            let state = tables.state_at(self.place);
            tables.add_place(state)
        };
        RuleMatcher { rules: self.rules.clone(), place }
    }
}

impl Drop for RuleMatcher {
    fn drop(&mut self) {
        self.rules.tables().free_place(self.place);
    }
}

/// Appends the run of forced bytes from a state, and returns the state after it.
fn run(tables: &mut Tables, mut state: u32, out: &mut Vec<u8>) -> Step<u32> {
    for _ in 0..MAX_RUN {
        let of = tables.state(state);
        let live: u32 = of.live.iter().map(|word| word.count_ones()).sum();
        if of.may_end || of.has_tokens || live != 1 {
            break;
        }
        let word = of.live.iter().position(|&word| word != 0).unwrap_or(0);
        let byte = (word as u32 * 64 + of.live[word].trailing_zeros()) as u8;
        let next = tables.next(state, byte)?;
        if next == DEAD {
            break;
        }
        out.push(byte);
        state = next;
    }
    Ok(state)
}

/// Whether a longer token may take the place of `last`, the last one of the run `bytes` from `state` on.
fn longer_fits(tables: &mut Tables, tree: &Tree, state: u32, bytes: &[u8], last: Token) -> Step<bool> {
    let end = tables.after_text(state, bytes)?;
    let Some(node) = tree.find(tree.text(last)) else { return Ok(false) };
    if end == DEAD || node + 1 == tree.nodes[node].end as usize {
        return Ok(false);
    }
    let mut found = false;
    let below = (node + 1, tree.nodes[node].end as usize);
    walk::fitting(tables, tree, below, end, &mut |_, _, _, tokens| {
        found = !tokens.is_empty();
        !found
    })?;
    Ok(found)
}
