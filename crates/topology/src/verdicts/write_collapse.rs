//! Stores from several GPUs of one PCIe switch to GPUs behind others can collapse to a few GB/s.

use super::{Severity, Verdict, evidence, gpu_list, p2p_possible};
use crate::machine::Machine;

pub(super) fn judge(machine: &Machine) -> Option<Verdict> {
    let uplinks = machine.uplinks();
    // Of nested switches the outermost counts.
    let outer: Vec<_> = uplinks
        .iter()
        .filter(|u| !uplinks.iter().any(|o| o.gpus.len() > u.gpus.len() && u.gpus.iter().all(|g| o.gpus.contains(g))))
        .collect();
    let below: usize = outer.iter().map(|u| u.gpus.len()).sum();
    let roots = outer.len() + machine.len() - below;
    let first = outer.first()?;
    // One switch alone has nothing to store to behind others, and without peer access nobody stores to anybody.
    if outer.len() < 2 || !p2p_possible(machine) {
        return None;
    }
    let shown: Vec<String> = outer.iter().map(|u| gpu_list(machine, &u.gpus)).collect();
    let many = roots >= 3;
    let facts = vec![evidence(
        machine,
        format!("below one uplink each: {}; {roots} ways to the processor in all", shown.join(" | ")),
        &[&format!("links[{}]", first.gpus[0]), &format!("path[{}]", first.gpus[0])],
    )];
    Some(Verdict {
        rule: "write-collapse",
        severity: if many { Severity::Warning } else { Severity::Note },
        title: "stores between PCIe switches may collapse, and GPUs share uplinks".into(),
        evidence: facts,
        reason: format!(
            "GPUs below one switch share its link to the processor. Worse, on some switches two or more GPUs that store to GPUs behind two \
             or more other roots fall to 2.7 GB/s together (Broadcom PEX890xx; Microchip from four GPUs a switch, 7 GB/s a pair); \
             loads are not hit. The shape of this machine {}. No setting cures it; with `iommu=on` it hides behind other losses.",
            if many { "permits it" } else { "has fewer roots than the reports name" }
        ),
        fix: vec![
            "measure stores of all GPUs at once, not of one pair: `nvbandwidth -t all_to_one_write_sm`, and beside it the same with reads".into(),
            "where it shows: a schedule in which each GPU sends one stream at a time, or pulls. vLLM, SGLang and NCCL do not choose by this".into(),
        ],
    })
}
