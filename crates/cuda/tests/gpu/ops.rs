//! Every small kernel against plain loops.

use std::sync::Arc;
use tombolo_cuda::driver::{Arena, Device, DevicePtr, Kernels, Stream};
use tombolo_cuda::kernels::{add_norm, gather_rows, rms_norm, silu_mul};

struct Bench {
    stream: Stream,
    kernels: Kernels,
    arena: Arena,
    used: std::cell::Cell<usize>,
}

impl Bench {
    fn new() -> Self {
        let device: Arc<Device> = Device::open(0).unwrap();
        Self {
            stream: Stream::new(&device).unwrap(),
            kernels: Kernels::load(&device).unwrap(),
            arena: Arena::new(&device, 64 << 20).unwrap(),
            used: std::cell::Cell::new(0),
        }
    }

    fn put<T: Copy>(&self, data: &[T]) -> DevicePtr {
        let at = self.arena.start().offset(self.used.get());
        let bytes = size_of_val(data).next_multiple_of(256);
        assert!(self.used.get() + bytes <= self.arena.bytes());
        self.used.set(self.used.get() + bytes);
        // SAFETY: the arena has room (above).
        unsafe { self.stream.upload(at, data) }.unwrap();
        at
    }

    fn get(&self, at: DevicePtr, len: usize) -> Vec<f32> {
        // SAFETY: what `put` placed there is at least so long.
        unsafe { self.stream.download(at, len) }.unwrap()
    }
}

fn noise(seed: u32, len: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as f32 / u32::MAX as f32 * 4.0 - 2.0
    };
    (0..len).map(|_| next()).collect()
}

fn close(name: &str, got: &[f32], want: &[f32]) {
    let error: f64 = got.iter().zip(want).map(|(g, w)| f64::from(g - w).powi(2)).sum();
    let power: f64 = want.iter().map(|w| f64::from(*w).powi(2)).sum();
    let nmse = error / power.max(1e-30);
    assert!(nmse <= 1e-10, "{name}: NMSE {nmse:e}");
}

fn normed(x: &[f32], weight: &[f32], eps: f32) -> Vec<f32> {
    let one = |row: &[f32]| -> Vec<f32> {
        let mean = row.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / row.len() as f64;
        let scale = 1.0 / (mean + f64::from(eps)).sqrt();
        row.iter().zip(weight).map(|(v, w)| (f64::from(*v) * scale * f64::from(*w)) as f32).collect()
    };
    x.chunks_exact(weight.len()).flat_map(one).collect()
}

#[test]
#[ignore = "needs a GPU"]
fn norms_and_activations_match_plain_loops() {
    let b = Bench::new();
    for (rows, width) in [(1, 64), (3, 576), (7, 4096), (2, 5000), (5, 33)] {
        b.used.set(0);
        let (x, partial, weight) = (noise(1, rows * width), noise(2, rows * width), noise(3, width));
        let (dx, dp, dw) = (b.put(&x), b.put(&partial), b.put(&weight));
        let out = b.put(&vec![f32::NAN; rows * width]);
        // SAFETY: every address holds `rows * width` values, the weight `width`.
        unsafe {
            rms_norm::rms_norm(&b.stream, &b.kernels, (dx, dw, out), (rows, width), 1e-5).unwrap();
            close("rms_norm", &b.get(out, rows * width), &normed(&x, &weight, 1e-5));

            silu_mul::silu_mul(&b.stream, &b.kernels, (dx, dp, out), rows * width).unwrap();
            let want: Vec<f32> = x.iter().zip(&partial).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
            close("silu_mul", &b.get(out, rows * width), &want);

            let a = add_norm::AddNorm { partial: dp, residual: dx, weight: dw, out, eps: 1e-6 };
            add_norm::add_norm(&b.stream, &b.kernels, &a, rows, width).unwrap();
        }
        let sum: Vec<f32> = x.iter().zip(&partial).map(|(a, b)| a + b).collect();
        assert_eq!(b.get(dx, rows * width), sum, "residual");
        close("add_norm", &b.get(out, rows * width), &normed(&sum, &weight, 1e-6));
    }
}

#[test]
#[ignore = "needs a GPU"]
fn rows_are_gathered_as_far_as_the_step_counts_them() {
    let b = Bench::new();
    let (rows, width) = (9, 100);
    let x = noise(4, rows * width);
    let picked = [7u32, 0, 3, 8];
    let head = b.put(&[rows as u32, 1, 3, 0]);
    let (dx, dr, out) = (b.put(&x), b.put(&picked), b.put(&vec![-1.0f32; 4 * width]));
    // SAFETY: every address holds what the kernel reads for four rows.
    unsafe { gather_rows::gather_rows(&b.stream, &b.kernels, (head, dr, dx, out), (4, width)) }.unwrap();
    let got = b.get(out, 4 * width);
    for (i, &row) in picked[..3].iter().enumerate() {
        assert_eq!(got[i * width..(i + 1) * width], x[row as usize * width..(row as usize + 1) * width]);
    }
    assert!(got[3 * width..].iter().all(|&v| v == -1.0), "a row beyond the count was written");
}
