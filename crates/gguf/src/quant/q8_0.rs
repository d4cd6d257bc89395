//! Q8_0: `d * q`. Layout: half `d`, 32 signed bytes.

use super::{half_at, inverse, put_half};

/// Values in a block.
pub const LEN: usize = 32;
/// Bytes of a block.
pub const BYTES: usize = 34;

/// The scale `d`.
pub fn scale(block: &[u8; BYTES]) -> f32 {
    half_at(block, 0)
}

/// The integers `q`, in the order of values.
pub fn quants(block: &[u8; BYTES]) -> [i8; LEN] {
    std::array::from_fn(|i| block[2 + i] as i8)
}

/// The values of a block.
pub fn decode(block: &[u8; BYTES], out: &mut [f32; LEN]) {
    let d = scale(block);
    *out = quants(block).map(|q| d * f32::from(q));
}

/// The block of finite values: rounded to nearest, ties away from zero.
pub fn encode(values: &[f32; LEN], block: &mut [u8; BYTES]) {
    let largest = values.iter().fold(0f32, |m, v| m.max(v.abs()));
    let d = largest / 127.0;
    let inverse = inverse(d);
    put_half(block, 0, d);
    for (byte, v) in block[2..].iter_mut().zip(values) {
        *byte = (v * inverse).round() as i8 as u8;
    }
}
