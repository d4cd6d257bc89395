//! `nvidia-smi topo -m`: the class of the path between every two GPUs, and which processors are near. Layouts of drivers
//! from 2016 on: with and without network adapters, with one to three columns right of the matrix.

use super::error::ReadError;
use super::lines::Line;
use super::matrix::Matrix;
use super::part::{Found, Key, Part, Table};
use crate::link::{LinkClass, P2pState, Pairs};
use crate::machine::Gpu;

/// What a cell may hold.
const POSSIBLE: &str = "X, NV1 to NV18, PIX, PXB, PHB, NODE and SYS";

/// Whether the cells of a matrix are classes of paths: it has a column with processors, or no cell that only the other kind
/// of matrix has.
pub(crate) fn is(matrix: &Matrix) -> bool {
    let mut cells = matrix.rows.iter().flat_map(|row| &row.cells).filter(|w| *w != "X");
    !matrix.titles.is_empty() || !cells.any(|w| P2pState::from_word(w).is_some())
}

/// The facts of a matrix; `without_nvlink` where the command above it was `topo -mp`.
pub(crate) fn part(file: &str, matrix: &Matrix, without_nvlink: bool) -> Result<Part, ReadError> {
    let read = |word: &str| word.parse::<LinkClass>().ok().map(Some);
    let (pairs, lines) = matrix.table(file, POSSIBLE, &Some(LinkClass::Itself), read)?;
    matrix.check_symmetry(file, &pairs, |class| class.map(|c| c.to_string()).unwrap_or_default())?;
    let gpus = matrix.rows.iter().zip(&matrix.gpus).map(|(row, &index)| found(matrix, row, index)).collect();
    let keys = matrix.gpus.iter().map(|&i| Key::Index(i)).collect();
    let mut part = Part { gpus, without_nvlink, nics: matrix.others.clone(), ..Part::default() };
    let first = lines.first().copied();
    if without_nvlink {
        part.notes.push(format!("{file}, line {}: `topo -mp` leaves NVLinks out", matrix.line));
    }
    if blind(matrix, &pairs) {
        // Every pair is SYS there, whatever its path is.
        let open = Pairs::from_fn(pairs.len(), |a, b| (a == b).then_some(LinkClass::Itself));
        part.links = Some(Table { keys, lines, pairs: open });
        part.no_affinity = first;
        part.notes.push(format!(
            "{file}, line {}: the driver names no processor and no NUMA node, as under WSL 2 and in some virtual machines; it says \
             SYS for every pair there, whatever its path is, so that this is not taken",
            matrix.line
        ));
    } else {
        part.links = Some(Table { keys, lines, pairs });
    }
    Ok(part)
}

/// Whether the driver sees no processors beside the GPUs: their columns are there and empty, and every pair is SYS.
fn blind(matrix: &Matrix, pairs: &Pairs<Option<LinkClass>>) -> bool {
    pairs.len() > 1
        && matrix.titles.contains(&"CPU Affinity")
        && matrix.rows.iter().all(|row| row.bare)
        && pairs.pairs().all(|(_, _, class)| *class == Some(LinkClass::Sys))
}

fn found(matrix: &Matrix, row: &super::matrix::Row, index: u32) -> Found {
    let right = |title: &str| {
        let at = matrix.titles.iter().position(|t| *t == title)?;
        row.rest.get(at).map(String::as_str).filter(|text| !text.is_empty() && *text != "N/A")
    };
    let is_list = |text: &&str| text.bytes().all(|b| b.is_ascii_digit() || b == b'-' || b == b',');
    let gpu = Gpu {
        index,
        cpu_affinity: right("CPU Affinity").filter(is_list).map(String::from),
        // Several nodes (`0-1`) are no node.
        numa_node: right("NUMA Affinity").and_then(|text| text.parse().ok()),
        ..Gpu::default()
    };
    Found { key: Key::Index(index), line: row.line, gpu, weak_name: false }
}

/// Names of network adapters from the legend (`NIC0: mlx5_0`).
pub(crate) fn adapter(line: &Line) -> Option<(String, String)> {
    let (short, name) = line.text.trim().split_once(": ")?;
    let digits = short.strip_prefix("NIC")?;
    let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    (plain && !name.contains(char::is_whitespace)).then(|| (short.to_string(), name.to_string()))
}
