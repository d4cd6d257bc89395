//! `nvidia-smi topo -m`: the class of the path between every two GPUs, and which processors are near. Layouts of drivers
//! from 2016 on: with and without network adapters, with one to three columns right of the matrix.

use super::error::ReadError;
use super::lines::Line;
use super::matrix::Matrix;
use super::part::{Found, Key, Part, Table};
use crate::link::LinkClass;
use crate::machine::Gpu;

/// What a cell may hold.
const POSSIBLE: &str = "X, NV#, PIX, PXB, PHB, NODE and SYS";

/// Whether the cells of a matrix are classes of paths: it has a column with processors, or a cell that only this kind of
/// matrix has.
pub(crate) fn is(matrix: &Matrix) -> bool {
    let mut cells = matrix.rows.iter().flat_map(|row| &row.cells).filter(|w| *w != "X");
    !matrix.titles.is_empty() || cells.any(|w| w.parse::<LinkClass>().is_ok())
}

/// The facts of a matrix.
pub(crate) fn part(file: &str, matrix: &Matrix) -> Result<Part, ReadError> {
    let read = |word: &str| word.parse::<LinkClass>().ok().map(Some);
    let (pairs, lines) = matrix.table(file, POSSIBLE, &Some(LinkClass::Itself), read)?;
    matrix.check_symmetry(file, &pairs, |class| class.map(|c| c.to_string()).unwrap_or_default())?;
    let gpus = matrix.rows.iter().zip(&matrix.gpus).map(|(row, &index)| found(matrix, row, index)).collect();
    let keys = matrix.gpus.iter().map(|&i| Key::Index(i)).collect();
    Ok(Part { gpus, links: Some(Table { keys, lines, pairs }), nics: matrix.others.clone(), ..Part::default() })
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
