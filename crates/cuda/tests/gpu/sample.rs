//! Summaries and greedy tokens of sharded logits against the law in `tombolo_model`.

use crate::lab::{Lab, noise};
use std::time::Duration;
use tombolo_cuda::collective::{Settings, Transport, connect};
use tombolo_cuda::driver::DevicePtr;
use tombolo_cuda::kernels::sample::{SUMMARY_LINES, Sample, read_summary, sample, scratch_bytes, slot_lines};
use tombolo_model::{CANDIDATES, Summary};

/// Logits with ties, infinities and NaN in them.
fn logits(seed: u32, vocabulary: usize) -> Vec<f32> {
    let mut l: Vec<f32> = noise(seed, vocabulary).into_iter().map(|v| (v * 64.0).round() / 8.0).collect();
    l[vocabulary / 3] = f32::NAN;
    l[vocabulary / 2] = f32::NEG_INFINITY;
    l[0] = -0.0;
    l
}

fn check(ranks: usize, vocabulary: usize, temperatures: &[f32]) {
    let devices = tombolo_cuda::devices().unwrap().len();
    let labs: Vec<Lab> = (0..ranks).map(|r| Lab::new(r % devices)).collect();
    labs.iter().for_each(|l| l.stream.set_overlap(devices >= ranks));
    let rows = temperatures.len();
    let settings = Settings { slot_lines: slot_lines(rows).max(256), deadline: Duration::from_secs(5) };
    let opened: Vec<_> = labs.iter().map(|l| l.device.clone()).collect();
    let kernels: Vec<_> = labs.iter().map(|l| &l.kernels).collect();
    let group = connect(&opened, &kernels, Transport::Auto, &settings).unwrap();
    let whole: Vec<Vec<f32>> = (0..rows).map(|r| logits(r as u32 + 5, vocabulary)).collect();
    let part = |rank: usize| rank * vocabulary / ranks..(rank + 1) * vocabulary / ranks;
    let inverse: Vec<f32> = temperatures.iter().map(|t| if *t > 0.0 { 1.0 / t } else { 0.0 }).collect();
    let samples: Vec<Sample> = labs
        .iter()
        .enumerate()
        .map(|(rank, lab)| {
            let shard: Vec<f32> = whole.iter().flat_map(|row| row[part(rank)].to_vec()).collect();
            let len = part(rank).len();
            Sample {
                logits: lab.put(&shard),
                stride: len,
                shard: len,
                first: part(rank).start,
                inverse_temperatures: lab.put(&inverse),
                scratch: lab.put(&vec![0xffu8; scratch_bytes(rows, len)]),
                summaries: lab.put(&vec![[0u32; 2]; rows * ranks * SUMMARY_LINES]),
                tokens: lab.put(&vec![u32::MAX; rows]),
            }
        })
        .collect();
    for ((lab, end), s) in labs.iter().zip(&group.ranks).zip(&samples) {
        lab.device.make_current().unwrap();
        // SAFETY: every address was put with the length that the shape calls for; all ranks make the same call.
        unsafe { sample(&lab.stream, &lab.kernels, end.link(), s, rows, 1) }.unwrap();
    }
    for (lab, s) in labs.iter().zip(&samples) {
        let tokens: Vec<u32> = lab.get(s.tokens, rows);
        let words: Vec<u32> = lab.get(s.summaries, rows * ranks * SUMMARY_LINES * 2);
        let lines = words.as_chunks::<2>().0;
        for (row, &temperature) in temperatures.iter().enumerate() {
            let best = Summary::of(&whole[row], 0, temperature, 1).candidates[0];
            assert_eq!(tokens[row], best.token, "{ranks} ranks, vocabulary {vocabulary}, row {row}");
            for rank in 0..ranks {
                let at = (row * ranks + rank) * SUMMARY_LINES;
                let got = read_summary(&lines[at..at + SUMMARY_LINES]);
                let first = part(rank).start as u32;
                let keep = if temperature > 0.0 { CANDIDATES } else { 1 };
                let want = Summary::of(&whole[row][part(rank)], first, temperature, keep);
                assert_eq!(got.candidates, want.candidates, "{ranks} ranks, row {row}, rank {rank}");
                if temperature > 0.0 {
                    assert!((got.weight / want.weight - 1.0).abs() < 1e-5, "{} {}", got.weight, want.weight);
                }
            }
        }
    }
    assert!(group.ranks.iter().all(|r| r.fault().is_none()));
    assert_ne!(samples[0].tokens, DevicePtr::NULL);
}

#[test]
#[ignore = "needs a GPU"]
fn summaries_and_greedy_tokens_follow_the_law() {
    check(1, 300, &[0.0, 0.7]);
    check(1, 49_152, &[1.0]);
    check(2, 151_936, &[0.0, 0.5, 1.0, 0.0, 2.0]);
    check(2, 100, &[0.9; 3]);
    check(3, 128_256, &[0.0; 64]);
    check(2, 128_256, &[0.8; 64]);
}
