//! Rows of whole texts: embeddings, and the scores of rerankers.
//!
//! Texts share passes: each is a sequence of its own, told from the others by the words of a tree's rows
//! ([`crate::backend::tree_row`]), of which there are more than there are slots. An encoder takes all of a text in one
//! pass, since its rows see those after them; a decoder takes a long text in several, alone. The cells are free again
//! when the texts are done. Rows are pooled on the host.

use super::plans::{HIDDEN, largest_read};
use super::{Engine, SlotId};
use crate::backend::{Batch, LIST_BLOCK, NO_STATE, StateRows, tree_cell, tree_row};
use crate::model::{Pooling, Then};
use crate::{Error, Result, Token, reserve};
use std::sync::atomic::AtomicBool;

/// How the rows of texts are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EmbedOptions {
    /// How the rows of a text's tokens become one; `None` = as the model's file says.
    pub pooling: Option<Pooling>,
    /// Whether rows are divided by their length. Scores of rerankers are not.
    pub normalize: bool,
    /// How many of a row's first numbers are kept, before it is divided by its length, which models trained for it
    /// (Matryoshka) allow; 0 = all.
    pub dimensions: usize,
}

/// Rows of texts.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Embeddings {
    /// Numbers in a row.
    pub width: usize,
    /// For every text one row, or without pooling a row for each of its tokens, one after the other.
    pub texts: Vec<Vec<f32>>,
}

/// What the rows of a text are added up to.
struct Pool {
    kind: Pooling,
    /// The result; without pooling all rows, one after the other.
    values: Vec<f32>,
    /// Sums for the mean.
    sums: Vec<f64>,
    rows: usize,
}

impl Engine {
    /// The rows of texts, each given as its tokens.
    ///
    /// Cells of slots are taken where there are no others, the least recently used first, and the hidden row of the
    /// last prefill is lost.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a text without tokens or with more than [`Engine::longest_text`], for a token
    /// outside the vocabulary, for [`Pooling::Rank`] with a model that has no classifier, and for more dimensions than
    /// there are; [`Error::Cancelled`]; [`Error::OutOfMemory`] for the rows; [`Error::Device`] where a device fails.
    pub fn embed(&mut self, texts: &[Vec<Token>], options: &EmbedOptions, cancel: &AtomicBool) -> Result<Embeddings> {
        self.check_no_source("embeddings")?;
        let (kind, width) = self.check_embed(options)?;
        for (i, text) in texts.iter().enumerate() {
            let (n, max) = (text.len(), self.longest_text());
            self.check_tokens(text)?;
            if !(1..=max).contains(&n) {
                return Err(Error::InvalidArgument(format!("Text {i} has {n} tokens (1 to {max} are possible)")));
            }
        }
        self.rollback()?;
        self.hidden_of = None;
        let n_embd = self.model.hparams().n_embd;
        let mut pools = reserve::list(texts.len(), "rows of texts")?;
        for text in texts {
            pools.push(Pool::new(kind, text.len(), n_embd)?);
        }
        let mut first = 0;
        while first < texts.len() {
            let mut rows = 0;
            let fits = |text: &&Vec<Token>| {
                rows += text.len();
                rows <= self.packed
            };
            let n = texts[first..].iter().take_while(fits).count().max(1);
            self.embed_together(&texts[first..first + n], &mut pools[first..first + n], cancel)?;
            first += n;
        }
        let mut rows = reserve::list(texts.len(), "rows of texts")?;
        rows.extend(pools.into_iter().map(Pool::finish));
        self.follow_pooling(&mut rows, options, cancel)?;
        let keep = if options.dimensions == 0 { width } else { options.dimensions };
        for row in &mut rows {
            shorten(row, width, keep);
            if options.normalize && self.pooling(options) != Pooling::Rank {
                row.chunks_exact_mut(keep).for_each(normalize);
            }
        }
        Ok(Embeddings { width: keep, texts: rows })
    }

    /// The most tokens of a text.
    pub fn longest_text(&self) -> usize {
        let max = self.context();
        if self.model.outline().encodes() { max.min(self.plans.batch()) } else { max }
    }

    fn pooling(&self, options: &EmbedOptions) -> Pooling {
        let of_file = self.model.hparams().pooling;
        options.pooling.unwrap_or(of_file)
    }

    /// How rows are pooled, and the numbers in a result before it is shortened.
    fn check_embed(&self, options: &EmbedOptions) -> Result<(Pooling, usize)> {
        let n_embd = self.model.hparams().n_embd;
        let pooling = self.pooling(options);
        let (kind, width) = match (pooling, self.model.outline().pooled()) {
            (Pooling::Rank, Some(pooled)) => match &pooled.then {
                Then::Classifier(classifier) => (classifier.row, pooled.width),
                _ => return Err(no_classifier()),
            },
            (Pooling::Rank, None) => return Err(no_classifier()),
            (_, Some(pooled)) if matches!(pooled.then, Then::Products(_)) => (pooling, pooled.width),
            _ => (pooling, n_embd),
        };
        if options.dimensions > width {
            let n = options.dimensions;
            return Err(Error::InvalidArgument(format!("{n} dimensions of rows of {width}")));
        }
        Ok((kind, width))
    }

    /// Evaluates texts side by side, and adds their rows to their pools.
    fn embed_together(&mut self, texts: &[Vec<Token>], pools: &mut [Pool], cancel: &AtomicBool) -> Result<()> {
        let total = texts.iter().map(Vec::len).sum();
        let mut cells = reserve::list(total, "cells of texts")?;
        // The texts have the places after a slot's tokens, from the next whole block on, and the windows of one.
        let windows = self.slots.windows().any();
        let slot = self.slots.find(if windows { -1 } else { 0 })?;
        self.make_room(slot, total + LIST_BLOCK, 0);
        if windows || self.slots.free_for(slot) < total + LIST_BLOCK {
            self.truncate(slot, 0);
        }
        let done = self.embed_passes(texts, pools, (slot, &mut cells), cancel);
        self.slots.free_cells(cells);
        self.slots.windows_mut().empty(slot.0);
        done
    }

    /// As [`Engine::embed_together`], at the places after the tokens of `slot`; `cells` takes those that have to be
    /// freed.
    fn embed_passes(
        &mut self,
        texts: &[Vec<Token>],
        pools: &mut [Pool],
        (slot, cells): (SlotId, &mut Vec<u32>),
        cancel: &AtomicBool,
    ) -> Result<()> {
        let mut rows =
            texts.iter().enumerate().flat_map(|(i, text)| text.iter().copied().enumerate().map(move |at| (i, at)));
        let mut of_outputs: Vec<usize> = reserve::list(self.plans.batch(), "rows of texts")?;
        let total: usize = texts.iter().map(Vec::len).sum();
        let place = self.slots.next_place(slot).next_multiple_of(LIST_BLOCK);
        // Of a text that goes on in the next pass.
        let mut state = NO_STATE;
        loop {
            self.inputs.clear();
            of_outputs.clear();
            for (i, (position, token)) in rows.by_ref().take(self.plans.batch()) {
                let (number, last) = (i as u32, texts[i].len() - 1);
                let (position, word) = (position as i32, tree_cell(number, number + 1));
                let no_cell = || Error::Internal("A text without a cell".into());
                let cell = self.slots.take_cell(slot, place + cells.len(), position, word);
                let cell = cell.ok_or_else(no_cell)?;
                if self.slots.windows().any() {
                    let window = self.slots.windows_mut().enter(slot.0, cells.len(), position, word, slot.bit());
                    self.inputs.window.push(window.ok_or_else(no_cell)?);
                }
                cells.push(cell);
                if pools[i].wants(position as usize, last) {
                    self.inputs.outputs.push(self.inputs.tokens.len() as u32);
                    of_outputs.push(i);
                }
                self.inputs.push(token, position, tree_row(number, 0), cell);
            }
            if self.inputs.tokens.is_empty() {
                return Ok(());
            }
            let before = std::mem::replace(&mut state, NO_STATE);
            let done = self.enter_text_states(before, cells.len() < total).and_then(|after| {
                state = after;
                self.run_inputs(true, cancel)
            });
            self.slots.states_mut().free(before);
            if let Err(error) = done.and_then(|()| self.each_hidden(&of_outputs, pools)) {
                self.slots.states_mut().free(state);
                return Err(error);
            }
        }
    }

    /// Enters the states of the inputs' texts: each begins without one, but for the first where it began in an earlier
    /// pass. Returns the state cell of the last one where it goes on in the next pass.
    fn enter_text_states(&mut self, before: u32, goes_on: bool) -> Result<u32> {
        if !self.slots.states().any() {
            return Ok(NO_STATE);
        }
        let (inputs, mut first) = (&mut self.inputs, 0);
        for text in inputs.sequences.chunk_by(|a, b| a == b) {
            let from = if inputs.positions[first] == 0 { NO_STATE } else { before };
            inputs.states.push(StateRows { first: first as u32, rows: text.len() as u32, from, to: NO_STATE });
            first += text.len();
        }
        let Some(last) = self.inputs.states.len().checked_sub(1).filter(|_| goes_on) else { return Ok(NO_STATE) };
        let to = self.slots.states_mut().take(&self.inputs.states);
        let to = to.ok_or_else(|| Error::Internal("No state cell is left".into()))?;
        self.inputs.states[last].to = to;
        Ok(to)
    }

    /// Adds each kept hidden row to the pool of its text.
    fn each_hidden(&mut self, of_outputs: &[usize], pools: &mut [Pool]) -> Result<()> {
        let outline = self.model.outline();
        let (width, hidden_at) = (self.model.hparams().n_embd, self.plans.kept().hidden_offset());
        let at_once = (largest_read(outline, self.plans.head_rows()) / (4 * width)).max(1);
        let state = &mut self.states[outline.places().hidden];
        for (i, texts) in of_outputs.chunks(at_once).enumerate() {
            let rows = state.rows(hidden_at + i * at_once * width * 4, texts.len() * width)?;
            for (&text, row) in texts.iter().zip(rows.chunks_exact(width)) {
                pools[text].add(row);
            }
        }
        Ok(())
    }

    /// What the model makes of rows of texts.
    fn follow_pooling(&mut self, texts: &mut [Vec<f32>], options: &EmbedOptions, cancel: &AtomicBool) -> Result<()> {
        let model = self.model.clone();
        let Some(pooled) = model.outline().pooled() else { return Ok(()) };
        let softmaxed = match (&pooled.then, self.pooling(options)) {
            (Then::Products(_), _) => false,
            (Then::Classifier(classifier), Pooling::Rank) => classifier.softmax,
            _ => return Ok(()),
        };
        let n_embd = model.hparams().n_embd;
        let (kept, places, head_rows) = (self.plans.kept(), model.outline().places(), self.plans.head_rows());
        let rows = texts.iter().map(Vec::len).sum::<usize>() / n_embd;
        let mut made = reserve::list(rows * pooled.width, "rows of texts")?;
        let mut wide = reserve::list(head_rows * n_embd, HIDDEN)?;
        let mut left = texts.iter().flat_map(|text| text.chunks_exact(n_embd)).peekable();
        while left.peek().is_some() {
            wide.clear();
            left.by_ref().take(head_rows).for_each(|row| wide.extend_from_slice(row));
            let n = wide.len() / n_embd;
            self.states[places.hidden].put(kept.hidden_offset(), &wide)?;
            self.plans.head_many()?.run(&mut self.states, &Batch::default(), n, cancel)?;
            self.stats.head_passes += 1;
            made.extend_from_slice(self.states[places.logits].rows(kept.logits_offset(), n * pooled.width)?);
        }
        if softmaxed {
            made.chunks_exact_mut(pooled.width).for_each(softmax);
        }
        let mut made = made.as_slice();
        for text in texts {
            let (own, rest) = made.split_at(text.len() / n_embd * pooled.width);
            text.clear();
            reserve::reserve(text, own.len(), HIDDEN)?;
            text.extend_from_slice(own);
            made = rest;
        }
        Ok(())
    }
}

impl Pool {
    fn new(kind: Pooling, tokens: usize, width: usize) -> Result<Pool> {
        let kept = if kind == Pooling::None { tokens * width } else { width };
        let sums = if kind == Pooling::Mean { width } else { 0 };
        let (values, sums) = (reserve::list(kept, HIDDEN)?, reserve::filled(0.0, sums, HIDDEN)?);
        Ok(Pool { kind, values, sums, rows: 0 })
    }

    /// Whether the row of a position is needed, where `last` is the text's last one.
    fn wants(&self, position: usize, last: usize) -> bool {
        match self.kind {
            Pooling::None | Pooling::Mean => true,
            Pooling::Cls => position == 0,
            Pooling::Last | Pooling::Rank => position == last,
        }
    }

    fn add(&mut self, row: &[f32]) {
        self.rows += 1;
        match self.kind {
            Pooling::Mean => self.sums.iter_mut().zip(row).for_each(|(sum, &x)| *sum += f64::from(x)),
            _ => self.values.extend_from_slice(row),
        }
    }

    fn finish(mut self) -> Vec<f32> {
        if self.kind == Pooling::Mean {
            let n = self.rows.max(1) as f64;
            self.values.extend(self.sums.iter().map(|sum| (sum / n) as f32));
        }
        self.values
    }
}

fn no_classifier() -> Error {
    Error::InvalidArgument("Pooling `rank` needs a classifier, which this model does not have".into())
}

/// Keeps the first `keep` of every `width` numbers.
fn shorten(row: &mut Vec<f32>, width: usize, keep: usize) {
    if keep < width {
        let n = row.len() / width;
        (0..n).for_each(|i| row.copy_within(i * width..i * width + keep, i * keep));
        row.truncate(n * keep);
    }
}

/// Divides a row by its length; one of zeros stays as it is.
fn normalize(row: &mut [f32]) {
    let length = row.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
    if length > 0.0 {
        row.iter_mut().for_each(|x| *x = (f64::from(*x) / length) as f32);
    }
}

fn softmax(row: &mut [f32]) {
    let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = row.iter().map(|&x| f64::from(x - largest).exp()).sum();
    row.iter_mut().for_each(|x| *x = (f64::from(*x - largest).exp() / sum) as f32);
}
