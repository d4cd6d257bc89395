//! The driver withholds peer access between some GPUs.

use super::{Severity, Verdict, evidence, p2p_expected, pair, policy};
use crate::gpus::P2pPolicy;
use crate::link::P2pState;
use crate::machine::Machine;

pub(super) fn judge(machine: &Machine) -> Option<Verdict> {
    let off: Vec<_> = machine.pairs().filter(|&(a, b, _)| machine.p2p_allowed(a, b) == Some(false)).collect();
    if off.is_empty() {
        return by_card(machine);
    }
    let (a, b, _) = off[0];
    let (state, table) = state(machine, a, b)?;
    let all = machine.pairs().count();
    let fact = match all {
        1 => format!("{} ({})", pair(machine, a, b), state.word()),
        _ => format!("{} of {all} pairs, as {} ({})", off.len(), pair(machine, a, b), state.word()),
    };
    let between = match off.len() == all {
        true if all == 1 => "the two GPUs".to_string(),
        true => format!("any of the {} GPUs", machine.len()),
        false => format!("{} of {all} pairs", off.len()),
    };
    let mut facts = vec![evidence(machine, fact, &[table])];
    let rate = machine.p2p.staged_gb_s.as_ref().and_then(|t| *t.get(a, b)?);
    if let Some(rate) = rate {
        let fact = format!("{} through host memory: {rate:.1} GB/s measured", pair(machine, a, b));
        facts.push(evidence(machine, fact, &["p2p.staged_gb_s"]));
    }
    Some(Verdict {
        rule: "p2p-off",
        severity: Severity::Warning,
        title: format!("no peer access between {between}: the driver says {}", state.word()),
        evidence: facts,
        reason: format!("{} Every byte between them goes through host memory.", why(machine, state, a)),
        fix: fix(machine, state),
    })
}

/// Without a table of the driver: cards for which it is known what the unmodified driver does.
fn by_card(machine: &Machine) -> Option<Verdict> {
    let asked = machine.p2p.read.is_some() || machine.p2p.write.is_some();
    let off: Vec<_> = machine.pairs().filter(|&(a, b, _)| p2p_expected(machine, a, b) == Some(false)).collect();
    if asked || off.is_empty() {
        return None;
    }
    let (a, b, _) = off[0];
    let withheld = |at: &usize| policy(&machine.gpus[*at]).is_some_and(|p| p != P2pPolicy::Yes);
    let at = [a, b].into_iter().find(withheld)?;
    let (all, name) = (machine.pairs().count(), machine.gpus[at].name.clone()?);
    let pairs = if off.len() == all { String::new() } else { format!(" ({} of {all} pairs here)", off.len()) };
    let mut fix = vec![host_path()];
    // Windows has neither that command nor open kernel modules.
    if !machine.origin.contains_key("windows") {
        fix.insert(0, "`nvidia-smi topo -p2p r` says what holds here: paste it along".into());
        fix.extend(is_geforce(machine, at).then(modified_driver));
    }
    Some(Verdict {
        rule: "p2p-off",
        severity: Severity::Warning,
        title: format!("{name}: the unmodified driver gives these cards no peer access over PCIe{pairs}"),
        evidence: vec![evidence(machine, format!("GPU{}: {name}", machine.gpus[at].index), &[&format!("name[{at}]")])],
        reason: "Such cards may reach each other over an NVLink bridge where they have one, and not over PCIe. Every byte between \
                 them goes through host memory, and no variable of NCCL changes that."
            .into(),
        fix,
    })
}

fn state(machine: &Machine, a: usize, b: usize) -> Option<(P2pState, &'static str)> {
    let says = |table: &Option<crate::link::Pairs<P2pState>>| {
        let table = table.as_ref()?;
        [(a, b), (b, a)]
            .iter()
            .filter_map(|&(x, y)| table.get(x, y))
            .copied()
            .find(|s| !matches!(s, P2pState::Ok | P2pState::Unknown))
    };
    says(&machine.p2p.read).map(|s| (s, "p2p.read")).or(says(&machine.p2p.write).map(|s| (s, "p2p.write")))
}

fn is_geforce(machine: &Machine, gpu: usize) -> bool {
    machine.gpus[gpu].name.as_deref().is_some_and(|name| name.contains("GeForce"))
}

fn why(machine: &Machine, state: P2pState, gpu: usize) -> &'static str {
    match state {
        P2pState::GpuNotSupported => {
            "GNS: the driver does not give these cards peer access over PCIe; GeForce cards never get it."
        }
        P2pState::NotSupported if is_geforce(machine, gpu) => {
            "NS: the unmodified driver gives GeForce cards no peer access over PCIe, only over an NVLink bridge where they have one."
        }
        P2pState::ChipsetNotSupported if is_geforce(machine, gpu) => {
            "CNS: the driver does not take the chipset for one that carries peer traffic, or withholds peer access from GeForce \
             cards, for which it says the same."
        }
        P2pState::ChipsetNotSupported => {
            "CNS: the host bridge is not in the driver's list of chipsets that carry peer traffic. A virtual machine shows an emulated \
             one that is not in it."
        }
        P2pState::TopologyNotSupported => "TNS: the driver finds no way between the cards that it supports.",
        P2pState::DisabledByRegistry => "DR: a registry key of the driver has switched it off.",
        _ => "The driver gives no reason.",
    }
}

fn host_path() -> String {
    "tombolo then goes through pinned host memory, with flags in the data. Measured on two H200 (PCIe 5.0 x16) with peer access \
     off: 4.0 µs for 12 KB, where NCCL takes 22 to 26 µs; slower links take longer"
        .into()
}

fn modified_driver() -> String {
    "modified open kernel modules exist that unlock it on GeForce cards; NVIDIA does not support them. They need a BAR1 as large as \
     the memory and the IOMMU off or passing through, and have given wrong data on some machines: test with data before trusting them"
        .into()
}

fn fix(machine: &Machine, state: P2pState) -> Vec<String> {
    let mut fix = vec![host_path()];
    match state {
        P2pState::DisabledByRegistry => fix.insert(
            0,
            "look for `ForceP2P` or `RMForceP2PType` in `/proc/driver/nvidia/params` and in `/etc/modprobe.d/`; remove it and reload \
             the driver"
                .into(),
        ),
        P2pState::ChipsetNotSupported if !is_geforce(machine, 0) => fix.push(
            "in a virtual machine: put the GPUs below one emulated PCIe switch (`x3130-upstream`, `xio3130-downstream` in QEMU); below a \
             common switch the driver does not ask for the chipset"
                .into(),
        ),
        _ if is_geforce(machine, 0) => fix.push(modified_driver()),
        _ => {}
    }
    fix
}
