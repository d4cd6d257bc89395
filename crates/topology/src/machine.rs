//! A machine as plain data: GPUs, what connects them, and the host around them. What is not known is `None` and is never
//! guessed; what can be computed from the facts is computed here, without looking anywhere.
//!
//! No text is parsed and no device is asked here.

use crate::link::{LinkClass, P2pState, Pairs, pcie_gb_s};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A computer with its GPUs. GPUs are meant by their place in `gpus` everywhere but in `Gpu::index`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Machine {
    /// The GPUs, by ascending index.
    pub gpus: Vec<Gpu>,
    /// The class of the path between every two GPUs; symmetric, `X` on the diagonal.
    pub links: Option<Pairs<Option<LinkClass>>>,
    /// What the driver says about peer access.
    pub p2p: P2p,
    /// The processors, their memory and the operating system's settings.
    pub host: Host,
    /// Network adapters, by name. Kept so that a report can show them; nothing is computed from them.
    pub nics: Vec<String>,
    /// All-reduces between these GPUs that were measured here, and were right.
    pub all_reduce: Vec<MeasuredAllReduce>,
    /// What the reader of this machine must know: GPUs that were listed but not described, facts that were dropped.
    pub notes: Vec<String>,
    /// Where a fact was read: `links`, `links[3]`, `pcie[3]`, `p2p.read` … to `topo-m.txt, line 4`.
    pub origin: BTreeMap<String, String>,
}

/// One GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Gpu {
    /// The number that `nvidia-smi` gives it.
    pub index: u32,
    /// The name as the driver prints it.
    pub name: Option<String>,
    /// The identifier that follows the card.
    pub uuid: Option<String>,
    /// Device memory in bytes.
    pub memory_bytes: Option<u64>,
    /// Peak bandwidth of the device memory in GB/s (10^9 bytes).
    pub memory_gb_s: Option<f64>,
    /// Compute capability, major and minor.
    pub compute_capability: Option<(u8, u8)>,
    /// The PCIe link nearest to the GPU.
    pub pcie: Pcie,
    /// Address on the PCI bus, as `0000:41:00.0`.
    pub pci_bus_id: Option<String>,
    /// Addresses of the bridges from the root port down to the GPU, without the GPU.
    pub pci_path: Option<Vec<String>>,
    /// The NUMA node that its host bridge belongs to.
    pub numa_node: Option<u32>,
    /// The processors near to it, as `0-63,128-191`.
    pub cpu_affinity: Option<String>,
    /// NVLinks that are up.
    pub nvlinks: Option<u8>,
    /// What one of its NVLinks carries each way, in GB/s.
    pub nvlink_gb_s: Option<f64>,
    /// Whether one store can reach several GPUs (NVLink SHARP, multicast objects).
    pub multicast: Option<bool>,
    /// The window through which others reach its memory (BAR1), in bytes.
    pub bar1_bytes: Option<u64>,
    /// The power limit in force, in watts.
    pub power_limit_w: Option<f64>,
    /// The power limit that the card comes with, in watts.
    pub power_default_w: Option<f64>,
    /// Whether the driver stays loaded while nobody uses the GPU.
    pub persistence: Option<bool>,
    /// Performance state, 0 (fastest) to 15. An idle GPU runs its link slower to save power.
    pub performance_state: Option<u8>,
    /// Whether the GPU is cut into instances (MIG).
    pub mig: Option<bool>,
    /// Whether a display is attached.
    pub display: Option<bool>,
}

/// The state of one PCIe link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Pcie {
    /// The generation it runs at now. An idle link runs slower than it can.
    pub gen_now: Option<u8>,
    /// The best generation that this GPU and this slot can do together.
    pub gen_max: Option<u8>,
    /// The best generation that the GPU alone can do.
    pub gen_gpu: Option<u8>,
    /// Lanes in use.
    pub width_now: Option<u8>,
    /// Lanes that this GPU and this slot can use.
    pub width_max: Option<u8>,
    /// Packets that were sent again since the driver was loaded.
    pub replays: Option<u64>,
}

/// What the driver says of peer access, one table for each kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct P2p {
    /// Reads of a peer's memory (`topo -p2p r`).
    pub read: Option<Pairs<P2pState>>,
    /// Writes to a peer's memory (`topo -p2p w`).
    pub write: Option<Pairs<P2pState>>,
    /// Atomic operations in a peer's memory (`topo -p2p a`).
    pub atomics: Option<Pairs<P2pState>>,
    /// Peer access over NVLink (`topo -p2p n`).
    pub nvlink: Option<Pairs<P2pState>>,
    /// What a test with data found, from the row's GPU to the column's.
    pub tested: Option<Pairs<Option<P2pTest>>>,
    /// Measured bandwidth from the row's GPU to the column's with peer access on, in GB/s.
    pub measured_gb_s: Option<Pairs<Option<f64>>>,
    /// The same with peer access off: every byte goes through host memory.
    pub staged_gb_s: Option<Pairs<Option<f64>>>,
}

/// What a test of peer access with real data found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum P2pTest {
    /// Every byte arrived.
    Right,
    /// Something else arrived.
    Wrong,
    /// Nothing arrived before the deadline.
    Silent,
}

/// What one all-reduce took.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredAllReduce {
    /// What carried it: `peer`, `host`.
    pub transport: String,
    /// How much of a layer was fused with it: `all_reduce`, `all_reduce_add`, `all_reduce_add_norm`.
    pub what: String,
    /// Bytes of the message.
    pub bytes: u64,
    /// Ranks, on the first GPUs.
    pub ranks: usize,
    /// Microseconds a call.
    pub us: f64,
}

/// The computer around the GPUs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Host {
    /// Model name of the processors.
    pub cpu: Option<String>,
    /// Sockets with a processor.
    pub sockets: Option<u32>,
    /// Hardware threads.
    pub threads: Option<u32>,
    /// NUMA nodes, by ascending number.
    pub numa: Vec<NumaNode>,
    /// Memory in bytes.
    pub memory_bytes: Option<u64>,
    /// Peak bandwidth of all memory channels in GB/s.
    pub memory_gb_s: Option<f64>,
    /// Version of the NVIDIA driver.
    pub driver: Option<String>,
    /// Registry keys given to the driver, by name.
    pub driver_registry: Option<BTreeMap<String, String>>,
    /// What stands between a device and memory.
    pub iommu: Option<Iommu>,
    /// PCI bridges above GPUs on which access control redirects peer traffic to the root; empty if none does.
    pub acs_bridges: Option<Vec<String>>,
    /// Huge pages reserved, in bytes.
    pub hugepages_bytes: Option<u64>,
    /// Whether transparent huge pages are on for memory that asks for them.
    pub transparent_hugepages: Option<bool>,
    /// How much memory a process may lock, in bytes; `u64::MAX` without a limit.
    pub memlock_bytes: Option<u64>,
    /// Size of `/dev/shm` in bytes.
    pub shm_bytes: Option<u64>,
    /// Whether this is seen from inside a container.
    pub container: Option<bool>,
    /// Whether this is seen from inside a virtual machine, whose bus need not look like the real one.
    pub virtual_machine: Option<bool>,
}

/// One NUMA node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NumaNode {
    /// Its number.
    pub id: u32,
    /// Its hardware threads, as `0-63`.
    pub cpus: Option<String>,
    /// Its memory in bytes.
    pub memory_bytes: Option<u64>,
    /// Distances to every node in the order of `Host::numa`, as the firmware states them; 10 is the node itself.
    pub distances: Vec<u32>,
}

/// What the IOMMU does with the addresses of devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Iommu {
    /// There is none, or it is off.
    Off,
    /// On, but devices use the machine's own addresses.
    Passthrough,
    /// On, and every access of a device is translated.
    Translated,
}

/// A link that several GPUs share on their way to the processor: the port above a PCIe switch.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Uplink {
    /// Address of the bridge, where it is known.
    pub bridge: Option<String>,
    /// The GPUs below it, ascending.
    pub gpus: Vec<usize>,
}

impl Pcie {
    /// What the link carries each way when it is awake, in GB/s: the best generation that GPU and slot can do, and the
    /// lanes in use now (lanes do not save power, so lanes that are missing now are missing).
    pub fn gb_s(&self) -> Option<f64> {
        pcie_gb_s(self.gen_max.or(self.gen_now)?, self.width_now.or(self.width_max)?)
    }
}

impl Machine {
    /// How many GPUs there are.
    pub fn len(&self) -> usize {
        self.gpus.len()
    }

    /// Whether there is no GPU.
    pub fn is_empty(&self) -> bool {
        self.gpus.is_empty()
    }

    /// The class of the path between two GPUs.
    pub fn class(&self, a: usize, b: usize) -> Option<LinkClass> {
        if a == b {
            return (a < self.len()).then_some(LinkClass::Itself);
        }
        *self.links.as_ref()?.get(a, b)?
    }

    /// Every pair `(a, b, class)` with `a < b`.
    pub fn pairs(&self) -> impl Iterator<Item = (usize, usize, Option<LinkClass>)> {
        let n = self.len();
        (0..n).flat_map(move |a| (a + 1..n).map(move |b| (a, b, self.class(a, b))))
    }

    /// Whether two GPUs reach each other without crossing the interconnect between NUMA nodes.
    fn near(&self, a: usize, b: usize) -> Option<bool> {
        self.class(a, b).map(|class| !class.crosses_nodes())
    }

    /// The islands: groups of GPUs that reach each other without crossing the processors' interconnect, each ascending,
    /// ordered by their first GPU. Every two GPUs of an island are near. `None` if a class is unknown.
    ///
    /// NVLinks may tie GPUs of different sockets, so nearness need not carry over: GPUs on one root come together
    /// first, and groups are joined only where all their members are near.
    pub fn islands(&self) -> Option<Vec<Vec<usize>>> {
        if self.pairs().any(|(_, _, class)| class.is_none()) {
            return None;
        }
        let on_bus = |a: usize, b: usize| self.class(a, b).is_some_and(|c| !c.crosses_nodes() && !c.is_nvlink());
        let mut groups: Vec<Vec<usize>> = Vec::new();
        for gpu in 0..self.len() {
            let fits = |g: &Vec<usize>| {
                g.iter().any(|&other| on_bus(gpu, other)) && g.iter().all(|&o| self.near(gpu, o) == Some(true))
            };
            match groups.iter_mut().find(|g| fits(g)) {
                Some(group) => group.push(gpu),
                None => groups.push(vec![gpu]),
            }
        }
        let mut islands: Vec<Vec<usize>> = Vec::new();
        for group in groups {
            let all_near = |i: &Vec<usize>| i.iter().all(|&a| group.iter().all(|&b| self.near(a, b) == Some(true)));
            match islands.iter_mut().find(|i| all_near(i)) {
                Some(island) => island.extend(&group),
                None => islands.push(group),
            }
        }
        islands.iter_mut().for_each(|island| island.sort_unstable());
        islands.sort();
        Some(islands)
    }

    /// Whether NVLink joins every two GPUs. One GPU alone is joined; `None` if that is not known.
    pub fn fully_connected_by_nvlink(&self) -> Option<bool> {
        let mut all_known = true;
        for (a, b, class) in self.pairs() {
            let by_driver = self.p2p.nvlink.as_ref().and_then(|t| t.get(a, b)).map(|s| *s == P2pState::Ok);
            match class.map(LinkClass::is_nvlink).or(by_driver) {
                Some(false) => return Some(false),
                Some(true) => {}
                None => all_known = false,
            }
        }
        all_known.then_some(true)
    }

    /// What the path between two GPUs carries each way at best, in GB/s: the NVLinks that join them, or the narrower of
    /// their PCIe links. Interconnects between host bridges and sockets can be narrower; they are not known here.
    pub fn pair_gb_s(&self, a: usize, b: usize) -> Option<f64> {
        match self.class(a, b)? {
            LinkClass::Itself => self.gpus[a].memory_gb_s,
            LinkClass::NvLink(links) => {
                let one = self.gpus[a].nvlink_gb_s?.min(self.gpus.get(b)?.nvlink_gb_s?);
                Some(one * f64::from(links))
            }
            _ => Some(self.gpus[a].pcie.gb_s()?.min(self.gpus.get(b)?.pcie.gb_s()?)),
        }
    }

    /// Links that several GPUs share: by the bridges above them where the paths are known, and else by the classes `PIX`
    /// and `PXB`, which only GPUs below one switch, or one tree of switches, have.
    pub fn uplinks(&self) -> Vec<Uplink> {
        if !self.gpus.is_empty() && self.gpus.iter().all(|g| g.pci_path.is_some()) {
            return self.uplinks_by_path();
        }
        let mut groups: Vec<Vec<usize>> = Vec::new();
        for gpu in 0..self.len() {
            let shares = |g: &Vec<usize>| g.iter().any(|&o| self.class(gpu, o).is_some_and(LinkClass::on_switch));
            match groups.iter_mut().find(|g| shares(g)) {
                Some(group) => group.push(gpu),
                None => groups.push(vec![gpu]),
            }
        }
        groups.retain(|g| g.len() > 1);
        groups.into_iter().map(|gpus| Uplink { bridge: None, gpus }).collect()
    }

    /// Bridges with several GPUs below them. A switch below a switch has an uplink of its own; for each distinct set of
    /// GPUs only the bridge nearest to the root is told, because a switch appears as several bridges.
    fn uplinks_by_path(&self) -> Vec<Uplink> {
        let mut below: BTreeMap<&str, (usize, Vec<usize>)> = BTreeMap::new();
        for (gpu, path) in self.gpus.iter().enumerate().filter_map(|(i, g)| Some((i, g.pci_path.as_ref()?))) {
            for (depth, bridge) in path.iter().enumerate() {
                below.entry(bridge).or_insert((depth, Vec::new())).1.push(gpu);
            }
        }
        let mut top: BTreeMap<Vec<usize>, (usize, &str)> = BTreeMap::new();
        for (bridge, (depth, gpus)) in below.into_iter().filter(|(_, (_, gpus))| gpus.len() > 1) {
            let found = top.entry(gpus).or_insert((depth, bridge));
            if depth < found.0 {
                *found = (depth, bridge);
            }
        }
        top.into_iter().map(|(gpus, (_, at))| Uplink { bridge: Some(at.to_string()), gpus }).collect()
    }

    /// Whether the driver allows both reads and writes between two GPUs, in both directions; `None` if it was not asked or
    /// does not know.
    pub fn p2p_allowed(&self, a: usize, b: usize) -> Option<bool> {
        let says = |t: &Option<Pairs<P2pState>>| {
            let states = [*t.as_ref()?.get(a, b)?, *t.as_ref()?.get(b, a)?];
            let refused = states.iter().any(|s| !matches!(s, P2pState::Ok | P2pState::Unknown));
            if refused { Some(false) } else { (!states.contains(&P2pState::Unknown)).then_some(true) }
        };
        match (says(&self.p2p.read), says(&self.p2p.write)) {
            (None, None) => None,
            (read, write) => Some(read != Some(false) && write != Some(false)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(rows: &[&str]) -> Machine {
        let rows: Vec<Vec<Option<LinkClass>>> =
            rows.iter().map(|r| r.split_whitespace().map(|w| w.parse().ok()).collect()).collect();
        let gpus = (0..rows.len() as u32).map(|index| Gpu { index, ..Gpu::default() }).collect();
        Machine { gpus, links: Pairs::new(rows).ok(), ..Machine::default() }
    }

    #[test]
    fn islands_end_where_nodes_do() {
        let two = machine(&["X NODE SYS SYS", "NODE X SYS SYS", "SYS SYS X PHB", "SYS SYS PHB X"]);
        assert_eq!(two.islands(), Some(vec![vec![0, 1], vec![2, 3]]));
        assert_eq!(two.fully_connected_by_nvlink(), Some(false));
        let one = machine(&["X NV18 NV18", "NV18 X NV18", "NV18 NV18 X"]);
        assert_eq!(one.islands(), Some(vec![vec![0, 1, 2]]));
        assert_eq!(one.fully_connected_by_nvlink(), Some(true));
        assert_eq!(machine(&["X ?", "? X"]).islands(), None);
    }

    #[test]
    fn a_bridge_between_sockets_does_not_make_one_island() {
        let bridged = machine(&["X NV4 NODE SYS", "NV4 X SYS NODE", "NODE SYS X NV4", "SYS NODE NV4 X"]);
        assert_eq!(bridged.islands(), Some(vec![vec![0, 2], vec![1, 3]]));
    }

    #[test]
    fn pairs_are_as_wide_as_their_narrower_end() {
        let mut m = machine(&["X PHB NV4", "PHB X PHB", "NV4 PHB X"]);
        let pcie = |generation, width| Pcie { gen_max: Some(generation), width_now: Some(width), ..Pcie::default() };
        (m.gpus[0].pcie, m.gpus[1].pcie) = (pcie(5, 16), pcie(4, 8));
        (m.gpus[0].nvlink_gb_s, m.gpus[2].nvlink_gb_s) = (Some(14.0625), Some(14.0625));
        assert_eq!(m.pair_gb_s(0, 1), pcie_gb_s(4, 8));
        assert_eq!(m.pair_gb_s(0, 2), Some(56.25));
        assert_eq!(m.pair_gb_s(1, 2), None);
    }

    #[test]
    fn uplinks_are_found_by_class_and_by_path() {
        let mut m = machine(&["X PIX NODE", "PIX X NODE", "NODE NODE X"]);
        assert_eq!(m.uplinks(), [Uplink { bridge: None, gpus: vec![0, 1] }]);
        for (gpu, path) in m.gpus.iter_mut().zip([["a", "b"], ["a", "c"], ["d", "e"]]) {
            gpu.pci_path = Some(path.map(String::from).to_vec());
        }
        assert_eq!(m.uplinks(), [Uplink { bridge: Some("a".into()), gpus: vec![0, 1] }]);
    }

    #[test]
    fn a_machine_survives_json() {
        let mut m = machine(&["X NV4", "NV4 X"]);
        m.gpus[0].compute_capability = Some((8, 6));
        m.host.iommu = Some(Iommu::Translated);
        let text = serde_json::to_string(&m).unwrap_or_default();
        assert!(text.contains("\"NV4\"") && text.contains("\"translated\""), "{text}");
        assert_eq!(serde_json::from_str::<Machine>(&text).ok(), Some(m));
        assert!(serde_json::from_str::<Machine>("{\"links\": [[\"X\", \"PIX\"]]}").is_err());
    }
}
