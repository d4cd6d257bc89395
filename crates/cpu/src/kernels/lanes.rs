//! Kernels in f32, written once in plain Rust over small arrays that stand for vector registers. Every tier compiles
//! the same code for its own instructions: `mul_add` is one instruction there and a library call in the scalar tier,
//! but rounds once in both, so that all tiers give the same bits.
//!
//! The order of every sum is a function of the length alone, never of how many rows are computed together.

use super::{ActBlock, BLOCK, Heads, QUANT};

/// Values summed side by side in a dot product: four registers of eight.
const WIDE: usize = 32;

/// `Σ a·b`.
#[inline(always)]
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let (a_chunks, a_rest) = a.as_chunks::<WIDE>();
    let (b_chunks, b_rest) = b.as_chunks::<WIDE>();
    let mut sums = [0f32; WIDE];
    for (a, b) in a_chunks.iter().zip(b_chunks) {
        for i in 0..WIDE {
            sums[i] = a[i].mul_add(b[i], sums[i]);
        }
    }
    for (i, (a, b)) in a_rest.iter().zip(b_rest).enumerate() {
        sums[i] = a.mul_add(*b, sums[i]);
    }
    fold(sums)
}

/// `w · x` of one weight row with four rows at once; each result has the bits of [`dot`].
#[inline(always)]
pub(super) fn dot4(w: &[f32], x: [&[f32]; 4]) -> [f32; 4] {
    std::array::from_fn(|r| dot(w, x[r]))
}

/// The sum of all lanes, by halves.
#[inline(always)]
fn fold(mut sums: [f32; WIDE]) -> f32 {
    let mut n = WIDE / 2;
    while n > 0 {
        for i in 0..n {
            sums[i] += sums[i + n];
        }
        n /= 2;
    }
    sums[0]
}

/// `x = x / sqrt(mean(x²) + eps) ⊙ weight`.
#[inline(always)]
pub(super) fn rms_norm(x: &mut [f32], weight: &[f32], eps: f32) {
    let factor = 1.0 / (dot(x, x) / x.len() as f32 + eps).sqrt();
    for (x, w) in x.iter_mut().zip(weight) {
        *x = *x * factor * w;
    }
}

/// `sum += x`.
#[inline(always)]
pub(super) fn add(sum: &mut [f32], x: &[f32]) {
    for (sum, x) in sum.iter_mut().zip(x) {
        *sum += x;
    }
}

/// `out = gate / (1 + exp(-gate)) ⊙ up`.
#[inline(always)]
pub(super) fn silu_mul(gate: &[f32], up: &[f32], out: &mut [f32]) {
    for ((out, &g), &u) in out.iter_mut().zip(gate).zip(up) {
        *out = g / (1.0 + exp(-g)) * u;
    }
}

/// `e^x` within 2 units in the last place; 0 below -87, where it leaves the normal numbers, and infinite above 88.7.
/// `x = n·ln 2 + r` with `n` an integer, then the Taylor series in `r`, whose rest is below 6e-9.
#[inline(always)]
fn exp(x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23: adding it leaves the nearest integer in the low bits.
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    let clamped = x.clamp(-87.0, 88.8);
    let shifted = clamped.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.mul_add(-LN_2_LOW, n.mul_add(-LN_2_HIGH, clamped));
    let mut p = 1.0 / 5040.0;
    for c in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = r.mul_add(p, c);
    }
    // 2^n in two factors: n may be 128.
    let n = (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    let half = n >> 1;
    let power = |n: i32| f32::from_bits(((n + 127) << 23) as u32);
    let value = p * power(half) * power(n - half);
    if x < -87.0 { 0.0 } else { value }
}

/// Turns the pairs of one head: `(a, b)` becomes `(a·cos − b·sin, a·sin + b·cos)`. `turns` holds `cos, sin` per pair.
#[inline(always)]
pub(super) fn rope_interleaved(head: &mut [f32], turns: &[[f32; 2]]) {
    for (pair, &[cos, sin]) in head.as_chunks_mut::<2>().0.iter_mut().zip(turns) {
        let [a, b] = *pair;
        *pair = [a * cos - b * sin, a * sin + b * cos];
    }
}

/// As [`rope_interleaved`], with pairs `(j, j + turns.len())`.
#[inline(always)]
pub(super) fn rope_half_split(head: &mut [f32], turns: &[[f32; 2]]) {
    let (low, high) = head.split_at_mut(turns.len());
    for ((a, b), &[cos, sin]) in low.iter_mut().zip(high).zip(turns) {
        (*a, *b) = (*a * cos - *b * sin, *a * sin + *b * cos);
    }
}

/// Quantizes a row to 8 bits: per 32 values one scale, `max |x| / 127`, and the sums of both halves' integers.
#[inline(always)]
pub(super) fn quantize(x: &[f32], quants: &mut [i8], blocks: &mut [ActBlock]) {
    const ROUND: f32 = 12_582_912.0;
    let values = x.as_chunks::<QUANT>().0.iter();
    for ((x, q), block) in values.zip(quants.as_chunks_mut::<QUANT>().0).zip(blocks) {
        let mut most = [0f32; 8];
        for (i, x) in x.iter().enumerate() {
            most[i % 8] = most[i % 8].max(x.abs());
        }
        let most = most.iter().fold(0f32, |a, &b| a.max(b));
        let inverse = if most > 0.0 { 127.0 / most } else { 0.0 };
        let mut whole = [0i32; QUANT];
        for i in 0..QUANT {
            whole[i] = x[i].mul_add(inverse, ROUND).to_bits() as i8 as i32;
        }
        for i in 0..QUANT {
            q[i] = whole[i] as i8;
        }
        let low: i32 = whole[..QUANT / 2].iter().sum();
        let high: i32 = whole[QUANT / 2..].iter().sum();
        let scale = most / 127.0;
        *block = ActBlock { scale, weighted: scale * (low + high) as f32, low, high };
    }
}

/// One KV block's worth of attention for some query heads that share its KV head: scores of the block's first
/// `valid[i]` positions, folded into query head `i`'s running softmax (Milakov and Gimelshein 2018).
/// `k` is `[head_dim, BLOCK]`, `v` is `[BLOCK, head_dim]`.
#[inline(always)]
pub(super) fn attend(heads: &mut Heads, valid: &[usize], k: &[f32], v: &[f32], scale: f32) {
    let dim = heads.dim;
    for (i, &valid) in valid.iter().enumerate().filter(|(_, valid)| **valid > 0) {
        let q = &heads.q[i * dim..][..dim];
        let out = &mut heads.out[i * dim..][..dim];
        let (max, sum) = &mut heads.state[i];
        let scores = scores(q, k, valid, scale);
        let new_max = scores.iter().fold(*max, |a, &b| a.max(b));
        let shrink = exp(*max - new_max);
        let mut weights = [0f32; BLOCK];
        for t in 0..BLOCK {
            weights[t] = exp(scores[t] - new_max);
        }
        *sum = sum.mul_add(shrink, fold(weights));
        *max = new_max;
        accumulate(out, &weights[..valid], v, shrink);
    }
}

#[inline(always)]
fn scores(q: &[f32], k: &[f32], valid: usize, scale: f32) -> [f32; BLOCK] {
    let mut scores = [0f32; BLOCK];
    for (q, k) in q.iter().zip(k.as_chunks::<BLOCK>().0) {
        for t in 0..BLOCK {
            scores[t] = q.mul_add(k[t], scores[t]);
        }
    }
    for (t, score) in scores.iter_mut().enumerate() {
        // Beyond `valid` the cache holds anything, NaN too.
        *score = if t < valid { *score * scale } else { f32::NEG_INFINITY };
    }
    scores
}

/// `out = out · shrink + Σ weights[t] · v[t]`.
#[inline(always)]
fn accumulate(out: &mut [f32], weights: &[f32], v: &[f32], shrink: f32) {
    let dim = out.len();
    let (chunks, rest) = out.as_chunks_mut::<WIDE>();
    for (c, chunk) in chunks.iter_mut().enumerate() {
        let mut sums: [f32; WIDE] = std::array::from_fn(|i| chunk[i] * shrink);
        for (t, w) in weights.iter().enumerate() {
            let v = &v[t * dim + c * WIDE..][..WIDE];
            for i in 0..WIDE {
                sums[i] = w.mul_add(v[i], sums[i]);
            }
        }
        *chunk = sums;
    }
    let first = dim - rest.len();
    for (i, out) in rest.iter_mut().enumerate() {
        *out = weights.iter().enumerate().fold(*out * shrink, |sum, (t, w)| w.mul_add(v[t * dim + first + i], sum));
    }
}

/// The position of the first of the largest values; NaN counts as the smallest.
#[inline(always)]
pub(super) fn argmax(x: &[f32]) -> usize {
    let mut best = [f32::NEG_INFINITY; WIDE];
    let (chunks, rest) = x.as_chunks::<WIDE>();
    for chunk in chunks {
        for i in 0..WIDE {
            best[i] = if chunk[i] > best[i] { chunk[i] } else { best[i] };
        }
    }
    let best = best.iter().chain(rest).fold(f32::NEG_INFINITY, |a, &b| if b > a { b } else { a });
    x.iter().position(|&x| x == best).unwrap_or(0)
}
