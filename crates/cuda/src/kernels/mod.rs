//! One folder per operation: the CUDA source (device code only) beside the Rust that launches it. `common` holds headers
//! that several share. Nothing here allocates or knows about models.
//!
//! A wrapper takes the [`Stream`](crate::driver::Stream) and the loaded [`Kernels`](crate::driver::Kernels), and only
//! launches: the memory behind its addresses is its caller's word.

pub mod add_norm;
pub mod all_reduce;
pub mod attention;
pub mod embed;
pub mod gather_rows;
pub mod linear;
pub mod rms_norm;
pub mod sample;
pub mod silu_mul;
pub mod step;
