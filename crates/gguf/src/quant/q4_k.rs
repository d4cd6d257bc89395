//! Q4_K: 8 groups of 32 values, each `d * s * q - dm * m` with its own 6-bit `s` and `m`.
//! Layout: half `d`, half `dm`, 12 bytes of `s` and `m`, 128 bytes of nibbles.

use super::{half_at, inverse, nearest, put_half};

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

/// The block of finite values.
///
/// Each group gets the line `scale * q + min` that fits it best in the weighted least squares, out of several roundings;
/// then lines and integers are rounded to what the block can hold.
pub fn encode(values: &[f32; LEN], block: &mut [u8; BYTES]) {
    let groups = values.as_chunks::<GROUP>().0;
    let mut scales = [0f32; GROUPS];
    let mut mins = [0f32; GROUPS];
    let mut q = [0u8; LEN];
    for (j, (group, q)) in groups.iter().zip(q.as_chunks_mut::<GROUP>().0).enumerate() {
        (scales[j], mins[j]) = fit(group, q);
    }
    let largest = |a: &[f32; GROUPS]| a.iter().copied().fold(0f32, f32::max);
    let (max_scale, max_min) = (largest(&scales), largest(&mins));
    let levels = |a: &[f32; GROUPS], max: f32| {
        let to_level = if max > 0.0 { 63.0 / max } else { 0.0 };
        // Through a byte, as the reference does: a slightly negative scale becomes 255, then the highest level.
        a.map(|v| (nearest(to_level * v, i32::MIN, i32::MAX) as u8).min(63))
    };
    let (s, m) = (levels(&scales, max_scale), levels(&mins, max_min));
    put_half(block, 0, max_scale / 63.0);
    put_half(block, 2, max_min / 63.0);
    block[4..16].copy_from_slice(&pack_scales(&s, &m));

    let (d, dm) = super_scales(block);
    for (j, (group, q)) in groups.iter().zip(q.as_chunks_mut::<GROUP>().0).enumerate() {
        let (scale, min) = (d * f32::from(s[j]), dm * f32::from(m[j]));
        // Without a scale all integers decode to the same: those of the fit stay, as in the reference.
        if scale != 0.0 {
            *q = group.map(|v| nearest((v + min) / scale, 0, 15) as u8);
        }
    }
    for (i, byte) in block[16..].iter_mut().enumerate() {
        let low = i / 32 * 64 + i % 32;
        *byte = q[low] | q[low + 32] << 4;
    }
}

/// The scale and the negated minimum (both meant to be stored unsigned) of the best line through a group, and the
/// integers along it.
fn fit(x: &[f32; GROUP], q: &mut [u8; GROUP]) -> (f32, f32) {
    const MOST: f32 = 15.0;
    const TRIES: i32 = 20;
    let mean_square = x.iter().fold(0f32, |sum, v| sum + v * v) / GROUP as f32;
    let mean = mean_square.sqrt();
    // Large values weigh more: they are the ones that matter in a product.
    let weights = x.map(|v| mean + v.abs());
    let (mut lo, mut hi, mut sum_w, mut sum_x) = (x[0], x[0], weights[0], weights[0] * x[0]);
    for (&v, &w) in x.iter().zip(&weights).skip(1) {
        lo = if v < lo { v } else { lo };
        hi = if v > hi { v } else { hi };
        sum_w += w;
        sum_x += w * v;
    }
    // Zero must stay representable: minima are never positive.
    lo = if lo > 0.0 { 0.0 } else { lo };
    if hi == lo {
        return (0.0, -lo);
    }
    let level = |v: f32, steps_per_unit: f32, from: f32| nearest(steps_per_unit * (v - from), 0, 15) as u8;
    let error = |scale: f32, min: f32, levels: &[u8; GROUP]| {
        x.iter().zip(&weights).zip(levels).fold(0f32, |sum, ((&v, w), &l)| {
            let miss = scale * f32::from(l) + min - v;
            sum + w * (miss * miss)
        })
    };
    let plain = MOST / (hi - lo);
    let (mut scale, mut min) = (inverse(plain), lo);
    *q = x.map(|v| level(v, plain, min));
    let mut least = error(scale, min, q);
    for attempt in 0..=TRIES {
        // The best minimum so far is where the next rounding starts from, as in the reference.
        let steps_per_unit = (-1.0 + 0.1 * attempt as f32 + MOST) / (hi - min);
        let levels = x.map(|v| level(v, steps_per_unit, min));
        let (mut sum_l, mut sum_ll, mut sum_xl) = (0f32, 0f32, 0f32);
        for ((&v, &w), &l) in x.iter().zip(&weights).zip(&levels) {
            let l = f32::from(l);
            sum_l += w * l;
            sum_ll += w * l * l;
            sum_xl += w * l * v;
        }
        let determinant = sum_w * sum_ll - sum_l * sum_l;
        if determinant <= 0.0 || determinant.is_nan() {
            continue;
        }
        let mut this_scale = (sum_w * sum_xl - sum_x * sum_l) / determinant;
        let mut this_min = (sum_ll * sum_x - sum_l * sum_xl) / determinant;
        if this_min > 0.0 {
            this_min = 0.0;
            this_scale = sum_xl / sum_ll;
        }
        let this_error = error(this_scale, this_min, &levels);
        if this_error < least {
            (least, scale, min, *q) = (this_error, this_scale, this_min, levels);
        }
    }
    (scale, -min)
}
