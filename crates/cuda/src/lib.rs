//! The backend for NVIDIA GPUs, and the only crate that touches the driver.
//!
//! `driver` holds the driver API as owned values; `kernels` one folder per operation, the CUDA source beside its launch
//! wrapper; `collective` what ranks say to each other. Above them a program becomes nodes (`fuse`), nodes become launches
//! (`run`) over planned memory (`plan`), and a `rank` records and replays them. `load` puts all of it together.

pub mod collective;
pub mod driver;
mod error;
pub mod fuse;
pub mod input;
pub mod kernels;
mod load;
pub mod plan;
mod rank;
mod run;
mod sampled;
mod upload;

pub use collective::Transport;
pub use driver::{DeviceInfo, NoGpu};
pub use error::{LoadError, device_name};
pub use load::{Options, load, load_eager};

/// What the driver says of the GPUs, whether or not this build can use them; nothing where there is no driver.
pub fn attributes() -> Vec<DeviceInfo> {
    driver::Device::list().unwrap_or_default()
}

/// The GPUs of this machine.
///
/// # Errors
/// Why none can be used: no driver, none that is new enough, no device, or no kernels in this build.
pub fn devices() -> Result<Vec<DeviceInfo>, NoGpu> {
    let devices = driver::Device::list()?;
    driver::Kernels::check_built().map(|()| devices)
}
