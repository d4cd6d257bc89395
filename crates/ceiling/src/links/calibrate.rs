//! Calibration: the free costs are moved until the rows are predicted best; with one machine left out at a time, what is
//! predicted for the one left out says how far a prediction can be trusted. Never per row.

use super::rows::{Prepared, Row};
use super::{Cost, Params};
use serde::Serialize;
use std::collections::BTreeMap;

/// Factors that a cost is tried at, coarse to fine.
const STEPS: [f64; 4] = [1.2, 1.1, 1.05, 1.02];
/// Beyond this a point is taken for one that something else decides.
const OUTLIER: f64 = 0.36;
/// Rounds over all costs at each step.
const ROUNDS: usize = 4;

/// One point, measured and predicted.
#[derive(Clone, Debug, Serialize)]
pub struct Point {
    /// Machine.
    pub on: String,
    /// What ran.
    pub what: &'static str,
    /// Message.
    pub bytes: usize,
    /// In microseconds.
    pub measured_us: f64,
    /// By costs that this machine had no part in.
    pub predicted_us: f64,
    /// `predicted / measured − 1`.
    pub error: f64,
    /// Of the collection.
    pub section: String,
    /// Predicted by NCCL's model, not by a simulated schedule.
    pub nccl: bool,
    /// Who measured.
    pub source: String,
    /// What was assumed.
    pub assumed: String,
}

/// The costs that predict these rows best: the mean over machines, each with the weight of the
/// root of its points, of the mean over points of `ln(predicted / measured)²`, capped, so that neither a machine with many
/// points nor one outlier decides. Found one
/// cost at a time, in ever finer steps.
///
/// Starts from the priors, so that nothing is left of rows that are not given.
pub fn fit(rows: &[&Row], stored: &Params) -> Params {
    let rows: Vec<(&Row, Prepared)> = rows.iter().map(|row| (*row, row.prepared())).collect();
    let best = stored.priors();
    let mut search = Search { free: stored.free(), loss: loss(&rows, &best), best, rows };
    search.one_at_a_time();
    search.best
}

struct Search<'a> {
    rows: Vec<(&'a Row, Prepared)>,
    free: Vec<(Cost, f64, f64)>,
    best: Params,
    loss: f64,
}

impl Search<'_> {
    fn try_out(&mut self, tried: Params) -> bool {
        let within =
            |&(cost, prior, within): &(Cost, f64, f64)| (1.0 / within..=within).contains(&(tried.get(cost) / prior));
        if !self.free.iter().all(within) {
            return false;
        }
        let found = loss(&self.rows, &tried);
        let better = found < self.loss;
        if better {
            (self.best, self.loss) = (tried, found);
        }
        better
    }

    fn one_at_a_time(&mut self) {
        for step in STEPS {
            for _ in 0..ROUNDS {
                let before = self.loss;
                for cost in self.free.iter().map(|f| f.0).collect::<Vec<_>>() {
                    let value = self.best.get(cost);
                    let _ = self.try_out(self.best.with(cost, value * step))
                        || self.try_out(self.best.with(cost, value / step));
                }
                if self.loss >= before {
                    break;
                }
            }
        }
    }
}

fn loss(rows: &[(&Row, Prepared)], params: &Params) -> f64 {
    let mut machines: BTreeMap<&str, (f64, usize)> = BTreeMap::new();
    for (row, prepared) in rows {
        for &(bytes, us) in &row.points {
            let error = (prepared.predict(bytes, params) / us).ln().powi(2).min(OUTLIER);
            let found = machines.entry(&row.on).or_default();
            *found = (found.0 + error, found.1 + 1);
        }
    }
    let weights: f64 = machines.values().map(|&(_, n)| (n as f64).sqrt()).sum();
    machines.into_values().map(|(sum, n)| sum / (n as f64).sqrt()).sum::<f64>() / weights.max(1.0)
}

/// Every point, predicted by costs that were calibrated without its machine.
pub fn left_out(rows: &[Row], stored: &Params) -> Vec<Point> {
    let mut machines: Vec<&str> = rows.iter().map(|r| r.on.as_str()).collect();
    machines.sort_unstable();
    machines.dedup();
    let mut points = Vec::new();
    for machine in machines {
        let others: Vec<&Row> = rows.iter().filter(|r| r.on != machine).collect();
        let params = fit(&others, stored);
        for row in rows.iter().filter(|r| r.on == machine) {
            points.extend(row.points.iter().map(|&(bytes, us)| point(row, bytes, us, &params)));
        }
    }
    points
}

fn point(row: &Row, bytes: usize, measured_us: f64, params: &Params) -> Point {
    let predicted_us = row.predict(bytes, params);
    Point {
        on: row.on.clone(),
        what: row.what.name(),
        bytes,
        measured_us,
        predicted_us,
        error: predicted_us / measured_us - 1.0,
        section: row.section.clone(),
        nccl: row.what.is_nccl(),
        source: row.source.clone(),
        assumed: row.assumed.clone(),
    }
}

/// The middle of the errors' sizes; `None` without points.
pub fn median_error<'a>(points: impl Iterator<Item = &'a Point>) -> Option<f64> {
    let mut errors: Vec<f64> = points.map(|p| p.error.abs()).collect();
    errors.sort_by(f64::total_cmp);
    let n = errors.len();
    Some((errors.get(n.checked_sub(1)? / 2)? + errors.get(n / 2)?) / 2.0)
}
