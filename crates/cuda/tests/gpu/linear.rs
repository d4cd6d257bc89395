//! Products with weights against sums in f64 over the same decoded weights: every type, every way to multiply, every
//! tile, all epilogues, with and without the norm.

use crate::lab::{Lab, close, noise};
use tombolo_cuda::driver::DevicePtr;
use tombolo_cuda::kernels::linear::tiles::{TILES, Tile, plan_with};
use tombolo_cuda::kernels::linear::{Epilogue, Linear, Part, Way, layout, linear, linear_by, scratch_bytes};
use tombolo_gguf::{TensorType, quant};

const EPS: f32 = 1e-5;
/// Rows of x; the last two are beyond what the decode kernels take.
const ROWS: [usize; 5] = [1, 3, 8, 24, 200];
const MOST_ROWS: usize = 200;

/// A weight on the device, and what its blocks decode to.
struct Weight {
    ty: TensorType,
    rows: usize,
    values: Vec<f32>,
    at: DevicePtr,
}

impl Weight {
    fn new(lab: &Lab, ty: TensorType, rows: usize, cols: usize, seed: u32) -> Self {
        let random: Vec<f32> = noise(seed, rows * cols).into_iter().map(|v| 0.05 * v).collect();
        let mut raw = Vec::new();
        quant::encode(ty, &random, &mut raw).unwrap();
        let mut values = vec![0.0; rows * cols];
        quant::decode(ty, &raw, &mut values).unwrap();
        let (from, to) = (raw.len() / rows, layout::row_bytes(ty, cols));
        let mut packed = vec![0u8; rows * to];
        for (raw, packed) in raw.chunks_exact(from).zip(packed.chunks_exact_mut(to)) {
            layout::repack_row(ty, raw, cols, packed);
        }
        Self { ty, rows, values, at: lab.put(&packed) }
    }

    /// `[rows of x, rows]` sums; `x` is `[.., cols]`.
    fn products(&self, x: &[f64], cols: usize) -> Vec<f64> {
        let dot = |x: &[f64], w: &[f32]| x.iter().zip(w).fold(0.0, |sum, (x, w)| sum + x * f64::from(*w));
        x.chunks_exact(cols).flat_map(|x| self.values.chunks_exact(cols).map(move |w| dot(x, w))).collect()
    }
}

/// The rows of x as a kernel multiplies them: normed if there is a norm; in bytes with one scale per 32 values, where the
/// norm's factor stays out of the bytes, if `in_bytes`.
fn input(x: &[f32], cols: usize, norm: Option<&[f32]>, in_bytes: bool) -> Vec<f64> {
    let mut out = Vec::with_capacity(x.len());
    for row in x.chunks_exact(cols) {
        let mean = row.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / cols as f64;
        let factor = if norm.is_some() { 1.0 / (mean + f64::from(EPS)).sqrt() } else { 1.0 };
        let weighted: Vec<f32> = row.iter().enumerate().map(|(i, v)| v * norm.map_or(1.0, |n| n[i])).collect();
        for block in weighted.chunks(32) {
            let most = block.iter().fold(0.0f32, |most, v| most.max(v.abs()));
            let round = |v: f32| if in_bytes { (v * (127.0 / most)).round_ties_even() * (most / 127.0) } else { v };
            out.extend(block.iter().map(|&v| f64::from(round(v)) * factor));
        }
    }
    out
}

/// The sums of both weights of a case.
type Sums = [Vec<f64>; 2];

/// Inputs that many launches share.
struct Bench<'a> {
    lab: &'a Lab,
    weights: &'a [Weight; 2],
    cols: usize,
    x: DevicePtr,
    x_stride: usize,
    norm: Option<DevicePtr>,
    scratch: DevicePtr,
}

/// Which kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
enum How {
    Exact,
    Chosen,
    SameBits,
    By(Tile),
}

impl Bench<'_> {
    fn args<'b>(&self, parts: &'b [Part], rows: usize, epilogue: Epilogue, how: How) -> Linear<'b> {
        Linear {
            parts,
            x: self.x,
            x_stride: self.x_stride,
            rows,
            cols: self.cols,
            norm: self.norm.map(|at| (at, EPS)),
            epilogue,
            exact: how == How::Exact,
            same_bits: how == How::SameBits,
            scratch: self.scratch,
        }
    }

    fn launch(&self, args: &Linear<'_>, how: How) {
        let Lab { device, stream, kernels, .. } = self.lab;
        device.make_current().unwrap();
        let way = match how {
            How::By(tile) => {
                let groups = args.groups();
                let most = device.info.shared_memory as usize;
                Some(Way::Tiles(plan_with(tile, &args.shape(&groups), args.rows, most).unwrap()))
            }
            _ => None,
        };
        // SAFETY: every address was put with the lengths that the struct says.
        unsafe {
            match way {
                Some(way) => linear_by(stream, kernels, args, way),
                None => linear(stream, kernels, args),
            }
        }
        .unwrap();
    }

    /// One launch on the first `rows` rows of x, compared with what `sums` make of it.
    fn check(&self, rows: usize, epilogue: Epilogue, how: How, sums: &Sums) {
        let lab = self.lab;
        let used = if epilogue == Epilogue::Add { 1 } else { 2 };
        let before: Vec<Vec<f32>> = self.weights.iter().map(|w| noise(90, rows * (w.rows + 3))).collect();
        let outs: Vec<DevicePtr> = before.iter().map(|b| lab.put(b)).collect();
        let part =
            |(w, &out): (&Weight, &DevicePtr)| Part { data: w.at, rows: w.rows, ty: w.ty, out, out_stride: w.rows + 3 };
        let parts: Vec<Part> = self.weights.iter().zip(&outs).map(part).take(used).collect();
        let args = self.args(&parts, rows, epilogue, how);
        self.launch(&args, how);
        let floats = self.weights.iter().any(|w| w.ty.block_len() == 1);
        let limit = match how {
            How::Exact => 1e-10,
            // Both sides rounded to bf16.
            _ if floats => 1e-4,
            // The sums are of the same bytes: what is left is f32 sums, and a byte here and there rounded the other way.
            _ => 1e-6,
        };
        let written = if epilogue == Epilogue::Store { 2 } else { 1 };
        for index in 0..used {
            let (weight, before) = (&self.weights[index], &before[index]);
            let got: Vec<f32> = lab.get(outs[index], before.len());
            let what = format!(
                "{} {rows} x {} x {} {epilogue:?}, norm {}, {how:?}, part {index}",
                weight.ty.name(),
                self.cols,
                weight.rows,
                self.norm.is_some()
            );
            if index >= written {
                assert_eq!(&got, before, "{what}: written to");
                continue;
            }
            let want = want(epilogue, rows, weight.rows, index, sums, before);
            let (mut dense, stride) = (Vec::new(), weight.rows + 3);
            for (got, before) in got.chunks_exact(stride).zip(before.chunks_exact(stride)) {
                dense.extend_from_slice(&got[..weight.rows]);
                assert_eq!(got[weight.rows..], before[weight.rows..], "{what}: written beyond a row");
            }
            close(&what, &dense, &want, limit);
        }
    }
}

/// What part `index` of `width` rows should hold after the epilogue: `[rows, width]`.
fn want(epilogue: Epilogue, rows: usize, width: usize, index: usize, sums: &Sums, before: &[f32]) -> Vec<f32> {
    let at = |i: usize| match epilogue {
        Epilogue::Store => sums[index][i],
        Epilogue::Add => sums[0][i] + f64::from(before[i / width * (width + 3) + i % width]),
        Epilogue::SiluMul => sums[0][i] / (1.0 + (-sums[0][i]).exp()) * sums[1][i],
    };
    (0..rows * width).map(|i| at(i) as f32).collect()
}

/// All numbers of rows and all epilogues for two weights, with and without the norm, in the given ways.
fn check_all(lab: &Lab, weights: &[Weight; 2], cols: usize, rows: &[usize], ways: &[How]) {
    let x = noise(7, MOST_ROWS * cols);
    let norm: Vec<f32> = noise(8, cols).into_iter().map(|v| 1.0 + 0.3 * v).collect();
    // Rows further apart than they are long, with what would show between them.
    let x_stride = cols + 4;
    let spread: Vec<f32> = x.chunks_exact(cols).flat_map(|row| row.iter().copied().chain([f32::NAN; 4])).collect();
    let (x_at, norm_at) = (lab.put(&spread), lab.put(&norm));
    // What no kernel has written yet must not matter.
    let scratch = lab.put(&vec![0xffu8; scratch_bytes(MOST_ROWS, cols)]);
    let floats = weights.iter().any(|w| w.ty.block_len() == 1);
    for with_norm in [false, true] {
        let norm = with_norm.then_some(norm.as_slice());
        let most = rows.iter().copied().max().unwrap_or(0);
        let precise = input(&x[..most * cols], cols, norm, false);
        let bytes = input(&x[..most * cols], cols, norm, true);
        let sums = |x: &[f64]| -> Sums { [weights[0].products(x, cols), weights[1].products(x, cols)] };
        let (precise, bytes) = (sums(&precise), sums(&bytes));
        let norm = with_norm.then_some(norm_at);
        let bench = Bench { lab, weights, cols, x: x_at, x_stride, norm, scratch };
        for &rows in rows {
            for epilogue in [Epilogue::Store, Epilogue::Add, Epilogue::SiluMul] {
                for &how in ways {
                    bench.check(rows, epilogue, how, if how == How::Exact || floats { &precise } else { &bytes });
                }
            }
        }
    }
}

fn check_type(ty: TensorType) {
    let cols = [576, 4096, 14336].into_iter().filter(|cols| cols % ty.block_len() == 0);
    for cols in cols {
        let lab = Lab::new(0);
        // An odd number: the last rows of a warp's pair or tile are not there.
        let weights = [Weight::new(&lab, ty, 25, cols, 1), Weight::new(&lab, ty, 25, cols, 2)];
        check_all(&lab, &weights, cols, &ROWS, &[How::Exact, How::Chosen, How::SameBits]);
    }
}

/// Every tile, more rows of weights than it has and fewer, several tiles along x.
fn check_tiles(ty: TensorType) {
    for (cols, rows) in [(4096, 25), (768, 300)] {
        let lab = Lab::new(0);
        let weights = [Weight::new(&lab, ty, rows, cols, 1), Weight::new(&lab, ty, rows, cols, 2)];
        check_all(&lab, &weights, cols, &[1, 70, 150], &TILES.map(How::By));
    }
}

#[test]
#[ignore = "needs a GPU"]
fn products_with_q4_0_match_sums_in_f64() {
    check_type(TensorType::Q4_0);
}

#[test]
#[ignore = "needs a GPU"]
fn products_with_q4_1_match_sums_in_f64() {
    check_type(TensorType::Q4_1);
}

#[test]
#[ignore = "needs a GPU"]
fn products_with_q8_0_match_sums_in_f64() {
    check_type(TensorType::Q8_0);
}

#[test]
#[ignore = "needs a GPU"]
fn products_with_q4_k_match_sums_in_f64() {
    check_type(TensorType::Q4_K);
}

#[test]
#[ignore = "needs a GPU"]
fn products_with_q6_k_match_sums_in_f64() {
    check_type(TensorType::Q6_K);
}

/// As `v` has another type than `q` and `k` in many files, and a gate another than its up in some.
#[test]
#[ignore = "needs a GPU"]
fn weights_of_different_types_share_a_launch() {
    let (lab, cols) = (Lab::new(0), 4096);
    let weights = [Weight::new(&lab, TensorType::Q4_K, 25, cols, 3), Weight::new(&lab, TensorType::Q6_K, 25, cols, 4)];
    check_all(&lab, &weights, cols, &[1, 3, 8], &[How::Exact, How::Chosen]);
}

#[test]
#[ignore = "needs a GPU"]
fn products_with_f16_match_sums_in_f64() {
    check_type(TensorType::F16);
}

#[test]
#[ignore = "needs a GPU"]
fn every_tile_matches_sums_in_f64() {
    for ty in [TensorType::Q4_0, TensorType::Q4_1, TensorType::Q8_0, TensorType::Q4_K, TensorType::Q6_K] {
        check_tiles(ty);
    }
}

/// Float weights and quantized ones of one input in one call.
#[test]
#[ignore = "needs a GPU"]
fn float_and_quantized_weights_may_stand_in_one_call() {
    let (lab, cols) = (Lab::new(0), 768);
    let weights = [Weight::new(&lab, TensorType::F16, 25, cols, 3), Weight::new(&lab, TensorType::Q6_K, 25, cols, 4)];
    check_all(&lab, &weights, cols, &[1, 70], &[How::Exact, How::Chosen]);
}

/// The first row of x among 1 to 200, bit for bit.
#[test]
#[ignore = "needs a GPU"]
fn same_bits_do_not_depend_on_the_number_of_rows() {
    for ty in
        [TensorType::Q4_0, TensorType::Q4_1, TensorType::Q8_0, TensorType::Q4_K, TensorType::Q6_K, TensorType::F16]
    {
        let (lab, cols, rows) = (Lab::new(0), 4096, 4096);
        let weights = [Weight::new(&lab, ty, rows, cols, 5), Weight::new(&lab, ty, 25, cols, 6)];
        let x = lab.put(&noise(9, MOST_ROWS * cols));
        let scratch = lab.put(&vec![0xffu8; scratch_bytes(MOST_ROWS, cols)]);
        let bench = Bench { lab: &lab, weights: &weights, cols, x, x_stride: cols, norm: None, scratch };
        let mut first: Option<Vec<f32>> = None;
        for count in [1, 2, 8, 9, 16, 17, 33, 64, 65, 200] {
            let out = lab.put(&vec![0f32; count * rows]);
            let parts = [Part { data: weights[0].at, rows, ty, out, out_stride: rows }];
            bench.launch(&bench.args(&parts, count, Epilogue::Store, How::SameBits), How::SameBits);
            let got: Vec<f32> = lab.get(out, rows);
            assert!(got.iter().any(|v| *v != 0.0));
            let want = first.get_or_insert_with(|| got.clone());
            assert_eq!(&got, want, "{} among {count} rows", ty.name());
        }
    }
}
