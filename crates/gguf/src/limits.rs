//! What a file may ask for at most. A declared number beyond these is refused before memory is taken for it.

/// Metadata entries in a file; real ones have under a hundred.
pub const ENTRIES: u64 = 1 << 16;
/// Tensors in a file; the largest known models have a few thousand.
pub const TENSORS: u64 = 1 << 16;
/// Bytes of a metadata key (the format's own limit).
pub const KEY_BYTES: u64 = (1 << 16) - 1;
/// Bytes of a tensor's name; the reference implementation keeps 64 with a terminator.
pub const TENSOR_NAME_BYTES: u64 = 63;
/// Files of a split set; the largest known have a few hundred.
pub const SHARDS: u64 = 4096;
/// Entries of a directory that are looked through for a model.
pub const DIRECTORY_ENTRIES: u64 = 1 << 16;
/// Dimensions of a tensor.
pub const DIMS: u32 = 4;
/// Memory that all metadata of a file may take, in bytes, counting what the values occupy once read.
pub const METADATA_BYTES: u64 = 64 << 20;
/// Largest `general.alignment`, in bytes.
pub const ALIGNMENT: u64 = 1 << 20;
/// Alignment where the file does not say, in bytes.
pub const DEFAULT_ALIGNMENT: u64 = 32;
/// Fewest bytes that a metadata entry takes in a file: a key of one byte, a value of one byte.
pub(crate) const ENTRY_BYTES_MIN: u64 = 8 + 1 + 4 + 1;
/// Fewest bytes that a tensor's description takes in a file: a name of one byte, one dimension.
pub(crate) const TENSOR_INFO_BYTES_MIN: u64 = 8 + 1 + 4 + 8 + 4 + 8;
/// The metadata key that sets the alignment.
pub(crate) const ALIGNMENT_KEY: &str = "general.alignment";

/// Whether tensors can be aligned to that many bytes.
pub(crate) fn is_alignment(bytes: u32) -> bool {
    bytes.is_power_of_two() && u64::from(bytes) <= ALIGNMENT
}
/// Which shard of a split set a file is, from 0.
pub(crate) const SPLIT_NUMBER_KEY: &str = "split.no";
/// How many shards the set has.
pub(crate) const SPLIT_COUNT_KEY: &str = "split.count";
/// How many tensors all shards have together.
pub(crate) const SPLIT_TENSORS_KEY: &str = "split.tensors.count";
