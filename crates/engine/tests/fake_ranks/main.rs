//! The engine over fake ranks: what it submits, what it makes of answers, and what becomes of ranks that fail.

mod fake;
mod masks;

use fake::{CAPACITY, Fake, Fault, VOCABULARY, expected};
use std::ops::ControlFlow;
use tombolo_engine::{Drafts, Engine, EngineError, Event, Reason, Refused, Request, Runner, Settings, Shape, Tally};
use tombolo_model::{Backend, Sampling};

fn ranks(asynchronous: bool, faults: &[Fault]) -> Vec<Box<dyn Backend>> {
    faults.iter().map(|&f| Fake::boxed(asynchronous, f)).collect()
}

fn engine(asynchronous: bool, faults: &[Fault]) -> Engine {
    Engine::new(ranks(asynchronous, faults), Shape { vocabulary: VOCABULARY, groups: 1 }, CAPACITY)
}

fn runner(asynchronous: bool, faults: &[Fault]) -> Runner {
    let settings = Settings {
        capacity: CAPACITY,
        vocabulary: VOCABULARY,
        groups: 1,
        waiting_max: 8,
        prefix_cache: true,
        drafts: Drafts::None,
        max_itl_factor: None,
    };
    Runner::new(ranks(asynchronous, faults), settings)
}

/// Runs one request to its end, or until so many tokens have come.
fn generate(runner: &mut Runner, prompt: &[u32], n: usize, stop_at: usize) -> (Vec<u32>, Reason, Tally) {
    let id = runner.add(Request::new(prompt.to_vec(), n, Sampling::GREEDY)).unwrap();
    let mut text = Vec::new();
    loop {
        for event in runner.take_events() {
            match event {
                Event::Token { token, .. } => text.push(token),
                Event::Finished { reason, tally, .. } => return (text, reason, tally),
                _ => {}
            }
        }
        if text.len() >= stop_at { runner.cancel(id) } else { runner.step(|_| ()).unwrap() }
    }
}

#[test]
fn a_prompt_longer_than_a_step_is_run_in_chunks() {
    let prompt: Vec<u32> = (0..43).map(|i| i * 5 % 97).collect();
    for asynchronous in [false, true] {
        let mut runner = runner(asynchronous, &[Fault::None, Fault::None]);
        let (text, reason, _) = generate(&mut runner, &prompt, 40, usize::MAX);
        assert_eq!((text, reason), (expected(&prompt, 40), Reason::Length));
        assert_eq!(runner.figures().free_blocks, CAPACITY.blocks);
        assert!(runner.is_idle());
    }
}

#[test]
fn what_was_said_before_is_not_run_again() {
    for asynchronous in [false, true] {
        let mut runner = runner(asynchronous, &[Fault::None]);
        let mut prompt = vec![3, 1, 4, 1, 5];
        let mut run = 0;
        for turn in 0..4 {
            let stop_at = 4 + 9 * turn;
            let (text, reason, tally) = generate(&mut runner, &prompt, 60, stop_at);
            assert_eq!((&text, reason), (&expected(&prompt, text.len()), Reason::Cancelled));
            // All that was run then, and what was drawn last is not.
            assert_eq!(tally.cached_tokens, run);
            run = prompt.len() + text.len() - 1;
            prompt.extend(&text);
            prompt.push(turn as u32);
        }
        // An edited history is run from where it differs.
        prompt[2] = 9;
        let (text, _, tally) = generate(&mut runner, &prompt, 5, usize::MAX);
        assert_eq!((text, tally.cached_tokens), (expected(&prompt, 5), 0));
    }
}

#[test]
fn a_prompt_can_be_cancelled_between_its_chunks() {
    let mut engine = engine(false, &[Fault::None]);
    let mut left = 2;
    engine.set_between_chunks(move |done, total| {
        assert!(done.is_multiple_of(CAPACITY.rows) && total == 43);
        left -= 1;
        if left < 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    let mut context = engine.open();
    let prompt: Vec<u32> = (0..43).collect();
    let cancelled = engine.prefill(&mut context, &prompt, &Sampling::GREEDY, false);
    assert!(matches!(cancelled, Err(EngineError::Cancelled)));
    assert_eq!(context.tokens(), &prompt[..2 * CAPACITY.rows]);
}

#[test]
fn many_contexts_decode_at_once() {
    for asynchronous in [false, true] {
        let mut engine = engine(asynchronous, &[Fault::None]);
        let prompts: Vec<Vec<u32>> = (0..4).map(|i| (0..3 + i * 4).map(|j| i * 7 + j).collect()).collect();
        let mut contexts: Vec<_> = prompts.iter().map(|_| engine.open()).collect();
        let mut first = Vec::new();
        for (context, prompt) in contexts.iter_mut().zip(&prompts) {
            first.push(engine.prefill(context, prompt, &Sampling::GREEDY, false).unwrap().tokens[0]);
        }
        let last = engine.decode_greedy(&mut contexts, &first, 30).unwrap();
        for ((context, prompt), last) in contexts.iter().zip(&prompts).zip(last) {
            let mut all = prompt.clone();
            all.extend(expected(prompt, 31));
            assert_eq!(all.pop(), Some(last));
            assert_eq!(context.tokens(), all);
        }
    }
}

#[test]
fn the_context_ends_a_generation() {
    for asynchronous in [false, true] {
        let mut runner = runner(asynchronous, &[Fault::None]);
        let prompt: Vec<u32> = (0..90).collect();
        let (text, reason, _) = generate(&mut runner, &prompt, 1000, usize::MAX);
        assert_eq!((text, reason), (expected(&prompt, CAPACITY.context - prompt.len() + 1), Reason::Length));
        let add = |runner: &mut Runner, prompt: &[u32]| runner.add(Request::new(prompt.to_vec(), 1, Sampling::GREEDY));
        assert_eq!(add(&mut runner, &[1; 101]), Err(Refused::PromptTooLong { tokens: 101, context: 100 }));
        assert_eq!(add(&mut runner, &[]), Err(Refused::EmptyPrompt));
        assert_eq!(add(&mut runner, &[97]), Err(Refused::Token { token: 97, vocabulary: 97 }));
        runner.close();
        assert_eq!(add(&mut runner, &[1]), Err(Refused::Closed));
    }
}

#[test]
fn blocks_run_out_with_an_error_that_loses_nothing() {
    let mut engine = engine(false, &[Fault::None]);
    let mut contexts: Vec<_> = (0..3).map(|_| engine.open()).collect();
    let mut failed = 0;
    for context in &mut contexts {
        match engine.prefill(context, &[1; 96], &Sampling::GREEDY, false) {
            Ok(_) => {}
            Err(EngineError::NoBlocks { blocks: 8 }) => failed += 1,
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!(failed, 1);
    contexts.into_iter().for_each(|c| engine.close(c));
    assert_eq!(engine.free_blocks(), CAPACITY.blocks);
}

#[test]
fn a_rank_that_fails_is_named() {
    let check = |faults: &[Fault], want: &str| {
        let mut runner = runner(false, faults);
        runner.add(Request::new(vec![1, 2], 4, Sampling::GREEDY)).unwrap();
        assert_eq!(runner.step(|_| ()).unwrap_err().to_string(), want);
    };
    check(&[Fault::None, Fault::Panics], "rank 1 stopped: panicked: boom");
    check(&[Fault::Silent, Fault::Broken], "rank 1: fake: broke");
    check(&[Fault::Panics, Fault::Broken], "rank 0 stopped: panicked: boom");
    check(&[Fault::Broken, Fault::Silent], "rank 0: fake: broke");
    check(
        &[Fault::Silent, Fault::None],
        "rank 0: rank 0 waited 5 ms for rank 1 in all_reduce_add_norm: it died or never arrived",
    );
    let mut engine = engine(false, &[Fault::None, Fault::DrawsWrong]);
    let mut context = engine.open();
    let error = engine.prefill(&mut context, &[1], &Sampling::GREEDY, false).unwrap_err();
    assert!(matches!(error, EngineError::RanksDisagree { rank: 1, .. }));
}
