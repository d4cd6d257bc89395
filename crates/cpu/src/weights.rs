//! A rank's weights in memory: tiles where products are computed in integers, otherwise rows as the file has them,
//! straight from its map where they are contiguous there. Norm weights are decoded.

use crate::LoadError;
use crate::grid::Grid;
use crate::kernels::{Kernels, Kind, TILE};
use crate::memory::Memory;
use crate::pack::{kind_of, pack_tile, tile_bytes};
use crate::pool::Pool;
use std::sync::Arc;
use tombolo_gguf::{Gguf, TensorInfo, TensorType, quant};
use tombolo_model::{Arith, ModelError, Op, Program, Weight, WeightId};

/// A weight in the forms that the program's operations want.
#[derive(Default)]
pub(crate) struct Held {
    pub(crate) vector: Option<Vec<f32>>,
    pub(crate) rows: Option<Rows>,
    pub(crate) tiles: Option<Tiles>,
    /// Of a stack of matrices, one per expert or head, each by itself.
    pub(crate) experts: Vec<Held>,
}

impl Held {
    /// Rows of a matrix.
    pub(crate) fn count(&self) -> usize {
        self.tiles.as_ref().map(|t| t.rows).or(self.rows.as_ref().map(|r| r.count)).unwrap_or(0)
    }

    /// Bytes that a product reads per row of the matrix.
    pub(crate) fn bytes_per_row(&self) -> usize {
        let rows = || self.rows.as_ref().map_or(0, |r| r.row_bytes);
        self.tiles.as_ref().map_or_else(rows, |t| t.tile_bytes / TILE)
    }
}

/// Rows of blocks as the file has them.
pub(crate) struct Rows {
    pub(crate) ty: TensorType,
    pub(crate) count: usize,
    row_bytes: usize,
    source: Source,
}

enum Source {
    Map { gguf: Arc<Gguf>, info: TensorInfo, start: usize },
    Copy(Memory<u8>),
}

/// Interleaved rows, 8 to a tile (see [`crate::kernels`]).
pub(crate) struct Tiles {
    pub(crate) kind: Kind,
    pub(crate) rows: usize,
    tile_bytes: usize,
    /// All matrices of a stack lie in one block: the system bounds how many blocks a process may have.
    data: Arc<Memory<u8>>,
    /// Where this matrix begins in it.
    start: usize,
}

impl Rows {
    /// The blocks of a row.
    pub(crate) fn row(&self, row: usize) -> &[u8] {
        assert!(row < self.count, "row {row} of {}", self.count);
        let (bytes, start) = match &self.source {
            Source::Map { gguf, info, start } => (gguf.bytes(info), *start),
            Source::Copy(bytes) => (&**bytes, 0),
        };
        &bytes[start + row * self.row_bytes..][..self.row_bytes]
    }

    /// The values of a row.
    pub(crate) fn decode(&self, kernels: &Kernels, row: usize, out: &mut [f32]) {
        let bytes = self.row(row);
        match self.ty {
            TensorType::F32 => {
                for (out, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
                    *out = f32::from_le_bytes(*bytes);
                }
            }
            TensorType::BF16 => {
                for (out, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
                    *out = f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
                }
            }
            TensorType::F16 => (kernels.widen)(bytes, out),
            // Cannot fail: the program builder accepts supported types and whole blocks only.
            ty => quant::decode(ty, bytes, out).unwrap_or_else(|e| panic!("{e}")),
        }
    }

    /// Values of a row.
    pub(crate) fn cols(&self) -> usize {
        self.row_bytes / self.ty.block_bytes() * self.ty.block_len()
    }

    /// Bytes that are not the file's own pages.
    pub(crate) fn copied_bytes(&self) -> usize {
        match &self.source {
            Source::Map { .. } => 0,
            Source::Copy(bytes) => bytes.len(),
        }
    }
}

impl Tiles {
    /// The bytes of a tile.
    pub(crate) fn tile(&self, tile: usize) -> &[u8] {
        assert!(tile * TILE < self.rows, "tile {tile} of {} rows", self.rows);
        &self.data[self.start + tile * self.tile_bytes..][..self.tile_bytes]
    }

    pub(crate) fn bytes(&self) -> usize {
        self.rows.div_ceil(TILE) * self.tile_bytes
    }
}

/// Loads every weight of `program` in the forms that its operations want.
pub(crate) fn load(gguf: &Arc<Gguf>, program: &Program, arith: Arith, pool: &mut Pool) -> Result<Vec<Held>, LoadError> {
    let mut loader = Loader { gguf, program, arith, pool, held: Vec::new() };
    loader.held.resize_with(program.weights.len(), Held::default);
    for op in program.all_ops() {
        match *op {
            Op::Embed { table, .. } => loader.rows(table)?,
            Op::RmsNorm { weight, .. } => loader.vector(weight)?,
            Op::AllReduceAddNorm { weight, post_norm, .. } => {
                loader.vector(weight)?;
                loader.vector_if_any(post_norm)?;
            }
            Op::Linear { weight, bias, .. } => {
                loader.matrix(weight)?;
                loader.vector_if_any(bias)?;
            }
            Op::LayerNorm { weight, bias, .. } => {
                loader.vector(weight)?;
                loader.vector(bias)?;
            }
            Op::LatentAttention { keys, keys_transposed, values, .. } => {
                loader.stack_in(keys, if keys_transposed { None } else { loader.kind(keys) })?;
                loader.stack(values)?;
            }
            Op::Attention { sinks, .. } => loader.vector_if_any(sinks)?,
            Op::Route { bias, .. } => loader.vector_if_any(bias)?,
            Op::Experts { gate, up, down, .. } => {
                for stack in [gate, up, down] {
                    loader.stack(stack.weight)?;
                    loader.vector_if_any(stack.bias)?;
                }
            }
            _ => {}
        }
    }
    Ok(loader.held)
}

struct Loader<'a> {
    gguf: &'a Arc<Gguf>,
    program: &'a Program,
    arith: Arith,
    pool: &'a mut Pool,
    held: Vec<Held>,
}

impl Loader<'_> {
    fn rows(&mut self, id: WeightId) -> Result<(), LoadError> {
        let place = &mut self.held[id.index()].rows;
        if place.is_none() {
            *place = Some(load_rows(self.gguf, self.program.weight(id))?);
        }
        Ok(())
    }

    fn vector(&mut self, id: WeightId) -> Result<(), LoadError> {
        let place = &mut self.held[id.index()].vector;
        if place.is_none() {
            *place = Some(load_vector(self.gguf, self.program.weight(id))?);
        }
        Ok(())
    }

    fn vector_if_any(&mut self, id: Option<WeightId>) -> Result<(), LoadError> {
        id.map_or(Ok(()), |id| self.vector(id))
    }

    fn matrix(&mut self, id: WeightId) -> Result<(), LoadError> {
        let weight = self.program.weight(id);
        let kind = self.kind(id);
        let held = &mut self.held[id.index()];
        match kind {
            Some(kind) if held.tiles.is_none() => {
                held.tiles = load_tiles(self.gguf, std::slice::from_ref(weight), kind, self.pool)?.pop();
            }
            None if held.rows.is_none() => held.rows = Some(load_rows(self.gguf, weight)?),
            _ => {}
        }
        Ok(())
    }

    fn stack(&mut self, id: WeightId) -> Result<(), LoadError> {
        self.stack_in(id, self.kind(id))
    }

    /// A stack in the layout of a kind, or as it is in the file.
    fn stack_in(&mut self, id: WeightId, kind: Option<Kind>) -> Result<(), LoadError> {
        let weight = self.program.weight(id);
        if !self.held[id.index()].experts.is_empty() {
            return Ok(());
        }
        let matrices: Vec<Weight> = (0..weight.count).map(|expert| weight.matrix(expert)).collect();
        self.held[id.index()].experts = match kind {
            Some(kind) => {
                let tiles = load_tiles(self.gguf, &matrices, kind, self.pool)?;
                tiles.into_iter().map(|tiles| Held { tiles: Some(tiles), ..Held::default() }).collect()
            }
            None => {
                let rows = matrices.iter().map(|matrix| load_rows(self.gguf, matrix));
                rows.map(|rows| Ok(Held { rows: Some(rows?), ..Held::default() })).collect::<Result<_, LoadError>>()?
            }
        };
        Ok(())
    }

    /// The layout in which products want a matrix, if they do not want it as it is in the file.
    fn kind(&self, id: WeightId) -> Option<Kind> {
        kind_of(self.program.weight(id).ty).filter(|_| self.arith == Arith::Production)
    }
}

impl Held {
    /// This weight, or the matrices that it is a stack of.
    pub(crate) fn matrices(&self) -> impl Iterator<Item = &Held> {
        std::iter::once(self).chain(&self.experts)
    }
}

fn find(gguf: &Gguf, weight: &Weight) -> Result<TensorInfo, LoadError> {
    let missing = || ModelError::MissingTensor { tensor: weight.tensor.clone() };
    Ok(gguf.tensor(&weight.tensor).ok_or_else(missing)?.clone())
}

fn load_vector(gguf: &Gguf, weight: &Weight) -> Result<Vec<f32>, LoadError> {
    let info = find(gguf, weight)?;
    let mut bytes = Vec::new();
    weight.gather(gguf.bytes(&info), &mut bytes);
    let mut values = vec![0.0; weight.count * weight.rows * weight.cols];
    quant::decode(weight.ty, &bytes, &mut values)?;
    Ok(values)
}

fn load_rows(gguf: &Arc<Gguf>, weight: &Weight) -> Result<Rows, LoadError> {
    let info = find(gguf, weight)?;
    let mut runs = weight.runs();
    let source = match (runs.next(), runs.next()) {
        (Some((start, _)), None) => Source::Map { gguf: Arc::clone(gguf), info, start },
        _ => {
            let mut copy = allocate(weight.bytes(), weight)?;
            let mut done = 0;
            for (start, len) in weight.runs() {
                copy[done..done + len].copy_from_slice(&gguf.bytes(&info)[start..start + len]);
                done += len;
            }
            Source::Copy(copy)
        }
    };
    Ok(Rows { ty: weight.ty, count: weight.rows, row_bytes: weight.row_bytes(), source })
}

/// Matrices of one tensor and one shape. The file's pages are given back as soon as they are repacked.
fn load_tiles(gguf: &Arc<Gguf>, matrices: &[Weight], kind: Kind, pool: &mut Pool) -> Result<Vec<Tiles>, LoadError> {
    let Some(first) = matrices.first() else { return Ok(Vec::new()) };
    let info = find(gguf, first)?;
    let file = gguf.bytes(&info);
    let tile_bytes = tile_bytes(kind, first.cols);
    let count = first.rows.div_ceil(TILE);
    let mut data = allocate(matrices.len() * count * tile_bytes, first)?;
    for (weight, data) in matrices.iter().zip(data.chunks_exact_mut(count * tile_bytes)) {
        // Where each row begins: a run holds one row or all of them.
        let row_bytes = weight.row_bytes();
        let starts: Vec<usize> =
            weight.runs().flat_map(|(start, len)| (start..start + len).step_by(row_bytes)).collect();
        let grid = Grid::new(data, tile_bytes);
        pool.split(count, 16, &|tiles| {
            for tile in tiles {
                let starts = &starts[tile * TILE..(tile * TILE + TILE).min(weight.rows)];
                let mut rows: [&[u8]; TILE] = [&[]; TILE];
                for (row, &start) in rows.iter_mut().zip(starts) {
                    *row = &file[start..start + row_bytes];
                }
                // SAFETY: every tile is in one task's range.
                pack_tile(kind, &rows[..starts.len()], unsafe { grid.rows(tile..tile + 1) });
            }
        })?;
        gguf.release(&info);
    }
    let data = Arc::new(data);
    let tiles = (0..matrices.len()).map(|i| Tiles {
        kind,
        rows: first.rows,
        tile_bytes,
        data: Arc::clone(&data),
        start: i * count * tile_bytes,
    });
    Ok(tiles.collect())
}

fn allocate(bytes: usize, weight: &Weight) -> Result<Memory<u8>, LoadError> {
    Memory::zeroed(bytes).map_err(|source| LoadError::Memory {
        what: format!("tensor '{}'", weight.tensor),
        mib: bytes >> 20,
        source,
    })
}
