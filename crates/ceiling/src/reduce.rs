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
        (schedule.kind, AllReduce { by, us: found.us, latency_us: found.latency_us, figure, today_us: None }, runs)
    };
    let mut all: Vec<_> = schedules.into_iter().flatten().map(of).collect();
    all.sort_by(|a, b| a.1.us.total_cmp(&b.1.us));
    all
}

/// What was measured, where it was: between two sizes in proportion, below the smallest as the smallest. Beyond the
/// largest nothing is known: its schedule may no longer be the right one.
pub fn measured(fabric: &Fabric, bytes: usize) -> Option<AllReduce> {
    let rows = &fabric.measured;
    let bytes = bytes as u64;
    let above = rows.iter().find(|row| row.bytes >= bytes)?;
    let below = rows.iter().rev().find(|row| row.bytes <= bytes).unwrap_or(above);
    let share = (bytes.saturating_sub(below.bytes)) as f64 / (above.bytes - below.bytes).max(1) as f64;
    let us = below.us + share * (above.us - below.us);
    let over = if above.transport == "host" { "pinned host memory" } else { "peer memory" };
    let latency_us = rows.first()?.us.min(us);
    Some(AllReduce { by: format!("one-shot through {over}"), us, latency_us, figure: "measured", today_us: None })
}

/// What was measured, or the quickest of [`candidates`]; nothing to do for one rank.
pub fn best(fabric: &Fabric, bytes: usize, params: &Params) -> AllReduce {
    let none = AllReduce { by: "one rank".into(), us: 0.0, latency_us: 0.0, figure: "predicted", today_us: None };
    if fabric.ranks() < 2 {
        return none;
    }
    if let Some(found) = measured(fabric, bytes) {
        return found;
    }
    let all = candidates(fabric, bytes, params);
    let today = all.iter().find(|(.., runs)| *runs).map(|(_, found, _)| found.us);
    match (all.into_iter().next(), today) {
        (Some((_, found, false)), Some(us)) => {
            AllReduce { by: format!("{}, whose GPU kernel is still to come", found.by), today_us: Some(us), ..found }
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
    AllReduce { by: by.into(), us: us(bytes), latency_us: us(16.min(bytes)), figure: "predicted", today_us: None }
}

/// Whether some ranks must go through host memory.
pub fn through_host(fabric: &Fabric) -> bool {
    fabric.wire.iter().flatten().any(|&w| w == Wire::Pinned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tombolo_topology::MeasuredAllReduce;

    #[test]
    fn what_was_measured_is_taken_between_its_sizes_only() {
        let mut fabric = Fabric::regular(2, 63.0, 0, 1);
        let row = |bytes, us| MeasuredAllReduce {
            transport: "host".into(),
            what: "all_reduce_add_norm".into(),
            bytes,
            ranks: 2,
            us,
        };
        fabric.measured = vec![row(1000, 3.0), row(3000, 5.0)];
        let us = |bytes| measured(&fabric, bytes).map(|found| (found.us, found.latency_us));
        assert_eq!(us(10), Some((3.0, 3.0)));
        assert_eq!(us(2000), Some((4.0, 3.0)));
        assert_eq!(us(3000), Some((5.0, 3.0)));
        assert_eq!(us(3001), None);
        let params = Params::stored();
        assert_eq!(best(&fabric, 2000, &params).figure, "measured");
        assert_eq!(best(&fabric, 3001, &params).figure, "predicted");
    }
}
