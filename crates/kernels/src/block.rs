//! Weights in blocks: a few bits an element, scales shared by a block. The forms of GGUF, read and spelled out.
//!
//! The idea: every format is read into one of two plain forms, [`Small`] blocks of 32 elements or [`Large`] blocks of
//! 256, from which everything else follows: the floats that they stand for ([`dequantize`]) and the panels that the
//! products use (`panel.rs`).
//!
//! Left out: formats by codebook beyond the sixteen values of IQ4.

/// A format of quantized weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// 32 elements: a scale and signed bytes.
    Q8_0,
    /// 32 elements: a scale and 4 bits each, minus 8.
    Q4_0,
    /// 32 elements: a scale, a minimum and 4 bits each.
    Q4_1,
    /// 32 elements: a scale and 5 bits each, minus 16.
    Q5_0,
    /// 32 elements: a scale, a minimum and 5 bits each.
    Q5_1,
    /// 32 elements: a scale and 4 bits each that number one of sixteen values.
    Iq4Nl,
    /// 256 elements: 16 parts of 16, 2 bits each.
    Q2K,
    /// 256 elements: 16 parts of 16, 3 bits each, minus 4.
    Q3K,
    /// 256 elements: 8 parts of 32, 4 bits each.
    Q4K,
    /// 256 elements: 8 parts of 32, 5 bits each.
    Q5K,
    /// 256 elements: 16 parts of 16, 6 bits each, minus 32.
    Q6K,
    /// 256 elements: 8 parts of 32, 4 bits each that number one of sixteen values.
    Iq4Xs,
}

/// A block of 32: `value[i] = scale * (quant[i] - offset) + minimum`, where the offset is the format's.
#[derive(Clone)]
pub(crate) struct Small {
    /// Unsigned; of IQ4 the number of the value.
    pub(crate) quants: [u8; 32],
    /// Bits of an f16.
    pub(crate) scale: u16,
    /// Bits of an f16; 0 where the format has none.
    pub(crate) minimum: u16,
}

/// A block of 256: `value[i] = scale * scales[j] * (quant[i] - offset) - minimum * minimums[j]`, j being the part that
/// i lies in. Of formats with 8 parts the first 8 places are used.
#[derive(Clone)]
pub(crate) struct Large {
    /// Unsigned; of IQ4 the number of the value.
    pub(crate) quants: [u8; 256],
    pub(crate) scales: [i8; 16],
    pub(crate) minimums: [u8; 16],
    /// Bits of an f16.
    pub(crate) scale: u16,
    /// Bits of an f16; 0 where the format has none.
    pub(crate) minimum: u16,
}

/// The sixteen values of IQ4 (ggml's `kvalues_iq4nl`).
pub(crate) const IQ4_VALUES: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

impl Format {
    /// Elements of a block.
    pub const fn elements(self) -> usize {
        match self {
            Format::Q8_0 | Format::Q4_0 | Format::Q4_1 | Format::Q5_0 | Format::Q5_1 | Format::Iq4Nl => 32,
            _ => 256,
        }
    }

    /// What is taken from each unsigned quant. Of IQ4, from the value of the table made unsigned (+128).
    pub(crate) const fn offset(self) -> i32 {
        match self {
            Format::Q8_0 | Format::Iq4Nl | Format::Iq4Xs => 128,
            Format::Q4_0 => 8,
            Format::Q5_0 => 16,
            Format::Q3K => 4,
            Format::Q6K => 32,
            Format::Q4_1 | Format::Q5_1 | Format::Q2K | Format::Q4K | Format::Q5K => 0,
        }
    }
}
