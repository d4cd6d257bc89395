//! The topology that NCCL writes with `NCCL_TOPO_DUMP_FILE`: processors, below them PCI bridges and devices, at the leaves
//! GPUs with their NVLinks. NCCL leaves out bridges that change nothing, and does not tell host bridges apart.

use super::error::{Fault, ReadError};
use super::part::{Found, Key, Part, Table, bus_id};
use crate::gpus;
use crate::limits::{DEPTH_MAX, GPUS_MAX, NAME_CHARS_MAX, XML_NODES_MAX};
use crate::link::{LinkClass, NVLINKS_MAX, Pairs};
use crate::machine::{Gpu, Pcie};
use crate::tree::{self, Place};
use roxmltree::{Document, Node, ParsingOptions};
use std::collections::BTreeSet;

/// Class of an NVSwitch, as `tclass` gives it; of others NCCL gives the GPU's own.
const SWITCH_CLASS: &str = "0x068000";

/// Whether a text is such a file.
pub(crate) fn is(text: &str) -> bool {
    let start = text.trim_start_matches('\u{feff}').trim_start();
    !super::lines::is_html(text)
        && start
            .strip_prefix('<')
            .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_alphabetic() || c == '?' || c == '!'))
}

/// One GPU of the file.
struct Leaf {
    found: Found,
    place: Place,
    /// NVLinks to an address, and whether that is a switch.
    nvlinks: Vec<(String, u8, bool)>,
}

/// The facts of a file.
pub(crate) fn read(file: &str, text: &str) -> Result<Part, ReadError> {
    let options = ParsingOptions { nodes_limit: XML_NODES_MAX, ..ParsingOptions::default() };
    let document = Document::parse_with_options(text.trim_start_matches('\u{feff}').trim_start(), options)
        .map_err(|error| ReadError::new(file, None, Fault::Xml(error.to_string())))?;
    let system = document.root_element();
    if system.tag_name().name() != "system" {
        let name = system.tag_name().name().chars().take(NAME_CHARS_MAX).collect::<String>();
        return Err(ReadError::new(file, 1, Fault::Xml(format!("it begins with <{name}> and not with <system>"))));
    }
    let mut reader = Reader { file, document: &document, leaves: Vec::new(), nics: BTreeSet::new() };
    for cpu in system.children().filter(|n| n.has_tag_name("cpu")) {
        let node = cpu.attribute("numaid").and_then(|id| id.parse().ok());
        let root = format!("cpu {}", cpu.attribute("numaid").unwrap_or("?"));
        for child in cpu.children().filter(Node::is_element) {
            reader.descend(child, &Place { root: root.clone(), bridges: Vec::new(), node })?;
        }
    }
    let Reader { leaves, nics, .. } = reader;
    if leaves.is_empty() {
        return Err(ReadError::new(file, None, Fault::Xml("it has no GPU".into())));
    }
    check_nvlinks(file, &leaves)?;
    Ok(part(file, leaves, nics))
}

struct Reader<'a> {
    file: &'a str,
    document: &'a Document<'a>,
    leaves: Vec<Leaf>,
    nics: BTreeSet<String>,
}

impl Reader<'_> {
    fn line(&self, node: Node<'_, '_>) -> usize {
        self.document.text_pos_at(node.range().start).row as usize
    }

    fn fault(&self, node: Node<'_, '_>, what: String) -> ReadError {
        ReadError::new(self.file, self.line(node), Fault::Xml(what))
    }

    /// Goes down the bridges. The limit on depth bounds the recursion.
    fn descend(&mut self, node: Node<'_, '_>, place: &Place) -> Result<(), ReadError> {
        if place.bridges.len() > DEPTH_MAX {
            return Err(self.fault(node, format!("more than {DEPTH_MAX} bridges in one another")));
        }
        match node.tag_name().name() {
            "nic" => {
                let names = node.children().filter_map(|n| n.attribute("name"));
                self.nics.extend(names.map(|n| n.chars().take(NAME_CHARS_MAX).collect::<String>()));
            }
            "pci" => {
                let address = node.attribute("busid").unwrap_or_default();
                let bus = bus_id(address).ok_or_else(|| self.fault(node, format!("`{address}` is no address")))?;
                if let Some(gpu) = node.children().find(|n| n.has_tag_name("gpu")) {
                    let leaf = self.leaf(node, gpu, bus, place)?;
                    self.leaves.push(leaf);
                } else {
                    let mut below = place.clone();
                    below.bridges.push(bus);
                    for child in node.children().filter(Node::is_element) {
                        self.descend(child, &below)?;
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn leaf(&self, pci: Node<'_, '_>, node: Node<'_, '_>, bus: String, place: &Place) -> Result<Leaf, ReadError> {
        if self.leaves.len() >= GPUS_MAX {
            return Err(self.fault(node, format!("more than {GPUS_MAX} GPUs")));
        }
        let dev = node.attribute("dev").unwrap_or_default();
        let index = dev.parse().ok().filter(|&i| i < 10_000);
        let index: u32 = index.ok_or_else(|| self.fault(node, format!("`{dev}` is no number of a GPU")))?;
        if self.leaves.iter().any(|l| l.found.gpu.index == index) {
            return Err(self.fault(node, format!("GPU{index} comes twice")));
        }
        let mut nvlinks = Vec::new();
        for link in node.children().filter(|n| n.has_tag_name("nvlink")) {
            let count = link.attribute("count").and_then(|c| c.parse().ok()).filter(|c| (1..=NVLINKS_MAX).contains(c));
            let count: u8 = count.ok_or_else(|| self.fault(link, "an NVLink without a count from 1 to 18".into()))?;
            let target = link.attribute("target").unwrap_or_default();
            let is_switch = link.attribute("tclass") == Some(SWITCH_CLASS);
            nvlinks.push((bus_id(target).unwrap_or_else(|| target.to_string()), count, is_switch));
        }
        let sm = node.attribute("sm").and_then(|sm| sm.parse::<u8>().ok());
        let nvidia = pci.attribute("vendor").is_none_or(|v| v.eq_ignore_ascii_case("0x10de"));
        let name = pci.attribute("device").filter(|_| nvidia).and_then(gpus::name_of_device);
        let gpu = Gpu {
            index,
            name: name.map(String::from),
            pci_bus_id: Some(bus),
            numa_node: place.node,
            compute_capability: sm.map(|sm| (sm / 10, sm % 10)),
            nvlinks: Some(nvlinks.iter().map(|l| l.1).fold(0, u8::saturating_add)),
            pcie: Pcie {
                gen_now: pci.attribute("link_speed").and_then(generation),
                width_now: pci.attribute("link_width").and_then(|w| w.parse().ok()).filter(|w| *w > 0),
                ..Pcie::default()
            },
            ..Gpu::default()
        };
        let found = Found { key: Key::Index(index), line: self.line(node), gpu, weak_name: true };
        Ok(Leaf { found, place: place.clone(), nvlinks })
    }
}

/// The generation of `32.0 GT/s PCIe`, as the kernel writes a link's speed.
pub(crate) fn generation(speed: &str) -> Option<u8> {
    let rate: f64 = speed.split_whitespace().next()?.parse().ok()?;
    [2.5, 5.0, 8.0, 16.0, 32.0, 64.0].iter().position(|r| *r == rate).map(|at| at as u8 + 1)
}

/// NVLinks from a GPU straight to another.
fn direct(a: &Leaf, b: &Leaf) -> u8 {
    let bus = b.found.gpu.pci_bus_id.as_deref().unwrap_or_default();
    a.nvlinks.iter().filter(|l| !l.2 && l.0 == bus).map(|l| l.1).fold(0, u8::saturating_add)
}

/// NVLinks from a GPU to switches, which reach every GPU on them.
fn switched(leaf: &Leaf) -> u8 {
    leaf.nvlinks.iter().filter(|l| l.2).map(|l| l.1).fold(0, u8::saturating_add)
}

/// A link has two ends, and a board with switches joins all its GPUs alike: a file in which it is otherwise is damaged.
fn check_nvlinks(file: &str, leaves: &[Leaf]) -> Result<(), ReadError> {
    let ends = |leaf: &Leaf, what: String| Err(ReadError::new(file, leaf.found.line, Fault::Xml(what)));
    for (at, a) in leaves.iter().enumerate() {
        for b in &leaves[..at] {
            let (x, y) = (a.found.gpu.index, b.found.gpu.index);
            if switched(a) != switched(b) {
                let (m, n) = (switched(a), switched(b));
                return ends(a, format!("GPU{x} has {m} NVLinks to switches and GPU{y} has {n}"));
            }
            if direct(a, b) != direct(b, a) {
                let (there, back) = (direct(a, b), direct(b, a));
                return ends(a, format!("GPU{x} has {there} NVLinks to GPU{y}, which has {back} to it"));
            }
        }
    }
    Ok(())
}

fn part(file: &str, mut leaves: Vec<Leaf>, nics: BTreeSet<String>) -> Part {
    leaves.sort_by_key(|l| l.found.gpu.index);
    let pairs = Pairs::from_fn(leaves.len(), |a, b| {
        let (x, y) = (&leaves[a], &leaves[b]);
        match direct(x, y).max(switched(x).min(switched(y))).min(NVLINKS_MAX) {
            _ if a == b => Some(LinkClass::Itself),
            0 => class(&x.place, &y.place),
            links => Some(LinkClass::NvLink(links)),
        }
    });
    let keys = leaves.iter().map(|l| l.found.key.clone()).collect();
    let lines = leaves.iter().map(|l| l.found.line).collect();
    let note =
        format!("{file}: NCCL does not tell PHB from NODE; paths through the processor of one node are called PHB");
    Part {
        gpus: leaves.into_iter().map(|l| l.found).collect(),
        links: Some(Table { keys, lines, pairs }),
        computed: true,
        nics: nics.into_iter().collect(),
        notes: vec![note],
        ..Part::default()
    }
}

/// As [`tree::class`], where NCCL has left out the ports of switches: GPUs right below one bridge share a switch.
fn class(a: &Place, b: &Place) -> Option<LinkClass> {
    match (a.root == b.root, a.bridges.is_empty() || b.bridges.is_empty()) {
        (true, true) => Some(LinkClass::Phb),
        (true, false) if a.bridges == b.bridges => Some(LinkClass::Pix),
        (true, false) if a.bridges[0] == b.bridges[0] => Some(LinkClass::Pxb),
        _ => tree::class(a, b),
    }
}
