//! Cards of several kinds. Links of several widths are another rule's.

use super::{Severity, Verdict, evidence, gpu_list};
use crate::machine::{Gpu, Machine};
use std::collections::BTreeMap;

pub(super) fn judge(machine: &Machine) -> Option<Verdict> {
    // A GPU that a text leaves out is not another kind.
    let known = |field: fn(&Gpu) -> bool| machine.gpus.iter().all(field) || !machine.gpus.iter().any(field);
    if !known(|g| g.name.is_some()) || !known(|g| g.memory_bytes.is_some()) {
        return None;
    }
    let mut kinds: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (at, gpu) in machine.gpus.iter().enumerate() {
        let memory = gpu.memory_bytes.map(|b| format!(", {} GiB", b.saturating_add(1 << 29) >> 30)).unwrap_or_default();
        let name = gpu.name.clone().unwrap_or_else(|| "a card".into());
        kinds.entry(format!("{name}{memory}")).or_default().push(at);
    }
    if kinds.len() < 2 {
        return None;
    }
    let facts = kinds
        .iter()
        .map(|(kind, gpus)| {
            evidence(machine, format!("{}: {kind}", gpu_list(machine, gpus)), &[&format!("name[{}]", gpus[0])])
        })
        .collect();
    Some(Verdict {
        rule: "asymmetric",
        severity: Severity::Warning,
        title: format!("{} GPUs of {} kinds", machine.len(), kinds.len()),
        evidence: facts,
        reason: "Tensor parallelism gives every rank the same work and waits for the slowest in every layer: memory beyond the smallest \
                 card's and speed beyond the slowest's lie idle."
            .into(),
        fix: vec![
            "group equal cards, and give a group of its own to each kind (replicas or a draft model on the odd ones)".into(),
        ],
    })
}
