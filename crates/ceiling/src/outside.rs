//! Steps that others or we measured and that nothing here was fitted to, each with its prediction and error.

use crate::budget::{Budget, Load};
use crate::links::{Fabric, Nccl, Style, Wire, nccl_us, simulate};
use crate::placement::Basis;
use crate::shape;
use crate::step::{AllReduce, Engine, StepTime, step_time};
use serde::Serialize;
use tombolo_collective::schedule::Schedule;
use tombolo_model::dummy::{self, Blueprint};
use tombolo_model::{Config, KvType, Program, Shard};
use tombolo_topology::pcie_gb_s;

/// A prediction beside what was measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outside {
    /// What ran where.
    pub what: &'static str,
    /// Who measured.
    pub source: &'static str,
    /// `tok/s` or `ms`.
    pub unit: &'static str,
    /// Measured, or published.
    pub measured: f64,
    /// Predicted.
    pub predicted: f64,
    /// `predicted / measured − 1`.
    pub error: f64,
    /// How it was predicted, and what was assumed.
    pub how: String,
}

/// An H200's and an RTX PRO 6000's memory, in GB/s, by their data sheets.
const H200_GB_S: f64 = 4800.0;
const PRO_6000_GB_S: f64 = 1792.0;

/// All of them.
pub fn predictions(basis: &Basis) -> Vec<Outside> {
    let mut found = others(basis);
    found.extend(chains(basis));
    found.extend(runs(basis));
    found
}

fn outside(
    what: &'static str,
    source: &'static str,
    unit: &'static str,
    measured: f64,
    predicted: f64,
    how: String,
) -> Outside {
    Outside { what, source, unit, measured, predicted, error: predicted / measured - 1.0, how }
}

/// Engines of others on eight RTX PRO 6000, taken for plain ones.
fn others(basis: &Basis) -> Vec<Outside> {
    let p = &basis.params;
    let port = pcie_gb_s(5, 16).unwrap_or(63.0);
    let (bytes, fused) = (12_288, Style { fused: true, ..Style::FENCED });
    let two_sockets = Fabric::regular(8, port, 0, 2);
    let switches = Fabric::regular(8, port, 4, 1);
    let schedule = |s: Result<Schedule, _>| s.expect("eight ranks are possible");
    let pulled = simulate(&schedule(Schedule::staged_pull(8)), &switches, bytes, fused, p).us;
    let islands = schedule(Schedule::islands(&two_sockets.islands()));
    let swapped = simulate(&islands, &two_sockets, bytes, Style::SENTINEL, p).us;
    let through_host = nccl_us(&two_sockets, bytes, Nccl::LlPinned, p);
    let glm = |name: &str, recipe: &str| {
        let recipe = shape::recipe(recipe).expect("a recipe of ours");
        shape::named(name).expect("a model of ours").blueprint(recipe)
    };
    let of = |model: &Blueprint, context, us: f64| plain(model, 8, context, PRO_6000_GB_S, us, basis);
    let ll = of(&glm("GLM-5", "ud-q4_k_xl"), 1024, through_host);
    let b12x = of(&glm("GLM-5.2", "bf16-q4"), 1024, pulled);
    let ipc = of(&glm("GLM-5", "bf16-q4"), 8192, swapped);
    let how = |time: &StepTime, us: f64, note: &str| {
        format!("a kernel per operation; all-reduce {us:.1} us of {:.2} ms; {note}", time.ms)
    };
    vec![
        outside(
            "vLLM, GLM-5 UD-Q4_K_XL, NCCL LL, 8x RTX PRO 6000 on two sockets",
            "the starting case",
            "tok/s",
            57.5,
            1e3 / ll.ms,
            how(&ll, through_host, "LL through host memory, as NCCL does beyond PXB"),
        ),
        outside(
            "vLLM + b12x, GLM-5.2 NVFP4, no speculation, 8x RTX PRO 6000",
            "rtx6kpro glm5.2_v20",
            "tok/s",
            88.0,
            1e3 / b12x.ms,
            how(&b12x, pulled, "experts in 4.5 bits, the rest BF16; two switches of four assumed"),
        ),
        outside(
            "SGLang + pcie_ipc, hidden 6144, 8k context, 8x SM120 on two sockets",
            "sglang 0.5.23",
            "ms",
            13.62,
            ipc.ms,
            how(&ipc, swapped, "taken for GLM-5 with experts in 4.5 bits, the rest BF16; its source does not say"),
        ),
    ]
}

/// A step of a model at a size, by an engine with a kernel per operation.
fn plain(model: &Blueprint, size: usize, context: usize, gb_s: f64, us: f64, basis: &Basis) -> StepTime {
    let gguf = model.open(dummy::SEED).expect("a shape of ours");
    let config = Config::from_gguf(&gguf).expect("a shape of ours");
    let program = Program::build(&gguf, &config, Shard { rank: 0, size }).expect("a size that is legal");
    let load = Load { sequences: 1, rows_each: 1, context, kv: KvType::F16, experts_whole: false };
    let budget = Budget::of(&program, &load);
    let reduce = AllReduce { by: String::new(), us, latency_us: us, figure: "predicted", today_us: None };
    step_time(&budget, &load, gb_s, None, &reduce, Engine::Plain, &basis.constants)
}

/// One of our all-reduces between two H200s, not fused.
fn between_two(wire: Wire, basis: &Basis) -> f64 {
    let fabric = Fabric::regular(2, pcie_gb_s(5, 16).unwrap_or(63.0), 0, 1).all_over(wire);
    let schedule = Schedule::one_shot(2).expect("two ranks are possible");
    simulate(&schedule, &fabric, 12_288, Style::LL16, &basis.params).us
}

/// Chains of kernels that only read, with real all-reduces in them: bytes over bandwidth, a constant per operation that
/// was measured in another run without all-reduces, and the simulated all-reduce.
fn chains(basis: &Basis) -> Vec<Outside> {
    let c = &basis.constants;
    let chain = |gb: f64, ops: f64, op_us: f64, reduces: f64, us: f64| {
        gb / (H200_GB_S * c.read_efficiency.value) * 1e3 + (ops * op_us + reduces * us) / 1e3
    };
    let (staged, launched) = (c.staged_op_us.value, c.plain_op_us.value);
    let (peer, host) = (between_two(Wire::Nvlink, basis), between_two(Wire::Pinned, basis));
    let source = "ours, two H200s";
    let how = |us: f64| format!("all-reduce {us:.2} us, simulated");
    vec![
        outside(
            "GLM-5 rank, 8 staged kernels a layer, NVLink",
            source,
            "ms",
            2.24,
            chain(6.4, 600.0, staged, 150.0, peer),
            how(peer),
        ),
        outside(
            "GLM-5 rank, 8 staged kernels a layer, pinned host",
            source,
            "ms",
            2.43,
            chain(6.4, 600.0, staged, 150.0, host),
            how(host),
        ),
        outside(
            "GLM-5 rank, 6 staged kernels a layer, NVLink",
            source,
            "ms",
            2.13,
            chain(6.4, 450.0, staged, 150.0, peer),
            how(peer),
        ),
        outside(
            "GLM-5 rank, 6 staged kernels a layer, pinned host",
            source,
            "ms",
            2.32,
            chain(6.4, 450.0, staged, 150.0, host),
            how(host),
        ),
        outside(
            "GLM-5 rank, 8 plain kernels a layer, NVLink",
            source,
            "ms",
            3.12,
            chain(6.4, 600.0, launched, 150.0, peer),
            how(peer),
        ),
        outside(
            "GLM-5 rank, 8 plain kernels a layer, pinned host",
            source,
            "ms",
            3.34,
            chain(6.4, 600.0, launched, 150.0, host),
            how(host),
        ),
        outside(
            "8B rank of two, 5 staged kernels, NVLink",
            source,
            "ms",
            0.84,
            chain(2.25, 160.0, staged, 64.0, peer),
            how(peer),
        ),
        outside(
            "8B rank of two, 5 staged kernels, pinned host",
            source,
            "ms",
            0.93,
            chain(2.25, 160.0, staged, 64.0, host),
            how(host),
        ),
    ]
}

/// Decoding by tombolo itself: plain launches of fused operations, so its dependent operations at the price of plain ones.
fn runs(basis: &Basis) -> Vec<Outside> {
    let gguf = dummy::Dense::LLAMA_8B.blueprint().open(dummy::SEED).expect("a shape of ours");
    let config = Config::from_gguf(&gguf).expect("a shape of ours");
    let rate = |size: usize, us: f64| {
        let program = Program::build(&gguf, &config, Shard { rank: 0, size }).expect("a size that is legal");
        let load = Load { sequences: 1, rows_each: 1, context: 640, kv: KvType::F16, experts_whole: false };
        let mut budget = Budget::of(&program, &load);
        budget.kernels = (budget.dependent_ops, 0);
        let reduce = AllReduce { by: String::new(), us, latency_us: us, figure: "predicted", today_us: None };
        1e3 / step_time(&budget, &load, H200_GB_S, None, &reduce, Engine::Plain, &basis.constants).ms
    };
    let (peer, host) = (between_two(Wire::Nvlink, basis), between_two(Wire::Pinned, basis));
    let how = || "dependent operations as plain kernels".to_string();
    let source = "ours, bench/results 2026-11-29";
    vec![
        outside("tombolo, 8B Q4_K, one H200", source, "tok/s", 515.8, rate(1, 0.0), how()),
        outside("tombolo, 8B Q4_K, two H200s, NVLink", source, "tok/s", 673.9, rate(2, peer), how()),
        outside("tombolo, 8B Q4_K, two H200s, pinned host", source, "tok/s", 639.4, rate(2, host), how()),
    ]
}
