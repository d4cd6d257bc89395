//! The GGUF file and its blocks.
//!
//! A file is untrusted input: [`Gguf::open`] checks every count, length, offset and shape before anything follows it,
//! and says what is wrong in one line. [`Writer`] streams files of any size. [`quant`] has a scalar encoder and decoder
//! per block type, the oracle that the processors' and the GPUs' kernels are tested against.
//!
//! Not here: what the metadata mean (`model`, `text`), and quick kernels (`cpu`, `cuda`).

#![deny(unsafe_code)]

mod cursor;
mod error;
mod file;
mod header;
pub mod limits;
mod map;
mod metadata;
mod per_layer;
pub mod quant;
mod tensor_type;
mod tensors;
mod write;

pub use error::{Fault, GgufError, WriteError};
pub use file::Gguf;
pub use metadata::{Array, Metadata, Value};
pub use per_layer::ValueError;
pub use tensor_type::TensorType;
pub use tensors::TensorInfo;
pub use write::Writer;
