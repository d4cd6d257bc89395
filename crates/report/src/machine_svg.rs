//! A machine drawn: a box for each island with its GPUs on their bus, what they share, NVLink, and what crosses between
//! the islands.

use crate::html::escaped;
use std::fmt::Write;
use tombolo_topology::verdicts::gpu_list;
use tombolo_topology::{LinkClass, Machine};

/// GPUs side by side in an island.
const COLUMNS: usize = 4;
const GPU_WIDTH: usize = 196;
const GPU_HEIGHT: usize = 62;
const GAP: usize = 14;
/// Room above the GPUs of an island for its title, and below for its bus.
const HEAD: usize = 40;
const FOOT: usize = 54;
/// Between islands.
const BRIDGE: usize = 46;
/// The drawing is at least as wide as its longest sentence.
const WIDTH_MIN: usize = 540;
/// What stands beside the line between two islands, and the room that it needs.
const BETWEEN: &str = "SYS: the interconnect between NUMA nodes";
const BETWEEN_WIDTH: usize = 310;
/// Islands that are drawn; a machine of more is told in text.
const ISLANDS_MAX: usize = 16;

/// The drawing as an SVG element; empty for a machine without GPUs.
pub fn draw(machine: &Machine) -> String {
    let all: Vec<usize> = (0..machine.len()).collect();
    let known = machine.islands();
    let islands = known.clone().unwrap_or_else(|| if all.is_empty() { Vec::new() } else { vec![all] });
    let shown = &islands[..islands.len().min(ISLANDS_MAX)];
    let columns = shown.iter().map(Vec::len).max().unwrap_or(0).clamp(1, COLUMNS);
    let width = (columns * (GPU_WIDTH + GAP) + GAP).max(WIDTH_MIN);
    let mut body = String::new();
    let mut top = 1;
    for (at, island) in shown.iter().enumerate() {
        if at > 0 {
            bridge(&mut body, width, top);
            top += BRIDGE;
        }
        top += draw_island(&mut body, machine, island, (at, known.is_some() && islands.len() > 1), (top, width));
    }
    if shown.is_empty() {
        return String::new();
    }
    let label = escaped(&format!("{} GPUs in {} islands", machine.len(), islands.len()));
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {}\" width=\"{width}\" role=\"img\" aria-label=\"{label}\">{body}</svg>",
        top + 1
    )
}

/// The line between two islands.
fn bridge(body: &mut String, width: usize, top: usize) {
    let (x, bottom) = ((width / 2).min(width.saturating_sub(BETWEEN_WIDTH)), top + BRIDGE);
    let _ = write!(
        body,
        "<line class=\"sys\" x1=\"{x}\" y1=\"{top}\" x2=\"{x}\" y2=\"{bottom}\" stroke-width=\"5\"/>\
         <text x=\"{}\" y=\"{}\" font-size=\"14\">{BETWEEN}</text>",
        x + 14,
        top + BRIDGE / 2 + 5
    );
}

/// Draws an island at `top` and gives its height.
fn draw_island(
    body: &mut String,
    machine: &Machine,
    island: &[usize],
    (at, named): (usize, bool),
    (top, width): (usize, usize),
) -> usize {
    let rows = island.len().div_ceil(COLUMNS);
    let height = HEAD + rows * (GPU_HEIGHT + GAP) + FOOT;
    let letter = char::from(b'A' + (at % 26) as u8);
    let mut title = if named { format!("island {letter}") } else { "GPUs".to_string() };
    let node = machine.gpus[island[0]].numa_node;
    if let Some(node) = node.filter(|_| island.iter().all(|&g| machine.gpus[g].numa_node == node)) {
        let _ = write!(title, " · NUMA node {node}");
    }
    let _ = write!(
        body,
        "<rect class=\"island\" x=\"1\" y=\"{top}\" width=\"{}\" height=\"{height}\" rx=\"8\"/>\
         <text x=\"{GAP}\" y=\"{}\" font-size=\"15\" font-weight=\"600\">{}</text>",
        width - 2,
        top + 26,
        escaped(&title)
    );
    let bus = top + HEAD + rows * (GPU_HEIGHT + GAP) + 4;
    for (place, &gpu) in island.iter().enumerate() {
        let x = GAP + (place % COLUMNS) * (GPU_WIDTH + GAP);
        let y = top + HEAD + (place / COLUMNS) * (GPU_HEIGHT + GAP);
        draw_gpu(body, machine, gpu, (x, y), bus);
    }
    let nvlink = island.iter().any(|&a| island.iter().any(|&b| machine.class(a, b).is_some_and(LinkClass::is_nvlink)));
    let _ = write!(
        body,
        "<line class=\"{}\" x1=\"{GAP}\" y1=\"{bus}\" x2=\"{}\" y2=\"{bus}\" stroke-width=\"4\"/>\
         <text x=\"{GAP}\" y=\"{}\" font-size=\"14\">{}</text>",
        if nvlink { "nv" } else { "bus" },
        width - GAP,
        bus + 22,
        escaped(&between(machine, island))
    );
    let shared: Vec<String> = machine
        .uplinks()
        .iter()
        .filter(|u| u.gpus.iter().all(|g| island.contains(g)))
        .map(|u| gpu_list(machine, &u.gpus))
        .collect();
    if !shared.is_empty() {
        let text = escaped(&format!("one link to the processor for {}", shared.join(" | ")));
        let _ = write!(body, "<text class=\"dim\" x=\"{GAP}\" y=\"{}\" font-size=\"13\">{text}</text>", bus + 40);
    }
    height
}

fn draw_gpu(body: &mut String, machine: &Machine, at: usize, (x, y): (usize, usize), bus: usize) {
    let gpu = &machine.gpus[at];
    let name = gpu.name.as_deref().unwrap_or("").trim_start_matches("NVIDIA ");
    let name: String = name.chars().take(24).collect();
    let pcie = gpu.pcie;
    let generation = pcie.gen_max.or(pcie.gen_now).map(|g| format!("PCIe {g}.0")).unwrap_or_default();
    let lanes = pcie.width_now.or(pcie.width_max).map(|w| format!(" x{w}")).unwrap_or_default();
    let rate = pcie.gb_s().map(|r| format!(", {r:.1} GB/s")).unwrap_or_default();
    let middle = x + GPU_WIDTH / 2;
    let _ = write!(
        body,
        "<line class=\"bus\" x1=\"{middle}\" y1=\"{}\" x2=\"{middle}\" y2=\"{bus}\" stroke-width=\"2\"/>\
         <rect class=\"gpu\" x=\"{x}\" y=\"{y}\" width=\"{GPU_WIDTH}\" height=\"{GPU_HEIGHT}\" rx=\"6\" stroke-width=\"1.5\"/>\
         <text x=\"{}\" y=\"{}\" font-size=\"14\" font-weight=\"600\">GPU{}</text>\
         <text x=\"{}\" y=\"{}\" font-size=\"12\">{}</text><text class=\"dim\" x=\"{}\" y=\"{}\" font-size=\"12\">{}</text>",
        y + GPU_HEIGHT,
        x + 9,
        y + 19,
        gpu.index,
        x + 9,
        y + 36,
        escaped(&name),
        x + 9,
        y + 53,
        escaped(&format!("{generation}{lanes}{rate}"))
    );
}

/// The classes inside an island, nearest first.
fn between(machine: &Machine, island: &[usize]) -> String {
    let mut classes: Vec<LinkClass> = Vec::new();
    for (at, &a) in island.iter().enumerate() {
        classes.extend(island[at + 1..].iter().filter_map(|&b| machine.class(a, b)));
    }
    classes.sort_unstable();
    classes.dedup();
    match classes.is_empty() {
        true => "the only GPU here, or what connects them is not known".into(),
        false => format!("between them: {}", classes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")),
    }
}
