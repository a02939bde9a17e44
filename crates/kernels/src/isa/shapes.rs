//! What the kernels of every instruction set are given: the arguments of their functions, field by field, and the
//! lengths that they are written for.
//!
//! This file lies below both sides. Who prepares the arguments (`panel`, `rounded`, `attention`) calls kernels through
//! [`dispatch`](crate::isa::dispatch); the kernels know these arguments and nothing of who prepares them.

use crate::LANES;
use crate::block::Format;

/// Bytes that memory delivers at once.
pub(crate) const CACHE_LINE: usize = 64;

/// Elements of a small block, and of a part of a large one.
pub(crate) const SMALL: usize = 32;
/// Elements of a large block.
pub(crate) const LARGE: usize = 256;

/// Positions of a split; the first is a multiple of it. A constant: how long texts are cut is part of their bits.
pub(crate) const SPLIT: usize = 512;

/// Between rows of numbers in a [`Sum`]. A constant, so that one register finds them all.
pub(crate) const FACTORS_STRIDE: usize = SPLIT + LANES;

/// Elements of a head that share a scale in [`CacheType::Q8_0`].
pub(crate) const QUANTS: usize = 32;

/// What the kernels of one instruction set are made for.
pub(crate) struct Tiles {
    /// What its dots take off quants of 8 bits by themselves.
    pub(crate) bias: i32,
    /// Heights of its tiles of one panel, 1 up to the highest.
    pub(crate) single: &'static [usize],
    /// Heights of its tiles of two panels of small blocks. Of several strips, all are made for the highest of these.
    pub(crate) double: &'static [usize],
    /// Heights of its tiles of one panel of floats, 1 up to the highest, and of two.
    pub(crate) floats: &'static [usize],
    pub(crate) float_pairs: &'static [usize],
}

/// What the weights of a matrix are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// 32-bit floats.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper halves of 32-bit floats.
    BF16,
    /// Quantized blocks.
    Blocks(Format),
}

impl Form {
    /// The name as GGUF spells it.
    pub const fn name(self) -> &'static str {
        match self {
            Form::F32 => "F32",
            Form::F16 => "F16",
            Form::BF16 => "BF16",
            Form::Blocks(format) => format.name(),
        }
    }

    /// The format of blocks.
    pub(crate) fn format(self) -> Format {
        match self {
            Form::Blocks(format) => format,
            floats => unreachable!("{floats:?} has no blocks"),
        }
    }
}

/// One panel, or two side by side, as a tile of a product sees them, with the rows that they are multiplied with.
pub(crate) struct Tile<'a> {
    pub(crate) form: Form,
    /// The panel, or the first.
    pub(crate) panel: *const u8,
    pub(crate) count: usize,
    pub(crate) rows: &'a Rows<'a>,
    /// What is left to be taken off each quant of a large block.
    pub(crate) offset: i32,
    /// Bytes from a panel to the next.
    pub(crate) stride: usize,
    /// What will be read soon, and how much of it belongs to each step: set for each run of a tile.
    pub(crate) ahead: *const u8,
    pub(crate) share: usize,
    /// Floats, two panels at a time: the step from which what will be read soon is the panel after the other one.
    pub(crate) turn: usize,
    /// Whether there is one strip of rows.
    pub(crate) alone: bool,
    /// Whether the two panels are computed side by side by a tile that is made for it.
    pub(crate) paired: bool,
}

/// What a tile reads of its rows: strips of up to `highest` of them. The shapes are those of
/// [`Rounded`](crate::rounded::Rounded).
pub(crate) struct Rows<'a> {
    pub(crate) inputs: usize,
    pub(crate) highest: usize,
    /// For weights that are floats, `[strip][inputs][rows of the strip]`.
    pub(crate) floats: &'a [f32],
    pub(crate) quants: &'a [i8],
    pub(crate) scales: &'a [f32],
    /// Small blocks: what each sum starts with.
    pub(crate) starts: &'a [i32],
    /// Small blocks, read for those with minimums.
    pub(crate) weighted_sums: &'a [f32],
    /// Large blocks: sums of the quants of each part.
    pub(crate) part_sums: &'a [i16],
}

/// One row, as the kernels round it.
pub(crate) struct Row<'a> {
    pub(crate) quants: &'a mut [i8],
    pub(crate) scales: &'a mut [f32],
    pub(crate) sums_of_16: &'a mut [i16],
    pub(crate) sums_of_32: &'a mut [i16],
}

/// `sums[r][v] += factors[r][t] * terms[t][v]`, where v numbers vectors of sixteen, with t ascending from 0 to `count`.
pub(crate) struct Sum<'a> {
    /// `[rows, FACTORS_STRIDE]`.
    pub(crate) factors: *const f32,
    pub(crate) terms: *const f32,
    /// Elements between terms.
    pub(crate) terms_step: usize,
    /// Elements between vectors of a term.
    pub(crate) terms_next: usize,
    pub(crate) count: usize,
    pub(crate) sums: *mut f32,
    /// Elements between rows of sums; vectors are neighbours.
    pub(crate) sums_stride: usize,
    pub(crate) rows: usize,
    pub(crate) vectors: usize,
    /// The sums begin at zero instead of what is there.
    pub(crate) fresh: bool,
    /// What to ask the memory for meanwhile.
    pub(crate) ahead: Option<&'a Ahead>,
}

/// The cache lines of some blocks of a side, to be asked for while something else is computed.
#[derive(Default)]
pub(crate) struct Ahead {
    /// Addresses of the blocks' first bytes.
    pub(crate) blocks: Vec<usize>,
    /// Lines of a block.
    pub(crate) lines: usize,
}
