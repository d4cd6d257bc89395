//! What hops cost: `data/links.toml`, with where each figure is from.

use serde::Deserialize;
use std::collections::BTreeMap;

const DATA: &str = include_str!("../../data/links.toml");

macro_rules! costs {
    ($($(#[$doc:meta])* $variant:ident = $key:literal,)*) => {
        /// One figure of the data file, by name. Times in microseconds, rates in GB/s (10^9 bytes) each way.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Cost { $($(#[$doc])* $variant,)* }

        impl Cost {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Its name in the data file.
            pub fn key(self) -> &'static str {
                match self { $(Self::$variant => $key,)* }
            }
        }
    };
}
costs! {
    /// One way over NVLink.
    LatencyNvlink = "latency_nvlink",
    /// One way below one PCIe switch.
    LatencySwitch = "latency_switch",
    /// One way across roots of one socket.
    LatencyRoot = "latency_root",
    /// One way across sockets.
    LatencySocket = "latency_socket",
    /// One way through pinned host memory.
    LatencyPinned = "latency_pinned",
    /// Every call.
    Call = "call",
    /// Every call of a kernel whose flags are in its data.
    CallPush = "call_push",
    /// What was marked as not come yet is marked so again.
    Clear = "clear",
    /// Every dependent hop.
    Poll = "poll",
    /// One block, 1000 bytes of the own part.
    StagePerKb = "stage_per_kb",
    /// One block, 1000 bytes to and from one peer.
    PeerPerKb = "peer_per_kb",
    /// Before a flag that is apart from its data.
    Fence = "fence",
    /// Residual add and norm in the same kernel.
    Fused = "fused",
    /// Of the PCIe rate.
    PcieEfficiency = "pcie_efficiency",
    /// Of the PCIe rate, by reads of pinned host memory.
    PinnedRead = "pinned_read",
    /// Of the NVLink rate.
    NvlinkEfficiency = "nvlink_efficiency",
    /// Between two sockets.
    Interconnect = "interconnect",
    /// Posted writes out of a switch whose fabric collapses.
    Collapse = "collapse",
    /// NCCL, LL: base.
    NcclBase = "nccl_base",
    /// NCCL, LL: per hop.
    NcclHopLl = "nccl_hop_ll",
    /// The same through host memory.
    NcclHopLlPinned = "nccl_hop_ll_pinned",
    /// NCCL, Simple: per hop.
    NcclHopSimple = "nccl_hop_simple",
    /// NCCL, Simple: base.
    NcclBaseSimple = "nccl_base_simple",
}

/// Where a figure is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// Somebody else measured it.
    Published,
    /// We did.
    Measured,
    /// A constant in somebody's source code.
    Stated,
    /// Found by calibration on the rows.
    Fitted,
    /// Nobody's figure.
    Assumed,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    value: f64,
    source: Source,
    prior: Option<f64>,
    #[serde(default = "one")]
    within: f64,
    why: String,
}

fn one() -> f64 {
    1.0
}

/// Figures for all costs.
#[derive(Clone, Debug)]
pub struct Params {
    entries: BTreeMap<Cost, Entry>,
}

impl Params {
    /// Those of the data file, which is part of the program.
    pub fn stored() -> Self {
        let mut table: BTreeMap<String, Entry> = toml::from_str(DATA).expect("the data file is tested");
        let entry = |&cost: &Cost| (cost, table.remove(cost.key()).expect("the data file is tested"));
        let entries = Cost::ALL.iter().map(entry).collect();
        assert!(table.is_empty(), "the data file has costs that nobody knows: {:?}", table.keys());
        Self { entries }
    }

    /// A figure.
    pub fn get(&self, cost: Cost) -> f64 {
        self.entries[&cost].value
    }

    /// Where it is from.
    pub fn source(&self, cost: Cost) -> Source {
        self.entries[&cost].source
    }

    /// What it is, in a line.
    pub fn why(&self, cost: Cost) -> &str {
        &self.entries[&cost].why
    }

    /// The same with another figure.
    pub fn with(&self, cost: Cost, value: f64) -> Self {
        let mut other = self.clone();
        if let Some(entry) = other.entries.get_mut(&cost) {
            entry.value = value;
        }
        other
    }

    /// What calibration may move: from where, and by which factor at most.
    pub fn free(&self) -> Vec<(Cost, f64, f64)> {
        self.entries.iter().filter_map(|(&cost, e)| Some((cost, e.prior?, e.within))).collect()
    }

    /// The same with all that calibration may move where it was before.
    pub fn priors(&self) -> Self {
        self.free().into_iter().fold(self.clone(), |params, (cost, prior, _)| params.with(cost, prior))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_data_file_has_every_cost_once_and_says_where_it_is_from() {
        let params = Params::stored();
        for &cost in Cost::ALL {
            assert!(params.get(cost) > 0.0 && !params.why(cost).is_empty(), "{}", cost.key());
        }
        for (cost, _, within) in params.free() {
            assert!(within > 1.0, "{}", cost.key());
            // What was published by somebody stays what it is.
            assert_ne!(params.source(cost), Source::Published, "{}", cost.key());
        }
        assert_eq!(params.with(Cost::Call, 9.0).get(Cost::Call), 9.0);
    }
}
