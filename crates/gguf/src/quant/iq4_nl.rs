//! IQ4_NL: `d * LEVELS[q]`. Layout: half `d`, 16 bytes of nibbles.

use super::{half_at, inverse, join_nibbles, put_half, split_nibbles};

/// Values in a block.
pub const LEN: usize = 32;
/// Bytes of a block.
pub const BYTES: usize = 18;
/// What the 16 codes stand for: closer together near zero. IQ4_XS has the same.
pub const LEVELS: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
/// Below this magnitude a group counts as zero.
const NOTHING: f32 = 1e-15;

/// The scale `d`.
pub fn scale(block: &[u8; BYTES]) -> f32 {
    half_at(block, 0)
}

/// The integers `LEVELS[q]`, -127 to 113, in the order of values.
pub fn quants(block: &[u8; BYTES]) -> [i8; LEN] {
    let (_, packed) = block.split_last_chunk().unwrap_or((&[], &[0; 16]));
    split_nibbles(packed).map(|q| LEVELS[usize::from(q)])
}

/// The values of a block.
pub fn decode(block: &[u8; BYTES], out: &mut [f32; LEN]) {
    let d = scale(block);
    *out = quants(block).map(|q| d * f32::from(q));
}

/// The block of finite values, with the scale that fits best in the weighted least squares, out of several roundings.
pub fn encode(values: &[f32; LEN], block: &mut [u8; BYTES]) {
    let d = fit(values);
    put_half(block, 0, d);
    // By the scale before it was rounded, as the reference does.
    let inverse = inverse(d);
    join_nibbles(&values.map(|v| code(v * inverse)), &mut block[2..]);
}

/// The best scale of 32 values, negative where the value of largest magnitude is positive.
pub(super) fn fit(x: &[f32; LEN]) -> f32 {
    const TRIES: i32 = 7;
    let mut extreme = 0f32;
    for &v in x {
        if v.abs() > extreme.abs() {
            extreme = v;
        }
    }
    if extreme.abs() < NOTHING {
        return 0.0;
    }
    // Weighted by the squares: large values are the ones that matter in a product.
    let sums = |steps_per_unit: f32| {
        x.iter().fold((0f32, 0f32), |(xl, ll), &v| {
            let (w, l) = (v * v, f32::from(LEVELS[usize::from(code(steps_per_unit * v))]));
            (xl + w * l * v, ll + w * l * l)
        })
    };
    let lowest = f32::from(LEVELS[0]);
    let (xl, ll) = sums(1.0 / (-extreme / lowest));
    let mut scale = if ll > 0.0 { xl / ll } else { 0.0 };
    let mut best = scale * xl;
    for attempt in -TRIES..=TRIES {
        let (xl, ll) = sums((attempt as f32 + lowest) / extreme);
        if ll > 0.0 && xl * xl > best * ll {
            scale = xl / ll;
            best = scale * xl;
        }
    }
    scale
}

/// The code whose level is nearest to `x`; of two equally near ones the higher.
pub(super) fn code(x: f32) -> u8 {
    let level = |q: usize| f32::from(LEVELS[q]);
    let above = LEVELS.iter().position(|&l| x < f32::from(l)).unwrap_or(LEVELS.len());
    match above {
        0 => 0,
        16 => 15,
        q if x - level(q - 1) < level(q) - x => q as u8 - 1,
        q => q as u8,
    }
}
