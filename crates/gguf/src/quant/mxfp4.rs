//! MXFP4: `2^(e - 128) * LEVELS[q]`, the OCP microscaling format. Layout: byte `e`, 16 bytes of nibbles, in the order of
//! Q4_0 and not pairwise as the checkpoints of other frameworks have them.

use super::{join_nibbles, split_nibbles};

/// Values in a block.
pub const LEN: usize = 32;
/// Bytes of a block.
pub const BYTES: usize = 17;
/// What the 16 codes stand for: 4-bit floats (2 bits exponent, 1 bit mantissa), doubled to be integers.
pub const LEVELS: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];
/// What an exponent of zero is stored as.
const BIAS: f32 = 127.0;
/// The exponent of the largest level before doubling: 6 is 1.5 * 2^2.
const LARGEST: f32 = 2.0;

/// The scale `2^(e - 128)`; exact, a subnormal number for the smallest two.
pub fn scale(block: &[u8; BYTES]) -> f32 {
    power(block[0])
}

/// The integers `LEVELS[q]`, -12 to 12, in the order of values.
pub fn quants(block: &[u8; BYTES]) -> [i8; LEN] {
    let (_, packed) = block.split_last_chunk().unwrap_or((&[], &[0; 16]));
    split_nibbles(packed).map(|q| LEVELS[usize::from(q)])
}

/// The values of a block.
pub fn decode(block: &[u8; BYTES], out: &mut [f32; LEN]) {
    let d = scale(block);
    *out = quants(block).map(|q| d * f32::from(q));
}

/// The block of finite values: the power of two that the largest magnitude asks for, then the nearest levels.
pub fn encode(values: &[f32; LEN], block: &mut [u8; BYTES]) {
    let largest = values.iter().fold(0f32, |m, v| m.max(v.abs()));
    block[0] = if largest > 0.0 {
        // In single precision, as the reference does: just below a large power of two it rounds up to it.
        let exponent = (f64::from(largest).log2() as f32).floor();
        (exponent - LARGEST + BIAS) as u8
    } else {
        0
    };
    let d = scale(block);
    join_nibbles(&values.map(|v| code(v, d)), &mut block[1..]);
}

/// `2^(e - 128)`.
fn power(e: u8) -> f32 {
    f32::from_bits(if e < 2 { 0x0020_0000 << e } else { u32::from(e - 1) << 23 })
}

/// The code whose level is nearest to `v / d`; of equally near ones the first.
fn code(v: f32, d: f32) -> u8 {
    let mut best = (0, f32::INFINITY);
    for (q, &level) in LEVELS.iter().enumerate() {
        let miss = (d * f32::from(level) - v).abs();
        if miss < best.1 {
            best = (q as u8, miss);
        }
    }
    best.0
}
