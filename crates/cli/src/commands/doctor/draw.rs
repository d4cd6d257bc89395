//! A machine drawn with lines: a box for each island, its GPUs with their links, what they share, and what lies between
//! the boxes; below it the matrix of classes.

use crate::output::one_line;
use std::collections::BTreeMap;
use tombolo_topology::verdicts::gpu_list;
use tombolo_topology::{LinkClass, Machine};

/// Matrices of more GPUs are wider than a terminal.
const MATRIX_MAX: usize = 16;
/// Width of a box in columns.
const WIDTH: usize = 78;

/// The lines of the drawing.
pub(super) fn lines(machine: &Machine) -> Vec<String> {
    let mut out = Vec::new();
    match machine.islands() {
        Some(islands) => {
            for (at, island) in islands.iter().enumerate() {
                if at > 0 {
                    out.push("  ║ SYS: the interconnect between NUMA nodes".into());
                }
                let title = if islands.len() > 1 { format!("island {}", letter(at)) } else { "one island".into() };
                island_box(machine, island, &title, &mut out);
            }
        }
        None => {
            let all: Vec<usize> = (0..machine.len()).collect();
            island_box(machine, &all, "GPUs (what connects them is not known for all)", &mut out);
        }
    }
    if (2..=MATRIX_MAX).contains(&machine.len()) && machine.links.is_some() {
        out.push(String::new());
        matrix(machine, &mut out);
    }
    out
}

fn letter(at: usize) -> char {
    u8::try_from(at).ok().filter(|at| *at < 26).map_or('?', |at| char::from(b'A' + at))
}

fn island_box(machine: &Machine, island: &[usize], title: &str, out: &mut Vec<String>) {
    let mut head = vec![title.to_string()];
    let same = |of: &dyn Fn(usize) -> Option<String>| {
        let first = of(*island.first()?)?;
        island.iter().all(|&g| of(g).as_ref() == Some(&first)).then_some(first)
    };
    head.extend(same(&|g| machine.gpus[g].numa_node.map(|n| format!("NUMA node {n}"))));
    head.extend(same(&|g| machine.gpus[g].cpu_affinity.clone().map(|c| format!("CPUs {c}"))));
    let head = one_line(&head.join(" · "));
    let rule = "─".repeat(WIDTH.saturating_sub(head.chars().count() + 6));
    out.push(format!("  ┌─ {head} {rule}"));
    for row in rows(machine, island) {
        out.push(format!("  │ {row}"));
    }
    for uplink in machine.uplinks().iter().filter(|u| u.gpus.iter().all(|g| island.contains(g))) {
        let at = uplink.bridge.as_ref().map(|b| format!(" (bridge {})", one_line(b))).unwrap_or_default();
        out.push(format!("  │ one link to the processor for {}{at}", gpu_list(machine, &uplink.gpus)));
    }
    out.extend(between(machine, island).map(|line| format!("  │ between them: {line}")));
    out.push(format!("  └{}", "─".repeat(WIDTH - 3)));
}

/// One row for each GPU, in columns.
fn rows(machine: &Machine, island: &[usize]) -> Vec<String> {
    let cells: Vec<[String; 4]> = island
        .iter()
        .map(|&at| {
            let gpu = &machine.gpus[at];
            let name = one_line(gpu.name.as_deref().unwrap_or("(name not given)"));
            let memory = gpu.memory_bytes.map(|b| format!("{} GiB", (b + (1 << 29)) >> 30)).unwrap_or_default();
            [format!("GPU{}", gpu.index), name, memory, link(machine, at)]
        })
        .collect();
    let width = |column: usize| cells.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths = [width(0), width(1), width(2)];
    let pad = |text: &str, width: usize| format!("{text}{}", " ".repeat(width.saturating_sub(text.chars().count())));
    let row = |[index, name, memory, link]: &[String; 4]| {
        let columns = [pad(index, widths[0]), pad(name, widths[1]), pad(memory, widths[2]), link.clone()];
        columns.iter().filter(|c| !c.is_empty()).cloned().collect::<Vec<_>>().join("  ").trim_end().to_string()
    };
    cells.iter().map(row).collect()
}

/// `PCIe 5.0 x16, 63.0 GB/s each way`.
fn link(machine: &Machine, at: usize) -> String {
    let pcie = &machine.gpus[at].pcie;
    let (generation, width) = (pcie.gen_max.or(pcie.gen_now), pcie.width_now.or(pcie.width_max));
    match (generation, width, pcie.gb_s()) {
        (Some(g), Some(w), Some(gb_s)) => format!("PCIe {g}.0 x{w}, {gb_s:.1} GB/s each way"),
        (Some(g), None, _) => format!("PCIe {g}.0"),
        _ => String::new(),
    }
}

/// How the GPUs of one box are connected: `NODE, 63.0 GB/s each way`, with counts if there are several classes.
fn between(machine: &Machine, island: &[usize]) -> Option<String> {
    let mut classes: BTreeMap<LinkClass, (usize, Option<f64>)> = BTreeMap::new();
    for (at, &a) in island.iter().enumerate() {
        for &b in &island[at + 1..] {
            let entry = classes.entry(machine.class(a, b)?).or_insert((0, machine.pair_gb_s(a, b)));
            entry.0 += 1;
            entry.1 = entry.1.zip(machine.pair_gb_s(a, b)).map(|(x, y)| x.min(y));
        }
    }
    let several = classes.len() > 1;
    let word = |(class, (count, gb_s)): (&LinkClass, &(usize, Option<f64>))| {
        let rate = gb_s.map(|gb_s| format!(", {gb_s:.1} GB/s each way")).unwrap_or_default();
        let pairs = if *count == 1 { "pair" } else { "pairs" };
        if several { format!("{class} ({count} {pairs}{rate})") } else { format!("{class}{rate}") }
    };
    (!classes.is_empty()).then(|| classes.iter().map(word).collect::<Vec<_>>().join("; "))
}

/// The matrix as `nvidia-smi topo -m` prints it, without the columns on the right.
fn matrix(machine: &Machine, out: &mut Vec<String>) {
    let header: String = machine.gpus.iter().map(|g| format!("{:>6}", format!("GPU{}", g.index))).collect();
    out.push(format!("        {header}"));
    for (a, gpu) in machine.gpus.iter().enumerate() {
        let word = |b| machine.class(a, b).map_or("?".to_string(), |class| class.to_string());
        let cells: String = (0..machine.len()).map(|b| format!("{:>6}", word(b))).collect();
        out.push(format!("  {:<6}{cells}", format!("GPU{}", gpu.index)));
    }
}
