//! The reader: one pass over the header, checked against the file's length at every step.

use super::value::{Array, FromValue, Value, ValueType};
use super::{DEFAULT_ALIGNMENT, MAX_TENSOR_NAME};
use crate::quant::TensorType;
use crate::{Error, Result};
use memmap2::Mmap;
use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const MAX_DIMS: u32 = 4;

enum Bytes {
    Mapped(Mmap),
    Owned(Vec<u8>),
}

impl Bytes {
    fn as_slice(&self) -> &[u8] {
        match self {
            Bytes::Mapped(map) => map,
            Bytes::Owned(bytes) => bytes,
        }
    }
}

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
    /// Where the data starts, from the start of the file.
    pub offset: u64,
    /// Bytes of data; 0 when the type is unknown.
    pub bytes: u64,
}

impl TensorInfo {
    /// The tensor's type, or an error naming the tensor when this library does not know it.
    pub fn tensor_type(&self) -> Result<TensorType> {
        TensorType::from_id(self.type_id)
            .ok_or_else(|| Error::Unsupported(format!("Tensor `{}` has the unknown type {}", self.name, self.type_id)))
    }

    /// Number of weights.
    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }
}

/// An open GGUF file. Cheap to clone: clones share the mapping.
#[derive(Clone)]
pub struct File {
    inner: Arc<Inner>,
}

struct Inner {
    path: PathBuf,
    bytes: Bytes,
    version: u32,
    alignment: u64,
    keys: Vec<(String, Value, u64)>,
    key_index: HashMap<String, usize>,
    tensors: Vec<TensorInfo>,
    tensor_index: HashMap<String, usize>,
}

impl File {
    /// Map and validate the file at `path`.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let file = std::fs::File::open(path).map_err(|e| Error::io(path, &e))?;
        // SAFETY: the map is read only; a host that truncates a model file while it is in use gets SIGBUS, as every
        // mapping loader has it, and the header documents that.
        let map = unsafe { Mmap::map(&file) }.map_err(|e| Error::io(path, &e))?;
        Self::parse(path.to_path_buf(), Bytes::Mapped(map))
    }

    /// Parse a file held in memory.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self> {
        Self::parse(PathBuf::from("<memory>"), Bytes::Owned(bytes))
    }

    /// The path as given to [`File::open`].
    pub fn path(&self) -> &Path {
        &self.inner.path
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
        self.inner.keys.iter().map(|(k, v, _)| (k.as_str(), v))
    }

    /// The raw value of a key.
    pub fn value(&self, key: &str) -> Option<&Value> {
        self.inner.key_index.get(key).map(|&i| &self.inner.keys[i].1)
    }

    /// The value of `key` as `T`; `None` when the key is missing, an error naming key and offset when it has another type.
    pub fn get<T: FromValue>(&self, key: &str) -> Result<Option<T>> {
        let Some(&i) = self.inner.key_index.get(key) else { return Ok(None) };
        let (_, value, offset) = &self.inner.keys[i];
        T::from_value(value).map(Some).ok_or_else(|| Error::Gguf {
            what: format!("key `{key}`"),
            offset: *offset,
            problem: format!("{} was expected, found {:?}", T::WANTED, value.value_type()),
        })
    }

    /// As [`File::get`], but a missing key is an error.
    pub fn require<T: FromValue>(&self, key: &str) -> Result<T> {
        self.get(key)?.ok_or_else(|| Error::Model(format!("Key `{key}` is missing")))
    }

    /// The strings of an array key, borrowed from the file.
    pub fn strings(&self, key: &str) -> Result<Option<Vec<&str>>> {
        let Some(array) = self.get::<Array>(key)? else { return Ok(None) };
        if array.element != ValueType::String {
            return Err(self.wrong_element(key, "strings", array.element));
        }
        let all = self.inner.bytes.as_slice();
        let mut at = array.bytes.start;
        let mut out = Vec::with_capacity(array.len);
        for _ in 0..array.len {
            // The header pass checked every length and every string's encoding.
            let len = u64_at(all, at) as usize;
            let text = &all[at + 8..at + 8 + len];
            out.push(std::str::from_utf8(text).map_err(|_| Error::Internal(format!("Key `{key}` changed on disk")))?);
            at += 8 + len;
        }
        Ok(Some(out))
    }

    /// The numbers of an array key, converted to `f32`. Integers and floats are accepted.
    pub fn floats(&self, key: &str) -> Result<Option<Vec<f32>>> {
        self.numbers(key, |v| match *v {
            Value::F32(x) => Some(x),
            Value::F64(x) => Some(x as f32),
            ref other => other_integer(other).map(|x| x as f32),
        })
    }

    /// The integers of an array key (bools count as 0 and 1).
    pub fn integers(&self, key: &str) -> Result<Option<Vec<i64>>> {
        self.numbers(key, |v| match *v {
            Value::Bool(b) => Some(b.into()),
            ref other => other_integer(other),
        })
    }

    fn numbers<T>(&self, key: &str, convert: impl Fn(&Value) -> Option<T>) -> Result<Option<Vec<T>>> {
        let Some(array) = self.get::<Array>(key)? else { return Ok(None) };
        let Some(size) = array.element.fixed_bytes() else {
            return Err(self.wrong_element(key, "numbers", array.element));
        };
        let all = &self.inner.bytes.as_slice()[array.bytes.clone()];
        let mut out = Vec::with_capacity(array.len);
        for chunk in all.chunks_exact(size) {
            let value = scalar(array.element, chunk);
            match value.as_ref().and_then(&convert) {
                Some(v) => out.push(v),
                None => return Err(self.wrong_element(key, "numbers", array.element)),
            }
        }
        Ok(Some(out))
    }

    /// The elements of an array of this file, as they lie there.
    pub(super) fn array_bytes(&self, array: &Array) -> &[u8] {
        self.inner.bytes.as_slice().get(array.bytes.clone()).unwrap_or_default()
    }

    fn wrong_element(&self, key: &str, wanted: &str, found: ValueType) -> Error {
        Error::Gguf {
            what: format!("key `{key}`"),
            offset: self.inner.key_index.get(key).map_or(0, |&i| self.inner.keys[i].2),
            problem: format!("an array of {wanted} was expected, found {found:?}"),
        }
    }

    /// All tensors in file order.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.inner.tensors
    }

    /// The tensor with this name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.inner.tensor_index.get(name).map(|&i| &self.inner.tensors[i])
    }

    /// The tensor's bytes. `info` must come from this file.
    pub fn data(&self, info: &TensorInfo) -> &[u8] {
        &self.inner.bytes.as_slice()[info.offset as usize..(info.offset + info.bytes) as usize]
    }

    fn parse(path: PathBuf, bytes: Bytes) -> Result<Self> {
        let mut cur = Cursor { all: bytes.as_slice(), at: 0 };
        let magic = cur.take(4, "magic")?;
        if magic != b"GGUF" {
            return Err(cur.error_at(0, "magic", format!("`GGUF` was expected, found {magic:02x?}")));
        }
        let version = cur.u32("version")?;
        if !(2..=3).contains(&version) {
            let problem = if version & 0xffff == 0 {
                "the file is big-endian, which is not supported".to_string()
            } else {
                format!("versions 2 and 3 are supported, found {version}")
            };
            return Err(cur.error_at(4, "version", problem));
        }
        let n_tensors = cur.u64("tensor count")?;
        // A tensor takes at least 24 bytes of header, a key at least 13.
        cur.check_count(n_tensors, 24, "tensor count")?;
        let n_keys = cur.u64("key count")?;
        cur.check_count(n_keys, 13, "key count")?;

        let mut keys = Vec::with_capacity(n_keys as usize);
        let mut key_index = HashMap::with_capacity(n_keys as usize);
        for i in 0..n_keys {
            let start = cur.at;
            let key = cur.string(&format!("name of key {i}"))?;
            if key.is_empty() {
                return Err(cur.error_at(start, &format!("key {i}"), "the name is empty".into()));
            }
            let what = format!("key `{key}`");
            let value_at = cur.at as u64;
            let value = cur.value(&what)?;
            if key_index.insert(key.to_string(), keys.len()).is_some() {
                return Err(cur.error_at(start, &what, "it appears twice".into()));
            }
            keys.push((key.to_string(), value, value_at));
        }

        let alignment = match key_index.get("general.alignment").map(|&i| &keys[i]) {
            None => DEFAULT_ALIGNMENT,
            Some((_, Value::U32(a), _)) if a.is_power_of_two() => u64::from(*a),
            Some((_, value, at)) => {
                let problem = format!("a u32 power of two was expected, found {value:?}");
                return Err(cur.error_at(*at as usize, "key `general.alignment`", problem));
            }
        };

        let mut tensors = Vec::with_capacity(n_tensors as usize);
        let mut tensor_index = HashMap::with_capacity(n_tensors as usize);
        for i in 0..n_tensors {
            let start = cur.at;
            let info = cur.tensor(i)?;
            if tensor_index.insert(info.name.clone(), tensors.len()).is_some() {
                return Err(cur.error_at(start, &format!("tensor `{}`", info.name), "it appears twice".into()));
            }
            tensors.push(info);
        }
        place_tensors(&cur, &mut tensors, alignment)?;
        let inner = Inner { path, version, alignment, keys, key_index, tensors, tensor_index, bytes };
        Ok(File { inner: Arc::new(inner) })
    }
}

fn other_integer(v: &Value) -> Option<i64> {
    Some(match *v {
        Value::U8(x) => x.into(),
        Value::I8(x) => x.into(),
        Value::U16(x) => x.into(),
        Value::I16(x) => x.into(),
        Value::U32(x) => x.into(),
        Value::I32(x) => x.into(),
        Value::I64(x) => x,
        Value::U64(x) => x.try_into().ok()?,
        _ => return None,
    })
}

/// Turn data-section offsets into file offsets and check that every tensor lies inside the file, without overlap.
fn place_tensors(cur: &Cursor<'_>, tensors: &mut [TensorInfo], alignment: u64) -> Result<()> {
    let file_len = cur.all.len() as u64;
    let data_start = (cur.at as u64).next_multiple_of(alignment);
    let mut spans: Vec<(u64, u64, usize)> = Vec::with_capacity(tensors.len());
    for (i, t) in tensors.iter_mut().enumerate() {
        let fail = |problem: String| Error::Gguf { what: format!("tensor `{}`", t.name), offset: t.offset, problem };
        if t.offset % alignment != 0 {
            return Err(fail(format!("data offset {} is not a multiple of the alignment {alignment}", t.offset)));
        }
        let start = data_start.checked_add(t.offset).ok_or_else(|| fail("data offset overflows".into()))?;
        let end = start.checked_add(t.bytes).ok_or_else(|| fail("size overflows".into()))?;
        if end > file_len {
            return Err(fail(format!("data ends at byte {end}, but the file has {file_len} bytes")));
        }
        t.offset = start;
        if t.bytes > 0 {
            spans.push((start, end, i));
        }
    }
    spans.sort_unstable();
    for pair in spans.windows(2) {
        if pair[1].0 < pair[0].1 {
            let (a, b) = (&tensors[pair[0].2], &tensors[pair[1].2]);
            return Err(Error::Gguf {
                what: format!("tensor `{}`", b.name),
                offset: b.offset,
                problem: format!("its data overlaps that of tensor `{}`", a.name),
            });
        }
    }
    Ok(())
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

/// One scalar of a fixed-size type from exactly its bytes.
fn scalar(ty: ValueType, b: &[u8]) -> Option<Value> {
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

struct Cursor<'a> {
    all: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn error_at(&self, at: usize, what: &str, problem: String) -> Error {
        Error::Gguf { what: what.to_string(), offset: at as u64, problem }
    }

    fn left(&self) -> usize {
        self.all.len() - self.at
    }

    fn take(&mut self, n: usize, what: &str) -> Result<&'a [u8]> {
        if n > self.left() {
            let problem = format!("{n} bytes are needed, {} are left in the file", self.left());
            return Err(self.error_at(self.at, what, problem));
        }
        let out = &self.all[self.at..self.at + n];
        self.at += n;
        Ok(out)
    }

    fn u32(&mut self, what: &str) -> Result<u32> {
        let b = self.take(4, what)?;
        Ok(u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
    }

    fn u64(&mut self, what: &str) -> Result<u64> {
        let at = self.at;
        self.take(8, what)?;
        Ok(u64_at(self.all, at))
    }

    /// Refuse a count whose smallest possible content is larger than what is left of the file.
    fn check_count(&self, n: u64, least_bytes: usize, what: &str) -> Result<()> {
        if n > (self.left() / least_bytes) as u64 {
            let problem = format!("{n} cannot fit in the {} bytes left in the file", self.left());
            return Err(self.error_at(self.at - 8, what, problem));
        }
        Ok(())
    }

    fn string(&mut self, what: &str) -> Result<&'a str> {
        let at = self.at;
        let len = self.u64(what)?;
        self.check_count(len, 1, what)?;
        let bytes = self.take(len as usize, what)?;
        std::str::from_utf8(bytes).map_err(|e| self.error_at(at, what, format!("the text is not UTF-8 ({e})")))
    }

    fn value_type(&mut self, what: &str) -> Result<ValueType> {
        let at = self.at;
        let id = self.u32(what)?;
        ValueType::from_id(id).ok_or_else(|| self.error_at(at, what, format!("unknown value type {id}")))
    }

    fn value(&mut self, what: &str) -> Result<Value> {
        let ty = self.value_type(what)?;
        match ty {
            ValueType::String => Ok(Value::String(self.string(what)?.to_string())),
            ValueType::Array => self.array(what),
            _ => {
                let at = self.at;
                let bytes = self.take(ty.fixed_bytes().unwrap_or(0), what)?;
                scalar(ty, bytes).ok_or_else(|| self.error_at(at, what, "unreadable scalar".into()))
            }
        }
    }

    fn array(&mut self, what: &str) -> Result<Value> {
        let at = self.at;
        let element = self.value_type(what)?;
        let len = self.u64(what)?;
        let bytes: Range<usize> = match element {
            ValueType::Array => return Err(self.error_at(at, what, "arrays of arrays are not supported".into())),
            ValueType::String => {
                self.check_count(len, 8, what)?;
                let start = self.at;
                for _ in 0..len {
                    self.string(what)?;
                }
                start..self.at
            }
            fixed => {
                let size = fixed.fixed_bytes().unwrap_or(1);
                self.check_count(len, size, what)?;
                let start = self.at;
                self.take(len as usize * size, what)?;
                start..self.at
            }
        };
        Ok(Value::Array(Array { element, len: len as usize, bytes }))
    }

    fn tensor(&mut self, index: u64) -> Result<TensorInfo> {
        let start = self.at;
        let name = self.string(&format!("name of tensor {index}"))?.to_string();
        let what = format!("tensor `{name}`");
        if name.len() > MAX_TENSOR_NAME {
            return Err(self.error_at(
                start,
                &what,
                format!("the name has {} bytes, at most 63 are allowed", name.len()),
            ));
        }
        let n_dims = self.u32(&what)?;
        if n_dims > MAX_DIMS {
            return Err(self.error_at(self.at - 4, &what, format!("{n_dims} dimensions, at most 4 are allowed")));
        }
        let mut shape = [1u64; 4];
        let dims_at = self.at;
        for dim in shape.iter_mut().take(n_dims as usize) {
            *dim = self.u64(&what)?;
        }
        let type_id = self.u32(&what)?;
        let offset = self.u64(&what)?;
        let overflow = || self.error_at(dims_at, &what, format!("shape {shape:?} overflows"));
        let rows = shape[1..].iter().try_fold(1u64, |a, &b| a.checked_mul(b)).ok_or_else(overflow)?;
        rows.checked_mul(shape[0]).ok_or_else(overflow)?;
        let bytes = match TensorType::from_id(type_id) {
            None => 0,
            Some(ty) => {
                let row = ty.row_bytes(shape[0]).ok_or_else(|| {
                    let problem =
                        format!("a row of {} is no whole number of {} blocks of {}", shape[0], ty, ty.block_len());
                    self.error_at(dims_at, &what, problem)
                })?;
                row.checked_mul(rows).ok_or_else(overflow)?
            }
        };
        Ok(TensorInfo { name, shape, n_dims, type_id, offset, bytes })
    }
}
