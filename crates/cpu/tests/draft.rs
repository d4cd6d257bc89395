//! The block that drafts tokens, against the reference implementation: transformers' own layer over what
//! `tools/reference/tiny_latent.py` makes of hidden states and tokens.

mod common;

use common::{How, Model, Reference, data, max_difference, rows, sequence};
use std::sync::Arc;
use tombolo_gguf::Gguf;
use tombolo_model::{Arith, BackendError, Capacity, Config, Pass, Step, StepError};

fn load(name: &str, tp: usize, change: impl Fn(Config) -> Config) -> Model {
    let gguf = Arc::new(Gguf::open(&data(&format!("{name}.gguf"))).unwrap());
    let mut config = change(Config::from_gguf(&gguf).unwrap());
    // transformers norms latents with an eps of its own.
    if let Some(latent) = &mut config.latent {
        latent.eps = 1e-6;
    }
    let capacity = Capacity::new(160, 160, 256);
    let options = tombolo_cpu::Options { threads: 2, arith: Arith::F32, ..Default::default() };
    let ranks = tombolo_cpu::load_with(gguf, &config, tp, capacity, &options, How::new(tp, Arith::F32).tier).unwrap();
    Model { config, ranks, capacity }
}

fn trunk(start: usize, tokens: &[u32]) -> Step {
    Step { rows: rows(0, start, tokens, true), sequences: vec![sequence(0)], full_logits: true, ..Step::default() }
}

/// Rows from position `start` on, with the tokens after them, that go on from these rows of the step before.
fn draft(start: usize, next: &[u32], hidden: impl IntoIterator<Item = u32>) -> Step {
    Step { pass: Pass::Draft { hidden: hidden.into_iter().collect() }, ..trunk(start, next) }
}

#[test]
fn drafts_match_the_reference() {
    for name in ["tiny-glm-dsa", "tiny-glm4moe"] {
        let reference = Reference::open(&format!("{name}.safetensors"));
        let tokens = reference.tokens("tokens");
        let (want, want_next) = (reference.f32s("draft_logits"), reference.f32s("draft_next_logits"));
        let (rows, last) = (tokens.len() - 1, tokens.len() as u32 - 2);
        for tp in [1, 2, 4] {
            let mut model = load(name, tp, |config| config);
            let whole = model.run(&[trunk(0, &tokens), draft(0, &tokens[1..], 0..rows as u32)]);
            let difference = max_difference(&whole[1].logits, &want);
            assert!(difference <= 1e-5, "{name} at TP {tp}: off by {difference}");
            // On from its own result.
            let guess = *whole[1].tokens.last().unwrap();
            let next = model.run(&[draft(rows, &[guess], [last])]);
            let difference = max_difference(&next[0].logits, &want_next);
            assert!(difference <= 1e-5, "{name} at TP {tp}: one step on, off by {difference}");
            // The trunk does not notice, and drafts between its steps have the bits of those after all of them.
            let mut model = load(name, tp, |config| config);
            let mut at = 0;
            let mut steps = Vec::new();
            for len in [7, 1, 26, 1, 28] {
                steps.push(trunk(at, &tokens[at..at + len]));
                steps.push(draft(at, &tokens[at + 1..=at + len], 0..len as u32));
                at += len;
            }
            let outputs = model.run(&steps);
            let of = |first: usize| -> Vec<f32> {
                outputs.iter().skip(first).step_by(2).flat_map(|output| output.logits.iter().copied()).collect()
            };
            assert!(of(1) == whole[1].logits, "{name} at TP {tp}: chunks change the drafts");
            let vocabulary = model.config.vocabulary;
            assert!(of(0) == whole[0].logits[..at * vocabulary], "{name} at TP {tp}: drafts change the trunk");
        }
    }
}

#[test]
fn a_model_without_drafts_refuses_and_holds_nothing_for_them() {
    let mut model = load("tiny-glm-dsa", 1, Config::without_draft);
    let reference = Reference::open("tiny-glm-dsa.safetensors");
    let tokens = reference.tokens("tokens");
    let output = model.run(&[trunk(0, &tokens)]).remove(0);
    assert!(max_difference(&output.logits, &reference.f32s("logits")) <= 1e-5);
    let refused = model.ranks[0].submit(Arc::new(draft(0, &tokens[1..3], 0..2)));
    assert!(matches!(refused, Err(BackendError::Step(StepError::NoDraft))), "{refused:?}");
    let mut model = load("tiny-glm-dsa", 1, |config| config);
    model.run(&[trunk(0, &tokens[..2])]);
    let refused = model.ranks[0].submit(Arc::new(draft(0, &tokens[1..3], [0, 2])));
    assert!(matches!(refused, Err(BackendError::Step(StepError::Hidden { rows: 2, hidden: 2, left: 2 }))));
}
