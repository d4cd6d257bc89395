//! The GGUF file and its blocks.
//!
//! A file is untrusted input: [`Gguf::open`] checks every count, length, offset and shape before anything follows it,
//! and says what is wrong in one line. It also finds and joins the shards of split sets. [`Writer`] streams files of any size. [`quant`] has a scalar encoder and decoder
//! per block type, the oracle that the processors' and the GPUs' kernels are tested against.
//!
//! Not here: what the metadata mean (`model`, `text`), and quick kernels (`cpu`, `cuda`).

#![deny(unsafe_code)]

mod assemble;
mod bus_error;
mod cursor;
mod directory;
mod error;
mod file;
mod header;
pub mod limits;
mod made;
mod map;
mod metadata;
mod part;
mod per_layer;
pub mod quant;
mod shard_name;
mod tensor_type;
mod tensors;
mod warning;
mod write;

pub use bus_error::{EXIT_CODE as CUT_FILE_EXIT_CODE, exit_when_a_file_is_cut, word_cut_files};
pub use error::{Fault, GgufError, WriteError};
pub use file::{Gguf, Shard};
pub use metadata::{Array, Metadata, Value};
pub use per_layer::ValueError;
pub use tensor_type::TensorType;
pub use tensors::TensorInfo;
pub use warning::Warning;
pub use write::Writer;
