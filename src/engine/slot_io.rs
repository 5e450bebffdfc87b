//! Saving a slot to a file, and restoring it.

use super::plans::HIDDEN;
use super::slot_file::{self, Front, Owner, PIECE, SavedSlot};
use super::slots::Slots;
use super::{Engine, SlotId};
use crate::backend::{CacheSpec, Table};
use crate::model::Model;
use crate::{Error, Result, reserve};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// What memory is reserved for, in errors.
const ROWS: &str = "bytes of a cache's rows";
const STATE: &str = "numbers of a state";

impl Engine {
    /// Save a slot's tokens and cells to `path`, with a `note` that [`SavedSlot::note`] returns. An existing file is
    /// replaced as a whole; after an error or a cancel it is unchanged. The slot is unchanged.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an empty slot or a path without a file's name, [`Error::Io`] (also where the
    /// model's file was changed), [`Error::OutOfMemory`], [`Error::Cancelled`], and [`Error::Device`] where a device
    /// fails.
    pub fn save(&mut self, slot: SlotId, path: &Path, note: &[u8], cancel: &AtomicBool) -> Result<()> {
        self.check_no_source("slots that can be saved")?;
        self.rollback()?;
        if self.tokens(slot).is_empty() {
            return Err(Error::InvalidArgument(format!("Slot {} is empty: there is nothing to save", slot.0)));
        }
        self.catch_up(slot, cancel)?;
        let hidden = if self.hidden_of == Some(slot) { self.last_hidden()? } else { Vec::new() };
        let Engine { model, states, slots, plans, .. } = self;
        let tokens = reserve::copied(slots.tokens(slot), "tokens")?;
        let note = reserve::copied(note, "bytes of a note")?;
        let (windows, n) = (slots.windows(), tokens.len());
        let window_from = if windows.any() { windows.seen_from(n).max(windows.held(slot.0).start) } else { 0 };
        let front = Front { tokens, stale_from: slots.stale_from(slot), window_from, hidden, note };
        let cache = plans.cache();
        let window = window_cells(slots, slot, window_from)?;
        slot_file::write(path, &owner(model, cache, slots)?, &front, |output| {
            let mut rows = Vec::new();
            for (il, layer) in cache.layers.iter().enumerate() {
                let Some(layer) = layer else { continue };
                let (row_bytes, device) = (layer.row_bytes(cache.types), model.outline().places().caches[il]);
                let cells = if layer.table == Table::Window { &window } else { slots.cells_of(slot) };
                for cells in cells.chunks((PIECE / row_bytes).max(1)) {
                    stop_if(cancel)?;
                    reserve::resize(&mut rows, cells.len() * row_bytes, ROWS)?;
                    states[device].read_cells(il, cells, &mut rows)?;
                    output.put(&rows)?;
                }
            }
            let (_, cell) = slots.states().nearest(slot.0, slots.position(slot));
            let mut values = Vec::new();
            for (state, n) in cache.states.iter().enumerate() {
                stop_if(cancel)?;
                reserve::resize(&mut values, n.unwrap_or(0), STATE)?;
                states[model.outline().places().states[state]].read_state(state, cell, &mut values)?;
                reserve::resize(&mut rows, values.len() * 4, STATE)?;
                for (bytes, value) in rows.as_chunks_mut().0.iter_mut().zip(&values) {
                    *bytes = value.to_le_bytes();
                }
                output.put(&rows)?;
            }
            Ok(())
        })
    }

    /// The most bytes of the file that [`Engine::save`] would write with a note of so many.
    pub fn saved_bytes(&self, slot: SlotId, note: usize) -> u64 {
        let windows = self.slots.windows();
        let window_from = if windows.any() { windows.held(slot.0).start } else { 0 };
        let (cache, n_embd) = (self.plans.cache(), self.model.hparams().n_embd);
        slot_file::bytes(cache, self.position(slot), window_from, n_embd, note)
    }

    /// Open a file that [`Engine::save`] wrote and check all of it. The engine is unchanged.
    ///
    /// # Errors
    /// [`Error::SavedSlot`] naming the place where a file is damaged, cut short, of another format, model or type of
    /// cache, or longer than the context; [`Error::Io`]; [`Error::OutOfMemory`]; [`Error::Cancelled`].
    pub fn open_saved(&self, path: &Path, cancel: &AtomicBool) -> Result<SavedSlot> {
        self.check_no_source("slots that can be saved")?;
        SavedSlot::open(path, &owner(&self.model, self.plans.cache(), &self.slots)?, cancel)
    }

    /// Replace a slot's content by what was saved; least recently used slots are evicted for it as for a prompt. True
    /// where the last position's hidden row was saved as well, so that [`Engine::head`] works at once; else append
    /// tokens first, or prefill the last one again.
    ///
    /// `saved` was opened by this engine. After an error or a cancel the slot is empty.
    ///
    /// # Errors
    /// [`Error::SavedSlot`] where the file was changed since [`Engine::open_saved`], [`Error::Io`],
    /// [`Error::OutOfMemory`] where the context has no room, [`Error::Cancelled`], and [`Error::Device`] where a device
    /// fails.
    pub fn restore(&mut self, slot: SlotId, saved: SavedSlot, cancel: &AtomicBool) -> Result<bool> {
        self.rollback()?;
        self.truncate(slot, 0);
        self.slots.touch(slot);
        let n = saved.tokens().len();
        self.make_room(slot, n, 0);
        let window_from = saved.front().window_from.max(self.slots.windows().seen_from(n));
        if !self.slots.restore(slot, saved.tokens(), window_from, saved.front().stale_from) {
            let max = self.context();
            return Err(Error::OutOfMemory(format!("{n} saved tokens in a context of {max} that others fill")));
        }
        let hidden = reserve::copied(&saved.front().hidden, HIDDEN)?;
        let done = self.bring_back(slot, saved, &hidden, cancel);
        if done.is_err() {
            self.truncate(slot, 0);
        }
        done.map(|()| !hidden.is_empty())
    }

    /// Write the saved rows to the slot's cells, and the kept hidden row.
    fn bring_back(&mut self, slot: SlotId, mut saved: SavedSlot, hidden: &[f32], cancel: &AtomicBool) -> Result<()> {
        let mut rows = Vec::new();
        let cache = self.plans.cache();
        let kept_from = self.slots.windows().held(slot.0).start;
        let window = window_cells(&self.slots, slot, kept_from)?;
        for (il, layer) in cache.layers.iter().enumerate() {
            let Some(layer) = layer else { continue };
            let (row_bytes, device) = (layer.row_bytes(cache.types), self.model.outline().places().caches[il]);
            let (cells, mut unwanted) = match layer.table {
                Table::All => (self.slots.cells_of(slot), 0),
                Table::Window => (&*window, kept_from - saved.front().window_from),
            };
            while unwanted > 0 {
                stop_if(cancel)?;
                let n = unwanted.min((PIECE / row_bytes).max(1));
                reserve::resize(&mut rows, n * row_bytes, ROWS)?;
                saved.read(&mut rows)?;
                unwanted -= n;
            }
            for cells in cells.chunks((PIECE / row_bytes).max(1)) {
                stop_if(cancel)?;
                reserve::resize(&mut rows, cells.len() * row_bytes, ROWS)?;
                saved.read(&mut rows)?;
                self.states[device].write_cells(il, cells, &rows)?;
            }
        }
        let (n, mut values) = (self.position(slot), Vec::new());
        if self.slots.states().any() {
            let cell = self.slots.states_mut().take(&[]);
            let cell = cell.ok_or_else(|| Error::Internal("No state cell is left".into()))?;
            self.slots.states_mut().keep(slot.0, n, cell);
            for (state, n) in cache.states.iter().enumerate() {
                stop_if(cancel)?;
                reserve::resize(&mut rows, n.unwrap_or(0) * 4, STATE)?;
                saved.read(&mut rows)?;
                reserve::resize(&mut values, n.unwrap_or(0), STATE)?;
                for (value, bytes) in values.iter_mut().zip(rows.as_chunks().0) {
                    *value = f32::from_le_bytes(*bytes);
                }
                self.states[self.model.outline().places().states[state]].write_state(state, cell, &values)?;
            }
        }
        saved.finish()?;
        if !hidden.is_empty() {
            self.put_last_hidden(slot, hidden)?;
        }
        self.states.iter_mut().try_for_each(|state| state.finish())
    }
}

fn owner<'a>(model: &Model, cache: &'a CacheSpec, slots: &Slots) -> Result<Owner<'a>> {
    let (n_vocab, n_embd) = (model.n_vocab(), model.hparams().n_embd);
    let (reach, context) = (slots.windows().reach(), slots.context());
    Ok(Owner { model: model.identity()?, cache, reach, context, n_vocab, n_embd })
}

/// The cells of sliding layers for a slot's positions from `first` on.
fn window_cells(slots: &Slots, slot: SlotId, first: usize) -> Result<Vec<u32>> {
    let held = if slots.windows().any() { first..slots.position(slot) } else { 0..0 };
    let mut cells = reserve::list(held.len(), "cells")?;
    cells.extend(held.map(|position| slots.windows().cell(slot.0, position)));
    Ok(cells)
}

fn stop_if(cancel: &AtomicBool) -> Result<()> {
    match cancel.load(Ordering::Acquire) {
        true => Err(Error::Cancelled),
        false => Ok(()),
    }
}
