//! What the driver's management library (NVML) says. It is loaded at run time: without a driver it is merely not there.

use super::Look;
use crate::link::{LinkClass, NVLINKS_MAX, P2pState, Pairs, pcie_gb_s};
use crate::machine::{Gpu, Machine};
use crate::read::bus_id;
use nvml_wrapper::enum_wrappers::device::{P2pCapabilitiesIndex, P2pStatus, PerformanceState, TopologyLevel};
use nvml_wrapper::enum_wrappers::nv_link::IntDeviceType;
use nvml_wrapper::{Device, Nvml};

/// Where facts of NVML are from, in `Machine::origin`.
const ORIGIN: &str = "NVML";

pub(super) fn look(machine: &mut Machine) -> Look {
    let at = "libnvidia-ml.so.1 (NVML)".to_string();
    let nvml = match Nvml::init() {
        Ok(nvml) => nvml,
        Err(error) => return Look { at, found: false, what: why(&error) },
    };
    let count = nvml.device_count().unwrap_or(0).min(crate::limits::GPUS_MAX as u32);
    let devices: Vec<(u32, Device<'_>)> = (0..count).filter_map(|i| Some((i, nvml.device_by_index(i).ok()?))).collect();
    machine.host.driver = nvml.sys_driver_version().ok();
    machine.gpus = devices.iter().map(|(index, device)| gpu(*index, device)).collect();
    for (at, gpu) in machine.gpus.iter().enumerate() {
        let facts = [
            ("name", gpu.name.is_some()),
            ("pcie", gpu.pcie.gb_s().is_some()),
            ("BAR1", gpu.bar1_bytes.is_some()),
            ("power", gpu.power_limit_w.is_some()),
            ("persistence", gpu.persistence.is_some()),
            ("links", true),
        ];
        for (fact, _) in facts.iter().filter(|(_, known)| *known) {
            machine.origin.insert(format!("{fact}[{at}]"), ORIGIN.into());
        }
    }
    let remotes: Vec<Remotes> = devices.iter().map(|(_, device)| remotes(device)).collect();
    machine.links = Some(Pairs::from_fn(devices.len(), |a, b| class(&nvml, &machine.gpus, &devices, &remotes, (a, b))));
    let states = |index: P2pCapabilitiesIndex| {
        Some(Pairs::from_fn(devices.len(), |a, b| match a == b {
            true => P2pState::Itself,
            false => devices[a].1.p2p_status(&devices[b].1, index).map_or(P2pState::Unknown, state),
        }))
    };
    machine.p2p.read = states(P2pCapabilitiesIndex::Read);
    machine.p2p.write = states(P2pCapabilitiesIndex::Write);
    machine.p2p.atomics = states(P2pCapabilitiesIndex::Atomics);
    machine.p2p.nvlink = states(P2pCapabilitiesIndex::NvLink);
    for table in ["p2p.read", "p2p.write", "p2p.atomics", "p2p.nvlink"] {
        machine.origin.insert(table.into(), ORIGIN.into());
    }
    let missing = count as usize - devices.len();
    let what =
        if missing > 0 { format!("{count} GPUs, {missing} of them not answering") } else { format!("GPUs: {count}") };
    Look { at, found: true, what }
}

/// Why the library did not answer.
fn why(error: &nvml_wrapper::error::NvmlError) -> String {
    use nvml_wrapper::error::NvmlError;
    match error {
        NvmlError::LibloadingError(_) => {
            "not there: the NVIDIA driver is not installed, or not given to this container".into()
        }
        NvmlError::DriverNotLoaded => "the driver's kernel modules are not loaded".into(),
        other => super::host::shown(&other.to_string()),
    }
}

fn gpu(index: u32, device: &Device<'_>) -> Gpu {
    let small = |value: Result<u32, _>| value.ok().and_then(|v: u32| u8::try_from(v).ok());
    let generation = |value| small(value).filter(|&g| pcie_gb_s(g, 16).is_some());
    let width = |value| small(value).filter(|&w| pcie_gb_s(1, w).is_some());
    let watts = |milli: Result<u32, nvml_wrapper::error::NvmlError>| milli.ok().map(|mw| f64::from(mw) / 1000.0);
    let mut gpu = Gpu { index, ..Gpu::default() };
    gpu.name = device.name().ok();
    gpu.uuid = device.uuid().ok();
    gpu.memory_bytes = device.memory_info().ok().map(|m| m.total);
    gpu.bar1_bytes = device.bar1_memory_info().ok().map(|m| m.total);
    let capability = device.cuda_compute_capability().ok();
    gpu.compute_capability = capability.and_then(|c| Some((u8::try_from(c.major).ok()?, u8::try_from(c.minor).ok()?)));
    gpu.pcie.gen_now = generation(device.current_pcie_link_gen());
    gpu.pcie.gen_max = generation(device.max_pcie_link_gen());
    gpu.pcie.width_now = width(device.current_pcie_link_width());
    gpu.pcie.width_max = width(device.max_pcie_link_width());
    gpu.pcie.replays = device.pcie_replay_counter().ok().map(u64::from);
    gpu.pci_bus_id = device.pci_info().ok().and_then(|info| bus_id(&info.bus_id));
    gpu.power_limit_w = watts(device.enforced_power_limit());
    gpu.power_default_w = watts(device.power_management_limit_default());
    gpu.persistence = device.is_in_persistent_mode().ok();
    gpu.performance_state = device.performance_state().ok().and_then(performance);
    gpu.mig = device.mig_mode().ok().map(|mode| mode.current == 1);
    gpu.display = device.is_display_active().ok();
    gpu
}

fn performance(state: PerformanceState) -> Option<u8> {
    use PerformanceState as P;
    let states = [
        P::Zero,
        P::One,
        P::Two,
        P::Three,
        P::Four,
        P::Five,
        P::Six,
        P::Seven,
        P::Eight,
        P::Nine,
        P::Ten,
        P::Eleven,
        P::Twelve,
        P::Thirteen,
        P::Fourteen,
        P::Fifteen,
    ];
    states.iter().position(|s| *s == state).map(|at| at as u8)
}

fn state(status: P2pStatus) -> P2pState {
    match status {
        P2pStatus::Ok => P2pState::Ok,
        P2pStatus::ChipsetNotSupported => P2pState::ChipsetNotSupported,
        P2pStatus::GpuNotSupported => P2pState::GpuNotSupported,
        P2pStatus::IohTopologyNotSupported => P2pState::TopologyNotSupported,
        P2pStatus::DisabledByRegkey => P2pState::DisabledByRegistry,
        P2pStatus::NotSupported => P2pState::NotSupported,
        P2pStatus::Unknown => P2pState::Unknown,
    }
}

/// Where a GPU's NVLinks lead.
struct Remotes {
    /// Addresses of GPUs, one for each link to one.
    gpus: Vec<String>,
    /// Links to switches, or to what a guest cannot see.
    switched: u8,
}

fn remotes(device: &Device<'_>) -> Remotes {
    let mut remotes = Remotes { gpus: Vec::new(), switched: 0 };
    for link in 0..u32::from(NVLINKS_MAX) {
        let wrapper = device.link_wrapper_for(link);
        if !wrapper.is_active().unwrap_or(false) {
            continue;
        }
        match wrapper.remote_device_type(link) {
            Ok(IntDeviceType::Gpu) => {
                remotes.gpus.extend(wrapper.remote_pci_info().ok().and_then(|info| bus_id(&info.bus_id)));
            }
            _ => remotes.switched += 1,
        }
    }
    remotes
}

/// NVLink where the driver allows peer access over it, else what the two have in common on the bus.
fn class(
    nvml: &Nvml,
    gpus: &[Gpu],
    devices: &[(u32, Device<'_>)],
    remotes: &[Remotes],
    (a, b): (usize, usize),
) -> Option<LinkClass> {
    if a == b {
        return Some(LinkClass::Itself);
    }
    let joined = devices[a].1.p2p_status(&devices[b].1, P2pCapabilitiesIndex::NvLink);
    let joined = joined.is_ok_and(|status| status == P2pStatus::Ok);
    if joined {
        let to_b = gpus[b].pci_bus_id.as_ref();
        let direct = remotes[a].gpus.iter().filter(|address| Some(*address) == to_b).count();
        let links = if direct > 0 { direct } else { usize::from(remotes[a].switched.min(remotes[b].switched)) };
        if (1..=usize::from(NVLINKS_MAX)).contains(&links) {
            return Some(LinkClass::NvLink(links as u8));
        }
    }
    // The wrapper takes the other device by value, so that it is fetched again.
    match devices[a].1.topology_common_ancestor(nvml.device_by_index(devices[b].0).ok()?).ok()? {
        TopologyLevel::Internal | TopologyLevel::Single => Some(LinkClass::Pix),
        TopologyLevel::Multiple => Some(LinkClass::Pxb),
        TopologyLevel::HostBridge => Some(LinkClass::Phb),
        TopologyLevel::Node => Some(LinkClass::Node),
        TopologyLevel::System => Some(LinkClass::Sys),
    }
}
