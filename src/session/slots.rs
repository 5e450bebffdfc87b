//! Slots: saved to files, kept in a store, pinned and warmed up.

use super::shared::{Command, Phase, Prewarm};
use super::store::Store;
use super::{Session, worker};
use crate::{Error, Result, Token};
use std::path::Path;
use std::sync::mpsc;

/// The most prompts that wait to be warmed up.
const MAX_PREWARMS: usize = 64;

impl Session {
    /// Prewarm: evaluates `tokens` in slot `slot_id` (as in [`prefill`](Session::prefill)) when the session has nothing
    /// else to do and no prompt waits for its generate; returns at once. A later prompt that begins with these tokens
    /// does not evaluate them again, in whatever slot. Prompts are warmed up one after the other, in their order.
    ///
    /// Every call that needs the engine ends the prewarm that runs, at once: what it evaluated until then stays in the
    /// slot, and it does not go on. Usage, status and the text of the last generation are those of other calls. An
    /// error while it runs is logged and kept for [`take_error`](Session::take_error).
    ///
    /// Legal at any time, inside the token callback too.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] (no tokens, a token or slot that does not exist), [`Error::OutOfMemory`] (longer than
    /// the context), [`Error::Busy`] for a closed session, and where 64 prompts wait.
    pub fn prewarm(&self, tokens: &[Token], slot_id: i32) -> Result<()> {
        let checked = self.check_engine().and_then(|()| self.check_prompt(tokens, slot_id));
        let mut state = self.shared.lock();
        let outcome = checked.and_then(|()| {
            if state.closed {
                return Err(Error::Busy("the session is closed".into()));
            }
            if let Some(fault) = &state.fault {
                return Err(worker::refused(fault));
            }
            let (n, max) = (tokens.len(), self.info.context as usize);
            if n > max {
                return Err(Error::OutOfMemory(format!("A prompt of {n} tokens in a context of {max}")));
            }
            if state.prewarms.len() >= MAX_PREWARMS {
                return Err(Error::Busy(format!("{MAX_PREWARMS} prompts wait to be warmed up")));
            }
            state.prewarms.push_back(Prewarm { tokens: tokens.to_vec(), slot_id });
            self.shared.work.notify_all();
            Ok(())
        });
        if let Err(error) = &outcome {
            state.note(Some(error));
        }
        outcome
    }

    /// A session of slot `slot_id` of this one (-1: one that has none, an empty one where there is one) alone: a stream
    /// with settings, constraint, status, usage and cancel of its own, which generates at the same time as this session
    /// and those of its other slots. A pass has the tokens of all. It begins with the settings that this session has
    /// now, without a constraint, and with the slot's tokens. The sessions share the context: where it is full, a slot
    /// is emptied whose session has no prompt and generates nothing.
    ///
    /// This session keeps one slot at least, and has the slot again once the other is dropped. It may be dropped first.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where slots take turns ([`EngineOptions`](super::EngineOptions)`::concurrent_slots`),
    /// [`Error::InvalidArgument`] for a slot that does not exist or has a session, and the last one without, and
    /// [`Error::Busy`], also for the slot whose prompt waits for its generate.
    pub fn open_slot(&self, slot_id: i32) -> Result<Session> {
        let (reply, answer) = mpsc::sync_channel(1);
        self.change(|state| {
            self.check_slot(slot_id)?;
            self.check_worker(state, "opening a slot")?;
            state.phase = Phase::Prefilling;
            self.schedule(state, Command::OpenSlot { slot_id, reply });
            Ok(())
        })?;
        let started =
            answer.recv().map_err(|_| Error::Internal("the worker ended without an answer".into())).flatten()?;
        let mut session = Session::around_worker(started, self.vocab.clone(), self.file.clone(), self.info.clone());
        session.store = self.store.clone();
        Ok(session)
    }

    /// How many prompts are warmed up or wait for that.
    pub fn prewarms(&self) -> usize {
        let state = self.shared.lock();
        state.prewarms.len() + usize::from(state.prewarming)
    }

    /// Pins a slot, or unpins it. A pinned slot keeps its tokens when others need room, and no prompt takes it as its
    /// fresh slot: conversations in other slots share what they begin with. A prefill that names the slot replaces its
    /// tokens all the same.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a slot that does not exist, -1 included, and [`Error::Busy`].
    pub fn pin_slot(&self, slot_id: i32, pinned: bool) -> Result<()> {
        self.change(|state| {
            self.check_slot(slot_id)?;
            let Ok(slot) = u32::try_from(slot_id) else {
                return Err(Error::InvalidArgument(
                    "slot -1 is another one for each prompt: pin one by its number".into(),
                ));
            };
            match pinned {
                true => state.pinned |= 1 << slot,
                false => state.pinned &= !(1 << slot),
            }
            Ok(())
        })
    }

    /// Saves a slot (-1: the one of the last prefill or restore) to a file, and blocks until that is done: its tokens
    /// and cells, and for the slot of the last prefill or restore where its generation stopped, the place in the trie
    /// included. The session is as before; a generate that was possible still is. A file that is there is replaced as a
    /// whole.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] (a slot that does not exist or is empty, a path without a file's name),
    /// [`Error::Io`], [`Error::Busy`] (also from inside the token callback) and [`Error::Cancelled`]; the file is then
    /// as before.
    pub fn save_slot(&self, slot_id: i32, path: &Path) -> Result<()> {
        self.save(slot_id, path, None)
    }

    fn save(&self, slot_id: i32, path: &Path, store: Option<&Store>) -> Result<()> {
        let (reply, answer) = mpsc::sync_channel(1);
        self.change(|state| {
            self.check_slot(slot_id)?;
            self.check_worker(state, "saving")?;
            state.phase = Phase::Prefilling;
            self.schedule(state, Command::Save { slot_id, path: path.into(), store: store.cloned(), reply });
            Ok(())
        })?;
        answer.recv().map_err(|_| Error::Internal("the worker ended without an answer".into())).flatten()
    }

    /// Restores what [`save_slot`](Session::save_slot) wrote into slot `slot_id` (-1: a fresh one), whose content it
    /// replaces, and blocks until that is done. A generate may follow at once and goes on where the saved stream
    /// stopped; a prefill reuses what was restored as far as it can. Returns how many tokens the stream has: those of
    /// the slot, and those that were emitted and not evaluated yet.
    ///
    /// A stream that was saved inside a constraint needs the same trie set in the same mode; the trie's state is
    /// restored. For any other stream the trie is armed, as by a prefill.
    ///
    /// # Errors
    /// [`Error::SavedSlot`] for a file that is damaged, of another model or type of cache, longer than the
    /// context, or held by another trie; with [`Error::Io`], [`Error::InvalidArgument`] (a slot that does not exist)
    /// and [`Error::Busy`] (also from inside the token callback). Nothing has changed then. [`Error::Cancelled`] and
    /// errors of a device may leave the slot empty; then a new prefill or restore is needed before generate.
    pub fn restore_slot(&self, slot_id: i32, path: &Path) -> Result<usize> {
        let (reply, answer) = mpsc::sync_channel(1);
        self.change(|state| {
            self.check_generates()?;
            self.check_slot(slot_id)?;
            self.check_worker(state, "restoring")?;
            state.phase = Phase::Prefilling;
            self.schedule(state, Command::Restore { slot_id, path: path.into(), reply });
            Ok(())
        })?;
        answer.recv().map_err(|_| Error::Internal("the worker ended without an answer".into())).flatten()
    }

    /// Keeps a slot (-1: the one of the last prefill or restore) in the store, under a key of the host's choice, and
    /// blocks until that is done: as [`save_slot`](Session::save_slot), in place of what the store has under that key.
    /// Where the store is limited, the conversations that were used the longest time ago are removed for it.
    ///
    /// # Errors
    /// As [`save_slot`](Session::save_slot); [`Error::InvalidArgument`] without a store and for a key that is empty or
    /// longer than 4096 bytes; [`Error::Io`] for a conversation larger than the store's limit. The store then has what
    /// it had under that key.
    pub fn persist(&self, key: &str, slot_id: i32) -> Result<()> {
        let found = self.store().and_then(|store| Ok((store.path(key)?, store)));
        let (path, store) = found.inspect_err(|error| self.shared.lock().note(Some(error)))?;
        self.save(slot_id, &path, Some(store))
    }

    /// Restores the conversation that [`persist`](Session::persist) kept under a key, as
    /// [`restore_slot`](Session::restore_slot) does. Returns how many tokens the stream has; 0, and nothing changes,
    /// where the store has nothing under that key.
    ///
    /// # Errors
    /// As [`restore_slot`](Session::restore_slot); [`Error::InvalidArgument`] without a store and for a bad key.
    pub fn resume(&self, key: &str, slot_id: i32) -> Result<usize> {
        let found = self.store().and_then(|store| store.find(key));
        match found.inspect_err(|error| self.shared.lock().note(Some(error)))? {
            Some(path) => self.restore_slot(slot_id, &path),
            None => Ok(0),
        }
    }

    /// Removes a conversation from the store; whether there was one under that key. Legal at any time.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] without a store and for a bad key; [`Error::Io`].
    pub fn forget(&self, key: &str) -> Result<bool> {
        let removed = self.store().and_then(|store| store.remove(key));
        removed.inspect_err(|error| self.shared.lock().note(Some(error)))
    }

    fn store(&self) -> Result<&Store> {
        let none = || Error::InvalidArgument("the model was opened without a store for conversations".into());
        self.store.as_ref().ok_or_else(none)
    }
}
