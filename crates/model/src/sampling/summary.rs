//! What the draw is made from: the best tokens of a row, and the weight of all.

use super::weight::{relative_weight, sum};

/// A token with its logit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Token id in the whole vocabulary.
    pub token: u32,
    /// Its logit, before temperature.
    pub logit: f32,
}

/// What the draw needs to know of one row's logits, or of one shard of them.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Summary {
    /// The best tokens, falling logits, ties by lower id first.
    pub candidates: Vec<Candidate>,
    /// `Σ exp((logit − candidates[0].logit) / temperature)` over every token summarised.
    pub weight: f64,
}

/// A logit and its token in one number: less is better. Falling logits as [`f32::total_cmp`] has them, then lower tokens.
pub(super) fn key(logit: f32, token: u32) -> u64 {
    let bits = clean(logit).to_bits();
    let rising = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    u64::from(!rising) << 32 | u64::from(token)
}

fn candidate(key: u64) -> Candidate {
    let rising = !((key >> 32) as u32);
    let bits = if rising >> 31 == 1 { rising & !(1 << 31) } else { !rising };
    Candidate { token: key as u32, logit: f32::from_bits(bits) }
}

/// NaN logits sort last: they can never be drawn while a number is there.
fn clean(logit: f32) -> f32 {
    if logit.is_nan() { f32::NEG_INFINITY } else { logit }
}

/// Logits that are looked at together.
const BLOCK: usize = 32;

impl Summary {
    /// Summarises `logits` of tokens `first..`, keeping the best `keep`.
    pub fn of(logits: &[f32], first: u32, temperature: f32, keep: usize) -> Self {
        let summary = Self::best(logits, first, keep);
        let weight = summary.candidates.first().map_or(0.0, |best| sum(logits, best.logit, temperature));
        Self { weight, ..summary }
    }

    /// The same without the total weight, which no draw asks for that is limited to the `top_k` best, where so many are
    /// kept of every shard.
    pub fn best(logits: &[f32], first: u32, keep: usize) -> Self {
        let keep = keep.clamp(1, logits.len().max(1));
        let mut kept: Vec<u64> = Vec::with_capacity(logits.len().min(2 * keep + BLOCK));
        // From when there are enough: the last of them.
        let mut worst: Option<Candidate> = None;
        for (block, start) in logits.chunks(BLOCK).zip((first..).step_by(BLOCK)) {
            let limit = worst.map_or(u64::MAX, |worst| key(worst.logit, worst.token));
            // Nearly all blocks end here, so this is all that costs anything.
            if worst.is_some_and(|worst| !block.iter().fold(false, |any, &logit| any | (logit >= worst.logit))) {
                continue;
            }
            kept.extend(block.iter().zip(start..).map(|(&logit, token)| key(logit, token)).filter(|&key| key < limit));
            if kept.len() >= 2 * keep {
                kept.select_nth_unstable(keep - 1);
                kept.truncate(keep);
                worst = kept.last().copied().map(candidate);
            }
        }
        kept.sort_unstable();
        kept.truncate(keep);
        Self { candidates: kept.into_iter().map(candidate).collect(), weight: 0.0 }
    }

    /// Joins the summaries of all shards, in rank order.
    pub fn merge(shards: &[Summary], temperature: f32) -> Self {
        let mut candidates: Vec<Candidate> = shards.iter().flat_map(|s| s.candidates.iter().copied()).collect();
        candidates.sort_unstable_by_key(|c| key(c.logit, c.token));
        let Some(best) = candidates.first().map(|c| c.logit) else { return Self::default() };
        let weight = shards
            .iter()
            .filter(|s| !s.candidates.is_empty())
            .map(|s| s.weight * relative_weight(s.candidates[0].logit, best, temperature))
            .sum();
        // Beyond this many, a token may be missing because its own shard did not report it.
        let known = shards.iter().map(|s| s.candidates.len()).filter(|&n| n > 0).min().unwrap_or(0);
        candidates.truncate(known.max(1));
        Self { candidates, weight }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_logit() -> impl Strategy<Value = f32> {
        prop_oneof![
            (-40i32..40).prop_map(|eighths| eighths as f32 / 8.0),
            any::<f32>(),
            prop::sample::select(vec![0.0, -0.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY]),
        ]
    }

    proptest! {
        #[test]
        fn the_best_are_those_of_a_sort(logits in prop::collection::vec(any_logit(), 0..500), keep in 1usize..600) {
            let all = logits.iter().zip(7..).map(|(&logit, token)| Candidate { token, logit: clean(logit) });
            let mut want: Vec<Candidate> = all.collect();
            want.sort_by(|a, b| b.logit.total_cmp(&a.logit).then(a.token.cmp(&b.token)));
            want.truncate(keep);
            let bits = |c: &Candidate| (c.token, c.logit.to_bits());
            let got = Summary::best(&logits, 7, keep).candidates;
            prop_assert_eq!(got.iter().map(bits).collect::<Vec<_>>(), want.iter().map(bits).collect::<Vec<_>>());
        }
    }
}
