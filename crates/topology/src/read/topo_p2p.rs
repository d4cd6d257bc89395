//! `nvidia-smi topo -p2p r` (and `w`, `a`, `n`): what the driver says about peer access between every two GPUs. The table
//! does not say which of the four was asked for; the command above it, or the file's name, does.

use super::error::ReadError;
use super::matrix::Matrix;
use super::part::{Capability, Key, Part, Table};
use crate::link::P2pState;

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
    let (pairs, lines) = matrix.table(file, POSSIBLE, &P2pState::Itself, P2pState::from_word)?;
    // Whether GPUs may reach each other is a property of the pair. A table that says otherwise was damaged.
    matrix.check_symmetry(file, &pairs, |state| state.word().to_string())?;
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
