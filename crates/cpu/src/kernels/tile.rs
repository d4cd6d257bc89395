//! The layout of quantized weights in memory, and what one kernel call computes on it.
//!
//! Weights are cut into tiles of 8 rows over all columns. Within a tile the rows' quants are interleaved four columns
//! at a time, so that one 32-byte load holds a *group*, 4 columns of 8 rows; each row's sum stays in its own lane, and
//! no sum has to be folded across a register. A tile is one stream of bytes, read from first to last. It has as many
//! bytes as the file's rows, or nearly so: decoding is bound by them.
//!
//! | kind | columns | bytes, in order |
//! |---|---|---|
//! | Q4_0 | 32 | `half d[8]; nibbles[4 groups][32]: low columns 0–15, high 16–31` |
//! | Q4_1 | 32 | `half d[8]; half m[8]; nibbles as Q4_0` |
//! | Q5_0 | 32 | `half d[8]; nibbles as Q4_0; fifth bits[32]: of group g in bit g` |
//! | Q5_1 | 32 | `half d[8]; half m[8]; nibbles as Q4_0; fifth bits as Q5_0` |
//! | Q8_0 | 32 | `half d[8]; i8 q[8 groups][32]` |
//! | IQ4_NL | 32 | `half d[8]; nibbles as Q4_0` |
//! | MXFP4 | 32 | `u8 e[8]; nibbles as Q4_0` |
//! | Q2_K | 256 | `half d[8]; half dm[8]; u8[16][8 rows]: s below m; bit pairs[8 sub-blocks][2][32]: of group g in byte vector g / 4, shifted by 2(g % 4)` |
//! | Q3_K | 256 | `half d[8]; i8 s[16][8 rows]; bit pairs as Q2_K; third bits[8 sub-blocks][32]: of group g in bit g` |
//! | Q4_K | 256 | `half d[8]; half dm[8]; scales; nibbles[4 chunks][8 groups][32]: low sub-block 2c, high 2c + 1` |
//! | Q5_K | 256 | as Q4_K, then `fifth bits[8 sub-blocks][32]: of group g in bit g` |
//! | Q6_K | 256 | `half d[8]; i8 s[16][8 rows]; per chunk of 64: nibbles[8 groups][32] as Q4_K, then bit pairs[4][32]: of group g of sub-block h in byte vector g % 4, shifted by 4h + 2(g / 4)` |
//! | IQ4_XS | 256 | `half d[8]; i8 s[8 sub-blocks][8 rows]; nibbles[8 sub-blocks] as Q4_0` |
//!
//! Scales of Q4_K and Q5_K, 6 bits for `s` and for `m` of each of 8 sub-blocks: `u8[8 sub-blocks][8 rows]` of the lower four bits,
//! `s` below `m`, then `u8[4][8 rows]` of the upper two: `s` and `m` of sub-block 2c, then of 2c + 1.
//!
//! All kinds are brought to one form, 32 columns at a time, which has one of three [`Class`]es; activations are
//! quantized per 32 values too ([`ActBlock`]). Products are summed in integers as long as they share a scale, then
//! folded into an f32 sum by fused multiply-adds, in the order of the columns. That order is all that a result depends
//! on.

/// Rows of a tile.
pub(crate) const TILE: usize = 8;
/// Values that share a scale in a quantized activation.
pub(crate) const QUANT: usize = 32;

/// Scale and sums of 32 quantized activations.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub(crate) struct ActBlock {
    /// Value of one step.
    pub(crate) scale: f32,
    /// `scale · Σ q`.
    pub(crate) weighted: f32,
    /// `scale · Σ q` of the first 16 and of the last 16.
    pub(crate) halves: [f32; 2],
}

/// Quantized activations of one row.
#[derive(Clone, Copy)]
pub(crate) struct ActRow<'a> {
    /// `[cols]`.
    pub(crate) quants: &'a [i8],
    /// `[cols / 32]`.
    pub(crate) blocks: &'a [ActBlock],
}

/// How 32 columns of a weight row are multiplied with 32 activations `a` of scale `e`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// Unsigned quants with a factor and an offset: `(Σ q·a)·d·e + m·e·Σ a`. So many products of a group may be added
    /// up in 16 bits.
    Offset { adds: usize },
    /// The same with halves of 16 columns that have an integer scale and an offset each:
    /// `(s₀·Σ₀ q·a + s₁·Σ₁ q·a)·d·e + m₀·e·Σ₀ a + m₁·e·Σ₁ a`.
    Halves { adds: usize },
    /// Signed quants: `(Σ q·a)·d·e`.
    Signed,
}

/// How a tile is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(non_camel_case_types)]
pub(crate) enum Kind {
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    IQ4_NL,
    MXFP4,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    IQ4_XS,
}

impl Kind {
    pub(crate) const ALL: [Self; 13] = [
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::IQ4_NL,
        Self::MXFP4,
        Self::Q2_K,
        Self::Q3_K,
        Self::Q4_K,
        Self::Q5_K,
        Self::Q6_K,
        Self::IQ4_XS,
    ];

    /// Columns of one block.
    pub(crate) const fn block_cols(self) -> usize {
        match self {
            Kind::Q4_0 | Kind::Q4_1 | Kind::Q5_0 | Kind::Q5_1 | Kind::Q8_0 | Kind::IQ4_NL | Kind::MXFP4 => 32,
            Kind::Q2_K | Kind::Q3_K | Kind::Q4_K | Kind::Q5_K | Kind::Q6_K | Kind::IQ4_XS => 256,
        }
    }

    /// Bytes of one block of all 8 rows.
    pub(crate) const fn block_bytes(self) -> usize {
        match self {
            Kind::Q4_0 | Kind::IQ4_NL => 16 + 128,
            Kind::Q4_1 => 32 + 128,
            Kind::Q5_0 => 16 + 128 + 32,
            Kind::Q5_1 => 32 + 128 + 32,
            Kind::Q8_0 => 16 + 256,
            Kind::MXFP4 => 8 + 128,
            Kind::Q2_K => 32 + 128 + 512,
            Kind::Q3_K => 16 + 128 + 512 + 256,
            Kind::Q4_K => 32 + 96 + 1024,
            Kind::Q5_K => 32 + 96 + 1024 + 256,
            Kind::Q6_K => 16 + 128 + 1536,
            Kind::IQ4_XS => 16 + 64 + 1024,
        }
    }

    /// How it is multiplied. The bounds on sums of products are those of [`Class`]: `adds · 2 · q · 127 < 2^15`.
    pub(crate) const fn class(self) -> Class {
        match self {
            Kind::Q4_0 | Kind::Q4_1 | Kind::Q4_K => Class::Offset { adds: 8 },
            Kind::Q5_0 | Kind::Q5_1 | Kind::Q5_K | Kind::MXFP4 => Class::Offset { adds: 4 },
            Kind::Q2_K | Kind::Q3_K => Class::Halves { adds: 4 },
            Kind::Q6_K => Class::Halves { adds: 2 },
            Kind::Q8_0 | Kind::IQ4_NL | Kind::IQ4_XS => Class::Signed,
        }
    }
}
