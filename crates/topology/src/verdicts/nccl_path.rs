//! NCCL reaches a peer directly only as far as PXB, unless it is told otherwise.

use super::{Severity, Verdict, evidence, p2p_expected, pair};
use crate::link::LinkClass;
use crate::machine::Machine;

pub(super) fn judge(machine: &Machine) -> Option<Verdict> {
    // Where the driver withholds peer access, no variable of NCCL brings it back: another rule speaks of those pairs.
    let may: Vec<_> = machine.pairs().filter(|&(a, b, _)| p2p_expected(machine, a, b) != Some(false)).collect();
    let beyond: Vec<_> = may.iter().filter(|(_, _, class)| class.is_some_and(LinkClass::through_host)).collect();
    let &&(a, b, class) = beyond.first()?;
    let class = class.map(|c| c.to_string()).unwrap_or_default();
    let (all, near) = (may.len(), may.iter().filter(|(_, _, c)| c.is_some_and(|c| !c.through_host())).count());
    let reach = match (all, near) {
        (1, _) => "not between these two GPUs".to_string(),
        (_, 0) => format!("here for none of {all} pairs"),
        _ => format!("here for {near} of {all} pairs"),
    };
    let fact = match all {
        1 => format!("{} is {class}, farther than PXB", pair(machine, a, b)),
        _ => format!("{} of {all} pairs are farther than PXB, as {} ({class})", beyond.len(), pair(machine, a, b)),
    };
    let allowed = may.iter().all(|&(a, b, _)| machine.p2p_allowed(a, b) == Some(true));
    let proof = if allowed { "" } else { ", once `nvidia-smi topo -p2p r` says OK" };
    Some(Verdict {
        rule: "nccl-path",
        severity: Severity::Warning,
        title: format!("NCCL by default uses peer access up to PXB only: {reach}"),
        evidence: vec![evidence(machine, fact, &[&format!("links[{a}]")])],
        reason: "Where the way between two GPUs passes the processor (PHB, NODE, SYS), NCCL goes through host memory instead: one GPU \
                 writes there and the other reads it back, in every hop. (With two GPUs on an AMD processor it goes farther.) A figure \
                 taken without this variable measures that detour, not the links."
            .into(),
        fix: vec![
            format!("`export NCCL_P2P_LEVEL=SYS`{proof}; compare with `all_reduce_perf -b 8K -e 256K -f 2 -g {} -G 1`", machine.len()),
            "`NCCL_DEBUG=INFO` shows what it took: `via P2P/direct pointer` or `via SHM`".into(),
        ],
    })
}
