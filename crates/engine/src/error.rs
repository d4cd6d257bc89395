//! Why the engine stopped, one line each.

use tombolo_model::{BackendError, StepError};

/// Why a step or a generation failed.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum EngineError {
    #[error("internal error: {0}")]
    Step(#[from] StepError),
    #[error("rank {rank}: {error}")]
    Backend { rank: usize, error: BackendError },
    #[error("rank {rank} stopped: {reason}")]
    RankDied { rank: usize, reason: String },
    #[error("rank {rank} gave no answer within {seconds} s")]
    RankSilent { rank: usize, seconds: u64 },
    #[error("rank {rank} drew token {token} where rank 0 drew {expected}: the ranks no longer hold the same bits")]
    RanksDisagree { rank: usize, token: u32, expected: u32 },
    #[error("cancelled")]
    Cancelled,
    #[error("the logits are no numbers: the weights are damaged, or a value grew without bounds")]
    NotNumbers,
    #[error("the prompt is empty")]
    EmptyPrompt,
    #[error("the prompt has {tokens} tokens; the context holds {context} (raise it with -c)")]
    PromptTooLong { tokens: usize, context: usize },
    #[error("all {blocks} KV blocks are in use")]
    NoBlocks { blocks: usize },
}
