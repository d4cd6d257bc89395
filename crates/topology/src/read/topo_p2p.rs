//! `nvidia-smi topo -p2p r` (and `w`, `a`, `n`): what the driver says about peer access between every two GPUs. The table
//! does not say which of the four was asked for; the command above it, or the file's name, does.

use super::error::{Fault, ReadError};
use super::matrix::Matrix;
use super::part::{Capability, Key, Part, Table};
use crate::link::{P2pState, Pairs};

/// What a cell may hold.
const POSSIBLE: &str = "X, OK, CNS, GNS, TNS, DR, NS and U";

/// Which kinds of access a text names: `topo -p2p rw` in a command, `p2p-r` in a file's name.
pub(crate) fn asked(text: &str) -> Vec<Capability> {
    let Some((_, after)) = text.rsplit_once("p2p") else { return Vec::new() };
    let word: String =
        after.trim_start_matches([' ', '-', '_', '\t']).chars().take_while(char::is_ascii_alphabetic).collect();
    let known =
        [("r", Capability::Read), ("w", Capability::Write), ("a", Capability::Atomics), ("n", Capability::NvLink)];
    if word == "rw" {
        return vec![Capability::Read, Capability::Write];
    }
    known.iter().filter(|(letter, _)| *letter == word).map(|(_, c)| *c).collect()
}

/// The facts of a matrix; `asked` is empty where nothing says what it is of.
pub(crate) fn part(file: &str, matrix: &Matrix, asked: &[Capability]) -> Result<Part, ReadError> {
    let mut rows = Vec::with_capacity(matrix.gpus.len());
    for (a, row) in matrix.rows.iter().enumerate() {
        let mut states = Vec::with_capacity(matrix.gpus.len());
        for (b, word) in row.cells.iter().enumerate() {
            let (from, to) = (matrix.gpus[a], matrix.gpus[b]);
            let state = P2pState::from_word(word).ok_or_else(|| {
                let fault = Fault::Word { word: word.clone(), row: from, column: to, possible: POSSIBLE };
                ReadError::new(file, row.line, fault)
            })?;
            if (state == P2pState::Itself) != (a == b) {
                return Err(ReadError::new(file, row.line, Fault::Diagonal { row: from, column: to }));
            }
            states.push(state);
        }
        rows.push(states);
    }
    let lines: Vec<usize> = matrix.rows.iter().map(|row| row.line).collect();
    let pairs = Pairs::new(rows).map_err(|wrong| {
        let fault = Fault::CellCount { gpu: matrix.gpus[wrong.row], cells: wrong.cells, columns: wrong.rows };
        ReadError::new(file, lines[wrong.row], fault)
    })?;
    // Whether GPUs may reach each other is a property of the pair. A table that says otherwise was damaged.
    if let Some((a, b)) = pairs.asymmetry() {
        let word = |a, b| pairs.get(a, b).map(|s| s.word().to_string()).unwrap_or_default();
        let fault = Fault::Asymmetric { a: matrix.gpus[a], b: matrix.gpus[b], there: word(a, b), back: word(b, a) };
        return Err(ReadError::new(file, lines[b], fault));
    }
    let keys: Vec<Key> = matrix.gpus.iter().map(|&i| Key::Index(i)).collect();
    let table = Table { keys, lines, pairs };
    let mut part = Part::default();
    if asked.is_empty() {
        let note = "a table of `topo -p2p` does not say what it is of and no command stands above it; it is taken for \
                    reads (`topo -p2p r`)";
        part.notes.push(format!("{file}, line {}: {note}", matrix.line));
        part.p2p.push((Capability::Read, table));
    } else {
        part.p2p = asked.iter().map(|&capability| (capability, table.clone())).collect();
    }
    Ok(part)
}
