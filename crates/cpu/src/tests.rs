//! Operations that need more than one kernel, against naive sums in f64.

use crate::attention::Attention;
use crate::grid::Grid;
use crate::kernels::tests::{Random, random_blocks};
use crate::kernels::{BLOCK, Kernels, Scoring, Tier};
use crate::kv::Kv;
use crate::linear::{self, Picked, Product, Quantized};
use crate::pool::Pool;
use crate::weights::{self, Held};
use std::io::Cursor;
use std::sync::Arc;
use tombolo_gguf::{Gguf, TensorType, Writer, quant};
use tombolo_model::{
    Arith, BufferId, KvGroup, Op, Program, Row, Sequence, Shard, Slice, Step, Token, Values, Weight, WeightId,
};

const TYPES: [TensorType; 16] = [
    TensorType::F32,
    TensorType::F16,
    TensorType::BF16,
    TensorType::Q4_0,
    TensorType::Q4_1,
    TensorType::Q5_0,
    TensorType::Q5_1,
    TensorType::Q8_0,
    TensorType::IQ4_NL,
    TensorType::MXFP4,
    TensorType::Q2_K,
    TensorType::Q3_K,
    TensorType::Q4_K,
    TensorType::Q5_K,
    TensorType::Q6_K,
    TensorType::IQ4_XS,
];

/// A file of one tensor `[cols, rows]`, and its values.
fn one_tensor(ty: TensorType, rows: usize, cols: usize, random: &mut Random) -> (Arc<Gguf>, Vec<f32>) {
    let mut bytes = Vec::new();
    if ty.block_len() == 1 {
        quant::encode(ty, &random.values(rows * cols), &mut bytes).unwrap();
    } else {
        bytes = random_blocks(ty, rows * cols, random);
    }
    let mut values = vec![0.0; rows * cols];
    quant::decode(ty, &bytes, &mut values).unwrap();
    let mut writer = Writer::new(Cursor::new(Vec::new()));
    writer.tensor("w", &[cols as u64, rows as u64], ty).unwrap();
    writer.finish_header().unwrap();
    writer.data(&bytes).unwrap();
    (Arc::new(Gguf::from_bytes(writer.finish().unwrap().into_inner()).unwrap()), values)
}

/// The weight of a program that does nothing but multiply with it.
fn held(gguf: &Arc<Gguf>, weight: Weight, arith: Arith, pool: &mut Pool) -> Held {
    let program = Program {
        shard: Shard::WHOLE,
        vocabulary: 1,
        vocabulary_start: 0,
        buffers: Vec::new(),
        weights: vec![weight],
        groups: Vec::new(),
        ropes: Vec::new(),
        ops: vec![Op::Linear { x: BufferId(0), weight: WeightId(0), bias: None, out: BufferId(1) }],
    };
    weights::load(gguf, &program, arith, pool).unwrap().remove(0)
}

fn product(held: &Held, x: &[f32], cols: usize, rows: usize, pool: &mut Pool) -> Vec<f32> {
    let mut out = vec![f32::NAN; x.len() / cols * rows];
    let grid = Grid::new(&mut out, rows);
    let kernels = Kernels::of(Tier::best()).unwrap();
    linear::run(pool, kernels, x, cols, &[Product::whole(held, &grid)], &mut Quantized::default()).unwrap();
    out
}

/// Squared error relative to the exact product.
fn error(got: &[f32], weights: &[f32], x: &[f32], file_cols: usize, slice: Slice) -> f64 {
    let all = weights.len() / file_cols;
    let (first_row, rows, first_col, cols) = match slice {
        Slice::Whole => (0, all, 0, file_cols),
        Slice::Rows { start, len } => (start, len, 0, file_cols),
        Slice::Cols { start, len } => (0, all, start, len),
    };
    let (mut error, mut size) = (0.0, 0.0);
    for (x, got) in x.chunks(cols).zip(got.chunks(rows)) {
        for (r, &got) in got.iter().enumerate() {
            let w = &weights[(first_row + r) * file_cols + first_col..][..cols];
            let exact: f64 = w.iter().zip(x).map(|(&w, &x)| f64::from(w) * f64::from(x)).sum();
            error += (f64::from(got) - exact).powi(2);
            size += exact * exact;
        }
    }
    error / size
}

#[test]
fn products_of_every_type_slice_and_number_of_rows() {
    let mut random = Random::new(1);
    let mut pool = Pool::new("test", 3, true).unwrap();
    let (rows, cols) = (37, 512);
    for ty in TYPES {
        let (gguf, values) = one_tensor(ty, rows, cols, &mut random);
        let slices = [
            (Slice::Whole, rows, cols),
            (Slice::Rows { start: 5, len: 19 }, 19, cols),
            (Slice::Cols { start: 256, len: 256 }, rows, 256),
        ];
        for (slice, held_rows, held_cols) in slices {
            let weight = Weight {
                tensor: "w".into(),
                ty,
                first: 0,
                count: 1,
                rows: held_rows,
                cols: held_cols,
                file_rows: rows,
                file_cols: cols,
                slice,
            };
            // Quantizing activations to 8 bits costs about (1 / 127)² / 12 of the largest value's square.
            for (arith, most) in [(Arith::F32, 1e-11), (Arith::Production, 1e-4)] {
                let held = held(&gguf, weight.clone(), arith, &mut pool);
                let x = random.values(131 * held_cols);
                let whole = product(&held, &x, held_cols, held_rows, &mut pool);
                let found = error(&whole, &values, &x, cols, slice);
                assert!(found <= most, "{ty:?} {slice:?} {arith:?}: {found}");
                for n in [1, 2, 3, 5] {
                    let some = product(&held, &x[7 * held_cols..][..n * held_cols], held_cols, held_rows, &mut pool);
                    assert_eq!(some, whole[7 * held_rows..][..n * held_rows], "{ty:?} {arith:?}, {n} rows");
                }
            }
        }
    }
}

/// Three experts of 20 rows in one matrix, each with its own choice of rows: each gives the bits of the whole product.
#[test]
fn experts_take_their_part_of_rows_and_weight() {
    let mut random = Random::new(4);
    let mut pool = Pool::new("test", 2, true).unwrap();
    let (expert_rows, cols, tokens) = (20, 256, 33);
    let picks: [Vec<[u32; 2]>; 3] = [
        (0..30).map(|i| [i, 2 * i]).collect(),
        vec![[32, 61]],
        [5, 31, 30, 2, 9].iter().enumerate().map(|(i, &from)| [from, 2 * i as u32 + 1]).collect(),
    ];
    for ty in TYPES {
        let (gguf, _) = one_tensor(ty, 3 * expert_rows, cols, &mut random);
        let weight = Weight {
            tensor: "w".into(),
            ty,
            first: 0,
            count: 1,
            rows: 3 * expert_rows,
            cols,
            file_rows: 3 * expert_rows,
            file_cols: cols,
            slice: Slice::Whole,
        };
        let held = held(&gguf, weight, Arith::Production, &mut pool);
        let x = random.values(tokens * cols);
        let whole = product(&held, &x, cols, 3 * expert_rows, &mut pool);
        let mut out = vec![f32::NAN; 62 * expert_rows];
        let grid = Grid::new(&mut out, expert_rows);
        let experts = picks.iter().enumerate().map(|(expert, pairs)| Product {
            weight: &held,
            weight_rows: expert * expert_rows..(expert + 1) * expert_rows,
            rows: Picked::Pairs(pairs),
            out: &grid,
        });
        let products: Vec<Product> = experts.collect();
        let kernels = Kernels::of(Tier::best()).unwrap();
        linear::run(&mut pool, kernels, &x, cols, &products, &mut Quantized::default()).unwrap();
        for (expert, pairs) in picks.iter().enumerate() {
            for &[from, to] in pairs {
                let want = &whole[from as usize * 3 * expert_rows + expert * expert_rows..][..expert_rows];
                assert_eq!(&out[to as usize * expert_rows..][..expert_rows], want, "{ty:?}, expert {expert}");
            }
        }
    }
}

/// A batch of two sequences at different depths over a cache filled with rows of noise.
struct Case {
    kv: Kv,
    step: Step,
    q: Vec<f32>,
    /// Per sequence and position, keys and values of all heads.
    past: Vec<Vec<(Vec<f32>, Vec<f32>)>>,
}

fn case(wide: bool, heads: usize, kv_heads: usize, dim: usize) -> Case {
    let mut random = Random::new(9);
    let group = KvGroup { name: "kv", layers: 2, kv_heads, head_dim: dim, values: Values::Own, window: None };
    let kernels = Kernels::of(Tier::best()).unwrap();
    let mut kv = Kv::new(&group, 8, wide).unwrap();
    // What lies in a cache beyond a sequence's end must not matter.
    for block in 0..8 {
        for slot in 0..BLOCK {
            let noise = vec![f32::NAN; kv_heads * dim];
            kv.write(kernels, 1, block, slot, &noise, &noise);
        }
    }
    let tables = [vec![3u32, 1, 6], vec![2, 7, 0]];
    let spans = [(40usize, 43usize), (0, 21)]; // Positions of this step's rows.
    let (mut past, mut rows) = (Vec::new(), Vec::new());
    for (s, &(first, end)) in spans.iter().enumerate() {
        let mut seen = Vec::new();
        for position in 0..end {
            let (k, v) = (random.values(kv_heads * dim), random.values(kv_heads * dim));
            kv.write(kernels, 1, tables[s][position / BLOCK] as usize, position % BLOCK, &k, &v);
            seen.push((k, v));
        }
        past.push(seen);
        rows.extend((first..end).map(|position| Row {
            token: Token::Host(0),
            position: position as u32,
            sequence: s as u32,
            sample: None,
            draft: false,
        }));
    }
    let q = random.values(rows.len() * heads * dim);
    let sequences = tables.map(|table| Sequence { tables: vec![table] }).to_vec();
    Case { kv, step: Step { rows, sequences, full_logits: false }, q, past }
}

fn attend(case: &Case, step: &Step, q: &[f32], heads: usize, tier: Tier, threads: usize) -> Vec<f32> {
    let mut out = vec![f32::NAN; q.len()];
    let attention = Attention {
        kv: &case.kv,
        group: 0,
        layer: 1,
        heads,
        scoring: Scoring { scale: 0.3, softcap: None },
        window: None,
        sinks: None,
        q,
        out: Grid::new(&mut out, heads * case.kv.dim()),
    };
    let mut pool = Pool::new("test", threads, true).unwrap();
    attention.run(&mut pool, Kernels::of(tier).unwrap(), step).unwrap();
    out
}

fn exact_attention(case: &Case, heads: usize) -> Vec<f64> {
    let dim = case.kv.dim();
    let shared = heads / case.kv.heads();
    let mut out = Vec::new();
    for (i, row) in case.step.rows.iter().enumerate() {
        for head in 0..heads {
            let q = &case.q[(i * heads + head) * dim..][..dim];
            let seen = &case.past[row.sequence as usize][..=row.position as usize];
            let part = head / shared * dim;
            let dot = |k: &[f32]| q.iter().zip(k).map(|(&q, &k)| f64::from(q) * f64::from(k)).sum::<f64>();
            let weights: Vec<f64> =
                seen.iter().map(|(k, _)| (dot(&k[part..part + dim]) * f64::from(0.3f32)).exp()).collect();
            let total: f64 = weights.iter().sum();
            out.extend(
                (0..dim).map(|d| {
                    seen.iter().zip(&weights).map(|((_, v), w)| w * f64::from(v[part + d])).sum::<f64>() / total
                }),
            );
        }
    }
    out
}

#[test]
fn attention_is_causal_exact_and_independent_of_the_batch() {
    for (heads, kv_heads, dim) in [(6, 2, 64), (4, 4, 20), (8, 1, 128)] {
        // Keys and values in f16 carry 11 bits.
        for (wide, most) in [(true, 1e-11), (false, 1e-6)] {
            let case = case(wide, heads, kv_heads, dim);
            let scalar = attend(&case, &case.step, &case.q, heads, Tier::Scalar, 1);
            let want = exact_attention(&case, heads);
            let error: f64 = scalar.iter().zip(&want).map(|(&g, w)| (f64::from(g) - w).powi(2)).sum();
            let error = error / want.iter().map(|w| w * w).sum::<f64>();
            assert!(error <= most, "{heads}/{kv_heads} heads of {dim}: {error}");
            for tier in Tier::available() {
                assert_eq!(attend(&case, &case.step, &case.q, heads, tier, 3), scalar, "{tier:?}");
                // Every row by itself.
                let width = heads * dim;
                for (i, row) in case.step.rows.iter().enumerate() {
                    let step = Step { rows: vec![row.clone()], ..case.step.clone() };
                    let alone = attend(&case, &step, &case.q[i * width..][..width], heads, tier, 2);
                    assert_eq!(alone, scalar[i * width..][..width], "row {i}, {tier:?}");
                }
            }
        }
    }
}
