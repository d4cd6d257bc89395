//! The law of the draw over tokens that are sorted no further than it needs: time grows with their number alone, however flat
//! they are.

use super::summary::{Summary, key};
use super::weight::relative_weight;
use super::{Sampling, uniform};

/// So few are sorted.
const FEW: usize = 64;

#[derive(Clone, Copy)]
struct Token {
    /// Less is better; the token is its lower half.
    key: u64,
    weight: f64,
}

/// All tokens of a row, of which the first `kept` may be drawn.
pub(super) struct Ranking {
    tokens: Vec<Token>,
    kept: usize,
}

impl Ranking {
    /// Of logits among which there is a number.
    pub(super) fn new(logits: &[f32], temperature: f32) -> Self {
        let best = Summary::best(logits, 0, 1).candidates.first().map_or(0.0, |best| best.logit);
        let token =
            |(&logit, token)| Token { key: key(logit, token), weight: relative_weight(logit, best, temperature) };
        let tokens: Vec<Token> = logits.iter().zip(0..).map(token).collect();
        Self { kept: tokens.len(), tokens }
    }

    /// As [`draw`](super::draw) draws.
    pub(super) fn draw(mut self, sampling: &Sampling, position: u32) -> u32 {
        if sampling.top_k > 0 {
            self.keep(sampling.top_k as usize);
        }
        if sampling.top_p < 1.0 {
            let want = f64::from(sampling.top_p.max(0.0)) * self.mass();
            let reach = self.first(|sum| sum >= want);
            self.keep(reach + 1);
        }
        if sampling.min_p > 0.0 {
            let floor = f64::from(sampling.min_p.min(1.0));
            self.keep(self.tokens[..self.kept].iter().filter(|token| token.weight >= floor).count());
        }
        let target = uniform(sampling.seed, position) * self.mass();
        let drawn = self.first(|sum| target < sum);
        self.tokens[drawn].key as u32
    }

    fn mass(&self) -> f64 {
        weigh(&self.tokens[..self.kept])
    }

    /// Keeps the best `count`, and at least one.
    fn keep(&mut self, count: usize) {
        let count = count.max(1);
        if count < self.kept {
            self.tokens[..self.kept].select_nth_unstable_by_key(count - 1, |token| token.key);
            self.kept = count;
        }
    }

    /// Where the kept ones, from the best on, weigh so much together that `is_enough`; else the last. Finds it by halves:
    /// the better half weighs enough, or is passed over.
    fn first(&mut self, is_enough: impl Fn(f64) -> bool) -> usize {
        let (mut start, mut end, mut before) = (0, self.kept, 0.0);
        while end - start > FEW {
            let half = (end - start) / 2;
            let open = &mut self.tokens[start..end];
            open.select_nth_unstable_by_key(half, |token| token.key);
            let better = weigh(&open[..half]);
            if is_enough(before + better) {
                end = start + half;
            } else {
                (start, before) = (start + half, before + better);
            }
        }
        let open = &mut self.tokens[start..end];
        open.sort_unstable_by_key(|token| token.key);
        let reach = open.iter().position(|token| {
            before += token.weight;
            is_enough(before)
        });
        reach.map_or(end - 1, |at| start + at)
    }
}

fn weigh(tokens: &[Token]) -> f64 {
    tokens.iter().map(|token| token.weight).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::draw;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_draws_as_from_a_sorted_summary(
            logits in prop::collection::vec((-80i32..80).prop_map(|l| l as f32 / 8.0), 1..700),
            temperature in 0.05f32..3.0,
            top_k in prop_oneof![Just(0u32), 2u32..900],
            top_p in prop_oneof![Just(1.0f32), 0.0f32..1.0],
            min_p in prop_oneof![Just(0.0f32), 0.0f32..1.0],
            seed: u64,
            position in 0u32..1000,
        ) {
            let sampling = Sampling { temperature, top_k, top_p, min_p, seed };
            let summary = Summary::of(&logits, 0, temperature, logits.len());
            let want = draw(&summary, logits.len(), &sampling, position);
            prop_assert_eq!(Some(Ranking::new(&logits, temperature).draw(&sampling, position)), want);
        }
    }
}
