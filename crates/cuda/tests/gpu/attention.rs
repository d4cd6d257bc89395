//! Attention kernels against plain loops in f64: the fused decode kernel, and preparation plus tiles of rows.

use crate::lab::{Lab, close, noise};
use tombolo_cuda::driver::DevicePtr;
use tombolo_cuda::kernels::attention::{
    Attention, CacheType, Shape, attention_decode, attention_rows, layer_bytes, rope_kv_write,
};
use tombolo_model::{BLOCK_TOKENS, KvGroup, RopeStyle};

const BLOCKS: usize = 512;

/// One case: sequences of which the last `new` tokens are run now, the ones before are in the cache.
struct Case {
    shape: Shape,
    style: RopeStyle,
    pairs: usize,
    norms: bool,
    /// `(tokens before, tokens now)` per sequence.
    sequences: Vec<(usize, usize)>,
}

/// Keys and values of one sequence as they should be in the cache, and everything of its rows.
struct Plain {
    keys: Vec<Vec<f32>>,
    values: Vec<Vec<f32>>,
}

fn round(shape: &Shape, v: f32) -> f32 {
    if shape.cache == CacheType::F16 { half::f16::from_f32(v).to_f32() } else { v }
}

/// A head's values normed and turned, in f64.
fn prepare(case: &Case, x: &[f32], norm: &[f32], frequencies: &[f32], position: usize) -> Vec<f32> {
    let mean = x.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / x.len() as f64;
    let scale = if case.norms { 1.0 / (mean + 1e-6).sqrt() } else { 1.0 };
    let weight = |i: usize| if case.norms { f64::from(norm[i]) } else { 1.0 };
    let mut y: Vec<f64> = x.iter().enumerate().map(|(i, &v)| f64::from(v) * scale * weight(i)).collect();
    for (j, &frequency) in frequencies.iter().enumerate() {
        let (a, b) = match case.style {
            RopeStyle::Interleaved => (2 * j, 2 * j + 1),
            RopeStyle::HalfSplit => (j, j + case.pairs),
        };
        let (sin, cos) = f64::from(position as f32 * frequency).sin_cos();
        (y[a], y[b]) = (y[a] * cos - y[b] * sin, y[b] * cos + y[a] * sin);
    }
    y.into_iter().map(|v| v as f32).collect()
}

fn attend(case: &Case, q: &[f32], plain: &Plain, kv_head: usize, seen: usize) -> Vec<f32> {
    let dim = case.shape.head_dim;
    let part = kv_head * dim..(kv_head + 1) * dim;
    let scale = 1.0 / (dim as f64).sqrt();
    let scores: Vec<f64> = plain.keys[..seen]
        .iter()
        .map(|k| k[part.clone()].iter().zip(q).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>() * scale)
        .collect();
    let most = scores.iter().copied().fold(f64::MIN, f64::max);
    let weights: Vec<f64> = scores.iter().map(|s| (s - most).exp()).collect();
    let total: f64 = weights.iter().sum();
    let mut out = vec![0.0f64; dim];
    for (w, v) in weights.iter().zip(&plain.values) {
        out.iter_mut().zip(&v[part.clone()]).for_each(|(o, v)| *o += w * f64::from(*v));
    }
    out.into_iter().map(|o| (o / total) as f32).collect()
}

/// Scattered, never shared, and different from sequence to sequence.
fn block(sequence: usize, index: usize) -> usize {
    (sequence * 97 + index * 5) % BLOCKS
}

fn run(case: &Case, fused: bool) {
    let lab = Lab::new(0);
    let s = &case.shape;
    let (dim, kv_width, q_width) = (s.head_dim, s.kv_heads * s.head_dim, s.heads * s.head_dim);
    let frequencies: Vec<f32> = (0..case.pairs).map(|j| 10_000f32.powf(-(j as f32) / case.pairs as f32)).collect();
    let (q_norm, k_norm) = (noise(1, dim), noise(2, dim));
    let table_len = case.sequences.iter().map(|(a, b)| (a + b).div_ceil(BLOCK_TOKENS)).max().unwrap() + 3;
    // What was never written must not matter.
    let group = KvGroup { name: "kv", layers: 1, kv_heads: s.kv_heads, head_dim: dim };
    let poison = if s.cache == CacheType::F16 { 0x7e00_7e00u32 } else { f32::NAN.to_bits() };
    let mut cache = vec![poison; layer_bytes(&group, BLOCKS, s.cache) / 4];
    let mut store = |block: usize, part: usize, head: usize, token: usize, values: &[f32]| {
        let at = (((block * 2 + part) * s.kv_heads + head) * BLOCK_TOKENS + token) * dim;
        for (i, &v) in values.iter().enumerate() {
            if s.cache == CacheType::F32 {
                cache[at + i] = v.to_bits();
            } else {
                let (word, shift) = ((at + i) / 2, 16 * ((at + i) as u32 % 2));
                cache[word] = cache[word] & !(0xffff << shift) | u32::from(half::f16::from_f32(v).to_bits()) << shift;
            }
        }
    };
    let (mut positions, mut sequence_of, mut tables, mut tiles) = (vec![], vec![], vec![], vec![]);
    let (mut q, mut k, mut v, mut want) = (vec![], vec![], vec![], vec![]);
    for (n, &(before, now)) in case.sequences.iter().enumerate() {
        let seed = 100 * n as u32;
        let mut plain = Plain { keys: vec![], values: vec![] };
        for t in 0..before {
            let rounded = |values: Vec<f32>| -> Vec<f32> { values.into_iter().map(|v| round(s, v)).collect() };
            plain.keys.push(rounded(noise(seed + 7000 + t as u32, kv_width)));
            plain.values.push(rounded(noise(seed + 90_000 + t as u32, kv_width)));
            for head in 0..s.kv_heads {
                let part = head * dim..(head + 1) * dim;
                let at = block(n, t / BLOCK_TOKENS);
                store(at, 0, head, t % BLOCK_TOKENS, &plain.keys[t][part.clone()]);
                store(at, 1, head, t % BLOCK_TOKENS, &plain.values[t][part]);
            }
        }
        for t in before..before + now {
            let (first, row) = (positions.len(), positions.len() as u32);
            if tiles.last().is_none_or(|&[at, rows]: &[u32; 2]| {
                rows as usize == s.tile_rows() || sequence_of[at as usize] != n as u32
            }) {
                tiles.push([first as u32, 0]);
            }
            tiles.last_mut().unwrap()[1] += 1;
            positions.push(t as u32);
            sequence_of.push(n as u32);
            let (row_q, row_k, row_v) = (noise(row + 11, q_width), noise(row + 3000, kv_width), noise(row + 5000, kv_width));
            let heads = |x: &[f32], norm: &[f32]| -> Vec<f32> {
                x.chunks_exact(dim).flat_map(|h| prepare(case, h, norm, &frequencies, t)).collect()
            };
            plain.keys.push(heads(&row_k, &k_norm).into_iter().map(|v| round(s, v)).collect());
            plain.values.push(row_v.iter().map(|&v| round(s, v)).collect());
            for (h, q) in heads(&row_q, &q_norm).chunks_exact(dim).enumerate() {
                want.extend(attend(case, q, &plain, h / (s.heads / s.kv_heads), t + 1));
            }
            q.extend(row_q);
            k.extend(row_k);
            v.extend(row_v);
        }
        let used = (before + now).div_ceil(BLOCK_TOKENS);
        tables.extend((0..table_len).map(|i| if i < used { block(n, i) as u32 } else { 0 }));
    }
    let rows = positions.len();
    // One padding row, as a bucket that is not full has.
    positions.push(u32::MAX);
    sequence_of.push(0);
    let splits = s.splits(rows + 1, table_len, 132);
    let attention = Attention {
        shape: *s,
        q: lab.put(&q),
        k: lab.put(&k),
        v: lab.put(&v),
        out: lab.put(&vec![f32::NAN; (rows + 1) * q_width]),
        strides: [q_width, kv_width, kv_width, q_width],
        layer: lab.put(&cache),
        positions: lab.put(&positions),
        sequences: lab.put(&sequence_of),
        tables: lab.put(&tables),
        table_len,
        tiles: lab.put(&tiles),
        frequencies: lab.put(&frequencies),
        pairs: case.pairs,
        style: case.style,
        norms: if case.norms { [lab.put(&q_norm), lab.put(&k_norm)] } else { [DevicePtr::NULL; 2] },
        eps: 1e-6,
        scale: 1.0 / (dim as f32).sqrt(),
        parts: lab.put(&vec![f32::NAN; s.parts_bytes(rows + 1, splits) / 4]),
        tickets: lab.put(&vec![0u32; s.tickets_bytes(rows + 1) / 4]),
        early: fused,
    };
    let mut first: Option<Vec<f32>> = None;
    for _ in 0..2 {
        // SAFETY: every address was put with the length that the shape calls for.
        unsafe {
            if fused {
                attention_decode(&lab.stream, &lab.kernels, &attention, rows + 1, splits).unwrap();
            } else {
                // Rotates in place: a fresh copy for every round.
                lab.stream.upload(attention.q, &q).unwrap();
                rope_kv_write(&lab.stream, &lab.kernels, &attention, rows + 1).unwrap();
                attention_rows(&lab.stream, &lab.kernels, &attention, rows, tiles.len()).unwrap();
            }
        }
        let got = lab.get(attention.out, rows * q_width);
        close(&format!("{s:?} {:?} {:?} fused {fused}", case.style, case.sequences), &got, &want, 1e-8);
        // The second round also proves that the tickets are zero again.
        assert!(first.as_ref().is_none_or(|f| *f == got), "the order of the splits must not matter");
        first = Some(got);
    }
}

fn shapes(cache: CacheType) -> Vec<Shape> {
    [(4, 4, 64), (9, 3, 64), (8, 2, 32), (32, 8, 128), (12, 2, 96), (16, 1, 128), (4, 2, 256), (4, 1, 200), (8, 1, 8)]
        .map(|(heads, kv_heads, head_dim)| Shape { heads, kv_heads, head_dim, cache })
        .to_vec()
}

#[test]
#[ignore = "needs a GPU"]
fn decode_matches_plain_loops_for_every_shape_and_length() {
    for cache in [CacheType::F16, CacheType::F32] {
        for (i, shape) in shapes(cache).into_iter().enumerate() {
            let style = if i % 2 == 0 { RopeStyle::Interleaved } else { RopeStyle::HalfSplit };
            let pairs = if i == 3 { shape.head_dim / 4 } else { shape.head_dim / 2 };
            let sequences = vec![(0, 1), (1, 1), (31, 1), (32, 1), (33, 1), (127, 1), (128, 1), (700, 1)];
            run(&Case { shape, style, pairs, norms: i % 3 == 1, sequences }, true);
            let sequences = vec![(2000, 1)];
            run(&Case { shape, style, pairs, norms: i % 3 == 2, sequences }, true);
        }
    }
}

#[test]
#[ignore = "needs a GPU"]
fn rows_of_mixed_sequences_match_plain_loops() {
    for cache in [CacheType::F16, CacheType::F32] {
        for (i, shape) in shapes(cache).into_iter().enumerate() {
            let style = if i % 2 == 1 { RopeStyle::Interleaved } else { RopeStyle::HalfSplit };
            let sequences = vec![(0, 45), (30, 1), (31, 7), (200, 33), (0, 1)];
            run(&Case { shape, style, pairs: shape.head_dim / 2, norms: i % 3 == 1, sequences }, false);
        }
    }
}
