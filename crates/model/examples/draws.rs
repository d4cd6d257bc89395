//! Times what a draw costs on the host: `cargo run --release -p tombolo-model --example draws [VOCABULARY [SPREAD]]`.
//!
//! Logits are normal with a standard deviation of SPREAD (3): a language model's are spread wider, so that fewer matter.

use std::hint::black_box;
use std::time::Instant;
use tombolo_model::{CANDIDATES, Sampling, Summary, draw_from_all};

fn main() {
    let number = |at: usize, default: f32| std::env::args().nth(at).and_then(|s| s.parse().ok()).unwrap_or(default);
    let (vocabulary, spread) = (number(1, 128_256.0) as usize, number(2, 3.0));
    let mut state = 1u64;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 40) as f32 + 0.5) / (1 << 24) as f32
    };
    let normal = |_| spread * (-2.0 * uniform().ln()).sqrt() * (std::f32::consts::TAU * uniform()).cos();
    let logits: Vec<f32> = (0..vocabulary).map(normal).collect();
    let time = |what: &str, run: &dyn Fn(u32)| {
        let started = Instant::now();
        (0..50).for_each(run);
        println!("{what:44} {:8.1} us", started.elapsed().as_secs_f64() * 1e6 / 50.0);
    };
    println!("{vocabulary} logits");
    time("the best 64", &|_| drop(black_box(Summary::best(&logits, 0, CANDIDATES))));
    time("the best 64 and the weight of all", &|_| drop(black_box(Summary::of(&logits, 0, 0.8, CANDIDATES))));
    let plain = Sampling { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 1 };
    for (what, sampling) in [
        ("greedy", Sampling::GREEDY),
        ("temperature 1", plain),
        ("temperature 0.7, top_p 0.9", Sampling { temperature: 0.7, top_p: 0.9, ..plain }),
        ("temperature 0.7, top_k 40", Sampling { temperature: 0.7, top_k: 40, ..plain }),
    ] {
        time(&format!("a draw from all: {what}"), &|position| {
            black_box(draw_from_all(&logits, &sampling, position));
        });
    }
}
