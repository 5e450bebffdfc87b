//! The reader: one pass over the header, checked against the file's length at every step.
//!
//! Memory stays below 16 bytes for each byte of the file plus 1 MiB, whatever the header claims: counts are checked
//! against the bytes left before anything is reserved, and names are looked up through sorted indices. Where the memory
//! for a file cannot be allocated, that is an error.

use super::source::Source;
use super::value::{Array, FromValue, Value, ValueType};
use super::{DEFAULT_ALIGNMENT, MAX_TENSOR_NAME, shown};
use crate::quant::TensorType;
use crate::{Error, Result, reserve};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

const MAX_DIMS: u32 = 4;

/// What memory is reserved for, in errors.
const TEXT: &str = "bytes of text";
const ELEMENTS: &str = "elements of an array";
pub(super) const TENSORS: &str = "tensors";

/// One tensor of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// Unique name, at most 63 bytes.
    pub name: String,
    /// Shape; `shape[0]` is the contiguous dimension. Dimensions the file does not name are 1.
    pub shape: [u64; 4],
    /// Dimensions named in the file.
    pub n_dims: u32,
    /// The type's id in the file; see [`TensorInfo::tensor_type`].
    pub type_id: u32,
    /// The file that has it, of [`File::parts`].
    pub part: usize,
    /// Byte offset of the data from the start of that file.
    pub offset: u64,
    /// Bytes of data; 0 when the type is unknown.
    pub bytes: u64,
}

impl TensorInfo {
    /// The tensor's type, or an error naming the tensor when this library does not know it.
    ///
    /// # Errors
    /// [`Error::Unsupported`] naming the tensor whose type this library does not know.
    pub fn tensor_type(&self) -> Result<TensorType> {
        TensorType::from_id(self.type_id).ok_or_else(|| {
            Error::Unsupported(format!("Tensor `{}` has the unknown type {}", shown(&self.name), self.type_id))
        })
    }

    /// Number of weights.
    pub fn elements(&self) -> u64 {
        // In the order in which the reader checked for overflow: after a dimension of 0 any other may be huge.
        self.shape[1..].iter().product::<u64>() * self.shape[0]
    }
}

/// An open GGUF file, or several that hold one model: the header in memory, tensors read when they are asked for. Cheap
/// to clone: clones share both.
#[derive(Clone)]
pub struct File {
    pub(super) inner: Arc<Inner>,
}

pub(super) struct Inner {
    /// All files, the first one with the metadata.
    pub parts: Vec<Part>,
    version: u32,
    alignment: u64,
    keys: Vec<Key>,
    /// Indices of `keys`, by name.
    key_order: Vec<usize>,
    pub tensors: Vec<TensorInfo>,
    /// Indices of `tensors`, by name.
    pub tensor_order: Vec<usize>,
}

/// A file of those that hold a model.
pub struct Part {
    path: PathBuf,
    source: Source,
}

impl Part {
    /// Its path: the first one's is that given to [`File::open`].
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> u64 {
        self.source.len()
    }

    /// When it was modified last before it was opened; `None` for a file in memory, and where the system does not say
    /// it.
    pub fn modified(&self) -> Option<SystemTime> {
        self.source.modified()
    }
}

struct Key {
    name: String,
    value: Value,
    /// Byte offset of the value's type id in the file.
    offset: u64,
}

impl File {
    /// The files: one, unless the model is in several.
    pub fn parts(&self) -> &[Part] {
        &self.inner.parts
    }

    /// The path as given to [`File::open`].
    pub fn path(&self) -> &Path {
        self.parts().first().map_or(Path::new(""), Part::path)
    }

    /// Format version, 2 or 3.
    pub fn version(&self) -> u32 {
        self.inner.version
    }

    /// Alignment of tensor data.
    pub fn alignment(&self) -> u64 {
        self.inner.alignment
    }

    /// All metadata in file order.
    pub fn metadata(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.inner.keys.iter().map(|k| (k.name.as_str(), &k.value))
    }

    /// The raw value of a key.
    pub fn value(&self, key: &str) -> Option<&Value> {
        self.key(key).map(|k| &k.value)
    }

    fn key(&self, name: &str) -> Option<&Key> {
        find(&self.inner.keys, &self.inner.key_order, name, |k| &k.name)
    }

    /// The value of `key` as `T`; `None` when the key is missing, an error naming key and offset when it has another
    /// type.
    ///
    /// # Errors
    /// [`Error::Gguf`] naming key and offset where the value has another type, [`Error::OutOfMemory`] for its copy.
    pub fn get<T: FromValue>(&self, key: &str) -> Result<Option<T>> {
        let Some(Key { value, offset, .. }) = self.key(key) else { return Ok(None) };
        if let Value::String(text) = value {
            // It may be nearly as long as the file, and is about to be copied.
            drop(reserve::list::<u8>(text.len(), TEXT)?);
        }
        T::from_value(value).map(Some).ok_or_else(|| Error::Gguf {
            what: format!("key `{}`", shown(key)),
            offset: *offset,
            problem: format!("{} was expected, found {:?}", T::WANTED, value.value_type()),
        })
    }

    /// As [`File::get`], but a missing key is an error.
    ///
    /// # Errors
    /// As [`File::get`], and [`Error::Model`] for a missing key.
    pub fn require<T: FromValue>(&self, key: &str) -> Result<T> {
        self.get(key)?.ok_or_else(|| Error::Model(format!("Key `{key}` is missing")))
    }

    /// The strings of an array key, borrowed from the file.
    ///
    /// # Errors
    /// [`Error::Gguf`] where the key is no array of strings, [`Error::OutOfMemory`] for the list.
    pub fn strings(&self, key: &str) -> Result<Option<Vec<&str>>> {
        let Some(texts) = self.byte_strings(key)? else { return Ok(None) };
        let mut out = reserve::list(texts.len(), ELEMENTS)?;
        for text in texts {
            let wrong = |_| Error::Internal(format!("Key `{}` was read wrongly", shown(key)));
            out.push(std::str::from_utf8(text).map_err(wrong)?);
        }
        Ok(Some(out))
    }

    /// As [`File::strings`], as bytes: opening the file has checked that they are UTF-8.
    ///
    /// # Errors
    /// As [`File::strings`].
    pub fn byte_strings(&self, key: &str) -> Result<Option<Vec<&[u8]>>> {
        let Some(array) = self.get::<Array>(key)? else { return Ok(None) };
        if array.element != ValueType::String {
            return Err(self.wrong_element(key, "strings", format!("{:?}", array.element)));
        }
        let mut rest = self.array_bytes(&array);
        let mut out = reserve::list(array.len, ELEMENTS)?;
        for _ in 0..array.len {
            let text = rest.split_first_chunk().and_then(|(len, after)| {
                let (text, after) = after.split_at_checked(usize::try_from(u64::from_le_bytes(*len)).ok()?)?;
                rest = after;
                Some(text)
            });
            out.push(text.ok_or_else(|| Error::Internal(format!("Key `{}` was read wrongly", shown(key))))?);
        }
        Ok(Some(out))
    }

    /// The numbers of an array key, converted to `f32`. Integers and floats are accepted.
    ///
    /// # Errors
    /// [`Error::Gguf`] where the key is no array of numbers, [`Error::OutOfMemory`] for the list.
    pub fn floats(&self, key: &str) -> Result<Option<Vec<f32>>> {
        self.numbers(key, "numbers", |v| match *v {
            Value::F32(x) => Some(x),
            Value::F64(x) => Some(x as f32),
            Value::Bool(_) => None,
            ref other => other.as_i128().map(|x| x as f32),
        })
    }

    /// The integers of an array key (bools count as 0 and 1).
    ///
    /// # Errors
    /// [`Error::Gguf`] where the key is no array of integers of 64 bits, [`Error::OutOfMemory`] for the list.
    pub fn integers(&self, key: &str) -> Result<Option<Vec<i64>>> {
        self.numbers(key, "signed 64-bit integers", |v| match *v {
            Value::Bool(b) => Some(b.into()),
            ref other => other.as_i128()?.try_into().ok(),
        })
    }

    fn numbers<T>(&self, key: &str, wanted: &str, convert: impl Fn(&Value) -> Option<T>) -> Result<Option<Vec<T>>> {
        let Some(array) = self.get::<Array>(key)? else { return Ok(None) };
        let Some(size) = array.element.fixed_bytes() else {
            return Err(self.wrong_element(key, wanted, format!("{:?}", array.element)));
        };
        let mut out = reserve::list(array.len, ELEMENTS)?;
        for chunk in self.array_bytes(&array).chunks_exact(size) {
            let Some(value) = scalar(array.element, chunk) else { continue };
            out.push(convert(&value).ok_or_else(|| self.wrong_element(key, wanted, format!("{value:?}")))?);
        }
        Ok(Some(out))
    }

    /// The bytes of the elements of an array of this file.
    pub(super) fn array_bytes(&self, array: &Array) -> &[u8] {
        let first = self.parts().first();
        first.and_then(|part| part.source.head().get(array.bytes.clone())).unwrap_or_default()
    }

    fn wrong_element(&self, key: &str, wanted: &str, found: String) -> Error {
        Error::Gguf {
            what: format!("key `{}`", shown(key)),
            offset: self.key(key).map_or(0, |k| k.offset),
            problem: format!("an array of {wanted} was expected, found {found}"),
        }
    }

    /// All tensors in file order, of several files one after the other.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.inner.tensors
    }

    /// The tensor with this name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        find(&self.inner.tensors, &self.inner.tensor_order, name, |t| &t.name)
    }

    /// The tensor's bytes, read now. `info` must come from this file.
    ///
    /// # Errors
    /// As [`File::read_at`], and [`Error::OutOfMemory`].
    pub fn read(&self, info: &TensorInfo) -> Result<Vec<u8>> {
        let len = usize::try_from(info.bytes).unwrap_or(usize::MAX);
        let mut out = reserve::filled(0, len, &format!("bytes of tensor `{}`", shown(&info.name)))?;
        self.read_at(info, 0, &mut out)?;
        Ok(out)
    }

    /// Fill `out` with the tensor's bytes from `from` on. `info` must come from this file.
    ///
    /// # Errors
    /// [`Error::Io`] where the file cannot be read, or was changed since it was opened.
    pub fn read_at(&self, info: &TensorInfo, from: u64, out: &mut [u8]) -> Result<()> {
        match from.checked_add(out.len() as u64).filter(|&end| end <= info.bytes) {
            Some(_) => {
                let gone = || Error::Internal(format!("Tensor `{}` is of another file", shown(&info.name)));
                self.parts().get(info.part).ok_or_else(gone)?.source.read(info.offset + from, out)
            }
            None => {
                let (n, name, all) = (out.len(), shown(&info.name), info.bytes);
                Err(Error::Internal(format!("{n} bytes from byte {from} of tensor `{name}`, which has {all}")))
            }
        }
    }

    /// Call `each` with all bytes before the tensors' data, piece by piece: metadata and the table of tensors; of
    /// several files one after the other.
    ///
    /// # Errors
    /// [`Error::Io`] where a file cannot be read or has changed.
    pub fn read_header(&self, mut each: impl FnMut(&[u8])) -> Result<()> {
        for (index, part) in self.parts().iter().enumerate() {
            let tensors = self.inner.tensors.iter().filter(|info| info.part == index);
            let end = tensors.map(|info| info.offset).min().unwrap_or(part.bytes()).min(part.bytes());
            let mut piece = [0; 4096];
            let mut at = 0;
            while at < end {
                let n = (end - at).min(piece.len() as u64) as usize;
                part.source.read(at, &mut piece[..n])?;
                each(&piece[..n]);
                at += n as u64;
            }
        }
        Ok(())
    }

    /// Size in bytes, of all files together.
    pub fn size(&self) -> u64 {
        self.parts().iter().map(Part::bytes).sum()
    }

    pub(super) fn parse(path: PathBuf, source: Source) -> Result<Self> {
        let mut cur = Cursor { source, at: 0 };
        let magic = cur.take(4, "magic")?;
        if magic != b"GGUF" {
            return Err(error_at(0, "magic", format!("`GGUF` was expected, found {magic:02x?}")));
        }
        let version = cur.u32("version")?;
        if !(2..=3).contains(&version) {
            let problem = if version != 0 && version & 0xffff == 0 {
                "the file is big-endian, which is not supported".to_string()
            } else {
                format!("versions 2 and 3 are supported, found {version}")
            };
            return Err(error_at(4, "version", problem));
        }
        let n_tensors = cur.u64("tensor count")?;
        // A tensor takes at least 24 bytes of header, a key at least 14.
        cur.check_count(n_tensors, 24, "tensor count")?;
        let n_keys = cur.u64("key count")?;
        cur.check_count(n_keys, 14, "key count")?;

        let mut keys = reserve::list(n_keys as usize, "metadata keys")?;
        for i in 0..n_keys {
            let start = cur.at;
            let name = cur.owned_string(&format!("name of key {i}"))?;
            if name.is_empty() {
                return Err(error_at(start, &format!("key {i}"), "the name is empty".into()));
            }
            let offset = cur.at as u64;
            let value = cur.value(&format!("key `{}`", shown(&name)))?;
            keys.push(Key { name, value, offset });
        }
        let twice =
            |k: &Key| error_at(k.offset as usize, &format!("key `{}`", shown(&k.name)), "it appears twice".into());
        let key_order = order(&keys, |k| &k.name, twice)?;
        let value = |name: &str| find(&keys, &key_order, name, |k| &k.name);
        let alignment = match value("general.alignment") {
            None => DEFAULT_ALIGNMENT,
            Some(Key { value: Value::U32(a), .. }) if a.is_power_of_two() => u64::from(*a),
            Some(Key { value: Value::U32(a), offset, .. }) => {
                let problem = format!("a power of two was expected, found {a}");
                return Err(error_at(*offset as usize, "key `general.alignment`", problem));
            }
            Some(Key { value, offset, .. }) => {
                let problem = format!("a U32 was expected, found {:?}", value.value_type());
                return Err(error_at(*offset as usize, "key `general.alignment`", problem));
            }
        };

        let mut tensors = reserve::list(n_tensors as usize, TENSORS)?;
        for i in 0..n_tensors {
            tensors.push(cur.tensor(i)?);
        }
        let tensor_order = order(&tensors, |t| &t.name, |t| tensor_error(t, "it appears twice".into()))?;
        place_tensors(&cur, &mut tensors, alignment)?;
        let Cursor { mut source, at } = cur;
        source.keep_head(at);
        let parts = vec![Part { path, source }];
        let inner = Inner { parts, version, alignment, keys, key_order, tensors, tensor_order };
        Ok(File { inner: Arc::new(inner) })
    }
}

/// Indices sorted by name; an error about the later of two items that share a name.
pub(super) fn order<T>(items: &[T], name: impl Fn(&T) -> &String, twice: impl Fn(&T) -> Error) -> Result<Vec<usize>> {
    let mut order: Vec<usize> = reserve::list(items.len(), "names")?;
    order.extend(0..items.len());
    order.sort_unstable_by(|&a, &b| name(&items[a]).cmp(name(&items[b])).then(a.cmp(&b)));
    match order.windows(2).find(|w| name(&items[w[0]]) == name(&items[w[1]])) {
        Some(pair) => Err(twice(&items[pair[1]])),
        None => Ok(order),
    }
}

fn find<'a, T>(items: &'a [T], order: &[usize], wanted: &str, name: impl Fn(&T) -> &String) -> Option<&'a T> {
    let at = order.binary_search_by(|&i| name(&items[i]).as_str().cmp(wanted)).ok()?;
    items.get(*order.get(at)?)
}

pub(super) fn tensor_error(tensor: &TensorInfo, problem: String) -> Error {
    Error::Gguf { what: format!("tensor `{}`", shown(&tensor.name)), offset: tensor.offset, problem }
}

/// Turn data-section offsets into file offsets and check that every tensor is inside the file, without overlap. A
/// tensor of unknown type has an unknown length: only its start is checked.
fn place_tensors(cur: &Cursor, tensors: &mut [TensorInfo], alignment: u64) -> Result<()> {
    let file_len = cur.source.len();
    let data_start = (cur.at as u64).next_multiple_of(alignment);
    for t in tensors.iter_mut() {
        if !t.offset.is_multiple_of(alignment) {
            let problem = format!("data offset {} is not a multiple of the alignment {alignment}", t.offset);
            return Err(tensor_error(t, problem));
        }
        let span = data_start.checked_add(t.offset).and_then(|start| Some((start, start.checked_add(t.bytes)?)));
        let Some((start, end)) = span else {
            return Err(tensor_error(t, format!("data offset {} and size {} overflow", t.offset, t.bytes)));
        };
        t.offset = start;
        // A tensor without elements may start after the last byte, where a file has no padding.
        if end > file_len && t.elements() > 0 {
            let problem = format!("its data ends at byte {end}, but the file has {file_len} bytes");
            return Err(tensor_error(t, problem));
        }
    }
    let mut by_place: Vec<&TensorInfo> = reserve::list(tensors.len(), TENSORS)?;
    by_place.extend(tensors.iter().filter(|t| t.bytes > 0));
    by_place.sort_unstable_by_key(|t| t.offset);
    for pair in by_place.windows(2) {
        if pair[1].offset < pair[0].offset + pair[0].bytes {
            let problem = format!("its data overlaps that of tensor `{}`", shown(&pair[0].name));
            return Err(tensor_error(pair[1], problem));
        }
    }
    Ok(())
}

/// One scalar of a fixed-size type from exactly its bytes.
pub(super) fn scalar(ty: ValueType, b: &[u8]) -> Option<Value> {
    Some(match ty {
        ValueType::U8 => Value::U8(*b.first()?),
        ValueType::I8 => Value::I8(*b.first()? as i8),
        ValueType::Bool => Value::Bool(*b.first()? != 0),
        ValueType::U16 => Value::U16(u16::from_le_bytes(b.try_into().ok()?)),
        ValueType::I16 => Value::I16(i16::from_le_bytes(b.try_into().ok()?)),
        ValueType::U32 => Value::U32(u32::from_le_bytes(b.try_into().ok()?)),
        ValueType::I32 => Value::I32(i32::from_le_bytes(b.try_into().ok()?)),
        ValueType::F32 => Value::F32(f32::from_le_bytes(b.try_into().ok()?)),
        ValueType::U64 => Value::U64(u64::from_le_bytes(b.try_into().ok()?)),
        ValueType::I64 => Value::I64(i64::from_le_bytes(b.try_into().ok()?)),
        ValueType::F64 => Value::F64(f64::from_le_bytes(b.try_into().ok()?)),
        ValueType::String | ValueType::Array => return None,
    })
}

fn error_at(at: usize, what: &str, problem: String) -> Error {
    Error::Gguf { what: what.to_string(), offset: at as u64, problem }
}

struct Cursor {
    source: Source,
    at: usize,
}

impl Cursor {
    fn left(&self) -> u64 {
        self.source.len() - self.at as u64
    }

    fn take(&mut self, n: usize, what: &str) -> Result<&[u8]> {
        if n as u64 > self.left() {
            let problem = format!("{n} bytes are needed, {} are left in the file", self.left());
            return Err(error_at(self.at, what, problem));
        }
        let from = self.at;
        self.source.need(from + n)?;
        self.at += n;
        Ok(&self.source.head()[from..self.at])
    }

    fn u32(&mut self, what: &str) -> Result<u32> {
        let b = self.take(4, what)?;
        Ok(u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
    }

    fn u64(&mut self, what: &str) -> Result<u64> {
        let b = self.take(8, what)?;
        Ok(u64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]))
    }

    /// Refuse a count whose smallest possible content is larger than what is left of the file.
    fn check_count(&self, n: u64, least_bytes: u64, what: &str) -> Result<()> {
        if n > self.left() / least_bytes {
            let problem = format!("{n} cannot fit in the {} bytes left in the file", self.left());
            return Err(error_at(self.at - 8, what, problem));
        }
        Ok(())
    }

    fn string(&mut self, what: &str) -> Result<&str> {
        let at = self.at;
        let len = self.u64(what)?;
        self.check_count(len, 1, what)?;
        let bytes = self.take(len as usize, what)?;
        std::str::from_utf8(bytes).map_err(|e| error_at(at, what, format!("the text is not UTF-8 ({e})")))
    }

    /// Go past a sound string that was read already, as a vocabulary has some hundred thousand of; false where
    /// [`Cursor::string`] has to look.
    #[inline]
    fn pass_string(&mut self) -> bool {
        let rest = self.source.head().get(self.at..).unwrap_or_default();
        let Some((len, rest)) = rest.split_first_chunk() else { return false };
        let text = usize::try_from(u64::from_le_bytes(*len)).ok().and_then(|len| rest.get(..len));
        let Some(text) = text.filter(|text| text.is_ascii() || std::str::from_utf8(text).is_ok()) else { return false };
        self.at += size_of::<u64>() + text.len();
        true
    }

    fn owned_string(&mut self, what: &str) -> Result<String> {
        let text = self.string(what)?;
        let mut out = String::new();
        out.try_reserve_exact(text.len()).map_err(|_| reserve::no_memory(text.len(), 1, TEXT))?;
        out.push_str(text);
        Ok(out)
    }

    fn value_type(&mut self, what: &str) -> Result<ValueType> {
        let at = self.at;
        let id = self.u32(what)?;
        ValueType::from_id(id).ok_or_else(|| error_at(at, what, format!("unknown value type {id}")))
    }

    fn value(&mut self, what: &str) -> Result<Value> {
        let ty = self.value_type(what)?;
        match ty {
            ValueType::String => Ok(Value::String(self.owned_string(what)?)),
            ValueType::Array => self.array(what),
            _ => {
                let at = self.at;
                let bytes = self.take(ty.fixed_bytes().unwrap_or(0), what)?;
                scalar(ty, bytes).ok_or_else(|| error_at(at, what, "unreadable scalar".into()))
            }
        }
    }

    fn array(&mut self, what: &str) -> Result<Value> {
        let at = self.at;
        let element = self.value_type(what)?;
        let len = self.u64(what)?;
        let bytes: Range<usize> = match element {
            ValueType::Array => return Err(error_at(at, what, "arrays of arrays are not supported".into())),
            ValueType::String => {
                self.check_count(len, 8, what)?;
                let start = self.at;
                for _ in 0..len {
                    if !self.pass_string() {
                        self.string(what)?;
                    }
                }
                start..self.at
            }
            fixed => {
                let size = fixed.fixed_bytes().unwrap_or(1);
                self.check_count(len, size as u64, what)?;
                let start = self.at;
                self.take(len as usize * size, what)?;
                start..self.at
            }
        };
        Ok(Value::Array(Array { element, len: len as usize, bytes }))
    }

    fn tensor(&mut self, index: u64) -> Result<TensorInfo> {
        let start = self.at;
        let name = self.owned_string(&format!("name of tensor {index}"))?;
        let what = format!("tensor `{}`", shown(&name));
        if name.len() > MAX_TENSOR_NAME {
            let problem = format!("the name has {} bytes, at most {MAX_TENSOR_NAME} are allowed", name.len());
            return Err(error_at(start, &what, problem));
        }
        let n_dims = self.u32(&what)?;
        if n_dims > MAX_DIMS {
            return Err(error_at(self.at - 4, &what, format!("{n_dims} dimensions, at most {MAX_DIMS} are allowed")));
        }
        let mut shape = [1u64; 4];
        let dims_at = self.at;
        for dim in shape.iter_mut().take(n_dims as usize) {
            *dim = self.u64(&what)?;
            if i64::try_from(*dim).is_err() {
                return Err(error_at(self.at - 8, &what, format!("a dimension of {} is negative", *dim as i64)));
            }
        }
        let type_id = self.u32(&what)?;
        let offset = self.u64(&what)?;
        let overflow = || error_at(dims_at, &what, format!("shape {shape:?} overflows"));
        let rows = shape[1..].iter().try_fold(1u64, |a, &b| a.checked_mul(b)).ok_or_else(overflow)?;
        rows.checked_mul(shape[0]).ok_or_else(overflow)?;
        let bytes = match TensorType::from_id(type_id) {
            None => 0,
            Some(ty) => {
                let row = ty.row_bytes(shape[0]).ok_or_else(|| {
                    let problem =
                        format!("a row of {} is no whole number of {} blocks of {}", shape[0], ty, ty.block_len());
                    error_at(dims_at, &what, problem)
                })?;
                row.checked_mul(rows).ok_or_else(overflow)?
            }
        };
        Ok(TensorInfo { name, shape, n_dims, type_id, part: 0, offset, bytes })
    }
}
