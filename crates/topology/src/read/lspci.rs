//! `lspci -tv`: the PCI tree drawn with characters. Where a branch goes on is told by its column, so leading spaces count.
//! GPUs are NVIDIA devices whose description is not that of a sound card, an USB controller, a bridge or a switch.

use super::error::{Fault, ReadError};
use super::lines::Line;
use super::part::{Found, Key, Part, Table};
use crate::gpus;
use crate::limits::{DEPTH_MAX, GPUS_MAX, NAME_CHARS_MAX};
use crate::link::Pairs;
use crate::machine::Gpu;
use crate::tree::{Place, class};

/// Whether a line begins a tree.
pub(crate) fn is_start(line: &str) -> bool {
    line.starts_with("-[") || line.starts_with("-+-[")
}

/// Where the scanner is: on which bus, below which bridges.
#[derive(Clone, Debug, Default)]
struct Context {
    domain: String,
    bus: String,
    root: String,
    bridges: Vec<String>,
}

/// A column at which the tree branches.
struct Branch {
    column: usize,
    context: Context,
    /// Whether more follows at this column; `\-` is the last.
    open: bool,
}

/// Reads the tree that begins at `lines[0]`. Gives the facts and how many lines were taken.
pub(crate) fn read(file: &str, lines: &[Line]) -> Result<(Part, usize), ReadError> {
    let mut branches: Vec<Branch> = Vec::new();
    let mut places: Vec<(Place, Found)> = Vec::new();
    let mut taken = 0;
    for line in lines {
        let chars: Vec<char> = line.text.chars().collect();
        let Some(first) = chars.iter().position(|c| *c != ' ' && *c != '|') else { break };
        let context = match chars[first] {
            '-' if first == 0 && is_start(&line.text) => Context::default(),
            '+' | '\\' if chars.get(first + 1) == Some(&'-') => {
                branches.retain(|branch| branch.column <= first);
                if !hangs(&chars, first, &branches) {
                    return Err(ReadError::new(file, line.number, Fault::Branch));
                }
                branches.last().map(|branch| branch.context.clone()).unwrap_or_default()
            }
            _ => break,
        };
        taken += 1;
        if let Some((context, device, description)) = scan(&chars, first, context, &mut branches) {
            if context.bridges.len() > DEPTH_MAX {
                let fault = Fault::TooMany { what: "nested bridges", found: context.bridges.len(), most: DEPTH_MAX };
                return Err(ReadError::new(file, line.number, fault));
            }
            places.extend(gpu(&context, &device, &description, line.number));
        }
        if places.len() > GPUS_MAX {
            let fault = Fault::TooMany { what: "GPUs", found: places.len(), most: GPUS_MAX };
            return Err(ReadError::new(file, line.number, fault));
        }
    }
    let mut part = part(places);
    let bare = |found: &Found| found.gpu.name.as_deref().is_some_and(gpus::without_nvlink);
    if part.gpus.len() > 1 && !part.gpus.iter().all(bare) {
        part.notes.push(format!(
            "{file}: `lspci` shows no NVLinks; where there may be some, paste `nvidia-smi topo -m` along"
        ));
    }
    if branches.iter().any(|branch| branch.open) {
        part.notes.push(format!("{file}, line {}: the PCI tree is not there to its end", lines[0].number));
    }
    Ok((part, taken.max(1)))
}

/// Whether a line that branches at `first` fits the lines above: a stroke stands below every branch that goes on, nothing
/// below one that has ended, and `first` is the column of one that goes on.
fn hangs(chars: &[char], first: usize, branches: &[Branch]) -> bool {
    let above = |column| branches.iter().find(|branch| branch.column == column);
    let strokes = (0..first).all(|at| (chars[at] == '|') == above(at).is_some_and(|branch| branch.open));
    strokes && above(first).is_some_and(|branch| branch.open)
}

/// Follows one line from column `at`. Gives the device at its end, with where it hangs and what it is.
fn scan(
    chars: &[char],
    mut at: usize,
    mut context: Context,
    branches: &mut Vec<Branch>,
) -> Option<(Context, String, String)> {
    while let Some(&c) = chars.get(at) {
        match c {
            '-' => at += 1,
            '+' | '\\' => {
                branches.retain(|branch| branch.column < at);
                branches.push(Branch { column: at, context: context.clone(), open: c == '+' });
                at += 1;
            }
            '[' => {
                let close = (at..chars.len()).find(|&i| chars[i] == ']')?;
                enter(&mut context, &chars[at + 1..close].iter().collect::<String>());
                at = close + 1;
            }
            _ => {
                let word: String = chars[at..].iter().take_while(|c| c.is_ascii_hexdigit() || **c == '.').collect();
                let (slot, function) = word.split_once('.')?;
                if slot.len() != 2 || function.len() != 1 {
                    return None;
                }
                let device = format!("{}:{}:{slot}.{function}", context.domain, context.bus);
                at += word.len();
                if chars.get(at) == Some(&'-') && chars.get(at + 1) == Some(&'[') {
                    context.bridges.push(device);
                } else {
                    return Some((context, device, chars[at..].iter().collect::<String>().trim().to_string()));
                }
            }
        }
    }
    None
}

/// Enters a bus: `0000:40` at a root, `41` or `42-46` below a bridge.
fn enter(context: &mut Context, text: &str) {
    let (domain, buses) = text.split_once(':').map_or((None, text), |(d, b)| (Some(d), b));
    let bus = buses.split('-').next().unwrap_or_default();
    if let Some(domain) = domain {
        context.domain = domain.to_string();
    } else if context.domain.is_empty() {
        context.domain = "0000".to_string();
    }
    context.bus = bus.to_string();
    if context.root.is_empty() {
        context.root = format!("{}:{bus}", context.domain);
    }
}

fn gpu(context: &Context, device: &str, description: &str, line: usize) -> Option<(Place, Found)> {
    let product = description.strip_prefix("NVIDIA Corporation")?.trim();
    let other = ["Audio", "USB", "Bridge", "NVSwitch", "Serial", "Ethernet", "BlueField", "ConnectX", "Memory"];
    if !device.ends_with(".0") || other.iter().any(|word| product.contains(word)) {
        return None;
    }
    let name = product.rsplit_once('[').and_then(|(_, rest)| rest.split_once(']')).map(|(name, _)| name);
    // An `lspci` older than the card prints `Device 2684`.
    let by_number = || product.strip_prefix("Device ").and_then(gpus::name_of_device);
    let gpu = Gpu {
        name: name.or_else(by_number).map(|n| n.chars().take(NAME_CHARS_MAX).collect()),
        pci_bus_id: Some(device.to_string()),
        pci_path: Some(context.bridges.clone()),
        ..Gpu::default()
    };
    let place = Place { root: context.root.clone(), bridges: context.bridges.clone(), node: None };
    Some((place, Found { key: Key::Bus(device.to_string()), line, gpu, weak_name: true }))
}

fn part(mut places: Vec<(Place, Found)>) -> Part {
    places.sort_by(|a, b| a.1.key.cmp(&b.1.key));
    places.dedup_by(|a, b| a.1.key == b.1.key);
    let pairs = Pairs::from_fn(places.len(), |a, b| match a == b {
        true => Some(crate::link::LinkClass::Itself),
        false => class(&places[a].0, &places[b].0),
    });
    let keys = places.iter().map(|(_, found)| found.key.clone()).collect();
    let lines = places.iter().map(|(_, found)| found.line).collect();
    let gpus: Vec<Found> = places.into_iter().map(|(_, found)| found).collect();
    let links = (!gpus.is_empty()).then_some(Table { keys, lines, pairs });
    Part { gpus, links, computed: true, ..Part::default() }
}
