//! `nvidia-smi topo -m`: the class of the path between every two GPUs, and which processors are near. Layouts of drivers
//! from 2016 on: with and without network adapters, with one to three columns right of the matrix.

use super::error::{Fault, ReadError};
use super::lines::Line;
use super::matrix::Matrix;
use super::part::{Found, Key, Part, Table};
use crate::link::{LinkClass, Pairs};
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
    let n = matrix.gpus.len();
    let mut rows: Vec<Vec<Option<LinkClass>>> = Vec::with_capacity(n);
    for (a, row) in matrix.rows.iter().enumerate() {
        let mut classes = Vec::with_capacity(n);
        for (b, word) in row.cells.iter().enumerate() {
            let (from, to) = (matrix.gpus[a], matrix.gpus[b]);
            let class: LinkClass = word.parse().map_err(|_| {
                let fault = Fault::Word { word: word.clone(), row: from, column: to, possible: POSSIBLE };
                ReadError::new(file, row.line, fault)
            })?;
            if (class == LinkClass::Itself) != (a == b) {
                return Err(ReadError::new(file, row.line, Fault::Diagonal { row: from, column: to }));
            }
            classes.push(Some(class));
        }
        rows.push(classes);
    }
    let lines: Vec<usize> = matrix.rows.iter().map(|row| row.line).collect();
    let pairs = Pairs::new(rows).map_err(|wrong| {
        let fault = Fault::CellCount { gpu: matrix.gpus[wrong.row], cells: wrong.cells, columns: wrong.rows };
        ReadError::new(file, lines[wrong.row], fault)
    })?;
    if let Some((a, b)) = pairs.asymmetry() {
        let class = |a, b| pairs.get(a, b).copied().flatten().map(|c| c.to_string()).unwrap_or_default();
        let fault = Fault::Asymmetric { a: matrix.gpus[a], b: matrix.gpus[b], there: class(a, b), back: class(b, a) };
        return Err(ReadError::new(file, lines[b], fault));
    }
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
