//! The table of tensor types: id, name, block length and block size, as the GGUF format fixes them
//! (<https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>).

use std::fmt;

macro_rules! tensor_types {
    ($($name:ident = $id:literal, $text:literal, $block:literal, $bytes:literal;)*) => {
        /// The element type of a tensor in a GGUF file. Ids are the file format's.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[allow(non_camel_case_types, missing_docs)]
        #[repr(u32)]
        pub enum TensorType { $($name = $id,)* }

        impl TensorType {
            /// Every known type, in id order.
            pub const ALL: &'static [TensorType] = &[$(TensorType::$name,)*];

            /// The type with this id in the file format; `None` for unknown or removed ids.
            pub fn from_id(id: u32) -> Option<Self> {
                match id { $($id => Some(TensorType::$name),)* _ => None }
            }

            /// The type's usual name, e.g. `Q4_K`.
            pub fn name(self) -> &'static str {
                match self { $(TensorType::$name => $text,)* }
            }

            /// Weights in one block.
            pub fn block_len(self) -> usize {
                match self { $(TensorType::$name => $block,)* }
            }

            /// Bytes of one block.
            pub fn block_bytes(self) -> usize {
                match self { $(TensorType::$name => $bytes,)* }
            }
        }
    };
}

tensor_types! {
    F32 = 0, "F32", 1, 4;
    F16 = 1, "F16", 1, 2;
    Q4_0 = 2, "Q4_0", 32, 18;
    Q4_1 = 3, "Q4_1", 32, 20;
    Q5_0 = 6, "Q5_0", 32, 22;
    Q5_1 = 7, "Q5_1", 32, 24;
    Q8_0 = 8, "Q8_0", 32, 34;
    Q8_1 = 9, "Q8_1", 32, 36;
    Q2_K = 10, "Q2_K", 256, 84;
    Q3_K = 11, "Q3_K", 256, 110;
    Q4_K = 12, "Q4_K", 256, 144;
    Q5_K = 13, "Q5_K", 256, 176;
    Q6_K = 14, "Q6_K", 256, 210;
    Q8_K = 15, "Q8_K", 256, 292;
    IQ2_XXS = 16, "IQ2_XXS", 256, 66;
    IQ2_XS = 17, "IQ2_XS", 256, 74;
    IQ3_XXS = 18, "IQ3_XXS", 256, 98;
    IQ1_S = 19, "IQ1_S", 256, 50;
    IQ4_NL = 20, "IQ4_NL", 32, 18;
    IQ3_S = 21, "IQ3_S", 256, 110;
    IQ2_S = 22, "IQ2_S", 256, 82;
    IQ4_XS = 23, "IQ4_XS", 256, 136;
    I8 = 24, "I8", 1, 1;
    I16 = 25, "I16", 1, 2;
    I32 = 26, "I32", 1, 4;
    I64 = 27, "I64", 1, 8;
    F64 = 28, "F64", 1, 8;
    IQ1_M = 29, "IQ1_M", 256, 56;
    BF16 = 30, "BF16", 1, 2;
    TQ1_0 = 34, "TQ1_0", 256, 54;
    TQ2_0 = 35, "TQ2_0", 256, 66;
    MXFP4 = 39, "MXFP4", 32, 17;
    NVFP4 = 40, "NVFP4", 64, 36;
    Q1_0 = 41, "Q1_0", 128, 18;
    Q2_0 = 42, "Q2_0", 64, 18;
}

impl TensorType {
    /// Bytes of a row of `n` weights, or `None` when `n` is not a whole number of blocks or the size overflows.
    pub fn row_bytes(self, n: u64) -> Option<u64> {
        let block = self.block_len() as u64;
        if !n.is_multiple_of(block) {
            return None;
        }
        (n / block).checked_mul(self.block_bytes() as u64)
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
