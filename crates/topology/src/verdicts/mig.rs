//! GPUs that are cut into instances.

use super::{Severity, Verdict, evidence, gpu_list};
use crate::machine::Machine;

pub(super) fn judge(machine: &Machine) -> Option<Verdict> {
    let gpus: Vec<usize> = (0..machine.len()).filter(|&at| machine.gpus[at].mig == Some(true)).collect();
    let at = *gpus.first()?;
    Some(Verdict {
        rule: "mig",
        severity: Severity::Warning,
        title: format!("{}: cut into instances (MIG)", gpu_list(machine, &gpus)),
        evidence: vec![evidence(machine, "MIG mode is on", &[&format!("mig[{at}]")])],
        reason: "An instance has a part of the memory and its bandwidth, and no peer access: tensor parallelism over instances goes \
                 through host memory, NVLink or not."
            .into(),
        fix: vec!["`sudo nvidia-smi -mig 0` on the GPUs that are to work together".into()],
    })
}
