//! Peer access that is slower than no peer access, or that the driver may stage in system memory.

use super::{Severity, Verdict, evidence, gpu_list, p2p_possible};
use crate::link::{LinkClass, Pairs};
use crate::machine::Machine;

/// Registry keys with which GPUs right on the processor reach each other without a detour, as the community of the
/// RTX PRO 6000 uses them.
const KEYS: &str = "ForceP2P=0x11;RMForceP2PType=1;RMPcieP2PType=2;GrdmaPciTopoCheckOverride=1;EnableResizableBar=1";
/// Peer access below this part of the link's rate takes a detour.
const PART_OF_LINK: f64 = 0.5;

pub(super) fn judge(machine: &Machine) -> Option<Verdict> {
    measured(machine).or_else(|| risk(machine))
}

fn cell(table: &Option<Pairs<Option<f64>>>, a: usize, b: usize) -> Option<f64> {
    *table.as_ref()?.get(a, b)?
}

/// The pair with the worst measured bandwidth is judged.
fn measured(machine: &Machine) -> Option<Verdict> {
    let p2p = &machine.p2p;
    let slow = |&(a, b, _): &(usize, usize, Option<LinkClass>)| {
        let with = cell(&p2p.measured_gb_s, a, b).filter(|_| machine.p2p_allowed(a, b) != Some(false))?;
        let without = cell(&p2p.staged_gb_s, a, b).unwrap_or(0.0);
        let link = machine.pair_gb_s(a, b).unwrap_or(0.0) * PART_OF_LINK;
        (with < without || with < link).then_some((a, b, with, without, machine.pair_gb_s(a, b)))
    };
    let slow: Vec<_> = machine.pairs().filter_map(|pair| slow(&pair)).collect();
    let &(a, b, with, without, link) = slow.iter().min_by(|x, y| x.2.total_cmp(&y.2))?;
    let pair = gpu_list(machine, &[a, b]).replace(", ", " to ");
    let mut facts = vec![evidence(machine, format!("{pair} with peer access: {with:.1} GB/s"), &["p2p.measured_gb_s"])];
    if without > 0.0 {
        facts.push(evidence(machine, format!("{pair} through host memory: {without:.1} GB/s"), &["p2p.staged_gb_s"]));
    }
    if let Some(link) = link {
        facts.push(evidence(machine, format!("their links: {link:.1} GB/s each way"), &[&format!("pcie[{a}]")]));
    }
    let all = machine.pairs().count();
    Some(Verdict {
        rule: "p2p-staged",
        severity: Severity::Error,
        title: match all {
            1 => format!("peer access takes a detour: {with:.1} GB/s"),
            _ => format!("peer access takes a detour on {} of {all} pairs: {with:.1} GB/s at the worst", slow.len()),
        },
        evidence: facts,
        reason: "A direct store would run near the link's rate. Slower than half of it, or slower than through host memory, means that \
                 the traffic is sent up to the processor and back: by access control (ACS), by a translating IOMMU, or because \
                 the driver stages it in system memory."
            .into(),
        fix: fixes(),
    })
}

fn fixes() -> Vec<String> {
    vec![
        "ACS off on every bridge above a GPU and `iommu=pt`: see `lspci -vvv | grep -i acsctl` as root".into(),
        format!(
            "`options nvidia NVreg_RegistryDwords=\"{KEYS}\"` in `/etc/modprobe.d/nvidia.conf`, then reload the driver or reboot"
        ),
        "measure again: `p2pBandwidthLatencyTest` or `nvbandwidth -t device_to_device_memcpy_write_ce`".into(),
    ]
}

/// Workstation cards of the Blackwell generation right on the processor: without these keys loads were staged.
fn risk(machine: &Machine) -> Option<Verdict> {
    let blackwell = |g: &crate::machine::Gpu| {
        g.compute_capability == Some((12, 0)) && !g.name.as_deref().unwrap_or("GeForce").contains("GeForce")
    };
    let direct = machine.pairs().filter(|(_, _, class)| class.is_some_and(LinkClass::through_host)).count();
    if direct == 0
        || machine.p2p.measured_gb_s.is_some()
        || !machine.gpus.iter().all(blackwell)
        || !p2p_possible(machine)
    {
        return None;
    }
    let set =
        machine.host.driver_registry.as_ref().map(|keys| keys.keys().any(|k| k == "ForceP2P" || k == "RMForceP2PType"));
    if set == Some(true) {
        return None;
    }
    let name = machine.gpus[0].name.clone().unwrap_or_default();
    let pairs = if direct == 1 { "pair" } else { "pairs" };
    let mut facts = vec![evidence(machine, format!("{direct} {pairs} of {name} through the processor"), &["links[0]"])];
    if set == Some(false) {
        facts.push(evidence(
            machine,
            "neither ForceP2P nor RMForceP2PType is among the driver's registry keys",
            &["registry"],
        ));
    }
    Some(Verdict {
        rule: "p2p-staged",
        severity: if set == Some(false) { Severity::Warning } else { Severity::Note },
        title: "the driver may stage peer access in system memory on cards right on the processor".into(),
        evidence: facts,
        reason: "On such machines loads by kernels were found staged, an all-reduce taking 242 µs instead of 17, until registry keys of \
                 the driver were set; copies look quick all the same."
            .into(),
        fix: vec![
            format!("see `grep Registry /proc/driver/nvidia/params`; the keys are `{KEYS}`, given as `NVreg_RegistryDwords` in `/etc/modprobe.d/`"),
            "measure loads by kernels, not copies: `nvbandwidth -t device_to_device_memcpy_read_sm`".into(),
        ],
    })
}
