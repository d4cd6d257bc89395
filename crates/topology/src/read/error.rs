//! What is wrong with a text, and in which line. Each fault says what to do.

/// A text that could not be read as a machine.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{}: {fault}", place(.file, *.line))]
pub struct ReadError {
    /// Name of the text.
    pub file: String,
    /// The line, from 1, where one is to blame.
    pub line: Option<usize>,
    /// What is wrong. Boxed, because errors are rare and large.
    pub fault: Box<Fault>,
}

impl ReadError {
    pub(crate) fn new(file: &str, line: impl Into<Option<usize>>, fault: Fault) -> Self {
        ReadError { file: file.to_string(), line: line.into(), fault: Box::new(fault) }
    }
}

/// `topo-m.txt, line 4`.
pub(crate) fn place(file: &str, line: Option<usize>) -> String {
    line.map_or_else(|| file.to_string(), |line| format!("{file}, line {line}"))
}

/// What can be wrong.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Fault {
    /// Too much of something.
    #[error("{what}: {found}, and {most} is the most that is read")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many there are.
        found: usize,
        /// How many there may be.
        most: usize,
    },
    /// A number that nothing has.
    #[error("{what}: {value:?} is not between {least:?} and {most:?}")]
    OutOfRange {
        /// Of what, with its unit.
        what: String,
        /// The number.
        value: f64,
        /// The least that there is.
        least: f64,
        /// The most.
        most: f64,
    },
    /// A text that is none.
    #[error("{what} has {found} characters, and {most} is the most that is read")]
    TooLong {
        /// Which.
        what: &'static str,
        /// Its characters.
        found: usize,
        /// How many it may have.
        most: usize,
    },
    /// Nothing in it is known.
    #[error(
        "nothing here describes GPUs; paste what `nvidia-smi topo -m` prints (also understood: `nvidia-smi`, `nvidia-smi -q`, \
         `nvidia-smi topo -p2p r`, `nvidia-smi --query-gpu=… --format=csv`, `lspci -tv`, a topology file of NCCL, JSON of `tombolo \
         doctor --json`)"
    )]
    Nothing,
    /// A row of a matrix without the line above that names its columns.
    #[error("a row of the matrix without its first line (GPU0 GPU1 …): paste the output from the beginning")]
    RowWithoutHeader,
    /// The line that names the columns, and nothing below it.
    #[error("the matrix has {columns} GPUs and the row of GPU{missing} is missing: paste the output to its end")]
    RowMissing {
        /// How many columns there are.
        columns: usize,
        /// The first GPU without a row.
        missing: u32,
    },
    /// A GPU with a row and without a column.
    #[error("GPU{0} has a row but no column: a part of the first line is missing")]
    ColumnMissing(u32),
    /// A GPU with two rows or two columns.
    #[error("GPU{0} comes twice")]
    Twice(u32),
    /// A row with fewer or more cells than there are columns.
    #[error(
        "the row of GPU{gpu} has {cells} cells and the first line names {columns}: paste it whole, and not wrapped by the terminal"
    )]
    CellCount {
        /// Whose row.
        gpu: u32,
        /// Its cells.
        cells: usize,
        /// What the first line names.
        columns: usize,
    },
    /// A word that no matrix has.
    #[error("`{word}` between GPU{row} and GPU{column} is none of {possible}")]
    Word {
        /// The word.
        word: String,
        /// The row's GPU.
        row: u32,
        /// The column's GPU.
        column: u32,
        /// What would be right.
        possible: &'static str,
    },
    /// A word that a program has shortened.
    #[error("`{word}` between GPU{row} and GPU{column} is cut short: paste the row whole")]
    Cut {
        /// The word.
        word: String,
        /// The row's GPU.
        row: u32,
        /// The column's GPU.
        column: u32,
    },
    /// A GPU's name with a letter for a digit.
    #[error(
        "`{0}` is no GPU: a letter stands where a digit belongs, as text recognition does it; paste text, not a picture of it"
    )]
    Letter(String),
    /// A text of another maker's tool.
    #[error("this is of AMD's tools; only machines with NVIDIA GPUs are understood")]
    Amd,
    /// `X` where two GPUs meet, or something else where one meets itself.
    #[error("GPU{row} and GPU{column}: `X` stands for a GPU itself and only there")]
    Diagonal {
        /// The row's GPU.
        row: u32,
        /// The column's GPU.
        column: u32,
    },
    /// The two directions of a pair differ.
    #[error("GPU{a} to GPU{b} is {there} and back it is {back}: the matrix was changed or mixed up on its way here")]
    Asymmetric {
        /// One GPU.
        a: u32,
        /// The other.
        b: u32,
        /// In `a`'s row.
        there: String,
        /// In `b`'s row.
        back: String,
    },
    /// A table of comma-separated values without a line that names the columns.
    #[error(
        "values without the line that names them: ask for `--format=csv` without `noheader`, or keep the line with the command"
    )]
    NoHeader,
    /// A row of comma-separated values that is not as long as its header.
    #[error("{found} values, and the header names {wanted}")]
    Values {
        /// How many there are.
        found: usize,
        /// How many were named.
        wanted: usize,
    },
    /// A value that is none.
    #[error("`{value}` is no {what}")]
    Value {
        /// The text.
        value: String,
        /// What it should be.
        what: &'static str,
    },
    /// Not JSON, or not of a shape that is known.
    #[error("JSON that describes no machine: {0}")]
    Json(String),
    /// Not XML, or no topology.
    #[error("XML that is no topology of NCCL: {0}")]
    Xml(String),
    /// A PCI tree whose lines do not hang together.
    #[error("a branch of the PCI tree that hangs nowhere: paste `lspci -tv` whole, with its leading spaces")]
    Branch,
    /// Two texts, or two places of one, contradict each other.
    #[error("{what} is {here}, and {there} according to {origin}: are these of one machine?")]
    Contradiction {
        /// Of what.
        what: String,
        /// Here.
        here: String,
        /// There.
        there: String,
        /// Where that is.
        origin: String,
    },
    /// Two matrices name different paths for one pair.
    #[error(
        "GPU{a} to GPU{b} is {here}, and {there} according to {origin}: these are two machines, or two states of one; give the \
         matrix of today only (one of `topo -mp`, which leaves NVLink out, needs its command above it)"
    )]
    Paths {
        /// One GPU.
        a: u32,
        /// The other.
        b: u32,
        /// Here.
        here: String,
        /// There.
        there: String,
        /// Where that is.
        origin: String,
    },
    /// A GPU that another text does not have.
    #[error("{gpu} is not among the {count} GPUs of {origin}: are these of one machine?")]
    Stranger {
        /// The GPU.
        gpu: String,
        /// How many there are.
        count: usize,
        /// According to which text.
        origin: String,
    },
}
