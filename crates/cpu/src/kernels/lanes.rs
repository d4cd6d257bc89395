//! Kernels in f32, written once over [`Eight`] and compiled for every tier: they give the same bits in all.
//!
//! The order of every sum is a function of the length alone, never of how many rows are computed together. Loops
//! instead of closures: a closure that is not inlined would be compiled without the tier's instructions.

pub(super) use super::attend::attend;
pub(super) use super::latent::{attend_latent, index_scores, layer_norm};
use super::vector::Eight;
use super::{BLOCK, QUANT};

/// Up to eight values, zeros behind them.
#[inline(always)]
pub(super) fn padded(x: &[f32]) -> [f32; 8] {
    let mut all = [0.0; 8];
    all[..x.len()].copy_from_slice(x);
    all
}

/// Eight values at a time of slices of equal length: `$body` gives what becomes of the first one.
macro_rules! by_eight {
    ($V:ident, $out:ident = ($($x:ident),*) $body:block) => {{
        let (chunks, rest) = $out.as_chunks_mut::<8>();
        $(let $x = $x.as_chunks::<8>();)*
        $(assert_eq!($x.0.len(), chunks.len());)*
        for (_i, out) in chunks.iter_mut().enumerate() {
            $(let $x = $V::load(&$x.0[_i]);)*
            let $out = $V::load(out);
            let value: $V = $body;
            value.store(out);
        }
        if !rest.is_empty() {
            $(let $x = $V::load(&padded($x.1));)*
            let $out = $V::load(&padded(rest));
            let value: $V = $body;
            let mut all = [0.0; 8];
            value.store(&mut all);
            rest.copy_from_slice(&all[..rest.len()]);
        }
    }};
}

/// `Σ a·b`, 32 side by side.
#[inline(always)]
pub(super) fn dot<V: Eight>(a: &[f32], b: &[f32]) -> f32 {
    let n = a.len().min(b.len());
    let (a, a_rest) = a[..n].as_chunks::<8>();
    let (b, b_rest) = b[..n].as_chunks::<8>();
    let mut sums = [V::splat(0.0); 4];
    let mut i = 0;
    while i + 4 <= a.len() {
        for j in 0..4 {
            sums[j] = V::load(&a[i + j]).fma(V::load(&b[i + j]), sums[j]);
        }
        i += 4;
    }
    for (j, (a, b)) in a[i..].iter().zip(&b[i..]).enumerate() {
        sums[j] = V::load(a).fma(V::load(b), sums[j]);
    }
    let rest = V::load(&padded(a_rest)).mul(V::load(&padded(b_rest)));
    sums[0].add(sums[2]).add(sums[1].add(sums[3])).add(rest).sum()
}

/// Four weight rows, `w: [4, cols]`, times any number of rows: `out[row][weight row]`, each eight side by side.
#[inline(always)]
pub(super) fn products<V: Eight>(w: &[f32], x: &[&[f32]], out: &mut [[f32; 4]]) {
    let cols = w.len() / 4;
    let w = [&w[..cols], &w[cols..2 * cols], &w[2 * cols..3 * cols], &w[3 * cols..4 * cols]];
    let (pairs, rest) = x.as_chunks::<2>();
    let (of_pairs, of_rest) = out.split_at_mut(2 * pairs.len());
    for (x, out) in pairs.iter().zip(of_pairs.as_chunks_mut().0) {
        products_of::<V, 2>(w, *x, cols, out);
    }
    for (x, out) in rest.iter().zip(of_rest) {
        products_of::<V, 1>(w, [x], cols, std::array::from_mut(out));
    }
}

#[inline(always)]
pub(super) fn products_of<V: Eight, const N: usize>(
    w: [&[f32]; 4],
    x: [&[f32]; N],
    cols: usize,
    out: &mut [[f32; 4]; N],
) {
    assert!(w.iter().chain(&x).all(|row| row.len() >= cols));
    let mut sums = [[V::splat(0.0); 4]; N];
    let whole = cols / 8;
    for i in 0..whole {
        // SAFETY: every row has `cols` values, which was just checked.
        unsafe {
            let mut of_w = [V::splat(0.0); 4];
            for j in 0..4 {
                of_w[j] = V::from(w[j].as_ptr().add(8 * i));
            }
            for n in 0..N {
                let x = V::from(x[n].as_ptr().add(8 * i));
                for j in 0..4 {
                    sums[n][j] = of_w[j].fma(x, sums[n][j]);
                }
            }
        }
    }
    if !cols.is_multiple_of(8) {
        for n in 0..N {
            let x = V::load(&padded(&x[n][8 * whole..cols]));
            for j in 0..4 {
                sums[n][j] = V::load(&padded(&w[j][8 * whole..])).fma(x, sums[n][j]);
            }
        }
    }
    for n in 0..N {
        for j in 0..4 {
            out[n][j] = sums[n][j].sum();
        }
    }
}

/// `x = x / sqrt(mean(x²) + eps) ⊙ weight`.
#[inline(always)]
pub(super) fn rms_norm<V: Eight>(x: &mut [f32], weight: &[f32], eps: f32) {
    let factor = V::splat(1.0 / (dot::<V>(x, x) / x.len() as f32 + eps).sqrt());
    by_eight!(V, x = (weight) { x.mul(factor).mul(weight) });
}

/// `sum += x`.
#[inline(always)]
pub(super) fn add<V: Eight>(sum: &mut [f32], x: &[f32]) {
    by_eight!(V, sum = (x) { sum.add(x) });
}

/// `sum += factor · x`.
#[inline(always)]
pub(super) fn add_scaled<V: Eight>(sum: &mut [f32], x: &[f32], factor: f32) {
    let factor = V::splat(factor);
    by_eight!(V, sum = (x) { x.fma(factor, sum) });
}

/// `g / (1 + exp(-t))`.
#[inline(always)]
fn gated<V: Eight>(g: V, t: V) -> V {
    g.div(V::splat(1.0).add(exp(V::splat(0.0).sub(t))))
}

/// `out = gate / (1 + exp(-gate)) ⊙ up`.
#[inline(always)]
pub(super) fn silu_mul<V: Eight>(gate: &[f32], up: &[f32], out: &mut [f32]) {
    by_eight!(V, out = (gate, up) {
        let _ = out;
        gated(gate, gate).mul(up)
    });
}

/// `out = gelu(gate) ⊙ up`: `(1 + tanh(u)) / 2` is `1 / (1 + exp(-2u))`.
#[inline(always)]
pub(super) fn gelu_mul<V: Eight>(gate: &[f32], up: &[f32], out: &mut [f32]) {
    const FACTOR: f32 = std::f32::consts::FRAC_2_SQRT_PI * std::f32::consts::SQRT_2; // 2 √(2/π)
    let (factor, cubic, one) = (V::splat(FACTOR), V::splat(0.044_715), V::splat(1.0));
    by_eight!(V, out = (gate, up) {
        let _ = out;
        // g + 0.044715 g³
        let inner = gate.mul(gate.mul(gate).fma(cubic, one));
        gated(gate, factor.mul(inner)).mul(up)
    });
}

/// `out = g / (1 + exp(-alpha · g)) ⊙ (u + 1)`.
#[inline(always)]
pub(super) fn clamped_swiglu<V: Eight>(gate: &[f32], up: &[f32], alpha: f32, limit: f32, out: &mut [f32]) {
    let (alpha, most, least, one) = (V::splat(alpha), V::splat(limit), V::splat(-limit), V::splat(1.0));
    by_eight!(V, out = (gate, up) {
        let _ = out;
        let (g, u) = (gate.min(most), up.min(most).max(least));
        gated(g, alpha.mul(g)).mul(u.add(one))
    });
}

/// `x = cap · tanh(x / cap)`.
#[inline(always)]
pub(super) fn softcap<V: Eight>(x: &mut [f32], cap: f32) {
    by_eight!(V, x = () { capped(x, V::splat(cap)) });
}

/// `cap · tanh(x / cap)`, wrong by at most a few units in the last place of `cap`.
#[inline(always)]
pub(super) fn capped<V: Eight>(x: V, cap: V) -> V {
    let e = exp(V::splat(2.0).mul(x).div(cap)).add(V::splat(1.0));
    cap.sub(V::splat(2.0).mul(cap).div(e))
}

/// `e^x` within 2 units in the last place; 0 below -87, where it leaves the normal numbers, and infinite above 88.7.
/// `x = n·ln 2 + r` with `n` an integer, then the Taylor series in `r`, whose rest is below 6e-9.
#[inline(always)]
pub(super) fn exp<V: Eight>(x: V) -> V {
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    // 1.5 · 2^23: adding it leaves the nearest integer in the low bits.
    let round = V::splat(12_582_912.0);
    // In this order what is not a number stays so.
    let clamped = V::splat(-87.0).max(V::splat(88.8).min(x));
    let shifted = clamped.fma(V::splat(std::f32::consts::LOG2_E), round);
    let n = shifted.sub(round);
    let r = n.fma(V::splat(-LN_2_LOW), n.fma(V::splat(-LN_2_HIGH), clamped));
    let mut p = V::splat(1.0 / 5040.0);
    for c in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = r.fma(p, V::splat(c));
    }
    // 2^n in two factors: n may be 128.
    let (half, rest) = shifted.powers();
    x.pick_below(V::splat(-87.0), V::splat(0.0), p.mul(half).mul(rest))
}

/// Turns the pairs of one head: `(a, b)` becomes `(a·cos − b·sin, a·sin + b·cos)`. `turns` holds `cos, sin` per pair.
#[inline(always)]
pub(super) fn rope_interleaved<V: Eight>(head: &mut [f32], turns: &[[f32; 2]]) {
    let n = head.len().min(2 * turns.len());
    let (head, turns) = (&mut head[..n], &turns.as_flattened()[..n]);
    by_eight!(V, head = (turns) { head.turn(turns) });
}

/// As [`rope_interleaved`], with pairs `(j, j + turns.len())`.
#[inline(always)]
pub(super) fn rope_half_split<V: Eight>(head: &mut [f32], turns: &[[f32; 2]]) {
    let (low, high) = head.split_at_mut(turns.len());
    let (chunks, rest) = turns.as_chunks::<8>();
    let whole = 8 * chunks.len();
    let pairs = low.as_chunks_mut::<8>().0.iter_mut().zip(high.as_chunks_mut::<8>().0);
    for ((low, high), turns) in pairs.zip(chunks) {
        let flat = turns.as_flattened().as_chunks::<8>().0;
        let (cos, sin) = V::load(&flat[0]).unzip(V::load(&flat[1]));
        let (a, b) = (V::load(low), V::load(high));
        a.mul(cos).sub(b.mul(sin)).store(low);
        a.mul(sin).add(b.mul(cos)).store(high);
    }
    for ((a, b), &[cos, sin]) in low[whole..].iter_mut().zip(&mut high[whole..]).zip(rest) {
        (*a, *b) = (*a * cos - *b * sin, *a * sin + *b * cos);
    }
}

/// Upper halves of floats as floats.
#[inline(always)]
pub(super) fn widen_bf16<V: Eight>(halves: &[u16], out: &mut [f32]) {
    for (out, &half) in out.iter_mut().zip(halves) {
        *out = f32::from_bits(u32::from(half) << 16);
    }
}

/// Groups of [`QUANT`] neighbouring integers, each times its scale.
#[inline(always)]
pub(super) fn widen_groups<V: Eight>(quants: &[i8], scales: &[f32], out: &mut [f32]) {
    let groups = quants.as_chunks::<QUANT>().0.iter().zip(out.as_chunks_mut::<QUANT>().0);
    for ((quants, out), &scale) in groups.zip(scales) {
        let scale = V::splat(scale);
        for (quants, out) in quants.as_chunks().0.iter().zip(out.as_chunks_mut().0) {
            floats::<V>(quants).mul(scale).store(out);
        }
    }
}

/// Rows of [`BLOCK`] integers, each times its column's scale.
#[inline(always)]
pub(super) fn widen_columns<V: Eight>(quants: &[i8], scales: &[f32; BLOCK], out: &mut [f32]) {
    for (quants, out) in quants.as_chunks::<BLOCK>().0.iter().zip(out.as_chunks_mut::<BLOCK>().0) {
        let columns = quants.as_chunks().0.iter().zip(scales.as_chunks().0).zip(out.as_chunks_mut().0);
        for ((quants, scales), out) in columns {
            floats::<V>(quants).mul(V::load(scales)).store(out);
        }
    }
}

#[inline(always)]
fn floats<V: Eight>(quants: &[i8; 8]) -> V {
    let mut out = [0f32; 8];
    for i in 0..8 {
        out[i] = f32::from(quants[i]);
    }
    V::load(&out)
}

/// The position of the first of the largest values; NaN counts as the smallest.
#[inline(always)]
pub(super) fn argmax<V: Eight>(x: &[f32]) -> usize {
    let mut best = [V::splat(f32::NEG_INFINITY); 4];
    let (chunks, rest) = x.as_chunks::<32>();
    for chunk in chunks {
        let chunk = chunk.as_chunks::<8>().0;
        for j in 0..4 {
            best[j] = V::load(&chunk[j]).max(best[j]);
        }
    }
    let best = best[0].max(best[1]).max(best[2].max(best[3])).largest();
    let best = rest.iter().fold(best, |a, &b| if b > a { b } else { a });
    x.iter().position(|&x| x == best).unwrap_or(0)
}
