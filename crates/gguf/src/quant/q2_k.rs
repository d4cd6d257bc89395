//! Q2_K: 16 groups of 16 values, each `d * s * q - dm * m` with its own 4-bit `s` and `m`.
//! Layout: 16 bytes of `s` (low nibble) and `m` (high), 64 bytes of bit pairs, half `d`, half `dm`.

use super::half_at;

/// Values in a block.
pub const LEN: usize = 256;
/// Bytes of a block.
pub const BYTES: usize = 84;
/// Values that share a scale and a minimum.
pub const GROUP: usize = 16;
/// Groups in a block.
pub const GROUPS: usize = LEN / GROUP;

/// The scales of scales `d` and of minima `dm`.
pub fn super_scales(block: &[u8; BYTES]) -> (f32, f32) {
    (half_at(block, 80), half_at(block, 82))
}

/// The 4-bit scale and minimum of group `j` (0 to 15).
pub fn scale_min(block: &[u8; BYTES], j: usize) -> (u8, u8) {
    (block[j] & 15, block[j] >> 4)
}

/// The integers `q`, 0 to 3, in the order of values.
pub fn quants(block: &[u8; BYTES]) -> [u8; LEN] {
    std::array::from_fn(|i| block[16 + 32 * (i / 128) + i % 32] >> (2 * (i % 128 / 32)) & 3)
}

/// The values of a block.
pub fn decode(block: &[u8; BYTES], out: &mut [f32; LEN]) {
    let (d, dm) = super_scales(block);
    let q = quants(block);
    for j in 0..GROUPS {
        let (s, m) = scale_min(block, j);
        let (scale, min) = (d * f32::from(s), dm * f32::from(m));
        for i in j * GROUP..(j + 1) * GROUP {
            out[i] = scale * f32::from(q[i]) - min;
        }
    }
}
