//! The element and block types of tensors: ids, names and sizes. What is inside a block is in [`crate::quant`].

macro_rules! tensor_types {
    ($($(#[$doc:meta])* $name:ident = $id:literal: $len:literal values in $bytes:literal bytes,)*) => {
        /// How a tensor's values are stored. Every id that the format defines, whether or not it can be decoded here.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[allow(non_camel_case_types)]
        pub enum TensorType { $($(#[$doc])* $name,)* }

        impl TensorType {
            /// Every type, in the order of ids.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The type that a file means by `id`; `None` for ids that were removed from the format or never given.
            pub fn from_id(id: u32) -> Option<Self> {
                match id { $($id => Some(Self::$name),)* _ => None }
            }

            /// The number that stands for it in files.
            pub fn id(self) -> u32 {
                match self { $(Self::$name => $id,)* }
            }

            /// The name in the format's documents, such as `Q4_K`.
            pub fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)* }
            }

            /// Values in a block; 1 for plain types.
            pub fn block_len(self) -> usize {
                match self { $(Self::$name => $len,)* }
            }

            /// Bytes of a block.
            pub fn block_bytes(self) -> usize {
                match self { $(Self::$name => $bytes,)* }
            }
        }
    };
}

tensor_types! {
    /// IEEE single precision.
    F32 = 0: 1 values in 4 bytes,
    /// IEEE half precision.
    F16 = 1: 1 values in 2 bytes,
    /// 4 bits, one scale.
    Q4_0 = 2: 32 values in 18 bytes,
    /// 4 bits, a scale and a minimum.
    Q4_1 = 3: 32 values in 20 bytes,
    /// 5 bits, one scale.
    Q5_0 = 6: 32 values in 22 bytes,
    /// 5 bits, a scale and a minimum.
    Q5_1 = 7: 32 values in 24 bytes,
    /// 8 bits, one scale.
    Q8_0 = 8: 32 values in 34 bytes,
    /// 8 bits, a scale and a sum; for activations, not found in files.
    Q8_1 = 9: 32 values in 36 bytes,
    /// 2 bits, two levels of scales.
    Q2_K = 10: 256 values in 84 bytes,
    /// 3 bits, two levels of scales.
    Q3_K = 11: 256 values in 110 bytes,
    /// 4 bits, two levels of scales and minima.
    Q4_K = 12: 256 values in 144 bytes,
    /// 5 bits, two levels of scales and minima.
    Q5_K = 13: 256 values in 176 bytes,
    /// 6 bits, two levels of scales.
    Q6_K = 14: 256 values in 210 bytes,
    /// 8 bits with sums; for activations, not found in files.
    Q8_K = 15: 256 values in 292 bytes,
    /// About 2.06 bits, vectors from a table.
    IQ2_XXS = 16: 256 values in 66 bytes,
    /// About 2.31 bits, vectors from a table.
    IQ2_XS = 17: 256 values in 74 bytes,
    /// About 3.06 bits, vectors from a table.
    IQ3_XXS = 18: 256 values in 98 bytes,
    /// About 1.56 bits, vectors from a table.
    IQ1_S = 19: 256 values in 50 bytes,
    /// 4 bits, values from a table.
    IQ4_NL = 20: 32 values in 18 bytes,
    /// About 3.44 bits, vectors from a table.
    IQ3_S = 21: 256 values in 110 bytes,
    /// About 2.56 bits, vectors from a table.
    IQ2_S = 22: 256 values in 82 bytes,
    /// 4.25 bits, values from a table.
    IQ4_XS = 23: 256 values in 136 bytes,
    /// Signed integers of 8 bits.
    I8 = 24: 1 values in 1 bytes,
    /// Signed integers of 16 bits.
    I16 = 25: 1 values in 2 bytes,
    /// Signed integers of 32 bits.
    I32 = 26: 1 values in 4 bytes,
    /// Signed integers of 64 bits.
    I64 = 27: 1 values in 8 bytes,
    /// IEEE double precision.
    F64 = 28: 1 values in 8 bytes,
    /// About 1.75 bits, vectors from a table.
    IQ1_M = 29: 256 values in 56 bytes,
    /// The upper half of a single.
    BF16 = 30: 1 values in 2 bytes,
    /// Ternary, five values to a byte.
    TQ1_0 = 34: 256 values in 54 bytes,
    /// Ternary, four values to a byte.
    TQ2_0 = 35: 256 values in 66 bytes,
    /// OCP microscaling, 4-bit floats with a power of two for each 32.
    MXFP4 = 39: 32 values in 17 bytes,
    /// 4-bit floats with an 8-bit float for each 16.
    NVFP4 = 40: 64 values in 36 bytes,
    /// Signs and one scale.
    Q1_0 = 41: 128 values in 18 bytes,
    /// 2 bits, one scale.
    Q2_0 = 42: 64 values in 18 bytes,
}

impl TensorType {
    /// Ids that the format once used and then removed; files with them need converting anew.
    pub fn is_removed(id: u32) -> bool {
        matches!(id, 4 | 5 | 31..=33 | 36..=38)
    }

    /// Whether [`crate::quant::decode`] knows it, and with it the rest of the house.
    pub fn is_supported(self) -> bool {
        crate::quant::codec(self).is_some()
    }

    /// Bytes of `values` values, a whole number of blocks; `None` where they are not, or where the size overflows.
    pub fn bytes_of(self, values: u64) -> Option<u64> {
        let len = self.block_len() as u64;
        if !values.is_multiple_of(len) {
            return None;
        }
        (values / len).checked_mul(self.block_bytes() as u64)
    }
}

impl std::fmt::Display for TensorType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
