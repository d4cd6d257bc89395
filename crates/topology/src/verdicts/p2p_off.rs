//! The driver withholds peer access between some GPUs.

use super::{Severity, Verdict, evidence, gpu_list};
use crate::gpus::{self, P2pPolicy};
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
    let pair = gpu_list(machine, &[a, b]).replace(", ", " to ");
    let fact = format!("{} of {all} pairs, as {pair} ({})", off.len(), state.word());
    let title = match off.len() == all {
        true => format!("no peer access between any of the {} GPUs: the driver says {}", machine.len(), state.word()),
        false => format!("no peer access between {} of {all} pairs: the driver says {}", off.len(), state.word()),
    };
    Some(Verdict {
        rule: "p2p-off",
        severity: Severity::Warning,
        title,
        evidence: vec![evidence(machine, fact, &[table])],
        reason: format!("{} Every byte between them goes through host memory.", why(machine, state, a)),
        fix: fix(machine, state),
    })
}

/// Without a table of the driver: cards for which it is known what the unmodified driver does.
fn by_card(machine: &Machine) -> Option<Verdict> {
    let asked = machine.p2p.read.is_some() || machine.p2p.write.is_some();
    let nvlink = machine.fully_connected_by_nvlink()?;
    if asked || nvlink || machine.len() < 2 {
        return None;
    }
    let name = machine.gpus[0].name.clone()?;
    let cards = gpus::facts(&name)?;
    if gpus::agreed(&cards, |c| c.p2p)? == P2pPolicy::Yes {
        return None;
    }
    Some(Verdict {
        rule: "p2p-off",
        severity: Severity::Note,
        title: format!("{name}: the unmodified driver gives these cards no peer access over PCIe"),
        evidence: vec![evidence(machine, format!("GPU{} is a {name}", machine.gpus[0].index), &["name[0]"])],
        reason: "GeForce cards may reach each other over an NVLink bridge where they have one, and not over PCIe. Every byte between \
                 them goes through host memory."
            .into(),
        fix: vec!["`nvidia-smi topo -p2p r` says what holds here: paste it along".into(), host_path()],
    })
}

fn state(machine: &Machine, a: usize, b: usize) -> Option<(P2pState, &'static str)> {
    let says = |table: &Option<crate::link::Pairs<P2pState>>| {
        let table = table.as_ref()?;
        [(a, b), (b, a)].iter().filter_map(|&(x, y)| table.get(x, y)).copied().find(|s| *s != P2pState::Ok)
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
    "tombolo then goes through pinned host memory, with flags in the data: measured 4.0 µs for 12 KB between two GPUs, where NCCL \
     takes 22 to 26 µs on the same path"
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
        P2pState::GpuNotSupported | P2pState::ChipsetNotSupported => fix.push(
            "modified open kernel modules unlock it on GeForce, with a BAR1 as large as the memory and the IOMMU off. They have \
             given wrong data on some machines: test with data before trusting them"
                .into(),
        ),
        _ => {}
    }
    fix
}
