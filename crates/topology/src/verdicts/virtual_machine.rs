//! A bus as a virtual machine shows it.

use super::{Evidence, Severity, Verdict, evidence, pair};
use crate::link::LinkClass;
use crate::machine::Machine;

/// Buses this far apart are those of a real board: guests number theirs from 0 on.
const REAL_SPREAD: u32 = 0x20;

pub(super) fn judge(machine: &Machine) -> Option<Verdict> {
    let (sure, fact) = seen(machine)?;
    Some(Verdict {
        rule: "virtual-machine",
        severity: Severity::Note,
        title: match sure {
            true => "a virtual machine: the bus is as this guest is shown it".into(),
            false => "perhaps a virtual machine or WSL: the bus is not shown as it is".into(),
        },
        evidence: vec![fact],
        reason: "Guests are shown one emulated root, whatever is below: sockets, switches and shared uplinks do not appear, and islands \
                 cannot be told. What is said here about paths holds for what the guest sees."
            .into(),
        fix: vec![
            "ask for `nvidia-smi topo -m` on the host (under WSL: boot a Linux on the machine itself), or trust measurements of pairs only"
                .into(),
            "whoever runs the host can give the guest its NUMA nodes and switches (QEMU: `pxb-pcie` with `numa_node`)".into(),
        ],
    })
}

/// What speaks for a guest, and whether that is sure.
fn seen(machine: &Machine) -> Option<(bool, Evidence)> {
    if machine.len() < 2 || machine.host.virtual_machine == Some(false) {
        return None;
    }
    if machine.host.virtual_machine == Some(true) {
        return Some((
            true,
            evidence(machine, "the processor says that a hypervisor runs below", &["virtual machine"]),
        ));
    }
    let buses: Option<Vec<u32>> = machine.gpus.iter().map(|g| bus(g.pci_bus_id.as_deref()?)).collect();
    if let Some(buses) = &buses
        && buses.iter().all(|b| *b == 0)
    {
        let (a, b) = (&machine.gpus[0].pci_bus_id, &machine.gpus[1].pci_bus_id);
        let shown = [a, b].map(|id| id.clone().unwrap_or_default()).join(" and ");
        let fact = format!("the GPUs are at {shown}, right on the root bus, where no board has slots");
        return Some((true, evidence(machine, fact, &["address[0]"])));
    }
    let spread = buses.and_then(|b| Some(b.iter().max()? - b.iter().min()?));
    if spread.is_some_and(|spread| spread >= REAL_SPREAD) {
        return None;
    }
    if machine.origin.contains_key("no affinity") {
        let fact = "the driver names no processor and no NUMA node near any GPU";
        return Some((false, evidence(machine, fact, &["no affinity"])));
    }
    // A board with so many slots gives each GPU a node; a guest need not know one.
    let flat = machine.len() > 2
        && machine.gpus.iter().all(|g| g.numa_node.is_none())
        && machine.pairs().all(|(_, _, class)| class == Some(LinkClass::Phb));
    let fact = || format!("{} is PHB, as is every other pair, and no GPU has a NUMA node", pair(machine, 0, 1));
    flat.then(|| (false, evidence(machine, fact(), &["links[0]"])))
}

/// The bus of `0000:41:00.0`.
fn bus(id: &str) -> Option<u32> {
    u32::from_str_radix(id.split(':').nth(1)?, 16).ok()
}
