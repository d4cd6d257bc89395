//! Weights on their way to the device: read from the file, sliced, repacked row by row into pinned memory, copied.
//!
//! Several threads share the work; each owns two pinned buffers, so that one is filled while the other is copied.

use crate::driver::{CudaError, Device, DevicePtr, Event, Pinned, Stream};
use crate::error::LoadError;
use crate::kernels::linear::layout;
use crate::plan::{Form, Plan};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tombolo_gguf::{Gguf, quant};
use tombolo_model::{ModelError, Program, Slice, Weight};

/// Length of a pinned buffer; any row of any model fits (`limits::WIDTH` f32 values are 4 MiB).
const BUFFER_BYTES: usize = 8 << 20;

/// Rows `first .. first + count` of a weight.
struct Piece {
    weight: usize,
    first: usize,
    count: usize,
}

/// Uploads every weight of `program` into the arena that starts at `start`, with `threads` threads.
///
/// # Errors
/// A tensor that vanished from the file, or the driver's.
pub(crate) fn upload(
    device: &Arc<Device>,
    gguf: &Gguf,
    program: &Program,
    plan: &Plan,
    start: DevicePtr,
    threads: usize,
) -> Result<(), LoadError> {
    let pieces = pieces(program, plan);
    let next = AtomicUsize::new(0);
    let job = Job { device, gguf, program, plan, start, pieces: &pieces, next: &next };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(|| job.work())).collect();
        let results: Vec<_> = workers
            .into_iter()
            .map(|w| w.join().map_err(|_| LoadError::RankDied { rank: program.shard.rank }))
            .collect();
        results.into_iter().try_for_each(|r| r?)
    })
}

fn pieces(program: &Program, plan: &Plan) -> Vec<Piece> {
    let mut pieces = Vec::new();
    for (weight, (w, (_, form))) in program.weights.iter().zip(&plan.weights).enumerate() {
        let per_buffer = match form {
            Form::Vector => w.rows,
            Form::Matrix { row_bytes } => (BUFFER_BYTES / row_bytes).max(1),
        };
        let starts = (0..w.rows).step_by(per_buffer);
        pieces.extend(starts.map(|first| Piece { weight, first, count: per_buffer.min(w.rows - first) }));
    }
    pieces
}

struct Job<'a> {
    device: &'a Arc<Device>,
    gguf: &'a Gguf,
    program: &'a Program,
    plan: &'a Plan,
    start: DevicePtr,
    pieces: &'a [Piece],
    next: &'a AtomicUsize,
}

impl Job<'_> {
    fn work(&self) -> Result<(), LoadError> {
        let stream = Stream::new(self.device)?;
        let buffers = [Buffer::new(self.device)?, Buffer::new(self.device)?];
        for turn in 0.. {
            let Some(piece) = self.pieces.get(self.next.fetch_add(1, Ordering::Relaxed)) else { break };
            let buffer: &Buffer = &buffers[turn % 2];
            buffer.wait()?;
            // SAFETY: the copy out of the buffer has ended, and this thread alone uses it.
            let bytes = unsafe { buffer.memory.slice_mut::<u8>(0, BUFFER_BYTES) };
            let filled = self.fill(piece, bytes)?;
            let (slot, form) = self.plan.weights[piece.weight];
            let offset = match form {
                Form::Vector => 0,
                Form::Matrix { row_bytes } => piece.first * row_bytes,
            };
            assert!(offset + filled <= slot.bytes, "a weight does not fit its slot");
            let to = self.start.offset(slot.offset + offset);
            // SAFETY: the slot has room (above); the buffer is not touched before its event has passed.
            unsafe { stream.copy(to, buffer.memory.device_ptr(), filled) }?;
            buffer.copied.record(&stream)?;
        }
        Ok(stream.synchronize()?)
    }

    /// Repacks a piece into `out`; returns how many bytes it takes.
    fn fill(&self, piece: &Piece, out: &mut [u8]) -> Result<usize, LoadError> {
        let weight = &self.program.weights[piece.weight];
        let missing = || ModelError::MissingTensor { tensor: weight.tensor.clone() };
        let tensor = self.gguf.bytes(self.gguf.tensor(&weight.tensor).ok_or_else(missing)?);
        match self.plan.weights[piece.weight].1 {
            Form::Vector => {
                let mut values = vec![0.0f32; weight.cols];
                decode(weight, row(weight, tensor, 0), &mut values)?;
                for (to, value) in out.chunks_exact_mut(4).zip(&values) {
                    to.copy_from_slice(&value.to_le_bytes());
                }
                Ok(4 * weight.cols)
            }
            Form::Matrix { row_bytes } => {
                for i in 0..piece.count {
                    let to = &mut out[i * row_bytes..(i + 1) * row_bytes];
                    layout::repack_row(weight.ty, row(weight, tensor, piece.first + i), weight.cols, to);
                }
                Ok(piece.count * row_bytes)
            }
        }
    }
}

fn decode(weight: &Weight, bytes: &[u8], values: &mut [f32]) -> Result<(), LoadError> {
    quant::decode(weight.ty, bytes, values)
        .map_err(|error| LoadError::Unsupported { what: format!("tensor '{}': {error}", weight.tensor) })
}

/// Bytes in the file of row `i` of what this rank holds.
fn row<'a>(weight: &Weight, tensor: &'a [u8], i: usize) -> &'a [u8] {
    let of = |cols: usize| cols / weight.ty.block_len() * weight.ty.block_bytes();
    let at = match weight.slice {
        Slice::Whole => i * weight.row_bytes(),
        Slice::Rows { start, .. } => (start + i) * weight.row_bytes(),
        Slice::Cols { start, .. } => i * of(weight.file_cols) + of(start),
    };
    &tensor[at..at + weight.row_bytes()]
}

struct Buffer {
    memory: Pinned,
    copied: Event,
}

impl Buffer {
    fn new(device: &Arc<Device>) -> Result<Self, CudaError> {
        Ok(Self { memory: Pinned::new(device, BUFFER_BYTES)?, copied: Event::new(device)? })
    }

    fn wait(&self) -> Result<(), CudaError> {
        while !self.copied.is_done()? {
            std::thread::yield_now();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tombolo_gguf::TensorType;

    #[test]
    fn rows_lie_where_the_runs_of_a_weight_say() {
        let tensor: Vec<u8> = (0..6 * 4 * 18u32).map(|i| (i % 251) as u8).collect();
        for slice in [Slice::Whole, Slice::Rows { start: 2, len: 3 }, Slice::Cols { start: 64, len: 32 }] {
            let (rows, cols) = match slice {
                Slice::Whole => (6, 128),
                Slice::Rows { len, .. } => (len, 128),
                Slice::Cols { len, .. } => (6, len),
            };
            let w = Weight {
                tensor: "t".into(),
                ty: TensorType::Q4_0,
                first: 0,
                count: 1,
                rows,
                cols,
                file_rows: 6,
                file_cols: 128,
                slice,
            };
            let mut gathered = Vec::new();
            w.gather(&tensor, &mut gathered);
            let rows: Vec<u8> = (0..w.rows).flat_map(|i| row(&w, &tensor, i).to_vec()).collect();
            assert_eq!(rows, gathered, "{slice:?}");
        }
    }
}
