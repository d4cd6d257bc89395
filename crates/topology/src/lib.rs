//! Machines: which GPUs a computer has and what connects them. Here: the plain data, the parsers that read it from
//! pasted text, the discovery that reads it from the machine itself, and the verdicts that follow from it.
//!
//! No kernel is run, no model is known and nothing is printed here.

#![forbid(unsafe_code)]

pub mod discover;
pub mod gpus;
pub mod limits;
pub mod link;
pub mod machine;
pub mod read;
mod tree;
pub mod verdicts;

pub use discover::{Discovery, Look, discover};
pub use link::{LinkClass, P2pState, Pairs, pcie_gb_s};
pub use machine::{Gpu, Host, Iommu, Machine, MeasuredAllReduce, NumaNode, P2p, P2pTest, Pcie, Uplink};
pub use read::{ReadError, Source, read};
pub use verdicts::{Evidence, Severity, Verdict, verdicts};
