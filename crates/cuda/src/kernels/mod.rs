//! One folder per operation: the CUDA source (device code only) beside the Rust that launches it. `common` holds headers
//! that several share. Nothing here allocates or knows about models.
