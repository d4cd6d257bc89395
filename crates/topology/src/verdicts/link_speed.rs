//! A PCIe link that runs at a lower generation than it could.

use super::{Severity, Verdict, evidence, gpu_list};
use crate::link::pcie_gb_s;
use crate::machine::{Gpu, Machine};

/// Performance states in which a GPU works. Idle ones let the link sleep.
const WORKING: u8 = 2;
/// Packets sent again, from which on a link is suspect.
const REPLAYS: u64 = 100;

pub(super) fn judge(machine: &Machine) -> Option<Verdict> {
    let of = |what: fn(&Gpu) -> bool| (0..machine.len()).filter(|&at| what(&machine.gpus[at])).collect::<Vec<usize>>();
    let below = |gpu: &Gpu| gpu.pcie.gen_now.zip(gpu.pcie.gen_max).is_some_and(|(now, max)| now < max);
    let capped = of(|gpu| gpu.pcie.gen_max.zip(gpu.pcie.gen_gpu).is_some_and(|(max, gpu)| max < gpu));
    let replays = of(|gpu| gpu.pcie.replays.is_some_and(|n| n >= REPLAYS));
    let down: Vec<usize> = (0..machine.len()).filter(|&at| below(&machine.gpus[at])).collect();
    let awake = |at: &usize| machine.gpus[*at].performance_state.is_some_and(|p| p <= WORKING);
    let (down_awake, down_idle): (Vec<usize>, Vec<usize>) = down.into_iter().partition(awake);
    let (severity, gpus, what) = match () {
        () if !down_awake.is_empty() => (Severity::Error, down_awake, "trained down while it works"),
        () if !replays.is_empty() => (Severity::Error, replays, "sends packets again"),
        () if !capped.is_empty() => (Severity::Warning, capped, "held below what the card can do"),
        () if !down_idle.is_empty() => (Severity::Note, down_idle, "below its best now, perhaps asleep"),
        () => return None,
    };
    let at = *gpus.first()?;
    let pcie = machine.gpus[at].pcie;
    let show = |g: Option<u8>| g.map_or("?".into(), |g| g.to_string());
    let mut fact =
        format!("GPU{}: generation {} now, {} at best", machine.gpus[at].index, show(pcie.gen_now), show(pcie.gen_max));
    if let Some(card) = pcie.gen_gpu {
        fact += &format!(", {card} for the card alone");
    }
    if let Some(n) = pcie.replays.filter(|n| *n > 0) {
        fact += &format!(", {n} replays");
    }
    if let Some(state) = machine.gpus[at].performance_state {
        fact += &format!(", state P{state}");
    }
    let rate = |g: Option<u8>| g.zip(pcie.width_now.or(pcie.width_max)).and_then(|(g, w)| pcie_gb_s(g, w));
    let rates = match (rate(pcie.gen_now.or(pcie.gen_max)), rate(pcie.gen_gpu.or(pcie.gen_max))) {
        (Some(now), Some(best)) if now < best => format!(" ({now:.1} of {best:.1} GB/s each way)"),
        _ => String::new(),
    };
    Some(Verdict {
        rule: "link-speed",
        severity,
        title: format!("{}: PCIe link {what}{rates}", gpu_list(machine, &gpus)),
        evidence: vec![evidence(machine, fact, &[&format!("pcie[{at}]"), &format!("best PCIe generation[{at}]")])],
        reason: reason(severity).into(),
        fix: fix(severity),
    })
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
