//! The law of the draw over tokens that are sorted no further than it needs: time grows with their number alone, however flat
//! they are.

use super::summary::key;
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
    /// Of logits of which `best`, a number, is the largest. What has no weight is left out, and what is no number.
    pub(super) fn new(logits: &[f32], best: f32, temperature: f32) -> Self {
        let token =
            |(&logit, token)| Token { key: key(logit, token), weight: relative_weight(logit, best, temperature) };
        let tokens: Vec<Token> = logits.iter().zip(0..).map(token).filter(|token| token.weight > 0.0).collect();
        Self { kept: tokens.len(), tokens }
    }

    /// As [`draw`](super::draw) draws.
    pub(super) fn draw(mut self, sampling: &Sampling, position: u32) -> u32 {
        if sampling.top_k > 0 {
            self.keep(sampling.top_k as usize);
        }
        if sampling.top_p < 1.0 {
            let want = f64::from(sampling.top_p.max(0.0)) * self.mass();
            // Those before it are the better ones by now.
            self.kept = self.first(|sum| sum >= want) + 1;
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
