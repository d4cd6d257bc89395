//! Key-value metadata: values as the file has them, and accessors that widen.

use std::collections::HashMap;

/// A metadata value, in the width that the file uses.
#[derive(Clone, Debug, PartialEq)]
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

/// An array, all elements of one type.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    F32(Vec<f32>),
    Bool(Vec<bool>),
    String(Vec<String>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F64(Vec<f64>),
}

/// The type numbers of values in a file.
pub(crate) mod id {
    pub(crate) const U8: u32 = 0;
    pub(crate) const I8: u32 = 1;
    pub(crate) const U16: u32 = 2;
    pub(crate) const I16: u32 = 3;
    pub(crate) const U32: u32 = 4;
    pub(crate) const I32: u32 = 5;
    pub(crate) const F32: u32 = 6;
    pub(crate) const BOOL: u32 = 7;
    pub(crate) const STRING: u32 = 8;
    pub(crate) const ARRAY: u32 = 9;
    pub(crate) const U64: u32 = 10;
    pub(crate) const I64: u32 = 11;
    pub(crate) const F64: u32 = 12;
}

impl Value {
    /// The type's number in a file.
    pub(crate) fn type_id(&self) -> u32 {
        match self {
            Value::U8(_) => id::U8,
            Value::I8(_) => id::I8,
            Value::U16(_) => id::U16,
            Value::I16(_) => id::I16,
            Value::U32(_) => id::U32,
            Value::I32(_) => id::I32,
            Value::F32(_) => id::F32,
            Value::Bool(_) => id::BOOL,
            Value::String(_) => id::STRING,
            Value::Array(_) => id::ARRAY,
            Value::U64(_) => id::U64,
            Value::I64(_) => id::I64,
            Value::F64(_) => id::F64,
        }
    }

    /// Any integer that is not negative.
    pub(crate) fn as_u64(&self) -> Option<u64> {
        match *self {
            Value::U64(v) => Some(v),
            _ => self.as_i64().and_then(|v| u64::try_from(v).ok()),
        }
    }

    fn as_i64(&self) -> Option<i64> {
        match *self {
            Value::U8(v) => Some(v.into()),
            Value::I8(v) => Some(v.into()),
            Value::U16(v) => Some(v.into()),
            Value::I16(v) => Some(v.into()),
            Value::U32(v) => Some(v.into()),
            Value::I32(v) => Some(v.into()),
            Value::U64(v) => i64::try_from(v).ok(),
            Value::I64(v) => Some(v),
            _ => None,
        }
    }

    pub(crate) fn as_f32(&self) -> Option<f32> {
        match *self {
            Value::F32(v) => Some(v),
            Value::F64(v) => Some(v as f32),
            Value::U64(v) => Some(v as f32),
            _ => self.as_i64().map(|v| v as f32),
        }
    }
}

impl Array {
    /// The number in a file of the type of the elements.
    pub(crate) fn element_type_id(&self) -> u32 {
        match self {
            Array::U8(_) => id::U8,
            Array::I8(_) => id::I8,
            Array::U16(_) => id::U16,
            Array::I16(_) => id::I16,
            Array::U32(_) => id::U32,
            Array::I32(_) => id::I32,
            Array::F32(_) => id::F32,
            Array::Bool(_) => id::BOOL,
            Array::String(_) => id::STRING,
            Array::U64(_) => id::U64,
            Array::I64(_) => id::I64,
            Array::F64(_) => id::F64,
        }
    }

    /// Elements.
    pub fn len(&self) -> usize {
        match self {
            Array::U8(a) => a.len(),
            Array::I8(a) => a.len(),
            Array::U16(a) => a.len(),
            Array::I16(a) => a.len(),
            Array::U32(a) => a.len(),
            Array::I32(a) => a.len(),
            Array::F32(a) => a.len(),
            Array::Bool(a) => a.len(),
            Array::String(a) => a.len(),
            Array::U64(a) => a.len(),
            Array::I64(a) => a.len(),
            Array::F64(a) => a.len(),
        }
    }

    /// No elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Element `i` as a value.
    pub fn get(&self, i: usize) -> Option<Value> {
        Some(match self {
            Array::U8(a) => Value::U8(*a.get(i)?),
            Array::I8(a) => Value::I8(*a.get(i)?),
            Array::U16(a) => Value::U16(*a.get(i)?),
            Array::I16(a) => Value::I16(*a.get(i)?),
            Array::U32(a) => Value::U32(*a.get(i)?),
            Array::I32(a) => Value::I32(*a.get(i)?),
            Array::F32(a) => Value::F32(*a.get(i)?),
            Array::Bool(a) => Value::Bool(*a.get(i)?),
            Array::String(a) => Value::String(a.get(i)?.clone()),
            Array::U64(a) => Value::U64(*a.get(i)?),
            Array::I64(a) => Value::I64(*a.get(i)?),
            Array::F64(a) => Value::F64(*a.get(i)?),
        })
    }
}

macro_rules! value_from {
    ($($ty:ty => $variant:ident,)*) => {
        $(
            impl From<$ty> for Value {
                fn from(v: $ty) -> Self {
                    Value::$variant(v)
                }
            }
            impl From<Vec<$ty>> for Value {
                fn from(v: Vec<$ty>) -> Self {
                    Value::Array(Array::$variant(v))
                }
            }
        )*
    };
}

value_from! {
    u8 => U8, i8 => I8, u16 => U16, i16 => I16, u32 => U32, i32 => I32, f32 => F32, bool => Bool, String => String,
    u64 => U64, i64 => I64, f64 => F64,
}

impl From<&str> for Value {
    fn from(v: &str) -> Self {
        Value::String(v.to_string())
    }
}

/// A file's metadata, in the file's order. Keys are unique.
#[derive(Clone, Debug, Default)]
pub struct Metadata {
    entries: Vec<(String, Value)>,
    index: HashMap<String, usize>,
}

impl Metadata {
    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.index.get(key).map(|&i| &self.entries[i].1)
    }

    /// All entries, in the file's order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(k, v)| (k.as_str(), v))
    }

    /// Entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// No entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// An integer of any width that is not negative.
    pub fn u64(&self, key: &str) -> Option<u64> {
        self.get(key)?.as_u64()
    }

    /// A number of any type, rounded to single precision.
    pub fn f32(&self, key: &str) -> Option<f32> {
        self.get(key)?.as_f32()
    }

    /// A boolean.
    pub fn bool(&self, key: &str) -> Option<bool> {
        match self.get(key)? {
            Value::Bool(v) => Some(*v),
            _ => None,
        }
    }

    /// A string.
    pub fn str(&self, key: &str) -> Option<&str> {
        match self.get(key)? {
            Value::String(v) => Some(v),
            _ => None,
        }
    }

    /// An array of strings.
    pub fn strings(&self, key: &str) -> Option<&[String]> {
        match self.get(key)? {
            Value::Array(Array::String(v)) => Some(v),
            _ => None,
        }
    }

    /// An array of integers of any width; `None` too where one does not fit.
    pub fn i64s(&self, key: &str) -> Option<Vec<i64>> {
        self.numbers(key, Value::as_i64)
    }

    /// An array of numbers of any type, rounded to single precision.
    pub fn f32s(&self, key: &str) -> Option<Vec<f32>> {
        self.numbers(key, Value::as_f32)
    }

    fn numbers<T>(&self, key: &str, read: impl Fn(&Value) -> Option<T>) -> Option<Vec<T>> {
        match self.get(key)? {
            Value::Array(Array::String(_)) => None,
            Value::Array(array) => (0..array.len()).map(|i| array.get(i).as_ref().and_then(&read)).collect(),
            _ => None,
        }
    }

    /// Whether the key was new.
    pub(crate) fn insert(&mut self, key: String, value: Value) -> bool {
        if self.index.contains_key(&key) {
            return false;
        }
        self.index.insert(key.clone(), self.entries.len());
        self.entries.push((key, value));
        true
    }
}
