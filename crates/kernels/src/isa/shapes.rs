//! The arguments of the kernels of every instruction set, field by field, and the lengths that the kernels are written
//! for.
//!
//! Both sides depend on this file: the modules that prepare the arguments (`panel`, `quantized_rows`, `attention`) call
//! kernels through [`dispatch`](crate::isa::dispatch); the kernels know only the arguments.

use crate::LANES;
use crate::block::Format;

/// Bytes of a cache line.
pub(crate) const CACHE_LINE: usize = 64;

/// Elements of a small block, and of a part of a large one.
pub(crate) const SMALL: usize = 32;
/// Elements of a large block.
pub(crate) const LARGE: usize = 256;

/// Number of positions of a split; its first position is a multiple of this. It is constant, since the bits of results
/// depend on where long contexts are split.
pub(crate) const SPLIT: usize = 512;

/// Elements between rows of factors in a [`Sum`]. It is constant, so that one register addresses all rows.
pub(crate) const FACTORS_STRIDE: usize = SPLIT + LANES;

/// Elements of a head that share a scale in [`CacheType::Q8_0`].
pub(crate) const Q8_BLOCK: usize = 32;

/// The tiles that the kernels of one instruction set have.
pub(crate) struct TileShapes {
    /// What `dot_wide` itself subtracts from quants of 8 bits.
    pub(crate) dot_offset: i32,
    /// Heights of the tiles with one panel, from 1 up.
    pub(crate) single: &'static [usize],
    /// Heights of the tiles with two panels of small blocks. If there are several strips of rows, all are cut for the
    /// highest of these.
    pub(crate) double: &'static [usize],
    /// Heights of the tiles with one panel of floats, from 1 up.
    pub(crate) floats: &'static [usize],
    /// Heights of the tiles with two panels of floats.
    pub(crate) float_pairs: &'static [usize],
}

/// The format of the weights of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PanelFormat {
    /// 32-bit floats.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper halves of 32-bit floats.
    BF16,
    /// Quantized blocks.
    Blocks(Format),
}

impl PanelFormat {
    /// The name as GGUF spells it.
    pub const fn name(self) -> &'static str {
        match self {
            PanelFormat::F32 => "F32",
            PanelFormat::F16 => "F16",
            PanelFormat::BF16 => "BF16",
            PanelFormat::Blocks(format) => format.name(),
        }
    }

    /// The format of blocks.
    pub(crate) fn block_format(self) -> Format {
        match self {
            PanelFormat::Blocks(format) => format,
            floats => unreachable!("{floats:?} has no blocks"),
        }
    }
}

/// Which two elements of a head are rotated together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairing {
    /// Elements i and i + half (GPT-NeoX style), as in most Hugging Face checkpoints.
    Halves,
    /// Elements 2i and 2i + 1 (GPT-J style); also in GGUF files with permuted rows of q and k (`llama`).
    Interleaved,
}

/// The arguments of a tile of a product: one panel, or two at once, and the rows that they are multiplied with.
pub(crate) struct Tile<'a> {
    pub(crate) form: PanelFormat,
    /// The panel, or the first of the two.
    pub(crate) panel: *const u8,
    pub(crate) count: usize,
    pub(crate) rows: &'a Rows<'a>,
    /// What is still to be subtracted from each quant of a large block.
    pub(crate) offset: i32,
    /// Bytes from a panel to the next.
    pub(crate) stride: usize,
    /// The address to prefetch from; it is set for each run of a tile.
    pub(crate) prefetch_from: *const u8,
    /// Bytes to prefetch in each step of a tile.
    pub(crate) prefetch_bytes: usize,
    /// For two panels of floats: the step from which prefetches skip to the next pair, since the panel that follows is
    /// the other one of this pair.
    pub(crate) next_pair_step: usize,
    /// Whether there is one strip of rows.
    pub(crate) is_single_strip: bool,
    /// Whether both panels are computed at once, by a tile for pairs.
    pub(crate) is_paired: bool,
}

/// The rows that a tile reads, in strips of up to `height_max`. The shapes are those of
/// [`QuantizedRows`](crate::quantized_rows::QuantizedRows).
pub(crate) struct Rows<'a> {
    pub(crate) inputs: usize,
    pub(crate) height_max: usize,
    /// For weights that are floats, `[strip][inputs][rows of the strip]`.
    pub(crate) floats: &'a [f32],
    pub(crate) quants: &'a [i8],
    pub(crate) scales: &'a [f32],
    /// Small blocks: the initial value of each sum.
    pub(crate) initial_sums: &'a [i32],
    /// Small blocks: scale times sum of quants, read by formats with minimums.
    pub(crate) weighted_sums: &'a [f32],
    /// Large blocks: sums of the quants of each part.
    pub(crate) part_sums: &'a [i16],
}

/// One row that a kernel quantizes.
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
    /// Elements between rows of sums; vectors are adjacent.
    pub(crate) sums_stride: usize,
    pub(crate) rows: usize,
    pub(crate) vectors: usize,
    /// Whether the sums begin at zero, not at their current values.
    pub(crate) fresh: bool,
    /// What to prefetch meanwhile.
    pub(crate) prefetch: Option<&'a Prefetch>,
}

/// The cache lines of some blocks of the KV cache, to be prefetched while something else is computed.
#[derive(Default)]
pub(crate) struct Prefetch {
    /// Addresses of the blocks' first bytes.
    pub(crate) blocks: Vec<usize>,
    /// Lines of a block.
    pub(crate) lines: usize,
}
