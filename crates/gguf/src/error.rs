//! What can be wrong with a file, as data, and as one line for people.

use crate::TensorType;
use std::path::{Path, PathBuf};

/// A file that cannot be used: which, where in it, and why.
#[derive(Debug)]
pub struct GgufError {
    /// The file; `None` for bytes in memory.
    pub path: Option<PathBuf>,
    /// Position of the offending field, in bytes from the start.
    pub offset: u64,
    /// What is wrong.
    pub fault: Fault,
}

impl std::fmt::Display for GgufError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write_path(f, self.path.as_deref())?;
        if self.fault.has_place() {
            write!(f, ", byte {}", self.offset)?;
        }
        write!(f, ": {}", self.fault)
    }
}

/// A file's name on one line.
pub(crate) fn write_path(f: &mut std::fmt::Formatter<'_>, path: Option<&Path>) -> std::fmt::Result {
    match path {
        // A path may hold a line feed or an escape sequence.
        Some(path) => write!(f, "{}", path.display().to_string().escape_debug()),
        None => f.write_str("GGUF in memory"),
    }
}

impl std::error::Error for GgufError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.fault {
            Fault::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// What is wrong with a file. Names from the file are shown quoted and escaped.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum Fault {
    #[error("cannot {what}: {source}")]
    Io { what: &'static str, source: std::io::Error },
    #[error("{found}, not a file")]
    NotAFile { found: &'static str },
    #[error("not a GGUF file: starts with \"{}\"{hint}", found.escape_ascii())]
    BadMagic { found: Vec<u8>, hint: &'static str },
    #[error("a big-endian GGUF (version field {version:#010x}); only little-endian files can be read")]
    BigEndian { version: u32 },
    #[error("GGUF version {version}; versions 2 and 3 can be read{hint}")]
    UnsupportedVersion { version: u32, hint: &'static str },
    #[error("truncated in {place}: {needed} bytes declared, {remaining} left in the file (download incomplete?)")]
    Truncated { place: String, needed: u64, remaining: u64 },
    #[error("declares {count} {what}; the {remaining} bytes left can hold at most {most}")]
    CountExceedsFile { what: &'static str, count: u64, most: u64, remaining: u64 },
    #[error("declares {count} {what}; the limit is {limit}")]
    TooMany { what: &'static str, count: u64, limit: u64 },
    #[error("metadata entry {entry} has a key of {length} bytes; the limit is {limit}")]
    KeyTooLong { entry: u64, length: u64, limit: u64 },
    #[error("metadata entry {entry} has an empty key")]
    EmptyKey { entry: u64 },
    #[error("metadata entry {entry} has the key {key:?}, which {why}")]
    BadKey { entry: u64, key: String, why: &'static str },
    #[error("key {key:?} occurs twice")]
    DuplicateKey { key: String },
    #[error("key {key:?} has the value type {ty}; types 0 to 12 exist")]
    BadValueType { key: String, ty: u32 },
    #[error("key {key:?} is an array of arrays, which no model uses")]
    NestedArray { key: String },
    #[error("key {key:?} has the boolean {value}; 0 and 1 exist")]
    BadBool { key: String, value: u8 },
    #[error("key {key:?} has a string that is not UTF-8")]
    BadUtf8 { key: String },
    #[error("key {key:?} brings the metadata to {wanted} bytes of memory; the limit is {limit}")]
    MetadataBudget { key: String, wanted: u64, limit: u64 },
    #[error("general.alignment is {found}; it must be a power of two, a u32, and at most {limit}")]
    BadAlignment { found: String, limit: u64 },
    #[error("tensor {index} has a name of {length} bytes; the limit is {limit}")]
    TensorNameTooLong { index: u64, length: u64, limit: u64 },
    #[error("tensor {index} has the name {name:?}, which {why}")]
    BadTensorName { index: u64, name: String, why: &'static str },
    #[error("tensor {tensor:?} occurs twice")]
    DuplicateTensor { tensor: String },
    #[error("tensor {tensor:?} has {dims} dimensions; 1 to {limit} can be")]
    BadDimCount { tensor: String, dims: u32, limit: u32 },
    #[error("tensor {tensor:?} has length 0 in dimension {axis}")]
    ZeroDim { tensor: String, axis: usize },
    #[error("tensor {tensor:?} has length {value} in dimension {axis}; the limit is {}", i64::MAX)]
    BadDim { tensor: String, axis: usize, value: u64 },
    #[error("tensor {tensor:?} has the shape {dims:?}: more values or bytes than 2^63")]
    ShapeOverflow { tensor: String, dims: Vec<u64> },
    #[error("tensor {tensor:?} has rows of {cols} values, no multiple of the {block} in a block of {ty}")]
    BadBlock { tensor: String, cols: u64, block: usize, ty: TensorType },
    #[error("tensor {tensor:?} has type {id}, which the format dropped; convert the model anew")]
    RemovedType { tensor: String, id: u32 },
    #[error("tensor {tensor:?} has the unknown type {id}")]
    UnknownType { tensor: String, id: u32 },
    #[error("tensor {tensor:?} is at offset {data_offset}, no multiple of the alignment {alignment}")]
    UnalignedOffset { tensor: String, data_offset: u64, alignment: u64 },
    #[error(
        "tensor {tensor:?} ends {missing} bytes past the end of the file of {file_bytes} bytes (download incomplete?)"
    )]
    PastEnd { tensor: String, missing: u64, file_bytes: u64 },
    #[error("tensors {first:?} and {second:?} overlap by {bytes} bytes")]
    Overlap { first: String, second: String, bytes: u64 },
    #[error("has no GGUF file in it{hint}")]
    NoModel { hint: &'static str },
    #[error("has {count} models in it ({}{}); name one of them", escaped(names), if *count > names.len() { ", …" } else { "" })]
    ManyModels { count: usize, names: Vec<String> },
    #[error("shard {} of {count} {} missing", listed(missing), if missing.len() == 1 { "is" } else { "are" })]
    MissingShards { missing: Vec<u64>, count: u64 },
    #[error(
        "is shard {number} of {count} and not named so; it must end in \"-{number:05}-of-{count:05}.gguf\" for the others \
         to be found"
    )]
    ShardName { number: u64, count: u64 },
    #[error("is one of {expected} shards by its name or its siblings, one of {declared} by its split.count")]
    ShardCount { expected: u64, declared: u64 },
    #[error("is shard {expected} by its name or its place, shard {declared} by its split.no")]
    ShardNumber { expected: u64, declared: u64 },
    #[error("key {key:?} {why}")]
    ShardKey { key: &'static str, why: &'static str },
    #[error("is no shard of this model: {key:?} is {found:?} here and {expected:?} in the first shard")]
    ForeignShard { key: &'static str, found: String, expected: String },
    #[error("tensor {tensor:?} is in shard {first} too; is one of the two from another model?")]
    TensorInTwoShards { tensor: String, first: u64 },
    #[error("the shards have {found} tensors, split.tensors.count says {declared}; is one of them from another model?")]
    ShardTensors { declared: u64, found: u64 },
    #[error(
        "another file starts here: shards cannot be joined by putting them together; keep them apart, any one opens all"
    )]
    JoinedShards,
    #[error("changed while it was in use: {was} bytes long when it was opened, {is} now, or written to")]
    Changed { was: u64, is: u64 },
}

impl Fault {
    /// Whether it is at one place in the file.
    fn has_place(&self) -> bool {
        !matches!(
            self,
            Fault::Io { .. }
                | Fault::NotAFile { .. }
                | Fault::NoModel { .. }
                | Fault::ManyModels { .. }
                | Fault::MissingShards { .. }
                | Fault::ShardName { .. }
                | Fault::ShardCount { .. }
                | Fault::ShardNumber { .. }
                | Fault::ShardKey { .. }
                | Fault::ForeignShard { .. }
                | Fault::ShardTensors { .. }
                | Fault::Changed { .. }
        )
    }
}

/// Names, fit for one line.
fn escaped(names: &[String]) -> String {
    names.iter().map(|n| n.escape_debug().to_string()).collect::<Vec<_>>().join(", ")
}

/// The first few numbers of a list.
fn listed(numbers: &[u64]) -> String {
    const SHOWN: usize = 8;
    let shown: Vec<String> = numbers.iter().take(SHOWN).map(u64::to_string).collect();
    let rest = numbers.len().saturating_sub(SHOWN);
    if rest > 0 { format!("{} and {rest} more", shown.join(", ")) } else { shown.join(", ") }
}

/// Why a file cannot be written. All but `Io` are faults of the caller.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum WriteError {
    #[error("cannot write: {0}")]
    Io(#[from] std::io::Error),
    #[error("{what} {name:?} {why}")]
    Bad { what: &'static str, name: String, why: &'static str },
    #[error("tensor {tensor:?} of type {ty} cannot have the shape {dims:?}")]
    BadShape { tensor: String, ty: TensorType, dims: Vec<u64> },
    #[error("metadata and tensors come before finish_header, data after")]
    OutOfOrder,
    #[error("{got} bytes of data for {tensor:?}, which takes {left} more")]
    TooMuchData { tensor: String, got: u64, left: u64 },
    #[error("finished with {left} bytes of {tensor:?} missing")]
    TooLittleData { tensor: String, left: u64 },
}
