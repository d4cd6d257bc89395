//! What transfers between ranks share: ports of GPUs, uplinks of switches, the interconnect of sockets. Made of a
//! machine, or of the few words by which a published row describes one.

use super::{Cost, Params};
use tombolo_topology::verdicts::p2p_expected;
use tombolo_topology::{LinkClass, Machine, MeasuredAllReduce, P2pTest, pcie_gb_s};

/// What a layer does after its all-reduce, in the same kernel.
const FUSED: &str = "all_reduce_add_norm";

/// How two GPUs' transfers run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    /// Between ranks of one GPU: its own memory.
    Local,
    /// NVLink.
    Nvlink,
    /// Below one switch.
    Switch,
    /// Across roots of one socket.
    Root,
    /// Across sockets.
    Socket,
    /// Through pinned host memory.
    Pinned,
}

impl Wire {
    /// The one-way latency's name.
    pub fn latency(self) -> Cost {
        match self {
            Wire::Local | Wire::Nvlink => Cost::LatencyNvlink,
            Wire::Switch => Cost::LatencySwitch,
            Wire::Root => Cost::LatencyRoot,
            Wire::Socket => Cost::LatencySocket,
            Wire::Pinned => Cost::LatencyPinned,
        }
    }
}

/// Why nothing can be said about a machine's links.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum FabricError {
    #[error("the machine has {gpus} GPUs, rank {rank} needs GPU {gpu}")]
    NoGpu { rank: usize, gpu: usize, gpus: usize },
    #[error("what connects GPU {a} and GPU {b} is not known: give `nvidia-smi topo -m`")]
    UnknownLink { a: usize, b: usize },
    #[error("the PCIe link of GPU {gpu} is not known: give its generation and width")]
    UnknownPort { gpu: usize },
}

/// The links as ranks share them.
#[derive(Clone, Debug, PartialEq)]
pub struct Fabric {
    /// Every rank's GPU.
    pub gpu: Vec<usize>,
    /// What every GPU's PCIe port carries each way, in GB/s, before packet headers.
    pub port_gb_s: Vec<f64>,
    /// What NVLink carries between two GPUs each way, where it does.
    pub nvlink_gb_s: f64,
    /// `[gpu][gpu]`.
    pub wire: Vec<Vec<Wire>>,
    /// The switch above every GPU, where it shares its uplink with others.
    pub switch: Vec<Option<usize>>,
    /// The switch chip that every GPU is on, which may be several switches: where posted writes collapse.
    pub chip: Vec<Option<usize>>,
    /// Every GPU's socket.
    pub socket: Vec<usize>,
    /// Posted writes collapse when several GPUs of a switch write to GPUs behind several other roots.
    pub collapses: bool,
    /// All-reduces of this many ranks, fused with add and norm, that were measured on this machine.
    pub measured: Vec<MeasuredAllReduce>,
}

/// What a machine itself says of two GPUs reaching each other's memory: the driver's word, a test, NVLink.
fn access_said(machine: &Machine, a: usize, b: usize) -> Option<bool> {
    let tested = machine.p2p.tested.as_ref().and_then(|table| *table.get(a, b)?).map(|test| test == P2pTest::Right);
    let nvlink = machine.class(a, b).is_some_and(LinkClass::is_nvlink).then_some(true);
    machine.p2p_allowed(a, b).or(tested).or(nvlink)
}

/// Whether two GPUs reach each other's memory, as far as a machine says, or what is known of the unmodified driver and such
/// cards. `None`: nothing says so or otherwise.
pub fn peer_access(machine: &Machine, a: usize, b: usize) -> Option<bool> {
    access_said(machine, a, b).or_else(|| p2p_expected(machine, a, b))
}

/// What a plan takes for granted about peer access, in a sentence; `None`: nothing.
pub fn assumed_access(machine: &Machine) -> Option<String> {
    let (a, b, _) = machine.pairs().find(|&(a, b, _)| access_said(machine, a, b).is_none())?;
    let name = machine.gpus.get(a)?.name.as_deref().unwrap_or("these cards");
    Some(match p2p_expected(machine, a, b) {
        Some(false) => format!(
            "peer access is taken to be off: the unmodified driver gives {name} none over PCIe, and no text says otherwise \
             (`nvidia-smi topo -p2p r`)"
        ),
        _ => "peer access is taken to be on: no text says what the driver allows (`nvidia-smi topo -p2p r`)".into(),
    })
}

/// What was measured between just these GPUs, smallest message first: of each size the quickest transport. Rows of a
/// machine are of its first GPUs.
fn measured(machine: &Machine, gpus: &[usize]) -> Vec<MeasuredAllReduce> {
    let first = gpus.iter().enumerate().all(|(rank, &gpu)| rank == gpu);
    let is_ours = |row: &&MeasuredAllReduce| first && row.ranks == gpus.len() && row.what == FUSED;
    let mut rows: Vec<MeasuredAllReduce> = machine.all_reduce.iter().filter(is_ours).cloned().collect();
    rows.sort_by(|a, b| a.bytes.cmp(&b.bytes).then(a.us.total_cmp(&b.us)));
    rows.dedup_by_key(|row| row.bytes);
    rows
}

impl Fabric {
    /// The links between some GPUs of a machine, one rank each, in this order.
    ///
    /// # Errors
    /// A GPU that there is not, a link that is not known.
    pub fn of(machine: &Machine, gpus: &[usize]) -> Result<Self, FabricError> {
        let count = machine.len();
        if let Some((rank, &gpu)) = gpus.iter().enumerate().find(|&(_, &gpu)| gpu >= count) {
            return Err(FabricError::NoGpu { rank, gpu, gpus: count });
        }
        // Where the slot is not told, the card's own generation and all lanes.
        let whole = |gpu: usize| pcie_gb_s(machine.gpus[gpu].pcie.gen_gpu?, 16);
        let port = |gpu: usize| machine.gpus[gpu].pcie.gb_s().or_else(|| whole(gpu));
        let wire = |a: usize, b: usize| {
            let class = machine.class(gpus[a], gpus[b]).ok_or(FabricError::UnknownLink { a: gpus[a], b: gpus[b] })?;
            let allowed = peer_access(machine, gpus[a], gpus[b]) != Some(false);
            Ok(match class {
                LinkClass::Itself => Wire::Local,
                LinkClass::NvLink(_) => Wire::Nvlink,
                _ if !allowed => Wire::Pinned,
                LinkClass::Pix | LinkClass::Pxb => Wire::Switch,
                LinkClass::Phb | LinkClass::Node => Wire::Root,
                LinkClass::Sys => Wire::Socket,
            })
        };
        let n = gpus.len();
        let wires: Vec<Vec<Wire>> =
            (0..n).map(|a| (0..n).map(|b| wire(a, b)).collect()).collect::<Result<_, FabricError>>()?;
        let all_nvlink = wires.iter().flatten().all(|w| matches!(w, Wire::Local | Wire::Nvlink));
        let ports = gpus.iter().map(|&gpu| match port(gpu) {
            // Nothing crosses a port that nobody uses.
            None if all_nvlink => Ok(1.0),
            found => found.ok_or(FabricError::UnknownPort { gpu }),
        });
        let islands = machine.islands().unwrap_or_else(|| vec![gpus.to_vec()]);
        let uplinks = machine.uplinks();
        let pairs = (0..n).flat_map(|a| (0..n).map(move |b| (a, b)));
        let nvlink = pairs
            .filter(|&(a, b)| wires[a][b] == Wire::Nvlink)
            .filter_map(|(a, b)| machine.pair_gb_s(gpus[a], gpus[b]))
            .fold(f64::INFINITY, f64::min);
        let place = |groups: &[Vec<usize>], gpu: usize| groups.iter().position(|g| g.contains(&gpu));
        let switches: Vec<Vec<usize>> = uplinks.into_iter().map(|u| u.gpus).collect();
        Ok(Self {
            gpu: (0..n).collect(),
            port_gb_s: ports.collect::<Result<_, _>>()?,
            // 18 NVLinks of the fourth generation where it is not known.
            nvlink_gb_s: if nvlink.is_finite() { nvlink } else { 450.0 },
            wire: wires,
            switch: gpus.iter().map(|&gpu| place(&switches, gpu)).collect(),
            chip: gpus.iter().map(|&gpu| place(&switches, gpu)).collect(),
            socket: gpus.iter().map(|&gpu| place(&islands, gpu).unwrap_or(0)).collect(),
            // Only a measurement can tell.
            collapses: false,
            measured: measured(machine, gpus),
        })
    }

    /// A machine in a few words: `gpus` GPUs on ports of `port_gb_s`, `per_switch` of them below each switch (0: none
    /// below any), spread evenly over `sockets`.
    pub fn regular(gpus: usize, port_gb_s: f64, per_switch: usize, sockets: usize) -> Self {
        let per_socket = gpus.div_ceil(sockets.max(1));
        let socket = |gpu: usize| gpu / per_socket;
        let switch = |gpu: usize| (per_switch > 1).then(|| gpu / per_switch);
        let wire = |a: usize, b: usize| match (a == b, switch(a).is_some() && switch(a) == switch(b)) {
            (true, _) => Wire::Local,
            (_, true) => Wire::Switch,
            _ if socket(a) == socket(b) => Wire::Root,
            _ => Wire::Socket,
        };
        Self {
            gpu: (0..gpus).collect(),
            port_gb_s: vec![port_gb_s; gpus],
            nvlink_gb_s: 450.0,
            wire: (0..gpus).map(|a| (0..gpus).map(|b| wire(a, b)).collect()).collect(),
            switch: (0..gpus).map(switch).collect(),
            chip: (0..gpus).map(switch).collect(),
            socket: (0..gpus).map(socket).collect(),
            collapses: false,
            measured: Vec::new(),
        }
    }

    /// The same with every path between GPUs over another wire; through host memory, that between ranks of one GPU too.
    pub fn all_over(mut self, wire: Wire) -> Self {
        let over = |w: &mut Wire| {
            if *w != Wire::Local || wire == Wire::Pinned {
                *w = wire;
            }
        };
        self.wire.iter_mut().flatten().for_each(over);
        self
    }

    /// Ranks.
    pub fn ranks(&self) -> usize {
        self.gpu.len()
    }

    /// The wire between two ranks.
    pub fn between(&self, a: usize, b: usize) -> Wire {
        self.wire[self.gpu[a]][self.gpu[b]]
    }

    /// The ranks of every socket, for the islands schedule.
    pub fn islands(&self) -> Vec<Vec<usize>> {
        let mut sockets: Vec<usize> = self.socket.clone();
        sockets.sort_unstable();
        sockets.dedup();
        let on = |socket| (0..self.ranks()).filter(|&r| self.socket[self.gpu[r]] == socket).collect::<Vec<_>>();
        sockets.into_iter().map(on).filter(|island| !island.is_empty()).collect()
    }

    /// What a GPU's port carries each way after packet headers.
    pub(super) fn port(&self, gpu: usize, wire: Wire, params: &Params) -> f64 {
        match wire {
            Wire::Local | Wire::Nvlink => self.nvlink_gb_s * params.get(Cost::NvlinkEfficiency),
            _ => self.port_gb_s[gpu] * params.get(Cost::PcieEfficiency),
        }
    }
}
