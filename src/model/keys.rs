//! Reading keys under the prefix of an architecture, checked for range. A number for all layers may be written as an
//! array of equal numbers, and values of layers as one number.

use crate::gguf::{File, FromValue, Value, ValueType};
use crate::{Error, Result};

/// Upper bounds far above those of any model; a file beyond them is broken, and refusing it keeps all later products of
/// sizes within 64 bits.
pub(super) const MAX_LAYERS: usize = 4096;
pub(super) const MAX_WIDTH: usize = 1 << 20;

/// Reads keys under the architecture's prefix.
#[derive(Clone, Copy)]
pub(super) struct Keys<'a> {
    file: &'a File,
    prefix: &'a str,
}

impl<'a> Keys<'a> {
    pub fn new(file: &'a File, prefix: &'a str) -> Keys<'a> {
        Keys { file, prefix }
    }

    /// The whole name of a key.
    pub fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.prefix)
    }

    /// The error for a key that the file lacks.
    pub fn missing(&self, key: &str) -> Error {
        Error::Model(format!("Key `{}` is missing", self.name(key)))
    }

    /// Whether the file has this key.
    pub fn has(&self, key: &str) -> bool {
        self.file.value(&self.name(key)).is_some()
    }

    /// Whether the file has this key, and it is an array.
    pub fn is_array(&self, key: &str) -> bool {
        matches!(self.file.value(&self.name(key)), Some(Value::Array(_)))
    }

    /// One value, or that of an array in which all are equal.
    pub fn get<T: FromValue>(&self, key: &str) -> Result<Option<T>> {
        let name = self.name(key);
        if let Some(Value::Array(array)) = self.file.value(&name)
            && (1..=MAX_LAYERS).contains(&array.len)
            && array.element != ValueType::String
        {
            let first = self.file.number_at(&name, 0);
            let same = (1..array.len).all(|i| self.file.number_at(&name, i) == first);
            if let Some(value) = first.filter(|_| same).and_then(|value| T::from_value(&value)) {
                return Ok(Some(value));
            }
        }
        self.file.get(&name)
    }

    /// A float that must be finite.
    pub fn float(&self, key: &str) -> Result<Option<f32>> {
        match self.get::<f32>(key)? {
            Some(v) if !v.is_finite() => Err(Error::Model(format!("Key `{}` is {v}", self.name(key)))),
            other => Ok(other),
        }
    }

    /// A float where 0 means "absent".
    pub fn positive(&self, key: &str) -> Result<Option<f32>> {
        match self.float(key)? {
            Some(v) if v < 0.0 => Err(Error::Model(format!("Key `{}` is negative ({v})", self.name(key)))),
            other => Ok(other.filter(|&v| v > 0.0)),
        }
    }

    /// A float above 0 that the file must have.
    pub fn require_positive(&self, key: &str) -> Result<f32> {
        self.positive(key)?.ok_or_else(|| self.missing(key))
    }

    fn check(&self, key: &str, v: usize, max: usize) -> Result<usize> {
        if v == 0 || v > max {
            return Err(Error::Model(format!("Key `{}` is {v}, 1 to {max} are possible", self.name(key))));
        }
        Ok(v)
    }

    /// A number from 1 to `max` that the file must have.
    pub fn size(&self, key: &str, max: usize) -> Result<usize> {
        self.check(key, self.get(key)?.ok_or_else(|| self.missing(key))?, max)
    }

    /// A number from 1 to `max`.
    pub fn optional_size(&self, key: &str, default: usize, max: usize) -> Result<usize> {
        match self.get::<usize>(key)? {
            Some(v) => self.check(key, v, max),
            None => Ok(default),
        }
    }

    /// A number from 0 to `max`; 0 where the file has none.
    pub fn count(&self, key: &str, max: usize) -> Result<usize> {
        match self.get::<usize>(key)? {
            Some(v) if v > max => Err(Error::Model(format!("Key `{}` is {v}, above {max}", self.name(key)))),
            v => Ok(v.unwrap_or(0)),
        }
    }

    /// A key that is one number or bool for all of `blocks` blocks, or an array with one for each.
    pub fn per_block(&self, key: &str, blocks: usize) -> Result<Option<Vec<usize>>> {
        let name = self.name(key);
        let values: Vec<usize> = match self.file.value(&name) {
            None => return Ok(None),
            Some(Value::Array(_)) => {
                let values = self.file.integers(&name)?.unwrap_or_default();
                if values.len() != blocks {
                    let have = values.len();
                    return Err(Error::Model(format!("Key `{name}` has {have} values for {blocks} layers")));
                }
                values.into_iter().map(|v| usize::try_from(v).unwrap_or(usize::MAX)).collect()
            }
            Some(_) => vec![self.file.require::<usize>(&name)?; blocks],
        };
        match values.iter().find(|&&v| v > MAX_WIDTH) {
            Some(v) => Err(Error::Model(format!("Key `{name}` is {v}, above {MAX_WIDTH}"))),
            None => Ok(Some(values)),
        }
    }

    /// As [`Keys::per_block`], without zeros.
    pub fn sizes(&self, key: &str, blocks: usize) -> Result<Option<Vec<usize>>> {
        let values = self.per_block(key, blocks)?;
        if let Some(values) = &values {
            values.iter().try_for_each(|&v| self.check(key, v, MAX_WIDTH).map(drop))?;
        }
        Ok(values)
    }

    /// An array with a number for each of `blocks` blocks.
    pub fn floats(&self, key: &str, blocks: usize) -> Result<Option<Vec<f32>>> {
        let name = self.name(key);
        match self.file.floats(&name)? {
            Some(values) if values.len() != blocks => {
                Err(Error::Model(format!("Key `{name}` has {} values for {blocks} layers", values.len())))
            }
            values => Ok(values),
        }
    }

    /// The texts of an array; none where the file does not have it.
    pub fn strings(&self, key: &str) -> Result<Vec<String>> {
        let texts = self.file.strings(&self.name(key))?.unwrap_or_default();
        Ok(texts.into_iter().map(String::from).collect())
    }

    /// The finite numbers of a key without the prefix: one for each block, or one for all.
    pub fn global_floats(&self, name: &str, blocks: usize) -> Result<Vec<f32>> {
        let values = match self.file.value(name) {
            Some(Value::Array(_)) => self.file.floats(name)?.unwrap_or_default(),
            _ => vec![self.file.require::<f32>(name)?; blocks],
        };
        if values.len() != blocks || values.iter().any(|v| !v.is_finite()) {
            let have = values.len();
            return Err(Error::Model(format!("Key `{name}` has {have} values, {blocks} finite ones are needed")));
        }
        Ok(values)
    }
}
