//! Drawing a token per logits row, the same on every rank.
//!
//! Every rank summarises its shard of the vocabulary; the summaries are gathered as plain words and joined. Where the
//! draw lies beyond the candidates, all ranks see so alike, and gather the whole logits of those rows.

use crate::kernels::Kernels;
use crate::pool::{Panicked, Pool};
use crate::run::Stop;
use std::sync::OnceLock;
use tombolo_collective::ThreadRank;
use tombolo_model::{CANDIDATES, Candidate, NO_TOKEN, Program, Sampling, Shard, Summary, draw, draw_from_all};

/// Words of one summary on the wire: how many candidates, the weight in two words, then token and logit each.
const WORDS: usize = 3 + 2 * CANDIDATES;

/// A logits row to draw from.
pub(crate) struct Wanted {
    pub(crate) sampling: Sampling,
    /// Position of the row's own token.
    pub(crate) position: u32,
}

/// Draws one token for each of `wanted` from `logits`, `[wanted, this rank's shard]`.
pub(crate) fn sample(
    pool: &mut Pool,
    kernels: &Kernels,
    program: &Program,
    comm: &mut ThreadRank,
    logits: &[f32],
    wanted: &[Wanted],
) -> Result<Vec<u32>, Stop> {
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    let width = logits.len() / wanted.len();
    let row = |i: usize| &logits[i * width..][..width];
    let first = program.vocabulary_start as u32;
    let summaries = each(pool, wanted.len(), |i| summarise(kernels, row(i), first, &wanted[i].sampling))?;
    let mut words = Vec::with_capacity(wanted.len() * WORDS);
    summaries.iter().for_each(|summary| put(summary, &mut words));
    let mut all = Vec::new();
    comm.all_gather(&words, &mut all)?;

    let drawn: Vec<Option<u32>> = wanted
        .iter()
        .enumerate()
        .map(|(i, wanted)| {
            let shards: Vec<Summary> =
                all.chunks_exact(words.len()).map(|rank| get(&rank[i * WORDS..][..WORDS])).collect();
            let summary = Summary::merge(&shards, wanted.sampling.temperature);
            if !summary.candidates.first().is_some_and(|best| best.logit.is_finite()) {
                return Some(NO_TOKEN);
            }
            draw(&summary, program.vocabulary, &wanted.sampling, wanted.position)
        })
        .collect();
    let open: Vec<usize> = (0..drawn.len()).filter(|&i| drawn[i].is_none()).collect();
    let mut exact = Vec::new();
    if !open.is_empty() {
        let mine: Vec<f32> = open.iter().flat_map(|&i| row(i)).copied().collect();
        let mut all = Vec::new();
        comm.all_gather(&mine, &mut all)?;
        let rows = whole_rows(&all, program, open.len());
        exact = each(pool, open.len(), |i| {
            let Wanted { sampling, position } = &wanted[open[i]];
            draw_from_all(&rows[i], sampling, *position).unwrap_or(NO_TOKEN)
        })?;
    }
    let mut exact = exact.into_iter();
    Ok(drawn.iter().map(|token| token.or_else(|| exact.next()).unwrap_or(0)).collect())
}

/// What `of` gives for each row, by the rank's threads.
fn each<T: Send + Sync>(pool: &mut Pool, rows: usize, of: impl Fn(usize) -> T + Sync) -> Result<Vec<T>, Panicked> {
    let found: Vec<OnceLock<T>> = (0..rows).map(|_| OnceLock::new()).collect();
    pool.run(rows, &|i| {
        found[i].get_or_init(|| of(i));
    })?;
    Ok(found.into_iter().filter_map(OnceLock::into_inner).collect())
}

fn summarise(kernels: &Kernels, logits: &[f32], first: u32, sampling: &Sampling) -> Summary {
    let top_k = sampling.top_k as usize;
    if !sampling.is_greedy() {
        if (1..=CANDIDATES.min(logits.len())).contains(&top_k) {
            // A weight of everything costs more than all the rest of a draw.
            return Summary::best(logits, first, top_k);
        }
        return Summary::of(logits, first, sampling.temperature, CANDIDATES);
    }
    // Nothing but the best is looked at.
    let best = (kernels.argmax)(logits);
    let logit = logits[best].max(f32::NEG_INFINITY); // A NaN, where there is nothing else, is the least of all.
    Summary { candidates: vec![Candidate { token: first + best as u32, logit }], weight: 1.0 }
}

/// The rows that all ranks gathered, in the order of the vocabulary.
fn whole_rows(all: &[f32], program: &Program, rows: usize) -> Vec<Vec<f32>> {
    let mut whole = vec![Vec::with_capacity(program.vocabulary); rows];
    let mut rest = all;
    for rank in 0..program.shard.size {
        let (_, width) = Shard { rank, size: program.shard.size }.part(program.vocabulary);
        for row in &mut whole {
            let (mine, after) = rest.split_at(width);
            row.extend_from_slice(mine);
            rest = after;
        }
    }
    whole
}

fn put(summary: &Summary, words: &mut Vec<u32>) {
    let end = words.len() + WORDS;
    let weight = summary.weight.to_bits();
    words.extend([summary.candidates.len() as u32, weight as u32, (weight >> 32) as u32]);
    words.extend(summary.candidates.iter().flat_map(|c| [c.token, c.logit.to_bits()]));
    words.resize(end, 0);
}

fn get(words: &[u32]) -> Summary {
    let candidates = words[3..].as_chunks::<2>().0.iter().take(words[0] as usize);
    Summary {
        candidates: candidates.map(|&[token, logit]| Candidate { token, logit: f32::from_bits(logit) }).collect(),
        weight: f64::from_bits(u64::from(words[1]) | u64::from(words[2]) << 32),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_survives_the_wire() {
        let logits: Vec<f32> = (0..1000).map(|i| ((i * 7919) % 1009) as f32 / 100.0).collect();
        for keep in [1, 5, CANDIDATES] {
            let summary = Summary::of(&logits, 17, 0.8, keep);
            let mut words = Vec::new();
            put(&summary, &mut words);
            assert_eq!(words.len(), WORDS);
            assert_eq!(get(&words), summary);
        }
    }

    /// What every rank draws must be what one rank draws that sees everything.
    #[test]
    fn shards_draw_what_the_whole_draws() {
        let vocabulary = 1003;
        let whole: Vec<f32> = (0..vocabulary).map(|i| ((i * 7919) % 1009) as f32 / 200.0).collect();
        let free = Sampling { temperature: 0.8, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 0 };
        let kinds = [
            Sampling::GREEDY,
            free,
            Sampling { top_k: 5, ..free },
            Sampling { top_k: 300, ..free },
            Sampling { top_p: 0.1, ..free },
            Sampling { top_p: 0.9, ..free },
            Sampling { min_p: 0.05, ..free },
            Sampling { temperature: 3.0, top_k: 500, top_p: 0.95, ..free },
        ];
        let wanted = |position: u32| -> Vec<Wanted> {
            kinds.iter().map(|s| Wanted { sampling: Sampling { seed: u64::from(position), ..*s }, position }).collect()
        };
        let kernels = Kernels::of(crate::Tier::best()).unwrap();
        for size in 1..=4 {
            let draw_all = |mut comm: ThreadRank| -> Vec<Vec<u32>> {
                let shard = Shard { rank: comm.rank(), size };
                let (start, len) = shard.part(vocabulary);
                let program = program(shard, vocabulary, start);
                let logits: Vec<f32> = kinds.iter().flat_map(|_| &whole[start..start + len]).copied().collect();
                let mut pool = Pool::new("draws", 2, false).unwrap();
                let mut draw = |p| sample(&mut pool, kernels, &program, &mut comm, &logits, &wanted(p)).ok().unwrap();
                (0..50).map(&mut draw).collect()
            };
            let ranks = tombolo_collective::ThreadGroup::new(size, std::time::Duration::from_secs(60));
            let drawn: Vec<_> = std::thread::scope(|scope| {
                let threads: Vec<_> = ranks.into_iter().map(|comm| scope.spawn(|| draw_all(comm))).collect();
                threads.into_iter().map(|t| t.join().unwrap()).collect()
            });
            let want: Vec<Vec<u32>> = (0..50)
                .map(|p| {
                    let one = |w: &Wanted| {
                        let summary = Summary::of(&whole, 0, w.sampling.temperature, vocabulary);
                        draw(&summary, vocabulary, &w.sampling, w.position).unwrap()
                    };
                    wanted(p).iter().map(one).collect()
                })
                .collect();
            assert!(drawn.iter().all(|d| *d == want), "{size} ranks");
        }
    }

    fn program(shard: Shard, vocabulary: usize, vocabulary_start: usize) -> Program {
        let (weights, groups, ropes, ops) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Program {
            shard,
            vocabulary,
            vocabulary_start,
            buffers: Vec::new(),
            weights,
            groups,
            ropes,
            ops,
            draft: Vec::new(),
        }
    }
}
