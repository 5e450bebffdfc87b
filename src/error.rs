//! The one error enum of the crate.
//!
//! Every variant says what is wrong and where: a file, a key or tensor with its offset, a token id, a limit.
//! Messages are written to be joined by colons and have no full stop.
//! The C boundary maps each variant to one fixed status code (`ffi/status.rs`).

use std::path::{Path, PathBuf};

/// The crate's result type.
pub type Result<T> = std::result::Result<T, Error>;

/// What can go wrong anywhere in the library.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused a file.
    #[error("{}: {message}", path.display())]
    Io {
        /// The file as the caller named it.
        path: PathBuf,
        /// The system's reason.
        message: String,
    },
    /// A GGUF file breaks the format.
    #[error("Not a valid GGUF file: {what} at offset {offset}: {problem}")]
    Gguf {
        /// The header field, key or tensor that is broken.
        what: String,
        /// Byte offset in the file at which it was read.
        offset: u64,
        /// What is wrong with it.
        problem: String,
    },
    /// The file is valid GGUF, but not a model that can be run (missing tensor, wrong shape, unknown architecture).
    #[error("Model cannot be loaded: {0}")]
    Model(String),
    /// The file's vocabulary is missing, broken or of an unknown kind.
    #[error("Vocabulary cannot be loaded: {0}")]
    Vocab(String),
    /// One of the three errors above, or [`Error::Unsupported`], with the path of its file.
    #[error("{}: {source}", path.display())]
    InFile {
        /// The file as the caller named it.
        path: PathBuf,
        /// What is wrong with it.
        source: Box<Error>,
    },
    /// A token-trie payload was refused.
    #[error("Token trie refused: {place}: {problem}")]
    Trie {
        /// Where in the payload, e.g. `descriptors[0].leaves[3].tokens[1]`.
        place: String,
        /// What is wrong there.
        problem: String,
    },
    /// A file cannot be restored as a saved slot: it is damaged, or of another format, model or setting.
    #[error("{}: the saved slot was refused: {place}: {problem}", path.display())]
    SavedSlot {
        /// The file as the caller named it.
        path: PathBuf,
        /// Where in the file, e.g. `version at byte 8`.
        place: String,
        /// What is wrong there.
        problem: String,
    },
    /// An argument from the host is outside its range.
    #[error("Invalid argument: {0}")]
    InvalidArgument(String),
    /// A well-formed request for something this build or machine does not do.
    #[error("Not supported: {0}")]
    Unsupported(String),
    /// Memory could not be allocated, or a fixed capacity (the context) is full.
    #[error("Out of memory: {0}")]
    OutOfMemory(String),
    /// The handle is already generating, or does not exist.
    #[error("Busy: {0}")]
    Busy(String),
    /// The caller cancelled the work.
    #[error("Cancelled")]
    Cancelled,
    /// The model produced a logit that is not a number.
    #[error("Logits row {row} holds NaN at token {token}")]
    NanLogits {
        /// Row of the batch.
        row: usize,
        /// First token id whose logit is NaN.
        token: usize,
    },
    /// A GPU or its driver failed: it could not be opened, was lost, or refused a command.
    #[error("Device failure: {0}")]
    Device(String),
    /// A server failed, refused, was silent for too long or answered what was not asked for.
    #[error("{server}: {problem}")]
    Remote {
        /// The server's address, without a model.
        server: String,
        /// What is wrong, with the server's own text where it gave one.
        problem: String,
    },
    /// A broken invariant of the library itself, or a panic caught at its boundary.
    #[error("Internal fault: {0}")]
    Internal(String),
}

impl Error {
    /// An [`Error::Io`] from the system's error.
    pub fn io(path: impl Into<PathBuf>, error: &std::io::Error) -> Self {
        Error::Io { path: path.into(), message: error.to_string() }
    }

    /// The error with the path of its file, where it is about a file and does not name it.
    pub(crate) fn in_file(self, path: &Path) -> Self {
        match self {
            Error::Gguf { .. } | Error::Model(_) | Error::Vocab(_) | Error::Unsupported(_) => {
                Error::InFile { path: path.into(), source: Box::new(self) }
            }
            other => other,
        }
    }

    /// The error of a draft model, also where it is not one of its model's.
    pub(crate) fn in_draft(self, path: &Path) -> Self {
        match self {
            Error::InvalidArgument(why) => Error::InvalidArgument(format!("{}: {why}", path.display())),
            error => error.in_file(path),
        }
    }
}
