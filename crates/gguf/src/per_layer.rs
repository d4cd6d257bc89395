//! Values that a file gives once for all layers, or once for each: a scalar or an array under the same key.

use crate::metadata::{Array, Metadata, Value};

/// Why a key's value cannot be read as what was asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum ValueError {
    #[error("key {key:?} is {found}; {wanted} is wanted, one or one per layer")]
    Type { key: String, wanted: &'static str, found: String },
    #[error("key {key:?} has {found} values; the model has {layers} layers")]
    Layers { key: String, found: usize, layers: usize },
}

impl Metadata {
    /// A whole number for each of `layers` layers: a scalar is repeated, an array must have that many elements.
    /// `None` where the key is absent.
    ///
    /// # Errors
    /// Another type, a negative number, or an array of another length.
    pub fn u64_per_layer(&self, key: &str, layers: usize) -> Result<Option<Vec<u64>>, ValueError> {
        self.per_layer(key, layers, "a whole number", Value::as_u64)
    }

    /// A number for each layer, rounded to single precision; see [`Metadata::u64_per_layer`].
    ///
    /// # Errors
    /// Another type, or an array of another length.
    pub fn f32_per_layer(&self, key: &str, layers: usize) -> Result<Option<Vec<f32>>, ValueError> {
        self.per_layer(key, layers, "a number", Value::as_f32)
    }

    /// A boolean for each layer, which a file may also give as 0 and 1; see [`Metadata::u64_per_layer`].
    ///
    /// # Errors
    /// Another type or value, or an array of another length.
    pub fn bool_per_layer(&self, key: &str, layers: usize) -> Result<Option<Vec<bool>>, ValueError> {
        self.per_layer(key, layers, "a boolean", |value| match value {
            Value::Bool(v) => Some(*v),
            other => match other.as_u64()? {
                0 => Some(false),
                1 => Some(true),
                _ => None,
            },
        })
    }

    fn per_layer<T: Clone>(
        &self,
        key: &str,
        layers: usize,
        wanted: &'static str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<Vec<T>>, ValueError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let wrong = |found: String| ValueError::Type { key: key.to_string(), wanted, found };
        let Value::Array(array) = value else {
            let one = read(value).ok_or_else(|| wrong(value.describe()))?;
            return Ok(Some(vec![one; layers]));
        };
        if array.len() != layers {
            return Err(ValueError::Layers { key: key.to_string(), found: array.len(), layers });
        }
        let one = |i: usize| array.get(i).as_ref().and_then(&read).ok_or_else(|| wrong(array.describe(i)));
        (0..layers).map(one).collect::<Result<Vec<T>, _>>().map(Some)
    }
}

impl Value {
    /// What it is, in words; texts are not shown, they may be long.
    fn describe(&self) -> String {
        match self {
            Value::U8(v) => v.to_string(),
            Value::I8(v) => v.to_string(),
            Value::U16(v) => v.to_string(),
            Value::I16(v) => v.to_string(),
            Value::U32(v) => v.to_string(),
            Value::I32(v) => v.to_string(),
            Value::U64(v) => v.to_string(),
            Value::I64(v) => v.to_string(),
            Value::F32(v) => v.to_string(),
            Value::F64(v) => v.to_string(),
            Value::Bool(v) => v.to_string(),
            Value::String(_) => "a string".into(),
            Value::Array(_) => "an array".into(),
        }
    }
}

impl Array {
    fn describe(&self, i: usize) -> String {
        let element = self.get(i).map_or_else(String::new, |v| v.describe());
        format!("an array with {element} at {i}")
    }
}
