//! Operations that need more than one kernel, against naive sums in f64.

mod attention;
mod experts;
mod latent;
mod pointwise;
mod stores;

use crate::grid::Grid;
use crate::kernels::tests::{Random, random_blocks};
use crate::kernels::{Kernels, Tier};
use crate::linear::{self, Picked, Product, Quantized};
use crate::pool::Pool;
use crate::weights::{self, Held};
use std::io::Cursor;
use std::sync::Arc;
use tombolo_gguf::{Gguf, TensorType, Writer, quant};
use tombolo_model::{Arith, BufferId, Op, Program, Shard, Slice, Weight, WeightId};

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
        draft: Vec::new(),
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
