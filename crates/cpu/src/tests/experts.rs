//! The operation of experts against its formula in f64, and the same bits whatever other rows there are.

use super::{held, one_tensor};
use crate::experts::{Experts, Scratch, Stack};
use crate::kernels::tests::Random;
use crate::kernels::{Kernels, Tier};
use crate::linear::Quantized;
use crate::pool::Pool;
use crate::weights::Held;
use tombolo_gguf::TensorType;
use tombolo_model::{Activation, Arith, Slice, Weight};

const EXPERTS: usize = 5;
const HIDDEN: usize = 64;
const WIDTH: usize = 96;
const TOP_K: usize = 3;
const ROWS: usize = 40;

/// A stack in memory, and what it stands for: `[expert][row][col]` and `[expert][row]`.
struct Known {
    held: Vec<Held>,
    values: Vec<f32>,
    bias: Vec<f32>,
    rows: usize,
    cols: usize,
}

fn known(ty: TensorType, rows: usize, cols: usize, arith: Arith, random: &mut Random, pool: &mut Pool) -> Known {
    let (gguf, values) = one_tensor(ty, EXPERTS * rows, cols, random);
    // As one tensor of so many matrices.
    let stack = Weight {
        tensor: "w".into(),
        ty,
        first: 0,
        count: EXPERTS,
        rows,
        cols,
        file_rows: rows,
        file_cols: cols,
        slice: Slice::Whole,
    };
    let held = (0..EXPERTS).map(|e| held(&gguf, stack.matrix(e), arith, pool)).collect();
    Known { held, values, bias: random.values(EXPERTS * rows), rows, cols }
}

impl Known {
    fn stack(&self, with_bias: bool) -> Stack<'_> {
        Stack { matrices: &self.held, bias: with_bias.then_some(&self.bias) }
    }

    fn exact(&self, expert: usize, x: &[f64], with_bias: bool) -> Vec<f64> {
        let row = |r: usize| {
            let w = &self.values[(expert * self.rows + r) * self.cols..][..self.cols];
            let bias = if with_bias { f64::from(self.bias[expert * self.rows + r]) } else { 0.0 };
            w.iter().zip(x).map(|(&w, x)| f64::from(w) * x).sum::<f64>() + bias
        };
        (0..self.rows).map(row).collect()
    }
}

struct Case {
    gate: Known,
    up: Known,
    down: Known,
    x: Vec<f32>,
    chosen: Vec<u32>,
    weights: Vec<f32>,
    with_bias: bool,
}

fn run(case: &Case, rows: std::ops::Range<usize>, start: Option<&[f32]>, tier: Tier, threads: usize) -> Vec<f32> {
    let experts = Experts {
        x: &case.x[rows.start * HIDDEN..rows.end * HIDDEN],
        hidden: HIDDEN,
        chosen: &case.chosen[rows.start * TOP_K..rows.end * TOP_K],
        weights: &case.weights[rows.start * TOP_K..rows.end * TOP_K],
        top_k: TOP_K,
        gate: case.gate.stack(case.with_bias),
        up: case.up.stack(case.with_bias),
        down: case.down.stack(case.with_bias),
        width: WIDTH,
        first: 0,
        activation: Activation::Silu,
        accumulate: start.is_some(),
    };
    let mut out = start.map_or(vec![f32::NAN; rows.len() * HIDDEN], <[f32]>::to_vec);
    let mut pool = Pool::new("test", threads, true).unwrap();
    let kernels = Kernels::of(tier).unwrap();
    let (mut quantized, mut scratch) = (Quantized::default(), Scratch::default());
    experts.run(&mut pool, kernels, &mut quantized, &mut scratch, &mut out).unwrap();
    out
}

fn exact(case: &Case) -> Vec<f64> {
    let mut out = Vec::new();
    for row in 0..ROWS {
        let x: Vec<f64> = case.x[row * HIDDEN..][..HIDDEN].iter().map(|&x| f64::from(x)).collect();
        let mut sum = vec![0.0; HIDDEN];
        for i in row * TOP_K..(row + 1) * TOP_K {
            let expert = case.chosen[i] as usize;
            let (gate, up) = (case.gate.exact(expert, &x, case.with_bias), case.up.exact(expert, &x, case.with_bias));
            let activated: Vec<f64> = gate.iter().zip(&up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
            let result = case.down.exact(expert, &activated, case.with_bias);
            sum.iter_mut().zip(result).for_each(|(sum, r)| *sum += f64::from(case.weights[i]) * r);
        }
        out.extend(sum);
    }
    out
}

fn case(ty: TensorType, arith: Arith, with_bias: bool) -> Case {
    let mut random = Random::new(6);
    let mut pool = Pool::new("test", 2, true).unwrap();
    let mut known = |rows, cols| known(ty, rows, cols, arith, &mut random, &mut pool);
    let (gate, up, down) = (known(WIDTH, HIDDEN), known(WIDTH, HIDDEN), known(HIDDEN, WIDTH));
    // Expert 4 is chosen by nobody, expert 0 by every row.
    let chosen = (0..ROWS as u32).flat_map(|row| [1 + row % 3, 0, 1 + (row + 1) % 3]).collect();
    Case { gate, up, down, x: random.values(ROWS * HIDDEN), chosen, weights: random.values(ROWS * TOP_K), with_bias }
}

#[test]
fn they_agree_with_their_formula() {
    let cases = [
        (TensorType::F32, Arith::F32, 1e-11),
        (TensorType::MXFP4, Arith::F32, 1e-11),
        (TensorType::Q8_0, Arith::Production, 1e-3),
    ];
    for (ty, arith, most) in cases {
        for with_bias in [false, true] {
            let case = case(ty, arith, with_bias);
            let want = exact(&case);
            let got = run(&case, 0..ROWS, None, Tier::Scalar, 1);
            let error: f64 = got.iter().zip(&want).map(|(&g, w)| (f64::from(g) - w).powi(2)).sum();
            let error = error / want.iter().map(|w| w * w).sum::<f64>();
            assert!(error <= most, "{ty:?} {arith:?}, bias {with_bias}: {error}");
        }
    }
}

#[test]
fn a_row_does_not_feel_the_others() {
    for (ty, arith) in [(TensorType::F16, Arith::F32), (TensorType::Q8_0, Arith::Production)] {
        let case = case(ty, arith, true);
        let whole = run(&case, 0..ROWS, None, Tier::Scalar, 1);
        for tier in Tier::available() {
            assert_eq!(run(&case, 0..ROWS, None, tier, 3), whole, "{tier:?}");
            for rows in [0..1, 7..9, 17..40] {
                let part = run(&case, rows.clone(), None, tier, 2);
                assert_eq!(part, whole[rows.start * HIDDEN..rows.end * HIDDEN], "{ty:?}, {rows:?}, {tier:?}");
            }
        }
    }
}

#[test]
fn a_sum_goes_on_from_what_is_there() {
    let case = case(TensorType::F32, Arith::F32, false);
    let start = Random::new(8).values(ROWS * HIDDEN);
    let alone = run(&case, 0..ROWS, None, Tier::best(), 2);
    let both = run(&case, 0..ROWS, Some(&start), Tier::best(), 2);
    for ((both, alone), start) in both.iter().zip(&alone).zip(&start) {
        assert!((both - (alone + start)).abs() <= 1e-4 * (1.0 + alone.abs()), "{both}, not {alone} + {start}");
    }
}
