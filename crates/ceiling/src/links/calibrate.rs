//! Calibration: the free costs are moved until the rows are predicted best; with one machine left out at a time, what is
//! predicted for the one left out says how far a prediction can be trusted. Never per row.

use super::rows::Row;
use super::{Cost, Params};
use serde::Serialize;
use std::collections::BTreeMap;

/// Factors that a cost is tried at, coarse to fine.
const STEPS: [f64; 4] = [1.4, 1.15, 1.05, 1.02];
/// Rounds over all costs at each step.
const ROUNDS: usize = 3;

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

/// The costs that predict these rows best: coordinate descent on the mean over machines of the mean over points of
/// `|ln(predicted / measured)|`, capped, so that neither a machine with many points nor one outlier decides.
pub fn fit(rows: &[&Row], start: &Params) -> Params {
    let free = start.free();
    let mut best = start.clone();
    let mut best_loss = loss(rows, &best);
    for step in STEPS {
        for _ in 0..ROUNDS {
            let before = best_loss;
            for &(cost, within) in &free {
                for factor in [step, 1.0 / step] {
                    let value = best.get(cost) * factor;
                    if !(1.0 / within..=within).contains(&(value / start.get(cost))) {
                        continue;
                    }
                    let tried = best.with(cost, value);
                    let found = loss(rows, &tried);
                    if found < best_loss {
                        (best, best_loss) = (tried, found);
                        break;
                    }
                }
            }
            if best_loss >= before {
                break;
            }
        }
    }
    best
}

fn loss(rows: &[&Row], params: &Params) -> f64 {
    let mut machines: BTreeMap<&str, (f64, usize)> = BTreeMap::new();
    for row in rows {
        for &(bytes, us) in &row.points {
            let error = (row.predict(bytes, params) / us).ln().abs().min(1.0);
            let found = machines.entry(&row.on).or_default();
            *found = (found.0 + error, found.1 + 1);
        }
    }
    let count = machines.len().max(1) as f64;
    machines.into_values().map(|(sum, n)| sum / n as f64).sum::<f64>() / count
}

/// Every point, predicted by costs that were calibrated without its machine.
pub fn left_out(rows: &[Row], start: &Params) -> Vec<Point> {
    let mut machines: Vec<&str> = rows.iter().map(|r| r.on.as_str()).collect();
    machines.sort_unstable();
    machines.dedup();
    let mut points = Vec::new();
    for machine in machines {
        let others: Vec<&Row> = rows.iter().filter(|r| r.on != machine).collect();
        let params = fit(&others, start);
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

/// The costs that calibration moved, in the order of their names: name, before, after.
pub fn moved(before: &Params, after: &Params) -> Vec<(Cost, f64, f64)> {
    before.free().into_iter().map(|(cost, _)| (cost, before.get(cost), after.get(cost))).collect()
}
