//! GPUs on several NUMA nodes.

use super::{Severity, Verdict, evidence, gpu_list};
use crate::machine::Machine;

pub(super) fn judge(machine: &Machine) -> Option<Verdict> {
    let islands = machine.islands()?;
    let (a, b, _) = machine.pairs().find(|(_, _, class)| class.is_some_and(|c| c.crosses_nodes()))?;
    let shown: Vec<String> = islands.iter().map(|i| gpu_list(machine, i)).collect();
    let crossing = machine.pairs().filter(|(_, _, class)| class.is_some_and(|c| c.crosses_nodes())).count();
    let mut facts = vec![evidence(
        machine,
        match crossing - 1 {
            0 => format!("{} is SYS", gpu_list(machine, &[a, b]).replace(", ", " to ")),
            others => format!("{} is SYS, as are {others} more", gpu_list(machine, &[a, b]).replace(", ", " to ")),
        },
        &[&format!("links[{a}]")],
    )];
    // Ranks in the order of GPUs go to and fro between islands if one island's numbers are no run.
    let mixed = islands.iter().any(|i| i.windows(2).any(|w| w[1] != w[0] + 1));
    if mixed {
        facts.push(evidence(machine, format!("the islands' numbers interleave: {}", shown.join(" and ")), &[]));
    }
    let mut fix = vec![
        format!(
            "keep what talks most inside an island: tensor parallelism over {} and one replica on each, where the model fits",
            islands.iter().map(Vec::len).max().unwrap_or(1)
        ),
        "in one group over all islands, reduce within each and exchange between pairs only; NCCL's ring \
         and vLLM's one-shot do not"
            .into(),
        "if the machine has one socket, its BIOS splits it: `NPS1` (AMD), SNC off (Intel)".into(),
    ];
    if mixed {
        let order: Vec<String> = islands.iter().flatten().map(|&g| machine.gpus[g].index.to_string()).collect();
        fix.insert(0, format!("number ranks island by island: `CUDA_VISIBLE_DEVICES={}`", order.join(",")));
    }
    Some(Verdict {
        rule: "sockets",
        severity: Severity::Warning,
        title: format!("{} islands: {} GPUs on different NUMA nodes", islands.len(), machine.len()),
        evidence: facts,
        reason: format!(
            "{} are islands: between them every byte crosses the processors' interconnect, 1.1 to 1.4 µs a way where \
             the same node takes 0.7 to 1.1, at 39 to 51 GB/s where it has 53 to 56, and all pairs share it. A flat all-reduce on \
             eight GPUs sends sixteen messages across at once each way: on one such board 8 KB took 64 µs, on a machine with one \
             socket 9 µs.",
            shown.join(" and ")
        ),
        fix,
    })
}
