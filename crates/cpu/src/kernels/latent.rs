//! Kernels of latent attention and of its indexer, in the manner of `lanes.rs`.

use super::lanes::{dot, dot4, soften};
use super::{BLOCK, Heads, Scoring};

/// Values summed side by side.
const WIDE: usize = 32;

/// Folds positions, `rows: [at most BLOCK, heads.dim]`, into every head.
#[inline(always)]
pub(super) fn attend_latent(heads: &mut Heads, rows: &[f32], latent: usize, scoring: Scoring) {
    let width = heads.dim;
    let seen = rows.len() / width;
    let row = |i: usize| &rows[i * width..][..width];
    for (i, state) in heads.state.iter_mut().enumerate() {
        let q = &heads.q[i * width..][..width];
        let mut scores = [0f32; BLOCK];
        let mut t = 0;
        while t + 4 <= seen {
            scores[t..t + 4].copy_from_slice(&dot4(q, [row(t), row(t + 1), row(t + 2), row(t + 3)]));
            t += 4;
        }
        while t < seen {
            scores[t] = dot(q, row(t));
            t += 1;
        }
        let (weights, shrink) = soften(&scores, &(0..seen), scoring, state);
        fold_in(&mut heads.out[i * width..][..latent], &weights[..seen], rows, width, shrink);
    }
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
pub(super) fn index_scores(q: &[f32], weights: &[f32], keys: &[f32], out: &mut [f32]) {
    let dim = q.len() / weights.len();
    for (key, out) in keys.chunks_exact(dim).zip(out) {
        let head = |h: usize| &q[h * dim..][..dim];
        let mut sum = 0f32;
        let mut h = 0;
        while h + 4 <= weights.len() {
            let products = dot4(key, [head(h), head(h + 1), head(h + 2), head(h + 3)]);
            for i in 0..4 {
                sum = weights[h + i].mul_add(if products[i] > 0.0 { products[i] } else { 0.0 }, sum);
            }
            h += 4;
        }
        while h < weights.len() {
            let product = dot(key, head(h));
            sum = weights[h].mul_add(if product > 0.0 { product } else { 0.0 }, sum);
            h += 1;
        }
        *out = sum;
    }
}

/// `x = (x − mean(x)) / sqrt(var(x) + eps) ⊙ weight + bias`.
#[inline(always)]
pub(super) fn layer_norm(x: &mut [f32], weight: &[f32], bias: &[f32], eps: f32) {
    let n = x.len() as f32;
    let mut sum = 0f32;
    for &v in x.iter() {
        sum += v;
    }
    let mean = sum / n;
    for v in x.iter_mut() {
        *v -= mean;
    }
    let factor = 1.0 / (dot(x, x) / n + eps).sqrt();
    for ((x, w), b) in x.iter_mut().zip(weight).zip(bias) {
        *x = (*x * factor).mul_add(*w, *b);
    }
}
