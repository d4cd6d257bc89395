//! BF16: the upper half of a single.

/// Values in a block.
pub const LEN: usize = 1;
/// Bytes of a block.
pub const BYTES: usize = 2;

/// The value of a block.
pub fn decode(block: &[u8; BYTES], out: &mut [f32; LEN]) {
    out[0] = f32::from_bits(u32::from(u16::from_le_bytes(*block)) << 16);
}

/// The block of a value: rounded to nearest, ties to even; NaN stays NaN.
pub fn encode(values: &[f32; LEN], block: &mut [u8; BYTES]) {
    let bits = values[0].to_bits();
    let upper = if values[0].is_nan() {
        // Without the quiet bit a NaN whose payload is all in the lower half would become infinite.
        (bits >> 16) | 0x40
    } else {
        (bits + 0x7fff + (bits >> 16 & 1)) >> 16
    };
    *block = (upper as u16).to_le_bytes();
}
