//! NCCL's rings, by its own latency model: what there is to compare with, and what an engine pays whose own all-reduce
//! is switched off.

use super::{Cost, Fabric, Params, Wire};

/// How NCCL talks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nccl {
    /// The LL protocol through peer memory.
    Ll,
    /// LL through host memory: its default beyond PXB, and where P2P is off.
    LlPinned,
    /// The Simple protocol.
    Simple,
}

/// An all-reduce of `bytes`: `base + 2 (n − 1) · hop`, as `src/graph/tuning.cc` of NCCL computes a ring's latency, and
/// `2 (n − 1) / n · bytes` over the narrowest port, twice that under LL, whose lines are half flags.
pub fn nccl_us(fabric: &Fabric, bytes: usize, nccl: Nccl, params: &Params) -> f64 {
    let n = fabric.ranks() as f64;
    if n < 2.0 {
        return 0.0;
    }
    let (base, hop, lines) = match nccl {
        Nccl::Ll => (Cost::NcclBase, Cost::NcclHopLl, 2.0),
        Nccl::LlPinned => (Cost::NcclBase, Cost::NcclHopLlPinned, 2.0),
        Nccl::Simple => (Cost::NcclBaseSimple, Cost::NcclHopSimple, 1.0),
    };
    let wire = fabric.between(0, 1);
    let wire = if nccl == Nccl::LlPinned { Wire::Pinned } else { wire };
    let port = (0..fabric.ranks()).map(|r| fabric.port(fabric.gpu[r], wire, params)).fold(f64::INFINITY, f64::min);
    params.get(base) + 2.0 * (n - 1.0) * params.get(hop) + 2.0 * (n - 1.0) / n * bytes as f64 * lines / (port * 1e3)
}
