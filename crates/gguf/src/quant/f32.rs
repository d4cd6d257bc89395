//! F32: the values as they are.

/// Values in a block.
pub const LEN: usize = 1;
/// Bytes of a block.
pub const BYTES: usize = 4;

/// The value of a block.
pub fn decode(block: &[u8; BYTES], out: &mut [f32; LEN]) {
    out[0] = f32::from_le_bytes(*block);
}

/// The block of a value.
pub fn encode(values: &[f32; LEN], block: &mut [u8; BYTES]) {
    *block = values[0].to_le_bytes();
}
