//! How a token is drawn from logits: one law for every backend and every shard count.
//!
//! Order: temperature, then top-k, top-p, min-p (each on what the one before left), then one draw by inverse
//! distribution over the tokens sorted by falling logit (ties: lower id first). A rank summarises its vocabulary
//! shard as its best [`CANDIDATES`] and the shard's total weight; the draw needs the full logits only where the
//! answer lies beyond those candidates.

mod ranking;
mod side_by_side;
mod summary;
mod weight;

use ranking::Ranking;
pub use side_by_side::side_by_side;
pub use summary::{Candidate, Summary};
use weight::relative_weight;

/// Candidates per vocabulary shard and row.
pub const CANDIDATES: usize = 64;

/// How to draw one token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// 0 (or less): the most likely token.
    pub temperature: f32,
    /// Keep the `top_k` most likely tokens; 0: all.
    pub top_k: u32,
    /// Keep the fewest most likely tokens whose probabilities reach this sum; 1: all.
    pub top_p: f32,
    /// Keep tokens at least this likely relative to the most likely one; 0: all.
    pub min_p: f32,
    /// The draw depends on this and the position alone, never on the batch.
    pub seed: u64,
}

impl Sampling {
    /// Always the most likely token.
    pub const GREEDY: Self = Self { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 0 };

    /// Whether the most likely token is always taken.
    pub fn is_greedy(&self) -> bool {
        self.temperature <= 0.0 || self.top_k == 1
    }
}

/// Draws a token for the row at `position`, or `None` where the candidates do not hold the answer and the draw must
/// be made from all logits ([`draw_from_all`]). `vocabulary` is the number of tokens that the summary speaks of.
pub fn draw(summary: &Summary, vocabulary: usize, sampling: &Sampling, position: u32) -> Option<u32> {
    let candidates = &summary.candidates;
    let best = candidates.first()?;
    if sampling.is_greedy() {
        return Some(best.token);
    }
    let complete = candidates.len() >= vocabulary;
    let top_k = if sampling.top_k == 0 { usize::MAX } else { sampling.top_k as usize };
    let weights: Vec<f64> =
        candidates.iter().map(|c| relative_weight(c.logit, best.logit, sampling.temperature)).collect();

    // How many of the sorted tokens survive; `None` while the end of the kept set lies beyond the candidates.
    let mut kept: Option<usize> = complete.then_some(candidates.len());
    let mut total = summary.weight;
    if top_k <= candidates.len() {
        kept = Some(top_k);
        total = weights[..top_k].iter().sum();
    } else if top_k < vocabulary && !complete {
        return None;
    }
    if sampling.top_p < 1.0 {
        let want = f64::from(sampling.top_p.max(0.0)) * total;
        let mut sum = 0.0;
        let reach = weights.iter().position(|w| {
            sum += w;
            sum >= want
        });
        kept = match (reach, kept) {
            (Some(n), Some(k)) => Some(k.min(n + 1)),
            (Some(n), None) => Some(n + 1),
            (None, kept) => kept,
        };
    }
    if sampling.min_p > 0.0 {
        let floor = f64::from(sampling.min_p.min(1.0));
        let below = weights.iter().position(|&w| w < floor);
        kept = match (below, kept) {
            (Some(n), Some(k)) => Some(k.min(n)),
            (Some(n), None) => Some(n),
            (None, kept) => kept,
        };
    }
    let mass = match kept {
        Some(n) => weights[..n.max(1)].iter().sum(),
        // Nothing cut inside the candidates. A cut beyond them would change the total: only a plain draw may go on.
        None if sampling.top_p >= 1.0 && sampling.min_p <= 0.0 => total,
        None => return None,
    };
    let target = uniform(sampling.seed, position) * mass;
    let mut sum = 0.0;
    for (c, w) in candidates.iter().zip(&weights).take(kept.map_or(usize::MAX, |n| n.max(1))) {
        sum += w;
        if target < sum {
            return Some(c.token);
        }
    }
    // Rounding can leave the target a hair past the last kept token.
    kept.map(|n| candidates[n.clamp(1, candidates.len()) - 1].token)
}

/// Draws a token for the row at `position` from all its logits; `None`: the best of them is no finite number.
pub fn draw_from_all(logits: &[f32], sampling: &Sampling, position: u32) -> Option<u32> {
    let first = Summary::best(logits, 0, if sampling.is_greedy() { 1 } else { CANDIDATES });
    let best = *first.candidates.first().filter(|best| best.logit.is_finite())?;
    if sampling.is_greedy() {
        return Some(best.token);
    }
    // A weight of everything costs more than all the rest of a draw; one from the `top_k` best does not ask for it.
    let is_cut = (1..logits.len()).contains(&(sampling.top_k as usize));
    let weight = if is_cut { 0.0 } else { weight::sum(logits, best.logit, sampling.temperature) };
    let draw_from = |summary| draw(&Summary { weight, ..summary }, logits.len(), sampling, position);
    // Nearly always few hold the answer.
    draw_from(first)
        .or_else(|| draw_from(Summary::best(logits, 0, 16 * CANDIDATES)))
        .or_else(|| Some(Ranking::new(logits, best.logit, sampling.temperature).draw(sampling, position)))
}

/// A number in `[0, 1)` from the seed and the position alone (splitmix64, Steele et al. 2014).
fn uniform(seed: u64, position: u32) -> f64 {
    let mix = |mut z: u64| {
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let golden = 0x9e37_79b9_7f4a_7c15u64;
    let stream = mix(seed.wrapping_add(golden));
    let value = mix(stream.wrapping_add(golden.wrapping_mul(u64::from(position) + 1)));
    (value >> 11) as f64 / (1u64 << 53) as f64
}
