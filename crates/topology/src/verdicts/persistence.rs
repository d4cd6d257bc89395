//! A driver that is unloaded whenever nobody uses the GPUs.

use super::{Severity, Verdict, evidence, gpu_list};
use crate::machine::Machine;

pub(super) fn judge(machine: &Machine) -> Option<Verdict> {
    let gpus: Vec<usize> = (0..machine.len()).filter(|&at| machine.gpus[at].persistence == Some(false)).collect();
    let at = *gpus.first()?;
    Some(Verdict {
        rule: "persistence",
        severity: Severity::Note,
        title: format!("{}: persistence mode is off", gpu_list(machine, &gpus)),
        evidence: vec![evidence(machine, format!("GPU{}: Off", machine.gpus[at].index), &[&format!("persistence[{at}]")])],
        reason: "Each start then initialises the GPUs anew, seconds for each, and settings such as a power limit are forgotten in \
                 between."
            .into(),
        fix: vec!["`sudo systemctl enable --now nvidia-persistenced`, or `sudo nvidia-smi -pm 1` until the next boot".into()],
    })
}
