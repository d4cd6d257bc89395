//! IQ4_XS: 8 groups of 32 values, each `d * (s - 32) * LEVELS[q]` with its own 6-bit `s`; levels of IQ4_NL.
//! Layout: half `d`, 16 high bits pairwise, 4 bytes of low nibbles of `s`, 128 bytes of nibbles.

use super::{half_at, inverse, iq4_nl, join_nibbles, nearest, put_half, split_nibbles};

/// Values in a block.
pub const LEN: usize = 256;
/// Bytes of a block.
pub const BYTES: usize = 136;
/// Values that share a scale.
pub const GROUP: usize = 32;
/// Groups in a block.
pub const GROUPS: usize = LEN / GROUP;
/// Where the nibbles start.
const NIBBLES: usize = 8;

/// The scale of scales `d`.
pub fn super_scale(block: &[u8; BYTES]) -> f32 {
    half_at(block, 0)
}

/// The scales `s - 32` of all groups, -32 to 31.
pub fn scales(block: &[u8; BYTES]) -> [i8; GROUPS] {
    std::array::from_fn(|j| {
        let low = block[4 + j / 2] >> (4 * (j % 2)) & 15;
        let high = block[2 + j / 4] >> (2 * (j % 4)) & 3;
        (low | high << 4) as i8 - 32
    })
}

/// The integers `LEVELS[q]`, -127 to 113, in the order of values.
pub fn quants(block: &[u8; BYTES]) -> [i8; LEN] {
    let mut out = [0; LEN];
    let packed = block[NIBBLES..].as_chunks::<{ GROUP / 2 }>().0;
    for (group, packed) in out.as_chunks_mut::<GROUP>().0.iter_mut().zip(packed) {
        *group = split_nibbles(packed).map(|q| iq4_nl::LEVELS[usize::from(q)]);
    }
    out
}

/// The values of a block.
pub fn decode(block: &[u8; BYTES], out: &mut [f32; LEN]) {
    let (d, s, q) = (super_scale(block), scales(block), quants(block));
    for i in 0..LEN {
        out[i] = d * f32::from(s[i / GROUP]) * f32::from(q[i]);
    }
}

/// The block of finite values: the best scale of each group, rounded to what the block can hold, then the codes.
pub fn encode(values: &[f32; LEN], block: &mut [u8; BYTES]) {
    block.fill(0);
    let groups = values.as_chunks::<GROUP>().0;
    let mut fits = [0f32; GROUPS];
    let mut extreme = 0f32;
    for (fitted, group) in fits.iter_mut().zip(groups) {
        *fitted = iq4_nl::fit(group);
        if fitted.abs() > extreme.abs() {
            extreme = *fitted;
        }
    }
    let d = -extreme / 32.0;
    put_half(block, 0, d);
    let to_level = inverse(d);
    for (j, (group, fitted)) in groups.iter().zip(fits).enumerate() {
        let level = nearest(to_level * fitted, -32, 31);
        let inverse = inverse(d * level as f32);
        let stored = (level + 32) as u8;
        block[4 + j / 2] |= (stored & 15) << (4 * (j % 2));
        block[2 + j / 4] |= (stored >> 4) << (2 * (j % 4));
        let start = NIBBLES + j * GROUP / 2;
        join_nibbles(&group.map(|v| iq4_nl::code(v * inverse)), &mut block[start..start + GROUP / 2]);
    }
}
