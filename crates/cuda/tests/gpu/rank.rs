//! A rank's own promises: graphs and eager launches agree, batches and steps in flight do not disturb each other,
//! memory that is not there is an error.

use crate::support::{decode, distance, goldens, kl, options, prefill, rows};
use tombolo_cuda::{LoadError, Options, Transport, load};
use tombolo_model::{Arith, Capacity, Sampling, Step, Token};

#[test]
#[ignore = "needs a GPU"]
fn graphs_give_what_eager_launches_give_bit_for_bit() {
    for arith in [Arith::F32, Arith::Production] {
        for tp in [1, 2] {
            for golden in goldens() {
                let run = |graphs| {
                    let options = options(tp, arith, Transport::Auto);
                    let ranks = if graphs { golden.load(tp, options) } else { golden.load_eager(tp, options) };
                    let mut ranks = ranks.unwrap();
                    ranks.run(prefill(&golden.tokens));
                    let at = |i| golden.tokens.len() + i;
                    let steps = golden.decode_tokens.iter().enumerate();
                    let steps = steps.map(|(i, &t)| decode(Token::Host(t), at(i), true)).collect();
                    ranks.run_all(steps)
                };
                assert_eq!(run(true), run(false), "{} tp {tp} {arith:?}", golden.name);
            }
        }
    }
}

#[test]
#[ignore = "needs a GPU"]
fn tokens_taken_from_the_device_continue_as_the_reference_does() {
    for tp in [1, 2] {
        for golden in goldens() {
            let mut ranks = golden.load(tp, options(tp, Arith::F32, Transport::Auto)).unwrap();
            let last = golden.tokens.len() as u32 - 1;
            let mut steps = vec![Step { full_logits: false, ..prefill(&golden.tokens) }];
            for i in 0..golden.decode_tokens.len() {
                let token = Token::Prev(if i == 0 { last } else { 0 });
                steps.push(decode(token, golden.tokens.len() + i, false));
            }
            let outputs = ranks.run_all(steps);
            let drawn: Vec<u32> = outputs.iter().map(|o| *o.tokens.last().unwrap()).collect();
            assert_eq!(drawn[..golden.decode_tokens.len()], golden.decode_tokens, "{} tp {tp}", golden.name);
        }
    }
}

/// Sequences of different lengths in one batch: logits as each gives alone.
#[test]
#[ignore = "needs a GPU"]
fn a_batch_gives_what_its_sequences_give_alone() {
    for arith in [Arith::F32, Arith::Production] {
        for golden in goldens() {
            let mut ranks = golden.load(1, options(1, arith, Transport::Auto)).unwrap();
            for count in [2, 3, 5, 11, 33] {
                let length = |s: usize| 1 + (s * 7) % 13;
                let prompt = |s: usize| -> Vec<Token> {
                    (0..length(s)).map(|i| Token::Host(golden.tokens[(s + i) % golden.tokens.len()])).collect()
                };
                let next = |s: usize| Token::Host(golden.tokens[(s * 5 + 3) % golden.tokens.len()]);
                let mut alone = Vec::new();
                for s in 0..count {
                    let mut step = Step::default();
                    rows(&mut step, s, 0, &prompt(s), false);
                    ranks.run(step);
                    let mut step = Step { full_logits: true, ..Step::default() };
                    rows(&mut step, s, length(s), &[next(s)], true);
                    alone.extend(ranks.run(step).logits);
                }
                let mut step = Step { full_logits: true, ..Step::default() };
                (0..count).for_each(|s| rows(&mut step, s, length(s), &[next(s)], true));
                let together = ranks.run(step).logits;
                // Other kernels add in another order: other bits, the same distribution.
                let far = distance(&alone, &together);
                let divergence = kl(&alone, &together, golden.config.vocabulary);
                println!("{} {arith:?} batch of {count}: {far:.2e}, KL {divergence:.2e}", golden.name);
                let close = match arith {
                    Arith::F32 => far <= 1e-4,
                    // In models of a few dozen values a byte rounded the other way is much.
                    Arith::Production => divergence <= 1e-3,
                };
                assert!(close, "{} {arith:?} batch of {count}: {far}, KL {divergence}", golden.name);
            }
        }
    }
}

/// A sequence token by token, as a whole, in chunks, and in chunks between others: the same logits, bit for bit.
#[test]
#[ignore = "needs a GPU"]
fn batch_invariant_logits_do_not_depend_on_what_is_computed_beside_them() {
    for (tp, arith) in [(1, Arith::Production), (2, Arith::Production), (1, Arith::F32)] {
        for golden in goldens() {
            let options = Options { batch_invariant: true, ..options(tp, arith, Transport::Auto) };
            let mut ranks = golden.load(tp, options).unwrap();
            let host: Vec<Token> = golden.tokens.iter().map(|&t| Token::Host(t)).collect();
            let mut run = |cuts: &[usize], others: usize| {
                let mut logits = Vec::new();
                let mut start = 0;
                for &end in cuts.iter().chain([&host.len()]) {
                    let mut step = Step { full_logits: true, ..Step::default() };
                    // Before this sequence's rows and after them.
                    (1..=others / 2).for_each(|s| rows(&mut step, s, 0, &host[s % 5..s % 5 + 1 + s % 3], true));
                    let before = step.rows.len() * golden.config.vocabulary;
                    rows(&mut step, 0, start, &host[start..end], true);
                    (others / 2 + 1..=others).for_each(|s| rows(&mut step, s, 0, &host[s % 5..s % 5 + 2], true));
                    let output = ranks.run(step).logits;
                    logits.extend_from_slice(&output[before..][..(end - start) * golden.config.vocabulary]);
                    start = end;
                }
                logits
            };
            let alone = run(&(1..host.len()).collect::<Vec<_>>(), 0);
            for (cuts, others) in [(vec![], 0), (vec![7, 9, 40], 0), (vec![1, 33], 3), (vec![3, 5, 40], 12)] {
                let other = run(&cuts, others);
                assert!(alone == other, "{} tp {tp} {arith:?}: cut at {cuts:?} beside {others}", golden.name);
            }
        }
    }
}

#[test]
#[ignore = "needs a GPU"]
fn prompts_in_chunks_and_mixed_steps_give_the_same_logits() {
    for tp in [1, 2] {
        for golden in goldens() {
            let mut ranks = golden.load(tp, options(tp, Arith::F32, Transport::Auto)).unwrap();
            let host: Vec<Token> = golden.tokens.iter().map(|&t| Token::Host(t)).collect();
            let mut logits = Vec::new();
            for (start, len) in [(0, 1), (1, 5), (6, 26), (32, 31), (63, 1)] {
                let mut step = Step { full_logits: true, ..Step::default() };
                rows(&mut step, 0, start, &host[start..start + len], true);
                // Another sequence prefills in the same step and must change nothing.
                if start > 1 {
                    rows(&mut step, 1, start - 2, &host[start - 2..start], false);
                }
                let output = ranks.run(step);
                logits.extend_from_slice(&output.logits[..len * golden.config.vocabulary]);
            }
            let far = distance(&logits, &golden.logits);
            assert!(far <= 1e-4, "{} tp {tp}: {far}", golden.name);
        }
    }
}

#[test]
#[ignore = "needs a GPU"]
fn draws_follow_the_law_over_the_whole_vocabulary() {
    use tombolo_model::{Summary, draw};
    for tp in [1, 2] {
        for golden in goldens() {
            let mut ranks = golden.load(tp, options(tp, Arith::F32, Transport::Auto)).unwrap();
            for (seed, temperature, top_k, top_p) in
                [(1, 0.7, 0, 1.0), (2, 1.5, 40, 1.0), (3, 1.0, 0, 0.9), (4, 30.0, 0, 0.95), (5, 2.0, 1, 1.0)]
            {
                let sampling = Sampling { temperature, top_k, top_p, min_p: 0.0, seed };
                let mut step = prefill(&golden.tokens);
                step.rows.iter_mut().for_each(|r| r.sample = Some(sampling));
                let output = ranks.run(step);
                for (i, row) in output.logits.chunks_exact(golden.config.vocabulary).enumerate() {
                    let summary = Summary::of(row, 0, temperature, row.len());
                    let expect = draw(&summary, row.len(), &sampling, i as u32).unwrap();
                    assert_eq!(output.tokens[i], expect, "{} tp {tp} row {i} seed {seed}", golden.name);
                }
            }
        }
    }
}

#[test]
#[ignore = "needs a GPU"]
fn memory_that_is_not_there_is_an_error_with_numbers() {
    let golden = &goldens()[0];
    let capacity = Capacity::new(64, 64, 1 << 26);
    let error = load(golden.gguf.clone(), &golden.config, 1, capacity, &options(1, Arith::F32, Transport::Auto));
    match error.err() {
        Some(LoadError::OutOfMemory { wanted_mib, free_mib, .. }) => assert!(wanted_mib > free_mib),
        other => panic!("{other:?}"),
    }
}
