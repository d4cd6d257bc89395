//! GPUs, the bridges above them and their links, from `/sys/bus/pci`; IOMMU groups and access control.

use super::{Look, config_space, names, text};
use crate::limits::{DEPTH_MAX, GPUS_MAX};
use crate::link::{LinkClass, Pairs, pcie_gb_s};
use crate::machine::{Gpu, Iommu, Machine};
use crate::read::{bus_id, generation_of_speed};
use crate::tree::{Place, class};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

const NVIDIA: &str = "0x10de";

/// A GPU on the bus.
struct Found {
    address: String,
    directory: PathBuf,
    place: Option<Place>,
}

pub(super) fn look(machine: &mut Machine, root: &Path) -> Vec<Look> {
    let bus = root.join("sys/bus/pci/devices");
    let devices = names(&bus);
    if devices.is_empty() {
        let what = "there is no PCI bus to be seen".to_string();
        return vec![Look { at: bus.display().to_string(), found: false, what }];
    }
    let single_node = names(&root.join("sys/devices/system/node")).iter().filter(|n| is_node(n)).count() == 1;
    let mut found: Vec<Found> = Vec::new();
    for address in &devices {
        let directory = bus.join(address);
        if is_gpu(&directory) && bus_id(address).is_some() && found.len() < GPUS_MAX {
            let place = place(&directory, single_node);
            found.push(Found { address: address.clone(), directory, place });
        }
    }
    let what = match found.len() {
        0 => format!("{} devices, no NVIDIA GPU", devices.len()),
        1 => format!("{} devices, one NVIDIA GPU", devices.len()),
        n => format!("{} devices, {n} NVIDIA GPUs", devices.len()),
    };
    let mut looked = vec![Look { at: bus.display().to_string(), found: true, what }];
    if found.is_empty() {
        return looked;
    }
    describe(machine, root, &found);
    add_links(machine, &found);
    looked.push(look_iommu(machine, root, &found));
    looked.push(look_acs(machine, &bus, &found));
    looked
}

fn is_node(name: &str) -> bool {
    name.strip_prefix("node").is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}

/// A display or 3D controller of NVIDIA's.
fn is_gpu(directory: &Path) -> bool {
    let class = text(&directory.join("class")).unwrap_or_default();
    text(&directory.join("vendor")).as_deref() == Some(NVIDIA)
        && (class.starts_with("0x0300") || class.starts_with("0x0302"))
}

/// Where a device hangs, from the path that its name in `/sys/bus/pci/devices` points to:
/// `../../../devices/pci0000:40/0000:40:01.1/0000:41:00.0`.
fn place(directory: &Path, single_node: bool) -> Option<Place> {
    let target = std::fs::read_link(directory).ok()?;
    let parts: Vec<&str> = target.iter().filter_map(|part| part.to_str()).collect();
    let start = parts.iter().position(|part| part.starts_with("pci"))?;
    let chain: Vec<String> = parts[start + 1..].iter().filter_map(|part| bus_id(part)).collect();
    let (_, bridges) = chain.split_last()?;
    let node = text(&directory.join("numa_node")).and_then(|n| n.parse::<i64>().ok());
    // The kernel says -1 where the firmware does not say it. With one node there is nothing to say.
    let node = node.and_then(|n| u32::try_from(n).ok()).or(single_node.then_some(0));
    (bridges.len() <= DEPTH_MAX).then(|| Place { root: parts[start][3..].to_string(), bridges: bridges.to_vec(), node })
}

/// Puts what the bus says beside what the driver said, by address; without a driver the bus makes the list.
fn describe(machine: &mut Machine, root: &Path, found: &[Found]) {
    if machine.gpus.is_empty() {
        machine.gpus = (0..found.len() as u32).map(|index| Gpu { index, ..Gpu::default() }).collect();
        for (gpu, found) in machine.gpus.iter_mut().zip(found) {
            gpu.pci_bus_id = bus_id(&found.address);
        }
    }
    for (at, gpu) in machine.gpus.iter_mut().enumerate() {
        let Some(on_bus) = found.iter().find(|f| bus_id(&f.address) == gpu.pci_bus_id) else { continue };
        let read = |name: &str| text(&on_bus.directory.join(name));
        let width = |name| read(name).and_then(|w| w.parse().ok()).filter(|&w| pcie_gb_s(1, w).is_some());
        let speed = |name| read(name).and_then(|speed| generation_of_speed(&speed));
        gpu.pcie.gen_now = gpu.pcie.gen_now.or_else(|| speed("current_link_speed"));
        gpu.pcie.gen_gpu = gpu.pcie.gen_gpu.or_else(|| speed("max_link_speed"));
        gpu.pcie.width_now = gpu.pcie.width_now.or_else(|| width("current_link_width"));
        gpu.pcie.width_max = gpu.pcie.width_max.or_else(|| width("max_link_width"));
        if let Some(place) = &on_bus.place {
            gpu.pci_path = Some(place.bridges.clone());
            gpu.numa_node = gpu.numa_node.or(place.node);
        }
        gpu.cpu_affinity = read("local_cpulist").filter(|list| !list.is_empty());
        let information = root.join("proc/driver/nvidia/gpus").join(&on_bus.address).join("information");
        let model =
            text(&information).and_then(|t| t.lines().find_map(|l| Some(l.strip_prefix("Model:")?.trim().to_string())));
        gpu.name = gpu.name.take().or(model);
        for fact in ["pcie", "path", "numa", "best PCIe width"] {
            let origin = on_bus.directory.display().to_string();
            machine.origin.entry(format!("{fact}[{at}]")).or_insert(origin);
        }
    }
}

/// Classes from the tree, where the driver has not said them.
fn add_links(machine: &mut Machine, found: &[Found]) {
    let place = |gpu: &Gpu| found.iter().find(|f| bus_id(&f.address) == gpu.pci_bus_id)?.place.as_ref();
    let known = |a, b| machine.links.as_ref().and_then(|t| *t.get(a, b)?);
    let links = Pairs::from_fn(machine.len(), |a, b| {
        let of_tree = || class(place(&machine.gpus[a])?, place(&machine.gpus[b])?);
        if a == b { Some(LinkClass::Itself) } else { known(a, b).or_else(of_tree) }
    });
    for at in 0..machine.len() {
        machine.origin.entry(format!("links[{at}]")).or_insert_with(|| "the PCI tree of this machine".into());
    }
    machine.links = Some(links);
}

/// Groups say of which kind their translation is; without groups there is none.
fn look_iommu(machine: &mut Machine, root: &Path, found: &[Found]) -> Look {
    let groups = root.join("sys/kernel/iommu_groups");
    let at = groups.display().to_string();
    let mut kinds = BTreeSet::new();
    for gpu in found {
        let group = std::fs::read_link(gpu.directory.join("iommu_group")).ok();
        let number = group.as_ref().and_then(|g| g.file_name()).and_then(|n| n.to_str());
        kinds.extend(number.and_then(|n| text(&groups.join(n).join("type"))));
    }
    let (iommu, what) = match kinds.first() {
        Some(_) if kinds.iter().any(|kind| kind.starts_with("DMA")) => {
            (Some(Iommu::Translated), "translating".to_string())
        }
        Some(_) if kinds.iter().all(|kind| kind == "identity") => (Some(Iommu::Passthrough), "passing through".into()),
        Some(kind) => (None, format!("of a kind that is not known: {}", super::host::shown(kind))),
        None if groups.is_dir() && names(&groups).is_empty() => (Some(Iommu::Off), "no IOMMU".into()),
        None => (None, "the GPUs' groups are not to be seen".into()),
    };
    machine.host.iommu = iommu;
    machine.origin.insert("iommu".into(), at.clone());
    Look { at, found: iommu.is_some(), what }
}

fn look_acs(machine: &mut Machine, bus: &Path, found: &[Found]) -> Look {
    let bridges: BTreeSet<&String> = found.iter().filter_map(|f| f.place.as_ref()).flat_map(|p| &p.bridges).collect();
    let at = format!("{}/…/config", bus.display());
    let state = |bridge: &str| config_space::redirects(&std::fs::read(bus.join(bridge).join("config")).ok()?);
    let states: Vec<(&String, Option<bool>)> = bridges.into_iter().map(|b| (b, state(b))).collect();
    if states.is_empty() {
        return Look { at, found: false, what: "no bridge above the GPUs is to be seen".into() };
    }
    if states.iter().any(|(_, state)| state.is_none()) {
        return Look { at, found: false, what: "access control (ACS) of bridges can be read by root only".into() };
    }
    let on: Vec<String> = states.iter().filter(|(_, s)| *s == Some(true)).map(|(b, _)| (*b).clone()).collect();
    let what = format!("access control redirects on {} of {} bridges", on.len(), states.len());
    machine.host.acs_bridges = Some(on);
    machine.origin.insert("acs".into(), at.clone());
    Look { at, found: true, what }
}
