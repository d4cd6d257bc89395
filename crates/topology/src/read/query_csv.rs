//! `nvidia-smi --query-gpu=… --format=csv`: one line for each GPU, columns in any order, with or without units. Columns
//! that say nothing about a machine's shape are skipped.

use super::error::{Fault, ReadError};
use super::lines::Line;
use super::part::{Found, Key, Part, bus_id};
use crate::limits::{GPUS_MAX, NAME_CHARS_MAX};
use crate::link::pcie_gb_s;
use crate::machine::Gpu;

/// The field that a column's name means; several names of `nvidia-smi` mean one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Field {
    Index,
    Name,
    Uuid,
    BusId,
    GenNow,
    GenMax,
    GenGpu,
    WidthNow,
    WidthMax,
    MemoryTotal,
    PowerLimit,
    PowerDefault,
    Persistence,
    State,
    Capability,
    Mig,
    Display,
    Driver,
    /// A column that `nvidia-smi` has and that is not needed.
    Other,
}

const NAMES: [(&str, Field); 27] = [
    ("index", Field::Index),
    ("name", Field::Name),
    ("gpu_name", Field::Name),
    ("uuid", Field::Uuid),
    ("gpu_uuid", Field::Uuid),
    ("pci.bus_id", Field::BusId),
    ("gpu_bus_id", Field::BusId),
    ("pcie.link.gen.current", Field::GenNow),
    ("pcie.link.gen.gpucurrent", Field::GenNow),
    ("pcie.link.gen.max", Field::GenMax),
    ("pcie.link.gen.gpumax", Field::GenGpu),
    ("pcie.link.width.current", Field::WidthNow),
    ("pcie.link.width.max", Field::WidthMax),
    ("memory.total", Field::MemoryTotal),
    ("power.limit", Field::PowerLimit),
    ("enforced.power.limit", Field::PowerLimit),
    ("power.default_limit", Field::PowerDefault),
    ("persistence_mode", Field::Persistence),
    ("pstate", Field::State),
    ("compute_cap", Field::Capability),
    ("mig.mode.current", Field::Mig),
    ("display_attached", Field::Display),
    ("display_active", Field::Other),
    ("driver_version", Field::Driver),
    ("timestamp", Field::Other),
    ("count", Field::Other),
    ("power.draw", Field::Other),
];

/// The columns of a first line; `None` if the line is none.
pub(crate) fn header(line: &str) -> Option<Vec<Field>> {
    let names: Vec<&str> = line.split(',').map(str::trim).collect();
    let known = names.iter().filter(|n| field(n) != Field::Other).count();
    // One column of a common name (`name`, `index`) could be anything; a dotted name could not.
    let sure = names.len() > 1 && known * 2 >= names.len()
        || names.iter().any(|n| n.contains('.') && field(n) != Field::Other);
    (sure && names.iter().all(|n| looks_like_a_name(n))).then(|| names.iter().map(|n| field(n)).collect())
}

fn looks_like_a_name(name: &str) -> bool {
    let bare = name.split(" [").next().unwrap_or_default();
    !bare.is_empty()
        && bare.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '.' | '_'))
        && bare.starts_with(|c: char| c.is_ascii_lowercase())
}

fn field(name: &str) -> Field {
    let bare = name.split(" [").next().unwrap_or_default();
    NAMES.iter().find(|(n, _)| *n == bare).map_or(Field::Other, |(_, f)| *f)
}

/// The columns that a command asks for: `--query-gpu=index,name --format=csv`.
pub(crate) fn asked(line: &str) -> Option<Vec<Field>> {
    let (_, after) = line.split_once("--query-gpu")?;
    let list = after.strip_prefix('=').or_else(|| after.strip_prefix(' '))?;
    let list = list.split([' ', '"', '\'']).find(|w| !w.is_empty())?;
    Some(list.split(',').map(|name| field(name.trim())).collect())
}

/// Columns of a table without a first line: number, generation, width, as people ask for who look at their links.
pub(crate) fn bare(line: &str) -> Option<Vec<Field>> {
    let values: Vec<&str> = line.split(',').map(str::trim).collect();
    let [index, generation, width] = values[..] else { return None };
    let number = |text: &str| text.parse::<u8>().ok();
    let exists = usize::from(number(index)?) < GPUS_MAX && pcie_gb_s(number(generation)?, number(width)?).is_some();
    exists.then(|| vec![Field::Index, Field::GenNow, Field::WidthNow])
}

/// Whether a line can be a row of values: as many commas as the columns want, and no sentence.
pub(crate) fn is_row(line: &str, fields: &[Field]) -> bool {
    line.contains(',') || fields.len() == 1 && !line.trim().is_empty()
}

/// Reads rows below a header. Gives the facts and how many lines were taken.
pub(crate) fn read(file: &str, fields: &[Field], lines: &[Line]) -> Result<(Part, usize), ReadError> {
    let mut part = Part::default();
    let mut taken = 0;
    for line in lines {
        if line.text.trim().is_empty() {
            // An empty line ends a table, but not one that was pasted with empty lines between its rows.
            if part.gpus.is_empty() || lines.get(taken + 1).is_some_and(|next| is_row(&next.text, fields)) {
                taken += 1;
                continue;
            }
            break;
        }
        if !is_row(&line.text, fields) || asked(&line.text).is_some() || header(&line.text).is_some() {
            break;
        }
        if part.gpus.len() >= GPUS_MAX {
            let fault = Fault::TooMany { what: "GPUs", found: part.gpus.len() + 1, most: GPUS_MAX };
            return Err(ReadError::new(file, line.number, fault));
        }
        let order = part.gpus.len();
        let (mut found, driver) = row(file, fields, line, order)?;
        if line.cut {
            doubt_cut(&mut found, &mut part, *fields.last().unwrap_or(&Field::Other), file);
        }
        if let Some(twice) = part.gpus.iter().find(|f| f.key == found.key) {
            return Err(ReadError::new(file, line.number, Fault::Twice(twice.gpu.index)));
        }
        part.gpus.push(found);
        part.host.driver = part.host.driver.or(driver);
        taken += 1;
    }
    Ok((part, taken))
}

/// The last value of a line without a line end may be half of one. It is taken if the row above has the same.
fn doubt_cut(found: &mut Found, part: &mut Part, last: Field, file: &str) {
    let above = part.gpus.last().map(|f| f.gpu.clone()).unwrap_or_default();
    let (gpu, mut doubtful) = (&mut found.gpu, false);
    macro_rules! keep_same {
        ($($field:ident).+) => {
            if gpu.$($field).+ != above.$($field).+ {
                doubtful = gpu.$($field).+.take().is_some();
            }
        };
    }
    match last {
        Field::WidthNow => keep_same!(pcie.width_now),
        Field::WidthMax => keep_same!(pcie.width_max),
        Field::MemoryTotal => keep_same!(memory_bytes),
        Field::PowerLimit => keep_same!(power_limit_w),
        Field::PowerDefault => keep_same!(power_default_w),
        Field::State => keep_same!(performance_state),
        Field::Capability => keep_same!(compute_capability),
        Field::Name => keep_same!(name),
        Field::Uuid => keep_same!(uuid),
        _ => {}
    }
    if doubtful {
        part.notes.push(format!(
            "{file}, line {}: no line end, so that its last value may be cut and is not taken",
            found.line
        ));
    }
}

fn row(file: &str, fields: &[Field], line: &Line, order: usize) -> Result<(Found, Option<String>), ReadError> {
    let values: Vec<&str> = line.text.split(',').map(str::trim).collect();
    if values.len() != fields.len() {
        let fault = Fault::Values { found: values.len(), wanted: fields.len() };
        return Err(ReadError::new(file, line.number, fault));
    }
    let mut found = Found { key: Key::Order(order), line: line.number, gpu: Gpu::default(), weak_name: false };
    let mut driver = None;
    for (&field, &value) in fields.iter().zip(&values) {
        // What the driver does not know it says in brackets: `[N/A]`, `[Not Supported]`, `[Unknown Error]`.
        if value.starts_with('[') || value == "N/A" {
            continue;
        }
        if field == Field::Driver {
            driver = Some(value.chars().take(NAME_CHARS_MAX).collect());
        } else {
            set(&mut found, field, value).map_err(|what| {
                let value = value.chars().take(NAME_CHARS_MAX).collect();
                ReadError::new(file, line.number, Fault::Value { value, what })
            })?;
        }
    }
    if let (Key::Order(_), Some(bus)) = (&found.key, &found.gpu.pci_bus_id) {
        found.key = Key::Bus(bus.clone());
    }
    Ok((found, driver))
}

/// Puts one value where it belongs, or says what it should have been.
fn set(found: &mut Found, field: Field, value: &str) -> Result<(), &'static str> {
    let gpu = &mut found.gpu;
    let word = value.split_whitespace().next().unwrap_or_default();
    let short = || value.chars().take(NAME_CHARS_MAX).collect::<String>();
    match field {
        Field::Index => {
            gpu.index = word.parse().ok().filter(|&i| i < GPUS_MAX as u32).ok_or("number of a GPU")?;
            found.key = Key::Index(gpu.index);
        }
        Field::Name => gpu.name = Some(short()),
        Field::Uuid => gpu.uuid = Some(short()),
        Field::BusId => gpu.pci_bus_id = Some(bus_id(value).ok_or("address on the PCI bus")?),
        Field::GenNow => gpu.pcie.gen_now = Some(generation(word)?),
        Field::GenMax => gpu.pcie.gen_max = Some(generation(word)?),
        Field::GenGpu => gpu.pcie.gen_gpu = Some(generation(word)?),
        Field::WidthNow => gpu.pcie.width_now = Some(width(word)?),
        Field::WidthMax => gpu.pcie.width_max = Some(width(word)?),
        Field::MemoryTotal => gpu.memory_bytes = Some(mebibytes(value).ok_or("amount of memory")?),
        Field::PowerLimit => gpu.power_limit_w = Some(watts(word)?),
        Field::PowerDefault => gpu.power_default_w = Some(watts(word)?),
        Field::Persistence => gpu.persistence = Some(on_off(value)?),
        Field::State => gpu.performance_state = Some(state(word).ok_or("performance state")?),
        Field::Capability => gpu.compute_capability = Some(capability(word).ok_or("compute capability")?),
        Field::Mig => gpu.mig = Some(on_off(value)?),
        Field::Display => gpu.display = Some(matches!(value, "Yes" | "Enabled")),
        Field::Driver | Field::Other => {}
    }
    Ok(())
}

pub(crate) fn generation(word: &str) -> Result<u8, &'static str> {
    word.parse().ok().filter(|&g| pcie_gb_s(g, 16).is_some()).ok_or("generation of PCIe")
}

pub(crate) fn width(word: &str) -> Result<u8, &'static str> {
    let digits = word.trim_matches('x');
    digits.parse().ok().filter(|&w| pcie_gb_s(1, w).is_some()).ok_or("width of a PCIe link")
}

pub(crate) fn watts(word: &str) -> Result<f64, &'static str> {
    word.trim_end_matches('W').parse().ok().filter(|w| (0.0..=10_000.0).contains(w)).ok_or("power in watts")
}

pub(crate) fn on_off(value: &str) -> Result<bool, &'static str> {
    match value {
        "Enabled" | "On" => Ok(true),
        "Disabled" | "Off" => Ok(false),
        _ => Err("state (Enabled or Disabled)"),
    }
}

/// The number of `P8`.
pub(crate) fn state(word: &str) -> Option<u8> {
    word.strip_prefix('P')?.parse().ok().filter(|&p| p < 16)
}

fn capability(word: &str) -> Option<(u8, u8)> {
    let (major, minor) = word.split_once('.')?;
    Some((major.parse().ok().filter(|m| *m < 100)?, minor.parse().ok().filter(|m| *m < 10)?))
}

/// Bytes of `24576 MiB`, `24576MiB` and, as `nounits` prints it, `24576`.
pub(crate) fn mebibytes(value: &str) -> Option<u64> {
    let number = value.trim().trim_end_matches("MiB").trim_end();
    number.parse::<u64>().ok().filter(|&mib| mib > 0 && mib < 1 << 32).map(|mib| mib << 20)
}
