//! Metadata as JSON.
//!
//! It is written while it is read, into memory whose allocation may fail with an error: a file's arrays may be as large
//! as the file.

use super::read::scalar;
use super::value::{Array, Value};
use super::{File, shown};
use crate::{Error, Result};
use serde::ser::{Error as _, Serialize, SerializeMap, SerializeSeq, Serializer};
use std::io;

/// Where all keys are written, longer arrays are written as type and length alone.
pub const LONG_ARRAY: usize = 16;

impl File {
    /// The value of `key` as JSON; without a key one object of all metadata in file order, in which an array of more
    /// than [`LONG_ARRAY`] elements is `{"type": "I32", "length": 32000}`. A number that is not finite is null.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a key that the file does not have, [`Error::OutOfMemory`].
    pub fn metadata_json(&self, key: Option<&str>) -> Result<String> {
        let mut out = Growing(Vec::new());
        let written = match key {
            None => serde_json::to_writer(&mut out, &All(self)),
            Some(key) => match self.value(key) {
                Some(Value::Array(array)) => serde_json::to_writer(&mut out, &Elements(self, array)),
                Some(value) => serde_json::to_writer(&mut out, value),
                None => return Err(Error::InvalidArgument(format!("The file has no key `{}`", shown(key)))),
            },
        };
        written.map_err(|error| match error.is_io() {
            true => Error::OutOfMemory(format!("{} bytes of metadata as JSON", out.0.len())),
            false => Error::Internal(format!("Metadata as JSON: {error}")),
        })?;
        String::from_utf8(out.0).map_err(|error| Error::Internal(format!("Metadata as JSON: {error}")))
    }

    /// One number of an array, without reading the others; `None` where there is none.
    pub fn number_at(&self, key: &str, index: usize) -> Option<Value> {
        let array = self.get::<Array>(key).ok().flatten()?;
        let size = array.element.fixed_bytes()?;
        let start = index.checked_mul(size)?;
        scalar(array.element, self.array_bytes(&array).get(start..start.checked_add(size)?)?)
    }
}

/// A number, boolean or text is written as itself, an array as its type and length: its elements are in the file.
impl Serialize for Value {
    fn serialize<S: Serializer>(&self, to: S) -> std::result::Result<S::Ok, S::Error> {
        match self {
            Value::U8(v) => v.serialize(to),
            Value::I8(v) => v.serialize(to),
            Value::U16(v) => v.serialize(to),
            Value::I16(v) => v.serialize(to),
            Value::U32(v) => v.serialize(to),
            Value::I32(v) => v.serialize(to),
            // The shortest text that is this f32, not the digits of the f64 it widens to.
            Value::F32(v) => v.to_string().parse::<f64>().unwrap_or(f64::NAN).serialize(to),
            Value::Bool(v) => v.serialize(to),
            Value::String(v) => v.serialize(to),
            Value::U64(v) => v.serialize(to),
            Value::I64(v) => v.serialize(to),
            Value::F64(v) => v.serialize(to),
            Value::Array(array) => {
                let mut map = to.serialize_map(Some(2))?;
                map.serialize_entry("type", &format!("{:?}", array.element))?;
                map.serialize_entry("length", &array.len)?;
                map.end()
            }
        }
    }
}

/// All metadata.
struct All<'a>(&'a File);

impl Serialize for All<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> std::result::Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(None)?;
        for (key, value) in self.0.metadata() {
            match value {
                Value::Array(array) if array.len <= LONG_ARRAY => map.serialize_entry(key, &Elements(self.0, array))?,
                value => map.serialize_entry(key, value)?,
            }
        }
        map.end()
    }
}

/// The elements of an array of the file.
struct Elements<'a>(&'a File, &'a Array);

impl Serialize for Elements<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> std::result::Result<S::Ok, S::Error> {
        let Elements(file, array) = self;
        let mut rest = file.array_bytes(array);
        let mut seq = to.serialize_seq(Some(array.len))?;
        // The header was checked when the file was opened; another process may have written to the file since.
        for _ in 0..array.len {
            let changed = || S::Error::custom("the file changed on disk");
            match array.element.fixed_bytes() {
                Some(size) => {
                    let (bytes, behind) = rest.split_at_checked(size).ok_or_else(changed)?;
                    seq.serialize_element(&scalar(array.element, bytes).ok_or_else(changed)?)?;
                    rest = behind;
                }
                None => {
                    let (len, behind) = rest.split_first_chunk().ok_or_else(changed)?;
                    let len = usize::try_from(u64::from_le_bytes(*len)).unwrap_or(usize::MAX);
                    let (text, behind) = behind.split_at_checked(len).ok_or_else(changed)?;
                    seq.serialize_element(std::str::from_utf8(text).map_err(|_| changed())?)?;
                    rest = behind;
                }
            }
        }
        seq.end()
    }
}

/// A byte buffer whose failed growth is an error.
struct Growing(Vec<u8>);

impl io::Write for Growing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_reserve(bytes.len()).map_err(|_| io::ErrorKind::OutOfMemory)?;
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::gguf::Writer;

    fn file() -> File {
        let mut writer = Writer::new(3);
        writer.set("text", "a \"b\"\n\0c").set("yes", true).set("tenth", 0.1f32).set("most", u64::MAX);
        writer.set("nan", f32::NAN).set("few", vec![-1i32, 2]).set("many", vec![0.5f32; 17]);
        writer.set("words", vec!["x".to_string(), "é".into()]);
        File::from_bytes(writer.to_bytes().unwrap()).unwrap()
    }

    #[test]
    fn all_keys_are_one_object_and_long_arrays_are_told_by_type_and_length() {
        let expected = "{\"text\":\"a \\\"b\\\"\\n\\u0000c\",\"yes\":true,\"tenth\":0.1,\"most\":18446744073709551615,\
            \"nan\":null,\"few\":[-1,2],\"many\":{\"type\":\"F32\",\"length\":17},\"words\":[\"x\",\"é\"]}";
        assert_eq!(file().metadata_json(None).unwrap(), expected);
    }

    #[test]
    fn one_key_is_whole() {
        let of = |key| file().metadata_json(Some(key)).unwrap();
        assert_eq!(of("many"), format!("[{}]", ["0.5"; 17].join(",")));
        assert_eq!((of("tenth"), of("yes"), of("words")), ("0.1".into(), "true".into(), "[\"x\",\"é\"]".into()));
        let missing = file().metadata_json(Some("no\nsuch")).unwrap_err();
        assert_eq!(missing.to_string(), "Invalid argument: The file has no key `no\\nsuch`");
    }

    #[test]
    fn one_element_is_read_by_itself() {
        assert_eq!(file().number_at("few", 1), Some(Value::I32(2)));
        for (key, index) in [("few", 2), ("few", usize::MAX), ("words", 0), ("text", 0), ("none", 0)] {
            assert_eq!(file().number_at(key, index), None, "{key}[{index}]");
        }
    }
}
