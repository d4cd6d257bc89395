//! Whole models against logits of the reference implementation (transformers, f32), with f32 arithmetic.

mod common;

use common::{How, Model, Reference, data, max_difference, step};
use std::sync::Arc;
use tombolo_cpu::{Options, Tier};
use tombolo_gguf::Gguf;
use tombolo_model::{Arith, Capacity, Config, KvType, Step};

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

/// What a cache in fewer bits costs: within a bound that its type's precision gives, and the same bits however the rows
/// came. With windows, sinks, latents and index keys.
#[test]
fn caches_of_every_type_stay_close() {
    let types = [(KvType::F16, 0.002), (KvType::BF16, 0.02), (KvType::Q8_0, 0.1)];
    // Where an indexer chooses otherwise, a position's logits are quite different ones.
    for (name, slack) in [("tiny-gemma3", 1.0), ("tiny-gpt-oss", 1.0), ("tiny-glm-dsa", 5.0)] {
        let reference = Reference::open(&format!("{name}.safetensors"));
        let (prompt, want) = (reference.tokens("tokens"), reference.f32s("logits"));
        // Latents of 48 values do not make groups of 32.
        for (kv, most) in types.into_iter().filter(|t| t.0 != KvType::Q8_0 || name != "tiny-glm-dsa") {
            let how = How { kv: Some(kv), ..How::new(1, Arith::F32) };
            let mut model = Model::load(&data(&format!("{name}.gguf")), how);
            let whole = model.run(&[step(0, &prompt, true)]).remove(0).logits;
            let mean = whole.iter().zip(&want).map(|(a, b)| (a - b).abs()).sum::<f32>() / want.len() as f32;
            println!("{name}, {}: off by {mean} on average", kv.name());
            assert!(mean > 0.0 && mean <= slack * most, "{name}, {}: off by {mean} on average", kv.name());
            let mut model = Model::load(&data(&format!("{name}.gguf")), how);
            let steps: Vec<Step> = prompt.iter().enumerate().map(|(i, &t)| step(i, &[t], true)).collect();
            let one_by_one: Vec<f32> = model.run(&steps).into_iter().flat_map(|o| o.logits).collect();
            assert!(one_by_one == whole, "{name}, {}: rows one by one differ", kv.name());
        }
    }
}

#[test]
fn latents_that_do_not_make_groups_are_refused() {
    let gguf = Arc::new(Gguf::open(&data("tiny-deepseek3.gguf")).unwrap());
    let config = Config::from_gguf(&gguf).unwrap();
    let options = Options { kv: Some(KvType::Q8_0), threads: 1, ..Options::default() };
    let error = tombolo_cpu::load(gguf, &config, 1, Capacity::new(8, 1, 64), &options).err().unwrap();
    let want = "keys and values of 48 per head cannot be kept in q8_0: it takes multiples of 32";
    assert_eq!(error.to_string(), want);
}
