//! A row-major table that several threads fill at once, each its own cells.

use std::marker::PhantomData;
use std::ops::Range;

/// `[rows, width]` values, borrowed for one job.
pub(crate) struct Grid<'a, T> {
    first: *mut T,
    len: usize,
    width: usize,
    borrowed: PhantomData<&'a mut [T]>,
}

// SAFETY: all access goes through `cells`, whose callers promise that no two of them touch the same cells.
unsafe impl<T: Send> Sync for Grid<'_, T> {}

impl<'a, T> Grid<'a, T> {
    /// A table over `values` with rows of `width`.
    pub(crate) fn new(values: &'a mut [T], width: usize) -> Self {
        Self { first: values.as_mut_ptr(), len: values.len(), width, borrowed: PhantomData }
    }

    /// `len` neighbouring cells from `(row, col)` on.
    ///
    /// # Safety
    /// As long as the result lives, no other one that shares a cell with it does.
    ///
    /// # Panics
    /// If they are not all inside the table.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn cells(&self, row: usize, col: usize, len: usize) -> &mut [T] {
        let start = row * self.width + col;
        assert!(start + len <= self.len, "cells outside the table");
        // SAFETY: inside the borrowed slice; the caller vouches that nobody else has these cells.
        unsafe { std::slice::from_raw_parts_mut(self.first.add(start), len) }
    }

    /// Whole rows.
    ///
    /// # Safety
    /// As [`Grid::cells`].
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn rows(&self, rows: Range<usize>) -> &mut [T] {
        // SAFETY: passed on.
        unsafe { self.cells(rows.start, 0, rows.len() * self.width) }
    }
}
