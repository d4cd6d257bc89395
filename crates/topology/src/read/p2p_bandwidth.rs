//! What CUDA's sample `p2pBandwidthLatencyTest` prints: bandwidth between every two GPUs in one direction, with peer
//! access off and on. Peer access that is slower than the way through host memory is staged or redirected.

use super::error::{Fault, ReadError};
use super::lines::Line;
use super::part::{Found, Key, Part, Table, bus_id};
use crate::limits::{GPUS_MAX, NAME_CHARS_MAX};
use crate::link::Pairs;
use crate::machine::Gpu;

/// Whether a line is a title of the sample's tables that is wanted.
pub(crate) fn is_start(line: &str) -> bool {
    wanted(line).is_some()
}

/// Whether peer access is on in the table that a line is the title of. Reads are not taken: older versions do not
/// measure them.
fn wanted(line: &str) -> Option<bool> {
    let rest = line.trim_start().strip_prefix("Unidirectional P2P=")?;
    match rest {
        _ if !rest.contains("Bandwidth") || rest.contains("(P2P Reads)") => None,
        _ if rest.starts_with("Disabled") => Some(false),
        _ if rest.starts_with("Enabled") => Some(true),
        _ => None,
    }
}

/// A line that lists a device: `Device: 0, NVIDIA GeForce RTX 4090, pciBusID: 2, pciDeviceID: 0, pciDomainID:0`.
pub(crate) fn device(line: &Line) -> Option<Found> {
    let rest = line.text.trim_start().strip_prefix("Device: ")?;
    let (index, rest) = rest.split_once(", ")?;
    let (name, rest) = rest.split_once(", pciBusID: ")?;
    let (bus, rest) = rest.split_once(", pciDeviceID: ")?;
    let (device, domain) = rest.split_once(", pciDomainID:")?;
    let index = index.parse().ok().filter(|&i| i < 10_000)?;
    let bus = bus_id(&format!("{}:{bus}:{device}.0", domain.trim()))?;
    let gpu = Gpu {
        index,
        name: Some(name.chars().take(NAME_CHARS_MAX).collect()),
        pci_bus_id: Some(bus.clone()),
        ..Gpu::default()
    };
    // CUDA numbers devices its own way, the fastest first: the address tells which one it is.
    Some(Found { key: Key::Bus(bus), line: line.number, gpu, weak_name: false })
}

/// What a program was told about peer access from one device to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    from: usize,
    to: usize,
    can: bool,
    line: usize,
}

/// A line that says whether a device can access another: `Device=0 CANNOT Access Peer Device=1`.
pub(crate) fn access(line: &Line) -> Option<Access> {
    let words = line.words();
    let [from, verb, "Access", "Peer", to] = words[..] else { return None };
    let number = |word: &str| word.strip_prefix("Device=")?.parse::<usize>().ok().filter(|n| *n < GPUS_MAX);
    let can = match verb {
        "CAN" => true,
        "CANNOT" => false,
        _ => return None,
    };
    Some(Access { from: number(from)?, to: number(to)?, can, line: line.number }).filter(|_| !line.cut)
}

/// The rows below `P2P Connectivity Matrix`: 1 where a device can access another, and its own column.
pub(crate) fn connectivity(lines: &[Line]) -> Vec<Access> {
    let mut found = Vec::new();
    if lines[0].text.trim() != "P2P Connectivity Matrix" {
        return found;
    }
    let Some(n) = lines.get(1).map(Line::words).filter(|w| w.first() == Some(&"D\\D")).map(|w| w.len() - 1) else {
        return found;
    };
    for (from, line) in lines[2..].iter().take(n.min(GPUS_MAX)).enumerate() {
        let words = line.words();
        let bits = words.iter().skip(1).all(|w| matches!(*w, "0" | "1"));
        // A damaged row says nothing, and the lines above it say the same.
        if words.len() != n + 1 || words[0].parse() != Ok(from) || !bits {
            break;
        }
        let cells = words[1..].iter().enumerate().filter(|&(to, _)| to != from);
        found.extend(cells.map(|(to, w)| Access { from, to, can: *w == "1", line: line.number }));
    }
    found
}

/// All of them as a table; `devices` are those listed above. `None` without any. Where two say different things, none is
/// taken.
pub(crate) fn peers(said: &[Access], devices: &[Found]) -> Option<Part> {
    let last = said.iter().map(|a| a.from.max(a.to)).chain(devices.iter().map(|d| d.gpu.index as usize)).max()?;
    let n = (last + 1).min(GPUS_MAX);
    let first = said.first()?.line;
    let cell = |a: usize, b: usize| {
        let mut of_pair = said.iter().filter(|s| (s.from, s.to) == (a, b)).map(|s| s.can);
        let can = of_pair.next()?;
        of_pair.all(|other| other == can).then_some(can)
    };
    let table = Table { keys: keys(n, devices), lines: vec![first; n], pairs: Pairs::from_fn(n, cell) };
    Some(Part { peers: Some(table), ..Part::default() })
}

/// How the texts name the first `n` devices.
fn keys(n: usize, devices: &[Found]) -> Vec<Key> {
    let key = |at: usize| devices.iter().find(|d| d.gpu.index as usize == at).map_or(Key::Order(at), |d| d.key.clone());
    (0..n).map(key).collect()
}

/// Reads the table below the title `lines[0]`; `devices` are those listed above. Gives the facts and the lines taken.
pub(crate) fn read(file: &str, lines: &[Line], devices: &[Found]) -> Result<(Part, usize), ReadError> {
    let enabled = wanted(&lines[0].text).unwrap_or_default();
    let mut part = Part::default();
    let (Some(header), rest) = (lines.get(1), lines.get(2..).unwrap_or_default()) else { return Ok((part, 1)) };
    let words = header.words();
    if words.first() != Some(&"D\\D") {
        return Ok((part, 1));
    }
    let n = words.len() - 1;
    if n > GPUS_MAX {
        return Err(ReadError::new(file, header.number, Fault::TooMany { what: "GPUs", found: n, most: GPUS_MAX }));
    }
    let (mut rows, mut numbers) = (Vec::new(), Vec::new());
    for line in rest.iter().take(n) {
        let words = line.words();
        let number = words.first().and_then(|w| w.parse::<usize>().ok());
        if number != Some(rows.len()) {
            break;
        }
        if words.len() != n + 1 {
            let fault = Fault::CellCount { gpu: rows.len() as u32, cells: words.len() - 1, columns: n };
            return Err(ReadError::new(file, line.number, fault));
        }
        let value = |w: &&str| w.parse::<f64>().ok().filter(|v| v.is_finite() && *v >= 0.0);
        let cells: Option<Vec<f64>> = words[1..].iter().map(value).collect();
        let Some(cells) = cells else {
            let fault = Fault::Value { value: line.text.chars().take(NAME_CHARS_MAX).collect(), what: "row of GB/s" };
            return Err(ReadError::new(file, line.number, fault));
        };
        rows.push(cells.into_iter().map(Some).collect::<Vec<_>>());
        numbers.push(line.number);
    }
    if rows.len() < n {
        let fault = Fault::RowMissing { columns: n, missing: rows.len() as u32 };
        return Err(ReadError::new(file, header.number, fault));
    }
    if let Ok(pairs) = Pairs::new(rows) {
        let table = Some(Table { keys: keys(n, devices), lines: numbers, pairs });
        (if enabled { part.measured = table } else { part.staged = table });
    }
    Ok((part, 2 + n))
}
