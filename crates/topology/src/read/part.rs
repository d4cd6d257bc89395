//! What one text, or a part of it, says about a machine, before it is put together with the rest. No text is read here.

use crate::link::{LinkClass, P2pState, Pairs};
use crate::machine::{Gpu, Host};

/// What a parser found.
#[derive(Clone, Debug, Default)]
pub(crate) struct Part {
    /// Which GPUs are described, and how far.
    pub(crate) gpus: Vec<Found>,
    /// Classes of paths.
    pub(crate) links: Option<Table<Option<LinkClass>>>,
    /// Whether the classes were computed from a tree, so that a stated class goes before.
    pub(crate) computed: bool,
    /// Whether the classes leave NVLink out on purpose, as `topo -mp` does.
    pub(crate) without_nvlink: bool,
    /// What the driver says of peer access.
    pub(crate) p2p: Vec<(Capability, Table<P2pState>)>,
    /// Measured bandwidths in GB/s with peer access on and off.
    pub(crate) measured: Option<Table<Option<f64>>>,
    pub(crate) staged: Option<Table<Option<f64>>>,
    /// Whether CUDA lets the row's GPU reach the column's, as a program was told.
    pub(crate) peers: Option<Table<Option<bool>>>,
    pub(crate) host: Host,
    /// Where facts of the host were found.
    pub(crate) host_line: Option<usize>,
    /// The line of a matrix in which the driver names no processor near any GPU.
    pub(crate) no_affinity: Option<usize>,
    /// The line that shows that the GPUs run under Windows.
    pub(crate) windows: Option<usize>,
    pub(crate) nics: Vec<String>,
    pub(crate) notes: Vec<String>,
}

/// One GPU as far as a text describes it.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) key: Key,
    pub(crate) line: usize,
    pub(crate) gpu: Gpu,
    /// Whether the name is one of a data base, which the driver's own name goes before.
    pub(crate) weak_name: bool,
}

/// How a text names a GPU.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key {
    /// By its number.
    Index(u32),
    /// By its address on the bus.
    Bus(String),
    /// Not at all: it is the n-th that the text lists.
    Order(usize),
}

/// Which kind of peer access a table is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Capability {
    Read,
    Write,
    Atomics,
    NvLink,
}

/// A square table and how its rows are named.
#[derive(Clone, Debug)]
pub(crate) struct Table<T> {
    pub(crate) keys: Vec<Key>,
    /// The line of each row.
    pub(crate) lines: Vec<usize>,
    pub(crate) pairs: Pairs<T>,
}

/// `00000000:41:00.0` and `0000:41:00.0` as `0000:41:00.0`; `None` if it is no address.
pub(crate) fn bus_id(text: &str) -> Option<String> {
    let text = text.trim().to_ascii_lowercase();
    let (rest, function) = text.rsplit_once('.')?;
    let (rest, device) = rest.rsplit_once(':')?;
    let (domain, bus) = rest.split_once(':').unwrap_or(("0", rest));
    let hex = |text: &str, digits: usize| {
        let plain = (1..=digits).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit());
        plain.then(|| u32::from_str_radix(text, 16).ok()).flatten()
    };
    let (domain, bus) = (hex(domain, 8)?, hex(bus, 2)?);
    let (device, function) = (hex(device, 2)?, hex(function, 1)?);
    (device < 32 && function < 8).then(|| format!("{domain:04x}:{bus:02x}:{device:02x}.{function:x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_one_form() {
        assert_eq!(bus_id("00000000:C1:00.0").as_deref(), Some("0000:c1:00.0"));
        assert_eq!(bus_id("0001:00:1f.7").as_deref(), Some("0001:00:1f.7"));
        assert_eq!(bus_id("41:00.0").as_deref(), Some("0000:41:00.0"));
        for wrong in ["", ".", "41:00", "0000:00:20.0", "0000:00:00.8", "x:00:00.0", "0:0:0:0.0", "+1:00:00.0"] {
            assert_eq!(bus_id(wrong), None, "{wrong}");
        }
    }
}
