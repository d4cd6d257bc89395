//! A weight as a rank holds it: which tensor of the file, which part of it, and where its bytes lie there.
//!
//! What is legal to cut is decided in `shard.rs`; no bytes are read here.

use tombolo_gguf::TensorType;

/// Which part of every matrix `[cols, rows]` (GGUF order: `cols` is contiguous, the in-features) of a tensor is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slice {
    /// All of it.
    Whole,
    /// Rows `start .. start + len` (out-features): one contiguous range of bytes.
    Rows {
        /// First row.
        start: usize,
        /// Number of rows.
        len: usize,
    },
    /// Columns `start .. start + len` (in-features) of every row: a strided copy, on block boundaries.
    Cols {
        /// First column.
        start: usize,
        /// Number of columns.
        len: usize,
    },
}

/// Matrices of one tensor as this rank holds them: `rows` out-features of `cols` in-features each. The weight of a norm
/// has one row; a bias, or a value per head, has one column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Weight {
    /// Name of the tensor in the file.
    pub tensor: String,
    /// Its type.
    pub ty: TensorType,
    /// The first matrix of the tensor that is held.
    pub first: usize,
    /// Matrices held, each cut the same way: one, or as many as there are experts.
    pub count: usize,
    /// Out-features held here.
    pub rows: usize,
    /// In-features held here.
    pub cols: usize,
    /// Out-features of the whole tensor.
    pub file_rows: usize,
    /// In-features of the whole tensor.
    pub file_cols: usize,
    /// The part of every matrix that this is.
    pub slice: Slice,
}

impl Weight {
    /// Bytes of one row as held here.
    pub fn row_bytes(&self) -> usize {
        self.bytes_of(self.cols)
    }

    /// Bytes of one matrix as held here.
    pub fn matrix_bytes(&self) -> usize {
        self.rows * self.row_bytes()
    }

    /// Bytes held here.
    pub fn bytes(&self) -> usize {
        self.count * self.matrix_bytes()
    }

    fn bytes_of(&self, cols: usize) -> usize {
        cols / self.ty.block_len() * self.ty.block_bytes()
    }

    /// One of the matrices, by its place among those held.
    pub fn matrix(&self, index: usize) -> Self {
        assert!(index < self.count, "matrix {index} of {}", self.count);
        Self { first: self.first + index, count: 1, ..self.clone() }
    }

    /// Where this rank's bytes lie in the tensor's: for every run of contiguous bytes its offset and length, in order.
    /// One run for whole matrices, one per matrix for row slices, one per row for column slices.
    pub fn runs(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let row = self.bytes_of(self.file_cols);
        let matrix = self.file_rows * row;
        let (start, stride, len, runs) = match self.slice {
            Slice::Whole => (0, 0, self.bytes(), 1),
            Slice::Rows { start, .. } => (start * row, 0, self.matrix_bytes(), 1),
            Slice::Cols { start, .. } => (self.bytes_of(start), row, self.row_bytes(), self.rows),
        };
        let matrices = if self.slice == Slice::Whole { 1 } else { self.count };
        let first = self.first;
        (0..matrices).flat_map(move |m| (0..runs).map(move |r| ((first + m) * matrix + start + r * stride, len)))
    }

    /// Copies this rank's bytes out of the whole tensor's.
    pub fn gather(&self, tensor: &[u8], out: &mut Vec<u8>) {
        out.clear();
        out.reserve_exact(self.bytes());
        for (offset, len) in self.runs() {
            out.extend_from_slice(&tensor[offset..offset + len]);
        }
    }
}
