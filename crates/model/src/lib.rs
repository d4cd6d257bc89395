//! The model: its shape read from a file's metadata, the part of every tensor that a rank holds, and the forward pass
//! as a straight list of operations. Also the words in which everything else speaks to whatever runs that list:
//! [`Step`] goes in, [`StepOutput`] comes out, [`Backend`] is the one trait in between.
//!
//! No device, no I/O, no clock lives here.
#![forbid(unsafe_code)]

mod backend;
mod build;
mod config;
pub mod dummy;
mod error;
mod flow;
pub mod limits;
mod op;
mod program;
mod sampling;
mod shard;
mod step;
mod weight;

pub use backend::{Arith, Backend, BackendError, KvType};
pub use config::{Block, Config, Experts, FeedForward, GroupedQuery, Indexer, Latent, Norms, Reach, architectures};
pub use error::ModelError;
pub use flow::Flow;
pub use op::{Activation, ExpertGroups, ExpertMatrix, Gating, Op, Routes};
pub use program::{
    Buffer, BufferId, Element, GroupId, KvGroup, Program, Rope, RopeId, RopeStyle, Rows, Values, WeightId,
};
pub use sampling::{CANDIDATES, Candidate, Sampling, Summary, draw, draw_from_all, side_by_side};
pub use shard::{MAX_RANKS, Shard, Split};
pub use step::{BLOCK_TOKENS, Before, Capacity, NO_TOKEN, Pass, Row, Sequence, Step, StepError, StepOutput, Token};
pub use weight::{Slice, Weight};
