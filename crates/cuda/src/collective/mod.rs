//! What the ranks of one machine say to each other through memory: who may use which memory, the slots, the epochs, the
//! deadline and the error word. The kernels that talk are `kernels/all_reduce` and `kernels/sample`; their side of the
//! structs here, and the proof that two slots are enough, is `kernels/all_reduce/ll.cuh`.
//!
//! Two transports: `Peer` (the writer stores into the reader's device memory) and `Host` (into pinned host memory that
//! the reader polls). What the driver says of peer access is not believed: `check` runs our own kernels first, and can
//! only veto.

pub mod bench;
mod check;

use crate::driver::{
    Arena, ArenaPlan, ByValue, CudaError, Device, DevicePtr, Kernels, PeerAccess, Pinned, Stream, enable_peer,
};
use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tombolo_model::MAX_RANKS;

/// Which memory to go through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Transport {
    /// Each other's memory where it is proven, else pinned host memory.
    #[default]
    Auto,
    /// Each other's memory, or not at all.
    Peer,
    /// Pinned host memory.
    Host,
}

impl Transport {
    /// As options and tables write it.
    pub fn name(self) -> &'static str {
        match self {
            Transport::Auto => "auto",
            Transport::Peer => "peer",
            Transport::Host => "host",
        }
    }
}

/// How large, and how patient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Lines of 16 bytes in one slot: 8 bytes of data each. A message that needs more goes in several calls.
    pub slot_lines: usize,
    /// The longest that a rank waits for another.
    pub deadline: Duration,
}

/// Why ranks cannot talk.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum ConnectError {
    #[error(transparent)]
    Cuda(#[from] CudaError),
    #[error("{ranks} ranks; 1 to {MAX_RANKS} can talk to each other")]
    Ranks { ranks: usize },
    #[error(
        "GPU {from} cannot use memory of GPU {to}: the driver refuses peer access; use pinned host memory (--transport host)"
    )]
    NoPeerAccess { from: usize, to: usize },
    #[error("the {transport} transport failed its self-check: {veto}")]
    Vetoed { transport: &'static str, veto: check::Veto },
}

pub use check::Veto;

/// A kernel's wait that ended without what it waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("rank {rank} waited {waited_ms} ms for rank {silent} in operation {kind}, call {epoch}")]
pub struct Fault {
    /// Who waited.
    pub rank: usize,
    /// For whom.
    pub silent: usize,
    /// In what: the number that the launch was given.
    pub kind: u32,
    /// In which call, counted from 1.
    pub epoch: u64,
    /// How long.
    pub waited_ms: u64,
    /// The host asked to stop; the silent rank need not be at fault.
    pub aborted: bool,
}

/// The kernels' parameters: `Link` in `ll.cuh`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Link {
    push: [DevicePtr; MAX_RANKS],
    recv: [DevicePtr; MAX_RANKS],
    counter: DevicePtr,
    tiles: DevicePtr,
    control: DevicePtr,
    rank: u32,
    ranks: u32,
    slot_lines: u32,
    poll_delay: u32,
}

// SAFETY: `repr(C)`; 19 addresses and four 32-bit values leave no gap.
unsafe impl ByValue for Link {}

impl Link {
    /// Ranks of the group.
    pub fn ranks(&self) -> usize {
        self.ranks as usize
    }

    /// Lines of a slot.
    pub fn slot_lines(&self) -> usize {
        self.slot_lines as usize
    }
}

/// Pinned, one per rank: `Control` in `ll.cuh`.
#[repr(C)]
struct Control {
    deadline_ns: u64,
    abort: u32,
    error: u32,
    rank: u32,
    silent: u32,
    kind: u32,
    reserved: u32,
    epoch: u64,
    waited_ns: u64,
}

const ERROR_ABORTED: u32 = 2;
const LINE: usize = 16;
/// Clock cycles from the last store to the first poll: the other rank's lines need about so long. Best of 0 to 1200 on
/// 2x H200 (0.1 us over NVLink, 0.1 to 0.2 us over PCIe).
const PEER_POLL_DELAY: u32 = 400;
const HOST_POLL_DELAY: u32 = 800;

/// Everything that a group's kernels touch; freed when the last rank is gone.
#[derive(Debug)]
struct Memory {
    // Fields drop in order; none depends on another.
    controls: Vec<Pinned>,
    own: Vec<Arena>,
    _host: Vec<Pinned>,
}

/// One rank's end of the group.
#[derive(Clone, Debug)]
pub struct Collective {
    link: Link,
    transport: Transport,
    memory: Arc<Memory>,
}

/// A group whose self-check has passed.
#[derive(Debug)]
pub struct Connected {
    /// One end per rank.
    pub ranks: Vec<Collective>,
    /// What `Auto` gave up, and why.
    pub remark: Option<String>,
}

/// Connects the ranks on `devices` (one each; a device may repeat) and checks the connection with our own kernels.
///
/// # Errors
/// The driver's; a transport that was asked for by name and cannot be used or fails its check.
pub fn connect(
    devices: &[Arc<Device>],
    kernels: &[&Kernels],
    transport: Transport,
    settings: &Settings,
) -> Result<Connected, ConnectError> {
    assert_eq!(devices.len(), kernels.len());
    let attempt = |transport| -> Result<Vec<Collective>, ConnectError> {
        let ranks = allocate(devices, transport, settings)?;
        let verdict = check::run(&ranks, devices, kernels)?;
        match verdict {
            Ok(()) => Ok(ranks),
            Err(veto) => Err(ConnectError::Vetoed { transport: transport.name(), veto }),
        }
    };
    match transport {
        Transport::Auto if devices.len() == 1 => Ok(Connected { ranks: attempt(Transport::Host)?, remark: None }),
        Transport::Auto => match attempt(Transport::Peer) {
            Ok(ranks) => Ok(Connected { ranks, remark: None }),
            Err(error @ (ConnectError::NoPeerAccess { .. } | ConnectError::Vetoed { .. })) => {
                let remark = Some(format!("{error}; using pinned host memory"));
                Ok(Connected { ranks: attempt(Transport::Host)?, remark })
            }
            Err(error) => Err(error),
        },
        named => Ok(Connected { ranks: attempt(named)?, remark: None }),
    }
}

/// Bytes of device memory that each of `ranks` ranks takes.
pub fn device_bytes(ranks: usize, transport: Transport, settings: &Settings) -> usize {
    plan(ranks, transport, settings).0.bytes()
}

/// A rank's own device memory: counter, tile words, and the slots of every writer where they lie there.
fn plan(
    ranks: usize,
    transport: Transport,
    settings: &Settings,
) -> (ArenaPlan, [crate::driver::Slot; 2], Vec<crate::driver::Slot>) {
    let mut plan = ArenaPlan::default();
    let words = [plan.add("collective", 8), plan.add("collective", 8 * settings.slot_lines)];
    let writers = if transport == Transport::Host { 0 } else { ranks };
    let slots = (0..writers).map(|_| plan.add("collective", 2 * LINE * settings.slot_lines)).collect();
    (plan, words, slots)
}

fn allocate(devices: &[Arc<Device>], transport: Transport, s: &Settings) -> Result<Vec<Collective>, ConnectError> {
    let n = devices.len();
    if n == 0 || n > MAX_RANKS {
        return Err(ConnectError::Ranks { ranks: n });
    }
    if transport == Transport::Peer {
        for from in devices {
            for to in devices {
                if enable_peer(from, to)? == PeerAccess::Refused {
                    return Err(ConnectError::NoPeerAccess { from: from.ordinal(), to: to.ordinal() });
                }
            }
        }
    }
    let (plan, words, slots) = plan(n, transport, s);
    let mut memory = Memory { controls: Vec::new(), own: Vec::new(), _host: Vec::new() };
    // [reader][writer]: where lines arrive.
    let mut arrive = vec![[DevicePtr::NULL; MAX_RANKS]; n];
    for (reader, device) in devices.iter().enumerate() {
        let own = Arena::new(device, plan.bytes())?;
        let stream = Stream::new(device)?;
        // SAFETY: the arena is as long as said; the stream is waited for here.
        unsafe { stream.fill(own.start(), 0, own.bytes()) }?;
        stream.synchronize()?;
        for (writer, place) in arrive[reader].iter_mut().enumerate().take(n) {
            if writer == reader {
                continue;
            }
            *place = if transport == Transport::Host {
                let pinned = Pinned::new(device, 2 * LINE * s.slot_lines)?;
                let at = pinned.device_ptr();
                memory._host.push(pinned);
                at
            } else {
                own.at(slots[writer])
            };
        }
        memory.own.push(own);
        let control = Pinned::new(device, size_of::<Control>().next_multiple_of(64))?;
        set_deadline(&control, s.deadline);
        memory.controls.push(control);
    }
    let memory = Arc::new(memory);
    let link = |rank: usize| {
        let mut push = [DevicePtr::NULL; MAX_RANKS];
        (0..n).for_each(|reader| push[reader] = arrive[reader][rank]);
        Link {
            push,
            recv: arrive[rank],
            counter: memory.own[rank].at(words[0]),
            tiles: memory.own[rank].at(words[1]),
            control: memory.controls[rank].device_ptr(),
            rank: rank as u32,
            ranks: n as u32,
            slot_lines: s.slot_lines as u32,
            poll_delay: if transport == Transport::Host { HOST_POLL_DELAY } else { PEER_POLL_DELAY },
        }
    };
    Ok((0..n).map(|rank| Collective { link: link(rank), transport, memory: memory.clone() }).collect())
}

impl Collective {
    /// What kernels take.
    pub fn link(&self) -> &Link {
        &self.link
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.link.rank as usize
    }

    /// The transport in use: never `Auto`.
    pub fn transport(&self) -> Transport {
        self.transport
    }

    /// What this rank's kernels last complained of. Once there is something, every later call of this rank does nothing.
    pub fn fault(&self) -> Option<Fault> {
        let control = &self.memory.controls[self.rank()];
        let word = |offset| control.word(offset).load(Ordering::Acquire);
        let long = |offset| u64::from(word(offset)) | u64::from(word(offset + 4)) << 32;
        let error = word(offset_of!(Control, error));
        (error != 0).then(|| Fault {
            rank: word(offset_of!(Control, rank)) as usize,
            silent: word(offset_of!(Control, silent)) as usize,
            kind: word(offset_of!(Control, kind)),
            epoch: long(offset_of!(Control, epoch)),
            waited_ms: long(offset_of!(Control, waited_ns)) / 1_000_000,
            aborted: error == ERROR_ABORTED,
        })
    }

    /// Makes every rank's kernels leave their waits, now and from now on.
    pub fn abort(&self) {
        for control in &self.memory.controls {
            control.word(offset_of!(Control, abort)).store(1, Ordering::Release);
        }
    }

    fn deadline(&self) -> Duration {
        let control = &self.memory.controls[self.rank()];
        let word = |offset: usize| u64::from(control.word(offset).load(Ordering::Acquire));
        let at = offset_of!(Control, deadline_ns);
        Duration::from_nanos(word(at) | word(at + 4) << 32)
    }

    /// Changes this rank's deadline. Kernels that already wait see the new one too.
    pub fn set_deadline(&self, deadline: Duration) {
        set_deadline(&self.memory.controls[self.rank()], deadline);
    }
}

fn set_deadline(control: &Pinned, deadline: Duration) {
    let nanos = deadline.as_nanos().min(u128::from(u64::MAX)) as u64;
    // The two halves may be seen apart for an instant: the high one goes first where the value grows.
    let at = offset_of!(Control, deadline_ns);
    control.word(at + 4).store((nanos >> 32) as u32, Ordering::Release);
    control.word(at).store(nanos as u32, Ordering::Release);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structs_are_laid_out_as_the_kernels_read_them() {
        assert_eq!(size_of::<Link>(), 168);
        assert_eq!(offset_of!(Link, counter), 128);
        assert_eq!(offset_of!(Link, rank), 152);
        assert_eq!(size_of::<Control>(), 48);
        assert_eq!(offset_of!(Control, error), 12);
        assert_eq!(offset_of!(Control, epoch), 32);
    }

    #[test]
    fn host_slots_take_no_device_memory() {
        let settings = Settings { slot_lines: 1024, deadline: Duration::from_secs(1) };
        let host = device_bytes(8, Transport::Host, &settings);
        let peer = device_bytes(8, Transport::Peer, &settings);
        assert_eq!(peer - host, 8 * 2 * 16 * 1024);
    }
}
