//! What the encoders of Q4_K and Q5_K share: a line `scale * q - min` for each group of 32 values, scales and minima
//! rounded to 6 bits. Packing of the integers is each type's own.

use super::q4_k::{GROUP, GROUPS, LEN, pack_scales, scale_min};
use super::{inverse, nearest};

/// How finely a type's integers divide a group, and how wide the encoder searches.
pub(super) struct Search {
    /// The highest integer.
    pub(super) most: u8,
    /// The first rounding that is tried, in steps off `most`; the next ones lie 0.1 apart.
    pub(super) from: f32,
    /// Roundings after the first.
    pub(super) tries: i32,
}

/// A block before it is packed.
pub(super) struct Lines {
    /// The scale of scales, in half precision.
    pub(super) d: half::f16,
    /// The scale of minima, in half precision.
    pub(super) dm: half::f16,
    /// Scales and minima, packed.
    pub(super) scales: [u8; 12],
    /// The integers, in the order of values.
    pub(super) q: [u8; LEN],
}

/// The best lines through finite values.
///
/// Each group gets the line that fits it best in the weighted least squares, out of several roundings; then lines and
/// integers are rounded to what the block can hold.
pub(super) fn lines(values: &[f32; LEN], search: &Search) -> Lines {
    let groups = values.as_chunks::<GROUP>().0;
    let mut scales = [0f32; GROUPS];
    let mut mins = [0f32; GROUPS];
    let mut q = [0u8; LEN];
    for (j, (group, q)) in groups.iter().zip(q.as_chunks_mut::<GROUP>().0).enumerate() {
        (scales[j], mins[j]) = fit(group, q, search);
    }
    let largest = |a: &[f32; GROUPS]| a.iter().copied().fold(0f32, f32::max);
    let (max_scale, max_min) = (largest(&scales), largest(&mins));
    let levels = |a: &[f32; GROUPS], max: f32| {
        let to_level = if max > 0.0 { 63.0 / max } else { 0.0 };
        // Through a byte, as the reference does: a slightly negative scale becomes 255, then the highest level.
        a.map(|v| (nearest(to_level * v, i32::MIN, i32::MAX) as u8).min(63))
    };
    let packed = pack_scales(&levels(&scales, max_scale), &levels(&mins, max_min));
    let (d, dm) = (half::f16::from_f32(max_scale / 63.0), half::f16::from_f32(max_min / 63.0));
    for (j, (group, q)) in groups.iter().zip(q.as_chunks_mut::<GROUP>().0).enumerate() {
        let (s, m) = scale_min(&packed, j);
        let (scale, min) = (d.to_f32() * f32::from(s), dm.to_f32() * f32::from(m));
        // Without a scale all integers decode to the same: those of the fit stay, as in the reference.
        if scale != 0.0 {
            *q = group.map(|v| nearest((v + min) / scale, 0, search.most.into()) as u8);
        }
    }
    Lines { d, dm, scales: packed, q }
}

/// The scale and the negated minimum (both meant to be stored unsigned) of the best line through a group, and the
/// integers along it.
fn fit(x: &[f32; GROUP], q: &mut [u8; GROUP], search: &Search) -> (f32, f32) {
    let most = f32::from(search.most);
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
    let level =
        |v: f32, steps_per_unit: f32, from: f32| nearest(steps_per_unit * (v - from), 0, search.most.into()) as u8;
    let error = |scale: f32, min: f32, levels: &[u8; GROUP]| {
        x.iter().zip(&weights).zip(levels).fold(0f32, |sum, ((&v, w), &l)| {
            let miss = scale * f32::from(l) + min - v;
            sum + w * (miss * miss)
        })
    };
    let plain = most / (hi - lo);
    let (mut scale, mut min) = (inverse(plain), lo);
    *q = x.map(|v| level(v, plain, min));
    let mut least = error(scale, min, q);
    for attempt in 0..=search.tries {
        // The best minimum so far is where the next rounding starts from, as in the reference.
        let steps_per_unit = (search.from + 0.1 * attempt as f32 + most) / (hi - min);
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
