//! Room for columns of a tile in the form that all kinds share. What is in it, only the kernels know.

use super::tile::TILE;

/// Sub-blocks of 32 columns that a panel holds: with their activations they fill half of a core's nearest cache.
const PANEL_SUBS: usize = 16;

/// 32 columns of 8 rows.
#[derive(Clone, Copy)]
#[repr(C, align(32))]
pub(super) struct PanelSub {
    /// Per group of 4 columns `[8 rows][4]`.
    pub(super) quants: [[u8; 4 * TILE]; 8],
    /// Factors.
    pub(super) d: [f32; TILE],
    /// Offsets of both halves.
    pub(super) m: [[f32; TILE]; 2],
    /// Scales of both halves, as pairs of equal integers.
    pub(super) s: [[i16; 2 * TILE]; 2],
}

impl PanelSub {
    pub(super) const ZERO: Self =
        Self { quants: [[0; 4 * TILE]; 8], d: [0.0; TILE], m: [[0.0; TILE]; 2], s: [[0; 2 * TILE]; 2] };
}

/// Scratch of one thread.
pub(crate) struct Panel {
    pub(super) subs: Vec<PanelSub>,
}

impl Default for Panel {
    /// A few KB.
    fn default() -> Self {
        Self { subs: vec![PanelSub::ZERO; PANEL_SUBS] }
    }
}
