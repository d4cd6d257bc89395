//! A square matrix with a first line of column names and a named row for each GPU, as `nvidia-smi topo` prints its two
//! kinds. Which words its cells may hold, the callers know.

use super::error::{Fault, ReadError};
use super::lines::Line;
use crate::limits::{COLUMNS_MAX, GPUS_MAX};
use crate::link::Pairs;

/// The cells between GPUs, and what stands right of them.
#[derive(Clone, Debug)]
pub(crate) struct Matrix {
    /// The GPUs by column.
    pub(crate) gpus: Vec<u32>,
    /// Names of the columns that are no GPUs.
    pub(crate) others: Vec<String>,
    /// Names of the columns right of the matrix.
    pub(crate) titles: Vec<&'static str>,
    /// One row for each GPU, in the order of `gpus`.
    pub(crate) rows: Vec<Row>,
    /// The line of the column names.
    pub(crate) line: usize,
}

impl Matrix {
    /// The table that the cells make, and the line of each row. A cell is read by `read`; those on the
    /// diagonal, and no others, are `itself`.
    pub(crate) fn table<T: PartialEq>(
        &self,
        file: &str,
        possible: &'static str,
        itself: &T,
        read: impl Fn(&str) -> Option<T>,
    ) -> Result<(Pairs<T>, Vec<usize>), ReadError> {
        let mut rows = Vec::with_capacity(self.gpus.len());
        for (a, row) in self.rows.iter().enumerate() {
            let mut values = Vec::with_capacity(self.gpus.len());
            for (b, word) in row.cells.iter().enumerate() {
                let (from, to) = (self.gpus[a], self.gpus[b]);
                let value = read(word).ok_or_else(|| {
                    let word = word.clone();
                    let fault = match is_cut(&word) {
                        true => Fault::Cut { word, row: from, column: to },
                        false => Fault::Word { word, row: from, column: to, possible },
                    };
                    ReadError::new(file, row.line, fault)
                })?;
                if (value == *itself) != (a == b) {
                    return Err(ReadError::new(file, row.line, Fault::Diagonal { row: from, column: to }));
                }
                values.push(value);
            }
            rows.push(values);
        }
        let lines: Vec<usize> = self.rows.iter().map(|row| row.line).collect();
        let pairs = Pairs::new(rows).map_err(|wrong| {
            let fault = Fault::CellCount { gpu: self.gpus[wrong.row], cells: wrong.cells, columns: wrong.rows };
            ReadError::new(file, lines[wrong.row], fault)
        })?;
        Ok((pairs, lines))
    }

    /// Refuses a table in which the two directions of a pair differ; `word` says how a cell is written.
    pub(crate) fn check_symmetry<T: PartialEq>(
        &self,
        file: &str,
        pairs: &Pairs<T>,
        word: impl Fn(&T) -> String,
    ) -> Result<(), ReadError> {
        let Some((a, b)) = pairs.asymmetry() else { return Ok(()) };
        let word = |a, b| pairs.get(a, b).map(&word).unwrap_or_default();
        let fault = Fault::Asymmetric { a: self.gpus[a], b: self.gpus[b], there: word(a, b), back: word(b, a) };
        Err(ReadError::new(file, self.rows[b].line, fault))
    }
}

/// One row.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) line: usize,
    /// The cells between GPUs.
    pub(crate) cells: Vec<String>,
    /// What stands right of the matrix, column by column where they can be told apart.
    pub(crate) rest: Vec<String>,
    /// Whether nothing stands there, or only `N/A`.
    pub(crate) bare: bool,
}

/// What may stand right of a matrix, as a first line names it.
const TITLES: [(&str, &[&str]); 3] = [
    ("CPU Affinity", &["CPU", "Affinity"]),
    ("NUMA Affinity", &["NUMA", "Affinity"]),
    ("GPU NUMA ID", &["GPU", "NUMA", "ID"]),
];

/// The number of `GPU7`.
pub(crate) fn gpu_number(word: &str) -> Option<u32> {
    let digits = word.strip_prefix("GPU")?;
    (digits.len() <= 4 && !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()))
        .then(|| digits.parse().ok())?
}

/// Whether a program has shortened a word: `PH...`.
fn is_cut(word: &str) -> bool {
    word.ends_with("...") || word.ends_with('…')
}

/// Whether a title that a first line names may be this one, cut short.
fn means(word: &str, title: &str) -> bool {
    let start = word.trim_end_matches('…').trim_end_matches("...");
    word == title || is_cut(word) && title.starts_with(start)
}

/// A GPU's name with a letter where a digit belongs, as text recognition writes it (`GPUO`), in a line that is of a matrix.
pub(crate) fn misread(line: &Line) -> Option<String> {
    let words = words(line);
    let letter = |w: &&&str| {
        let rest = w.strip_prefix("GPU").filter(|rest| (1..=4).contains(&rest.len()));
        rest.is_some_and(|rest| {
            gpu_number(w).is_none() && rest.chars().all(|c| c.is_ascii_digit() || matches!(c, 'O' | 'o' | 'l' | 'I'))
        })
    };
    let found = words.iter().find(letter)?;
    let others = words.iter().any(|w| gpu_number(w).is_some() || is_class(w));
    others.then(|| (*found).to_string())
}

/// Words of a line, where `|` parts cells as in a table of Markdown.
fn words(line: &Line) -> Vec<&str> {
    line.text.split(|c: char| c.is_whitespace() || c == '|').filter(|w| !w.is_empty()).collect()
}

/// Where in the words of a line a first line of a matrix begins: at a GPU's name that another column's name follows, or
/// nothing. A command may stand before it, because some copies lose the line end.
fn header_start(words: &[&str]) -> Option<usize> {
    let start = words.iter().position(|w| gpu_number(w).is_some())?;
    let next = words.get(start + 1);
    let names = next.is_none_or(|w| gpu_number(w).is_some() || *w == "CPU" || is_adapter(w));
    // A row begins with a GPU's name too; a lone name is a header only where nothing else stands.
    (names && (next.is_some() || start == 0)).then_some(start)
}

fn is_adapter(word: &str) -> bool {
    let starts = ["NIC", "mlx", "ib", "bnxt", "hfi", "rdma", "rocep", "irdma", "efa", "roce", "ens", "enp"];
    starts.iter().any(|s| word.starts_with(s)) && word.ends_with(|c: char| c.is_ascii_digit())
}

/// Whether a line names the columns of a matrix.
pub(crate) fn is_header(line: &Line) -> bool {
    header_start(&words(line)).is_some()
}

/// Whether a line looks like a row: a GPU's name and then a word of a matrix.
pub(crate) fn is_row(line: &Line) -> bool {
    let words = words(line);
    let cell =
        |w: &&str| matches!(*w, "X" | "PIX" | "PXB" | "PHB" | "NODE" | "SYS" | "SOC" | "OK" | "CNS" | "GNS" | "TNS");
    words.first().is_some_and(|w| gpu_number(w).is_some()) && words.get(1).is_some_and(cell)
}

/// Reads the matrix whose first line is `lines[0]`. Gives it and how many lines it took.
pub(crate) fn read(file: &str, lines: &[Line]) -> Result<(Matrix, usize), ReadError> {
    let header = &lines[0];
    let header_words = words(header);
    let start = header_start(&header_words).unwrap_or(0);
    let (columns, titles) = columns(&header_words[start..]);
    let fault = |line: usize, fault| Err(ReadError::new(file, line, fault));
    let gpus: Vec<u32> = columns.iter().filter_map(|c| gpu_number(c)).collect();
    if columns.len() > COLUMNS_MAX || gpus.len() > GPUS_MAX {
        let too_many = Fault::TooMany { what: "columns of the matrix", found: columns.len(), most: GPUS_MAX };
        return fault(header.number, too_many);
    }
    if let Some(twice) = gpus.iter().enumerate().find(|(at, g)| gpus[..*at].contains(g)) {
        return fault(header.number, Fault::Twice(*twice.1));
    }
    let mut rows: Vec<Option<Row>> = vec![None; gpus.len()];
    let mut taken = 1;
    for line in &lines[1..] {
        if rows.iter().all(Option::is_some) && !is_row(line) || is_header(line) || line.text.trim() == "Legend:" {
            break;
        }
        taken += 1;
        let words = words(line);
        let Some(gpu) = words.first().and_then(|w| gpu_number(w)) else { continue };
        let Some(at) = gpus.iter().position(|g| *g == gpu) else {
            return fault(line.number, Fault::ColumnMissing(gpu));
        };
        if rows[at].is_some() {
            return fault(line.number, Fault::Twice(gpu));
        }
        rows[at] = Some(row(file, line, &words, gpu, &columns, &titles)?);
    }
    if let Some(missing) = rows.iter().position(Option::is_none) {
        return fault(header.number, Fault::RowMissing { columns: gpus.len(), missing: gpus[missing] });
    }
    doubt_cut(&mut rows, lines.last());
    let others = columns.iter().filter(|c| gpu_number(c).is_none()).map(|c| (*c).to_string()).collect();
    let rows = rows.into_iter().flatten().collect();
    Ok((Matrix { gpus, others, titles, rows, line: header.number }, taken))
}

/// What stands right of the matrix in a row without a line end is taken only if another row says the same.
fn doubt_cut(rows: &mut [Option<Row>], last: Option<&Line>) {
    let cut = last.filter(|line| line.cut).map(|line| line.number);
    let Some(at) = rows.iter().position(|r| r.as_ref().is_some_and(|r| Some(r.line) == cut)) else { return };
    let rest = rows[at].as_ref().map(|r| r.rest.clone());
    let alone = !rows.iter().enumerate().any(|(i, r)| i != at && r.as_ref().map(|r| r.rest.clone()) == rest);
    if let Some(row) = rows[at].as_mut().filter(|_| alone) {
        row.rest.iter_mut().for_each(String::clear);
    }
}

/// The columns that a first line names, and the titles right of them.
fn columns<'a>(words: &[&'a str]) -> (Vec<&'a str>, Vec<&'static str>) {
    let first_title = (0..words.len()).find(|&at| {
        let starts = |title: &[&str]| {
            let next = words.get(at + 1);
            words[at] == title[0] && next.is_none_or(|w| means(w, title[1]))
                || is_cut(words[at]) && at > 0 && next.is_none()
        };
        TITLES.iter().any(|(_, title)| starts(title))
    });
    let end = first_title.unwrap_or(words.len());
    let right = &words[end..];
    let has = |title: &[&str]| right.windows(title.len()).any(|w| w == title);
    (words[..end].to_vec(), TITLES.iter().filter(|(_, title)| has(title)).map(|(name, _)| *name).collect())
}

fn row(
    file: &str,
    line: &Line,
    words: &[&str],
    gpu: u32,
    columns: &[&str],
    titles: &[&'static str],
) -> Result<Row, ReadError> {
    let wrong = |cells| Fault::CellCount { gpu, cells, columns: columns.len() };
    if words.len() < columns.len() + 1 {
        return Err(ReadError::new(file, line.number, wrong(words.len() - 1)));
    }
    let (cells, rest) = words[1..].split_at(columns.len());
    // A list of processors among the cells, or anything but a class below an adapter: cells are missing.
    let shifted = columns.iter().zip(cells).any(|(column, cell)| {
        let list = cell.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'-' | b',')) && cell.len() > 1;
        list || gpu_number(column).is_none() && !is_class(cell) && !is_cut(cell)
    });
    if shifted {
        return Err(ReadError::new(file, line.number, wrong(cells.iter().filter(|w| is_class(w)).count())));
    }
    // A class further right means that the first line has lost a column, and all cells would stand one off.
    let extra = rest.iter().filter(|w| is_class(w)).count();
    if extra > 0 {
        return Err(ReadError::new(file, line.number, wrong(columns.len() + extra)));
    }
    let of_gpus = columns.iter().zip(cells).filter(|(c, _)| gpu_number(c).is_some());
    Ok(Row {
        line: line.number,
        cells: of_gpus.map(|(_, cell)| (*cell).to_string()).collect(),
        rest: right_of(line, columns.len(), rest, titles),
        // The last word may be cut.
        bare: rest.iter().all(|w| "N/A".starts_with(w)),
    })
}

/// Whether a word is one of a matrix, of either kind.
fn is_class(word: &str) -> bool {
    word.parse::<crate::link::LinkClass>().is_ok() || crate::link::P2pState::from_word(word).is_some()
}

/// What stands right of the matrix, one text for each title. Empty cells can be told only by tabs; without them a row
/// with fewer words than titles says nothing.
fn right_of(line: &Line, columns: usize, rest: &[&str], titles: &[&'static str]) -> Vec<String> {
    let empty = vec![String::new(); titles.len()];
    if rest.len() == titles.len() {
        return rest.iter().map(|w| (*w).to_string()).collect();
    }
    let tabbed: Vec<&str> = line.text.split('\t').map(str::trim).collect();
    // The name, the cells, and as many texts as there are titles; the driver puts one more tab before the last.
    let right: Vec<&str> = tabbed.get(columns + 1..).unwrap_or_default().to_vec();
    let (has_id, last) = (titles.last() == Some(&"GPU NUMA ID"), right.last());
    match (right.len() == titles.len() + 1 && has_id, last) {
        (true, Some(last)) => {
            let mut texts: Vec<String> = right[..titles.len() - 1].iter().map(|w| (*w).to_string()).collect();
            texts.push((*last).to_string());
            texts
        }
        _ if right.len() == titles.len() => right.iter().map(|w| (*w).to_string()).collect(),
        _ => empty,
    }
}
