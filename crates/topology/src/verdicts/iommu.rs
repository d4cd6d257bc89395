//! An IOMMU that translates what devices send each other.

use super::{Severity, Verdict, evidence, p2p_possible};
use crate::machine::{Iommu, Machine};

pub(super) fn judge(machine: &Machine) -> Option<Verdict> {
    if machine.host.iommu? != Iommu::Translated || machine.len() < 2 {
        return None;
    }
    let peers = p2p_possible(machine);
    Some(Verdict {
        rule: "iommu",
        severity: if peers { Severity::Error } else { Severity::Note },
        title: "the IOMMU translates device addresses".into(),
        evidence: vec![evidence(machine, "the GPUs' IOMMU groups are of a translating kind (DMA)", &["iommu"])],
        reason: "Stores from one GPU to another then go up to the root to be translated: slower by a seventh at best; lost, wrong or \
                 hanging at worst, without a message. Silent corruption of copies between GPUs and hanging NCCL runs have been \
                 traced to it again and again."
            .into(),
        fix: vec![
            "boot with `iommu=pt` (AMD: `amd_iommu=on iommu=pt`, Intel: `intel_iommu=on iommu=pt`): devices keep their own addresses".into(),
            "or switch the IOMMU off in the BIOS (VT-d, AMD IOMMU) if no virtual machine needs it".into(),
        ],
    })
}
