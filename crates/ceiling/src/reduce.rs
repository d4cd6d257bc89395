//! Which all-reduce a machine should use for a message, by simulation, and what it would take.

use crate::links::{Fabric, Nccl, Params, Style, Wire, nccl_us, simulate};
use crate::step::AllReduce;
use tombolo_collective::schedule::{Kind, Schedule};

/// How our kernels carry schedules out: flags in 16-byte lines, fused with add and norm.
pub const OURS: Style = Style { fused: true, ..Style::LL16 };

/// Every schedule that these links can be given, quickest first. `runs`: kernels for it exist.
pub fn candidates(fabric: &Fabric, bytes: usize, params: &Params) -> Vec<(Kind, AllReduce, bool)> {
    let ranks = fabric.ranks();
    let islands = fabric.islands();
    let mut schedules = vec![Schedule::one_shot(ranks), Schedule::two_shot(ranks)];
    if !through_host(fabric) {
        schedules.push(Schedule::staged_pull(ranks));
    }
    if islands.len() > 1 && islands.iter().any(|island| island.len() > 1) {
        schedules.push(Schedule::islands(&islands));
    }
    let of = |schedule: Schedule| {
        // What is read by others cannot carry its flags, nor can megabytes afford to.
        let large = bytes > 128 << 10;
        let style = match schedule.kind {
            Kind::StagedPull => Style { fused: true, ..Style::FENCED },
            _ if large => Style { fused: true, blocks: 32, ..Style::SENTINEL },
            _ => OURS,
        };
        let found = simulate(&schedule, fabric, bytes, style, params);
        let over = if through_host(fabric) { "pinned host memory" } else { "peer memory" };
        let by = format!("{} through {over}", schedule.kind.name());
        let figure = "predicted";
        let runs = schedule.kind == Kind::OneShot;
        (schedule.kind, AllReduce { by, us: found.us, latency_us: found.latency_us, figure }, runs)
    };
    let mut all: Vec<_> = schedules.into_iter().flatten().map(of).collect();
    all.sort_by(|a, b| a.1.us.total_cmp(&b.1.us));
    all
}

/// The quickest of [`candidates`]; nothing to do for one rank.
pub fn best(fabric: &Fabric, bytes: usize, params: &Params) -> AllReduce {
    let none = AllReduce { by: "one rank".into(), us: 0.0, latency_us: 0.0, figure: "predicted" };
    if fabric.ranks() < 2 {
        return none;
    }
    let all = candidates(fabric, bytes, params);
    let today = all.iter().find(|(.., runs)| *runs).map(|(_, found, _)| found.us);
    match (all.into_iter().next(), today) {
        (Some((_, found, false)), Some(us)) => {
            AllReduce { by: format!("{}, whose GPU kernel is still to come; one-shot {us:.2} us", found.by), ..found }
        }
        (Some((_, found, _)), _) => found,
        _ => none,
    }
}

/// What NCCL would take, by its own model.
pub fn nccl(fabric: &Fabric, bytes: usize, nccl: Nccl, params: &Params) -> AllReduce {
    let by = match nccl {
        Nccl::Ll => "NCCL LL through peer memory",
        Nccl::LlPinned => "NCCL LL through host memory",
        Nccl::Simple => "NCCL Simple",
    };
    let us = |bytes| nccl_us(fabric, bytes, nccl, params);
    AllReduce { by: by.into(), us: us(bytes), latency_us: us(16.min(bytes)), figure: "predicted" }
}

/// Whether some ranks must go through host memory.
pub fn through_host(fabric: &Fabric) -> bool {
    fabric.wire.iter().flatten().any(|&w| w == Wire::Pinned)
}
