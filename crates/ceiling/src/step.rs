//! The least time of a step: a budget over a machine, term by term.

use crate::budget::{Budget, Load};
use crate::constants::Constants;
use serde::Serialize;

/// Whose step it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Engine {
    /// Everything fused that can be, and weights on chip before their input comes: the ceiling.
    Ceiling,
    /// A kernel for every operation, each started when the one before has ended: what engines without that do.
    Plain,
}

/// An all-reduce of one size on one machine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AllReduce {
    /// How it is done.
    pub by: String,
    /// Of one call, in microseconds.
    pub us: f64,
    /// What stays of it for the smallest message.
    pub latency_us: f64,
    /// `measured` or `predicted`.
    pub figure: &'static str,
    /// With the quickest schedule that there is a GPU kernel for, where that is another one, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub today_us: Option<f64>,
}

/// What one thing costs in a step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Term {
    /// Which thing.
    pub name: &'static str,
    /// In milliseconds.
    pub ms: f64,
    /// Bytes that it moves, on one rank.
    pub bytes: f64,
    /// The arithmetic, in a line.
    pub how: String,
}

/// A step's terms, which add up.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StepTime {
    /// Largest things are not first: the order is that of the list in [`step_time`].
    pub terms: Vec<Term>,
    /// Their sum, in milliseconds.
    pub ms: f64,
}

/// Names of the terms.
pub const WEIGHTS: &str = "weights";
/// Keys and values.
pub const KV: &str = "KV cache";
/// Keys of the indexer.
pub const INDEXER: &str = "indexer";
/// Arithmetic that takes longer than reading the weights.
pub const ARITHMETIC: &str = "arithmetic";
/// Of all-reduces, what does not depend on the size.
pub const AR_LATENCY: &str = "all-reduce latency";
/// Of all-reduces, what does.
pub const AR_WIRE: &str = "all-reduce wire";
/// Launches and waits of dependent operations.
pub const DEPENDENCY: &str = "launch and dependency";
/// Candidates, gathered and drawn from.
pub const SAMPLING: &str = "sampling";
/// What the GPUs wait for the host.
pub const HOST: &str = "host";

/// The sum of: weights, caches and indexer keys at the bandwidth that reading reaches; all-reduces; what an operation
/// costs that waits for another (gpu-floor measurements: the time of a chain is bytes over bandwidth plus a constant per
/// operation); sampling, as one more all-reduce's latency and two operations. The host costs nothing: a step's tokens are
/// on the device when the next begins. `peak_tflops`: of matrix products, where arithmetic may be what bounds.
pub fn step_time(
    budget: &Budget,
    load: &Load,
    memory_gb_s: f64,
    peak_tflops: Option<f64>,
    all_reduce: &AllReduce,
    engine: Engine,
    c: &Constants,
) -> StepTime {
    let read = memory_gb_s * c.read_efficiency.value;
    let reading = |name, bytes: f64| Term {
        name,
        ms: bytes / (read * 1e6),
        bytes,
        how: format!("{:.2} GB / ({memory_gb_s:.0} GB/s x {:.2})", bytes / 1e9, c.read_efficiency.value),
    };
    let mut terms =
        vec![reading(WEIGHTS, budget.weight_bytes), reading(KV, budget.kv_bytes), reading(INDEXER, budget.index_bytes)];
    if let Some(tflops) = peak_tflops {
        let ms = budget.flops / (tflops * c.prefill_efficiency.value * 1e9);
        let beyond = (ms - terms.iter().map(|t| t.ms).sum::<f64>()).max(0.0);
        let how = format!(
            "{:.2} TFLOP / ({tflops:.0} TFLOP/s x {:.2}), beyond reading",
            budget.flops / 1e12,
            c.prefill_efficiency.value
        );
        terms.push(Term { name: ARITHMETIC, ms: beyond, bytes: 0.0, how });
    }
    let calls = budget.all_reduces as f64;
    let wire_us = (all_reduce.us - all_reduce.latency_us).max(0.0);
    let split = load.rows();
    let reduces = |name, us: f64, bytes: f64| Term {
        name,
        ms: calls * us / 1e3,
        bytes,
        how: format!("{calls} calls x {us:.2} us ({}, {}, {split} rows)", all_reduce.by, all_reduce.figure),
    };
    terms.push(reduces(AR_LATENCY, all_reduce.us - wire_us, 0.0));
    terms.push(reduces(AR_WIRE, wire_us, calls * budget.all_reduce_bytes as f64));
    terms.push(dependency(budget, engine, c));
    let one = if engine == Engine::Ceiling { c.staged_op_us.value } else { c.plain_op_us.value };
    let how = format!("2 operations x {one:.2} us + a gather, {:.2} us", all_reduce.latency_us);
    terms.push(Term { name: SAMPLING, ms: (2.0 * one + all_reduce.latency_us) / 1e3, bytes: 0.0, how });
    let how = "the next step starts from the device's own token".to_string();
    terms.push(Term { name: HOST, ms: 0.0, bytes: 0.0, how });
    let ms = terms.iter().map(|t| t.ms).sum();
    StepTime { terms, ms }
}

fn dependency(budget: &Budget, engine: Engine, c: &Constants) -> Term {
    let (us, how) = match engine {
        Engine::Ceiling => {
            let (ops, us) = (budget.dependent_ops as f64, c.staged_op_us.value);
            (ops * us, format!("{ops} dependent operations x {us:.2} us"))
        }
        Engine::Plain => {
            let (heavy, light) = budget.kernels;
            let (a, b) = (c.plain_op_us.value, c.light_op_us.value);
            (heavy as f64 * a + light as f64 * b, format!("{heavy} kernels x {a:.2} us + {light} x {b:.2} us"))
        }
    };
    Term { name: DEPENDENCY, ms: us / 1e3, bytes: 0.0, how }
}

impl StepTime {
    /// A term's milliseconds.
    pub fn of(&self, name: &str) -> f64 {
        self.terms.iter().filter(|t| t.name == name).map(|t| t.ms).sum()
    }

    /// Both parts of the all-reduces.
    pub fn all_reduce_ms(&self) -> f64 {
        self.of(AR_LATENCY) + self.of(AR_WIRE)
    }

    /// The term that costs most.
    pub fn binding(&self) -> &'static str {
        self.terms.iter().max_by(|a, b| a.ms.total_cmp(&b.ms)).map_or(WEIGHTS, |t| t.name)
    }
}
