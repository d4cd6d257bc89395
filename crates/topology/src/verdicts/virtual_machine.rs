//! A bus as a virtual machine shows it.

use super::{Severity, Verdict, evidence};
use crate::link::LinkClass;
use crate::machine::Machine;

pub(super) fn judge(machine: &Machine) -> Option<Verdict> {
    if machine.len() < 2 {
        return None;
    }
    let flat = machine.len() > 2 && machine.pairs().all(|(_, _, class)| class == Some(LinkClass::Phb));
    let said = machine.host.virtual_machine;
    if said == Some(false) || said.is_none() && !flat {
        return None;
    }
    let fact = match said {
        Some(_) => evidence(machine, "the processor says that a hypervisor runs below", &["virtual machine"]),
        None => evidence(
            machine,
            format!("all {} GPUs are PHB to each other, as virtual machines show them", machine.len()),
            &["links[0]"],
        ),
    };
    Some(Verdict {
        rule: "virtual-machine",
        severity: Severity::Note,
        title: match said {
            Some(_) => "a virtual machine: the bus is as this guest is shown it".into(),
            None => "perhaps a virtual machine: the bus looks flat".into(),
        },
        evidence: vec![fact],
        reason: "Guests are shown one emulated root, whatever is below: sockets, switches and shared uplinks do not appear, and islands \
                 cannot be told. What is said here about paths holds for what the guest sees."
            .into(),
        fix: vec![
            "ask for `nvidia-smi topo -m` on the host, or trust measurements of pairs only".into(),
            "whoever runs the host can give the guest its NUMA nodes and switches (QEMU: `pxb-pcie` with `numa_node`)".into(),
        ],
    })
}
