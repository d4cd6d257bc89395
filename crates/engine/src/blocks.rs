//! The pool of KV blocks of one group. Blocks are numbers; what they hold is the backend's business.

/// Free blocks of one KV group. Every block is either in the pool or in exactly one context.
#[derive(Clone, Debug)]
pub struct BlockPool {
    free: Vec<u32>,
    total: usize,
}

impl BlockPool {
    /// A pool of blocks `0 .. total`.
    pub fn new(total: usize) -> Self {
        let total32 = u32::try_from(total).expect("a KV group has fewer than 2^32 blocks");
        Self { free: (0..total32).rev().collect(), total }
    }

    /// Takes a block, if there is one.
    pub fn take(&mut self) -> Option<u32> {
        self.free.pop()
    }

    /// Gives a block back.
    pub fn give(&mut self, block: u32) {
        debug_assert!((block as usize) < self.total && !self.free.contains(&block));
        self.free.push(block);
    }

    /// Blocks that can be taken.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Blocks in all.
    pub fn total(&self) -> usize {
        self.total
    }
}
