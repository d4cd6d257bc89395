//! Q4_0: `d * (q - 8)`. Layout: half `d`, 16 bytes of nibbles.

use super::{half_at, inverse, join_nibbles, put_half, split_nibbles};

/// Values in a block.
pub const LEN: usize = 32;
/// Bytes of a block.
pub const BYTES: usize = 18;

/// The scale `d`.
pub fn scale(block: &[u8; BYTES]) -> f32 {
    half_at(block, 0)
}

/// The integers `q - 8`, -8 to 7, in the order of values.
pub fn quants(block: &[u8; BYTES]) -> [i8; LEN] {
    let (_, packed) = block.split_last_chunk().unwrap_or((&[], &[0; 16]));
    split_nibbles(packed).map(|q| q as i8 - 8)
}

/// The values of a block.
pub fn decode(block: &[u8; BYTES], out: &mut [f32; LEN]) {
    let d = scale(block);
    *out = quants(block).map(|q| d * f32::from(q));
}

/// The block of finite values. The value of largest magnitude becomes -8 exactly, whatever its sign.
pub fn encode(values: &[f32; LEN], block: &mut [u8; BYTES]) {
    let mut extreme = 0f32;
    for &v in values {
        if v.abs() > extreme.abs() {
            extreme = v;
        }
    }
    let d = extreme / -8.0;
    let inverse = inverse(d);
    put_half(block, 0, d);
    join_nibbles(&values.map(|v| ((v * inverse + 8.5) as u8).min(15)), &mut block[2..]);
}
