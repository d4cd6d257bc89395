//! What runs a program: the one trait that every kind of device implements.

use crate::{Step, StepError, StepOutput};
use std::sync::Arc;

/// How numbers are kept and multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Arith {
    /// The quick path: activations quantized to 8 bits where the weights are quantized, KV in 16 bits.
    #[default]
    Production,
    /// Every activation, dot product, KV entry and wire value in f32: for gates against reference logits.
    F32,
}

impl Arith {
    /// How keys and values are kept where nobody asks for something else.
    pub fn kv_type(self) -> KvType {
        match self {
            Arith::Production => KvType::F16,
            Arith::F32 => KvType::F32,
        }
    }
}

/// How keys and values are kept in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(non_camel_case_types)]
pub enum KvType {
    /// As they are computed.
    F32,
    /// In halves.
    F16,
    /// In the upper halves of floats.
    BF16,
    /// In 8 bits, 32 values to a scale.
    Q8_0,
}

impl KvType {
    /// As people write it.
    pub fn name(self) -> &'static str {
        match self {
            KvType::F32 => "f32",
            KvType::F16 => "f16",
            KvType::BF16 => "bf16",
            KvType::Q8_0 => "q8_0",
        }
    }

    /// Bytes of so many values.
    pub fn bytes(self, values: usize) -> usize {
        match self {
            KvType::F32 => 4 * values,
            KvType::F16 | KvType::BF16 => 2 * values,
            KvType::Q8_0 => values / 32 * 34,
        }
    }
}

/// Why a step failed. After anything but [`BackendError::Step`] the rank is not usable any more.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum BackendError {
    #[error(transparent)]
    Step(#[from] StepError),
    #[error("rank {rank} waited {waited_ms} ms for rank {silent} in {what}: it died or never arrived")]
    RankSilent { rank: usize, silent: usize, waited_ms: u64, what: String },
    #[error("{device}: out of memory: {wanted_mib} MiB wanted for {what}, {free_mib} MiB free")]
    OutOfMemory { device: String, what: String, wanted_mib: u64, free_mib: u64 },
    #[error("{device}: {message}")]
    Device { device: String, message: String },
}

/// One rank: one device, one shard of the weights, one program.
///
/// Steps are answered in the order in which they were submitted. A backend takes at least two at once, so that the
/// host can prepare the next while the device runs the last.
pub trait Backend: Send {
    /// One line: the device, and what is peculiar about how it runs.
    fn describe(&self) -> String;

    /// Whether [`Backend::submit`] returns before the step is done, so that starting the next one early pays.
    fn is_asynchronous(&self) -> bool {
        false
    }

    /// Starts a step. Every index in it has been checked by [`Step::check`]. May return before it is done.
    fn submit(&mut self, step: Arc<Step>) -> Result<(), BackendError>;

    /// Waits for the oldest step that was submitted and not collected.
    fn collect(&mut self) -> Result<StepOutput, BackendError>;
}
