//! From the outcomes to the figures, as `vllm bench serve` defines them.

use super::drive::Outcome;

/// What is summarised, in the order of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Metric {
    /// Time to first token
    Ttft,
    /// Time per output token after the first
    Tpot,
    /// Time between two events with tokens
    Itl,
    /// Whole time of a request
    E2el,
}

impl Metric {
    pub(super) const ALL: [Metric; 4] = [Metric::Ttft, Metric::Tpot, Metric::Itl, Metric::E2el];

    /// As it is spelled in keys.
    pub(super) fn key(self) -> &'static str {
        match self {
            Metric::Ttft => "ttft",
            Metric::Tpot => "tpot",
            Metric::Itl => "itl",
            Metric::E2el => "e2el",
        }
    }
}

/// One metric over all requests, in milliseconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Summary {
    pub(super) mean: f64,
    pub(super) median: f64,
    pub(super) std: f64,
    /// By percentile, as asked for.
    pub(super) percentiles: Vec<(f64, f64)>,
}

impl Summary {
    /// Of seconds.
    fn new(mut seconds: Vec<f64>, percentiles: &[f64]) -> Self {
        seconds.sort_by(f64::total_cmp);
        let count = seconds.len().max(1) as f64;
        let mean = seconds.iter().sum::<f64>() / count;
        let variance = seconds.iter().map(|s| (s - mean).powi(2)).sum::<f64>() / count;
        let at = |&p: &f64| (p, 1000.0 * percentile(&seconds, p));
        Self {
            mean: 1000.0 * mean,
            median: 1000.0 * percentile(&seconds, 50.0),
            std: 1000.0 * variance.sqrt(),
            percentiles: percentiles.iter().map(at).collect(),
        }
    }
}

/// Of sorted values, between the two nearest where it falls between them; 0 of none.
fn percentile(sorted: &[f64], percent: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    let place = last as f64 * percent / 100.0;
    let (below, above) = (place.floor() as usize, (place.ceil() as usize).min(last));
    sorted[below] + (sorted[above] - sorted[below]) * (place - below as f64)
}

/// A run's figures.
#[derive(Clone, Debug, Default)]
pub(super) struct Figures {
    pub(super) duration: f64,
    pub(super) completed: usize,
    pub(super) failed: usize,
    pub(super) input_tokens: usize,
    pub(super) cached_tokens: usize,
    pub(super) output_tokens: usize,
    /// Requests that kept every limit of `--goodput`.
    pub(super) good: Option<usize>,
    /// Most tokens in a second of the run.
    pub(super) peak_output_tokens_s: f64,
    /// Most requests that were under way at once.
    pub(super) peak_concurrent: usize,
    pub(super) metrics: Vec<(Metric, Summary)>,
    /// Answers without usage.
    pub(super) counted: usize,
    /// Answers shorter than asked for.
    pub(super) short: usize,
}

impl Figures {
    /// `limits`: of `--goodput`, in milliseconds.
    pub(super) fn new(outcomes: &[Outcome], duration: f64, percentiles: &[f64], limits: &[(Metric, f64)]) -> Self {
        let done: Vec<&Outcome> = outcomes.iter().filter(|outcome| outcome.error.is_none()).collect();
        let sum = |of: fn(&Outcome) -> usize| done.iter().map(|outcome| of(outcome)).sum::<usize>();
        let metric = |metric| {
            let values = done.iter().flat_map(|outcome| values(outcome, metric)).collect();
            (metric, Summary::new(values, percentiles))
        };
        let keeps = |outcome: &&&Outcome| {
            limits.iter().all(|&(metric, limit)| match metric {
                // Of many, their mean.
                Metric::Itl => mean(&outcome.itls) * 1000.0 <= limit,
                metric => values(outcome, metric).iter().all(|value| value * 1000.0 <= limit),
            })
        };
        Self {
            duration,
            completed: done.len(),
            failed: outcomes.len() - done.len(),
            input_tokens: sum(|outcome| outcome.prompt_tokens),
            cached_tokens: sum(|outcome| outcome.cached_tokens),
            output_tokens: sum(|outcome| outcome.output_tokens),
            good: (!limits.is_empty()).then(|| done.iter().filter(keeps).count()),
            peak_output_tokens_s: peak_output(&done),
            peak_concurrent: peak_concurrent(&done),
            metrics: Metric::ALL.map(metric).to_vec(),
            counted: done.iter().filter(|outcome| outcome.is_counted).count(),
            short: done.iter().filter(|outcome| outcome.output_tokens < outcome.max_tokens).count(),
        }
    }

    /// How many a second.
    pub(super) fn rate(&self, count: usize) -> f64 {
        if self.duration > 0.0 { count as f64 / self.duration } else { 0.0 }
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// A metric's values of one request, in seconds.
fn values(outcome: &Outcome, metric: Metric) -> Vec<f64> {
    match metric {
        Metric::Ttft => vec![outcome.ttft],
        // One token has none after it.
        Metric::Tpot if outcome.output_tokens < 2 => Vec::new(),
        Metric::Tpot => vec![(outcome.latency - outcome.ttft) / (outcome.output_tokens - 1) as f64],
        Metric::Itl => outcome.itls.clone(),
        Metric::E2el => vec![outcome.latency],
    }
}

/// An event may bring several tokens: each counts as the mean of its answer.
fn peak_output(done: &[&Outcome]) -> f64 {
    let mut seconds: Vec<f64> = Vec::new();
    for outcome in done {
        let tokens = outcome.output_tokens as f64 / (outcome.itls.len() + 1) as f64;
        let mut at = outcome.start + outcome.ttft;
        for pause in std::iter::once(&0.0).chain(&outcome.itls) {
            at += pause;
            let second = at as usize;
            if seconds.len() <= second {
                seconds.resize(second + 1, 0.0);
            }
            seconds[second] += tokens;
        }
    }
    seconds.into_iter().fold(0.0, f64::max)
}

fn peak_concurrent(done: &[&Outcome]) -> usize {
    let edges = |outcome: &&Outcome| [(outcome.start, 1i64), (outcome.start + outcome.latency, -1)];
    let mut edges: Vec<(f64, i64)> = done.iter().flat_map(edges).collect();
    // What ends where another begins was not beside it.
    edges.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let (mut now, mut most) = (0, 0);
    for (_, step) in edges {
        now += step;
        most = most.max(now);
    }
    usize::try_from(most).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::super::http::Fault;
    use super::*;

    fn outcome(start: f64, ttft: f64, itls: &[f64], tokens: usize) -> Outcome {
        let latency = ttft + itls.iter().sum::<f64>();
        let (itls, prompt_tokens) = (itls.to_vec(), 10);
        Outcome {
            start,
            ttft,
            itls,
            latency,
            output_tokens: tokens,
            max_tokens: tokens,
            prompt_tokens,
            ..Outcome::default()
        }
    }

    #[test]
    fn percentiles_are_numpys() {
        let sorted = [1.0, 2.0, 4.0, 8.0];
        for (p, expected) in [(0.0, 1.0), (50.0, 3.0), (99.0, 7.88), (100.0, 8.0), (25.0, 1.75)] {
            assert!((percentile(&sorted, p) - expected).abs() < 1e-12, "{p}");
        }
        assert_eq!((percentile(&[5.0], 99.0), percentile(&[], 50.0)), (5.0, 0.0));
        let summary = Summary::new(vec![0.003, 0.001], &[90.0]);
        assert_eq!((summary.mean, summary.median, summary.std), (2.0, 2.0, 1.0));
        assert!((summary.percentiles[0].1 - 2.8).abs() < 1e-9);
    }

    #[test]
    fn figures_are_those_of_the_outcomes() {
        let failed = Outcome { error: Some(Fault::Broken("x".into())), output_tokens: 5, ..Outcome::default() };
        let short = Outcome { max_tokens: 9, ..outcome(1.5, 0.5, &[], 1) };
        let outcomes = [outcome(0.0, 1.0, &[0.25, 0.25], 3), short, failed];
        let figures = Figures::new(&outcomes, 2.0, &[99.0], &[(Metric::Ttft, 600.0)]);
        assert_eq!((figures.completed, figures.failed, figures.good, figures.short), (2, 1, Some(1), 1));
        assert_eq!((figures.input_tokens, figures.output_tokens, figures.rate(4)), (20, 4, 2.0));
        let of = |metric| &figures.metrics.iter().find(|(m, _)| *m == metric).unwrap().1;
        assert_eq!((of(Metric::Ttft).mean, of(Metric::Tpot).mean), (750.0, 250.0));
        assert_eq!((of(Metric::Itl).mean, of(Metric::E2el).mean), (250.0, 1000.0));
        // The first ends as the second begins.
        assert_eq!(figures.peak_concurrent, 1);
        assert_eq!(figures.peak_output_tokens_s, 3.0);
    }

    #[test]
    fn requests_at_once_are_counted() {
        let outcomes = [outcome(0.0, 1.0, &[], 1), outcome(0.5, 1.0, &[], 1), outcome(0.9, 0.05, &[], 1)];
        assert_eq!(peak_concurrent(&outcomes.iter().collect::<Vec<_>>()), 3);
        assert_eq!(peak_concurrent(&[]), 0);
    }

    #[test]
    fn tokens_that_come_together_count_each() {
        let outcomes = [outcome(0.0, 0.5, &[0.1, 0.1, 0.1], 8)];
        assert_eq!(peak_output(&outcomes.iter().collect::<Vec<_>>()), 8.0);
    }
}
