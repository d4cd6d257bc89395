//! NCCL reaches a peer directly only as far as PXB, unless it is told otherwise.

use super::{Severity, Verdict, evidence, gpu_list, p2p_possible};
use crate::link::LinkClass;
use crate::machine::Machine;

pub(super) fn judge(machine: &Machine) -> Option<Verdict> {
    let beyond: Vec<_> = machine.pairs().filter(|(_, _, class)| class.is_some_and(LinkClass::through_host)).collect();
    let (a, b, class) = *beyond.first()?;
    if !p2p_possible(machine) {
        return None;
    }

    let all = machine.pairs().count();
    let reach = match all - beyond.len() {
        0 => format!("none of {all} pairs"),
        near => format!("{near} of {all} pairs"),
    };
    let fact = format!(
        "{} of {all} pairs are farther than PXB, as {} ({})",
        beyond.len(),
        gpu_list(machine, &[a, b]).replace(", ", " to "),
        class.map(|c| c.to_string()).unwrap_or_default()
    );
    let allowed = machine.pairs().all(|(a, b, _)| machine.p2p_allowed(a, b) == Some(true));
    let proof = if allowed { "" } else { ", once `nvidia-smi topo -p2p r` says OK" };
    Some(Verdict {
        rule: "nccl-path",
        severity: Severity::Warning,
        title: format!("NCCL by default uses peer access up to PXB only: here for {reach}"),
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
