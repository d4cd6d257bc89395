//! A real model with windows: Gemma-3-270M, Q4_K_M, against transformers' logits in f32.

mod common;

use common::{How, Model, Reference, gemma3, sequence_of, step};
use tombolo_model::{Arith, Capacity, Step};

const PROMPT: [u32; 6] = [2, 818, 5279, 529, 7001, 563];
const TOP: [(usize, f32); 5] = [(506, 19.09146), (496, 18.5476), (9079, 18.26862), (886, 18.11301), (3224, 17.78388)];
const TOLERANCE: f32 = 1e-3;

fn best(logits: &[f32]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_unstable_by(|&a, &b| logits[b].total_cmp(&logits[a]));
    order
}

#[test]
#[ignore = "needs models/gemma-3-270m-q4_k_m.gguf (tools/fetch-gemma3)"]
fn f32_arithmetic_matches_the_reference() {
    for tp in [1, 2] {
        let mut model = Model::load(&gemma3(), How::new(tp, Arith::F32));
        let logits = &model.run(&[step(0, &PROMPT, false)])[0].logits;
        let order = best(logits);
        for (i, (token, logit)) in TOP.into_iter().enumerate() {
            assert_eq!(order[i], token, "TP {tp}");
            let difference = (logits[token] - logit).abs();
            println!("TP {tp}: token {token} is off by {difference}");
            assert!(difference <= TOLERANCE, "TP {tp}: token {token} has {}, not {logit}", logits[token]);
        }
    }
}

/// Beyond the window of 512 positions, where layers begin to see different things.
#[test]
#[ignore = "needs models/gemma-3-270m-q4_k_m.gguf (tools/fetch-gemma3)"]
fn windows_hide_what_the_reference_s_hide() {
    let reference = Reference::open("gemma3-logits.safetensors");
    let text = reference.tokens("text.tokens");
    let (ids, top) = (reference.tokens("text.top_ids"), reference.f32s("text.top_logits"));
    let kept = ids.len() / text.len();
    let context = text.len().next_multiple_of(64);
    let capacity = Capacity::new(64, 64, context);
    let mut model = Model::with_capacity(&gemma3(), How::new(1, Arith::F32), capacity);
    let vocabulary = model.config.vocabulary;
    let mut worst = 0f32;
    for (first, chunk) in text.chunks(64).enumerate() {
        // The last matrix is most of the work: all logits where the window begins to hide, one a chunk before.
        let all = (first + 1) * 64 > 512;
        let step = Step { sequences: vec![sequence_of(0, context)], ..step(first * 64, chunk, all) };
        let logits = &model.run(&[step])[0].logits;
        for (i, logits) in logits.chunks(vocabulary).enumerate() {
            let position = first * 64 + if all { i } else { chunk.len() - 1 };
            for k in position * kept..(position + 1) * kept {
                let difference = (logits[ids[k] as usize] - top[k]).abs();
                assert!(difference <= TOLERANCE, "position {position}: token {} is off by {difference}", ids[k]);
                worst = worst.max(difference);
            }
        }
    }
    println!("{} positions, off by at most {worst}", text.len());
}
