//! A power limit below the one that the card comes with.

use super::{Severity, Verdict, evidence, gpu_list};
use crate::machine::Machine;

/// Limits this much below the card's own count as lowered.
const LOWERED: f64 = 0.95;

pub(super) fn judge(machine: &Machine) -> Option<Verdict> {
    let lowered = |&at: &usize| {
        let gpu = &machine.gpus[at];
        gpu.power_limit_w.zip(gpu.power_default_w).is_some_and(|(limit, own)| limit < own * LOWERED)
    };
    let gpus: Vec<usize> = (0..machine.len()).filter(lowered).collect();
    let at = *gpus.first()?;
    let gpu = &machine.gpus[at];
    let (limit, own) = (gpu.power_limit_w?, gpu.power_default_w?);
    let fact = format!("GPU{}: {limit:.0} W of {own:.0} W", gpu.index);
    Some(Verdict {
        rule: "power",
        severity: Severity::Note,
        title: format!("{}: power limited to {limit:.0} of {own:.0} W", gpu_list(machine, &gpus)),
        evidence: vec![evidence(machine, fact, &[&format!("power[{at}]")])],
        reason: "Decode for one user reads memory and seldom reaches the limit; prefill and large batches compute, and lose clock in \
                 proportion. Different limits on cards of one group make the quicker wait for the slower."
            .into(),
        fix: vec![format!("if it is not on purpose: `sudo nvidia-smi -pl {own:.0}`"), "compare benchmarks at one limit only".into()],
    })
}
