//! Q5_1: `d * q + m`. Layout: half `d`, half `m`, 32 high bits, 16 bytes of low nibbles.

use super::{half_at, inverse, join_fives, put_half, split_fives};

/// Values in a block.
pub const LEN: usize = 32;
/// Bytes of a block.
pub const BYTES: usize = 24;

/// The scale `d` and the minimum `m`.
pub fn scale_min(block: &[u8; BYTES]) -> (f32, f32) {
    (half_at(block, 0), half_at(block, 2))
}

/// The integers `q`, 0 to 31, in the order of values.
pub fn quants(block: &[u8; BYTES]) -> [u8; LEN] {
    let (_, packed) = block.split_last_chunk().unwrap_or((&[], &[0; 20]));
    split_fives(packed)
}

/// The values of a block.
pub fn decode(block: &[u8; BYTES], out: &mut [f32; LEN]) {
    let (d, m) = scale_min(block);
    *out = quants(block).map(|q| d * f32::from(q) + m);
}

/// The block of finite values.
pub fn encode(values: &[f32; LEN], block: &mut [u8; BYTES]) {
    let max = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let min = values.iter().copied().fold(f32::INFINITY, f32::min);
    let d = (max - min) / 31.0;
    let inverse = inverse(d);
    put_half(block, 0, d);
    put_half(block, 2, min);
    join_fives(&values.map(|v| (((v - min) * inverse + 0.5) as u8).min(31)), &mut block[4..]);
}
