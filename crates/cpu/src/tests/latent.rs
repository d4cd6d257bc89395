//! Latent attention as it is computed, against what it stands for: keys and values of every head made of the latents
//! first, then attention as usual, in f64.

use crate::grid::Grid;
use crate::kernels::tests::Random;
use crate::kernels::{BLOCK, Kernels, Tier};
use crate::latent::LatentAttention;
use crate::pool::Pool;
use crate::row_cache::RowCache;
use crate::weights::{self, Held};
use std::io::Cursor;
use std::sync::Arc;
use tombolo_gguf::{Gguf, TensorType, Writer, quant};
use tombolo_model::{
    Arith, BufferId, GroupId, KvGroup, KvType, Op, Program, Row, Sequence, Shard, Slice, Step, Token, Values, Weight,
    WeightId,
};

const HEADS: usize = 5;
const LATENT: usize = 64;
const NOPE: usize = 32;
const ROPE: usize = 16;
/// Rows that do not fill tiles.
const VALUE: usize = 20;
const POSITIONS: usize = 45;
const TOP_K: usize = 21;
const SCALE: f32 = 0.2;

/// Matrices as a file holds them, and their values.
struct Matrices {
    held: [Held; 2],
    turned: bool,
    /// `[heads, latent, nope]`, whichever way they lie in the file.
    keys: Vec<f32>,
    /// `[heads, value, latent]`.
    values: Vec<f32>,
}

fn matrices(ty: TensorType, turned: bool, arith: Arith, random: &mut Random) -> Matrices {
    let keys_shape = if turned { [NOPE, LATENT] } else { [LATENT, NOPE] };
    let shapes = [keys_shape, [VALUE, LATENT]];
    let names = ["keys", "values"];
    let mut writer = Writer::new(Cursor::new(Vec::new()));
    let (mut data, mut decoded) = (Vec::new(), Vec::new());
    for (name, [rows, cols]) in names.into_iter().zip(shapes) {
        writer.tensor(name, &[cols as u64, rows as u64, HEADS as u64], ty).unwrap();
        let mut bytes = Vec::new();
        quant::encode(ty, &random.values(HEADS * rows * cols), &mut bytes).unwrap();
        let mut values = vec![0.0; HEADS * rows * cols];
        quant::decode(ty, &bytes, &mut values).unwrap();
        data.push(bytes);
        decoded.push(values);
    }
    writer.finish_header().unwrap();
    data.iter().for_each(|bytes| {
        writer.data(bytes).unwrap();
    });
    let gguf = Arc::new(Gguf::from_bytes(writer.finish().unwrap().into_inner()).unwrap());
    let weights = names.into_iter().zip(shapes).map(|(name, [rows, cols])| Weight {
        tensor: name.into(),
        ty,
        first: 0,
        count: HEADS,
        rows,
        cols,
        file_rows: rows,
        file_cols: cols,
        slice: Slice::Whole,
    });
    let op = Op::LatentAttention {
        q: BufferId(0),
        keys: WeightId(0),
        keys_transposed: turned,
        values: WeightId(1),
        selected: None,
        out: BufferId(1),
        group: GroupId(0),
        layer: 0,
        heads: HEADS,
        scale: SCALE,
    };
    let program = Program {
        shard: Shard::WHOLE,
        vocabulary: 1,
        vocabulary_start: 0,
        buffers: Vec::new(),
        weights: weights.collect(),
        groups: Vec::new(),
        ropes: Vec::new(),
        ops: vec![op],
    };
    let mut pool = Pool::new("test", 2, true).unwrap();
    let held = weights::load(&gguf, &program, arith, &mut pool).unwrap();
    let values = decoded.pop().unwrap();
    let mut keys = decoded.pop().unwrap();
    if turned {
        let at = |h: usize, l: usize, n: usize| keys[(h * NOPE + n) * LATENT + l];
        keys = (0..keys.len()).map(|i| at(i / (NOPE * LATENT), i / NOPE % LATENT, i % NOPE)).collect();
    }
    let held: [Held; 2] = held.try_into().unwrap_or_else(|_| panic!("two weights were loaded"));
    assert!(held.iter().all(|held| held.vector.is_none() && held.experts.len() == HEADS));
    Matrices { held, turned, keys, values }
}

struct Case {
    cache: RowCache,
    /// `[positions, latent + rope]`.
    cached: Vec<f32>,
    /// `[positions, heads, nope + rope]`.
    q: Vec<f32>,
    /// `[positions, top_k]`.
    selected: Vec<u32>,
}

fn case(random: &mut Random) -> Case {
    let width = LATENT + ROPE;
    let (head_dim, values) = (width, Values::OfKey(LATENT));
    let group = KvGroup { name: "latent", layers: 2, kv_heads: 1, head_dim, values, window: None };
    let mut cache = RowCache::new(&group, TABLE.len(), KvType::F32).unwrap();
    let kernels = Kernels::of(Tier::best()).unwrap();
    let cached = random.values(POSITIONS * width);
    for (position, row) in cached.chunks(width).enumerate() {
        cache.write(kernels, 1, TABLE[position / BLOCK], position % BLOCK, &[row]);
    }
    let selected = (0..POSITIONS).flat_map(|position| {
        // Every other one, counted from an end that differs by row; as far as there are so many.
        let mut chosen: Vec<u32> = (0..=position as u32).filter(|p| (p + position as u32).is_multiple_of(2)).collect();
        chosen.extend((0..=position as u32).filter(|p| !(p + position as u32).is_multiple_of(2)));
        chosen.resize(TOP_K, 0);
        chosen.sort_unstable();
        chosen
    });
    let q = random.values(POSITIONS * HEADS * (NOPE + ROPE));
    Case { cache, cached, q, selected: selected.collect() }
}

const TABLE: [u32; 3] = [2, 0, 1];

fn step(positions: std::ops::Range<usize>) -> Step {
    let row = |position: usize| Row {
        token: Token::Host(0),
        position: position as u32,
        sequence: 0,
        sample: None,
        draft: false,
    };
    let sequences = vec![Sequence { tables: vec![TABLE.to_vec()] }];
    Step { rows: positions.map(row).collect(), sequences, full_logits: false }
}

impl Case {
    /// Runs positions in steps of so many; `[positions, heads * value]`.
    fn run(&self, m: &Matrices, sparse: bool, tier: Tier, [chunk, threads]: [usize; 2]) -> Vec<f32> {
        let mut out = vec![f32::NAN; POSITIONS * HEADS * VALUE];
        let mut pool = Pool::new("test", threads, true).unwrap();
        let places = out.chunks_mut(chunk * HEADS * VALUE).enumerate();
        for (i, out) in places {
            let positions = i * chunk..((i + 1) * chunk).min(POSITIONS);
            let attention = LatentAttention {
                cache: &self.cache,
                group: 0,
                layer: 1,
                heads: HEADS,
                head_dim: NOPE + ROPE,
                latent: LATENT,
                scale: SCALE,
                keys: &m.held[0].experts,
                keys_transposed: m.turned,
                values: &m.held[1].experts,
                q: &self.q[positions.start * HEADS * (NOPE + ROPE)..],
                selected: sparse.then(|| (&self.selected[positions.start * TOP_K..], TOP_K)),
                out: Grid::new(out, HEADS * VALUE),
            };
            attention.run(&mut pool, Kernels::of(tier).unwrap(), &step(positions)).unwrap();
        }
        out
    }

    /// Every head's own keys and values, then attention.
    fn exact(&self, m: &Matrices, sparse: bool) -> Vec<f64> {
        let width = LATENT + ROPE;
        let wide = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let mut out = vec![0.0; POSITIONS * HEADS * VALUE];
        for head in 0..HEADS {
            let made = self.cached.chunks(width).map(|cached| {
                let cached = wide(cached);
                let (latent, rotated) = cached.split_at(LATENT);
                let mut key: Vec<f64> = (0..NOPE)
                    .map(|n| (0..LATENT).map(|l| latent[l] * f64::from(m.keys[(head * LATENT + l) * NOPE + n])).sum())
                    .collect();
                key.extend(rotated);
                let value = |v: usize| dot(&wide(&m.values[(head * VALUE + v) * LATENT..][..LATENT]), latent);
                (key, (0..VALUE).map(value).collect::<Vec<f64>>())
            });
            let made: Vec<(Vec<f64>, Vec<f64>)> = made.collect();
            for position in 0..POSITIONS {
                let q = wide(&self.q[(position * HEADS + head) * (NOPE + ROPE)..][..NOPE + ROPE]);
                let all: Vec<usize> = (0..=position).collect();
                let chosen = self.selected[position * TOP_K..][..TOP_K].iter().map(|&p| p as usize).collect();
                let seen = if sparse && position >= TOP_K { chosen } else { all };
                let weights: Vec<f64> = seen.iter().map(|&p| (dot(&q, &made[p].0) * f64::from(SCALE)).exp()).collect();
                let total: f64 = weights.iter().sum();
                for (&p, weight) in seen.iter().zip(&weights) {
                    let out = &mut out[(position * HEADS + head) * VALUE..][..VALUE];
                    out.iter_mut().zip(&made[p].1).for_each(|(out, v)| *out += weight / total * v);
                }
            }
        }
        out
    }
}

#[test]
fn absorbed_is_what_keys_and_values_of_every_head_give() {
    let mut random = Random::new(5);
    let case = case(&mut random);
    // Activations in 8 bits cost about what a product of one type or another costs.
    let (exact, rounded) = ([Arith::F32].as_slice(), [Arith::F32, Arith::Production].as_slice());
    for (ty, ariths) in [
        (TensorType::F32, exact),
        (TensorType::BF16, exact),
        (TensorType::Q8_0, rounded),
        (TensorType::Q5_0, rounded),
        (TensorType::Q4_1, rounded),
        (TensorType::IQ4_NL, rounded),
    ] {
        for (&arith, turned, sparse) in
            ariths.iter().flat_map(|a| [(a, false, false), (a, false, true), (a, true, false), (a, true, true)])
        {
            let m = matrices(ty, turned, arith, &mut random);
            assert_eq!(m.held[0].experts[0].tiles.is_some(), arith == Arith::Production && !turned);
            let whole = case.run(&m, sparse, Tier::best(), [POSITIONS, 2]);
            let want = case.exact(&m, sparse);
            let error: f64 = whole.iter().zip(&want).map(|(&got, want)| (f64::from(got) - want).powi(2)).sum();
            let error = (error / want.iter().map(|w| w * w).sum::<f64>()).sqrt();
            let most = if arith == Arith::F32 { 1e-5 } else { 0.02 };
            assert!(error <= most, "{ty} {arith:?}, turned {turned}, sparse {sparse}: {error}");
            for how in [[1, 1], [7, 3], [16, 1], [30, 2]] {
                for tier in Tier::available() {
                    let same = case.run(&m, sparse, tier, how) == whole;
                    assert!(same, "{ty} {arith:?}, turned {turned}, sparse {sparse}: {how:?}, {tier:?}");
                }
            }
        }
    }
}
