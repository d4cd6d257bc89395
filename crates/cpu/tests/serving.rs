//! Whole models under the scheduler: a request's tokens are the same alone, among others, after its blocks were taken for
//! others, out of the prefix cache, with drafts and without.

mod common;

use common::data;
use std::collections::HashMap;
use tombolo_engine::{Drafts, Event, Reason, Request, RequestId, Runner, Tally};
use tombolo_model::{BLOCK_TOKENS, Capacity, Sampling};

const CONTEXT: usize = 256;

fn runner(name: &str, tp: usize, sequences: usize, blocks: usize, drafts: Drafts) -> Runner {
    let logits = sequences * (1 + drafts.most());
    let capacity = Capacity { rows: 64.max(logits), sequences, logits, context: CONTEXT, blocks };
    common::runner(&data(&format!("{name}.gguf")), tp, 2, capacity, true, drafts)
}

/// Long and short ones, greedy and drawn, that begin alike in part.
fn requests() -> Vec<Request> {
    let shared: Vec<u32> = (0..70).map(|i| (i * 37 + 11) % 240 + 2).collect();
    (0..8u32)
        .map(|i| {
            let own = (0..5 + 13 * i).map(|j| (j * 29 + 7 * i) % 250 + 1);
            let begin = if i % 2 == 0 { &shared[..] } else { &[] };
            let prompt = begin.iter().copied().chain(own).collect();
            let temperature = if i % 3 == 0 { 0.0 } else { 0.9 };
            let sampling = Sampling { temperature, top_k: 40, top_p: 0.95, min_p: 0.0, seed: u64::from(i) };
            Request::new(prompt, 60 + 5 * i as usize, sampling)
        })
        .collect()
}

type Ended = (Vec<u32>, Reason, Tally);

/// Runs them all at once; in the order in which they were given.
fn run(runner: &mut Runner, requests: Vec<Request>) -> Vec<Ended> {
    let ids: Vec<RequestId> = requests.into_iter().map(|request| runner.add(request).unwrap()).collect();
    let (mut texts, mut ended) = (HashMap::<RequestId, Vec<u32>>::new(), HashMap::new());
    while ended.len() < ids.len() {
        runner.step(|_| ()).unwrap();
        for event in runner.take_events() {
            match event {
                Event::Token { id, token, .. } => texts.entry(id).or_default().push(token),
                Event::Finished { id, reason, tally } => {
                    ended.insert(id, (reason, tally));
                }
                _ => {}
            }
        }
    }
    let one = |id: &RequestId| {
        let (reason, tally) = ended.remove(id).unwrap();
        (texts.remove(id).unwrap(), reason, tally)
    };
    ids.iter().map(one).collect()
}

fn texts(ended: &[Ended]) -> Vec<&[u32]> {
    ended.iter().map(|(text, _, _)| text.as_slice()).collect()
}

#[test]
fn tokens_do_not_depend_on_company() {
    for (name, drafts) in [
        ("tiny-llama", Drafts::None),
        ("tiny-llama", Drafts::Ngram(3)),
        ("tiny-gemma3", Drafts::None),
        ("tiny-glm-dsa", Drafts::None),
        ("tiny-glm-dsa", Drafts::Block(2)),
        ("tiny-glm4moe", Drafts::Block(1)),
    ] {
        let alone: Vec<Ended> = {
            let mut one = runner(name, 1, 1, 8, Drafts::None);
            requests().into_iter().flat_map(|request| run(&mut one, vec![request])).collect()
        };
        assert!(alone.iter().all(|(text, reason, _)| !text.is_empty() && *reason == Reason::Length));
        for tp in [1, 2] {
            let mut mixed = runner(name, tp, 8, 64, drafts);
            let first = run(&mut mixed, requests());
            assert_eq!(texts(&first), texts(&alone), "{name}, {drafts:?}, TP {tp}: among others");
            let again = run(&mut mixed, requests());
            assert_eq!(texts(&again), texts(&alone), "{name}, {drafts:?}, TP {tp}: out of the cache");
            for ((_, _, tally), request) in again.iter().zip(requests()) {
                let whole = (request.prompt.len() - 1) / BLOCK_TOKENS * BLOCK_TOKENS;
                assert!(tally.cached_tokens >= whole, "{} of {whole}", tally.cached_tokens);
            }
            // Hardly more blocks than the longest needs.
            let mut tight = runner(name, tp, 8, 11, drafts);
            let ended = run(&mut tight, requests());
            assert_eq!(texts(&ended), texts(&alone), "{name}, {drafts:?}, TP {tp}: preempted");
            assert!(ended.iter().any(|(_, _, tally)| tally.preemptions > 0));
            if drafts != Drafts::None {
                assert!(first.iter().any(|(_, _, tally)| tally.drafted > 0));
            }
        }
    }
}
