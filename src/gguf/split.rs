//! Models in several files, `NAME-00001-of-00003.gguf` and so on: opening the first opens all.
//!
//! The first part has the metadata; the keys `split.no` (from 0), `split.count` and `split.tensors.count` (of all
//! parts) are in every one. A tensor is in one part as a whole. Nothing is taken on trust: the number in a file's name,
//! those in its keys and what is found must agree, and a part that repeats another key of the first must have the same
//! value, else it belongs to another model.
//!
//! The format is that of llama.cpp's `gguf-split`,
//! <https://github.com/ggml-org/llama.cpp/tree/master/tools/gguf-split>.

use super::read::{File, Inner, TENSORS, order, tensor_error};
use super::source::Source;
use super::{Value, shown};
use crate::{Error, Result, reserve};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const NUMBER: &str = "split.no";
const COUNT: &str = "split.count";
const ALL_TENSORS: &str = "split.tensors.count";

/// Whether a key is about the part that it is in, not about the model.
pub fn is_of_part(key: &str) -> bool {
    [NUMBER, COUNT, ALL_TENSORS].contains(&key)
}

/// What the name of a part says.
struct Name<'a> {
    prefix: &'a str,
    number: u64,
    count: u64,
}

impl Name<'_> {
    fn of(path: &Path) -> Option<Name<'_>> {
        let (rest, count) = path.file_name()?.to_str()?.strip_suffix(".gguf")?.rsplit_once("-of-")?;
        let (prefix, number) = rest.rsplit_once('-')?;
        let read = |text: &str| match text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit()) {
            true => text.parse().ok(),
            false => None,
        };
        Some(Name { prefix, number: read(number)?, count: read(count)? })
    }

    /// The path of a part, counted from 1, beside this one.
    fn beside(&self, path: &Path, number: u64) -> PathBuf {
        path.with_file_name(format!("{}-{number:05}-of-{:05}.gguf", self.prefix, self.count))
    }
}

/// The paths that the other parts have, where `path` has the name of a first one.
pub(crate) fn others(path: &Path) -> impl Iterator<Item = PathBuf> {
    let name = Name::of(path).filter(|name| name.number == 1);
    name.into_iter().flat_map(move |name| (2..=name.count).map(move |number| name.beside(path, number)))
}

/// Parts of the model of which this is one: 1 where it is the whole.
fn count(file: &File) -> Result<u64> {
    Ok(file.get::<u64>(COUNT)?.unwrap_or(1).max(1))
}

impl File {
    /// Read and validate the header of the file at `path`, and of the other parts of its model, where it is the first
    /// of several.
    ///
    /// # Errors
    /// [`Error::Io`], or [`Error::Gguf`] with the place in the file and what is wrong there; [`Error::Model`] for a
    /// part that is not the first, or does not fit the first; all name the path.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let one = |path: &Path| {
            let source = Source::open(path)?;
            File::parse(path.to_path_buf(), source).map_err(|error| error.in_file(path))
        };
        let path = path.as_ref();
        join(one(path)?, one).map_err(|error| error.in_file(path))
    }

    /// Parse a file held in memory.
    ///
    /// # Errors
    /// [`Error::Gguf`] with the place and what is wrong there; [`Error::Unsupported`] for a part of a model.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self> {
        let file = File::parse(PathBuf::from("<memory>"), Source::in_memory(bytes))?;
        match count(&file)? {
            1 => Ok(file),
            parts => {
                let problem = "a model in several files is opened by the path of the first";
                Err(Error::Unsupported(format!("Key `{COUNT}` is {parts}: {problem}")))
            }
        }
    }
}

/// The first part with all others, which `open` reads.
///
/// # Errors
/// Those of `open`; [`Error::Io`] naming a part that is missing, [`Error::Model`] naming one that does not fit.
fn join(first: File, open: impl Fn(&Path) -> Result<File>) -> Result<File> {
    let count = count(&first)?;
    if count == 1 {
        return Ok(first);
    }
    let path = first.path().to_path_buf();
    let number = first.require::<u64>(NUMBER)?;
    let name = Name::of(&path);
    if number != 0 {
        let wanted = match &name {
            Some(name) => name.beside(&path, 1).display().to_string(),
            None => format!("whose name ends with `-00001-of-{count:05}.gguf`"),
        };
        let part = number.saturating_add(1);
        return Err(Error::Model(format!(
            "It is part {part} of {count} of a model in several files: open the first, {wanted}"
        )));
    }
    let Some(name) = name.filter(|name| (name.number, name.count) == (1, count)) else {
        return Err(Error::Model(format!(
            "It is the first of {count} parts of a model, but its name does not end with `-00001-of-{count:05}.gguf`, \
             so the others cannot be found"
        )));
    };
    let tensors = first.require::<u64>(ALL_TENSORS)?;
    let mut parts = vec![first];
    for number in 2..=count {
        let path = name.beside(&path, number);
        let part = open(&path).map_err(|error| match error {
            Error::Io { path, message } => Error::Io { path, message: format!("part {number} of {count}: {message}") },
            other => other,
        })?;
        check(&parts[0], &part, number - 1, count).map_err(|error| error.in_file(&path))?;
        parts.push(part);
    }
    let found: u64 = parts.iter().map(|part| part.tensors().len() as u64).sum();
    if found != tensors {
        return Err(Error::Model(format!(
            "Key `{ALL_TENSORS}` is {tensors}, but its {count} parts have {found} tensors"
        )));
    }
    merge(parts)
}

/// Whether a part is the one that is wanted, counted from 0.
fn check(first: &File, part: &File, number: u64, count: u64) -> Result<()> {
    let tensors = first.require::<u64>(ALL_TENSORS)?;
    for (key, wanted) in [(NUMBER, number), (COUNT, count), (ALL_TENSORS, tensors)] {
        let found = part.require::<u64>(key)?;
        if found != wanted {
            let problem =
                format!("Key `{key}` is {found}, but part {} of {count} of {}", number + 1, first.path().display());
            return Err(Error::Model(format!("{problem} has {wanted}")));
        }
    }
    // Its own place of data may have another alignment.
    let others = part.metadata().filter(|(key, _)| !is_of_part(key) && *key != "general.alignment");
    for (key, value) in others {
        if first.value(key).is_some_and(|known| !same(first, known, part, value)) {
            let (key, path) = (shown(key), first.path().display());
            return Err(Error::Model(format!("Key `{key}` has another value than in {path}: a part of another model")));
        }
    }
    Ok(())
}

fn same(a: &File, x: &Value, b: &File, y: &Value) -> bool {
    match (x, y) {
        (Value::Array(x), Value::Array(y)) => {
            (x.element, x.len, a.array_bytes(x)) == (y.element, y.len, b.array_bytes(y))
        }
        _ => x == y,
    }
}

/// One file of all parts: the first one's metadata, the tensors of all.
fn merge(parts: Vec<File>) -> Result<File> {
    let mut all = parts.into_iter().map(|part| {
        Arc::into_inner(part.inner).ok_or_else(|| Error::Internal("A part of a model is in use already".into()))
    });
    let mut merged: Inner = all.next().unwrap_or_else(|| Err(Error::Internal("A model of no parts".into())))?;
    for (index, part) in (1..).zip(all) {
        let part = part?;
        reserve::reserve(&mut merged.tensors, part.tensors.len(), TENSORS)?;
        merged.tensors.extend(part.tensors.into_iter().map(|mut tensor| {
            tensor.part = index;
            tensor
        }));
        merged.parts.extend(part.parts);
    }
    merged.tensor_order = order(
        &merged.tensors,
        |t| &t.name,
        |t| {
            let path = merged.parts.get(t.part).map(|part| part.path().to_path_buf()).unwrap_or_default();
            tensor_error(t, "an earlier part has it too".into()).in_file(&path)
        },
    )?;
    Ok(File { inner: Arc::new(merged) })
}
