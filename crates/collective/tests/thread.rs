//! The thread transport under load: same bits everywhere, more ranks than cores, ranks that die or never come.

use proptest::prelude::*;
use std::time::{Duration, Instant};
use tombolo_collective::{Silent, ThreadGroup, ThreadRank};

const LONG: Duration = Duration::from_secs(60);

/// Runs `work` on every rank of a group at once and gives what they return, in rank order.
fn on_ranks<R: Send>(size: usize, deadline: Duration, work: impl Fn(ThreadRank) -> R + Sync) -> Vec<R> {
    let ranks = ThreadGroup::new(size, deadline);
    std::thread::scope(|scope| {
        let threads: Vec<_> = ranks.into_iter().map(|rank| scope.spawn(|| work(rank))).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

/// A number that depends on every argument, of very different sizes, so that the order of a sum shows in its bits.
fn value(seed: u32, rank: usize, i: usize) -> f32 {
    let mut z = seed ^ (rank as u32).wrapping_mul(0x9e37_79b9) ^ (i as u32).wrapping_mul(0x85eb_ca6b);
    z = (z ^ (z >> 15)).wrapping_mul(0x2c1b_3c6d);
    z ^= z >> 12;
    (z as f32 / u32::MAX as f32 - 0.5) * 10f32.powi((z % 9) as i32 - 4)
}

fn expected(seed: u32, size: usize, len: usize) -> Vec<f32> {
    (0..len).map(|i| (1..size).fold(value(seed, 0, i), |sum, rank| sum + value(seed, rank, i))).collect()
}

#[test]
fn sums_have_the_fixed_order_in_every_call_on_every_rank() {
    for size in [1, 2, 3, 4, 8] {
        on_ranks(size, LONG, |mut rank| {
            for call in 0..2000u32 {
                let len = [1, 7, 576, 64][call as usize % 4];
                let mine: Vec<f32> = (0..len).map(|i| value(call, rank.rank(), i)).collect();
                let mut sum = vec![0.0; len];
                rank.all_reduce(&mine, &mut sum).unwrap();
                let want = expected(call, size, len);
                assert!(sum.iter().zip(&want).all(|(a, b)| a.to_bits() == b.to_bits()), "call {call}");
            }
        });
    }
}

#[test]
fn a_slow_rank_is_waited_for() {
    on_ranks(3, LONG, |mut rank| {
        for call in 0..4 {
            if rank.rank() == call % 3 {
                std::thread::sleep(Duration::from_millis(20));
            }
            let mut sum = [0.0];
            rank.all_reduce(&[1.0], &mut sum).unwrap();
            assert_eq!(sum, [3.0]);
        }
    });
}

#[test]
fn a_rank_that_never_comes_is_named_when_the_deadline_passes() {
    let deadline = Duration::from_millis(100);
    let mut ranks = ThreadGroup::new(3, deadline);
    let absent = ranks.remove(1);
    let start = Instant::now();
    let results: Vec<Silent> = std::thread::scope(|scope| {
        let threads: Vec<_> = ranks
            .into_iter()
            .map(|mut rank| scope.spawn(move || rank.all_reduce(&[1.0], &mut [0.0]).unwrap_err()))
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    assert!(start.elapsed() >= deadline && start.elapsed() < Duration::from_secs(5));
    assert!(results.iter().all(|s| s.silent == absent.rank()), "{results:?}");
    assert!(results.iter().any(|s| s.waited_ms >= 99), "{results:?}");
}

#[test]
fn a_rank_that_dies_wakes_all_others_at_once() {
    let start = Instant::now();
    let results = on_ranks(4, LONG, |mut rank| {
        let mut sum = [0.0];
        rank.all_reduce(&[1.0], &mut sum).unwrap();
        if rank.rank() == 2 {
            std::thread::sleep(Duration::from_millis(20));
            return Ok(()); // Dropped here: what a panic does too.
        }
        rank.all_reduce(&[1.0], &mut sum)
    });
    assert!(start.elapsed() < Duration::from_secs(10), "the others sat out their deadline");
    for (rank, result) in results.iter().enumerate().filter(|(rank, _)| *rank != 2) {
        assert!(matches!(result, Err(s) if s.silent == 2 && s.rank == rank), "{result:?}");
    }
}

#[test]
fn an_error_is_repeated_and_leaving_after_the_last_call_is_none() {
    let mut ranks = ThreadGroup::new(2, Duration::from_millis(10));
    let mut first = ranks.remove(0);
    let error = first.all_reduce(&[1.0], &mut [0.0]).unwrap_err();
    assert_eq!(first.all_gather(&[1u32], &mut Vec::new()), Err(error));

    for _ in 0..200 {
        on_ranks(2, LONG, |mut rank| {
            let mut out = Vec::new();
            rank.all_gather(&[rank.rank() as u32], &mut out).unwrap();
            assert_eq!(out, [0, 1]);
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(50))]

    #[test]
    fn gathers_in_rank_order_whatever_the_lengths(lens in prop::collection::vec(0usize..50, 1..6), calls in 1usize..5) {
        let results = on_ranks(lens.len(), LONG, |mut rank| {
            let mut out = Vec::new();
            for call in 0..calls {
                let mine: Vec<u64> = (0..lens[rank.rank()]).map(|i| (rank.rank() * 1000 + call * 100 + i) as u64).collect();
                rank.all_gather(&mine, &mut out).unwrap();
            }
            out
        });
        let last = calls - 1;
        let want: Vec<u64> = lens
            .iter()
            .enumerate()
            .flat_map(|(rank, &len)| (0..len).map(move |i| (rank * 1000 + last * 100 + i) as u64))
            .collect();
        prop_assert!(results.iter().all(|r| *r == want));
    }
}
