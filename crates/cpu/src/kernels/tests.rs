//! Every tier against the scalar one, bit for bit, and against sums in f64.

use super::*;
use crate::pack::{pack_tile, tile_bytes, type_of};
use proptest::prelude::*;
use tombolo_gguf::{TensorType, quant};

/// Numbers in -1 .. 1 from a seed.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> f32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    pub(crate) fn values(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.next()).collect()
    }
}

fn tables() -> Vec<&'static Kernels> {
    Tier::available().into_iter().filter_map(Kernels::of).collect()
}

/// A row of blocks of any bits whose scales are small numbers: `types` differ only in where those are.
pub(crate) fn random_blocks(ty: TensorType, cols: usize, random: &mut Random) -> Vec<u8> {
    let mut blocks = Vec::new();
    for _ in 0..cols / ty.block_len() {
        let mut block: Vec<u8> = (0..ty.block_bytes()).map(|_| (random.next() * 128.0) as i8 as u8).collect();
        if ty == TensorType::MXFP4 {
            block[0] = 120 + block[0] % 8;
        }
        for &at in scales(ty) {
            block[at..at + 2].copy_from_slice(&half::f16::from_f32(random.next() / 16.0).to_le_bytes());
        }
        blocks.extend(block);
    }
    blocks
}

/// Where a block's halves are.
fn scales(ty: TensorType) -> &'static [usize] {
    match ty {
        TensorType::Q4_1 | TensorType::Q5_1 | TensorType::Q4_K | TensorType::Q5_K => &[0, 2],
        TensorType::Q2_K => &[80, 82],
        TensorType::Q3_K => &[108],
        TensorType::Q6_K => &[208],
        TensorType::MXFP4 => &[],
        _ => &[0],
    }
}

fn normalised_error(got: &[f32], want: &[f64]) -> f64 {
    let error: f64 = got.iter().zip(want).map(|(&g, w)| (f64::from(g) - w).powi(2)).sum();
    error / want.iter().map(|w| w * w).sum::<f64>().max(f64::MIN_POSITIVE)
}

/// A quantized row of activations.
struct Acts {
    quants: Vec<i8>,
    blocks: Vec<ActBlock>,
}

impl Acts {
    fn of(x: &[f32]) -> Self {
        let mut acts = Self { quants: vec![0; x.len()], blocks: vec![ActBlock::default(); x.len() / QUANT] };
        (SCALAR.quantize)(x, &mut acts.quants, &mut acts.blocks);
        acts
    }

    fn row(&self) -> ActRow<'_> {
        ActRow { quants: &self.quants, blocks: &self.blocks }
    }

    fn values(&self) -> Vec<f64> {
        let scaled = |(i, &q): (usize, &i8)| f64::from(q) * f64::from(self.blocks[i / QUANT].scale);
        self.quants.iter().enumerate().map(scaled).collect()
    }
}

/// `held` rows of encoded weights, packed, and their values.
fn tile_of(kind: Kind, rows: &[Vec<u8>], cols: usize) -> (Vec<u8>, Vec<Vec<f32>>) {
    let mut tile = vec![0; tile_bytes(kind, cols)];
    let bytes: Vec<&[u8]> = rows.iter().map(Vec::as_slice).collect();
    pack_tile(kind, &bytes, &mut tile);
    let values = rows.iter().map(|row| {
        let mut values = vec![0.0; cols];
        quant::decode(type_of(kind), row, &mut values).unwrap();
        values
    });
    (tile, values.collect())
}

fn check_tile(kind: Kind, rows: &[Vec<u8>], acts: &[Vec<f32>]) {
    let cols = acts[0].len();
    let (tile, weights) = tile_of(kind, rows, cols);
    let acts: Vec<Acts> = acts.iter().map(|x| Acts::of(x)).collect();
    let act_rows: Vec<ActRow> = acts.iter().map(Acts::row).collect();
    let mut scalar = vec![[0f32; TILE]; acts.len()];
    (SCALAR.block)(kind, &[&tile], &act_rows, &mut Panel::default(), &mut scalar);

    for (sums, acts) in scalar.iter().zip(&acts) {
        let values = acts.values();
        for (sum, row) in sums.iter().zip(&weights) {
            let terms = || row.iter().zip(&values).map(|(&w, a)| f64::from(w) * a);
            // Of the terms' size, not of the sum's: they may cancel.
            let (exact, size) = (terms().sum::<f64>(), terms().map(f64::abs).sum::<f64>());
            assert!((f64::from(*sum) - exact).abs() <= 3e-6 * size, "{kind:?}: {sum} is not {exact}");
        }
    }

    let want: Vec<_> = scalar.iter().map(|sums| sums.map(f32::to_bits)).collect();
    for table in tables() {
        for few in 1..=4 {
            for (acts, want) in act_rows.chunks(few).zip(want.chunks(few)) {
                let mut got = vec![[f32::NAN; TILE]; acts.len()];
                (table.tile)(kind, &tile, acts, &mut got);
                let got: Vec<_> = got.iter().map(|sums| sums.map(f32::to_bits)).collect();
                assert_eq!(got, want, "{kind:?} {:?}, {few} rows", table.tier);
            }
        }
        for tiles in [1, 2] {
            let mut got = vec![[f32::NAN; TILE]; tiles * acts.len()];
            (table.block)(kind, &vec![&tile[..]; tiles], &act_rows, &mut Panel::default(), &mut got);
            let got: Vec<_> = got.iter().map(|sums| sums.map(f32::to_bits)).collect();
            assert_eq!(got, want.repeat(tiles), "{kind:?} {:?}, {tiles} tiles", table.tier);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn tiles_agree(seed in any::<u64>(), blocks in 1usize..4, held in 1usize..=TILE, n in 1usize..10) {
        let mut random = Random::new(seed);
        for kind in Kind::ALL {
            let cols = blocks * kind.block_cols();
            let rows: Vec<Vec<u8>> =
                (0..held).map(|_| random_blocks(type_of(kind), cols, &mut random)).collect();
            let acts: Vec<Vec<f32>> = (0..n).map(|_| random.values(cols)).collect();
            check_tile(kind, &rows, &acts);
        }
    }

    #[test]
    fn products_in_f32_agree(seed in any::<u64>(), cols in 1usize..200, rows in 1usize..8) {
        let mut random = Random::new(seed);
        let (w, x) = (random.values(4 * cols), random.values(rows * cols));
        let x: Vec<&[f32]> = x.chunks(cols).collect();
        let mut want = vec![[0.0; 4]; rows];
        (SCALAR.products)(&w, &x, &mut want);
        for (x, want) in x.iter().zip(&want) {
            for (w, &want) in w.chunks(cols).zip(want) {
                let exact: f64 = w.iter().zip(*x).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
                let size: f64 = w.iter().zip(*x).map(|(&a, &b)| (f64::from(a) * f64::from(b)).abs()).sum();
                prop_assert!((f64::from(want) - exact).abs() <= 1e-6 * size);
            }
        }
        for table in tables() {
            for first in 0..rows {
                let mut got = vec![[0.0; 4]; rows - first];
                (table.products)(&w, &x[first..], &mut got);
                prop_assert_eq!(&got, &want[first..]);
            }
        }
    }

    #[test]
    fn norms_and_activations_agree(seed in any::<u64>(), len in 1usize..150, scale in -3i32..4) {
        let mut random = Random::new(seed);
        let scale = 10f32.powi(scale);
        let x: Vec<f32> = random.values(len).iter().map(|x| x * scale).collect();
        let w = random.values(len);
        let mean = x.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>() / len as f64;
        let norm: Vec<f64> =
            x.iter().zip(&w).map(|(&x, &w)| f64::from(x) / (mean + 1e-5).sqrt() * f64::from(w)).collect();
        let silu: Vec<f64> =
            x.iter().zip(&w).map(|(&g, &u)| f64::from(g) / (1.0 + (-f64::from(g)).exp()) * f64::from(u)).collect();
        let (mut first_norm, mut first_silu) = (None, None);
        for table in tables() {
            let mut got = x.clone();
            (table.rms_norm)(&mut got, &w, 1e-5);
            prop_assert!(normalised_error(&got, &norm) <= 1e-12);
            prop_assert_eq!(first_norm.get_or_insert(got.clone()), &got);
            (table.silu_mul)(&x, &w, &mut got);
            // Below about 1e-36 exp stops growing.
            let vanishes = silu.iter().all(|v| v.abs() < 1e-35) && got.iter().all(|v| v.abs() < 1e-35);
            prop_assert!(vanishes || normalised_error(&got, &silu) <= 1e-12);
            prop_assert_eq!(first_silu.get_or_insert(got.clone()), &got);
        }
    }

    #[test]
    fn activations_are_rounded_to_the_nearest(seed in any::<u64>(), blocks in 1usize..5, scale in -6i32..6) {
        let scale = 10f32.powi(scale);
        let x: Vec<f32> = Random::new(seed).values(blocks * QUANT).iter().map(|x| x * scale).collect();
        let want = Acts::of(&x);
        for (b, (x, block)) in x.chunks(QUANT).zip(&want.blocks).enumerate() {
            let q = &want.quants[b * QUANT..][..QUANT];
            for (x, &q) in x.iter().zip(q) {
                prop_assert!((x - f32::from(q) * block.scale).abs() <= 0.5001 * block.scale);
            }
            let sum = |q: &[i8]| q.iter().map(|&q| i32::from(q)).sum::<i32>() as f32;
            prop_assert_eq!(block.halves, [block.scale * sum(&q[..16]), block.scale * sum(&q[16..])]);
            prop_assert_eq!(block.weighted, block.scale * sum(q));
        }
        for table in tables() {
            let mut got = Acts { quants: vec![0; x.len()], blocks: vec![ActBlock::default(); blocks] };
            (table.quantize)(&x, &mut got.quants, &mut got.blocks);
            prop_assert_eq!(&got.quants, &want.quants);
            prop_assert_eq!(&got.blocks, &want.blocks);
        }
    }

    #[test]
    fn halves_there_and_back(seed in any::<u64>(), len in 0usize..40, scale in -9i32..6) {
        let values: Vec<f32> = Random::new(seed).values(len).iter().map(|x| x * 10f32.powi(scale)).collect();
        for table in tables() {
            let mut bytes = vec![0; 2 * len];
            (table.narrow)(&values, &mut bytes);
            let mut back = vec![0.0; len];
            (table.widen)(&bytes, &mut back);
            for ((value, half), back) in values.iter().zip(bytes.as_chunks().0).zip(&back) {
                prop_assert_eq!(*half, half::f16::from_f32(*value).to_le_bytes());
                prop_assert_eq!(*back, half::f16::from_f32(*value).to_f32());
            }
        }
    }

    #[test]
    fn the_largest_is_found(seed in any::<u64>(), len in 1usize..300) {
        let x = Random::new(seed).values(len);
        let want = (0..len).fold(0, |best, i| if x[i] > x[best] { i } else { best });
        for table in tables() {
            prop_assert_eq!((table.argmax)(&x), want);
        }
    }
}

/// The largest integers everywhere: no 16-bit sum may overflow.
#[test]
fn extreme_blocks_do_not_overflow() {
    for kind in Kind::ALL {
        let cols = kind.block_cols();
        for fill in [0x00, 0x7f, 0x80, 0xff] {
            // A scale of 1 or so where the type keeps its half scales; everything else is `fill`.
            let mut block = vec![fill; type_of(kind).block_bytes()];
            scales(type_of(kind)).iter().for_each(|&at| block[at..at + 2].copy_from_slice(&[0x00, 0x3c]));
            if kind == Kind::MXFP4 {
                block[0] = 128;
            }
            let rows = vec![block; TILE];
            let signs = [1.0, -1.0];
            let acts: Vec<Vec<f32>> = signs.iter().map(|&s| vec![s * 127.0; cols]).collect();
            check_tile(kind, &rows, &acts);
        }
    }
}

#[test]
fn extreme_activations_stay_numbers() {
    for table in tables() {
        let mut out = [0f32; 6];
        (table.silu_mul)(&[0.0, 100.0, -100.0, -1e30, 1e30, 20.0], &[1.0; 6], &mut out);
        assert_eq!(out[0], 0.0);
        assert_eq!(out[1], 100.0);
        assert!(out[2].abs() < 1e-35 && out[3].abs() < 1e-6, "{out:?}");
        assert_eq!((out[4], out[5]), (1e30, 20.0));
        assert_eq!((table.argmax)(&[f32::NAN, f32::NEG_INFINITY, 1.0, f32::NAN, 1.0]), 2);
        let (mut quants, mut blocks) = ([1i8; QUANT], [ActBlock::default(); 1]);
        (table.quantize)(&[0.0; QUANT], &mut quants, &mut blocks);
        assert_eq!((quants, blocks[0]), ([0; QUANT], ActBlock::default()));
    }
}

#[test]
fn rotations_turn_pairs() {
    let turns: Vec<[f32; 2]> = (0..4).map(|j| [(j as f32 * 0.7).cos(), (j as f32 * 0.7).sin()]).collect();
    let x = Random::new(3).values(8);
    for table in tables() {
        for (turn, pair) in [
            (table.rope_interleaved, (|j: usize| (2 * j, 2 * j + 1)) as fn(usize) -> (usize, usize)),
            (table.rope_half_split, |j: usize| (j, j + 4)),
        ] {
            let mut got = x.clone();
            turn(&mut got, &turns);
            for j in 0..4 {
                let (a, b) = pair(j);
                let (sin, cos) = (f64::from(j as f32) * f64::from(0.7f32)).sin_cos();
                let (xa, xb) = (f64::from(x[a]), f64::from(x[b]));
                assert!((f64::from(got[a]) - (xa * cos - xb * sin)).abs() < 1e-6);
                assert!((f64::from(got[b]) - (xa * sin + xb * cos)).abs() < 1e-6);
            }
        }
    }
}
