//! Kernels of latent attention and of its indexer, in the manner of `lanes.rs`.

use super::attend::{self, soften};
use super::lanes::{dot, products_of};
use super::vector::Eight;
use super::{BLOCK, Heads, Scoring};

/// Values summed side by side.
const WIDE: usize = 32;

/// Folds positions, `rows: [at most BLOCK, heads.dim]`, into every head.
#[inline(always)]
pub(super) fn attend_latent<V: Eight>(heads: &mut Heads, rows: &[f32], latent: usize, scoring: Scoring) {
    let width = heads.dim;
    let seen = rows.len() / width;
    for (i, state) in heads.state.iter_mut().enumerate() {
        let q = &heads.q[i * width..][..width];
        let mut scores = [0f32; BLOCK];
        for (rows, scores) in rows.chunks(4 * width).zip(scores.as_chunks_mut::<4>().0) {
            four::<V>(q, rows, scores);
        }
        let mut of = [V::splat(0.0); attend::WIDE];
        for (of, scores) in of.iter_mut().zip(scores.as_chunks::<8>().0) {
            *of = V::load(scores);
        }
        let ([weights], [shrink]) =
            soften::<V, 1>([of], std::slice::from_ref(&(0..seen)), scoring, std::slice::from_mut(state));
        fold_in(&mut heads.out[i * width..][..latent], &weights[..seen], rows, width, shrink);
    }
}

/// `out[i] = x · rows[i]`. What a row gives does not depend on how many there are.
#[inline(always)]
pub(super) fn dots<V: Eight>(x: &[f32], rows: &[f32], out: &mut [f32]) {
    for (rows, out) in rows.chunks(4 * x.len()).zip(out.chunks_mut(4)) {
        let mut all = [0f32; 4];
        four::<V>(x, rows, &mut all);
        out.copy_from_slice(&all[..out.len()]);
    }
}

/// [`dots`] of one to four rows.
#[inline(always)]
fn four<V: Eight>(x: &[f32], rows: &[f32], out: &mut [f32; 4]) {
    let n = x.len();
    let last = rows.len() / n - 1;
    let row = |i: usize| &rows[i.min(last) * n..][..n];
    products_of::<V, 1>([row(0), row(1), row(2), row(3)], [x], n, std::array::from_mut(out));
}

/// `out = out · shrink + Σ weights[t] · rows[t]`, in ascending order.
#[inline(always)]
fn fold_in(out: &mut [f32], weights: &[f32], rows: &[f32], width: usize, shrink: f32) {
    let (chunks, rest) = out.as_chunks_mut::<WIDE>();
    for (c, chunk) in chunks.iter_mut().enumerate() {
        let mut sums = *chunk;
        for sum in &mut sums {
            *sum *= shrink;
        }
        for (t, weight) in weights.iter().enumerate() {
            let v: &[f32; WIDE] = rows[t * width + c * WIDE..].first_chunk().unwrap_or(&[0.0; WIDE]);
            for i in 0..WIDE {
                sums[i] = weight.mul_add(v[i], sums[i]);
            }
        }
        *chunk = sums;
    }
    let first = chunks.len() * WIDE;
    for (i, out) in rest.iter_mut().enumerate() {
        let mut sum = *out * shrink;
        for (t, weight) in weights.iter().enumerate() {
            sum = weight.mul_add(rows[t * width + first + i], sum);
        }
        *out = sum;
    }
}

/// `out[i] = Σ over heads h of weights[h] · max(0, q[h]·keys[i])`.
#[inline(always)]
pub(super) fn index_scores<V: Eight>(q: &[f32], weights: &[f32], keys: &[f32], out: &mut [f32]) {
    let dim = q.len() / weights.len();
    for (key, out) in keys.chunks_exact(dim).zip(out) {
        let mut sum = 0f32;
        for (heads, weights) in q.chunks(4 * dim).zip(weights.chunks(4)) {
            let mut scores = [0f32; 4];
            four::<V>(key, heads, &mut scores);
            for (&weight, &score) in weights.iter().zip(&scores) {
                sum = weight.mul_add(if score > 0.0 { score } else { 0.0 }, sum);
            }
        }
        *out = sum;
    }
}

/// `x = (x − mean(x)) / sqrt(var(x) + eps) ⊙ weight + bias`.
#[inline(always)]
pub(super) fn layer_norm<V: Eight>(x: &mut [f32], weight: &[f32], bias: &[f32], eps: f32) {
    let n = x.len() as f32;
    let mut sum = 0f32;
    for &v in x.iter() {
        sum += v;
    }
    let mean = sum / n;
    for v in x.iter_mut() {
        *v -= mean;
    }
    let factor = 1.0 / (dot::<V>(x, x) / n + eps).sqrt();
    for ((x, w), b) in x.iter_mut().zip(weight).zip(bias) {
        *x = (*x * factor).mul_add(*w, *b);
    }
}
