//! The writer: builds a header in memory and writes the tensor data after it.
//!
//! What it writes, [`super::File`] reads back: it applies the reader's rules (name lengths, unique names, whole blocks,
//! alignment) before the first byte goes out. A file appears under its own name only once it is complete.

use super::value::ValueType;
use super::{DEFAULT_ALIGNMENT, File, MAX_TENSOR_NAME, Value, shown};
use crate::quant::TensorType;
use crate::{Error, Result};
use std::collections::HashSet;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The largest alignment that is written. A file may ask for 2 GiB, and every tensor would be padded to that.
const MAX_ALIGNMENT: u64 = 1 << 20;

/// A metadata value to write. `From` is implemented for the plain Rust types and vectors of them.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub enum WriteValue {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(String),
    U64(u64),
    I64(i64),
    F64(f64),
    U8s(Vec<u8>),
    I8s(Vec<i8>),
    U16s(Vec<u16>),
    I16s(Vec<i16>),
    U32s(Vec<u32>),
    I32s(Vec<i32>),
    F32s(Vec<f32>),
    Bools(Vec<bool>),
    Strings(Vec<String>),
    U64s(Vec<u64>),
    I64s(Vec<i64>),
    F64s(Vec<f64>),
}

macro_rules! numbers {
    ($($one:ident $many:ident $t:ty;)*) => {
        $(impl From<$t> for WriteValue {
            fn from(v: $t) -> Self {
                WriteValue::$one(v)
            }
        }
        impl From<Vec<$t>> for WriteValue {
            fn from(v: Vec<$t>) -> Self {
                WriteValue::$many(v)
            }
        })*

        impl WriteValue {
            /// Type id and content, as in the file.
            fn encode(&self) -> Vec<u8> {
                let mut out = Vec::new();
                match self {
                    $(WriteValue::$one(v) => {
                        put_u32(&mut out, ValueType::$one as u32);
                        out.extend_from_slice(&v.to_le_bytes());
                    }
                    WriteValue::$many(all) => {
                        put_array(&mut out, ValueType::$one, all.len());
                        all.iter().for_each(|v| out.extend_from_slice(&v.to_le_bytes()));
                    })*
                    WriteValue::Bool(v) => {
                        put_u32(&mut out, ValueType::Bool as u32);
                        out.push(u8::from(*v));
                    }
                    WriteValue::Bools(all) => {
                        put_array(&mut out, ValueType::Bool, all.len());
                        out.extend(all.iter().map(|v| u8::from(*v)));
                    }
                    WriteValue::String(v) => {
                        put_u32(&mut out, ValueType::String as u32);
                        put_string(&mut out, v);
                    }
                    WriteValue::Strings(all) => {
                        put_array(&mut out, ValueType::String, all.len());
                        all.iter().for_each(|v| put_string(&mut out, v));
                    }
                }
                out
            }
        }
    };
}
numbers! {
    U8 U8s u8; I8 I8s i8; U16 U16s u16; I16 I16s i16; U32 U32s u32; I32 I32s i32;
    F32 F32s f32; U64 U64s u64; I64 I64s i64; F64 F64s f64;
}

impl From<bool> for WriteValue {
    fn from(v: bool) -> Self {
        WriteValue::Bool(v)
    }
}
impl From<Vec<bool>> for WriteValue {
    fn from(v: Vec<bool>) -> Self {
        WriteValue::Bools(v)
    }
}
impl From<&str> for WriteValue {
    fn from(v: &str) -> Self {
        WriteValue::String(v.to_string())
    }
}
impl From<String> for WriteValue {
    fn from(v: String) -> Self {
        WriteValue::String(v)
    }
}
impl From<Vec<String>> for WriteValue {
    fn from(v: Vec<String>) -> Self {
        WriteValue::Strings(v)
    }
}

fn put_u32(out: &mut Vec<u8>, v: u32) {
    out.extend_from_slice(&v.to_le_bytes());
}

fn put_u64(out: &mut Vec<u8>, v: u64) {
    out.extend_from_slice(&v.to_le_bytes());
}

fn put_string(out: &mut Vec<u8>, text: &str) {
    put_u64(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

fn put_array(out: &mut Vec<u8>, element: ValueType, len: usize) {
    put_u32(out, ValueType::Array as u32);
    put_u32(out, element as u32);
    put_u64(out, len as u64);
}

struct Entry {
    name: String,
    shape: Vec<u64>,
    ty: TensorType,
    data: Option<Vec<u8>>,
}

/// A GGUF file being put together.
pub struct Writer {
    version: u32,
    /// Key, and type id with content as in the file.
    keys: Vec<(String, Vec<u8>)>,
    tensors: Vec<Entry>,
}

impl Writer {
    /// An empty file of the given format version (2 or 3; others are refused when it is written).
    pub fn new(version: u32) -> Self {
        Writer { version, keys: Vec::new(), tensors: Vec::new() }
    }

    /// Set a metadata key; a key set before keeps its place and gets the new value. `general.alignment` is obeyed.
    pub fn set(&mut self, key: impl Into<String>, value: impl Into<WriteValue>) -> &mut Self {
        self.put(key.into(), value.into().encode())
    }

    /// Copy one key of another file; arrays byte for byte.
    ///
    /// # Errors
    /// [`Error::Model`] where the other file lacks the key.
    pub fn copy_key(&mut self, from: &File, key: &str) -> Result<&mut Self> {
        let value = from.value(key).ok_or_else(|| Error::Model(format!("Key `{}` is missing", shown(key))))?;
        let encoded = match value {
            Value::U8(v) => WriteValue::from(*v).encode(),
            Value::I8(v) => WriteValue::from(*v).encode(),
            Value::U16(v) => WriteValue::from(*v).encode(),
            Value::I16(v) => WriteValue::from(*v).encode(),
            Value::U32(v) => WriteValue::from(*v).encode(),
            Value::I32(v) => WriteValue::from(*v).encode(),
            Value::F32(v) => WriteValue::from(*v).encode(),
            Value::Bool(v) => WriteValue::from(*v).encode(),
            Value::String(v) => WriteValue::from(v.as_str()).encode(),
            Value::U64(v) => WriteValue::from(*v).encode(),
            Value::I64(v) => WriteValue::from(*v).encode(),
            Value::F64(v) => WriteValue::from(*v).encode(),
            Value::Array(array) => {
                let mut out = Vec::new();
                put_array(&mut out, array.element, array.len);
                out.extend_from_slice(from.array_bytes(array));
                out
            }
        };
        Ok(self.put(key.to_string(), encoded))
    }

    fn put(&mut self, key: String, encoded: Vec<u8>) -> &mut Self {
        match self.keys.iter_mut().find(|(k, _)| *k == key) {
            Some((_, value)) => *value = encoded,
            None => self.keys.push((key, encoded)),
        }
        self
    }

    /// Add a tensor with its data: whole blocks of `ty`, `shape[0]` being the contiguous dimension.
    pub fn tensor(&mut self, name: impl Into<String>, shape: &[u64], ty: TensorType, data: Vec<u8>) -> &mut Self {
        self.tensors.push(Entry { name: name.into(), shape: shape.to_vec(), ty, data: Some(data) });
        self
    }

    /// Add a tensor whose data [`Writer::stream`] will ask for.
    pub fn declare(&mut self, name: impl Into<String>, shape: &[u64], ty: TensorType) -> &mut Self {
        self.tensors.push(Entry { name: name.into(), shape: shape.to_vec(), ty, data: None });
        self
    }

    /// The whole file in memory. Every tensor must have been given with its data.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a tensor without data.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        self.emit(&mut out, Path::new("<memory>"), &mut no_data)?;
        Ok(out)
    }

    /// Write the file. Every tensor must have been given with its data.
    ///
    /// # Errors
    /// As [`Writer::stream`].
    pub fn write_to(&self, path: &Path) -> Result<()> {
        self.stream(path, &mut no_data)
    }

    /// Write the file, asking `fill` for the data of each declared tensor in order: it gets the tensor's index
    /// among all tensors and must write exactly its bytes.
    ///
    /// Everything goes to `<path>.partial`, which takes the name `path` at the end and is removed on an error.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::InvalidArgument`] for a tensor with too few or too many bytes, and what `fill` returns.
    pub fn stream(&self, path: &Path, fill: Fill<'_>) -> Result<()> {
        let mut partial = path.as_os_str().to_owned();
        partial.push(".partial");
        let partial = PathBuf::from(partial);
        let mut write = || {
            let file = std::fs::File::create(&partial).map_err(|e| Error::io(&partial, &e))?;
            let mut out = io::BufWriter::with_capacity(1 << 20, file);
            self.emit(&mut out, path, fill)?;
            let file = out.into_inner().map_err(|e| Error::io(&partial, e.error()))?;
            file.sync_all().map_err(|e| Error::io(&partial, &e))?;
            std::fs::rename(&partial, path).map_err(|e| Error::io(path, &e))
        };
        write().inspect_err(|_| drop(std::fs::remove_file(&partial)))
    }

    fn emit(&self, out: &mut dyn Write, path: &Path, fill: Fill<'_>) -> Result<()> {
        let (header, sizes, alignment) = self.header()?;
        let failed = |e: io::Error| Error::io(path, &e);
        out.write_all(&header).map_err(failed)?;
        let mut at = header.len() as u64;
        for (i, (entry, bytes)) in self.tensors.iter().zip(&sizes).enumerate() {
            pad(out, &mut at, alignment).map_err(failed)?;
            match &entry.data {
                Some(data) => out.write_all(data).map_err(failed)?,
                None => {
                    let mut counted = Counted { out, bytes: 0 };
                    fill(i, &mut counted)?;
                    if counted.bytes != *bytes {
                        return Err(entry.refused(format!("{} bytes were written, not {bytes}", counted.bytes)));
                    }
                }
            }
            at += bytes;
        }
        pad(out, &mut at, alignment).map_err(failed)
    }

    /// The header, every tensor's size, and the alignment.
    fn header(&self) -> Result<(Vec<u8>, Vec<u64>, u64)> {
        if !(2..=3).contains(&self.version) {
            return Err(Error::InvalidArgument(format!(
                "GGUF version {} cannot be written, 2 and 3 can",
                self.version
            )));
        }
        let alignment = self.alignment()?;
        let mut out = b"GGUF".to_vec();
        put_u32(&mut out, self.version);
        put_u64(&mut out, self.tensors.len() as u64);
        put_u64(&mut out, self.keys.len() as u64);
        for (key, value) in &self.keys {
            if key.is_empty() {
                return Err(Error::InvalidArgument("A metadata key is empty".into()));
            }
            put_string(&mut out, key);
            out.extend_from_slice(value);
        }
        let mut names = HashSet::new();
        let mut sizes = Vec::new();
        let mut offset = 0u64;
        for entry in &self.tensors {
            if !names.insert(entry.name.as_str()) {
                return Err(entry.refused("its name is taken".into()));
            }
            let bytes = entry.bytes()?;
            put_string(&mut out, &entry.name);
            put_u32(&mut out, entry.shape.len() as u32);
            entry.shape.iter().for_each(|n| put_u64(&mut out, *n));
            put_u32(&mut out, entry.ty as u32);
            put_u64(&mut out, offset);
            sizes.push(bytes);
            offset = offset
                .checked_add(bytes)
                .and_then(|end| end.checked_next_multiple_of(alignment))
                .ok_or_else(|| entry.refused("the file would be too large".into()))?;
        }
        Ok((out, sizes, alignment))
    }

    fn alignment(&self) -> Result<u64> {
        let Some((_, encoded)) = self.keys.iter().find(|(k, _)| k == "general.alignment") else {
            return Ok(DEFAULT_ALIGNMENT);
        };
        let alignment = match *encoded.as_slice() {
            [4, 0, 0, 0, a, b, c, d] => u64::from(u32::from_le_bytes([a, b, c, d])),
            _ => 0,
        };
        if !alignment.is_power_of_two() || alignment > MAX_ALIGNMENT {
            let problem = format!("Key `general.alignment` must be a u32 power of two, at most {MAX_ALIGNMENT}");
            return Err(Error::InvalidArgument(problem));
        }
        Ok(alignment)
    }
}

/// Supplies the data of a declared tensor; see [`Writer::stream`].
pub type Fill<'a> = &'a mut dyn FnMut(usize, &mut dyn Write) -> Result<()>;

fn no_data(_: usize, _: &mut dyn Write) -> Result<()> {
    Ok(())
}

impl Entry {
    fn refused(&self, problem: String) -> Error {
        Error::InvalidArgument(format!("Tensor `{}` cannot be written: {problem}", shown(&self.name)))
    }

    fn bytes(&self) -> Result<u64> {
        if self.name.len() > MAX_TENSOR_NAME {
            return Err(self.refused(format!("the name has {} bytes, at most 63 are allowed", self.name.len())));
        }
        if self.shape.len() > 4 {
            return Err(self.refused(format!("{} dimensions, at most 4 are allowed", self.shape.len())));
        }
        let row = self.shape.first().copied().unwrap_or(1);
        let rows = self.shape.iter().skip(1).try_fold(1u64, |n, d| n.checked_mul(*d));
        let bytes = rows
            .filter(|rows| rows.checked_mul(row).is_some())
            .and_then(|rows| self.ty.row_bytes(row)?.checked_mul(rows))
            .ok_or_else(|| self.refused(format!("shape {:?} has no size in {}", self.shape, self.ty)))?;
        match &self.data {
            Some(data) if data.len() as u64 != bytes => {
                Err(self.refused(format!("its data has {} bytes, not {bytes}", data.len())))
            }
            _ => Ok(bytes),
        }
    }
}

fn pad(out: &mut dyn Write, at: &mut u64, alignment: u64) -> io::Result<()> {
    let padding = at.next_multiple_of(alignment) - *at;
    *at += padding;
    io::copy(&mut io::Read::take(io::repeat(0), padding), out).map(drop)
}

struct Counted<'a> {
    out: &'a mut dyn Write,
    bytes: u64,
}

impl Write for Counted<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let n = self.out.write(buf)?;
        self.bytes += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
