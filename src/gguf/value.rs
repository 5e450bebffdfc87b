//! Metadata values. Of an array only its byte range in the header and its element type are kept.

use std::ops::Range;

/// The element type of a metadata value; ids are the file format's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
#[repr(u32)]
pub enum ValueType {
    U8 = 0,
    I8 = 1,
    U16 = 2,
    I16 = 3,
    U32 = 4,
    I32 = 5,
    F32 = 6,
    Bool = 7,
    String = 8,
    Array = 9,
    U64 = 10,
    I64 = 11,
    F64 = 12,
}

impl ValueType {
    /// The type with this id, if there is one.
    pub fn from_id(id: u32) -> Option<Self> {
        use ValueType::*;
        [U8, I8, U16, I16, U32, I32, F32, Bool, String, Array, U64, I64, F64].get(id as usize).copied()
    }

    /// Bytes of one element; `None` for strings and arrays, whose length varies.
    pub fn fixed_bytes(self) -> Option<usize> {
        use ValueType::*;
        match self {
            U8 | I8 | Bool => Some(1),
            U16 | I16 => Some(2),
            U32 | I32 | F32 => Some(4),
            U64 | I64 | F64 => Some(8),
            String | Array => None,
        }
    }
}

/// A metadata array: element type, count, and byte range in the file. Read it through [`super::File`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Array {
    /// Type of every element.
    pub element: ValueType,
    /// Number of elements.
    pub len: usize,
    /// Byte range of the elements in the file (strings with their length words).
    pub bytes: Range<usize>,
}

/// One metadata value.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(String),
    Array(Array),
    U64(u64),
    I64(i64),
    F64(f64),
}

impl Value {
    /// The value's type.
    pub fn value_type(&self) -> ValueType {
        match self {
            Value::U8(_) => ValueType::U8,
            Value::I8(_) => ValueType::I8,
            Value::U16(_) => ValueType::U16,
            Value::I16(_) => ValueType::I16,
            Value::U32(_) => ValueType::U32,
            Value::I32(_) => ValueType::I32,
            Value::F32(_) => ValueType::F32,
            Value::Bool(_) => ValueType::Bool,
            Value::String(_) => ValueType::String,
            Value::Array(_) => ValueType::Array,
            Value::U64(_) => ValueType::U64,
            Value::I64(_) => ValueType::I64,
            Value::F64(_) => ValueType::F64,
        }
    }

    /// The value of an integer type.
    pub(super) fn as_i128(&self) -> Option<i128> {
        Some(match *self {
            Value::U8(v) => v.into(),
            Value::I8(v) => v.into(),
            Value::U16(v) => v.into(),
            Value::I16(v) => v.into(),
            Value::U32(v) => v.into(),
            Value::I32(v) => v.into(),
            Value::U64(v) => v.into(),
            Value::I64(v) => v.into(),
            _ => return None,
        })
    }
}

/// Types that a metadata value can be read as. Integers convert between widths when the value fits.
pub trait FromValue: Sized {
    /// What the caller asked for, for the error message.
    const WANTED: &'static str;
    /// The value, or `None` if it is of another kind or does not fit.
    fn from_value(value: &Value) -> Option<Self>;
}

macro_rules! from_integer {
    ($($t:ty, $name:literal;)*) => {$(
        impl FromValue for $t {
            const WANTED: &'static str = $name;
            fn from_value(value: &Value) -> Option<Self> {
                value.as_i128().and_then(|v| v.try_into().ok())
            }
        }
    )*};
}
from_integer! {
    u32, "an unsigned 32-bit integer";
    i32, "a signed 32-bit integer";
    u64, "an unsigned 64-bit integer";
    usize, "a size";
}

impl FromValue for f32 {
    const WANTED: &'static str = "a float";
    fn from_value(value: &Value) -> Option<Self> {
        match *value {
            Value::F32(v) => Some(v),
            Value::F64(v) => Some(v as f32),
            _ => None,
        }
    }
}

impl FromValue for bool {
    const WANTED: &'static str = "a bool";
    fn from_value(value: &Value) -> Option<Self> {
        match *value {
            Value::Bool(v) => Some(v),
            _ => None,
        }
    }
}

impl FromValue for String {
    const WANTED: &'static str = "a string";
    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::String(v) => Some(v.clone()),
            _ => None,
        }
    }
}

impl FromValue for Array {
    const WANTED: &'static str = "an array";
    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Array(v) => Some(v.clone()),
            _ => None,
        }
    }
}
