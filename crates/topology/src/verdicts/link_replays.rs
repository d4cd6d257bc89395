//! Packets that a PCIe link had to send again.

use super::{Severity, Verdict, evidence, gpu_list};
use crate::machine::Machine;

/// So many are worth a look. The count has no time: it runs since the driver was loaded.
const REPLAYS: u64 = 100;

pub(super) fn judge(machine: &Machine) -> Option<Verdict> {
    let count = |at: usize| machine.gpus[at].pcie.replays.unwrap_or(0);
    let gpus: Vec<usize> = (0..machine.len()).filter(|&at| count(at) >= REPLAYS).collect();
    let worst = *gpus.iter().max_by_key(|&&at| count(at))?;
    let facts = gpus.iter().take(4).map(|&at| {
        evidence(machine, format!("GPU{}: {} replays", machine.gpus[at].index, count(at)), &[&format!("pcie[{at}]")])
    });
    Some(Verdict {
        rule: "link-replays",
        severity: Severity::Note,
        title: format!("{}: the PCIe link has sent packets again, {} at the most", gpu_list(machine, &gpus), count(worst)),
        evidence: facts.collect(),
        reason: "Each was mended by sending again, which costs microseconds. The count runs since the driver was loaded: over months it is \
                 nothing, within an hour of work it is a bad contact, riser or cable."
            .into(),
        fix: vec![
            "read it twice, with an hour of work between: `nvidia-smi -q -d PCIE | grep -i replay` (older drivers: `nvidia-smi -q`)".into(),
            "if it grows: reseat the card, try it without the riser; `dmesg | grep -i aer` shows errors that were not mended".into(),
        ],
    })
}
