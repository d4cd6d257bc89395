//! What no machine has: sizes, speeds and names that are damaged text, whatever it was read from. What follows from them
//! would be nonsense.

use super::error::Fault;
use crate::limits::{NAME_CHARS_MAX, TEXT_CHARS_MAX};
use crate::machine::{Gpu, Host, Machine};
use std::ops::RangeInclusive;

/// Bytes of one card, of a host's memory, and of a window or a file system, which may be none.
const CARD_BYTES: RangeInclusive<f64> = 1e6..=1e14;
const HOST_BYTES: RangeInclusive<f64> = 1e6..=1e17;
const BYTES: RangeInclusive<f64> = 0.0..=1e18;
/// GB/s of memory, of an NVLink, and of what was measured between two cards.
const MEMORY_GB_S: RangeInclusive<f64> = 0.1..=1e6;
const LINK_GB_S: RangeInclusive<f64> = 0.01..=1e5;
const MEASURED_GB_S: RangeInclusive<f64> = 0.0..=1e6;
const WATTS: RangeInclusive<f64> = 0.0..=1e5;
/// Of an all-reduce.
const MICROSECONDS: RangeInclusive<f64> = 1e-3..=1e9;

/// The first value that is none.
pub(super) fn check(machine: &Machine) -> Result<(), Fault> {
    machine.gpus.iter().try_for_each(gpu)?;
    host(&machine.host)?;
    for table in [&machine.p2p.measured_gb_s, &machine.p2p.staged_gb_s].into_iter().flatten() {
        let cells = (0..table.len()).flat_map(|a| (0..table.len()).map(move |b| (a, b)));
        for (a, b) in cells {
            number(|| format!("GB/s from GPU {a} to GPU {b}"), table.get(a, b).copied().flatten(), &MEASURED_GB_S)?;
        }
    }
    for row in &machine.all_reduce {
        number(|| "microseconds of an all-reduce".into(), Some(row.us), &MICROSECONDS)?;
    }
    let texts = machine.nics.iter().chain(machine.origin.values()).chain(machine.origin.keys());
    texts.into_iter().try_for_each(|line| text("a name or a place", line, TEXT_CHARS_MAX))
}

fn gpu(gpu: &Gpu) -> Result<(), Fault> {
    let of = |what: &str| format!("{what} of GPU {}", gpu.index);
    let size = |bytes: Option<u64>| bytes.map(|bytes| bytes as f64);
    number(|| of("bytes of memory"), size(gpu.memory_bytes), &CARD_BYTES)?;
    number(|| of("bytes of BAR1"), size(gpu.bar1_bytes), &BYTES)?;
    number(|| of("GB/s of memory"), gpu.memory_gb_s, &MEMORY_GB_S)?;
    number(|| of("GB/s of an NVLink"), gpu.nvlink_gb_s, &LINK_GB_S)?;
    number(|| of("watts"), gpu.power_limit_w, &WATTS)?;
    number(|| of("watts"), gpu.power_default_w, &WATTS)?;
    let texts = [&gpu.name, &gpu.uuid, &gpu.pci_bus_id, &gpu.cpu_affinity];
    let path = gpu.pci_path.iter().flatten();
    let all = texts.into_iter().flatten().chain(path);
    all.into_iter().try_for_each(|line| text("a name or an address of a GPU", line, NAME_CHARS_MAX.max(256)))
}

fn host(host: &Host) -> Result<(), Fault> {
    let size = |bytes: Option<u64>| bytes.map(|bytes| bytes as f64);
    number(|| "bytes of the host's memory".into(), size(host.memory_bytes), &HOST_BYTES)?;
    number(|| "GB/s of the host's memory".into(), host.memory_gb_s, &MEMORY_GB_S)?;
    number(|| "bytes of huge pages".into(), size(host.hugepages_bytes), &BYTES)?;
    number(|| "bytes of /dev/shm".into(), size(host.shm_bytes), &BYTES)?;
    for node in &host.numa {
        number(|| format!("bytes of NUMA node {}", node.id), size(node.memory_bytes), &BYTES)?;
    }
    let registry = host.driver_registry.iter().flatten().flat_map(|(key, value)| [key, value]);
    let all = [&host.cpu, &host.driver].into_iter().flatten().chain(registry).chain(host.acs_bridges.iter().flatten());
    all.into_iter().try_for_each(|line| text("a text about the host", line, TEXT_CHARS_MAX))
}

fn number(what: impl Fn() -> String, value: Option<f64>, range: &RangeInclusive<f64>) -> Result<(), Fault> {
    match value.filter(|value| !range.contains(value)) {
        Some(value) => Err(Fault::OutOfRange { what: what(), value, least: *range.start(), most: *range.end() }),
        None => Ok(()),
    }
}

fn text(what: &'static str, text: &str, most: usize) -> Result<(), Fault> {
    let found = text.chars().count();
    if found <= most { Ok(()) } else { Err(Fault::TooLong { what, found, most }) }
}
