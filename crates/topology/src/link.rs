//! What connects two GPUs, as `nvidia-smi topo` names it, and how many bytes a PCIe link carries. No machine is known
//! here, only the values that its tables hold.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// How a path between two GPUs runs, from the nearest to the farthest. Printed and stored as `nvidia-smi topo -m`
/// prints it: `X`, `NV4`, `PIX`, `PXB`, `PHB`, `NODE`, `SYS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum LinkClass {
    /// The GPU itself.
    Itself,
    /// So many NVLinks, bonded.
    NvLink(u8),
    /// Through at most one PCIe bridge: two ports of one switch.
    Pix,
    /// Through several PCIe bridges, not through a host bridge.
    Pxb,
    /// Through a PCIe host bridge, typically the processor.
    Phb,
    /// Through the interconnect between the host bridges of one NUMA node.
    Node,
    /// Through the interconnect between NUMA nodes.
    Sys,
}

/// A word that names no link class or no P2P state.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is neither X, NV1 to NV18, PIX, PXB, PHB, NODE nor SYS")]
pub struct UnknownClass(pub String);

/// As many NVLinks as a class may bond. No GPU has more than 18.
pub const NVLINKS_MAX: u8 = 18;

impl LinkClass {
    /// Whether the path crosses the interconnect between NUMA nodes.
    pub fn crosses_nodes(self) -> bool {
        self == LinkClass::Sys
    }

    /// Whether the path runs over NVLink.
    pub fn is_nvlink(self) -> bool {
        matches!(self, LinkClass::NvLink(_))
    }

    /// Whether the path goes through the processor: a host bridge or more.
    pub fn through_host(self) -> bool {
        matches!(self, LinkClass::Phb | LinkClass::Node | LinkClass::Sys)
    }

    /// Whether the path stays on PCIe switches.
    pub fn on_switch(self) -> bool {
        matches!(self, LinkClass::Pix | LinkClass::Pxb)
    }
}

impl FromStr for LinkClass {
    type Err = UnknownClass;

    /// Reads a word of the matrix. `SOC` and `PSB`, which old drivers print, are `SYS` and `PIX` of today.
    fn from_str(word: &str) -> Result<Self, UnknownClass> {
        let unknown = || UnknownClass(word.to_string());
        Ok(match word {
            "X" => LinkClass::Itself,
            "PIX" | "PSB" => LinkClass::Pix,
            "PXB" => LinkClass::Pxb,
            "PHB" => LinkClass::Phb,
            "NODE" => LinkClass::Node,
            "SYS" | "SOC" => LinkClass::Sys,
            _ => {
                let digits = word.strip_prefix("NV").ok_or_else(unknown)?;
                let plain = !digits.starts_with(['0', '+']);
                let count = digits.parse().ok().filter(|n| plain && (1..=NVLINKS_MAX).contains(n));
                LinkClass::NvLink(count.ok_or_else(unknown)?)
            }
        })
    }
}

impl fmt::Display for LinkClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match self {
            LinkClass::Itself => "X",
            LinkClass::NvLink(n) => return f.pad(&format!("NV{n}")),
            LinkClass::Pix => "PIX",
            LinkClass::Pxb => "PXB",
            LinkClass::Phb => "PHB",
            LinkClass::Node => "NODE",
            LinkClass::Sys => "SYS",
        };
        f.pad(word)
    }
}

impl TryFrom<String> for LinkClass {
    type Error = UnknownClass;
    fn try_from(word: String) -> Result<Self, UnknownClass> {
        word.parse()
    }
}

impl From<LinkClass> for String {
    fn from(class: LinkClass) -> Self {
        class.to_string()
    }
}

/// What the driver says of one kind of access between two GPUs, as `nvidia-smi topo -p2p` prints it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum P2pState {
    /// The GPU itself.
    #[serde(rename = "X")]
    Itself,
    /// The driver allows it. This does not prove that data arrives.
    #[serde(rename = "OK")]
    Ok,
    /// The chipset is not supported.
    #[serde(rename = "CNS")]
    ChipsetNotSupported,
    /// The GPU is not supported: the driver withholds it from this card.
    #[serde(rename = "GNS")]
    GpuNotSupported,
    /// The topology is not supported.
    #[serde(rename = "TNS")]
    TopologyNotSupported,
    /// Switched off by a registry key of the driver.
    #[serde(rename = "DR")]
    DisabledByRegistry,
    /// Not supported, for no stated reason.
    #[serde(rename = "NS")]
    NotSupported,
    /// The driver does not know.
    #[serde(rename = "U")]
    Unknown,
}

impl P2pState {
    /// The state that a word of the matrix names.
    pub fn from_word(word: &str) -> Option<P2pState> {
        Some(match word {
            "X" => P2pState::Itself,
            "OK" => P2pState::Ok,
            "CNS" => P2pState::ChipsetNotSupported,
            "GNS" => P2pState::GpuNotSupported,
            "TNS" => P2pState::TopologyNotSupported,
            "DR" => P2pState::DisabledByRegistry,
            "NS" => P2pState::NotSupported,
            "U" => P2pState::Unknown,
            _ => return None,
        })
    }

    /// The word as `nvidia-smi` prints it.
    pub fn word(self) -> &'static str {
        match self {
            P2pState::Itself => "X",
            P2pState::Ok => "OK",
            P2pState::ChipsetNotSupported => "CNS",
            P2pState::GpuNotSupported => "GNS",
            P2pState::TopologyNotSupported => "TNS",
            P2pState::DisabledByRegistry => "DR",
            P2pState::NotSupported => "NS",
            P2pState::Unknown => "U",
        }
    }
}

/// A square table with one value per ordered pair of GPUs, row by row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<Vec<T>>", into = "Vec<Vec<T>>")]
#[serde(bound(serialize = "T: Clone + Serialize", deserialize = "T: Deserialize<'de>"))]
pub struct Pairs<T> {
    rows: Vec<Vec<T>>,
}

/// A table whose rows are not all as long as the table has rows.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("row {row} of a table of {rows} GPUs has {cells} cells")]
pub struct NotSquare {
    /// The first wrong row, from 0.
    pub row: usize,
    /// How many rows the table has.
    pub rows: usize,
    /// How many cells the wrong row has.
    pub cells: usize,
}

impl<T> Pairs<T> {
    /// A table from its rows.
    pub fn new(rows: Vec<Vec<T>>) -> Result<Self, NotSquare> {
        let n = rows.len();
        match rows.iter().position(|row| row.len() != n) {
            Some(row) => Err(NotSquare { row, rows: n, cells: rows[row].len() }),
            None => Ok(Pairs { rows }),
        }
    }

    /// A table of `n` GPUs whose value for each pair is computed.
    pub fn from_fn(n: usize, mut value: impl FnMut(usize, usize) -> T) -> Self {
        Pairs { rows: (0..n).map(|a| (0..n).map(|b| value(a, b)).collect()).collect() }
    }

    /// How many GPUs the table has.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether the table has no GPU.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The value from `a` to `b`; `None` outside the table.
    pub fn get(&self, a: usize, b: usize) -> Option<&T> {
        self.rows.get(a)?.get(b)
    }

    /// Every unordered pair `(a, b, value)` with `a < b`.
    pub fn pairs(&self) -> impl Iterator<Item = (usize, usize, &T)> {
        self.rows
            .iter()
            .enumerate()
            .flat_map(|(a, row)| row.iter().enumerate().skip(a + 1).map(move |(b, v)| (a, b, v)))
    }

    /// The first pair `(a, b)` whose two directions differ.
    pub fn asymmetry(&self) -> Option<(usize, usize)>
    where
        T: PartialEq,
    {
        self.pairs().map(|(a, b, _)| (a, b)).find(|&(a, b)| self.rows[a][b] != self.rows[b][a])
    }
}

impl<T> TryFrom<Vec<Vec<T>>> for Pairs<T> {
    type Error = NotSquare;
    fn try_from(rows: Vec<Vec<T>>) -> Result<Self, NotSquare> {
        Pairs::new(rows)
    }
}

impl<T> From<Pairs<T>> for Vec<Vec<T>> {
    fn from(pairs: Pairs<T>) -> Self {
        pairs.rows
    }
}

/// Bytes that a PCIe link carries each way, in GB/s (10^9 bytes), after line encoding and before packet headers:
/// transfer rate x lanes x encoding (8b/10b for generations 1 and 2, 128b/130b for 3 to 5; generation 6 carries 236
/// bytes of packets in each 256-byte flit, as the PCI Express Base Specification 6.0 lays it out). `None` for a
/// generation or a width that does not exist.
pub fn pcie_gb_s(generation: u8, width: u8) -> Option<f64> {
    let lane = match generation {
        1 => 2.5 * 8.0 / 10.0 / 8.0,
        2 => 5.0 * 8.0 / 10.0 / 8.0,
        3 => 8.0 * 128.0 / 130.0 / 8.0,
        4 => 16.0 * 128.0 / 130.0 / 8.0,
        5 => 32.0 * 128.0 / 130.0 / 8.0,
        6 => 64.0 * 236.0 / 256.0 / 8.0,
        _ => return None,
    };
    [1, 2, 4, 8, 12, 16, 32].contains(&width).then(|| lane * f64::from(width))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_round_trip_and_others_are_refused() {
        for word in ["X", "NV1", "NV18", "PIX", "PXB", "PHB", "NODE", "SYS"] {
            assert_eq!(word.parse::<LinkClass>().map(|c| c.to_string()), Ok(word.to_string()));
        }
        assert_eq!("SOC".parse(), Ok(LinkClass::Sys));
        for word in ["", "NV", "NV0", "NV04", "NV19", "NV+4", "OK", "sys", "SYS1", "N/A"] {
            assert!(word.parse::<LinkClass>().is_err(), "{word}");
        }
        for word in ["X", "OK", "CNS", "GNS", "TNS", "DR", "NS", "U"] {
            assert_eq!(P2pState::from_word(word).map(P2pState::word), Some(word));
        }
    }

    #[test]
    fn pcie_rates_are_those_after_encoding() {
        let at = |g, w| (pcie_gb_s(g, w).unwrap_or(f64::NAN) * 100.0).round() / 100.0;
        assert_eq!([at(1, 16), at(2, 16), at(3, 16), at(4, 16), at(5, 16)], [4.0, 8.0, 15.75, 31.51, 63.02]);
        assert_eq!([at(4, 8), at(5, 8), at(6, 16)], [15.75, 31.51, 118.0]);
        assert_eq!(pcie_gb_s(7, 16), None);
        assert_eq!(pcie_gb_s(4, 3), None);
    }

    #[test]
    fn tables_are_square() {
        assert_eq!(Pairs::new(vec![vec![1, 2], vec![3]]), Err(NotSquare { row: 1, rows: 2, cells: 1 }));
        let table = Pairs::from_fn(3, |a, b| a * 10 + b);
        assert_eq!(table.pairs().map(|(a, b, v)| (a, b, *v)).collect::<Vec<_>>(), [(0, 1, 1), (0, 2, 2), (1, 2, 12)]);
        assert_eq!(table.asymmetry(), Some((0, 1)));
        assert_eq!(Pairs::from_fn(3, |a, b| a + b).asymmetry(), None);
    }
}
