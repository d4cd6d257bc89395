//! Times every way to compute the products of an 8B model's layer, for several numbers of rows: what the choice between
//! them is made from. `cargo run --release -p tombolo-cuda --example products [rows,... [part of a name]]`.
//!
//! A line per product and number of rows: microseconds of every way (the mean of a train of launches over several copies
//! of the weights, so that they come from memory and not from L2), the chosen one marked.

use std::error::Error;
use tombolo_cuda::driver::{Arena, CudaError, Device, DevicePtr, Graph, Kernels, Stream};
use tombolo_cuda::kernels::linear::tiles::{TILES, plan_with};
use tombolo_cuda::kernels::linear::{Epilogue, Linear, Part, Way, layout, linear_by, scratch_bytes, way};
use tombolo_gguf::TensorType;

/// Bytes of weights that a train goes through: more than any L2.
const TRAIN_BYTES: usize = 400 << 20;
/// Trains that are timed; the quickest counts.
const TRAINS: usize = 5;

struct Product {
    name: &'static str,
    cols: usize,
    parts: &'static [(TensorType, usize)],
    epilogue: Epilogue,
}

use TensorType::{Q4_K, Q6_K};

const PRODUCTS: [Product; 5] = [
    Product {
        name: "q k v",
        cols: 4096,
        parts: &[(Q4_K, 4096), (Q4_K, 1024), (Q6_K, 1024)],
        epilogue: Epilogue::Store,
    },
    Product { name: "output", cols: 4096, parts: &[(Q4_K, 4096)], epilogue: Epilogue::Add },
    Product { name: "gate up", cols: 4096, parts: &[(Q4_K, 14336), (Q4_K, 14336)], epilogue: Epilogue::SiluMul },
    Product { name: "down Q4", cols: 14336, parts: &[(Q4_K, 4096)], epilogue: Epilogue::Add },
    Product { name: "down Q6", cols: 14336, parts: &[(Q6_K, 4096)], epilogue: Epilogue::Add },
];

struct Bench {
    stream: Stream,
    kernels: Kernels,
    arena: Arena,
}

impl Bench {
    /// Microseconds of one product.
    fn time(&self, product: &Product, rows: usize, way: Way) -> Result<f64, Box<dyn Error>> {
        let weights: usize = product.parts.iter().map(|&(ty, n)| n * layout::row_bytes(ty, product.cols)).sum();
        let copies = (TRAIN_BYTES / weights).max(2);
        let x = self.arena.start().offset(copies * weights);
        let out = x.offset(4 * rows * product.cols);
        let scratch = out.offset(4 * rows * 2 * 14336);
        let graph = Graph::capture(&self.stream, || -> Result<(), CudaError> {
            for copy in 0..copies {
                let parts = parts(product, self.arena.start().offset(copy * weights), out, rows);
                let args = args(product, &parts, x, rows, scratch);
                // SAFETY: the arena is longer than all of it together.
                unsafe { linear_by(&self.stream, &self.kernels, &args, way) }?;
            }
            Ok(())
        })?;
        let mut best = f64::INFINITY;
        graph.launch(&self.stream)?;
        for _ in 0..TRAINS {
            self.stream.synchronize()?;
            let started = std::time::Instant::now();
            graph.launch(&self.stream)?;
            self.stream.synchronize()?;
            best = best.min(started.elapsed().as_secs_f64());
        }
        Ok(best * 1e6 / copies as f64)
    }
}

fn parts(product: &Product, start: DevicePtr, out: DevicePtr, rows: usize) -> Vec<Part> {
    let (mut data, mut to) = (start, out);
    let mut parts = Vec::new();
    for &(ty, n) in product.parts {
        parts.push(Part { data, rows: n, ty, out: to, out_stride: n });
        data = data.offset(n * layout::row_bytes(ty, product.cols));
        to = to.offset(4 * n * rows);
    }
    parts
}

fn args<'a>(product: &Product, parts: &'a [Part], x: DevicePtr, rows: usize, scratch: DevicePtr) -> Linear<'a> {
    Linear {
        parts,
        x,
        x_stride: product.cols,
        rows,
        cols: product.cols,
        norm: None,
        epilogue: product.epilogue,
        exact: false,
        same_bits: false,
        scratch,
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let list = std::env::args().nth(1).unwrap_or_else(|| "1,4,8,16,32,64,128,256,512".into());
    let all: Vec<usize> = list.split(',').map(str::parse).collect::<Result<_, _>>()?;
    let most = all.iter().copied().max().unwrap_or(1);
    let device = Device::open(0)?;
    let bytes = 2 * TRAIN_BYTES + 4 * most * 3 * 14336 + scratch_bytes(most, 14336);
    let bench =
        Bench { stream: Stream::new(&device)?, kernels: Kernels::load(&device)?, arena: Arena::new(&device, bytes)? };
    let only = std::env::args().nth(2).unwrap_or_default();
    for product in PRODUCTS.iter().filter(|p| p.name.contains(&only)) {
        for &rows in &all {
            let parts = parts(product, DevicePtr(256), DevicePtr(256), rows);
            let args = args(product, &parts, DevicePtr(256), rows, DevicePtr(256));
            let chosen = way(&device.info, &args);
            let groups = args.groups();
            let mut line = format!("{:8} {rows:4}", product.name);
            if rows <= 16 {
                let mark = if chosen == Way::Decode { "*" } else { "" };
                line += &format!("  decode{mark} {:.1}", bench.time(product, rows, Way::Decode)?);
            }
            for tile in TILES {
                let Some(plan) = plan_with(tile, &args.shape(&groups), rows, device.info.shared_memory as usize) else {
                    continue;
                };
                let mark = if chosen == Way::Tiles(plan) { "*" } else { "" };
                let name = tile.kernel.trim_start_matches("linear_tiles_");
                line += &format!("  {name}{mark} {:.1}", bench.time(product, rows, Way::Tiles(plan))?);
            }
            println!("{line}");
        }
    }
    Ok(())
}
