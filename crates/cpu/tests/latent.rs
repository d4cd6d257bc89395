//! Models of the GLM and DeepSeek families against logits of the reference implementation (transformers, f32), with f32
//! arithmetic: latent attention, what its indexer chooses, routed experts with one beside them.

mod common;

use common::{How, Model, Reference, data, max_difference, rows};
use std::sync::Arc;
use tombolo_gguf::Gguf;
use tombolo_model::{Arith, BLOCK_TOKENS, Capacity, Config, Program, Sequence, Shard, Step};

/// A model whose configuration was changed after it was read.
fn load(gguf: &Arc<Gguf>, how: How, change: impl Fn(&mut Config)) -> (Model, usize) {
    let mut config = Config::from_gguf(gguf).unwrap();
    change(&mut config);
    let capacity = Capacity::new(how.rows, how.rows, 256);
    let options = tombolo_cpu::Options { threads: how.threads, arith: how.arith, ..Default::default() };
    let ranks = tombolo_cpu::load_with(gguf.clone(), &config, how.tp, capacity, &options, how.tier).unwrap();
    let groups = Program::build(gguf, &config, Shard::WHOLE).unwrap().groups.len();
    (Model { config, ranks, capacity }, groups)
}

/// A step of one sequence with logits of all rows; its groups have the blocks in different orders.
fn step(groups: usize, start: usize, tokens: &[u32]) -> Step {
    let len = (256 / BLOCK_TOKENS) as u32;
    let tables = (0..groups as u32).map(|group| (0..len).map(|b| (b + 3 * group + 1) % len).collect()).collect();
    Step { rows: rows(0, start, tokens, true), sequences: vec![Sequence { tables }], full_logits: true }
}

/// How a prompt comes in: lengths of the steps; the rest token by token.
fn steps(groups: usize, tokens: &[u32], chunks: &[usize]) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut start = 0;
    let ones = std::iter::repeat(&1);
    for &len in chunks.iter().chain(ones) {
        if start == tokens.len() {
            break;
        }
        steps.push(step(groups, start, &tokens[start..start + len]));
        start += len;
    }
    steps
}

fn logits(model: &mut Model, steps: &[Step]) -> Vec<f32> {
    model.run(steps).into_iter().flat_map(|output| output.logits).collect()
}

fn open(name: &str) -> Arc<Gguf> {
    Arc::new(Gguf::open(&data(&format!("{name}.gguf"))).unwrap())
}

/// Prefill and decode against the reference, for every number of ranks; a prompt in chunks has the bits of a whole one.
fn check(name: &str, tps: &[usize], tolerance: f32, change: impl Fn(&mut Config)) {
    let (gguf, reference) = (open(name), Reference::open(&format!("{name}.safetensors")));
    let prompt = reference.tokens("tokens");
    let tokens = [prompt.clone(), reference.tokens("decode_tokens")].concat();
    let want = [reference.f32s("logits"), reference.f32s("decode_logits")].concat();
    for &tp in tps {
        let (mut model, groups) = load(&gguf, How::new(tp, Arith::F32), &change);
        let whole = logits(&mut model, &steps(groups, &tokens, &[prompt.len()]));
        let difference = max_difference(&whole, &want);
        println!("{name} at TP {tp}: off by {difference:e}");
        assert!(difference <= tolerance, "{name} at TP {tp}: off by {difference}");
        let chunked = logits(&mut model, &steps(groups, &tokens, &[7, 1, 26, 11]));
        assert!(whole == chunked, "{name} at TP {tp}: chunks change the logits");
    }
}

/// transformers norms squeezed queries and latents with an eps of their own, which no file carries.
fn reference_eps(config: &mut Config) {
    config.latent.as_mut().unwrap().eps = 1e-6;
}

#[test]
fn glm_dsa() {
    check("tiny-glm-dsa", &[1, 2, 4], 1e-5, reference_eps);
    check("tiny-glm-dsa", &[1], 1e-4, |_| ());
}

#[test]
fn glm_dsa_forced_to_be_dense() {
    let (gguf, reference) = (open("tiny-glm-dsa"), Reference::open("tiny-glm-dsa.safetensors"));
    let tokens = reference.tokens("tokens");
    for tp in [1, 4] {
        let (mut model, groups) = load(&gguf, How::new(tp, Arith::F32), |config| {
            reference_eps(config);
            assert!(config.force_dense_attention());
        });
        assert_eq!(groups, 1);
        let dense = logits(&mut model, &steps(groups, &tokens, &[tokens.len()]));
        let difference = max_difference(&dense, &reference.f32s("dense_logits"));
        assert!(difference <= 1e-5, "dense at TP {tp}: off by {difference}");
        assert!(max_difference(&dense, &reference.f32s("logits")) > 0.1, "sparsity makes no difference here");
    }
}

#[test]
fn deepseek3() {
    check("tiny-deepseek3", &[1, 2, 4], 1e-4, |_| ());
}

#[test]
fn deepseek2_lite_from_a_legacy_file() {
    check("tiny-deepseek2-lite", &[1, 2, 4], 1e-4, |_| ());
}

#[test]
fn glm4moe() {
    check("tiny-glm4moe", &[1, 2, 4], 1e-4, |_| ());
}
