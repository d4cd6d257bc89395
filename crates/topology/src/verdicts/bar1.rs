//! A window into the card's memory (BAR1) that is smaller than the memory.

use super::{Severity, Verdict, evidence, gpu_list};
use crate::machine::Machine;

pub(super) fn judge(machine: &Machine) -> Option<Verdict> {
    let small = |&at: &usize| {
        let gpu = &machine.gpus[at];
        gpu.bar1_bytes.zip(gpu.memory_bytes).is_some_and(|(bar, memory)| bar < memory)
    };
    let gpus: Vec<usize> = (0..machine.len()).filter(small).collect();
    let at = *gpus.first()?;
    let gpu = &machine.gpus[at];
    let mib = |bytes: Option<u64>| bytes.unwrap_or_default() >> 20;
    let fact = format!("GPU{}: BAR1 {} MiB, memory {} MiB", gpu.index, mib(gpu.bar1_bytes), mib(gpu.memory_bytes));
    let several = machine.len() > 1;
    Some(Verdict {
        rule: "bar1",
        severity: if several { Severity::Warning } else { Severity::Note },
        title: format!("{}: BAR1 is smaller than the memory", gpu_list(machine, &gpus)),
        evidence: vec![evidence(machine, fact, &[&format!("BAR1[{at}]")])],
        reason: "Others reach a GPU's memory through this window. With 256 MiB, peer access that maps the whole memory (the modified \
                 drivers for GeForce do) cannot work, and the host writes through a keyhole."
            .into(),
        fix: vec![
            "BIOS: Above 4G Decoding on, Resizable BAR on, CSM off".into(),
            "then `nvidia-smi -q -d MEMORY | grep -A1 BAR1` should show at least the memory's size".into(),
        ],
    })
}
