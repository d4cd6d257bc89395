//! A real model: SmolLM2-135M-Instruct, Q4_1, against transformers' logits in f32.

mod common;

use common::{How, Model, Reference, max_difference, smollm2, step};
use tombolo_model::Arith;

const PROMPT: [u32; 5] = [504, 3575, 282, 4649, 314];
const TOP: [(usize, f32); 5] =
    [(7042, 17.37127), (260, 14.88859), (4528, 13.24498), (2250, 13.00947), (1315, 12.95152)];

fn best(logits: &[f32]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_unstable_by(|&a, &b| logits[b].total_cmp(&logits[a]));
    order
}

#[test]
#[ignore = "needs models/SmolLM2-135M-Instruct.Q4_1.gguf"]
fn f32_arithmetic_matches_the_reference_at_tp_1_and_3() {
    let reference = Reference::open("smollm2-logits.safetensors");
    let text = reference.tokens("text.tokens");
    let rows = reference.tokens("text.rows");
    let want_rows = reference.f32s("text.row_logits");
    let (want_ids, want_top) = (reference.tokens("text.top_ids"), reference.f32s("text.top_logits"));
    for tp in [1, 3] {
        let mut model = Model::load(&smollm2(), How::new(tp, Arith::F32));
        let vocabulary = model.config.vocabulary;
        let logits = &model.run(&[step(0, &PROMPT, false)])[0].logits;
        let order = best(logits);
        for (i, (token, logit)) in TOP.into_iter().enumerate() {
            assert_eq!(order[i], token, "TP {tp}");
            assert!((logits[token] - logit).abs() <= 1e-3, "TP {tp}: token {token} has {}, not {logit}", logits[token]);
        }
        // A longer text, every position.
        let mut model = Model::load(&smollm2(), How { rows: text.len(), ..How::new(tp, Arith::F32) });
        for (first, chunk) in text.chunks(64).enumerate() {
            let logits = &model.run(&[step(first * 64, chunk, true)])[0].logits;
            for (i, logits) in logits.chunks(vocabulary).enumerate() {
                let position = first * 64 + i;
                if let Some(k) = rows.iter().position(|&row| row as usize == position) {
                    let difference = max_difference(logits, &want_rows[k * vocabulary..][..vocabulary]);
                    assert!(difference <= 1e-3, "TP {tp}, position {position}: off by {difference}");
                }
                for k in position * 32..position * 32 + 32 {
                    let difference = (logits[want_ids[k] as usize] - want_top[k]).abs();
                    assert!(difference <= 1e-3, "TP {tp}, position {position}: off by {difference}");
                }
            }
        }
    }
}

/// The yardstick is how far llama.cpp's own builds are from f32 on this file: 0.3 on average, 1.3 at most.
#[test]
#[ignore = "needs models/SmolLM2-135M-Instruct.Q4_1.gguf"]
fn production_arithmetic_stays_as_close_as_peers_do() {
    let reference = Reference::open("smollm2-logits.safetensors");
    let text = reference.tokens("text.tokens");
    let (want_ids, want_top) = (reference.tokens("text.top_ids"), reference.f32s("text.top_logits"));
    let mut model = Model::load(&smollm2(), How { rows: text.len(), ..How::new(1, Arith::Production) });
    let vocabulary = model.config.vocabulary;
    let (mut total, mut same) = (0.0, 0);
    for (first, chunk) in text.chunks(64).enumerate() {
        let logits = &model.run(&[step(first * 64, chunk, true)])[0].logits;
        for (i, logits) in logits.chunks(vocabulary).enumerate() {
            let top = (first * 64 + i) * 32;
            let differences = (top..top + 32).map(|k| (logits[want_ids[k] as usize] - want_top[k]).abs());
            total += differences.sum::<f32>() / 32.0;
            same += usize::from(best(logits)[0] == want_ids[top] as usize);
        }
    }
    let mean = total / text.len() as f32;
    println!("mean difference {mean}, same best token {same} of {}", text.len());
    assert!(mean <= 0.3, "mean difference {mean}");
    assert!(same * 100 >= text.len() * 90, "same best token {same} of {}", text.len());
}

#[test]
#[ignore = "needs models/SmolLM2-135M-Instruct.Q4_1.gguf"]
fn greedy_text_in_f32_is_the_reference_s() {
    let reference = Reference::open("smollm2-logits.safetensors");
    let want = reference.tokens("decode.tokens");
    let mut model = Model::load(&smollm2(), How::new(1, Arith::F32));
    let mut token = model.run(&[step(0, &PROMPT, false)])[0].tokens[0];
    let mut got = vec![token];
    for i in 1..want.len() {
        token = model.run(&[step(PROMPT.len() + i - 1, &[token], false)])[0].tokens[0];
        got.push(token);
    }
    assert_eq!(got, want);
}
