//! The table that `nvidia-smi` prints without options, and the list of `nvidia-smi -L`: names, addresses, memory, power.
//! Layouts of drivers from 2018 on.

use super::error::{Fault, ReadError};
use super::lines::Line;
use super::part::{Found, Key, Part, bus_id};
use super::query_csv::{mebibytes, on_off, state, watts};
use crate::limits::{GPUS_MAX, NAME_CHARS_MAX};
use crate::machine::Gpu;

/// Whether a line begins the table: the version of the driver stands in it.
pub(crate) fn is_start(line: &str) -> bool {
    line.contains("NVIDIA-SMI") && line.contains("Driver Version")
}

/// Whether a line is one of `nvidia-smi -L`.
pub(crate) fn is_listed(line: &str) -> bool {
    listed(line).is_some()
}

fn listed(line: &str) -> Option<(u32, &str, &str)> {
    let rest = line.trim_start().strip_prefix("GPU ")?;
    let (index, rest) = rest.split_once(": ")?;
    let (name, uuid) = rest.rsplit_once(" (UUID: ")?;
    Some((index.parse().ok().filter(|&i| i < 10_000)?, name, uuid.trim_end().strip_suffix(')')?))
}

/// Reads the lines of `nvidia-smi -L`. Gives the facts and how many lines were taken.
pub(crate) fn list(file: &str, lines: &[Line]) -> Result<(Part, usize), ReadError> {
    let mut part = Part::default();
    let mut taken = 0;
    for line in lines {
        // Instances of a GPU that is cut up are listed below it.
        if line.text.trim_start().starts_with("MIG ") {
            if let Some(last) = part.gpus.last_mut() {
                last.gpu.mig = Some(true);
            }
        } else if let Some((index, name, uuid)) = listed(&line.text) {
            let gpu = Gpu { index, name: Some(short(name)), uuid: Some(short(uuid)), ..Gpu::default() };
            add(file, &mut part, line, gpu)?;
        } else {
            break;
        }
        taken += 1;
    }
    Ok((part, taken))
}

fn short(text: &str) -> String {
    text.trim().chars().take(NAME_CHARS_MAX).collect()
}

fn add(file: &str, part: &mut Part, line: &Line, gpu: Gpu) -> Result<(), ReadError> {
    let fault = |fault| Err(ReadError::new(file, line.number, fault));
    if part.gpus.len() >= GPUS_MAX {
        return fault(Fault::TooMany { what: "GPUs", found: part.gpus.len() + 1, most: GPUS_MAX });
    }
    let key = Key::Index(gpu.index);
    if part.gpus.iter().any(|f| f.key == key) {
        return fault(Fault::Twice(gpu.index));
    }
    part.gpus.push(Found { key, line: line.number, gpu, weak_name: false });
    Ok(())
}

/// Reads the table that begins at `lines[0]`. Gives the facts and how many lines were taken.
pub(crate) fn table(file: &str, lines: &[Line]) -> Result<(Part, usize), ReadError> {
    let mut part = Part::default();
    if let Some((_, after)) = lines[0].text.split_once("Driver Version:") {
        part.host.driver = after.split_whitespace().next().map(short);
        part.host_line = Some(lines[0].number);
    }
    let mut taken = 1;
    for line in &lines[1..] {
        let text = line.text.trim();
        // The table is drawn with these; a line that begins otherwise is below it. Processes come last.
        let inside = text.starts_with(['|', '+']) || text.is_empty();
        // A line without its right border is half a line.
        if line.cut && !text.ends_with('|')
            || !inside
            || text.contains("Processes:")
            || text.contains("MIG devices:")
            || is_start(text)
        {
            break;
        }
        taken += 1;
        let cells: Vec<&str> = text.trim_matches('|').split('|').map(str::trim).collect();
        if part.windows.is_none() && windows(&cells) {
            part.windows = Some(line.number);
        }
        if let Some(gpu) = first_line(&cells) {
            add(file, &mut part, line, gpu)?;
        } else if let (Some(last), [power, memory, ..]) = (part.gpus.last_mut(), &cells[..]) {
            second_line(&mut last.gpu, power, memory);
        }
    }
    Ok((part, taken))
}

/// Whether a row shows the driver's model, which only Windows has: `0  NVIDIA GeForce RTX 5090  WDDM`.
fn windows(cells: &[&str]) -> bool {
    let is_bus = cells.get(1).and_then(|c| c.split_whitespace().next()).and_then(bus_id).is_some();
    let model = cells.first().and_then(|c| c.split_whitespace().last());
    is_bus && model.is_some_and(|word| matches!(word, "WDDM" | "TCC" | "MCDM"))
}

/// `0  NVIDIA GeForce RTX 3090  On` and `00000000:01:00.0 Off`.
fn first_line(cells: &[&str]) -> Option<Gpu> {
    let (left, middle) = (cells.first()?, cells.get(1)?);
    let mut middle = middle.split_whitespace();
    let bus = middle.next().and_then(bus_id)?;
    let (index, name) = left.split_once(char::is_whitespace)?;
    let (name, persistence) = name.trim().rsplit_once(char::is_whitespace)?;
    Some(Gpu {
        index: index.parse().ok().filter(|&i| i < 10_000)?,
        name: Some(short(name)),
        persistence: on_off(persistence).ok(),
        pci_bus_id: Some(bus),
        display: middle.next().and_then(|word| on_off(word).ok()),
        ..Gpu::default()
    })
}

/// `30%  35C  P8  25W / 350W` and `10MiB / 24576MiB`.
fn second_line(gpu: &mut Gpu, power: &str, memory: &str) {
    // A second such line belongs to a GPU whose first line is missing.
    if let Some((_, total)) = memory.split_once('/').filter(|_| gpu.memory_bytes.is_none()) {
        gpu.memory_bytes = mebibytes(total);
        gpu.performance_state = power.split_whitespace().find_map(state).or(gpu.performance_state);
        let limit = power.split_once('/').map(|(_, limit)| limit.trim());
        gpu.power_limit_w = limit.and_then(|w| watts(w).ok()).or(gpu.power_limit_w);
    }
}
