//! Attention kernels against plain loops in f64: the fused decode kernel, and preparation plus tiles of rows.

use crate::lab::{Lab, close, noise};
use tombolo_cuda::driver::DevicePtr;
use tombolo_cuda::kernels::attention::{
    Attention, CacheType, Shape, attention_decode, attention_rows, layer_bytes, rope_kv_write,
};
use tombolo_model::{BLOCK_TOKENS, KvGroup, RopeStyle, Values};

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

/// The cache's bits, all NaN where nothing was written: what lies there must not matter.
struct Cache {
    shape: Shape,
    words: Vec<u32>,
}

impl Cache {
    fn new(shape: Shape) -> Self {
        let group = KvGroup {
            name: "kv",
            layers: 1,
            kv_heads: shape.kv_heads,
            head_dim: shape.head_dim,
            values: Values::Own,
            window: None,
        };
        let poison = if shape.cache == CacheType::F16 { 0x7e00_7e00u32 } else { f32::NAN.to_bits() };
        Self { shape, words: vec![poison; layer_bytes(&group, BLOCKS, shape.cache) / 4] }
    }

    /// Stores all heads of one token: `part` 0 keys, 1 values.
    fn store(&mut self, block: usize, part: usize, token: usize, values: &[f32]) {
        let (kv_heads, dim) = (self.shape.kv_heads, self.shape.head_dim);
        for (i, &v) in values.iter().enumerate() {
            let at = (((block * 2 + part) * kv_heads + i / dim) * BLOCK_TOKENS + token) * dim + i % dim;
            if self.shape.cache == CacheType::F32 {
                self.words[at] = v.to_bits();
            } else {
                let (word, shift) = (&mut self.words[at / 2], 16 * (at as u32 % 2));
                *word = *word & !(0xffff << shift) | u32::from(half::f16::from_f32(v).to_bits()) << shift;
            }
        }
    }
}

/// What the kernels get, and what they should give.
struct Data {
    cache: Cache,
    frequencies: Vec<f32>,
    norms: [Vec<f32>; 2],
    positions: Vec<u32>,
    sequences: Vec<u32>,
    tables: Vec<u32>,
    table_len: usize,
    tiles: Vec<[u32; 2]>,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    want: Vec<f32>,
}

impl Data {
    fn new(case: &Case) -> Self {
        let longest = case.sequences.iter().map(|(a, b)| (a + b).div_ceil(BLOCK_TOKENS)).max().unwrap();
        let frequency = |j: usize| 10_000f32.powf(-(j as f32) / case.pairs as f32);
        let mut data = Self {
            cache: Cache::new(case.shape),
            frequencies: (0..case.pairs).map(frequency).collect(),
            norms: [noise(1, case.shape.head_dim), noise(2, case.shape.head_dim)],
            positions: vec![],
            sequences: vec![],
            tables: vec![],
            table_len: longest + 3,
            tiles: vec![],
            q: vec![],
            k: vec![],
            v: vec![],
            want: vec![],
        };
        for (n, &(before, now)) in case.sequences.iter().enumerate() {
            let mut plain = data.past(case, n, before);
            for position in before..before + now {
                data.row(case, n, position, &mut plain);
            }
            let used = (before + now).div_ceil(BLOCK_TOKENS);
            data.tables.extend((0..data.table_len).map(|i| if i < used { block(n, i) as u32 } else { 0 }));
        }
        // One padding row, as a bucket that is not full has.
        data.positions.push(u32::MAX);
        data.sequences.push(0);
        data
    }

    /// Rows that count.
    fn rows(&self) -> usize {
        self.positions.len() - 1
    }

    /// Fills the cache of sequence `n` up to `tokens`.
    fn past(&mut self, case: &Case, n: usize, tokens: usize) -> Plain {
        let s = &case.shape;
        let values = |seed: usize| -> Vec<f32> {
            noise(seed as u32, s.kv_heads * s.head_dim).into_iter().map(|v| round(s, v)).collect()
        };
        let mut plain = Plain { keys: vec![], values: vec![] };
        for t in 0..tokens {
            plain.keys.push(values(100 * n + 7000 + t));
            plain.values.push(values(100 * n + 90_000 + t));
            let at = block(n, t / BLOCK_TOKENS);
            self.cache.store(at, 0, t % BLOCK_TOKENS, &plain.keys[t]);
            self.cache.store(at, 1, t % BLOCK_TOKENS, &plain.values[t]);
        }
        plain
    }

    /// One row of sequence `n`: its inputs, and what attention over everything before it gives.
    fn row(&mut self, case: &Case, n: usize, position: usize, plain: &mut Plain) {
        let (s, row) = (&case.shape, self.positions.len() as u32);
        let (dim, kv_width) = (s.head_dim, s.kv_heads * s.head_dim);
        let starts_tile =
            |&[first, rows]: &[u32; 2]| rows as usize == s.tile_rows() || self.sequences[first as usize] != n as u32;
        if self.tiles.last().is_none_or(starts_tile) {
            self.tiles.push([row, 0]);
        }
        self.tiles.last_mut().unwrap()[1] += 1;
        self.positions.push(position as u32);
        self.sequences.push(n as u32);
        let (q, k, v) = (noise(row + 11, s.heads * dim), noise(row + 3000, kv_width), noise(row + 5000, kv_width));
        let heads = |x: &[f32], norm: &[f32]| -> Vec<f32> {
            x.chunks_exact(dim).flat_map(|h| prepare(case, h, norm, &self.frequencies, position)).collect()
        };
        plain.keys.push(heads(&k, &self.norms[1]).into_iter().map(|v| round(s, v)).collect());
        plain.values.push(v.iter().map(|&v| round(s, v)).collect());
        for (h, q) in heads(&q, &self.norms[0]).chunks_exact(dim).enumerate() {
            self.want.extend(attend(case, q, plain, h / (s.heads / s.kv_heads), position + 1));
        }
        self.q.extend(q);
        self.k.extend(k);
        self.v.extend(v);
    }

    fn place(&self, lab: &Lab, case: &Case, splits: usize, early: bool) -> Attention {
        let s = &case.shape;
        let (rows, q_width, kv_width) = (self.rows() + 1, s.heads * s.head_dim, s.kv_heads * s.head_dim);
        Attention {
            shape: *s,
            q: lab.put(&self.q),
            k: lab.put(&self.k),
            v: lab.put(&self.v),
            out: lab.put(&vec![f32::NAN; rows * q_width]),
            strides: [q_width, kv_width, kv_width, q_width],
            layer: lab.put(&self.cache.words),
            positions: lab.put(&self.positions),
            sequences: lab.put(&self.sequences),
            tables: lab.put(&self.tables),
            table_len: self.table_len,
            tiles: lab.put(&self.tiles),
            frequencies: lab.put(&self.frequencies),
            pairs: case.pairs,
            style: case.style,
            norms: if case.norms { [lab.put(&self.norms[0]), lab.put(&self.norms[1])] } else { [DevicePtr::NULL; 2] },
            eps: 1e-6,
            scale: 1.0 / (s.head_dim as f32).sqrt(),
            parts: lab.put(&vec![f32::NAN; s.parts_bytes(rows, splits) / 4]),
            tickets: lab.put(&vec![0u32; s.tickets_bytes(rows) / 4]),
            early,
        }
    }
}

fn run(case: &Case, fused: bool) {
    let lab = Lab::new(0);
    let data = Data::new(case);
    let rows = data.rows();
    let splits = case.shape.splits(rows + 1, 132);
    let attention = data.place(&lab, case, splits, fused);
    let mut first: Option<Vec<f32>> = None;
    for _ in 0..2 {
        // SAFETY: every address was put with the length that the shape calls for.
        unsafe {
            if fused {
                attention_decode(&lab.stream, &lab.kernels, &attention, rows + 1, splits).unwrap();
            } else {
                // Rotates in place: a fresh copy for every round.
                lab.stream.upload(attention.q, &data.q).unwrap();
                rope_kv_write(&lab.stream, &lab.kernels, &attention, rows + 1).unwrap();
                attention_rows(&lab.stream, &lab.kernels, &attention, rows, data.tiles.len()).unwrap();
            }
        }
        let got = lab.get(attention.out, data.want.len());
        let name = format!("{:?} {:?} {:?} fused {fused}", case.shape, case.style, case.sequences);
        close(&name, &got, &data.want, 1e-8);
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
