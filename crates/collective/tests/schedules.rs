//! Every schedule: proved by the checker, and run by threads to the bits of the plain sum.

use proptest::prelude::*;
use std::time::{Duration, Instant};
use tombolo_collective::ThreadGroup;
use tombolo_collective::schedule::{Hop, Kind, Move, Payload, RANKS_MAX, Schedule, ScheduleFault, scheduled};

const LONG: Duration = Duration::from_secs(60);

/// Every way to put ranks `0..ranks` into islands.
fn partitions(ranks: usize) -> Vec<Vec<Vec<usize>>> {
    let mut all: Vec<Vec<Vec<usize>>> = vec![vec![]];
    for rank in 0..ranks {
        let mut next = Vec::new();
        for partition in all {
            for island in 0..partition.len() {
                let mut more = partition.clone();
                more[island].push(rank);
                next.push(more);
            }
            let mut alone = partition;
            alone.push(vec![rank]);
            next.push(alone);
        }
        all = next;
    }
    all
}

/// A number that depends on every argument, of very different sizes, so that the order of a sum shows in its bits.
fn value(seed: u64, rank: usize, i: usize) -> f32 {
    let mut z =
        seed ^ (rank as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (i as u64).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 31)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^= z >> 29;
    ((z >> 40) as f32 / (1u64 << 24) as f32 - 0.5) * 10f32.powi((z % 9) as i32 - 4)
}

fn plain_sum(seed: u64, ranks: usize, values: usize) -> Vec<u32> {
    let sum = |i| (1..ranks).fold(value(seed, 0, i), |sum, rank| sum + value(seed, rank, i));
    (0..values).map(|i| sum(i).to_bits()).collect()
}

/// The sums of some calls on every rank; with `jitter`, ranks pause before hops for times that depend on it.
fn sums(schedule: &Schedule, seed: u64, values: usize, calls: u64, jitter: Option<u64>) -> Vec<Vec<Vec<u32>>> {
    let ranks = scheduled(schedule, LONG).unwrap();
    std::thread::scope(|scope| {
        let run = |mut rank: tombolo_collective::schedule::ScheduledRank| {
            if let Some(jitter) = jitter {
                let mut state = jitter.wrapping_add(rank.rank() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
                rank.pause_before_hops(move || {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    match state >> 61 {
                        0 => std::thread::sleep(Duration::from_micros(state >> 56 & 63)),
                        1..3 => std::thread::yield_now(),
                        _ => {}
                    }
                });
            }
            let of_call = |call| {
                let mine: Vec<f32> = (0..values).map(|i| value(seed + call, rank.rank(), i)).collect();
                let mut sum = vec![0.0; values];
                rank.all_reduce(&mine, &mut sum).unwrap();
                sum.iter().map(|x| x.to_bits()).collect()
            };
            (0..calls).map(of_call).collect()
        };
        let threads: Vec<_> = ranks.into_iter().map(|rank| scope.spawn(move || run(rank))).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

#[test]
fn every_partition_is_an_all_reduce() {
    for ranks in 1..=RANKS_MAX {
        assert_eq!(Schedule::one_shot(ranks).unwrap().check().unwrap().depth, usize::from(ranks > 1));
        assert_eq!(Schedule::two_shot(ranks).unwrap().check().unwrap().depth, if ranks > 1 { 2 } else { 0 });
        assert_eq!(Schedule::staged_pull(ranks).unwrap().check().unwrap().depth, if ranks > 1 { 2 } else { 0 });
        for partition in partitions(ranks) {
            let schedule = Schedule::islands(&partition).unwrap();
            let checked = schedule.check().unwrap_or_else(|fault| panic!("{partition:?}: {fault}"));
            assert!(checked.depth <= 3, "{partition:?}");
        }
    }
}

#[test]
fn the_bytes_are_those_that_were_promised() {
    // 12 KiB of 16-bit values on 4 + 4 ranks.
    let (values, halves) = (6144, [0, 1, 2, 3]);
    let traffic = |s: &Schedule| s.traffic(values, 2);
    let one = traffic(&Schedule::one_shot(8).unwrap());
    assert_eq!((one.sent(0), one.received(7), one.across(&halves)), (7 * 12288, 7 * 12288, 16 * 12288));
    let two = traffic(&Schedule::two_shot(8).unwrap());
    assert_eq!((two.sent(3), two.received(3), two.across(&halves)), (7 * 1536 * 2, 7 * 1536 * 2, 4 * 12288));
    let islands = traffic(&Schedule::islands(&[vec![0, 1, 2, 3], vec![4, 5, 6, 7]]).unwrap());
    assert_eq!((islands.across(&halves), islands.across(&[4, 5, 6, 7])), (2 * 12288, 4 * 12288));
    // One partner across for every rank.
    for rank in 0..4 {
        let partners = (4..8).filter(|&other| islands.pairs[rank][other] > 0).count();
        assert_eq!(partners, 1);
    }
    let pull = traffic(&Schedule::staged_pull(8).unwrap());
    assert_eq!(pull, one);
}

#[test]
fn what_makes_no_schedule_is_refused() {
    for partition in [vec![], vec![vec![0], vec![]], vec![vec![0, 0]], vec![vec![0, 2]], vec![vec![1]]] {
        assert!(Schedule::islands(&partition).is_err(), "{partition:?}");
    }
    assert_eq!(Schedule::one_shot(9), Err(ScheduleFault::BadCount { ranks: 9 }));
    assert_eq!(Schedule::staged_pull(0), Err(ScheduleFault::BadCount { ranks: 0 }));
}

/// Whatever is broken in a right schedule is found.
#[test]
fn the_checker_finds_what_is_broken() {
    let good = Schedule::islands(&[vec![0, 1, 2], vec![3, 4]]).unwrap();
    for lost in 0..good.hops.len() {
        let mut broken = good.clone();
        broken.hops.remove(lost);
        for hop in &mut broken.hops {
            hop.after.retain(|&a| a != lost);
            hop.after.iter_mut().filter(|a| **a > lost).for_each(|a| *a -= 1);
        }
        assert!(broken.check().is_err(), "without hop {lost} it is still an all-reduce");
    }
    for (hop, _) in good.hops.iter().enumerate().filter(|(_, h)| h.payload == Payload::Sum) {
        let mut early = good.clone();
        early.hops[hop].after.clear();
        assert!(matches!(early.check(), Err(ScheduleFault::NotHeld { .. })));
    }
    let mut twice = good.clone();
    twice.hops.push(good.hops[0].clone());
    assert!(matches!(twice.check(), Err(ScheduleFault::Twice { .. })));
    let mut pull = Schedule::staged_pull(3).unwrap();
    pull.hops.iter_mut().for_each(|hop| hop.after.clear());
    assert!(matches!(pull.check(), Err(ScheduleFault::NotAnnounced { .. })));
}

#[test]
fn a_circle_of_waits_is_found() {
    let hop = |from: usize, to: usize, after: Vec<usize>| Hop {
        from,
        to,
        piece: 0,
        payload: Payload::Part(from),
        by: Move::Push,
        after,
    };
    let schedule =
        Schedule { kind: Kind::OneShot, ranks: 2, pieces: 1, hops: vec![hop(0, 1, vec![1]), hop(1, 0, vec![0])] };
    assert!(matches!(schedule.check(), Err(ScheduleFault::Circular { .. })));
    let apart = Schedule { hops: vec![hop(0, 1, vec![]), hop(1, 0, vec![])], ..schedule };
    assert_eq!(apart.check().unwrap().depth, 1);
}

#[test]
fn a_rank_that_dies_is_named() {
    for schedule in [Schedule::one_shot(4), Schedule::two_shot(4), Schedule::staged_pull(4)].map(Result::unwrap) {
        let mut ranks = scheduled(&schedule, LONG).unwrap();
        drop(ranks.remove(2));
        let start = Instant::now();
        std::thread::scope(|scope| {
            for mut rank in ranks {
                scope.spawn(move || {
                    let silent = rank.all_reduce(&[1.0; 9], &mut [0.0; 9]).unwrap_err();
                    assert_eq!(rank.all_reduce(&[1.0; 9], &mut [0.0; 9]), Err(silent));
                });
            }
        });
        assert!(start.elapsed() < Duration::from_secs(20));
    }
}

/// The backends' way, which interprets nothing, is the one-shot schedule.
#[test]
fn the_quick_path_is_the_one_shot() {
    for ranks in [2, 3, 8] {
        let values = 37;
        let group = ThreadGroup::new(ranks, LONG);
        let quick: Vec<Vec<u32>> = std::thread::scope(|scope| {
            let run = |mut rank: tombolo_collective::ThreadRank| {
                let mine: Vec<f32> = (0..values).map(|i| value(5, rank.rank(), i)).collect();
                let mut sum = vec![0.0; values];
                rank.all_reduce(&mine, &mut sum).unwrap();
                sum.iter().map(|x| x.to_bits()).collect()
            };
            let threads: Vec<_> = group.into_iter().map(|rank| scope.spawn(move || run(rank))).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        let interpreted = sums(&Schedule::one_shot(ranks).unwrap(), 5, values, 1, None);
        assert!(quick.iter().zip(&interpreted).all(|(quick, calls)| *quick == calls[0]));
    }
}

fn any_schedule() -> impl Strategy<Value = Schedule> {
    (2usize..=RANKS_MAX, 0usize..4, prop::collection::vec(0usize..4, RANKS_MAX)).prop_map(|(ranks, kind, of)| {
        let mut partition = vec![Vec::new(); 4];
        (0..ranks).for_each(|rank| partition[of[rank]].push(rank));
        partition.retain(|island| !island.is_empty());
        match kind {
            0 => Schedule::one_shot(ranks),
            1 => Schedule::two_shot(ranks),
            2 => Schedule::staged_pull(ranks),
            _ => Schedule::islands(&partition),
        }
        .unwrap()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120))]

    #[test]
    fn all_ranks_hold_the_bits_of_the_plain_sum(
        schedule in any_schedule(), seed in 0u64..1 << 40, values in 0usize..200, jitter in any::<bool>(),
    ) {
        let calls = 4;
        let found = sums(&schedule, seed, values, calls, jitter.then_some(seed));
        for call in 0..calls {
            let want = plain_sum(seed + call, schedule.ranks, values);
            for (rank, sums) in found.iter().enumerate() {
                prop_assert!(sums[call as usize] == want, "rank {rank}, call {call} of {:?}", schedule.kind);
            }
        }
    }
}
