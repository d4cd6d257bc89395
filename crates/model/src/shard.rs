//! Which part of every tensor a rank holds, and which splits are legal. Checked before any weight is read.

use crate::{ModelError, Slice, Weight};
use tombolo_gguf::{Gguf, TensorInfo};

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
            Split::Replicate => Some(Slice::Whole),
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

/// A tensor of the file as a rank's weight: found, checked against the shape that the architecture calls for, sliced.
pub(crate) fn weight(
    gguf: &Gguf,
    name: &str,
    rows: usize,
    cols: usize,
    split: Split,
    shard: Shard,
) -> Result<Weight, ModelError> {
    let info = gguf.tensor(name).ok_or_else(|| ModelError::MissingTensor { tensor: name.to_string() })?;
    let shape = matrix_shape(info);
    if shape != Some((rows, cols)) {
        return Err(ModelError::WrongShape { tensor: name.to_string(), shape: info.dims.clone(), rows, cols });
    }
    if !info.ty.is_supported() {
        return Err(ModelError::UnsupportedType { tensor: name.to_string(), ty: info.ty.name() });
    }
    let block = info.ty.block_len();
    let slice = split.slice(rows, cols, block, shard).ok_or_else(|| ModelError::IllegalSplit {
        tensor: name.to_string(),
        ty: info.ty.name(),
        size: shard.size,
        legal: Vec::new(),
    })?;
    let (held_rows, held_cols) = match slice {
        Slice::Whole => (rows, cols),
        Slice::Rows { len, .. } => (len, cols),
        Slice::Cols { len, .. } => (rows, len),
    };
    Ok(Weight { tensor: name.to_string(), ty: info.ty, rows: held_rows, cols: held_cols, file_cols: cols, slice })
}

/// `(rows, cols)`: a vector is one row.
fn matrix_shape(info: &TensorInfo) -> Option<(usize, usize)> {
    let at = |i: usize| usize::try_from(*info.dims.get(i).unwrap_or(&1)).ok();
    match info.dims.len() {
        1 | 2 => Some((at(1)?, at(0)?)),
        _ => None,
    }
}
