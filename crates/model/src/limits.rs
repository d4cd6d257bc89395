//! The largest values taken from a file: beyond them a model is refused, so that no product of two of them overflows
//! and no allocation is unbounded.

/// Transformer blocks.
pub const LAYERS: usize = 512;
/// Hidden and feed-forward width.
pub const WIDTH: usize = 1 << 20;
/// Query or KV heads.
pub const HEADS: usize = 1024;
/// Values per head.
pub const HEAD_DIM: usize = 1024;
/// Experts of a layer.
pub const EXPERTS: usize = 4096;
/// Experts that one token may use.
pub const EXPERTS_USED: usize = 256;
/// Tokens of the vocabulary.
pub const VOCABULARY: usize = 1 << 22;
/// Context length.
pub const CONTEXT: usize = 1 << 26;
