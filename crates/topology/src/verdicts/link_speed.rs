//! A PCIe link that runs at a lower generation than it could.

use super::{Severity, Verdict, evidence, gpu_list};
use crate::link::pcie_gb_s;
use crate::machine::{Gpu, Machine};

/// Performance states in which a GPU works. Idle ones let the link sleep.
const WORKING: u8 = 2;

pub(super) fn judge(machine: &Machine) -> Option<Verdict> {
    let of = |what: fn(&Gpu) -> bool| (0..machine.len()).filter(|&at| what(&machine.gpus[at])).collect::<Vec<usize>>();
    let down = of(|gpu| gpu.pcie.gen_now.zip(gpu.pcie.gen_max).is_some_and(|(now, max)| now < max));
    let capped = of(|gpu| gpu.pcie.gen_max.zip(gpu.pcie.gen_gpu).is_some_and(|(max, gpu)| max < gpu));
    let awake = |at: &usize| machine.gpus[*at].performance_state.is_some_and(|p| p <= WORKING);
    let (down_awake, down_idle): (Vec<usize>, Vec<usize>) = down.into_iter().partition(awake);
    let (severity, gpus, what) = match () {
        () if !down_awake.is_empty() => (Severity::Error, down_awake, "trained down while it works"),
        () if !capped.is_empty() => (Severity::Warning, capped, "held below what the card can do"),
        () if !down_idle.is_empty() => (Severity::Note, down_idle, "below its best now, perhaps asleep"),
        () => return None,
    };
    let at = *gpus.first()?;
    let pcie = machine.gpus[at].pcie;
    let rate = |g: Option<u8>| g.zip(pcie.width_now.or(pcie.width_max)).and_then(|(g, w)| pcie_gb_s(g, w));
    // What the link will carry under load: an idle one shows less, and a capped one wakes up to its cap only.
    let (runs, could) = match severity {
        Severity::Error => (pcie.gen_now, pcie.gen_max),
        Severity::Warning => (pcie.gen_max, pcie.gen_gpu),
        _ => (None, None),
    };
    let rates = match (rate(runs), rate(could)) {
        (Some(runs), Some(could)) if runs < could => format!(" ({runs:.1} of {could:.1} GB/s each way)"),
        _ => String::new(),
    };
    Some(Verdict {
        rule: "link-speed",
        severity,
        title: format!("{}: PCIe link {what}{rates}", gpu_list(machine, &gpus)),
        evidence: vec![evidence(
            machine,
            fact(&machine.gpus[at]),
            &[&format!("pcie[{at}]"), &format!("best PCIe generation[{at}]")],
        )],
        reason: reason(severity).into(),
        fix: fix(severity),
    })
}

/// `GPU3: generation 1 now, 3 at best in this slot, 5 for the card alone, state P8`.
fn fact(gpu: &Gpu) -> String {
    let pcie = gpu.pcie;
    let mut parts = Vec::new();
    parts.extend(pcie.gen_now.map(|g| format!("generation {g} now")));
    parts.extend(pcie.gen_max.map(|g| format!("generation {g} at best in this slot")));
    parts.extend(pcie.gen_gpu.map(|g| format!("{g} for the card alone")));
    parts.extend(gpu.performance_state.map(|p| format!("state P{p}")));
    format!("GPU{}: {}", gpu.index, parts.join(", "))
}

fn reason(severity: Severity) -> &'static str {
    match severity {
        Severity::Note => {
            "An idle GPU lets its link run at generation 1 or 2 to save power, and that is no fault. Only under load does the figure count."
        }
        Severity::Warning => {
            "The slot, the processor or the BIOS limits the link. Each generation less halves what it carries: prefill and loading feel \
             it in full."
        }
        _ => {
            "A link that does not hold its speed has a bad contact, riser or cable, or a slot that was set lower. Errors are mended by \
             sending again, which costs microseconds in the middle of an all-reduce; beyond that, data can be lost."
        }
    }
}

fn fix(severity: Severity) -> Vec<String> {
    let watch = "look under load: `nvidia-smi --query-gpu=index,pstate,pcie.link.gen.current,pcie.link.gen.max,pcie.link.width.current \
                 --format=csv -l 1`"
        .to_string();
    match severity {
        Severity::Note => vec![watch],
        Severity::Warning => vec![
            "BIOS: set the slot's speed to the card's generation instead of Auto, if the processor has it".into(),
            "risers and cables are made for a generation: one of the next lower kind caps the link".into(),
        ],
        _ => vec![
            watch,
            "reseat the card, try it without the riser, or fix the slot's generation one lower in the BIOS and compare"
                .into(),
            "`sudo lspci -vvv -s ADDRESS | grep -E 'LnkSta|CESta|UESta'` and `dmesg | grep -i aer` show errors".into(),
        ],
    }
}
