//! No multicast: all-reduces that are fused with what follows are not possible for those who build them on it.

use super::{Severity, Verdict, evidence, gpu_list};
use crate::machine::Machine;

pub(super) fn judge(machine: &Machine) -> Option<Verdict> {
    if machine.len() < 2 {
        return None;
    }
    let without: Vec<usize> = (0..machine.len()).filter(|&g| machine.gpus[g].multicast == Some(false)).collect();
    let by_links = machine.fully_connected_by_nvlink() == Some(false);
    if without.is_empty() && !by_links {
        return None;
    }
    let mut facts = Vec::new();
    if by_links {
        let pcie = machine.pairs().find(|(_, _, class)| class.is_some_and(|c| !c.is_nvlink()));
        if let Some((a, b, Some(class))) = pcie {
            let fact = format!(
                "{} is {class}, and multicast needs NVSwitch",
                gpu_list(machine, &[a, b]).replace(", ", " to ")
            );
            facts.push(evidence(machine, fact, &[&format!("links[{a}]")]));
        }
    }
    if let Some(&gpu) = without.first() {
        let name = machine.gpus[gpu].name.clone().unwrap_or_else(|| "the card".into());
        let fact = format!("{}: {name} has none", gpu_list(machine, &without));
        facts.push(evidence(machine, fact, &[&format!("multicast[{gpu}]"), &format!("name[{gpu}]")]));
    }
    Some(Verdict {
        rule: "multicast",
        severity: Severity::Note,
        title: "no multicast: all-reduces fused by multicast (vLLM, TensorRT-LLM) and NCCL's NVLS are not possible".into(),
        evidence: facts,
        reason: "They let one store reach all GPUs at once, which only GPUs on an NVSwitch can do (compute capability 9.0 and up). \
                 vLLM's pass that fuses all-reduce with RMSNorm and its symmetric memory rest on the same."
            .into(),
        fix: vec![
            "nothing to set: tombolo fuses all-reduce, residual add and RMSNorm with plain stores and needs no multicast".into(),
        ],
    })
}
