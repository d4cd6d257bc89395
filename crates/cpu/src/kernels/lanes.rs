//! Kernels in f32, written once in plain Rust over small arrays that stand for vector registers. Every tier compiles
//! the same code for its own instructions: `mul_add` is one instruction there and a library call in the scalar tier,
//! but rounds once in both, so that all tiers give the same bits.
//!
//! Loops instead of closures around `mul_add`: a closure that is not inlined would be compiled without the tier.
//!
//! The order of every sum is a function of the length alone, never of how many rows are computed together.

use super::{ActBlock, BLOCK, Heads, QUANT, Scoring};
use std::ops::Range;

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

/// `w · x` of one weight row with four rows, two at a time; each result has the bits of [`dot`].
#[inline(always)]
pub(super) fn dot4(w: &[f32], x: [&[f32]; 4]) -> [f32; 4] {
    let (a, b) = dot2(w, x[0], x[1]);
    let (c, d) = dot2(w, x[2], x[3]);
    [a, b, c, d]
}

#[inline(always)]
fn dot2(w: &[f32], x: &[f32], y: &[f32]) -> (f32, f32) {
    let (w_chunks, w_rest) = w.as_chunks::<WIDE>();
    let (x_chunks, x_rest) = x.as_chunks::<WIDE>();
    let (y_chunks, y_rest) = y.as_chunks::<WIDE>();
    let (mut x_sums, mut y_sums) = ([0f32; WIDE], [0f32; WIDE]);
    for ((w, x), y) in w_chunks.iter().zip(x_chunks).zip(y_chunks) {
        for i in 0..WIDE {
            x_sums[i] = w[i].mul_add(x[i], x_sums[i]);
            y_sums[i] = w[i].mul_add(y[i], y_sums[i]);
        }
    }
    for i in 0..w_rest.len() {
        x_sums[i] = w_rest[i].mul_add(x_rest[i], x_sums[i]);
        y_sums[i] = w_rest[i].mul_add(y_rest[i], y_sums[i]);
    }
    (fold(x_sums), fold(y_sums))
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

/// `out = gelu(gate) ⊙ up`: `(1 + tanh(u)) / 2` is `1 / (1 + exp(-2u))`.
#[inline(always)]
pub(super) fn gelu_mul(gate: &[f32], up: &[f32], out: &mut [f32]) {
    const FACTOR: f32 = std::f32::consts::FRAC_2_SQRT_PI * std::f32::consts::SQRT_2; // 2 √(2/π)
    for ((out, &g), &u) in out.iter_mut().zip(gate).zip(up) {
        *out = g / (1.0 + exp(-FACTOR * (g + 0.044_715 * g * g * g))) * u;
    }
}

/// `out = g / (1 + exp(-alpha · g)) ⊙ (u + 1)`.
#[inline(always)]
pub(super) fn clamped_swiglu(gate: &[f32], up: &[f32], alpha: f32, limit: f32, out: &mut [f32]) {
    for ((out, &g), &u) in out.iter_mut().zip(gate).zip(up) {
        let (g, u) = (g.min(limit), u.clamp(-limit, limit));
        *out = g / (1.0 + exp(-alpha * g)) * (u + 1.0);
    }
}

/// `sum += factor · x`.
#[inline(always)]
pub(super) fn add_scaled(sum: &mut [f32], x: &[f32], factor: f32) {
    for (sum, x) in sum.iter_mut().zip(x) {
        *sum = x.mul_add(factor, *sum);
    }
}

/// `x = cap · tanh(x / cap)`.
#[inline(always)]
pub(super) fn softcap(x: &mut [f32], cap: f32) {
    for x in x {
        *x = capped(*x, cap);
    }
}

/// `cap · tanh(x / cap)`, wrong by at most a few units in the last place of `cap`.
#[inline(always)]
fn capped(x: f32, cap: f32) -> f32 {
    cap - 2.0 * cap / (exp(2.0 * x / cap) + 1.0)
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

/// Quantizes a row to 8 bits: per 32 values one scale, `max |x| / 127`, and the sums of the integers.
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
        let halves = [scale * low as f32, scale * high as f32];
        *block = ActBlock { scale, weighted: scale * (low + high) as f32, halves };
    }
}

/// One KV block's worth of attention for some query heads that share its KV head: scores of the block's positions
/// `valid[i]`, folded into query head `i`'s running softmax (Milakov and Gimelshein 2018).
/// `k` is `[head_dim, BLOCK]`, `v` is `[BLOCK, head_dim]`. Two heads at a time share what is loaded.
#[inline(always)]
pub(super) fn attend(heads: &mut Heads, valid: &[Range<usize>], k: &[f32], v: &[f32], scoring: Scoring) {
    let dim = heads.dim;
    let mut i = 0;
    while i < valid.len() {
        if i + 1 < valid.len() {
            let (q, out) = (&heads.q[i * dim..][..2 * dim], &mut heads.out[i * dim..][..2 * dim]);
            let ((q0, q1), (out0, out1)) = (q.split_at(dim), out.split_at_mut(dim));
            let (scores0, scores1) = scores2(q0, q1, k);
            let (valid0, valid1) = (&valid[i], &valid[i + 1]);
            let (weights0, mut shrink0) = soften(&scores0, valid0, scoring, &mut heads.state[i]);
            let (weights1, mut shrink1) = soften(&scores1, valid1, scoring, &mut heads.state[i + 1]);
            let start = valid0.start.max(valid1.start);
            let common = start..valid0.end.min(valid1.end).max(start);
            // What one of the two sees before the other, in a window.
            if valid0.start < start {
                accumulate(out0, &weights0, valid0.start..start.min(valid0.end), v, shrink0);
                shrink0 = 1.0;
            }
            if valid1.start < start {
                accumulate(out1, &weights1, valid1.start..start.min(valid1.end), v, shrink1);
                shrink1 = 1.0;
            }
            accumulate2([out0, out1], [&weights0, &weights1], &common, v, [shrink0, shrink1]);
            accumulate(out0, &weights0, common.end..valid0.end, v, 1.0);
            accumulate(out1, &weights1, common.end..valid1.end, v, 1.0);
        } else {
            let scores = scores(&heads.q[i * dim..][..dim], k);
            let (weights, shrink) = soften(&scores, &valid[i], scoring, &mut heads.state[i]);
            accumulate(&mut heads.out[i * dim..][..dim], &weights, valid[i].clone(), v, shrink);
        }
        i += 2;
    }
}

#[inline(always)]
fn scores(q: &[f32], k: &[f32]) -> [f32; BLOCK] {
    let mut scores = [0f32; BLOCK];
    for (q, k) in q.iter().zip(k.as_chunks::<BLOCK>().0) {
        for t in 0..BLOCK {
            scores[t] = q.mul_add(k[t], scores[t]);
        }
    }
    scores
}

#[inline(always)]
fn scores2(a: &[f32], b: &[f32], k: &[f32]) -> ([f32; BLOCK], [f32; BLOCK]) {
    let (mut of_a, mut of_b) = ([0f32; BLOCK], [0f32; BLOCK]);
    for ((a, b), k) in a.iter().zip(b).zip(k.as_chunks::<BLOCK>().0) {
        for t in 0..BLOCK {
            of_a[t] = a.mul_add(k[t], of_a[t]);
            of_b[t] = b.mul_add(k[t], of_b[t]);
        }
    }
    (of_a, of_b)
}

/// Folds scores into a head's running maximum and sum; gives the positions' weights and the factor on what was before.
#[inline(always)]
fn soften(
    scores: &[f32; BLOCK],
    valid: &Range<usize>,
    scoring: Scoring,
    state: &mut (f32, f32),
) -> ([f32; BLOCK], f32) {
    if valid.is_empty() {
        return ([0.0; BLOCK], 1.0);
    }
    let (max, sum) = state;
    let mut weights = *scores;
    for weight in &mut weights {
        *weight *= scoring.scale;
    }
    if let Some(cap) = scoring.softcap {
        softcap(&mut weights, cap);
    }
    for (t, weight) in weights.iter_mut().enumerate() {
        // Beyond `valid` the cache holds anything, NaN too.
        *weight = if t >= valid.start && t < valid.end { *weight } else { f32::NEG_INFINITY };
    }
    let mut most = weights;
    let mut n = BLOCK / 2;
    while n > 0 {
        for t in 0..n {
            most[t] = if most[t + n] > most[t] { most[t + n] } else { most[t] };
        }
        n /= 2;
    }
    let new_max = max.max(most[0]);
    let shrink = exp(*max - new_max);
    for weight in &mut weights {
        *weight = exp(*weight - new_max);
    }
    *sum = sum.mul_add(shrink, fold(weights));
    *max = new_max;
    (weights, shrink)
}

/// `out = out · shrink + Σ weights[t] · v[t]` over `positions`, in ascending order.
#[inline(always)]
fn accumulate(out: &mut [f32], weights: &[f32; BLOCK], positions: Range<usize>, v: &[f32], shrink: f32) {
    let dim = out.len();
    if positions.is_empty() && shrink == 1.0 {
        return;
    }
    let (chunks, rest) = out.as_chunks_mut::<WIDE>();
    for (c, chunk) in chunks.iter_mut().enumerate() {
        let mut sums = *chunk;
        for sum in &mut sums {
            *sum *= shrink;
        }
        for t in positions.clone() {
            let v: &[f32; WIDE] = v[t * dim + c * WIDE..].first_chunk().unwrap_or(&[0.0; WIDE]);
            for i in 0..WIDE {
                sums[i] = weights[t].mul_add(v[i], sums[i]);
            }
        }
        *chunk = sums;
    }
    let first = dim - rest.len();
    for (i, out) in rest.iter_mut().enumerate() {
        let mut sum = *out * shrink;
        for t in positions.clone() {
            sum = weights[t].mul_add(v[t * dim + first + i], sum);
        }
        *out = sum;
    }
}

/// [`accumulate`] for two heads over the positions that both see.
#[inline(always)]
fn accumulate2(out: [&mut [f32]; 2], weights: [&[f32; BLOCK]; 2], common: &Range<usize>, v: &[f32], shrink: [f32; 2]) {
    let [out0, out1] = out;
    let dim = out0.len();
    let whole = dim / WIDE * WIDE;
    for first in (0..whole).step_by(WIDE) {
        let (mut sums0, mut sums1) = ([0f32; WIDE], [0f32; WIDE]);
        for i in 0..WIDE {
            sums0[i] = out0[first + i] * shrink[0];
            sums1[i] = out1[first + i] * shrink[1];
        }
        for t in common.clone() {
            let v: &[f32; WIDE] = v[t * dim + first..].first_chunk().unwrap_or(&[0.0; WIDE]);
            for i in 0..WIDE {
                sums0[i] = weights[0][t].mul_add(v[i], sums0[i]);
                sums1[i] = weights[1][t].mul_add(v[i], sums1[i]);
            }
        }
        out0[first..first + WIDE].copy_from_slice(&sums0);
        out1[first..first + WIDE].copy_from_slice(&sums1);
    }
    for i in whole..dim {
        let (mut sum0, mut sum1) = (out0[i] * shrink[0], out1[i] * shrink[1]);
        for t in common.clone() {
            sum0 = weights[0][t].mul_add(v[t * dim + i], sum0);
            sum1 = weights[1][t].mul_add(v[t * dim + i], sum1);
        }
        (out0[i], out1[i]) = (sum0, sum1);
    }
}

/// Upper halves of floats as floats.
#[inline(always)]
pub(super) fn widen_bf16(halves: &[u16], out: &mut [f32]) {
    for (out, &half) in out.iter_mut().zip(halves) {
        *out = f32::from_bits(u32::from(half) << 16);
    }
}

/// `[dim, BLOCK]` integers times the scale of their position and group of dims.
#[inline(always)]
pub(super) fn widen_keys(quants: &[i8], scales: &[f32], out: &mut [f32]) {
    let groups = quants.chunks_exact(QUANT * BLOCK).zip(out.chunks_exact_mut(QUANT * BLOCK));
    for ((quants, out), scales) in groups.zip(scales.as_chunks::<BLOCK>().0) {
        for (quants, out) in quants.as_chunks::<BLOCK>().0.iter().zip(out.as_chunks_mut::<BLOCK>().0) {
            for t in 0..BLOCK {
                out[t] = f32::from(quants[t]) * scales[t];
            }
        }
    }
}

/// `[BLOCK, dim]` integers, each group of neighbours times its scale.
#[inline(always)]
pub(super) fn widen_values(quants: &[i8], scales: &[f32], out: &mut [f32]) {
    let groups = quants.as_chunks::<QUANT>().0.iter().zip(out.as_chunks_mut::<QUANT>().0);
    for ((quants, out), &scale) in groups.zip(scales) {
        for i in 0..QUANT {
            out[i] = f32::from(quants[i]) * scale;
        }
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
