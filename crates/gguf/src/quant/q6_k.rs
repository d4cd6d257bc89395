//! Q6_K: 16 groups of 16 values, each `d * s * (q - 32)` with its own signed 8-bit `s`.
//! Layout: 128 bytes of low nibbles, 64 bytes of high bit pairs, 16 scales, half `d`.

use super::{half_at, nearest, put_half};

/// Values in a block.
pub const LEN: usize = 256;
/// Bytes of a block.
pub const BYTES: usize = 210;
/// Values that share a scale.
pub const GROUP: usize = 16;
/// Groups in a block.
pub const GROUPS: usize = LEN / GROUP;
/// Below this magnitude a group counts as zero.
const NOTHING: f32 = 1e-15;

/// The scale of scales `d`.
pub fn super_scale(block: &[u8; BYTES]) -> f32 {
    half_at(block, 208)
}

/// The scales `s` of all groups.
pub fn scales(block: &[u8; BYTES]) -> [i8; GROUPS] {
    std::array::from_fn(|j| block[192 + j] as i8)
}

/// Where the parts of value `i` are: `(low byte, its shift, high byte, its shift)`, bytes counted in the block.
fn place(i: usize) -> (usize, u32, usize, u32) {
    let (half, group, l) = (i / 128, i % 128 / 32, i % 32);
    (64 * half + 32 * (group & 1) + l, 4 * (group as u32 >> 1), 128 + 32 * half + l, 2 * group as u32)
}

/// The integers `q - 32`, -32 to 31, in the order of values.
pub fn quants(block: &[u8; BYTES]) -> [i8; LEN] {
    std::array::from_fn(|i| {
        let (low, low_shift, high, high_shift) = place(i);
        let q = block[low] >> low_shift & 15 | (block[high] >> high_shift & 3) << 4;
        q as i8 - 32
    })
}

/// The values of a block.
pub fn decode(block: &[u8; BYTES], out: &mut [f32; LEN]) {
    let (d, s, q) = (super_scale(block), scales(block), quants(block));
    for i in 0..LEN {
        out[i] = d * f32::from(s[i / GROUP]) * f32::from(q[i]);
    }
}

/// The block of finite values.
///
/// Each group gets the scale that fits it best in the weighted least squares, out of several roundings; then scales
/// and integers are rounded to what the block can hold.
pub fn encode(values: &[f32; LEN], block: &mut [u8; BYTES]) {
    block.fill(0);
    let groups = values.as_chunks::<GROUP>().0;
    let mut fits = [0f32; GROUPS];
    let mut stored = [0u8; LEN];
    let mut extreme = 0f32;
    for ((fitted, group), stored) in fits.iter_mut().zip(groups).zip(stored.as_chunks_mut::<GROUP>().0) {
        *fitted = fit(group, stored);
        if fitted.abs() > extreme.abs() {
            extreme = *fitted;
        }
    }
    if extreme.abs() < NOTHING {
        return;
    }
    let to_level = -128.0 / extreme;
    put_half(block, 208, 1.0 / to_level);
    for (j, fitted) in fits.iter().enumerate() {
        block[192 + j] = nearest(to_level * fitted, -128, 127) as i8 as u8;
    }
    let (d, s) = (super_scale(block), scales(block));
    for (i, &v) in values.iter().enumerate() {
        let scale = d * f32::from(s[i / GROUP]);
        // Without a scale all integers decode to the same: those of the fit stay, as in the reference.
        let q = if scale == 0.0 { stored[i] } else { (nearest(v / scale, -32, 31) + 32) as u8 };
        let (low, low_shift, high, high_shift) = place(i);
        block[low] |= (q & 15) << low_shift;
        block[high] |= (q >> 4) << high_shift;
    }
}

/// The best scale for a group, negative where its value of largest magnitude is positive, and the integers `q` that go
/// with it.
fn fit(x: &[f32; GROUP], q: &mut [u8; GROUP]) -> f32 {
    const TRIES: i32 = 9;
    let mut extreme = 0f32;
    for &v in x {
        if v.abs() > extreme.abs() {
            extreme = v;
        }
    }
    if extreme.abs() < NOTHING {
        q.fill(0);
        return 0.0;
    }
    // Weighted by the squares: large values are the ones that matter in a product.
    let sums = |steps_per_unit: f32| {
        x.iter().fold((0f32, 0f32), |(xl, ll), &v| {
            let (w, l) = (v * v, nearest(steps_per_unit * v, -32, 31) as f32);
            (xl + w * v * l, ll + w * l * l)
        })
    };
    let mut steps = -32.0 / extreme;
    let (xl, ll) = sums(steps);
    let mut scale = if ll == 0.0 { 0.0 } else { xl / ll };
    let mut best = scale * xl;
    for attempt in -TRIES..=TRIES {
        if attempt == 0 {
            continue;
        }
        let steps_per_unit = -(32.0 + 0.1 * attempt as f32) / extreme;
        let (xl, ll) = sums(steps_per_unit);
        if ll > 0.0 && xl * xl > best * ll {
            scale = xl / ll;
            best = scale * xl;
            steps = steps_per_unit;
        }
    }
    *q = x.map(|v| (nearest(steps * v, -32, 31) + 32) as u8);
    scale
}
