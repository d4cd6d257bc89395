//! The file's head: magic, version, counts and metadata. Tensor descriptions are in [`crate::tensors`].

use crate::cursor::Cursor;
use crate::metadata::{Array, Metadata, Value, id};
use crate::{Fault, GgufError, limits};
use std::fmt::{self, Display};
use std::io::Read;

/// What the first bytes declare.
pub(crate) struct Preamble {
    pub(crate) version: u32,
    pub(crate) tensors: u64,
    pub(crate) entries: u64,
}

/// Reads magic, version and counts.
pub(crate) fn preamble<R: Read>(c: &mut Cursor<R>) -> Result<Preamble, GgufError> {
    magic(c)?;
    let version = c.u32("the version")?;
    if version != 0 && version & 0xffff == 0 {
        return Err(c.fail(Fault::BigEndian { version }));
    }
    if !(2..=3).contains(&version) {
        let hint = match version {
            1 => ": convert the model anew, version 1 was in use for days in August 2023",
            4.. => ": the file is newer than this program",
            _ => "",
        };
        return Err(c.fail(Fault::UnsupportedVersion { version, hint }));
    }
    let at = c.position();
    let tensors = c.u64("the number of tensors")?;
    let entries = c.u64("the number of metadata entries")?;
    count(c, at, "tensors", tensors, limits::TENSOR_INFO_BYTES_MIN, limits::TENSORS)?;
    count(c, at + 8, "metadata entries", entries, limits::ENTRY_BYTES_MIN, limits::ENTRIES)?;
    Ok(Preamble { version, tensors, entries })
}

/// Checks the magic, and where it is wrong says what the file seems to be instead.
fn magic<R: Read>(c: &mut Cursor<R>) -> Result<(), GgufError> {
    let shown = c.remaining().min(4);
    let found = c.bytes(shown, "the magic")?;
    if found == b"GGUF" {
        return Ok(());
    }
    if b"GGUF".starts_with(&found) {
        return c.require(4 - shown, "the magic");
    }
    let hint = match found.as_slice() {
        b"vers" => "; it looks like a Git LFS pointer: fetch the file itself with `git lfs pull`",
        b"<!DO" | b"<!do" | b"<htm" | b"<HTM" => {
            "; it looks like a web page: the download gave an error or log-in page"
        }
        [b'P', b'K', 3, 4] => "; it looks like a ZIP archive (PyTorch checkpoint?): convert the model to GGUF",
        [b'{', ..] => "; it looks like JSON: the model's GGUF file is wanted, not its description",
        b"FUGG" => "; a big-endian GGUF",
        b"ggml" | b"lmgg" | b"tjgg" | b"fmgg" | b"GGML" => "; it looks like an old GGML model: convert the model anew",
        [0x1f, 0x8b, ..] => "; it looks like gzip: decompress it first",
        [_, _, _, 0] => "; if it is a safetensors file, convert the model to GGUF",
        _ => "",
    };
    Err(c.fail(Fault::BadMagic { found, hint }))
}

/// That `count` things, of which each takes at least `bytes_min` bytes, can be in the rest of the file.
fn count<R: Read>(
    c: &Cursor<R>,
    at: u64,
    what: &'static str,
    count: u64,
    bytes_min: u64,
    limit: u64,
) -> Result<(), GgufError> {
    let remaining = c.remaining();
    let most = remaining / bytes_min;
    if count > most {
        return Err(c.fail_at(at, Fault::CountExceedsFile { what, count, most, remaining }));
    }
    if count > limit {
        return Err(c.fail_at(at, Fault::TooMany { what, count, limit }));
    }
    Ok(())
}

/// Reads `entries` metadata entries; gives also the keys of texts that are not UTF-8 and that nothing depends on.
pub(crate) fn metadata<R: Read>(c: &mut Cursor<R>, entries: u64) -> Result<(Metadata, Vec<String>), GgufError> {
    let mut metadata = Metadata::default();
    let mut not_utf8 = Vec::new();
    let mut used = 0;
    for entry in 0..entries {
        let at = c.position();
        let key = key(c, entry)?;
        charge(c, &mut used, &key, key.len() as u64, 2)?;
        let ty = c.u32(InKey(&key))?;
        let mut reader = Reader { c, used: &mut used, key: &key, lossy: false };
        let value = reader.value(ty)?;
        if reader.lossy {
            not_utf8.push(key.clone());
        }
        if key == limits::ALIGNMENT_KEY {
            alignment(c, &value)?;
        }
        if metadata.get(&key).is_some() {
            return Err(c.fail_at(at, Fault::DuplicateKey { key }));
        }
        metadata.insert(key, value);
    }
    Ok((metadata, not_utf8))
}

/// Checks the alignment, while errors can still point at it.
fn alignment<R: Read>(c: &Cursor<R>, value: &Value) -> Result<(), GgufError> {
    let found = match value {
        Value::U32(a) if limits::is_alignment(*a) => return Ok(()),
        Value::U32(a) => a.to_string(),
        other => format!("of value type {}", other.type_id()),
    };
    Err(c.fail(Fault::BadAlignment { found, limit: limits::ALIGNMENT }))
}

fn key<R: Read>(c: &mut Cursor<R>, entry: u64) -> Result<String, GgufError> {
    let length = c.u64(InEntry(entry))?;
    match length {
        0 => return Err(c.fail(Fault::EmptyKey { entry })),
        _ if length > limits::KEY_BYTES => {
            return Err(c.fail(Fault::KeyTooLong { entry, length, limit: limits::KEY_BYTES }));
        }
        _ => {}
    }
    let bytes = c.bytes(length, InEntry(entry))?;
    name(bytes).map_err(|(key, why)| c.fail(Fault::BadKey { entry, key, why }))
}

/// A key or a tensor's name: text without control characters. In error the text, shortened, and what it has or is.
pub(crate) fn name(bytes: Vec<u8>) -> Result<String, (String, &'static str)> {
    const SHOWN: usize = 80;
    let shown = |text: &str| text.chars().take(SHOWN).collect::<String>();
    match String::from_utf8(bytes) {
        Ok(text) if text.chars().any(char::is_control) => Err((shown(&text), "has control characters")),
        Ok(text) => Ok(text),
        Err(bad) => Err((shown(&String::from_utf8_lossy(bad.as_bytes())), "is not UTF-8")),
    }
}

/// Adds `count * size` bytes to what the metadata occupy.
fn charge<R: Read>(c: &Cursor<R>, used: &mut u64, key: &str, count: u64, size: usize) -> Result<(), GgufError> {
    let wanted = count.saturating_mul(size as u64).saturating_add(*used);
    if wanted > limits::METADATA_BYTES {
        return Err(c.fail(Fault::MetadataBudget { key: key.to_string(), wanted, limit: limits::METADATA_BYTES }));
    }
    *used = wanted;
    Ok(())
}

/// Reads one entry's value.
struct Reader<'a, R> {
    c: &'a mut Cursor<R>,
    used: &'a mut u64,
    key: &'a str,
    /// A string was not UTF-8, and has replacement characters now.
    lossy: bool,
}

impl<R: Read> Reader<'_, R> {
    fn value(&mut self, ty: u32) -> Result<Value, GgufError> {
        Ok(match ty {
            id::U8 => Value::U8(u8::from_le_bytes(self.c.array(InKey(self.key))?)),
            id::I8 => Value::I8(i8::from_le_bytes(self.c.array(InKey(self.key))?)),
            id::U16 => Value::U16(u16::from_le_bytes(self.c.array(InKey(self.key))?)),
            id::I16 => Value::I16(i16::from_le_bytes(self.c.array(InKey(self.key))?)),
            id::U32 => Value::U32(u32::from_le_bytes(self.c.array(InKey(self.key))?)),
            id::I32 => Value::I32(i32::from_le_bytes(self.c.array(InKey(self.key))?)),
            id::F32 => Value::F32(f32::from_le_bytes(self.c.array(InKey(self.key))?)),
            id::BOOL => Value::Bool(self.bool()?),
            id::STRING => Value::String(self.string()?),
            id::ARRAY => Value::Array(self.array()?),
            id::U64 => Value::U64(u64::from_le_bytes(self.c.array(InKey(self.key))?)),
            id::I64 => Value::I64(i64::from_le_bytes(self.c.array(InKey(self.key))?)),
            id::F64 => Value::F64(f64::from_le_bytes(self.c.array(InKey(self.key))?)),
            _ => return Err(self.bad_type(ty)),
        })
    }

    fn array(&mut self) -> Result<Array, GgufError> {
        let ty = self.c.u32(InKey(self.key))?;
        match ty {
            id::ARRAY => return Err(self.c.fail(Fault::NestedArray { key: self.key.to_string() })),
            id::U8..=id::F64 => {}
            _ => return Err(self.bad_type(ty)),
        }
        let n = self.c.u64(InKey(self.key))?;
        Ok(match ty {
            id::U8 => {
                self.c.require(n, InKey(self.key))?;
                charge(self.c, self.used, self.key, n, 1)?;
                Array::U8(self.c.bytes(n, InKey(self.key))?)
            }
            id::I8 => Array::I8(self.numbers(n, i8::from_le_bytes)?),
            id::U16 => Array::U16(self.numbers(n, u16::from_le_bytes)?),
            id::I16 => Array::I16(self.numbers(n, i16::from_le_bytes)?),
            id::U32 => Array::U32(self.numbers(n, u32::from_le_bytes)?),
            id::I32 => Array::I32(self.numbers(n, i32::from_le_bytes)?),
            id::F32 => Array::F32(self.numbers(n, f32::from_le_bytes)?),
            id::BOOL => Array::Bool(self.elements(n, 1, Self::bool)?),
            // A string takes at least its length in the file.
            id::STRING => Array::String(self.elements(n, 8, Self::string)?),
            id::U64 => Array::U64(self.numbers(n, u64::from_le_bytes)?),
            id::I64 => Array::I64(self.numbers(n, i64::from_le_bytes)?),
            id::F64 => Array::F64(self.numbers(n, f64::from_le_bytes)?),
            _ => return Err(self.bad_type(ty)),
        })
    }

    fn numbers<const N: usize, T>(&mut self, n: u64, from_le: fn([u8; N]) -> T) -> Result<Vec<T>, GgufError> {
        self.elements(n, N as u64, |r| Ok(from_le(r.c.array(InKey(r.key))?)))
    }

    /// `n` elements, each at least `bytes_min` bytes long in the file.
    fn elements<T>(
        &mut self,
        n: u64,
        bytes_min: u64,
        read: impl Fn(&mut Self) -> Result<T, GgufError>,
    ) -> Result<Vec<T>, GgufError> {
        self.c.require(n.saturating_mul(bytes_min), InKey(self.key))?;
        charge(self.c, self.used, self.key, n, size_of::<T>())?;
        let mut elements = Vec::with_capacity(n as usize);
        for _ in 0..n {
            elements.push(read(self)?);
        }
        Ok(elements)
    }

    fn bool(&mut self) -> Result<bool, GgufError> {
        match self.c.array(InKey(self.key))? {
            [0] => Ok(false),
            [1] => Ok(true),
            [value] => Err(self.c.fail(Fault::BadBool { key: self.key.to_string(), value })),
        }
    }

    fn string(&mut self) -> Result<String, GgufError> {
        let length = self.c.u64(InKey(self.key))?;
        self.c.require(length, InKey(self.key))?;
        charge(self.c, self.used, self.key, length, 1)?;
        let bytes = self.c.bytes(length, InKey(self.key))?;
        String::from_utf8(bytes).or_else(|bad| self.repaired(&bad))
    }

    /// A string that is not UTF-8, with replacement characters. Descriptions and licences may be so; what decides how a
    /// model runs may not.
    fn repaired(&mut self, bad: &std::string::FromUtf8Error) -> Result<String, GgufError> {
        if self.key == "general.architecture" || self.key.starts_with("tokenizer.") {
            return Err(self.c.fail(Fault::BadUtf8 { key: self.key.to_string() }));
        }
        self.lossy = true;
        let text = String::from_utf8_lossy(bad.as_bytes()).into_owned();
        // A replacement character is up to three times as long as what it stands for.
        charge(self.c, self.used, self.key, (text.len() - bad.as_bytes().len()) as u64, 1)?;
        Ok(text)
    }

    fn bad_type(&self, ty: u32) -> GgufError {
        self.c.fail(Fault::BadValueType { key: self.key.to_string(), ty })
    }
}

/// Names a place only when an error needs it.
struct InKey<'a>(&'a str);

impl Display for InKey<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the value of key {:?}", self.0)
    }
}

struct InEntry(u64);

impl Display for InEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the key of metadata entry {}", self.0)
    }
}
