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
    let key = |at: usize| devices.iter().find(|d| d.gpu.index as usize == at).map_or(Key::Order(at), |d| d.key.clone());
    if let Ok(pairs) = Pairs::new(rows) {
        let table = Some(Table { keys: (0..n).map(key).collect(), lines: numbers, pairs });
        (if enabled { part.measured = table } else { part.staged = table });
    }
    Ok((part, 2 + n))
}
