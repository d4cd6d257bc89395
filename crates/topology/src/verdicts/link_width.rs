//! A PCIe link with fewer lanes than the card has.

use super::{Severity, Verdict, evidence, gpu_list};
use crate::gpus;
use crate::link::pcie_gb_s;
use crate::machine::{Gpu, Machine};

/// Lanes that the card has, where that is known.
fn lanes(gpu: &Gpu) -> Option<u8> {
    let of_card = gpu.name.as_deref().and_then(gpus::facts).and_then(|cards| gpus::agreed(&cards, |c| c.pcie.1));
    of_card.or(gpu.pcie.width_max)
}

pub(super) fn judge(machine: &Machine) -> Option<Verdict> {
    let narrow = |&at: &usize| {
        let gpu = &machine.gpus[at];
        let (now, could) = (gpu.pcie.width_now.or(gpu.pcie.width_max), lanes(gpu));
        now.zip(could).is_some_and(|(now, could)| now < could)
    };
    let gpus: Vec<usize> = (0..machine.len()).filter(narrow).collect();
    let width = |at: usize| machine.gpus[at].pcie.width_now.or(machine.gpus[at].pcie.width_max).unwrap_or_default();
    let worst = *gpus.iter().min_by_key(|&&at| width(at))?;
    let (now, could) = (width(worst), lanes(&machine.gpus[worst])?);
    let pcie = &machine.gpus[worst].pcie;
    let rate = |w| {
        pcie.gen_max.or(pcie.gen_now).and_then(|g| pcie_gb_s(g, w)).map(|gb_s| format!(", {gb_s:.1} GB/s each way"))
    };
    let facts = gpus
        .iter()
        .take(4)
        .map(|&at| {
            let fact = format!(
                "GPU{} runs x{} of x{}",
                machine.gpus[at].index,
                width(at),
                lanes(&machine.gpus[at]).unwrap_or_default()
            );
            evidence(machine, fact, &[&format!("pcie[{at}]"), &format!("best PCIe width[{at}]")])
        })
        .collect();
    let lanes = "Lanes do not sleep: a link shows fewer because the slot has fewer, the BIOS has split it, or contacts or a riser are bad.";
    let wide = rate(could).map(|r| format!("; x{could} would be {}", r.trim_start_matches(", "))).unwrap_or_default();
    let nvlink = machine.len() > 1 && machine.fully_connected_by_nvlink() == Some(true);
    let reason = match (machine.len(), nvlink) {
        (1, _) => format!("{lanes} With one GPU only loading and what is kept in host memory pass it{wide}."),
        (_, true) => format!(
            "{lanes} All-reduces go over NVLink here and do not feel it; only what comes from the host does: loading, and layers or \
             experts kept in host memory{wide}."
        ),
        _ => format!(
            "{lanes} In a group the narrowest link sets the pace of every large transfer (prefill's all-reduces, loading){wide}; decode's \
             small ones feel it less."
        ),
    };
    Some(Verdict {
        rule: "link-width",
        severity: if nvlink { Severity::Note } else { Severity::Warning },
        title: format!("{}: x{now} instead of x{could}{}", gpu_list(machine, &gpus), rate(now).unwrap_or_default()),
        evidence: facts,
        reason,
        fix: vec![
            "look up in the board's manual which slots have 16 lanes from the processor and how they share; `sudo dmidecode -t slot` lists them".into(),
            "BIOS: bifurcation of the slot to x16 (not x8x8 or x4x4x4x4)".into(),
            "reseat the card; try it without the riser".into(),
        ],
    })
}
