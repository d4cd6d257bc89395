//! Q5_K: 8 groups of 32 values, each `d * s * q - dm * m` with its own 6-bit `s` and `m`.
//! Layout: half `d`, half `dm`, 12 bytes of `s` and `m` as in Q4_K, 32 bytes of high bits, 128 bytes of low nibbles.

use super::half_at;
use super::lines::{Lines, Search, lines};
use super::q4_k::scale_min;

/// Values in a block.
pub const LEN: usize = 256;
/// Bytes of a block.
pub const BYTES: usize = 176;
/// Values that share a scale and a minimum.
pub const GROUP: usize = 32;
/// Groups in a block.
pub const GROUPS: usize = LEN / GROUP;

/// The scales of scales `d` and of minima `dm`.
pub fn super_scales(block: &[u8; BYTES]) -> (f32, f32) {
    (half_at(block, 0), half_at(block, 2))
}

/// The 12 bytes that hold all groups' scales and minima; [`scale_min`] of Q4_K reads them.
pub fn packed_scales(block: &[u8; BYTES]) -> &[u8; 12] {
    block[4..].first_chunk().unwrap_or(&[0; 12])
}

/// The integers `q`, 0 to 31, in the order of values.
pub fn quants(block: &[u8; BYTES]) -> [u8; LEN] {
    std::array::from_fn(|i| {
        let (group, l) = (i / GROUP, i % GROUP);
        let low = block[48 + 32 * (i / 64) + l] >> (4 * (group % 2)) & 15;
        low | (block[16 + l] >> group & 1) << 4
    })
}

/// The values of a block.
pub fn decode(block: &[u8; BYTES], out: &mut [f32; LEN]) {
    let (d, dm) = super_scales(block);
    let q = quants(block);
    for j in 0..GROUPS {
        let (s, m) = scale_min(packed_scales(block), j);
        let (scale, min) = (d * f32::from(s), dm * f32::from(m));
        for i in j * GROUP..(j + 1) * GROUP {
            out[i] = scale * f32::from(q[i]) - min;
        }
    }
}

/// The block of finite values: the lines that fit best in the weighted least squares, out of several roundings.
pub fn encode(values: &[f32; LEN], block: &mut [u8; BYTES]) {
    let Lines { d, dm, scales, q } = lines(values, &Search { most: 31, from: -0.5, tries: 15 });
    block[..2].copy_from_slice(&d.to_le_bytes());
    block[2..4].copy_from_slice(&dm.to_le_bytes());
    block[4..16].copy_from_slice(&scales);
    let (high, low) = block[16..].split_at_mut(32);
    for (l, byte) in high.iter_mut().enumerate() {
        *byte = (0..GROUPS).fold(0, |bits, j| bits | (q[j * GROUP + l] >> 4) << j);
    }
    for (i, byte) in low.iter_mut().enumerate() {
        let at = i / 32 * 64 + i % 32;
        *byte = q[at] & 15 | (q[at + 32] & 15) << 4;
    }
}
