//! A device with a stream, the kernels, and memory to put things in.

use std::cell::Cell;
use std::sync::Arc;
use tombolo_cuda::driver::{Arena, Device, DevicePtr, Kernels, Stream};

pub(crate) struct Lab {
    pub(crate) stream: Stream,
    pub(crate) kernels: Kernels,
    pub(crate) device: Arc<Device>,
    arena: Arena,
    used: Cell<usize>,
}

impl Lab {
    pub(crate) fn new(ordinal: usize) -> Self {
        let device = Device::open(ordinal).unwrap();
        Self {
            stream: Stream::new(&device).unwrap(),
            kernels: Kernels::load(&device).unwrap(),
            arena: Arena::new(&device, 256 << 20).unwrap(),
            device,
            used: Cell::new(0),
        }
    }

    pub(crate) fn put<T: Copy>(&self, data: &[T]) -> DevicePtr {
        self.device.make_current().unwrap();
        let at = self.arena.start().offset(self.used.get());
        let bytes = size_of_val(data).next_multiple_of(256);
        assert!(self.used.get() + bytes <= self.arena.bytes());
        self.used.set(self.used.get() + bytes);
        // SAFETY: the arena has room (above).
        unsafe { self.stream.upload(at, data) }.unwrap();
        at
    }

    pub(crate) fn get<T: Copy + Default>(&self, at: DevicePtr, len: usize) -> Vec<T> {
        self.device.make_current().unwrap();
        // SAFETY: what `put` placed there is at least so long.
        unsafe { self.stream.download(at, len) }.unwrap()
    }
}

/// Between -1 and 1.
pub(crate) fn noise(seed: u32, len: usize) -> Vec<f32> {
    let mut state = (u64::from(seed) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..len).map(|_| next()).collect()
}

pub(crate) fn close(name: &str, got: &[f32], want: &[f32], limit: f64) {
    assert_eq!(got.len(), want.len(), "{name}");
    let error: f64 = got.iter().zip(want).map(|(g, w)| f64::from(g - w).powi(2)).sum();
    let power: f64 = want.iter().map(|w| f64::from(*w).powi(2)).sum();
    let nmse = error / power.max(1e-30);
    assert!(nmse <= limit, "{name}: NMSE {nmse:e}");
}
