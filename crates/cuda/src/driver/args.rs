//! Kernel arguments: values copied into one block that outlives the launch call.

use super::DevicePtr;

/// A struct that kernels take by value.
///
/// # Safety
/// It must be `repr(C)` with no byte of padding, and aligned to at most 8 bytes: every byte of it is read.
pub unsafe trait ByValue: Copy {}

/// The arguments of one launch, in the kernel's order.
#[derive(Clone, Debug, Default)]
pub struct Args {
    words: Vec<u64>,
    starts: Vec<usize>,
}

impl Args {
    /// None yet.
    pub fn new() -> Self {
        Self { words: Vec::with_capacity(24), starts: Vec::with_capacity(20) }
    }

    /// An address.
    #[must_use]
    pub fn ptr(self, value: DevicePtr) -> Self {
        self.word(value.0)
    }

    /// An `unsigned int`.
    #[must_use]
    pub fn u32(self, value: u32) -> Self {
        self.word(u64::from(value))
    }

    /// An `unsigned long long`.
    #[must_use]
    pub fn u64(self, value: u64) -> Self {
        self.word(value)
    }

    /// A `float`.
    #[must_use]
    pub fn f32(self, value: f32) -> Self {
        self.word(u64::from(value.to_bits()))
    }

    /// A struct passed by value, laid out as the kernel's.
    #[must_use]
    pub fn value<T: ByValue>(mut self, value: &T) -> Self {
        const { assert!(align_of::<T>() <= 8) };
        self.starts.push(self.words.len());
        let start = self.words.len();
        self.words.resize(start + size_of::<T>().div_ceil(8), 0);
        // SAFETY: the room was made above, aligned to 8 bytes; `T` is plain data that leaves none of its bytes undefined.
        unsafe { std::ptr::write(self.words[start..].as_mut_ptr().cast::<T>(), *value) };
        self
    }

    fn word(mut self, value: u64) -> Self {
        self.starts.push(self.words.len());
        self.words.push(value);
        self
    }

    /// Pointers to every value, as the driver takes them; valid while `self` is untouched.
    pub(super) fn pointers(&self) -> Vec<*mut std::ffi::c_void> {
        self.starts.iter().map(|&i| std::ptr::from_ref(&self.words[i]).cast_mut().cast()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_lie_where_their_pointers_say() {
        #[derive(Clone, Copy)]
        #[repr(C)]
        struct Pair(u32, u32, u32);
        // SAFETY: `repr(C)`; three 32-bit values leave no gap.
        unsafe impl ByValue for Pair {}
        let args = Args::new().u32(7).value(&Pair(1, 2, 3)).f32(1.5).ptr(DevicePtr(99));
        let pointers = args.pointers();
        assert_eq!(pointers.len(), 4);
        // SAFETY: every pointer is to a live word of `args`.
        unsafe {
            assert_eq!(*pointers[0].cast::<u32>(), 7);
            assert_eq!(*pointers[1].cast::<u32>().add(2), 3);
            assert_eq!(*pointers[2].cast::<f32>(), 1.5);
            assert_eq!(*pointers[3].cast::<u64>(), 99);
        }
    }
}
