//! Q5_0: `d * (q - 16)`. Layout: half `d`, 32 high bits, 16 bytes of low nibbles.

use super::{half_at, inverse, join_fives, put_half, split_fives};

/// Values in a block.
pub const LEN: usize = 32;
/// Bytes of a block.
pub const BYTES: usize = 22;

/// The scale `d`.
pub fn scale(block: &[u8; BYTES]) -> f32 {
    half_at(block, 0)
}

/// The integers `q - 16`, -16 to 15, in the order of values.
pub fn quants(block: &[u8; BYTES]) -> [i8; LEN] {
    let (_, packed) = block.split_last_chunk().unwrap_or((&[], &[0; 20]));
    split_fives(packed).map(|q| q as i8 - 16)
}

/// The values of a block.
pub fn decode(block: &[u8; BYTES], out: &mut [f32; LEN]) {
    let d = scale(block);
    *out = quants(block).map(|q| d * f32::from(q));
}

/// The block of finite values. The value of largest magnitude becomes -16 exactly, whatever its sign.
pub fn encode(values: &[f32; LEN], block: &mut [u8; BYTES]) {
    let mut extreme = 0f32;
    for &v in values {
        if v.abs() > extreme.abs() {
            extreme = v;
        }
    }
    let d = extreme / -16.0;
    let inverse = inverse(d);
    put_half(block, 0, d);
    join_fives(&values.map(|v| ((v * inverse + 16.5) as u8).min(31)), &mut block[2..]);
}
