//! Attention's inner part: one KV block for some query heads that share its KV head, folded into their running softmax
//! (Milakov and Gimelshein 2018). Up to four heads at a time share what is loaded; what a head gets does not depend on
//! its company.
#![allow(clippy::needless_range_loop)]

use super::lanes::{capped, exp};
use super::vector::Eight;
use super::{BLOCK, Heads, Scoring};
use std::ops::Range;

/// Registers that hold a block's positions.
pub(super) const WIDE: usize = BLOCK / 8;

/// Folds the positions `valid[i]` of a block into head `i`. `k` is `[head_dim, BLOCK]`, `v` is `[BLOCK, head_dim]`.
#[inline(always)]
pub(super) fn attend<V: Eight>(heads: &mut Heads, valid: &[Range<usize>], k: &[f32], v: &[f32], scoring: Scoring) {
    let mut first = 0;
    while first < valid.len() {
        let left = valid.len() - first;
        // Four, two or one: what is compiled for each takes its time.
        let n = [4, 2, 1].into_iter().find(|&n| n <= left).unwrap_or(1);
        match n {
            4 => together::<V, 4>(heads, first, valid, k, v, scoring),
            2 => together::<V, 2>(heads, first, valid, k, v, scoring),
            _ => together::<V, 1>(heads, first, valid, k, v, scoring),
        }
        first += n;
    }
}

#[inline(always)]
fn together<V: Eight, const N: usize>(
    heads: &mut Heads,
    first: usize,
    valid: &[Range<usize>],
    k: &[f32],
    v: &[f32],
    scoring: Scoring,
) {
    let dim = heads.dim;
    let valid = &valid[first..first + N];
    let q = &heads.q[first * dim..][..N * dim];
    let out = &mut heads.out[first * dim..][..N * dim];
    let state = &mut heads.state[first..first + N];
    let scores = scores::<V, N>(q, dim, k);
    let (weights, shrink) = soften::<V, N>(scores, valid, scoring, state);

    if valid.iter().all(|of_one| *of_one == valid[0]) {
        accumulate::<V, N>(out, dim, &weights, valid[0].clone(), v, &shrink);
        return;
    }
    // At the causal diagonal and at a window's edge they see different positions.
    for (i, valid) in valid.iter().enumerate() {
        let (out, weights) = (&mut out[i * dim..][..dim], &weights[i..=i]);
        accumulate::<V, 1>(out, dim, weights, valid.clone(), v, &[shrink[i]]);
    }
}

/// `Σ q·k` of every position of the block.
#[inline(always)]
fn scores<V: Eight, const N: usize>(q: &[f32], dim: usize, k: &[f32]) -> [[V; WIDE]; N] {
    assert!(q.len() >= N * dim && k.len() >= dim * BLOCK);
    let mut sums = [[V::splat(0.0); WIDE]; N];
    for d in 0..dim {
        // SAFETY: `N · dim` queries and `dim · BLOCK` keys are there, which was just checked.
        unsafe {
            let mut of_k = [V::splat(0.0); WIDE];
            for w in 0..WIDE {
                of_k[w] = V::from(k.as_ptr().add(d * BLOCK + 8 * w));
            }
            for i in 0..N {
                let q = V::splat(*q.as_ptr().add(i * dim + d));
                for w in 0..WIDE {
                    sums[i][w] = q.fma(of_k[w], sums[i][w]);
                }
            }
        }
    }
    sums
}

/// Folds scores into the heads' running maxima and sums; gives the positions' weights and the factors on what was
/// before.
#[inline(always)]
pub(super) fn soften<V: Eight, const N: usize>(
    mut scores: [[V; WIDE]; N],
    valid: &[Range<usize>],
    scoring: Scoring,
    state: &mut [(f32, f32)],
) -> ([[f32; BLOCK]; N], [f32; N]) {
    const POSITIONS: [[f32; 8]; WIDE] = positions();
    let (mut most, mut before) = ([f32::NEG_INFINITY; 8], [f32::NEG_INFINITY; 8]);
    for i in 0..N {
        let nothing = V::splat(f32::NEG_INFINITY);
        let mut largest = nothing;
        for w in 0..WIDE {
            let mut score = scores[i][w].mul(V::splat(scoring.scale));
            if let Some(cap) = scoring.softcap {
                score = capped(score, V::splat(cap));
            }
            if valid[i] != (0..BLOCK) {
                // Beyond `valid` the cache holds anything, NaN too.
                let at = V::load(&POSITIONS[w]);
                let seen = at.pick_below(V::splat(valid[i].end as f32), score, nothing);
                score = at.pick_below(V::splat(valid[i].start as f32), nothing, seen);
            }
            scores[i][w] = score;
            largest = score.max(largest);
        }
        before[i] = state[i].0;
        let largest = largest.largest();
        most[i] = if largest > before[i] { largest } else { before[i] };
    }
    let mut shrinks = [0.0; 8];
    exp(V::load(&before).sub(V::load(&most))).store(&mut shrinks);
    let (mut weights, mut shrink) = ([[0.0; BLOCK]; N], [1.0; N]);
    for i in 0..N {
        if valid[i].is_empty() {
            continue;
        }
        let max = V::splat(most[i]);
        let mut sum = V::splat(0.0);
        for w in 0..WIDE {
            let weight = exp(scores[i][w].sub(max));
            weight.store(&mut weights[i].as_chunks_mut::<8>().0[w]);
            sum = sum.add(weight);
        }
        shrink[i] = shrinks[i];
        state[i] = (most[i], state[i].1.mul_add(shrinks[i], sum.sum()));
    }
    (weights, shrink)
}

const fn positions() -> [[f32; 8]; WIDE] {
    let mut all = [[0.0; 8]; WIDE];
    let mut t = 0;
    while t < BLOCK {
        all[t / 8][t % 8] = t as f32;
        t += 1;
    }
    all
}

/// `out = out · shrink + Σ weights[t] · v[t]` over `positions`, in ascending order, for `N` heads of `dim` values.
#[inline(always)]
fn accumulate<V: Eight, const N: usize>(
    out: &mut [f32],
    dim: usize,
    weights: &[[f32; BLOCK]],
    positions: Range<usize>,
    v: &[f32],
    shrink: &[f32; N],
) {
    if positions.is_empty() && shrink.iter().all(|&s| s == 1.0) {
        return;
    }
    let mut d = 0;
    while d + 16 <= dim {
        columns::<V, N, 2>(out, dim, d, weights, &positions, v, shrink);
        d += 16;
    }
    while d + 8 <= dim {
        columns::<V, N, 1>(out, dim, d, weights, &positions, v, shrink);
        d += 8;
    }
    for d in d..dim {
        for i in 0..N {
            let mut sum = out[i * dim + d] * shrink[i];
            for t in positions.clone() {
                sum = weights[i][t].mul_add(v[t * dim + d], sum);
            }
            out[i * dim + d] = sum;
        }
    }
}

/// `8 W` columns of it, from `d` on.
#[inline(always)]
pub(super) fn columns<V: Eight, const N: usize, const W: usize>(
    out: &mut [f32],
    dim: usize,
    d: usize,
    weights: &[[f32; BLOCK]],
    positions: &Range<usize>,
    v: &[f32],
    shrink: &[f32; N],
) {
    assert!(out.len() >= N * dim && weights.len() >= N && d + 8 * W <= dim);
    assert!(positions.end <= BLOCK && v.len() >= positions.end * dim);
    let mut sums = [[V::splat(0.0); W]; N];
    // SAFETY: all places are inside what was just checked.
    unsafe {
        for i in 0..N {
            for w in 0..W {
                sums[i][w] = V::from(out.as_ptr().add(i * dim + d + 8 * w)).mul(V::splat(shrink[i]));
            }
        }
        let v = v.as_ptr().add(d);
        if *positions == (0..BLOCK) {
            // The usual case: a loop of fixed length.
            for t in 0..BLOCK {
                position::<V, N, W>(&mut sums, weights, t, v.add(t * dim));
            }
        } else {
            for t in positions.clone() {
                position::<V, N, W>(&mut sums, weights, t, v.add(t * dim));
            }
        }
        for i in 0..N {
            for w in 0..W {
                sums[i][w].to(out.as_mut_ptr().add(i * dim + d + 8 * w));
            }
        }
    }
}

/// Adds `weights[t] · v` to `8 W` columns.
///
/// # Safety
/// As many heads have weights, and as many values are at `v`.
#[inline(always)]
unsafe fn position<V: Eight, const N: usize, const W: usize>(
    sums: &mut [[V; W]; N],
    weights: &[[f32; BLOCK]],
    t: usize,
    v: *const f32,
) {
    // SAFETY: the caller vouches for both.
    unsafe {
        let mut of_v = [V::splat(0.0); W];
        for w in 0..W {
            of_v[w] = V::from(v.add(8 * w));
        }
        for i in 0..N {
            let weight = V::splat(*weights.get_unchecked(i).get_unchecked(t));
            for w in 0..W {
                sums[i][w] = weight.fma(of_v[w], sums[i][w]);
            }
        }
    }
}
