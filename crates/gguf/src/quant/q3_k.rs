//! Q3_K: 16 groups of 16 values, each `d * (s - 32) * (q - 4)` with its own 6-bit `s`.
//! Layout: 32 bytes of high bits, 64 bytes of low bit pairs, 12 bytes of `s`, half `d`.

use super::half_at;

/// Values in a block.
pub const LEN: usize = 256;
/// Bytes of a block.
pub const BYTES: usize = 110;
/// Values that share a scale.
pub const GROUP: usize = 16;
/// Groups in a block.
pub const GROUPS: usize = LEN / GROUP;
/// Where the scales start.
const SCALES: usize = 96;

/// The scale of scales `d`.
pub fn super_scale(block: &[u8; BYTES]) -> f32 {
    half_at(block, 108)
}

/// The scales `s - 32` of all groups, -32 to 31.
pub fn scales(block: &[u8; BYTES]) -> [i8; GROUPS] {
    std::array::from_fn(|j| {
        let low = block[SCALES + j % 8] >> (4 * (j / 8)) & 15;
        let high = block[SCALES + 8 + j % 4] >> (2 * (j / 4)) & 3;
        (low | high << 4) as i8 - 32
    })
}

/// The integers `q - 4`, -4 to 3, in the order of values.
pub fn quants(block: &[u8; BYTES]) -> [i8; LEN] {
    std::array::from_fn(|i| {
        let (half, pair, l) = (i / 128, i % 128 / 32, i % 32);
        let low = block[32 + 32 * half + l] >> (2 * pair) & 3;
        let high = block[l] >> (4 * half + pair) & 1;
        (low | high << 2) as i8 - 4
    })
}

/// The values of a block.
pub fn decode(block: &[u8; BYTES], out: &mut [f32; LEN]) {
    let (d, s, q) = (super_scale(block), scales(block), quants(block));
    for i in 0..LEN {
        out[i] = d * f32::from(s[i / GROUP]) * f32::from(q[i]);
    }
}
