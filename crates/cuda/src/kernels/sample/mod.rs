//! Launches the sampling kernels: from this rank's logits to the summary of every rank and the greedy token.

use crate::collective::Link;
use crate::driver::{Args, ByValue, CudaError, DevicePtr, Kernels, Launch, Stream};
use tombolo_model::{CANDIDATES, Candidate, Summary};

/// 8-byte lines of one summary: weight, number of candidates, candidates.
pub const SUMMARY_LINES: usize = CANDIDATES + 2;
/// Bytes of one rank's summary of one row.
pub const SUMMARY_BYTES: usize = 8 * SUMMARY_LINES;
const CHUNK: usize = 4096;
const BLOCK: u32 = 256;
/// Most logits rows of a call: their blocks wait for other ranks, so all must be resident at once.
pub const MOST_ROWS: usize = 128;

/// What the kernels read and write.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// `[rows, stride]` f32: this rank's logits.
    pub logits: DevicePtr,
    /// Values from row to row.
    pub stride: usize,
    /// Logits in a row.
    pub shard: usize,
    /// Token of the first.
    pub first: usize,
    /// `[rows]` f32: 1 / temperature, or 0 where the row is greedy.
    pub inverse_temperatures: DevicePtr,
    /// [`scratch_bytes`], aligned to 16.
    pub scratch: DevicePtr,
    /// Out: `[rows, ranks]` summaries of [`SUMMARY_BYTES`]; device or pinned memory. Of a greedy row only the first
    /// candidate is written.
    pub summaries: DevicePtr,
    /// Out: `[rows]` u32, the greedy token, the same on all ranks.
    pub tokens: DevicePtr,
}

/// Scratch for `rows` rows of `shard` logits.
pub fn scratch_bytes(rows: usize, shard: usize) -> usize {
    let chunks = shard.div_ceil(CHUNK);
    rows * chunks * (CANDIDATES * 8 + 4)
}

/// Lines of a slot that `rows` rows need.
pub const fn slot_lines(rows: usize) -> usize {
    rows * SUMMARY_LINES
}

#[derive(Clone, Copy)]
#[repr(C)]
struct KernelArgs {
    logits: DevicePtr,
    inverse: DevicePtr,
    keys: DevicePtr,
    weights: DevicePtr,
    summaries: DevicePtr,
    tokens: DevicePtr,
    stride: u32,
    shard: u32,
    first: u32,
    kind: u32,
}

// SAFETY: `repr(C)`; six addresses and four 32-bit values leave no gap.
unsafe impl ByValue for KernelArgs {}

/// Queues both kernels for `rows` rows. `kind` is what an error will name.
///
/// # Errors
/// The driver's. A silent rank is found later, in the collective's error word.
///
/// # Panics
/// When there are more rows than a slot or [`MOST_ROWS`] allows.
///
/// # Safety
/// The addresses must hold what [`Sample`] says; every rank of the link's group must queue the same call.
pub unsafe fn sample(
    stream: &Stream,
    kernels: &Kernels,
    link: &Link,
    s: &Sample,
    rows: usize,
    kind: u32,
) -> Result<(), CudaError> {
    assert!(rows <= MOST_ROWS && slot_lines(rows) <= link.slot_lines(), "{rows} rows");
    let chunks = s.shard.div_ceil(CHUNK);
    let args = KernelArgs {
        logits: s.logits,
        inverse: s.inverse_temperatures,
        keys: s.scratch,
        weights: s.scratch.offset(rows * chunks * CANDIDATES * 8),
        summaries: s.summaries,
        tokens: s.tokens,
        stride: s.stride as u32,
        shard: s.shard as u32,
        first: s.first as u32,
        kind,
    };
    let launch = Launch { grid: (chunks as u32, rows as u32, 1), ..Launch::new(1, BLOCK) };
    // SAFETY: the arguments are the kernels'; the rest is the caller's.
    unsafe { stream.launch(kernels.get("sample_chunks"), &launch, &Args::new().value(&args)) }?;
    let merge = Args::new().value(link).value(&args).u32(chunks as u32);
    // SAFETY: as above.
    unsafe { stream.launch(kernels.get("sample_merge"), &Launch::new(rows as u32, BLOCK), &merge) }
}

/// Reads one rank's summary of one row: [`SUMMARY_LINES`] pairs of words.
pub fn read_summary(lines: &[[u32; 2]]) -> Summary {
    let weight = f64::from_bits(u64::from(lines[0][0]) | u64::from(lines[0][1]) << 32);
    let count = (lines[1][0] as usize).min(CANDIDATES);
    let candidate = |&[token, logit]: &[u32; 2]| Candidate { token, logit: f32::from_bits(logit) };
    Summary { candidates: lines[2..2 + count].iter().map(candidate).collect(), weight }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summaries_are_read_back() {
        let weight = 3.25f64.to_bits();
        let mut lines =
            vec![[weight as u32, (weight >> 32) as u32], [2, 0], [7, 1.5f32.to_bits()], [9, 0.5f32.to_bits()]];
        lines.resize(SUMMARY_LINES, [0, 0]);
        let summary = read_summary(&lines);
        assert_eq!(summary.weight, 3.25);
        assert_eq!(summary.candidates, [Candidate { token: 7, logit: 1.5 }, Candidate { token: 9, logit: 0.5 }]);
    }
}
