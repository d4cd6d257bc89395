//! Texts into a machine. Each format has a file of its own; here it is found out which formats a text holds, since people
//! paste several outputs at once, and what they say is put together.

mod error;
mod json;
mod lines;
mod lspci;
mod matrix;
mod merge;
mod nccl_xml;
mod p2p_bandwidth;
mod part;
mod query_csv;
mod ranges;
mod smi_q;
mod smi_table;
mod topo_m;
mod topo_p2p;

pub use error::{Fault, ReadError};
pub(crate) use nccl_xml::generation as generation_of_speed;
pub(crate) use part::bus_id;

use crate::limits::{SOURCE_BYTES_MAX, SOURCES_MAX};
use crate::machine::Machine;
use json::Json;
use lines::Line;
use part::{Capability, Found, Part};

/// A text and where it is from.
#[derive(Clone, Debug)]
pub struct Source {
    /// The file's name, or what to call it in messages.
    pub name: String,
    /// What it holds.
    pub text: String,
}

/// The machine that the texts describe together.
///
/// # Errors
/// A text that holds nothing known, a matrix that is damaged or incomplete, a value that is none, and texts that
/// contradict each other. Nothing is guessed, and no damaged matrix is repaired.
pub fn read(sources: &[Source]) -> Result<Machine, ReadError> {
    if sources.len() > SOURCES_MAX {
        let fault = Fault::TooMany { what: "texts", found: sources.len(), most: SOURCES_MAX };
        return Err(ReadError::new("the command line", None, fault));
    }
    let mut merge = merge::Merge::default();
    for source in sources {
        let (file, text) = (source.name.as_str(), source.text.as_str());
        if text.len() > SOURCE_BYTES_MAX {
            let fault = Fault::TooMany { what: "bytes", found: text.len(), most: SOURCE_BYTES_MAX };
            return Err(ReadError::new(file, None, fault));
        }
        if let Some((body, noise, before)) = json::of(text) {
            let aside = || format!("{file}: what stands around the JSON is not read");
            match json::read(file, body, before)? {
                Json::Machine(mut machine) => {
                    machine.notes.extend(noise.then(aside));
                    merge.add_machine(file, *machine)?;
                }
                Json::Record(mut part, cards) => {
                    part.notes.extend(noise.then(aside));
                    merge.add(file, *part);
                    merge.cards = merge.cards.take().or(cards.map(|(n, name)| (file.to_string(), n, name)));
                }
            }
        } else if nccl_xml::is(text) {
            merge.add(file, nccl_xml::read(file, text)?);
        } else {
            for part in parts(file, &lines::lines(file, text)?)? {
                merge.add(file, part);
            }
        }
    }
    let machine = merge.finish()?;
    let file = sources.iter().map(|source| source.name.as_str()).collect::<Vec<_>>().join(", ");
    ranges::check(&machine).map_err(|fault| ReadError::new(&file, None, fault))?;
    Ok(machine)
}

/// What the lines above say about those below: commands that people paste along.
#[derive(Default)]
struct Heard {
    p2p: Vec<Capability>,
    fields: Option<Vec<query_csv::Field>>,
    devices: Vec<Found>,
    access: Vec<p2p_bandwidth::Access>,
    /// Whether the matrix below is one of `topo -mp`.
    without_nvlink: bool,
}

/// The parts of a text.
fn parts(file: &str, lines: &[Line]) -> Result<Vec<Part>, ReadError> {
    let name = file.to_ascii_lowercase();
    let mut heard = Heard {
        p2p: topo_p2p::asked(&name),
        without_nvlink: name.contains("topo-mp") || name.contains("topo_mp"),
        ..Heard::default()
    };
    let mut parts = Vec::new();
    let mut adapters = Vec::new();
    let mut at = 0;
    while at < lines.len() {
        let line = &lines[at];
        if line.text.contains("topo") && line.text.contains("-p2p") {
            heard.p2p = topo_p2p::asked(&line.text);
        }
        if line.text.contains("topo") && line.text.contains(" -m") {
            heard.without_nvlink = line.words().contains(&"-mp");
        }
        if let Some(fields) = query_csv::asked(&line.text) {
            heard.fields = Some(fields);
        }
        adapters.extend(topo_m::adapter(line));
        heard.devices.extend(p2p_bandwidth::device(line));
        heard.access.extend(p2p_bandwidth::access(line));
        heard.access.extend(p2p_bandwidth::connectivity(&lines[at..]));
        let (part, taken) = block(file, &lines[at..], &mut heard)?;
        parts.extend(part);
        at += taken;
    }
    parts.extend(p2p_bandwidth::peers(&heard.access, &heard.devices));
    if !heard.devices.is_empty() {
        parts.push(Part { gpus: heard.devices, ..Part::default() });
    }
    if parts.iter().all(|p| p.gpus.is_empty() && p.links.is_none() && p.p2p.is_empty() && p.measured.is_none()) {
        return Err(ReadError::new(file, None, Fault::Nothing));
    }
    for part in &mut parts {
        for nic in &mut part.nics {
            if let Some((_, name)) = adapters.iter().find(|(short, _)| short == nic) {
                nic.clone_from(name);
            }
        }
    }
    Ok(parts)
}

/// What begins at the first of the lines, if anything, and how many lines it takes.
fn block(file: &str, lines: &[Line], heard: &mut Heard) -> Result<(Option<Part>, usize), ReadError> {
    let (line, text) = (&lines[0], lines[0].text.as_str());
    let some = |(part, taken)| (Some(part), taken);
    if ["ROCm System Management", "AMDSMI", "amd-smi"].iter().any(|tool| text.contains(tool)) {
        return Err(ReadError::new(file, line.number, Fault::Amd));
    }
    if let Some(word) = matrix::misread(line) {
        return Err(ReadError::new(file, line.number, Fault::Letter(word)));
    }
    if matrix::is_header(line) {
        let (matrix, taken) = matrix::read(file, lines)?;
        let part = match topo_m::is(&matrix) {
            true => topo_m::part(file, &matrix, std::mem::take(&mut heard.without_nvlink))?,
            false => topo_p2p::part(file, &matrix, &heard.p2p)?,
        };
        heard.p2p.clear();
        return Ok((Some(part), taken));
    }
    if matrix::is_row(line) {
        return Err(ReadError::new(file, line.number, Fault::RowWithoutHeader));
    }
    if smi_table::is_start(text) {
        return smi_table::table(file, lines).map(some);
    }
    if smi_table::is_listed(text) {
        return smi_table::list(file, lines).map(some);
    }
    if smi_q::is_banner(text) || smi_q::is_start(text) {
        return smi_q::read(file, lines).map(some);
    }
    if p2p_bandwidth::is_start(text) {
        return p2p_bandwidth::read(file, lines, &heard.devices).map(some);
    }
    if lspci::is_start(text) {
        return lspci::read(file, lines).map(some);
    }
    if let Some(fields) = query_csv::header(text) {
        let (part, taken) = query_csv::read(file, &fields, &lines[1..])?;
        return Ok((Some(part), taken + 1));
    }
    without_header(file, lines, heard)
}

/// Values without the line that names them: the command above may have named them.
fn without_header(file: &str, lines: &[Line], heard: &mut Heard) -> Result<(Option<Part>, usize), ReadError> {
    let text = lines[0].text.as_str();
    let is_number = |text: &str| text.trim().parse::<u32>().is_ok();
    let starts = text.split(',').count() > 1 && text.split(',').next().is_some_and(is_number);
    if !starts {
        return Ok((None, 1));
    }
    let asked = heard.fields.take().filter(|fields| fields.len() == text.split(',').count());
    match asked.or_else(|| query_csv::bare(text)) {
        Some(fields) => query_csv::read(file, &fields, lines).map(|(part, taken)| (Some(part), taken)),
        None => Err(ReadError::new(file, lines[0].number, Fault::NoHeader)),
    }
}
