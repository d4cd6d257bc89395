//! Whole models against logits of the reference implementation (transformers, f32), with f32 arithmetic.

mod common;

use common::{How, Model, Reference, data, max_difference, step};
use tombolo_cpu::Tier;
use tombolo_model::Arith;

/// Prefill of everything, then the decode tokens one by one, compared with the reference.
fn check(name: &str, tps: &[usize], tolerance: f32) {
    let reference = Reference::open(&format!("{name}.safetensors"));
    let (prompt, decode) = (reference.tokens("tokens"), reference.tokens("decode_tokens"));
    let want = [reference.f32s("logits"), reference.f32s("decode_logits")];
    for &tp in tps {
        for tier in Tier::available() {
            let mut model = Model::load(&data(&format!("{name}.gguf")), How { tier, ..How::new(tp, Arith::F32) });
            let mut steps = vec![step(0, &prompt, true)];
            steps.extend(decode.iter().enumerate().map(|(i, &token)| step(prompt.len() + i, &[token], true)));
            let outputs = model.run(&steps);
            let decoded: Vec<f32> = outputs[1..].iter().flat_map(|o| o.logits.iter().copied()).collect();
            for (what, got, want) in [("prefill", &outputs[0].logits, &want[0]), ("decode", &decoded, &want[1])] {
                let difference = max_difference(got, want);
                assert!(difference <= tolerance, "{name} {what} at TP {tp}, {tier:?}: off by {difference}");
            }
        }
    }
}

#[test]
fn tiny_llama() {
    check("tiny-llama", &[1, 2, 4], 1e-4);
}

#[test]
fn tiny_llama_q8_0() {
    check("tiny-llama-q8_0", &[1, 2, 4], 1e-4);
}

#[test]
fn tiny_llama_q4_0() {
    check("tiny-llama-q4_0", &[1, 2, 4], 1e-4);
}

/// Blocks of 256 weights cannot be split over four ranks.
#[test]
fn tiny_llama_q4_k() {
    check("tiny-llama-q4_k", &[1, 2], 1e-4);
}

#[test]
fn tiny_qwen3() {
    check("tiny-qwen3", &[1, 2, 4], 1e-4);
}

/// Biases everywhere; the frequencies of Llama 3.1.
#[test]
fn tiny_llama_biases() {
    check("tiny-llama-biases", &[1, 2, 4], 1e-4);
}

/// Biases of q, k and v; YaRN.
#[test]
fn tiny_qwen2() {
    check("tiny-qwen2", &[1, 2, 4], 1e-4);
}

/// Experts in a llama; linear scaling.
#[test]
fn tiny_mixtral() {
    check("tiny-mixtral", &[1, 2, 4], 1e-4);
}

#[test]
fn tiny_qwen3moe() {
    check("tiny-qwen3moe", &[1, 2, 4, 8], 1e-4);
}

/// Windows, four norms, a scaled embedding, GELU, a soft cap.
#[test]
fn tiny_gemma3() {
    check("tiny-gemma3", &[1, 2, 4], 1e-4);
}

/// Windows, sinks, biases of experts, YaRN, MXFP4.
#[test]
fn tiny_gpt_oss() {
    check("tiny-gpt-oss", &[1, 2, 4, 8], 1e-4);
}
