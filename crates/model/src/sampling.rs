//! How a token is drawn from logits: one law for every backend and every shard count.
//!
//! Order: temperature, then top-k, top-p, min-p (each on what the one before left), then one draw by inverse
//! distribution over the tokens sorted by falling logit (ties: lower id first). A rank summarises its vocabulary
//! shard as its best [`CANDIDATES`] and the shard's total weight; the draw needs the full logits only where the
//! answer lies beyond those candidates.

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

fn order(a: &Candidate, b: &Candidate) -> std::cmp::Ordering {
    b.logit.total_cmp(&a.logit).then(a.token.cmp(&b.token))
}

/// NaN logits sort last: they can never be drawn while a number is there.
fn clean(logit: f32) -> f32 {
    if logit.is_nan() { f32::NEG_INFINITY } else { logit }
}

impl Summary {
    /// Summarises `logits` of tokens `first..`, keeping the best `keep`.
    pub fn of(logits: &[f32], first: u32, temperature: f32, keep: usize) -> Self {
        let summary = Self::best(logits, first, keep);
        let Some(best) = summary.candidates.first().map(|c| c.logit) else { return summary };
        let weight = logits.iter().map(|&l| relative_weight(clean(l), best, temperature)).sum();
        Self { weight, ..summary }
    }

    /// The same without the total weight, which no draw asks for that is limited to the `top_k` best, where so many are
    /// kept of every shard.
    pub fn best(logits: &[f32], first: u32, keep: usize) -> Self {
        let mut candidates: Vec<Candidate> =
            logits.iter().zip(first..).map(|(&logit, token)| Candidate { token, logit: clean(logit) }).collect();
        if candidates.is_empty() {
            return Self::default();
        }
        if keep < candidates.len() {
            candidates.select_nth_unstable_by(keep, order);
            candidates.truncate(keep);
        }
        candidates.sort_unstable_by(order);
        Self { candidates, weight: 0.0 }
    }

    /// Joins the summaries of all shards, in rank order.
    pub fn merge(shards: &[Summary], temperature: f32) -> Self {
        let mut candidates: Vec<Candidate> = shards.iter().flat_map(|s| s.candidates.iter().copied()).collect();
        candidates.sort_unstable_by(order);
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

fn relative_weight(logit: f32, best: f32, temperature: f32) -> f64 {
    if logit == best {
        return 1.0;
    }
    if temperature <= 0.0 {
        return 0.0;
    }
    (f64::from(logit - best) / f64::from(temperature)).exp()
}

/// Draws a token for the row at `position`, or `None` where the candidates do not hold the answer and the draw must
/// be made again from a summary of the full logits. `vocabulary` is the number of tokens that the summary speaks of.
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
