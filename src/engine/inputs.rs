//! The inputs of a pass, kept so that no pass allocates, and the wanted outputs; those of a pass that can be left.

use super::plans::READING_ROWS;
use super::slots::{SlotId, Slots};
use crate::Token;
use crate::backend::{Batch, MAX_LISTED, SampleRow, State, StateRows};

/// What is computed for a chunk of a slot's tokens.
#[derive(Clone, Copy)]
pub(super) enum How<'a> {
    /// Hidden rows alone.
    Body,
    /// Hidden rows and logits of the last row: those of these tokens, or all where the slice is empty.
    Logits(&'a [Token]),
    /// As `Logits`, and a token sampled from them on the device.
    Sample(&'a [Token]),
}

/// Which rows of a batch are wanted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum OutputRows {
    None,
    /// So many at the end: that of the next token, and those after guesses, which may be taken back again.
    Last(usize),
    All,
}

/// The rows of a batch.
#[derive(Default)]
pub(super) struct Inputs {
    pub tokens: Vec<Token>,
    pub positions: Vec<i32>,
    pub sequences: Vec<u32>,
    pub cells: Vec<u32>,
    /// Cells of the second table: of sliding layers, or of a prompt that is encoded; empty where there are none.
    pub window: Vec<u32>,
    pub outputs: Vec<u32>,
    pub states: Vec<StateRows>,
    pub parents: Vec<u32>,
    pub sample: Vec<SampleRow>,
    pub listed: Vec<Token>,
}

impl Inputs {
    /// Room for `rows` rows, of which `sampled` are sampled from.
    pub fn new(rows: usize, sampled: usize) -> Inputs {
        Inputs {
            tokens: Vec::with_capacity(rows),
            positions: Vec::with_capacity(rows),
            sequences: Vec::with_capacity(rows),
            cells: Vec::with_capacity(rows),
            window: Vec::with_capacity(rows),
            outputs: Vec::with_capacity(rows),
            states: Vec::with_capacity(2 * sampled),
            parents: Vec::with_capacity(rows),
            sample: Vec::with_capacity(sampled),
            listed: Vec::with_capacity(MAX_LISTED),
        }
    }

    pub fn clear(&mut self) {
        self.tokens.clear();
        self.positions.clear();
        self.sequences.clear();
        self.cells.clear();
        self.window.clear();
        self.outputs.clear();
        self.states.clear();
        self.parents.clear();
        self.sample.clear();
        self.listed.clear();
    }

    /// One more row.
    pub fn push(&mut self, token: Token, position: i32, sequences: u32, cell: u32) {
        self.tokens.push(token);
        self.positions.push(position);
        self.sequences.push(sequences);
        self.cells.push(cell);
    }

    /// The batch of these inputs over the cells of these slots.
    pub fn batch<'a>(&'a self, slots: &'a Slots) -> Batch<'a> {
        Batch {
            tokens: &self.tokens,
            positions: &self.positions,
            sequences: &self.sequences,
            cells: [slots.cells().table(&self.cells), slots.second_table(&self.window)],
            outputs: &self.outputs,
            states: &self.states,
            parents: &self.parents,
            sample: &self.sample,
            listed: &self.listed,
        }
    }
}

/// A pass that can be left, see `reading.rs`.
pub(super) struct Reading {
    /// Beside the engine's own.
    pub states: Vec<Box<dyn State>>,
    pub inputs: Inputs,
    /// The slot whose tokens are read now, and the step to go on from.
    pub now: Option<(SlotId, usize)>,
}

impl Reading {
    /// For an engine with these states; `None` on a device that takes its work as a whole.
    pub fn new(states: &[Box<dyn State>], batch: usize) -> Option<Reading> {
        let [state] = states else { return None };
        let inputs = Inputs::new(READING_ROWS.min(batch), 0);
        Some(Reading { states: vec![state.beside()?], inputs, now: None })
    }
}
