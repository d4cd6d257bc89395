//! How fast the kernels are: `cargo test --release -p tombolo-cpu -- --ignored --nocapture speed`.
//!
//! Each figure is that of the quickest of many short runs, which a busy machine disturbs least. In cache; what memory
//! makes of it is measured by the example `speed`.

use super::tests::{Random, random_blocks};
use super::*;
use crate::pack::{pack_tile, tile_bytes, type_of};
use std::time::Instant;

/// Seconds of the quickest of many runs.
fn quickest(mut work: impl FnMut()) -> f64 {
    let mut best = f64::MAX;
    let begin = Instant::now();
    while begin.elapsed().as_secs_f64() < 0.15 {
        let start = Instant::now();
        work();
        best = best.min(start.elapsed().as_secs_f64());
    }
    best
}

#[test]
#[ignore = "a benchmark"]
fn speed_of_products() {
    let mut random = Random::new(1);
    let (cols, rows) = (1536, 48);
    for table in Tier::available().into_iter().filter_map(Kernels::of) {
        println!("{:?}, {cols} columns: 10^9 products a second with 1, 2, 4, {rows} rows", table.tier);
        for kind in Kind::ALL {
            let row = random_blocks(type_of(kind), cols, &mut random);
            let mut tile = vec![0; tile_bytes(kind, cols)];
            pack_tile(kind, &[&row[..]; TILE], &mut tile);
            let (mut quants, mut blocks) = (vec![0; rows * cols], vec![ActBlock::default(); rows * cols / QUANT]);
            (table.quantize)(&random.values(rows * cols), &mut quants, &mut blocks);
            let acts: Vec<ActRow> = quants
                .chunks(cols)
                .zip(blocks.chunks(cols / QUANT))
                .map(|(quants, blocks)| ActRow { quants, blocks })
                .collect();
            let mut out = vec![[0f32; TILE]; 2 * rows];
            let mut panel = Panel::default();
            let speed = |n: usize, s: f64| (n * TILE * cols) as f64 / s * 1e-9;
            let [one, two, four] =
                [1, 2, 4].map(|n| speed(n, quickest(|| (table.tile)(kind, &tile, &acts[..n], &mut out[..n]))));
            let many = quickest(|| (table.block)(kind, &[&tile], &acts, &mut panel, &mut out[..rows]));
            println!("{kind:?}: {one:.1}, {two:.1}, {four:.1}, {:.1}", speed(rows, many));
        }
    }
}

#[test]
#[ignore = "a benchmark"]
fn speed_of_the_rest() {
    let mut random = Random::new(2);
    for table in Tier::available().into_iter().filter_map(Kernels::of) {
        println!("{:?}", table.tier);
        let (x, w) = (random.values(1536), random.values(1536));
        let mut out = vec![0f32; 1536];
        let ns = |s: f64| s * 1e9 / 1536.0;
        let (mut quants, mut blocks) = (vec![0i8; 1536], vec![ActBlock::default(); 48]);
        println!("quantize {:.3} ns a value", ns(quickest(|| (table.quantize)(&x, &mut quants, &mut blocks))));
        println!("silu_mul {:.3} ns a value", ns(quickest(|| (table.silu_mul)(&x, &w, &mut out))));
        println!("rms_norm {:.3} ns a value", ns(quickest(|| (table.rms_norm)(&mut out, &w, 1e-5))));
        println!("add {:.3} ns a value", ns(quickest(|| (table.add)(&mut out, &w))));
        let turns = [[0.6, 0.8]; 32];
        let rope = |f: fn(&mut [f32], &[[f32; 2]]), head: &mut [f32]| quickest(|| f(head, &turns)) * 1e9 / 64.0;
        println!("rope_interleaved {:.3} ns a value", rope(table.rope_interleaved, &mut out[..64]));
        println!("rope_half_split {:.3} ns a value", rope(table.rope_half_split, &mut out[..64]));
        let (w, x) = (random.values(4 * 1536), random.values(24 * 1536));
        let x: Vec<&[f32]> = x.chunks(1536).collect();
        let mut sums = vec![[0.0; 4]; 24];
        for n in [1, 24] {
            let s = quickest(|| (table.products)(&w, &x[..n], &mut sums));
            println!("{n} rows: {:.1}·10^9 products in f32 a second", (n * 4 * 1536) as f64 / s * 1e-9);
        }
        for (n, dim) in [(1, 64), (3, 64), (48, 64), (4, 128)] {
            let mut heads = Heads::new();
            heads.clear(dim);
            (0..n).for_each(|_| heads.push(&random.values(dim), None));
            let (k, v) = (random.values(dim * BLOCK), random.values(dim * BLOCK));
            let scoring = Scoring { scale: 0.1, softcap: None };
            let valid = vec![0..BLOCK; n];
            let s = quickest(|| (table.attend)(&mut heads, &valid, &k, &v, scoring));
            println!("{n} heads of {dim}: {:.1}·10^9 products a second", (2 * n * dim * BLOCK) as f64 / s * 1e-9);
        }
    }
}

/// What un-absorbed attention would gain: GLM-5's heads, by products a pair of row and position takes and by time.
#[test]
#[ignore = "a benchmark"]
fn speed_of_latent_attention() {
    let mut random = Random::new(3);
    let (latent, nope, rope, value, n) = (512, 192, 64, 256, 64);
    let table = Kernels::of(Tier::best()).unwrap();
    let scoring = Scoring { scale: 0.1, softcap: None };
    let valid = vec![0..BLOCK; n];
    let pairs = (n * BLOCK) as f64;
    let rows = random.values(BLOCK * (latent + rope));
    let mut heads = Heads::new();
    heads.clear(latent + rope);
    (0..n).for_each(|_| heads.push(&random.values(latent + rope), None));
    let absorbed = quickest(|| (table.attend_latent)(&mut heads, 0, &valid, &rows, latent, scoring)) / pairs;
    heads.clear(nope + rope);
    (0..n).for_each(|_| heads.push(&random.values(nope + rope), None));
    let (k, v) = (random.values((nope + rope) * BLOCK), random.values(value * BLOCK));
    let plain = quickest(|| (table.attend)(&mut heads, &valid, &k, &v, scoring)) / pairs;
    // A head's keys lie turned in the file: their blocks are no rows of what is multiplied with.
    let decoded = random.values(latent * nope);
    let mut keys = vec![0.0; BLOCK * nope];
    let key = quickest(|| {
        for (row, keys) in rows.chunks(latent + rope).zip(keys.chunks_mut(nope)) {
            for (row, factor) in decoded.chunks(nope).zip(row) {
                (table.add_scaled)(keys, row, *factor);
            }
        }
    });
    let kind = Kind::Q8_0;
    let row = random_blocks(type_of(kind), latent, &mut random);
    let mut tile = vec![0; tile_bytes(kind, latent)];
    pack_tile(kind, &[&row[..]; TILE], &mut tile);
    let (mut quants, mut blocks) = (vec![0; BLOCK * latent], vec![ActBlock::default(); BLOCK * latent / QUANT]);
    (table.quantize)(&random.values(BLOCK * latent), &mut quants, &mut blocks);
    let acts = quants.chunks(latent).zip(blocks.chunks(latent / QUANT));
    let acts: Vec<ActRow> = acts.map(|(quants, blocks)| ActRow { quants, blocks }).collect();
    let (mut out, mut panel) = (vec![[0f32; TILE]; 2 * BLOCK], Panel::default());
    let two = quickest(|| (table.block)(kind, &[&tile, &tile], &acts, &mut panel, &mut out));
    let (key, value) = (key / BLOCK as f64, two / BLOCK as f64 * (value / (2 * TILE)) as f64);
    println!("a pair of row and position: {:.1} ns absorbed, {:.1} ns plain", absorbed * 1e9, plain * 1e9);
    println!("a position's key {:.0} ns and value {:.0} ns a head", key * 1e9, value * 1e9);
    println!("as many rows a step make up for it: {:.0}", (key + value) / (absorbed - plain));
}
