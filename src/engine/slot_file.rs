//! The file format of a saved slot.
//!
//! ```text
//! 0   8   "elizaslt"
//! 8   4   version: 1, or 2 where sliding layers have the cells of the last tokens alone
//! 12  2   element type of the cached keys, by its number in GGUF files
//! 14  2   that of the values, plus 1; 0 = that of the keys
//! 16  32  the model, see [`crate::model::Model::identity`]
//! 48  4   tokens
//! 52  4   the first token that was computed after other tokens than those before it; 2^32 - 1 = none
//! 56  4   numbers of the hidden row of the last position; 0 = it was not kept
//! 60  4   bytes of the note
//! 64  4   in version 2: the first position that sliding layers have
//!         tokens, 4 bytes each; the hidden row, 4 bytes each; the note
//!         for every layer, for every position that it has: the row of its cell, see [`crate::backend::kv_rows`]
//!         for every state that the model keeps: its numbers after the last token, 4 bytes each
//!         32 bytes, the SHA-256 of everything before
//! ```
//!
//! Little-endian. Neither the layout of a backend's cache nor a cell's number is in it, so a slot that was saved on one
//! device can be restored on any other. A file is written under another name in the same folder and renamed, so that
//! there is always a whole file or none. Nobody waits until it is on the disk: where the system crashes before that,
//! the checksum tells. It is read twice: once for the checksum, before anything changes, once for the cells.

use super::plans::HIDDEN;
use crate::backend::{CacheSpec, KvTypes, LayerCache, Table};
use crate::quant::TensorType;
use crate::{Error, Result, Token, disk, gguf, reserve};
use sha2::{Digest, Sha256};
use std::fs::{self, OpenOptions};
use std::io::{BufWriter, IntoInnerError, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

const MAGIC: [u8; 8] = *b"elizaslt";
const VERSIONS: [u32; 2] = [1, 2];
const HEADER: usize = 64;
const CHECKSUM: usize = 32;
const NO_GAP: u32 = u32::MAX;
/// The longest note in bytes; a session's note is much shorter.
const MAX_NOTE: usize = 64 << 20;
/// Bytes of the buffer with which a file is read or written.
pub(super) const PIECE: usize = 4 << 20;

/// The properties of an engine that a file must match.
pub(super) struct Owner<'a> {
    pub model: [u8; 32],
    pub cache: &'a CacheSpec,
    /// Tokens that a row of a sliding layer sees, where these have cells for a window; else 0.
    pub reach: usize,
    pub context: usize,
    pub n_vocab: usize,
    pub n_embd: usize,
}

/// Bytes of all rows of `tokens` tokens, in sliding layers of those from `window_from` on, and of all states.
fn cache_bytes(cache: &CacheSpec, tokens: usize, window_from: usize) -> u64 {
    let rows = |layer: &LayerCache| match layer.table {
        Table::All => tokens,
        Table::Window => tokens - window_from,
    };
    let bytes = |layer: &LayerCache| (rows(layer) * layer.row_bytes(cache.types)) as u64;
    let cells: u64 = cache.layers.iter().flatten().map(bytes).sum();
    cells + cache.states.iter().flatten().map(|&n| n as u64 * 4).sum::<u64>()
}

/// The most bytes of a file.
pub(super) fn bytes(cache: &CacheSpec, tokens: usize, window_from: usize, hidden: usize, note: usize) -> u64 {
    (HEADER + 4 + 4 * (tokens + hidden) + note + CHECKSUM) as u64 + cache_bytes(cache, tokens, window_from)
}

/// The content of the file before the cells.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Front {
    pub tokens: Vec<Token>,
    pub stale_from: Option<usize>,
    /// The first position that sliding layers have.
    pub window_from: usize,
    /// Empty where it was not kept.
    pub hidden: Vec<f32>,
    pub note: Vec<u8>,
}

impl Front {
    fn to_bytes(&self, owner: &Owner<'_>) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(MAGIC);
        bytes.extend(VERSIONS[usize::from(self.window_from > 0)].to_le_bytes());
        bytes.extend(type_word(owner.cache.types).to_le_bytes());
        bytes.extend(owner.model);
        let stale_from = self.stale_from.map_or(NO_GAP, |from| from as u32);
        for number in [self.tokens.len() as u32, stale_from, self.hidden.len() as u32, self.note.len() as u32] {
            bytes.extend(number.to_le_bytes());
        }
        if self.window_from > 0 {
            bytes.extend((self.window_from as u32).to_le_bytes());
        }
        bytes.extend(self.tokens.iter().flat_map(|token| token.to_le_bytes()));
        bytes.extend(self.hidden.iter().flat_map(|x| x.to_le_bytes()));
        bytes.extend(&self.note);
        bytes
    }
}

/// A file that is being written, under its temporary name.
pub(super) struct Output {
    path: PathBuf,
    file: BufWriter<fs::File>,
    hash: Sha256,
}

impl Output {
    pub fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.hash.update(bytes);
        self.file.write_all(bytes).map_err(|e| Error::io(&self.path, &e))
    }

    fn finish(mut self) -> Result<fs::File> {
        let written = self.file.write_all(&self.hash.finalize());
        let file = written.and_then(|()| self.file.into_inner().map_err(IntoInnerError::into_error));
        file.map_err(|e| Error::io(&self.path, &e))
    }
}

/// Write a file whose cell rows come from `cells`. After an error the old file, if any, is unchanged.
pub(super) fn write(
    path: &Path,
    owner: &Owner<'_>,
    front: &Front,
    cells: impl FnOnce(&mut Output) -> Result<()>,
) -> Result<()> {
    let Some(name) = path.file_name() else {
        return Err(Error::InvalidArgument(format!("{} names no file to save to", path.display())));
    };
    if front.note.len() > MAX_NOTE {
        let n = front.note.len();
        return Err(Error::InvalidArgument(format!("A note of {n} bytes beside a saved slot, above {MAX_NOTE}")));
    }
    static FILES: AtomicU32 = AtomicU32::new(0);
    let mut temporary = std::ffi::OsString::from(".");
    temporary.push(name);
    temporary.push(format!(".{}-{}", std::process::id(), FILES.fetch_add(1, Ordering::Relaxed)));
    let temporary = path.with_file_name(temporary);
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    // The file contains the prompt.
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let file = options.open(&temporary).map_err(|e| Error::io(path, &e))?;
    let mut output = Output { path: path.into(), file: BufWriter::new(file), hash: Sha256::new() };
    let written = output.put(&front.to_bytes(owner)).and_then(|()| cells(&mut output)).and_then(|()| output.finish());
    let placed = written.and_then(|file| fs::rename(&temporary, path).map(|()| file).map_err(|e| Error::io(path, &e)));
    // A temporary file that cannot be removed is left; the first error is returned.
    let file = placed.inspect_err(|_| drop(fs::remove_file(&temporary)))?;
    disk::sync(file, path, |_| Ok(()));
    Ok(())
}

/// A checked file that fits an engine: [`super::Engine::open_saved`].
#[derive(Debug)]
pub struct SavedSlot {
    path: PathBuf,
    file: fs::File,
    front: Front,
    /// The hash of everything before the cells, and the expected hash of the file.
    hash: Sha256,
    checksum: [u8; CHECKSUM],
}

impl SavedSlot {
    /// The slot's tokens.
    pub fn tokens(&self) -> &[Token] {
        &self.front.tokens
    }

    /// The note that was saved with the slot.
    pub fn note(&self) -> &[u8] {
        &self.front.note
    }

    /// An error about this file.
    pub fn error(&self, place: &str, problem: impl Into<String>) -> Error {
        refused(&self.path, place, problem)
    }

    pub(super) fn front(&self) -> &Front {
        &self.front
    }

    /// Open and check a file.
    pub(super) fn open(path: &Path, owner: &Owner<'_>, cancel: &AtomicBool) -> Result<SavedSlot> {
        let no = |place: &str, problem: String| Err(refused(path, place, problem));
        let io = |e: std::io::Error| Error::io(path, &e);
        let mut file = gguf::open_regular(path).map_err(io)?;
        let size = file.metadata().map_err(io)?.len();
        if size < (HEADER + CHECKSUM) as u64 {
            return no("header", format!("the file ends at byte {size}, inside the header"));
        }
        let mut header = [0; HEADER];
        file.read_exact(&mut header).map_err(io)?;
        let number = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| header[at + i]));
        if header[..8] != MAGIC {
            return no("magic at byte 0", "this is no saved slot".into());
        }
        if !VERSIONS.contains(&number(8)) {
            let [first, last] = VERSIONS;
            return no("version at byte 8", format!("{}, where this library reads {first} and {last}", number(8)));
        }
        if number(12) != type_word(owner.cache.types) {
            let found = types_of(number(12)).map_or("unknown".into(), |types| types.to_string());
            let problem = format!("saved from a cache of type {found}, where this one is {}", owner.cache.types);
            return no("cache type at byte 12", problem);
        }
        if header[16..48] != owner.model {
            return no("model at byte 16", "saved with another model than this one".into());
        }
        let [tokens, stale_from, hidden, note] = [48, 52, 56, 60].map(number);
        if tokens == 0 || tokens as usize > owner.context {
            let problem = format!("{tokens} tokens, where the context has room for {}", owner.context);
            return no("tokens at byte 48", problem);
        }
        if stale_from != NO_GAP && stale_from >= tokens {
            return no("gap at byte 52", format!("token {stale_from} of {tokens}"));
        }
        if hidden != 0 && hidden as usize != owner.n_embd {
            return no("hidden row at byte 56", format!("{hidden} numbers, where the model has {}", owner.n_embd));
        }
        if note as usize > MAX_NOTE {
            return no("note at byte 60", format!("{note} bytes, above {MAX_NOTE}"));
        }
        let mut more = [0; 4];
        let more = if number(8) == VERSIONS[1] { &mut more[..] } else { &mut [] };
        file.read_exact(more).map_err(io)?;
        let window_from = more.iter().rfold(0, |number, &byte| number << 8 | usize::from(byte));
        if window_from > 0 && owner.reach == 0 {
            let problem = "saved where sliding layers have the cells of a window, which here have those of all tokens \
                           (context and number of slots decide)";
            return no("window at byte 64", problem.into());
        }
        if window_from > (tokens as usize + 1).saturating_sub(owner.reach) {
            let problem = format!("from token {window_from} of {tokens}, where a row sees {} tokens", owner.reach);
            return no("window at byte 64", problem);
        }
        let front = 4 * (tokens as usize + hidden as usize) + note as usize;
        let cells = cache_bytes(owner.cache, tokens as usize, window_from);
        let whole = (HEADER + more.len() + front + CHECKSUM) as u64 + cells;
        if size != whole {
            return no("length", format!("the file has {size} bytes, where its header tells of {whole}"));
        }
        let mut bytes = reserve::filled(0, front, "bytes of a saved slot")?;
        file.read_exact(&mut bytes).map_err(io)?;
        let hash = Sha256::new().chain_update(header).chain_update(&more).chain_update(&bytes);
        let mut all = hash.clone();
        let mut piece = vec![0; PIECE.min(cells as usize)];
        let mut left = cells;
        while left > 0 {
            if cancel.load(Ordering::Acquire) {
                return Err(Error::Cancelled);
            }
            let piece = &mut piece[..left.min(PIECE as u64) as usize];
            file.read_exact(piece).map_err(io)?;
            all.update(&*piece);
            left -= piece.len() as u64;
        }
        let mut checksum = [0; CHECKSUM];
        file.read_exact(&mut checksum).map_err(io)?;
        if checksum != *all.finalize() {
            return no("checksum", "the file is damaged: what it holds is not what was written".into());
        }
        let (tokens, rest) = bytes.split_at(4 * tokens as usize);
        let (hidden, note) = rest.split_at(4 * hidden as usize);
        let (all_tokens, all_hidden) = (tokens.as_chunks().0, hidden.as_chunks().0);
        let mut tokens: Vec<Token> = reserve::list(all_tokens.len(), "tokens")?;
        tokens.extend(all_tokens.iter().map(|token| Token::from_le_bytes(*token)));
        let mut hidden = reserve::list(all_hidden.len(), HIDDEN)?;
        hidden.extend(all_hidden.iter().map(|x| f32::from_le_bytes(*x)));
        let outside = |token: &Token| usize::try_from(*token).map_or(true, |token| token >= owner.n_vocab);
        if let Some(at) = tokens.iter().position(outside) {
            let problem = format!("{}, where the vocabulary has {} tokens", tokens[at], owner.n_vocab);
            return no(&format!("token {at}"), problem);
        }
        let front = Front {
            tokens,
            stale_from: (stale_from != NO_GAP).then_some(stale_from as usize),
            window_from,
            hidden,
            note: reserve::copied(note, "bytes of a note")?,
        };
        file.seek(SeekFrom::Start((HEADER + more.len() + bytes.len()) as u64)).map_err(io)?;
        Ok(SavedSlot { path: path.into(), file, front, hash, checksum })
    }

    /// The next rows of cells.
    pub(super) fn read(&mut self, rows: &mut [u8]) -> Result<()> {
        self.file.read_exact(rows).map_err(|e| Error::io(&self.path, &e))?;
        self.hash.update(&*rows);
        Ok(())
    }

    /// Check, after all rows were read, that they were those of the checksum.
    pub(super) fn finish(self) -> Result<()> {
        match self.checksum == *self.hash.finalize() {
            true => Ok(()),
            false => Err(refused(&self.path, "checksum", "the file changed while it was read")),
        }
    }
}

/// The element types of a cache as a file has them. One of equal types has the number of the type alone, as it was when
/// there were no others.
fn type_word(types: KvTypes) -> u32 {
    let v = if types.v == types.k { 0 } else { types.v as u32 + 1 };
    types.k as u32 | v << 16
}

fn types_of(word: u32) -> Option<KvTypes> {
    let k = TensorType::from_id(word & 0xffff)?;
    let v = (word >> 16).checked_sub(1).map_or(Some(k), TensorType::from_id)?;
    Some(KvTypes { k, v })
}

fn refused(path: &Path, place: &str, problem: impl Into<String>) -> Error {
    Error::SavedSlot { path: path.into(), place: place.into(), problem: problem.into() }
}
