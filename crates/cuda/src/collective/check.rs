//! The start-up self-check: our own kernels, both wire types, a few epochs, compared bit for bit with a sum on the host.
//! It can only veto: that a driver lists peer access, or that this passes, promises nothing more.

use super::Collective;
use crate::driver::{Arena, CudaError, Device, Event, Kernels, Stream};
use crate::kernels::all_reduce::{Then, Wire, all_reduce};
use std::sync::Arc;
use std::time::Duration;

/// What the self-check saw.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum Veto {
    #[error("rank {rank} (GPU {gpu}) got {got} for {want} at value {index} of round {round}: data arrives wrong")]
    WrongData { rank: usize, gpu: usize, round: usize, index: usize, got: String, want: String },
    #[error(
        "rank {rank} (GPU {gpu}) waited in vain for what rank {silent} (GPU {from}) wrote: writes are lost (IOMMU or ACS?)"
    )]
    Lost { rank: usize, gpu: usize, silent: usize, from: usize },
    #[error("rank {rank} (GPU {gpu}) did not finish")]
    Stuck { rank: usize, gpu: usize },
}

const WIDTH: usize = 4096;
const ROUNDS: usize = 4;
const PATIENCE: Duration = Duration::from_secs(2);

/// Runs it, and leaves the group's deadline as it was.
pub(super) fn run(
    ranks: &[Collective],
    devices: &[Arc<Device>],
    kernels: &[&Kernels],
) -> Result<Result<(), Veto>, CudaError> {
    let before = ranks.first().map(Collective::deadline);
    ranks.iter().for_each(|r| r.set_deadline(PATIENCE));
    let verdict = rounds(ranks, devices, kernels)?;
    for (rank, deadline) in ranks.iter().zip(before.into_iter().cycle()) {
        rank.set_deadline(deadline);
    }
    Ok(verdict)
}

fn rounds(ranks: &[Collective], devices: &[Arc<Device>], kernels: &[&Kernels]) -> Result<Result<(), Veto>, CudaError> {
    let width = WIDTH.min(ranks[0].link().slot_lines() * 2) / 4 * 4;
    let bytes = 4 * width;
    let mut places = Vec::new();
    for device in devices {
        places.push((Stream::new(device)?, Arena::new(device, 2 * bytes)?, Event::new(device)?));
    }
    for round in 0..ROUNDS {
        let wire = if round % 2 == 0 { Wire::Bf16 } else { Wire::F32 };
        for (rank, (stream, arena, _)) in places.iter().enumerate() {
            let data: Vec<f32> = (0..width).map(|i| pattern(rank, round, i)).collect();
            stream.device().make_current()?;
            // SAFETY: the arena holds two vectors of this length.
            unsafe { stream.upload(arena.start(), &data) }?;
        }
        for (((stream, arena, done), rank), kernels) in places.iter().zip(ranks).zip(kernels) {
            stream.device().make_current()?;
            let then = Then::Store { out: arena.start().offset(bytes) };
            // SAFETY: the arena holds input and output; every rank queues the same call.
            unsafe { all_reduce(stream, kernels, rank.link(), wire, arena.start(), &then, (1, width), round as u32) }?;
            done.record(stream)?;
        }
        for (rank, (stream, _, done)) in places.iter().enumerate() {
            stream.device().make_current()?;
            if !done.wait(PATIENCE * 3)? {
                return Ok(Err(Veto::Stuck { rank, gpu: devices[rank].ordinal() }));
            }
            if let Some(fault) = ranks[rank].fault() {
                let (gpu, from) = (devices[rank].ordinal(), devices[fault.silent].ordinal());
                return Ok(Err(Veto::Lost { rank, gpu, silent: fault.silent, from }));
            }
        }
        for (rank, (stream, arena, _)) in places.iter().enumerate() {
            stream.device().make_current()?;
            // SAFETY: the arena holds the output.
            let got: Vec<f32> = unsafe { stream.download(arena.start().offset(bytes), width) }?;
            // The values are small multiples of 1/8: exact in bf16, and so are their sums in f32.
            let want = |i: usize| (0..ranks.len()).map(|r| pattern(r, round, i)).sum::<f32>();
            if let Some(index) = (0..width).find(|&i| got[i].to_bits() != want(i).to_bits()) {
                let (got, want) = (got[index].to_string(), want(index).to_string());
                return Ok(Err(Veto::WrongData { rank, gpu: devices[rank].ordinal(), round, index, got, want }));
            }
        }
    }
    Ok(Ok(()))
}

/// Never zero, different for neighbours in every direction.
fn pattern(rank: usize, round: usize, index: usize) -> f32 {
    let mixed = (index * 31 + rank * 101 + round * 57) ^ (index >> 5);
    (mixed % 120 + 1) as f32 / 8.0
}
