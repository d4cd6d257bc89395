//! Q4_K: 8 groups of 32 values, each `d * s * q - dm * m` with its own 6-bit `s` and `m`.
//! Layout: half `d`, half `dm`, 12 bytes of `s` and `m`, 128 bytes of nibbles.

use super::half_at;
use super::lines::{Lines, Search, lines};

/// Values in a block.
pub const LEN: usize = 256;
/// Bytes of a block.
pub const BYTES: usize = 144;
/// Values that share a scale and a minimum.
pub const GROUP: usize = 32;
/// Groups in a block.
pub const GROUPS: usize = LEN / GROUP;

/// The scales of scales `d` and of minima `dm`.
pub fn super_scales(block: &[u8; BYTES]) -> (f32, f32) {
    (half_at(block, 0), half_at(block, 2))
}

/// The 12 bytes that hold all groups' scales and minima.
pub fn packed_scales(block: &[u8; BYTES]) -> &[u8; 12] {
    block[4..].first_chunk().unwrap_or(&[0; 12])
}

/// The 6-bit scale and minimum of group `j` (0 to 7). Q5_K packs them the same way.
pub fn scale_min(packed: &[u8; 12], j: usize) -> (u8, u8) {
    if j < 4 {
        (packed[j] & 63, packed[j + 4] & 63)
    } else {
        let scale = packed[j + 4] & 15 | (packed[j - 4] >> 6) << 4;
        let min = packed[j + 4] >> 4 | (packed[j] >> 6) << 4;
        (scale, min)
    }
}

/// The reverse of [`scale_min`] for all groups; values are below 64.
pub fn pack_scales(scales: &[u8; GROUPS], mins: &[u8; GROUPS]) -> [u8; 12] {
    std::array::from_fn(|i| match i {
        0..4 => scales[i] & 63 | (scales[i + 4] >> 4) << 6,
        4..8 => mins[i - 4] & 63 | (mins[i] >> 4) << 6,
        _ => scales[i - 4] & 15 | mins[i - 4] << 4,
    })
}

/// The integers `q`, 0 to 15, in the order of values.
pub fn quants(block: &[u8; BYTES]) -> [u8; LEN] {
    std::array::from_fn(|i| {
        let byte = block[16 + i / 64 * 32 + i % 32];
        if i / 32 % 2 == 0 { byte & 15 } else { byte >> 4 }
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
    let Lines { d, dm, scales, q } = lines(values, &Search { most: 15, from: -1.0, tries: 20 });
    block[..2].copy_from_slice(&d.to_le_bytes());
    block[2..4].copy_from_slice(&dm.to_le_bytes());
    block[4..16].copy_from_slice(&scales);
    for (i, byte) in block[16..].iter_mut().enumerate() {
        let low = i / 32 * 64 + i % 32;
        *byte = q[low] | q[low + 32] << 4;
    }
}
