//! Which part of every tensor a rank holds, and which splits are legal. Checked before any weight is read.

use crate::{ModelError, Slice, Weight};
use tombolo_gguf::Gguf;

/// Which of how many tensor-parallel ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    /// From 0.
    pub rank: usize,
    /// Ranks in all.
    pub size: usize,
}

/// Most ranks of one model: what one machine holds.
pub const MAX_RANKS: usize = 8;

impl Shard {
    /// The only rank of one.
    pub const WHOLE: Self = Self { rank: 0, size: 1 };

    /// `start, len` of this rank's part of `n` things, as even as may be.
    pub fn part(&self, n: usize) -> (usize, usize) {
        let at = |r: usize| r * n / self.size;
        (at(self.rank), at(self.rank + 1) - at(self.rank))
    }
}

/// How a tensor is cut for tensor parallelism.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// Every rank holds all of it.
    Replicate,
    /// Out-features, in groups of `unit` neighbouring rows (a head, say); the number of groups must divide evenly.
    Rows {
        /// Rows of a group.
        unit: usize,
    },
    /// Out-features, a contiguous part each, uneven if need be: the vocabulary.
    RowsUneven,
    /// Out-features in groups of `unit`, with whole groups replicated where there are more ranks than groups: KV heads.
    RowsReplicated {
        /// Rows of a group.
        unit: usize,
    },
    /// Whole matrices, a contiguous part each: the matrices of heads, or experts where they cannot be cut.
    Matrices,
    /// In-features, in groups of `unit` columns; every cut must fall between blocks. The product is a partial sum.
    Cols {
        /// Columns of a group.
        unit: usize,
    },
}

impl Split {
    /// The slice of a `[cols, rows]` tensor of blocks of `block` values that `shard` holds, if the split is legal.
    pub fn slice(self, rows: usize, cols: usize, block: usize, shard: Shard) -> Option<Slice> {
        if shard.size == 1 {
            return Some(Slice::Whole);
        }
        let even = |n: usize, unit: usize| {
            let groups = n / unit;
            (n.is_multiple_of(unit) && groups.is_multiple_of(shard.size)).then(|| {
                let len = groups / shard.size * unit;
                (shard.rank * len, len)
            })
        };
        match self {
            Split::Replicate | Split::Matrices => Some(Slice::Whole),
            Split::Rows { unit } => even(rows, unit).map(|(start, len)| Slice::Rows { start, len }),
            Split::RowsUneven => {
                let (start, len) = shard.part(rows);
                (len > 0).then_some(Slice::Rows { start, len })
            }
            Split::RowsReplicated { unit } => {
                let groups = rows / unit;
                if shard.size <= groups {
                    even(rows, unit).map(|(start, len)| Slice::Rows { start, len })
                } else {
                    let whole = rows.is_multiple_of(unit) && groups > 0 && shard.size.is_multiple_of(groups);
                    whole.then(|| Slice::Rows { start: shard.rank * groups / shard.size * unit, len: unit })
                }
            }
            Split::Cols { unit } => even(cols, unit)
                .filter(|(start, len)| start % block == 0 && len % block == 0)
                .map(|(start, len)| Slice::Cols { start, len }),
        }
    }
}

/// What the architecture calls for under a tensor's name: `count` matrices `[cols, rows]`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'a> {
    pub(crate) name: &'a str,
    pub(crate) count: usize,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    /// The rows are part of a tensor that holds several matrices' rows one after the other: the first row, rows in all.
    pub(crate) part: Option<(usize, usize)>,
    pub(crate) split: Split,
}

impl Wanted<'_> {
    fn file_rows(&self) -> usize {
        self.part.map_or(self.rows, |(_, all)| all)
    }

    /// The dims of the tensor, without those of 1 at the end. Values by row (a bias, say) have no dim of columns.
    fn dims(&self) -> Vec<u64> {
        let (rows, cols, count) = (self.file_rows() as u64, self.cols as u64, self.count as u64);
        trimmed(&if self.cols == 1 { [rows, count, 1] } else { [cols, rows, count] })
    }

    /// Parts of several matrices may lie in a tensor that has the rows of all of them one after the other.
    fn flat_dims(&self) -> Option<Vec<u64>> {
        self.part.map(|(_, rows)| trimmed(&[self.cols as u64, (rows * self.count) as u64]))
    }
}

fn trimmed(dims: &[u64]) -> Vec<u64> {
    let len = dims.iter().rposition(|&d| d != 1).map_or(1, |last| last + 1);
    dims[..len].to_vec()
}

/// A tensor of the file as a rank's weight: found, checked against the shape that the architecture calls for, sliced.
pub(crate) fn weight(gguf: &Gguf, wanted: &Wanted, shard: Shard) -> Result<Weight, ModelError> {
    let tensor = wanted.name.to_string();
    let Some(info) = gguf.tensor(wanted.name) else { return Err(ModelError::MissingTensor { tensor }) };
    let dims = trimmed(&info.dims);
    if info.dims.is_empty() || (dims != wanted.dims() && Some(dims) != wanted.flat_dims()) {
        return Err(ModelError::WrongShape { tensor, shape: info.dims.clone(), wanted: wanted.dims() });
    }
    let (ty, block) = (info.ty, info.ty.block_len());
    // A column of one value cannot be read out of blocks.
    if !ty.is_supported() || !wanted.cols.is_multiple_of(block) {
        return Err(ModelError::UnsupportedType { tensor, ty: ty.name() });
    }
    let (rows, cols) = (wanted.rows, wanted.cols);
    let (first, count) = match wanted.split {
        Split::Matrices => shard.part(wanted.count),
        _ => (0, wanted.count),
    };
    let Some(slice) = wanted.split.slice(rows, cols, block, shard).filter(|_| count > 0) else {
        return Err(ModelError::IllegalSplit { tensor, ty: ty.name(), size: shard.size, legal: Vec::new() });
    };
    let (held_rows, held_cols) = match slice {
        Slice::Whole => (rows, cols),
        Slice::Rows { len, .. } => (len, cols),
        Slice::Cols { len, .. } => (rows, len),
    };
    let slice = match (slice, wanted.part) {
        (Slice::Whole, Some((first, _))) => Slice::Rows { start: first, len: rows },
        (Slice::Rows { start, len }, Some((first, _))) => Slice::Rows { start: first + start, len },
        (slice, _) => slice,
    };
    Ok(Weight {
        tensor,
        ty,
        first,
        count,
        rows: held_rows,
        cols: held_cols,
        file_rows: wanted.file_rows(),
        file_cols: cols,
        slice,
    })
}
