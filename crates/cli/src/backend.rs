//! Chooses the backend: the only place that names the CPU and the CUDA one.

use crate::args::{Device, DeviceArgs, Transport};
use crate::error::{Error, failure, input};
use crate::limits::THREADS_MAX;
use std::sync::Arc;
use std::time::Duration;
use tombolo_gguf::Gguf;
use tombolo_model::{Backend, Capacity, Config};

/// Longest that a rank waits for another before it gives up.
const DEADLINE: Duration = Duration::from_secs(10);

/// Where a model will run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// On the processor, by so many threads.
    Cpu { threads: usize },
    /// On these GPUs, one per rank.
    Cuda { devices: Vec<usize> },
}

/// A place, the number of ranks there, and what should be said about the choice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) place: Place,
    pub(crate) ranks: usize,
    pub(crate) remark: Option<String>,
}

/// Decides where to run, from what was asked for and what there is.
pub(crate) fn choose(device: &Device, ranks: Option<usize>, threads: Option<usize>) -> Result<Choice, Error> {
    if ranks == Some(0) {
        return Err(input("--tensor-parallel-size 0: at least one rank is needed"));
    }
    if threads == Some(0) {
        return Err(input("--threads 0: at least one thread is needed"));
    }
    if let Some(threads) = threads.filter(|&threads| threads > THREADS_MAX) {
        return Err(input(format!(
            "--threads {threads}: at most {THREADS_MAX} are possible; one per core is quickest"
        )));
    }
    let on_cpu = |remark| {
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        let place = Place::Cpu { threads: threads.unwrap_or_else(cores) };
        Choice { place, ranks: ranks.unwrap_or(1), remark }
    };
    let devices = match device {
        Device::Cpu => return Ok(on_cpu(None)),
        Device::Cuda(devices) => devices,
        Device::Auto => &Vec::new(),
    };
    let found = match tombolo_cuda::devices() {
        Ok(found) => found.len(),
        Err(reason) if *device == Device::Auto => return Ok(on_cpu(Some(format!("{reason}; running on the CPU")))),
        Err(reason) => return Err(failure(format!("--device cuda: {reason}"))),
    };
    let ranks = ranks.unwrap_or(devices.len().max(1));
    on_gpus(devices, ranks, found)
}

fn on_gpus(devices: &[usize], ranks: usize, found: usize) -> Result<Choice, Error> {
    if let Some(missing) = devices.iter().find(|d| **d >= found) {
        return Err(input(format!("--device cuda:{missing}: this machine has {found} GPUs, counted from 0")));
    }
    if !devices.is_empty() && devices.len() != ranks {
        let named = devices.len();
        return Err(input(format!("--tensor-parallel-size {ranks}, but --device names {named} GPUs: one per rank")));
    }
    if devices.is_empty() && ranks > found {
        return Err(input(format!(
            "--tensor-parallel-size {ranks}: this machine has {found} GPUs; ask for fewer ranks, or for --device cpu"
        )));
    }
    let devices = if devices.is_empty() { (0..ranks).collect() } else { devices.to_vec() };
    Ok(Choice { place: Place::Cuda { devices }, ranks, remark: None })
}

impl Place {
    /// As llama-bench's column says it.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Place::Cpu { .. } => "CPU",
            Place::Cuda { .. } => "CUDA",
        }
    }

    /// Threads of the processor that compute.
    pub(crate) fn threads(&self) -> usize {
        match self {
            Place::Cpu { threads } => *threads,
            Place::Cuda { devices } => devices.len(),
        }
    }

    /// Refuses a transport where none carries anything.
    pub(crate) fn check_transport(&self, transport: Transport) -> Result<(), Error> {
        let name = match (self, transport) {
            (Place::Cuda { .. }, _) | (_, Transport::Auto) => return Ok(()),
            (_, Transport::Peer) => "peer",
            (_, Transport::Host) => "host",
        };
        Err(input(format!(
            "--transport {name}: the model would run on the processor, where ranks are threads: leave it out"
        )))
    }

    /// Refuses a type of cache that there are no kernels for.
    pub(crate) fn check_kv(&self, device: &DeviceArgs) -> Result<(), Error> {
        let of_gpus = tombolo_model::Arith::from(device.arith).kv_type();
        match (self, device.kv_cache_dtype.kind()) {
            (Place::Cuda { .. }, Some(kind)) if kind != of_gpus => Err(input(format!(
                "--kv-cache-dtype {}: the GPU backend keeps keys and values in {} with this arithmetic; --device cpu takes others",
                kind.name(),
                of_gpus.name()
            ))),
            _ => Ok(()),
        }
    }

    /// Loads the model's shards.
    pub(crate) fn load(
        &self,
        gguf: Arc<Gguf>,
        config: &Config,
        ranks: usize,
        capacity: Capacity,
        device: &DeviceArgs,
    ) -> Result<Vec<Box<dyn Backend>>, Error> {
        let (arith, kv) = (device.arith.into(), device.kv_cache_dtype.kind());
        match self {
            Place::Cpu { threads } => {
                let options = tombolo_cpu::Options { threads: *threads, arith, kv, deadline: DEADLINE };
                tombolo_cpu::load(gguf, config, ranks, capacity, &options).map_err(|error| match error {
                    tombolo_cpu::LoadError::Memory { .. } => {
                        failure(format!("{error}; a smaller model or a shorter context wants less"))
                    }
                    tombolo_cpu::LoadError::Thread(_) => failure(format!("{error}; -t asks for fewer")),
                    tombolo_cpu::LoadError::KvType { .. } => {
                        input(format!("--kv-cache-dtype: {error}; f16 and bf16 take any"))
                    }
                    _ => failure(error),
                })
            }
            Place::Cuda { devices } => {
                let transport = match device.transport {
                    Transport::Auto => tombolo_cuda::Transport::Auto,
                    Transport::Peer => tombolo_cuda::Transport::Peer,
                    Transport::Host => tombolo_cuda::Transport::Host,
                };
                let options = tombolo_cuda::Options {
                    devices: devices.clone(),
                    arith,
                    transport,
                    deadline: DEADLINE,
                    batch_invariant: device.batch_invariant,
                };
                tombolo_cuda::load(gguf, config, ranks, capacity, &options).map_err(failure)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_given_out_in_order() {
        let choice = on_gpus(&[], 2, 4).unwrap();
        assert_eq!(choice.place, Place::Cuda { devices: vec![0, 1] });
        assert_eq!(on_gpus(&[3, 1], 2, 4).unwrap().place, Place::Cuda { devices: vec![3, 1] });
        assert!(on_gpus(&[], 3, 2).is_err(), "more ranks than GPUs");
        assert!(on_gpus(&[0], 2, 2).is_err(), "more ranks than named GPUs");
        assert!(on_gpus(&[2], 1, 2).is_err(), "a GPU that is not there");
    }

    #[test]
    fn the_processor_takes_any_number_of_ranks() {
        let choice = choose(&Device::Cpu, Some(4), Some(2)).unwrap();
        assert_eq!(choice, Choice { place: Place::Cpu { threads: 2 }, ranks: 4, remark: None });
        assert!(choose(&Device::Cpu, Some(0), None).is_err());
        assert!(choose(&Device::Cpu, None, Some(0)).is_err());
        assert!(choose(&Device::Cpu, None, Some(THREADS_MAX)).is_ok());
        assert!(choose(&Device::Cpu, None, Some(THREADS_MAX + 1)).is_err());
        assert!(choose(&Device::Cpu, None, Some(usize::MAX)).is_err());
    }

    #[test]
    fn a_transport_is_for_gpus() {
        assert!(Place::Cpu { threads: 1 }.check_transport(Transport::Host).is_err());
        assert!(Place::Cpu { threads: 1 }.check_transport(Transport::Auto).is_ok());
        assert!(Place::Cuda { devices: vec![0, 1] }.check_transport(Transport::Host).is_ok());
    }
}
