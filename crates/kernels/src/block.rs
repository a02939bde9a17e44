//! Block-quantized weights: a few bits per element, and scales shared by a block. This module reads and dequantizes the
//! formats of GGUF, and one for the 4-bit integers of Hugging Face checkpoints.
//!
//! Every format is unpacked into one of two forms, `Small` blocks of 32 elements or `Large` blocks of 256, from which
//! everything else is made: floats ([`dequantize`]) and the panels that products read (`panel.rs`). The inverse,
//! [`quantize`], makes unpacked blocks of floats and packs them.
//!
//! Codebooks other than the sixteen values of IQ4 and of 4-bit floats are not supported.

mod pack;
mod read;
mod search;
mod write;

use crate::dtype::{bf16, f16_to_f32};

pub(crate) use read::{large, small};
pub use write::{first_unrepresentable, quantize, quantize_by_importance};

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
    /// 32 elements: a scale and 4 bits each, an index into sixteen values.
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
    /// 256 elements: 8 parts of 32, 4 bits each, an index into sixteen values.
    Iq4Xs,
    /// 32 elements: a scale, an integer of one byte as zero point and 4 bits each, in the order of Q4_0. This is not a
    /// format of ggml, whose minimums are f16: the product of scale and zero point does not fit into an f16.
    Int4,
    /// 32 elements: a power of two of one byte as scale (e8m0) and 4-bit floats (e2m1), which are halves of sixteen
    /// integers.
    Mxfp4,
}

/// A block of 32: `value[i] = scale * (quant[i] - offset) + minimum`, with the offset of the format. For INT4 it is
/// `value[i] = scale * (quant[i] + minimum)`, where the minimum is the negative zero point.
#[derive(Clone)]
pub(crate) struct Small {
    /// The unsigned quants; for IQ4 and MXFP4 the indices of the values.
    pub(crate) quants: [u8; 32],
    /// The bits of an f16; for MXFP4 those of a bf16 that is half of the scale.
    pub(crate) scale: u16,
    /// Bits of an f16; 0 where the format has none.
    pub(crate) minimum: u16,
}

/// A block of 256: `value[i] = scale * scales[j] * (quant[i] - offset) - minimum * minimums[j]`, j being the part that
/// i lies in. Formats with 8 parts use the first 8 entries.
#[derive(Clone)]
pub(crate) struct Large {
    /// The unsigned quants; for IQ4 the indices of the values.
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

/// Twice the sixteen values of 4-bit floats (ggml's `kvalues_mxfp4`).
pub(crate) const MXFP4_VALUES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// The tables of values that quants index, made unsigned for the dots.
pub(crate) mod table {
    use super::{Format, IQ4_VALUES, MXFP4_VALUES};

    /// No table, since the quants are values themselves.
    pub(crate) const NONE: usize = 0;
    /// The values of IQ4, of 8 bits.
    pub(crate) const IQ4: usize = 1;
    /// The values of MXFP4, of 5 bits.
    pub(crate) const MXFP4: usize = 2;

    /// The tables, of sixteen bytes each.
    pub(crate) const UNSIGNED: [[u8; 16]; 3] =
        [[0; 16], unsigned(IQ4_VALUES, Format::Iq4Nl), unsigned(MXFP4_VALUES, Format::Mxfp4)];

    const fn unsigned(values: [i8; 16], format: Format) -> [u8; 16] {
        let mut table = [0; 16];
        let mut i = 0;
        while i < 16 {
            table[i] = (values[i] as i32 + format.offset()) as u8;
            i += 1;
        }
        table
    }
}

impl Format {
    /// Every format.
    pub const ALL: [Format; 14] = [
        Format::Q8_0,
        Format::Q4_0,
        Format::Q4_1,
        Format::Q5_0,
        Format::Q5_1,
        Format::Iq4Nl,
        Format::Q2K,
        Format::Q3K,
        Format::Q4K,
        Format::Q5K,
        Format::Q6K,
        Format::Iq4Xs,
        Format::Int4,
        Format::Mxfp4,
    ];

    /// Number of elements of a block.
    pub const fn elements(self) -> usize {
        match self {
            Format::Q8_0 | Format::Q4_0 | Format::Q4_1 | Format::Q5_0 | Format::Q5_1 => 32,
            Format::Iq4Nl | Format::Int4 | Format::Mxfp4 => 32,
            Format::Q2K | Format::Q3K | Format::Q4K | Format::Q5K | Format::Q6K | Format::Iq4Xs => 256,
        }
    }

    /// Whether the format has blocks of 256.
    pub const fn is_large(self) -> bool {
        self.elements() == 256
    }

    /// Number of bytes of a block.
    pub const fn bytes(self) -> usize {
        match self {
            Format::Q8_0 => 34,
            Format::Q4_0 | Format::Iq4Nl => 18,
            Format::Mxfp4 => 17,
            Format::Int4 => 19,
            Format::Q4_1 => 20,
            Format::Q5_0 => 22,
            Format::Q5_1 => 24,
            Format::Q2K => 84,
            Format::Q3K => 110,
            Format::Q4K => 144,
            Format::Q5K => 176,
            Format::Q6K => 210,
            Format::Iq4Xs => 136,
        }
    }

    /// The name of the format, as ggml spells it if ggml has it.
    pub const fn name(self) -> &'static str {
        match self {
            Format::Q8_0 => "Q8_0",
            Format::Q4_0 => "Q4_0",
            Format::Q4_1 => "Q4_1",
            Format::Q5_0 => "Q5_0",
            Format::Q5_1 => "Q5_1",
            Format::Iq4Nl => "IQ4_NL",
            Format::Q2K => "Q2_K",
            Format::Q3K => "Q3_K",
            Format::Q4K => "Q4_K",
            Format::Q5K => "Q5_K",
            Format::Q6K => "Q6_K",
            Format::Iq4Xs => "IQ4_XS",
            Format::Int4 => "INT4",
            Format::Mxfp4 => "MXFP4",
        }
    }

    /// Number of parts of a block that have a scale of their own: 8 or 16 for a large block, 1 for a small one.
    pub(crate) const fn parts(self) -> usize {
        match self {
            Format::Q4K | Format::Q5K | Format::Iq4Xs => 8,
            Format::Q2K | Format::Q3K | Format::Q6K => 16,
            Format::Q8_0 | Format::Q4_0 | Format::Q4_1 | Format::Q5_0 | Format::Q5_1 => 1,
            Format::Iq4Nl | Format::Int4 | Format::Mxfp4 => 1,
        }
    }

    /// What is subtracted from each unsigned quant; for IQ4 and MXFP4 from the unsigned value of the table.
    pub(crate) const fn offset(self) -> i32 {
        match self {
            Format::Q8_0 | Format::Iq4Nl | Format::Iq4Xs => 128,
            Format::Q4_0 => 8,
            Format::Mxfp4 => 12,
            Format::Q5_0 => 16,
            Format::Q3K => 4,
            Format::Q6K => 32,
            Format::Q4_1 | Format::Q5_1 | Format::Q2K | Format::Q4K | Format::Q5K | Format::Int4 => 0,
        }
    }
}

/// Dequantizes blocks, one after the other. The bits are those of the Python package `gguf`: the scale of a part is
/// rounded to f32, then its product with a quant, then the sum with the minimum; nothing is fused. INT4 is exact, as
/// the product of a scale of 11 bits and an integer of 9. So is MXFP4, unless it reaches infinity.
///
/// # Panics
/// If `bytes` is not a whole number of blocks, or `out` has another number of elements.
pub fn dequantize(format: Format, bytes: &[u8], out: &mut [f32]) {
    assert_whole_blocks(format, bytes.len(), out.len());
    let blocks = bytes.chunks_exact(format.bytes()).zip(out.chunks_exact_mut(format.elements()));
    for (block, values) in blocks {
        if format.is_large() {
            dequantize_large(format, &large(format, block), values.try_into().expect("256 elements"));
        } else {
            dequantize_small(format, &small(format, block), values.try_into().expect("32 elements"));
        }
    }
}

/// Requires a whole number of blocks and as many elements.
fn assert_whole_blocks(format: Format, bytes: usize, elements: usize) {
    let (name, blocks) = (format.name(), bytes / format.bytes());
    assert!(bytes.is_multiple_of(format.bytes()), "{bytes} bytes are not whole {name} blocks of {}", format.bytes());
    assert!(elements == blocks * format.elements(), "{blocks} {name} blocks do not fit {elements} elements");
}

/// The small integer that a quant stands for, before any scale.
#[inline(always)]
fn level(format: Format, quant: u8) -> f32 {
    match format {
        Format::Iq4Nl | Format::Iq4Xs => f32::from(IQ4_VALUES[usize::from(quant & 15)]),
        Format::Mxfp4 => f32::from(MXFP4_VALUES[usize::from(quant & 15)]),
        _ => (i32::from(quant) - format.offset()) as f32,
    }
}

#[inline(always)]
fn dequantize_small(format: Format, block: &Small, values: &mut [f32; 32]) {
    let (scale, minimum) = match format {
        Format::Mxfp4 => (bf16::from_bits(block.scale).to_f32(), 0.0),
        _ => (f16_to_f32(block.scale), f16_to_f32(block.minimum)),
    };
    for (value, &quant) in values.iter_mut().zip(&block.quants) {
        let zero = if format == Format::Int4 { minimum } else { 0.0 };
        *value = scale * (level(format, quant) + zero);
    }
    // The minimum is added only for formats that have one, since adding a zero would turn -0 into 0.
    if matches!(format, Format::Q4_1 | Format::Q5_1) {
        values.iter_mut().for_each(|value| *value += minimum);
    }
}

#[inline(always)]
fn dequantize_large(format: Format, block: &Large, values: &mut [f32; 256]) {
    let (scale, minimum) = (f16_to_f32(block.scale), f16_to_f32(block.minimum));
    let len = 256 / format.parts();
    let parts = values.chunks_exact_mut(len).zip(block.quants.chunks_exact(len));
    for (j, (values, quants)) in parts.enumerate() {
        let scale = scale * f32::from(block.scales[j]);
        let minimum = minimum * f32::from(block.minimums[j]);
        for (value, &quant) in values.iter_mut().zip(quants) {
            // Without a minimum it is +0, whose subtraction changes no bit.
            *value = scale * level(format, quant) - minimum;
        }
    }
}
