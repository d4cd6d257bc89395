//! The draw: the same token however the vocabulary is sharded, and distributed as the law says.

use proptest::prelude::*;
use tombolo_model::{CANDIDATES, Sampling, Shard, Summary, draw, draw_from_all};

fn sharded(logits: &[f32], ranks: usize, temperature: f32, keep: usize) -> Summary {
    let shards: Vec<Summary> = (0..ranks)
        .map(|rank| {
            let (start, len) = Shard { rank, size: ranks }.part(logits.len());
            Summary::of(&logits[start..start + len], start as u32, temperature, keep)
        })
        .collect();
    Summary::merge(&shards, temperature)
}

/// What every backend does: from the candidates if they hold the answer, else from all logits.
fn drawn(logits: &[f32], ranks: usize, keep: usize, sampling: &Sampling, position: u32) -> u32 {
    let quick = sharded(logits, ranks, sampling.temperature, keep);
    draw(&quick, logits.len(), sampling, position)
        .unwrap_or_else(|| draw_from_all(logits, sampling, position).expect("there are numbers"))
}

fn any_sampling() -> impl Strategy<Value = Sampling> {
    let temperature = prop_oneof![Just(0.0f32), 0.05f32..3.0];
    let top_k = prop_oneof![Just(0u32), 1u32..200];
    let top_p = prop_oneof![Just(1.0f32), 0.0f32..1.0];
    let min_p = prop_oneof![Just(0.0f32), 0.0f32..1.0];
    (temperature, top_k, top_p, min_p, any::<u64>()).prop_map(|(temperature, top_k, top_p, min_p, seed)| Sampling {
        temperature,
        top_k,
        top_p,
        min_p,
        seed,
    })
}

proptest! {
    #[test]
    fn shards_and_candidates_change_nothing(
        // Logits on a grid of eighths: weights summed per shard differ from the whole by rounding alone.
        logits in prop::collection::vec((-80i32..80).prop_map(|l| l as f32 / 8.0), 1..400),
        sampling in any_sampling(),
        position in 0u32..10_000,
        keep in 1usize..80,
    ) {
        let whole = drawn(&logits, 1, usize::MAX, &sampling, position);
        for ranks in [1, 2, 3, 8] {
            prop_assert_eq!(drawn(&logits, ranks, keep, &sampling, position), whole);
        }
    }

    /// However many are looked at: the first few, some more, or all.
    #[test]
    fn all_logits_give_what_a_sorted_summary_of_them_gives(
        spread in prop::sample::select(vec![0, 1, 8, 200]),
        grid in prop::collection::vec(-1000i32..1000, 1..5000),
        cut in prop_oneof![Just(None), (0usize..5000).prop_map(Some)],
        sampling in any_sampling(),
        more in prop_oneof![Just(0u32), 0u32..6000],
        position in 0u32..10_000,
    ) {
        let mut logits: Vec<f32> = grid.iter().map(|l| (l * spread / 1000) as f32 / 8.0).collect();
        // A grammar or a fault takes some away.
        if let Some(cut) = cut {
            let odd = if cut % 2 == 0 { f32::NEG_INFINITY } else { f32::NAN };
            logits.iter_mut().skip(1).step_by(1 + cut % 3).take(cut).for_each(|logit| *logit = odd);
        }
        let sampling = Sampling { top_k: sampling.top_k + more, ..sampling };
        let whole = Summary::of(&logits, 0, sampling.temperature, usize::MAX);
        let want = draw(&whole, logits.len(), &sampling, position);
        prop_assert_eq!(draw_from_all(&logits, &sampling, position), want);
        prop_assert!(logits[want.unwrap() as usize].is_finite());
    }

    #[test]
    fn a_drawn_token_survives_every_filter(
        logits in prop::collection::vec(-10.0f32..10.0, 1..300),
        sampling in any_sampling(),
    ) {
        let token = drawn(&logits, 1, CANDIDATES, &sampling, 5) as usize;
        let better = logits.iter().filter(|&&l| l > logits[token]).count();
        if sampling.is_greedy() {
            prop_assert_eq!(better, 0);
        } else {
            let best = logits.iter().fold(f32::MIN, |a, &b| a.max(b));
            prop_assert!(sampling.top_k == 0 || better < sampling.top_k as usize);
            let relative = ((logits[token] - best) / sampling.temperature).exp();
            prop_assert!(better == 0 || relative >= sampling.min_p * 0.9999);
        }
    }
}

#[test]
fn draws_follow_the_softmax() {
    let logits: Vec<f32> = (0..500).map(|i| (i % 10) as f32 * 0.3).collect();
    let sampling = Sampling { temperature: 0.8, seed: 42, ..Sampling::GREEDY };
    let total: f64 = logits.iter().map(|&l| (f64::from(l) / 0.8).exp()).sum();
    let mut counts = [0usize; 10];
    let draws = 40_000;
    for position in 0..draws {
        counts[drawn(&logits, 2, CANDIDATES, &sampling, position) as usize % 10] += 1;
    }
    for (class, &count) in counts.iter().enumerate() {
        let expected = 50.0 * (f64::from(class as f32 * 0.3) / 0.8).exp() / total;
        let seen = count as f64 / f64::from(draws);
        assert!((seen - expected).abs() < 0.012, "class {class}: {seen} against {expected}");
    }
}

#[test]
fn nan_is_never_drawn() {
    let sampling = Sampling { temperature: 1.0, seed: 1, ..Sampling::GREEDY };
    for position in 0..100 {
        assert_eq!(drawn(&[f32::NAN, 1.0, f32::NAN], 1, 2, &sampling, position), 1);
        assert_eq!(drawn(&[f32::NAN, 1.0, f32::NAN], 1, 2, &Sampling::GREEDY, position), 1);
    }
}

#[test]
fn ties_go_to_the_lower_id() {
    for ranks in [1, 2, 4] {
        assert_eq!(drawn(&[1.0, 3.0, 3.0, 3.0, 0.0], ranks, 4, &Sampling::GREEDY, 0), 1);
    }
}
