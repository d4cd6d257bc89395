//! Files put together by hand, so that any field can be wrong.

use tombolo_gguf::{Fault, Gguf, GgufError};

/// Value types as files number them.
pub(crate) const U32: u32 = 4;
pub(crate) const STRING: u32 = 8;
pub(crate) const ARRAY: u32 = 9;

/// A file's bytes, growing at the end.
#[derive(Clone, Default)]
pub(crate) struct Raw(pub(crate) Vec<u8>);

impl Raw {
    /// Magic, version 3, counts.
    pub(crate) fn new(tensors: u64, entries: u64) -> Self {
        Self::default().bytes(b"GGUF").u32(3).u64(tensors).u64(entries)
    }

    pub(crate) fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }

    pub(crate) fn u32(self, v: u32) -> Self {
        self.bytes(&v.to_le_bytes())
    }

    pub(crate) fn u64(self, v: u64) -> Self {
        self.bytes(&v.to_le_bytes())
    }

    pub(crate) fn string(self, text: &str) -> Self {
        self.u64(text.len() as u64).bytes(text.as_bytes())
    }

    /// A key and the type of the value that must follow.
    pub(crate) fn key(self, key: &str, ty: u32) -> Self {
        self.string(key).u32(ty)
    }

    /// A key, and the head of an array.
    pub(crate) fn array(self, key: &str, ty: u32, n: u64) -> Self {
        self.key(key, ARRAY).u32(ty).u64(n)
    }

    /// A tensor's description.
    pub(crate) fn tensor(self, name: &str, dims: &[u64], ty: u32, offset: u64) -> Self {
        let raw = self.string(name).u32(dims.len() as u32);
        dims.iter().fold(raw, |raw, &d| raw.u64(d)).u32(ty).u64(offset)
    }

    /// Up to a multiple of 32, then `n` bytes of data.
    pub(crate) fn data(mut self, n: usize) -> Self {
        self.0.resize(self.0.len().next_multiple_of(32) + n, 1);
        self
    }

    /// Zeros, so that counts fail for their own sake and not because the file ends.
    pub(crate) fn room(mut self, n: usize) -> Self {
        self.0.resize(self.0.len() + n, 0);
        self
    }

    pub(crate) fn read(&self) -> Result<Gguf, GgufError> {
        Gguf::from_bytes(self.0.clone())
    }

    /// The error, which must be there, and be one line without control characters.
    #[track_caller]
    pub(crate) fn error(&self) -> GgufError {
        let error = self.read().expect_err("a bad file was accepted");
        let line = error.to_string();
        assert!(!line.chars().any(char::is_control), "{line:?}");
        assert!(line.len() < 400, "{line}");
        error
    }

    /// The fault, which must be there.
    #[track_caller]
    pub(crate) fn fault(&self) -> Fault {
        self.error().fault
    }
}

/// Metadata of every type and three tensors; valid.
pub(crate) fn golden() -> Raw {
    let mut raw = Raw::new(3, 15).key("general.architecture", STRING).string("llama").key("general.alignment", U32);
    raw = raw.u32(32).key("u8", 0).bytes(&[200]).key("i8", 1).bytes(&[200]).key("u16", 2).bytes(&[1, 2]);
    raw = raw.key("i16", 3).bytes(&[255, 255]).key("i32", 5).u32(u32::MAX).key("f32", 6).bytes(&1.5f32.to_le_bytes());
    raw = raw.key("yes", 7).bytes(&[1]).key("u64", 10).u64(1 << 40).key("i64", 11).u64(u64::MAX);
    raw = raw.key("f64", 12).bytes(&2.5f64.to_le_bytes());
    raw = raw.array("tokens", STRING, 3).string("a").string("").string("ü");
    raw = raw.array("scores", 6, 2).bytes(&[0; 8]).array("flags", 7, 2).bytes(&[0, 1]);
    raw = raw.tensor("token_embd.weight", &[32, 2], 8, 0).tensor("norm", &[3], 0, 96);
    raw.tensor("blk.0.attn_k.weight", &[256, 1, 1], 12, 128).data(128 + 144)
}

/// One valid F32 tensor of 4 values is described, with metadata from `entries`.
pub(crate) fn one_tensor(name: &str, dims: &[u64], ty: u32, offset: u64) -> Raw {
    Raw::new(1, 0).tensor(name, dims, ty, offset).data(64)
}

/// Asserts a fault's variant.
macro_rules! assert_fault {
    ($raw:expr, $pattern:pat $(if $guard:expr)?) => {
        let fault = $raw.fault();
        assert!(matches!(&fault, $pattern $(if $guard)?), "{}: {fault:?}", stringify!($pattern));
    };
}
pub(crate) use assert_fault;
