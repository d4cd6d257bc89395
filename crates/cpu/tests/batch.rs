//! A row's result does not depend on the batch it ran in, on threads or on the processor's tier: the same bits.

mod common;

use common::{How, Model, data, rows, sequence, step};
use std::io::Cursor;
use std::sync::Arc;
use tombolo_cpu::Tier;
use tombolo_gguf::{Gguf, TensorType, Writer, quant};
use tombolo_model::{Arith, Row, Sampling, Step, Token};

/// A llama of random weights in which every integer type has a place; splits in two.
fn mixed_types() -> Arc<Gguf> {
    let mut state = 1u64;
    let mut random = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    let mut tensors: Vec<(String, Vec<u64>, TensorType)> =
        vec![("token_embd.weight".into(), vec![256, 300], TensorType::Q6_K)];
    for layer in 0..2 {
        let mut add =
            |name: &str, dims: &[u64], ty| tensors.push((format!("blk.{layer}.{name}.weight"), dims.to_vec(), ty));
        add("attn_norm", &[256], TensorType::F32);
        add("attn_q", &[256, 512], TensorType::Q4_K);
        add("attn_k", &[256, 128], TensorType::Q6_K);
        add("attn_v", &[256, 128], TensorType::Q4_1);
        add("attn_output", &[512, 256], TensorType::Q4_0);
        add("ffn_norm", &[256], TensorType::F16);
        add("ffn_gate", &[256, 512], TensorType::Q8_0);
        add("ffn_up", &[256, 512], TensorType::BF16);
        add("ffn_down", &[512, 256], if layer == 0 { TensorType::Q6_K } else { TensorType::Q4_K });
    }
    tensors.push(("output_norm.weight".into(), vec![256], TensorType::F32));
    tensors.push(("output.weight".into(), vec![256, 300], TensorType::Q4_1));

    let mut writer = Writer::new(Cursor::new(Vec::new()));
    writer.metadata("general.architecture", "llama").unwrap();
    for (key, value) in [
        ("block_count", 2u32),
        ("embedding_length", 256),
        ("feed_forward_length", 512),
        ("attention.head_count", 16),
        ("attention.head_count_kv", 4),
        ("attention.key_length", 32),
        ("attention.value_length", 32),
        ("context_length", 256),
    ] {
        writer.metadata(&format!("llama.{key}"), value).unwrap();
    }
    writer.metadata("llama.attention.layer_norm_rms_epsilon", 1e-5f32).unwrap();
    for (name, dims, ty) in &tensors {
        writer.tensor(name, dims, *ty).unwrap();
    }
    writer.finish_header().unwrap();
    for (_, dims, ty) in &tensors {
        let norm = dims.len() == 1;
        let n = dims.iter().product::<u64>() as usize;
        let values: Vec<f32> = (0..n).map(|_| if norm { 1.0 + 0.2 * random() } else { 0.1 * random() }).collect();
        let mut bytes = Vec::new();
        quant::encode(*ty, &values, &mut bytes).unwrap();
        writer.data(&bytes).unwrap();
    }
    Arc::new(Gguf::from_bytes(writer.finish().unwrap().into_inner()).unwrap())
}

fn models() -> Vec<(&'static str, Arc<Gguf>)> {
    let open = |name| Arc::new(Gguf::open(&data(name)).unwrap());
    vec![
        ("mixed types", mixed_types()),
        ("tiny-llama-q4_0", open("tiny-llama-q4_0.gguf")),
        ("tiny-qwen3", open("tiny-qwen3.gguf")),
        ("tiny-gemma3", open("tiny-gemma3.gguf")),
        ("tiny-gpt-oss", open("tiny-gpt-oss.gguf")),
    ]
}

fn tokens(seed: u32, n: usize) -> Vec<u32> {
    (0..n as u32).map(|i| (i * 37 + seed * 11) % 250).collect()
}

fn both() -> [Arith; 2] {
    [Arith::F32, Arith::Production]
}

#[test]
fn chunked_prefill_is_whole_prefill() {
    let prompt = tokens(1, 70);
    for (name, gguf) in models() {
        for arith in both() {
            let whole = Model::of(Arc::clone(&gguf), How::new(1, arith)).run(&[step(0, &prompt, true)]).remove(0);
            assert!(whole.logits.iter().all(|l| l.is_finite()));
            for chunk in [1, 3, 33, 64] {
                let steps: Vec<Step> =
                    prompt.chunks(chunk).enumerate().map(|(i, part)| step(i * chunk, part, true)).collect();
                let parts = Model::of(Arc::clone(&gguf), How::new(1, arith)).run(&steps);
                let parts: Vec<f32> = parts.into_iter().flat_map(|o| o.logits).collect();
                assert!(parts == whole.logits, "{name} {arith:?}: chunks of {chunk} differ");
            }
        }
    }
}

#[test]
fn a_mixed_batch_is_its_rows_alone() {
    // One sequence that decodes at position 40, one that prefills, one that begins.
    let parts = [(tokens(1, 40), tokens(2, 1)), (tokens(3, 7), tokens(4, 21)), (Vec::new(), tokens(5, 9))];
    for (name, gguf) in models() {
        for arith in both() {
            let mut together = Model::of(Arc::clone(&gguf), How::new(1, arith));
            let mut steps = Vec::new();
            for (s, (past, _)) in parts.iter().enumerate().filter(|(_, (past, _))| !past.is_empty()) {
                steps.push(Step { rows: rows(0, 0, past, false), sequences: vec![sequence(s)], ..Step::default() });
            }
            let mixed = parts.iter().enumerate().flat_map(|(s, (past, now))| rows(s as u32, past.len(), now, true));
            let sequences = (0..parts.len()).map(sequence).collect();
            steps.push(Step { rows: mixed.collect(), sequences, full_logits: true, ..Step::default() });
            let mixed = together.run(&steps).pop().unwrap();

            let mut alone = Vec::new();
            for (past, now) in &parts {
                let mut model = Model::of(Arc::clone(&gguf), How::new(1, arith));
                let mut steps: Vec<Step> = past.iter().enumerate().map(|(i, &t)| step(i, &[t], false)).collect();
                let first = steps.len();
                steps.extend(now.iter().enumerate().map(|(i, &t)| step(past.len() + i, &[t], true)));
                alone.extend(model.run(&steps).into_iter().skip(first).flat_map(|o| o.logits));
            }
            assert!(mixed.logits == alone, "{name} {arith:?}");
        }
    }
}

#[test]
fn threads_and_tiers_change_no_bit() {
    let prompt = tokens(7, 45);
    for (name, gguf) in models() {
        for (arith, tp) in [(Arith::F32, 1), (Arith::Production, 1), (Arith::Production, 2)] {
            let run = |threads, tier| {
                let how = How { threads, tier, ..How::new(tp, arith) };
                Model::of(Arc::clone(&gguf), how).run(&[step(0, &prompt, true), step(45, &[9], true)])
            };
            let want = run(1, Tier::Scalar);
            for tier in Tier::available() {
                for threads in [2, 7] {
                    assert!(run(threads, tier) == want, "{name} {arith:?} TP {tp}: {threads} threads, {tier:?}");
                }
            }
        }
    }
}

#[test]
fn ranks_agree_with_one_rank() {
    let prompt = tokens(3, 30);
    for (name, gguf) in models() {
        let run = |tp| Model::of(Arc::clone(&gguf), How::new(tp, Arith::F32)).run(&[step(0, &prompt, true)]).remove(0);
        let whole = run(1);
        let difference = common::max_difference(&run(2).logits, &whole.logits);
        assert!(difference <= 1e-4, "{name}: {difference}");
    }
}

#[test]
fn a_step_may_take_the_token_of_the_step_before() {
    let prompt = tokens(2, 12);
    let sampling = Sampling { temperature: 1.5, top_k: 0, top_p: 0.9, min_p: 0.0, seed: 5 };
    let next = |position: u32, token| Step {
        rows: vec![Row { token, position, sequence: 0, sample: Some(sampling), draft: false }],
        sequences: vec![sequence(0)],
        ..Step::default()
    };
    for tp in [1, 2] {
        // Known to the host, one step at a time.
        let mut model = Model::of(mixed_types(), How::new(tp, Arith::Production));
        let mut token = model.run(&[step(0, &prompt, false)])[0].tokens[0];
        let mut want = vec![token];
        for position in 12..20 {
            token = model.run(&[next(position, Token::Host(token))])[0].tokens[0];
            want.push(token);
        }
        // Not known, and two steps under way at once.
        let mut model = Model::of(mixed_types(), How::new(tp, Arith::Production));
        let mut steps = vec![step(0, &prompt, false)];
        steps.extend((12..20).map(|position| next(position, Token::Prev(0))));
        let steps: Vec<Arc<Step>> = steps.into_iter().map(Arc::new).collect();
        let got: Vec<Vec<u32>> = std::thread::scope(|scope| {
            let steps = &steps;
            let threads: Vec<_> = model
                .ranks
                .iter_mut()
                .map(|rank| {
                    scope.spawn(move || {
                        rank.submit(Arc::clone(&steps[0])).unwrap();
                        let mut tokens = Vec::new();
                        for i in 0..steps.len() {
                            if let Some(step) = steps.get(i + 1) {
                                rank.submit(Arc::clone(step)).unwrap();
                            }
                            tokens.extend(rank.collect().unwrap().tokens);
                        }
                        tokens
                    })
                })
                .collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        assert!(got.iter().all(|tokens| *tokens == want), "TP {tp}: {got:?}, not {want:?}");
    }
}
