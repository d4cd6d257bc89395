//! Latent attention's inner part and its indexer's: positions lie as rows, and all heads read the same ones.
#![allow(clippy::needless_range_loop)]

use super::attend::{WIDE, columns, soften};
use super::lanes::{padded, products_of};
use super::vector::Eight;
use super::{BLOCK, Heads, Scoring};
use std::ops::Range;

/// Heads that go together.
const HEADS: usize = 4;

/// Folds the positions `valid[i]` of `rows: [BLOCK, heads.dim]` into head `first + i`.
#[inline(always)]
pub(super) fn attend_latent<V: Eight>(
    heads: &mut Heads,
    first: usize,
    valid: &[Range<usize>],
    rows: &[f32],
    latent: usize,
    scoring: Scoring,
) {
    let mut i = 0;
    while i < valid.len() {
        let n = (valid.len() - i).min(HEADS);
        let valid = &valid[i..i + n];
        match n {
            4 => together::<V, 4>(heads, first + i, valid, rows, latent, scoring),
            3 => together::<V, 3>(heads, first + i, valid, rows, latent, scoring),
            2 => together::<V, 2>(heads, first + i, valid, rows, latent, scoring),
            _ => together::<V, 1>(heads, first + i, valid, rows, latent, scoring),
        }
        i += n;
    }
}

#[inline(always)]
fn together<V: Eight, const N: usize>(
    heads: &mut Heads,
    first: usize,
    valid: &[Range<usize>],
    rows: &[f32],
    latent: usize,
    scoring: Scoring,
) {
    let dim = heads.dim;
    let seen = valid.iter().map(|v| v.end).max().unwrap_or(0);
    let mut q: [&[f32]; N] = [&[]; N];
    for i in 0..N {
        q[i] = &heads.q[(first + i) * dim..][..dim];
    }
    let mut scores = [[0f32; BLOCK]; N];
    let mut t = 0;
    while t < seen {
        let row = |i: usize| &rows[(t + i) * dim..][..dim];
        let mut four = [[0f32; 4]; N];
        products_of::<V, N>([row(0), row(1), row(2), row(3)], q, dim, &mut four);
        for i in 0..N {
            scores[i][t..t + 4].copy_from_slice(&four[i]);
        }
        t += 4;
    }
    let mut wide = [[V::splat(0.0); WIDE]; N];
    for i in 0..N {
        for w in 0..WIDE {
            wide[i][w] = V::load(&scores[i].as_chunks::<8>().0[w]);
        }
    }
    let (weights, shrink) = soften::<V, N>(wide, valid, scoring, &mut heads.state[first..first + N]);
    let out = &mut heads.out[first * dim..][..N * dim];
    // What only some of the heads see has no weight for the others.
    let positions = 0..seen;
    let mut d = 0;
    while d + 16 <= latent {
        columns::<V, N, 2>(out, dim, d, &weights, &positions, rows, &shrink);
        d += 16;
    }
    while d + 8 <= latent {
        columns::<V, N, 1>(out, dim, d, &weights, &positions, rows, &shrink);
        d += 8;
    }
    for d in d..latent {
        for i in 0..N {
            let mut sum = out[i * dim + d] * shrink[i];
            for t in positions.clone() {
                sum = weights[i][t].mul_add(rows[t * dim + d], sum);
            }
            out[i * dim + d] = sum;
        }
    }
}

/// `out[i] = Σ over heads h of weights[h] · max(0, q[h]·keys[i])`, in ascending order; a multiple of four of them.
#[inline(always)]
pub(super) fn index_scores<V: Eight>(q: &[f32], weights: &[f32], keys: &[f32], out: &mut [f32]) {
    let dim = q.len() / weights.len();
    for (keys, out) in keys.chunks_exact(4 * dim).zip(out.as_chunks_mut::<4>().0) {
        let key = |i: usize| &keys[i * dim..][..dim];
        let head = |h: usize| &q[h * dim..][..dim];
        let mut sums = [0f32; 4];
        let mut h = 0;
        while h < weights.len() {
            let two = h + 1 < weights.len();
            let mut products = [[0f32; 4]; 2];
            let of_keys = [key(0), key(1), key(2), key(3)];
            if two {
                products_of::<V, 2>(of_keys, [head(h), head(h + 1)], dim, &mut products);
            } else {
                let [one, _] = &mut products;
                products_of::<V, 1>(of_keys, [head(h)], dim, std::array::from_mut(one));
            }
            for i in 0..1 + usize::from(two) {
                for t in 0..4 {
                    let product = if products[i][t] > 0.0 { products[i][t] } else { 0.0 };
                    sums[t] = weights[h + i].mul_add(product, sums[t]);
                }
            }
            h += 2;
        }
        *out = sums;
    }
}

/// `x = (x − mean(x)) / sqrt(var(x) + eps) ⊙ weight + bias`.
#[inline(always)]
pub(super) fn layer_norm<V: Eight>(x: &mut [f32], weight: &[f32], bias: &[f32], eps: f32) {
    let n = x.len() as f32;
    let mut sum = V::splat(0.0);
    for x in x.chunks(8) {
        sum = sum.add(V::load(&padded(x)));
    }
    let mean = sum.sum() / n;
    let mut squares = V::splat(0.0);
    for x in x.chunks_mut(8) {
        for x in x.iter_mut() {
            *x -= mean;
        }
        let x = V::load(&padded(x));
        squares = x.fma(x, squares);
    }
    let factor = 1.0 / (squares.sum() / n + eps).sqrt();
    for ((x, w), b) in x.iter_mut().zip(weight).zip(bias) {
        *x = (*x * factor).mul_add(*w, *b);
    }
}
