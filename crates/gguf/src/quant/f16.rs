//! F16: IEEE half precision.

/// Values in a block.
pub const LEN: usize = 1;
/// Bytes of a block.
pub const BYTES: usize = 2;

/// The value of a block.
pub fn decode(block: &[u8; BYTES], out: &mut [f32; LEN]) {
    out[0] = super::half_at(block, 0);
}

/// The block of a value: rounded to nearest, ties to even; beyond the range infinite.
pub fn encode(values: &[f32; LEN], block: &mut [u8; BYTES]) {
    super::put_half(block, 0, values[0]);
}
