//! The machine that this runs on: what the driver's library (NVML) and the kernel's file systems say. Nothing is changed
//! and nothing is required: what could not be looked at is told with its reason.

mod config_space;
mod host;
mod nvml;
mod pci;

use crate::gpus;
use crate::machine::Machine;
use serde::Serialize;
use std::path::Path;

/// A machine, and what was looked at to know it.
#[derive(Clone, Debug, Serialize)]
pub struct Discovery {
    /// The facts.
    pub machine: Machine,
    /// What was looked at, in order.
    pub looked: Vec<Look>,
}

/// One place that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Look {
    /// The place.
    pub at: String,
    /// Whether it could be read.
    pub found: bool,
    /// What was found, or why nothing was.
    pub what: String,
}

/// Looks at this machine.
pub fn discover() -> Discovery {
    let mut machine = Machine::default();
    let mut looked = vec![nvml::look(&mut machine)];
    looked.extend(under(&mut machine, Path::new("/")));
    gpus::fill(&mut machine);
    Discovery { machine, looked }
}

/// Reads a tree of the kernel's file systems (`sys`, `proc` and the like below `root`), which may be a captured one.
pub fn discover_under(root: &Path) -> Discovery {
    let mut machine = Machine::default();
    let looked = under(&mut machine, root);
    gpus::fill(&mut machine);
    Discovery { machine, looked }
}

fn under(machine: &mut Machine, root: &Path) -> Vec<Look> {
    let mut looked = pci::look(machine, root);
    looked.extend(host::look(machine, root));
    looked
}

/// The text of a small file; `None` if it is not there, not readable or too large.
fn text(path: &Path) -> Option<String> {
    use std::io::Read;
    let mut bytes = Vec::new();
    std::fs::File::open(path).ok()?.take(crate::limits::SYS_FILE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).trim_end().to_string())
}

/// The names in a directory, sorted; none if it cannot be read.
fn names(path: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten().take(crate::limits::PCI_DEVICES_MAX);
    let mut names: Vec<String> = entries.filter_map(|e| e.file_name().into_string().ok()).collect();
    names.sort();
    names
}
