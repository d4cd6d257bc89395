//! Writes GGUF files as a stream: header first, then every tensor's bytes in the order they were declared in.

use crate::metadata::{Array, Value, id};
use crate::tensors::data_bytes;
use crate::{TensorType, WriteError, limits};
use std::collections::HashSet;
use std::io::Write;

/// The version that is written.
const VERSION: u32 = 3;

/// A file being written. `metadata` and `tensor` in any order, `finish_header`, `data` until all tensors are full,
/// `finish`. Nothing of the data is kept in memory. What the reader would refuse is refused here too.
pub struct Writer<W> {
    inner: W,
    entries: Vec<u8>,
    entry_count: u64,
    infos: Vec<u8>,
    names: HashSet<(bool, String)>,
    alignment: u64,
    declared: Vec<Declared>,
    /// The tensor that data go to now.
    current: usize,
    /// Bytes that it still takes.
    left: u64,
    in_data: bool,
}

struct Declared {
    name: String,
    dims: Vec<u64>,
    ty: TensorType,
    bytes: u64,
}

impl<W: Write> Writer<W> {
    /// Starts a file. Nothing is written before `finish_header`.
    pub fn new(inner: W) -> Self {
        Self {
            inner,
            entries: Vec::new(),
            entry_count: 0,
            infos: Vec::new(),
            names: HashSet::new(),
            alignment: limits::DEFAULT_ALIGNMENT,
            declared: Vec::new(),
            current: 0,
            left: 0,
            in_data: false,
        }
    }

    /// Adds a metadata entry. `general.alignment` (a `u32`) takes effect.
    ///
    /// # Errors
    /// A key that is empty, too long, not plain text or taken; a bad alignment; header already finished.
    pub fn metadata(&mut self, key: &str, value: impl Into<Value>) -> Result<&mut Self, WriteError> {
        let value = value.into();
        let alignment = match value {
            _ if key != limits::ALIGNMENT_KEY => self.alignment,
            Value::U32(a) if limits::is_alignment(a) => u64::from(a),
            _ => return Err(bad("key", key, "must be a u32 power of two")),
        };
        self.claim("key", key, limits::KEY_BYTES)?;
        self.alignment = alignment;
        string(&mut self.entries, key);
        self.entries.extend(value.type_id().to_le_bytes());
        put_value(&mut self.entries, &value);
        self.entry_count += 1;
        Ok(self)
    }

    /// Declares a tensor of lengths `dims`, the contiguous dimension first.
    ///
    /// # Errors
    /// A name that is empty, too long, not plain text or taken; a shape that the type cannot have; header finished.
    pub fn tensor(&mut self, name: &str, dims: &[u64], ty: TensorType) -> Result<&mut Self, WriteError> {
        let fits = (1..=limits::DIMS as usize).contains(&dims.len()) && !dims.contains(&0);
        let bytes = data_bytes(dims, ty).ok().filter(|_| fits);
        let bytes = bytes.ok_or_else(|| WriteError::BadShape { tensor: name.into(), ty, dims: dims.into() })?;
        self.claim("tensor", name, limits::TENSOR_NAME_BYTES)?;
        self.declared.push(Declared { name: name.into(), dims: dims.into(), ty, bytes });
        Ok(self)
    }

    fn claim(&mut self, what: &'static str, name: &str, limit: u64) -> Result<(), WriteError> {
        if self.in_data {
            return Err(WriteError::OutOfOrder);
        }
        if name.is_empty() || name.len() as u64 > limit || name.chars().any(char::is_control) {
            return Err(bad(what, name, "is empty, too long or has control characters"));
        }
        if !self.names.insert((what == "tensor", name.to_string())) {
            return Err(bad(what, name, "is taken"));
        }
        Ok(())
    }

    /// Writes the header; data follow.
    ///
    /// # Errors
    /// The header is finished already; writing fails.
    pub fn finish_header(&mut self) -> Result<&mut Self, WriteError> {
        if self.in_data {
            return Err(WriteError::OutOfOrder);
        }
        let mut offset = 0u64;
        for t in &self.declared {
            string(&mut self.infos, &t.name);
            self.infos.extend((t.dims.len() as u32).to_le_bytes());
            t.dims.iter().for_each(|d| self.infos.extend(d.to_le_bytes()));
            self.infos.extend(t.ty.id().to_le_bytes());
            self.infos.extend(offset.to_le_bytes());
            let next = offset.checked_add(t.bytes).and_then(|end| end.checked_next_multiple_of(self.alignment));
            offset = next.ok_or_else(|| bad("tensor", &t.name, "makes the file too large"))?;
        }
        let mut head = Vec::with_capacity(24 + self.entries.len() + self.infos.len());
        head.extend(b"GGUF");
        head.extend(VERSION.to_le_bytes());
        head.extend((self.declared.len() as u64).to_le_bytes());
        head.extend(self.entry_count.to_le_bytes());
        head.append(&mut self.entries);
        head.append(&mut self.infos);
        if !self.declared.is_empty() {
            head.resize(head.len().next_multiple_of(self.alignment as usize), 0);
        }
        self.inner.write_all(&head)?;
        self.in_data = true;
        self.left = self.declared.first().map_or(0, |t| t.bytes);
        Ok(self)
    }

    /// Ends the file before its weights, for [`Gguf::from_header`](crate::Gguf::from_header).
    ///
    /// # Errors
    /// The header is finished already; writing fails.
    pub fn header(mut self) -> Result<W, WriteError> {
        self.finish_header()?;
        self.inner.flush()?;
        Ok(self.inner)
    }

    /// Writes the next bytes of the current tensor: all of it, or a part. Padding between tensors comes by itself.
    ///
    /// # Errors
    /// More bytes than the tensor has left; the header is not finished; writing fails.
    pub fn data(&mut self, bytes: &[u8]) -> Result<&mut Self, WriteError> {
        if !self.in_data {
            return Err(WriteError::OutOfOrder);
        }
        let got = bytes.len() as u64;
        if got > self.left {
            let tensor = self.declared.get(self.current).map_or(String::new(), |t| t.name.clone());
            return Err(WriteError::TooMuchData { tensor, got, left: self.left });
        }
        self.inner.write_all(bytes)?;
        self.left -= got;
        if self.left == 0 && self.current < self.declared.len() {
            let size = self.declared[self.current].bytes;
            let padding = size.next_multiple_of(self.alignment) - size;
            self.inner.write_all(&vec![0; padding as usize])?;
            self.current += 1;
            self.left = self.declared.get(self.current).map_or(0, |t| t.bytes);
        }
        Ok(self)
    }

    /// Flushes, and gives back what was written to.
    ///
    /// # Errors
    /// Data are missing; flushing fails.
    pub fn finish(mut self) -> Result<W, WriteError> {
        if !self.in_data {
            return Err(WriteError::OutOfOrder);
        }
        if let Some(t) = self.declared.get(self.current) {
            return Err(WriteError::TooLittleData { tensor: t.name.clone(), left: self.left });
        }
        self.inner.flush()?;
        Ok(self.inner)
    }
}

fn bad(what: &'static str, name: &str, why: &'static str) -> WriteError {
    WriteError::Bad { what, name: name.into(), why }
}

fn string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn put_value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::U8(v) => out.extend(v.to_le_bytes()),
        Value::I8(v) => out.extend(v.to_le_bytes()),
        Value::U16(v) => out.extend(v.to_le_bytes()),
        Value::I16(v) => out.extend(v.to_le_bytes()),
        Value::U32(v) => out.extend(v.to_le_bytes()),
        Value::I32(v) => out.extend(v.to_le_bytes()),
        Value::F32(v) => out.extend(v.to_le_bytes()),
        Value::Bool(v) => out.push(u8::from(*v)),
        Value::String(v) => string(out, v),
        Value::Array(v) => put_array(out, v),
        Value::U64(v) => out.extend(v.to_le_bytes()),
        Value::I64(v) => out.extend(v.to_le_bytes()),
        Value::F64(v) => out.extend(v.to_le_bytes()),
    }
}

fn put_array(out: &mut Vec<u8>, array: &Array) {
    debug_assert_ne!(array.element_type_id(), id::ARRAY);
    out.extend(array.element_type_id().to_le_bytes());
    out.extend((array.len() as u64).to_le_bytes());
    match array {
        Array::U8(a) => out.extend(a),
        Array::I8(a) => a.iter().for_each(|v| out.extend(v.to_le_bytes())),
        Array::U16(a) => a.iter().for_each(|v| out.extend(v.to_le_bytes())),
        Array::I16(a) => a.iter().for_each(|v| out.extend(v.to_le_bytes())),
        Array::U32(a) => a.iter().for_each(|v| out.extend(v.to_le_bytes())),
        Array::I32(a) => a.iter().for_each(|v| out.extend(v.to_le_bytes())),
        Array::F32(a) => a.iter().for_each(|v| out.extend(v.to_le_bytes())),
        Array::Bool(a) => a.iter().for_each(|&v| out.push(u8::from(v))),
        Array::String(a) => a.iter().for_each(|v| string(out, v)),
        Array::U64(a) => a.iter().for_each(|v| out.extend(v.to_le_bytes())),
        Array::I64(a) => a.iter().for_each(|v| out.extend(v.to_le_bytes())),
        Array::F64(a) => a.iter().for_each(|v| out.extend(v.to_le_bytes())),
    }
}
