//! Neither reserved nor transparent huge pages.

use super::{Severity, Verdict, evidence};
use crate::machine::Machine;

pub(super) fn judge(machine: &Machine) -> Option<Verdict> {
    let reserved = machine.host.hugepages_bytes.unwrap_or(0);
    if machine.host.transparent_hugepages? || reserved > 0 {
        return None;
    }
    Some(Verdict {
        rule: "hugepages",
        severity: Severity::Note,
        title: "no huge pages".into(),
        evidence: vec![evidence(machine, "transparent huge pages are off and none are reserved", &["hugepages"])],
        reason: "Weights that the processor reads then cost a page-table walk every 4 KiB. Weights on GPUs do not feel it, apart from \
                 loading."
            .into(),
        fix: vec!["`echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled`".into()],
    })
}
