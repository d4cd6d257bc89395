//! `nvidia-smi -q`, whole or in parts: a section for each GPU, headings by indentation, `key : value` lines.

use super::error::{Fault, ReadError};
use super::lines::Line;
use super::part::{Found, Key, Part, bus_id};
use super::query_csv::{generation, mebibytes, on_off, state, watts, width};
use crate::limits::{DEPTH_MAX, GPUS_MAX, NAME_CHARS_MAX};
use crate::machine::Gpu;

/// Whether a line begins a GPU's section: `GPU 00000000:01:00.0`.
pub(crate) fn is_start(line: &str) -> bool {
    section(line).is_some()
}

fn section(line: &str) -> Option<String> {
    bus_id(line.trim_end().strip_prefix("GPU ")?)
}

/// Whether a line stands above the sections.
pub(crate) fn is_banner(line: &str) -> bool {
    line.contains("NVSMI LOG")
}

/// Reads sections from `lines[0]` on. Gives the facts and how many lines were taken.
pub(crate) fn read(file: &str, lines: &[Line]) -> Result<(Part, usize), ReadError> {
    let mut part = Part::default();
    let mut headings: Vec<(usize, String)> = Vec::new();
    let mut taken = 0;
    for line in lines {
        let text = line.text.trim();
        if line.cut && !is_start(&line.text) {
            // Half a number is a number.
            taken += 1;
            continue;
        }
        if let Some(bus) = section(&line.text) {
            headings.clear();
            add(file, &mut part, line, bus)?;
        } else if !text.is_empty() {
            let indent = line.text.len() - line.text.trim_start().len();
            // Inside a section everything is indented; above the first there are lines of the whole.
            if indent == 0 && !part.gpus.is_empty() {
                break;
            }
            headings.retain(|(at, _)| *at < indent);
            match text.split_once(" : ") {
                Some((key, value)) => value_line(&mut part, &headings, key.trim(), value.trim(), line.number),
                None if headings.len() < DEPTH_MAX => {
                    headings.push((indent, text.trim_end_matches(':').trim().to_string()))
                }
                None => {}
            }
        }
        taken += 1;
    }
    Ok((part, taken))
}

fn add(file: &str, part: &mut Part, line: &Line, bus: String) -> Result<(), ReadError> {
    if part.gpus.len() >= GPUS_MAX {
        let fault = Fault::TooMany { what: "GPUs", found: part.gpus.len() + 1, most: GPUS_MAX };
        return Err(ReadError::new(file, line.number, fault));
    }
    let key = Key::Bus(bus.clone());
    if part.gpus.iter().any(|f| f.key == key) {
        let fault = Fault::Contradiction {
            what: format!("the section of {bus}"),
            here: "given again".into(),
            there: "given before".into(),
            origin: file.into(),
        };
        return Err(ReadError::new(file, line.number, fault));
    }
    let gpu = Gpu { pci_bus_id: Some(bus), ..Gpu::default() };
    part.gpus.push(Found { key, line: line.number, gpu, weak_name: false });
    Ok(())
}

/// Keeps what was found first: where a heading is missing, the same key comes again and means something else.
fn first_of<T>(known: &mut Option<T>, found: Option<T>) {
    if known.is_none() {
        *known = found;
    }
}

/// Takes what is wanted; everything else, and what the driver does not know, is passed over.
fn value_line(part: &mut Part, headings: &[(usize, String)], key: &str, value: &str, line: usize) {
    let below = |name: &str| headings.last().is_some_and(|(_, h)| h == name);
    let Some(found) = part.gpus.last_mut() else {
        if key == "Driver Version" {
            part.host.driver = Some(value.chars().take(NAME_CHARS_MAX).collect());
            part.host_line = Some(line);
        }
        return;
    };
    if key == "Current" && below("Driver Model") && matches!(value, "WDDM" | "TCC" | "MCDM") {
        part.windows = part.windows.or(Some(line));
        return;
    }
    let gpu = &mut found.gpu;
    let first = value.split_whitespace().next().unwrap_or_default();
    let short = || Some(value.chars().take(NAME_CHARS_MAX).collect());
    match key {
        "Product Name" => first_of(&mut gpu.name, short()),
        "GPU UUID" => first_of(&mut gpu.uuid, short()),
        "Persistence Mode" => first_of(&mut gpu.persistence, on_off(value).ok()),
        "Performance State" => first_of(&mut gpu.performance_state, state(first)),
        "Display Attached" => first_of(&mut gpu.display, Some(value == "Yes")),
        "Replays Since Reset" => first_of(&mut gpu.pcie.replays, value.parse().ok()),
        "Max" if below("PCIe Generation") => first_of(&mut gpu.pcie.gen_max, generation(first).ok()),
        "Current" if below("PCIe Generation") => first_of(&mut gpu.pcie.gen_now, generation(first).ok()),
        "Device Max" if below("PCIe Generation") => first_of(&mut gpu.pcie.gen_gpu, generation(first).ok()),
        "Max" if below("Link Width") => first_of(&mut gpu.pcie.width_max, width(first).ok()),
        "Current" if below("Link Width") => first_of(&mut gpu.pcie.width_now, width(first).ok()),
        "Current" if below("MIG Mode") => first_of(&mut gpu.mig, on_off(value).ok()),
        "Total" if below("FB Memory Usage") => first_of(&mut gpu.memory_bytes, mebibytes(value)),
        "Total" if below("BAR1 Memory Usage") => first_of(&mut gpu.bar1_bytes, mebibytes(value)),
        // Renamed over the years; the module's readings on some servers are under a heading of their own.
        "Current Power Limit" | "Power Limit" | "Enforced Power Limit" if !below("Module Power Readings") => {
            gpu.power_limit_w = watts(first).ok().or(gpu.power_limit_w);
        }
        "Default Power Limit" if !below("Module Power Readings") => {
            gpu.power_default_w = watts(first).ok().or(gpu.power_default_w);
        }
        _ => {}
    }
}
