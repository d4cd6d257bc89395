//! Cards of several kinds or with several kinds of links.

use super::{Severity, Verdict, evidence, gpu_list};
use crate::machine::Machine;
use std::collections::BTreeMap;

pub(super) fn judge(machine: &Machine) -> Option<Verdict> {
    let mut kinds: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (at, gpu) in machine.gpus.iter().enumerate() {
        let rate = gpu.pcie.gb_s().map(|r| format!(", PCIe {r:.1} GB/s")).unwrap_or_default();
        let memory = gpu.memory_bytes.map(|b| format!(", {} GiB", (b + (1 << 29)) >> 30)).unwrap_or_default();
        let name = gpu.name.clone().unwrap_or_else(|| "a card".into());
        kinds.entry(format!("{name}{memory}{rate}")).or_default().push(at);
    }
    // A GPU that a text leaves out is not another kind.
    let known =
        |field: fn(&crate::machine::Gpu) -> bool| machine.gpus.iter().all(field) || !machine.gpus.iter().any(field);
    if kinds.len() < 2 || !known(|g| g.name.is_some()) || !known(|g| g.pcie.gb_s().is_some()) {
        return None;
    }
    let facts = kinds
        .iter()
        .map(|(kind, gpus)| {
            evidence(machine, format!("{}: {kind}", gpu_list(machine, gpus)), &[&format!("name[{}]", gpus[0])])
        })
        .collect();
    let names: std::collections::BTreeSet<_> = machine.gpus.iter().map(|g| &g.name).collect();
    Some(Verdict {
        rule: "asymmetric",
        severity: if names.len() > 1 { Severity::Warning } else { Severity::Note },
        title: format!("{} GPUs of {} kinds", machine.len(), kinds.len()),
        evidence: facts,
        reason: "Tensor parallelism gives every rank the same work and waits for the slowest in every layer: memory beyond the smallest \
                 card's and speed beyond the slowest's lie idle."
            .into(),
        fix: vec![
            "group equal cards, and give a group of its own to each kind (replicas or a draft model on the odd ones)".into(),
            "put all cards on links of the same width before anything else".into(),
        ],
    })
}
