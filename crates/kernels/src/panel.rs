//! Weights in the layout that products read: panels of 16 outputs, packed once.
//!
//! Sixteen outputs are interleaved, so that one load fills a register with a weight of each, and the sums of a row need
//! no reduction across lanes. Elements of bf16 lie in pairs of k, so that widening takes one instruction each.
//! Quantized weights are interleaved in groups of 4 elements of k: one cache line of 64 bytes holds 4 weights of each
//! output, and one instruction multiplies it by 4 activations for all of them. Quants are unsigned; the offset of a
//! format is subtracted from the sums instead. Formats of fewer than 8 bits keep bit planes: line v of 4 bits holds the
//! quants of lines v (low) and v + 4 (high), so that unpacking shifts and masks but moves nothing. The quants of each
//! 256 elements come first, then their scales: a product reads one stream, from front to back.
//!
//! The size is that of the file, except for k-quants with packed scales, which get a byte per scale and minimum (Q4_K
//! +2.8 %, Q3_K +3.6 %, Q2_K +19 %), and MXFP4, whose powers of two get the two bytes of a bf16 (+5.9 %). Packing reads
//! and writes every byte once, on all threads. Floats are packed, too, although using them in the mapped file would
//! save a copy: rows whose length is a power of two share the same sets of the L1 cache, so that 8 rows in bf16 took
//! 1.5 times as long as one, and no number of rows reached more than half of the peak of the multipliers.

use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, RwLockReadGuard};

use crate::block::{self, Format};
use crate::dtype::Matrix;
use crate::isa::shapes::{LARGE, Rows, SMALL, Tile};
use crate::{LANES, Pool};

pub use crate::isa::shapes::PanelFormat;

pub(crate) mod columns;
mod memory;
mod rows;
mod run;
mod slot;

pub(crate) use rows::PreparedRows;
pub(crate) use run::run;

use memory::Memory;
pub use slot::{Buffer, Slot};

/// Panels per task: the rows' activations are read once for all of them.
pub(crate) const PANELS_PER_TASK: usize = 2;
/// Number of elements of k after which the next strip of rows is computed: two panels of Q8_0 then take 17 kB.
pub(crate) const K_CHUNK: usize = 512;
/// Bytes between the prefetch of a line of weights and its use: about a microsecond of a core's share of the memory
/// bandwidth. By measurement 8 to 26 kB make no difference; with 1 kB eight rows take a third longer.
pub(crate) const PREFETCH_DISTANCE_BYTES: usize = 12 << 10;

impl PanelFormat {
    /// The format of a matrix of floats.
    const fn of(matrix: Matrix<'_>) -> Self {
        match matrix {
            Matrix::F32(_) => Self::F32,
            Matrix::F16(_) => Self::F16,
            Matrix::BF16(_) => Self::BF16,
        }
    }

    /// Number of elements of k that a tile computes between two prefetches.
    const fn step(self) -> usize {
        match self {
            PanelFormat::Blocks(_) => SMALL,
            PanelFormat::BF16 => 2,
            PanelFormat::F32 | PanelFormat::F16 => 1,
        }
    }
}

/// Bytes of a cache line.
const LINE_BYTES: usize = 64;

/// A matrix of weights `[outputs, inputs]`, packed.
pub struct Panels {
    form: PanelFormat,
    outputs: usize,
    inputs: usize,
    /// Bytes from a panel to the next.
    stride: usize,
    place: Place,
}

/// Where the bytes of a matrix are.
enum Place {
    /// In memory of its own.
    Own(Memory),
    /// In the buffer of a slot, from this offset on.
    Slot(Arc<Slot>, usize),
}

/// A matrix whose bytes stay where they are as long as this value lives.
pub(crate) struct HeldPanels<'a> {
    pub(crate) panels: &'a Panels,
    slot: Option<RwLockReadGuard<'a, Option<Buffer>>>,
}

/// The layout of a format in a panel.
impl Format {
    /// Number of bits of a quant in the lower and in the upper plane.
    const fn planes(self) -> (usize, usize) {
        match self {
            Format::Q8_0 => (8, 0),
            Format::Q4_0 | Format::Q4_1 | Format::Q4K | Format::Iq4Nl | Format::Iq4Xs => (4, 0),
            Format::Int4 | Format::Mxfp4 => (4, 0),
            Format::Q5_0 | Format::Q5_1 | Format::Q5K => (4, 1),
            Format::Q6K => (4, 2),
            Format::Q3K => (2, 1),
            Format::Q2K => (2, 0),
        }
    }

    /// Whether the quants have 8 bits, which need `dot_wide`.
    const fn is_wide(self) -> bool {
        matches!(self, Format::Q8_0 | Format::Iq4Nl | Format::Iq4Xs)
    }

    /// Whether blocks, or the parts of large blocks, have a minimum. The minimum of INT4 is in units of the scale.
    const fn has_minimum(self) -> bool {
        matches!(self, Format::Q4_1 | Format::Q5_1 | Format::Q2K | Format::Q4K | Format::Q5K | Format::Int4)
    }

    /// Bytes of the quants of 32 elements of sixteen outputs.
    const fn group_bytes(self) -> usize {
        let (low, high) = self.planes();
        LINE_BYTES * (low + high)
    }

    /// Bytes of scales and minimums of a block of sixteen outputs.
    const fn extras_bytes(self) -> usize {
        let factors = if self.is_large() { LANES * self.parts() } else { 0 };
        (LANES * size_of::<u16>() + factors) * if self.has_minimum() { 2 } else { 1 }
    }
}

impl Panels {
    /// Reserves the memory of a matrix, all zeros until it is [refilled](Self::refill); `None` if there is no memory
    /// for it.
    ///
    /// # Panics
    /// If `inputs` is not a whole number of blocks of the format.
    pub fn reserve(form: PanelFormat, outputs: usize, inputs: usize) -> Option<Self> {
        check_blocks(form, inputs);
        let place = Place::Own(Memory::zeroed(Self::bytes_of(form, outputs, inputs)?)?);
        Some(Self { form, outputs, inputs, stride: stride(form, inputs)?, place })
    }

    /// A matrix whose [bytes](Self::as_bytes) are read from a file into the buffer of a slot, where they begin at
    /// `offset`, a multiple of 64; `None` if the numbers of bytes overflow. Products with it need a slot that is
    /// filled.
    ///
    /// # Panics
    /// As [`Panels::reserve`], or if the offset is no such multiple.
    pub fn in_slot(form: PanelFormat, outputs: usize, inputs: usize, slot: &Arc<Slot>, offset: usize) -> Option<Self> {
        check_blocks(form, inputs);
        assert!(offset.is_multiple_of(LINE_BYTES), "panels: offset {offset}");
        offset.checked_add(Self::bytes_of(form, outputs, inputs)?)?;
        Some(Self {
            form,
            outputs,
            inputs,
            stride: stride(form, inputs)?,
            place: Place::Slot(Arc::clone(slot), offset),
        })
    }

    /// The packed bytes, which are the same for every instruction set and byte order; `None` if they are in a slot.
    pub fn as_bytes(&self) -> Option<&[u8]> {
        match &self.place {
            Place::Own(memory) => Some(memory.as_slice()),
            Place::Slot(..) => None,
        }
    }

    /// Keeps the bytes where they are for a product.
    ///
    /// # Panics
    /// If the bytes are in a slot that is empty.
    pub(crate) fn hold(&self) -> HeldPanels<'_> {
        let slot = match &self.place {
            Place::Own(_) => None,
            Place::Slot(slot, _) => Some(slot.hold()),
        };
        HeldPanels { panels: self, slot }
    }

    /// Number of bytes of a matrix in a format; `None` if the number overflows.
    pub fn bytes_of(form: PanelFormat, outputs: usize, inputs: usize) -> Option<usize> {
        outputs.div_ceil(LANES).checked_mul(stride(form, inputs)?)
    }

    /// Packs a matrix from its rows of blocks, as they are stored in a file; `None` if there is no memory for it.
    ///
    /// # Panics
    /// If `bytes` are not the `outputs` x `inputs` elements of this format in whole blocks.
    pub fn pack(pool: &Pool, format: Format, outputs: usize, inputs: usize, bytes: &[u8]) -> Option<Self> {
        let mut panels = Self::reserve(PanelFormat::Blocks(format), outputs, inputs)?;
        panels.fill_blocks(pool, bytes, false);
        Some(panels)
    }

    /// Packs a matrix of floats from its rows; `None` if there is no memory for it.
    ///
    /// # Panics
    /// If the matrix does not have `outputs` x `inputs` elements.
    pub fn pack_floats(pool: &Pool, matrix: Matrix<'_>, outputs: usize, inputs: usize) -> Option<Self> {
        assert_eq!(Some(matrix.len()), outputs.checked_mul(inputs), "panels: elements of [{outputs}, {inputs}]");
        let mut panels = Self::reserve(PanelFormat::of(matrix), outputs, inputs)?;
        panels.refill_floats(pool, matrix);
        Some(panels)
    }

    /// Packs another matrix of the same format and shape into the memory of this one. The resulting bytes are those of
    /// a matrix that is packed into memory of its own.
    ///
    /// # Panics
    /// If the weights are floats, or `bytes` has another number of blocks.
    pub fn refill(&mut self, pool: &Pool, bytes: &[u8]) {
        self.fill_blocks(pool, bytes, true);
    }

    /// [`Panels::refill`] for floats.
    ///
    /// # Panics
    /// If the matrix has another type or another number of elements.
    pub fn refill_floats(&mut self, pool: &Pool, matrix: Matrix<'_>) {
        let Self { outputs, inputs, .. } = *self;
        assert_eq!(PanelFormat::of(matrix), self.form, "panels: type of floats");
        assert_eq!(matrix.len(), outputs * inputs, "panels: elements of [{outputs}, {inputs}]");
        // Bytes that hold no element are never written, so they stay zero.
        match matrix {
            Matrix::F32(w) => self.fill(pool, &|output, lane, to| {
                pack_row::<_, _, 1>(&w[output * inputs..][..inputs], lane, to, |x| x.to_le_bytes());
            }),
            Matrix::F16(w) => self.fill(pool, &|output, lane, to| {
                pack_row::<_, _, 1>(&w[output * inputs..][..inputs], lane, to, |x| x.to_le_bytes());
            }),
            Matrix::BF16(w) => self.fill(pool, &|output, lane, to| {
                pack_row::<_, _, 2>(&w[output * inputs..][..inputs], lane, to, |x| x.to_le_bytes());
            }),
        }
    }

    /// Packs rows of blocks. If the memory `was_used`, it is zeroed first, since the bits of quants are added by OR.
    fn fill_blocks(&mut self, pool: &Pool, bytes: &[u8], was_used: bool) {
        let Self { form, outputs, inputs, .. } = *self;
        let PanelFormat::Blocks(format) = form else { panic!("panels: blocks for {}", form.name()) };
        let row = inputs / format.elements() * format.bytes();
        let all = outputs.checked_mul(row);
        assert_eq!(Some(bytes.len()), all, "panels: bytes of [{outputs}, {inputs}] {}", format.name());
        self.fill(pool, &|output, lane, to| {
            if was_used && lane == 0 {
                to.fill(0);
            }
            let row = &bytes[output * row..][..row];
            if format.is_large() {
                pack_large(format, row, lane, to);
            } else {
                pack_small(format, row, lane, to);
            }
        });
    }

    /// Calls `pack` for each output, in order, to write it to its lane of its panel.
    fn fill(&mut self, pool: &Pool, pack: &(dyn Fn(usize, usize, &mut [u8]) + Sync)) {
        let (count, stride, outputs) = (self.count(), self.stride, self.outputs);
        let Place::Own(memory) = &mut self.place else { panic!("panels: a matrix in a slot is read, not packed") };
        let start = AtomicPtr::new(memory.as_mut_slice().as_mut_ptr());
        pool.run(count, &|panel| {
            // SAFETY: panel i is the i-th range of `stride` bytes of the memory and belongs to task i alone.
            let to =
                unsafe { std::slice::from_raw_parts_mut(start.load(Ordering::Relaxed).add(panel * stride), stride) };
            for lane in 0..LANES.min(outputs - panel * LANES) {
                pack(panel * LANES + lane, lane, to);
            }
        });
    }

    /// The format of the weights.
    pub fn form(&self) -> PanelFormat {
        self.form
    }

    /// Number of rows of the matrix.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Number of columns of the matrix.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Number of bytes that a product reads.
    pub fn bytes(&self) -> usize {
        self.count() * self.stride
    }

    pub(crate) fn count(&self) -> usize {
        self.outputs.div_ceil(LANES)
    }
}

impl HeldPanels<'_> {
    fn bytes(&self) -> &[u8] {
        match (&self.panels.place, &self.slot) {
            (Place::Slot(_, offset), Some(slot)) => {
                let buffer = slot.as_ref().expect("a held slot is filled");
                &buffer[*offset..][..self.panels.bytes()]
            }
            (Place::Own(memory), _) => memory.as_slice(),
            (Place::Slot(..), None) => unreachable!("panels in a slot are held with it"),
        }
    }

    /// A tile of the `count` panels from `number` on, with rows that were prepared for this format.
    fn tile<'a>(&self, number: usize, count: usize, rows: &'a Rows<'a>, dot_offset: i32) -> Tile<'a> {
        let Panels { form, inputs, stride, .. } = *self.panels;
        let all = self.panels.count();
        assert!(count > 0 && number + count <= all, "panels: {count} from {number} of {all}");
        assert_eq!(rows.inputs, inputs, "panels: inputs");
        let panel = &self.bytes()[number * stride..][..count * stride];
        let offset = match form {
            PanelFormat::Blocks(format) => format.offset() - if format.is_wide() { dot_offset } else { 0 },
            _ => 0,
        };
        Tile {
            form,
            panel: panel.as_ptr(),
            count,
            rows,
            offset,
            stride,
            prefetch_from: panel.as_ptr(),
            prefetch_bytes: 0,
            next_pair_step: usize::MAX,
            is_single_strip: true,
            is_paired: false,
        }
    }
}

/// Checks that rows of `inputs` elements are a whole number of blocks.
fn check_blocks(form: PanelFormat, inputs: usize) {
    if let PanelFormat::Blocks(format) = form {
        assert!(inputs.is_multiple_of(format.elements()), "panels: {inputs} inputs of {}", format.name());
    }
}

/// Number of bytes of a panel; `None` if it overflows.
fn stride(form: PanelFormat, inputs: usize) -> Option<usize> {
    let bytes = match form {
        PanelFormat::F32 => inputs.checked_mul(LANES * size_of::<f32>())?,
        PanelFormat::F16 => inputs.checked_mul(LANES * size_of::<u16>())?,
        PanelFormat::BF16 => inputs.checked_next_multiple_of(2)?.checked_mul(LANES * size_of::<u16>())?,
        PanelFormat::Blocks(format) => {
            let extras = (inputs / format.elements()).checked_mul(format.extras_bytes())?;
            (inputs / SMALL).checked_mul(format.group_bytes())?.checked_add(extras)?
        }
    };
    bytes.checked_next_multiple_of(LINE_BYTES)
}

/// Writes the elements of one output to its lane, in adjacent groups of `UNIT`.
fn pack_row<T: Copy, const SIZE: usize, const UNIT: usize>(
    row: &[T],
    lane: usize,
    panel: &mut [u8],
    bytes: impl Fn(T) -> [u8; SIZE],
) {
    for (unit, line) in row.chunks(UNIT).zip(panel.chunks_exact_mut(LANES * UNIT * SIZE)) {
        for (x, to) in unit.iter().zip(line[lane * UNIT * SIZE..].chunks_exact_mut(SIZE)) {
            to.copy_from_slice(&bytes(*x));
        }
    }
}

/// Writes 32 quants of one output to the lines of a group.
fn pack_quants(format: Format, quants: &[u8], lane: usize, group: &mut [u8]) {
    let (low, high) = format.planes();
    for line in 0..8 {
        for i in 0..4 {
            let quant = usize::from(quants[4 * line + i]);
            let at = 4 * lane + i;
            group[line % low * LINE_BYTES + at] |= ((quant & ((1 << low) - 1)) << (line / low * low)) as u8;
            // Without an upper plane `high` is 0 and there is no remainder.
            if let Some(upper) = line.checked_rem(high) {
                group[(low + upper) * LINE_BYTES + at] |= ((quant >> low) << (line - upper)) as u8;
            }
        }
    }
}

/// Writes the 16 bits of an f16 or bf16 to their lane.
fn pack_half(extras: &mut [u8], lane: usize, bits: u16) {
    extras[2 * lane..2 * lane + 2].copy_from_slice(&bits.to_le_bytes());
}

fn pack_small(format: Format, row: &[u8], lane: usize, panel: &mut [u8]) {
    let (group_bytes, extras_bytes) = (format.group_bytes(), format.extras_bytes());
    let eight = LARGE / SMALL * format.bytes();
    for (blocks, to) in row.chunks(eight).zip(panel.chunks_mut(LARGE / SMALL * (group_bytes + extras_bytes))) {
        let (groups, extras) = to.split_at_mut(blocks.len() / format.bytes() * group_bytes);
        let targets = groups.chunks_exact_mut(group_bytes).zip(extras.chunks_exact_mut(extras_bytes));
        for (bytes, (group, extras)) in blocks.chunks_exact(format.bytes()).zip(targets) {
            pack_small_block(format, bytes, lane, group, extras);
        }
    }
}

fn pack_small_block(format: Format, bytes: &[u8], lane: usize, group: &mut [u8], extras: &mut [u8]) {
    let small = block::small(format, bytes);
    if format == Format::Q8_0 {
        // This is the most common format, and the largest, so whole words are copied.
        for (line, four) in small.quants.chunks_exact(4).enumerate() {
            group[line * LINE_BYTES + 4 * lane..][..4].copy_from_slice(four);
        }
    } else {
        pack_quants(format, &small.quants, lane, group);
    }
    pack_half(extras, lane, small.scale);
    if format.has_minimum() {
        pack_half(&mut extras[32..], lane, small.minimum);
    }
}

fn pack_large(format: Format, row: &[u8], lane: usize, panel: &mut [u8]) {
    const NEGATIVE: u16 = 0x8000;
    let (parts, group) = (format.parts(), format.group_bytes());
    let block_bytes = LARGE / SMALL * group + format.extras_bytes();
    for (bytes, to) in row.chunks_exact(format.bytes()).zip(panel.chunks_exact_mut(block_bytes)) {
        let (groups, extras) = to.split_at_mut(LARGE / SMALL * group);
        let large = block::large(format, bytes);
        for (quants, group) in large.quants.chunks_exact(SMALL).zip(groups.chunks_exact_mut(group)) {
            pack_quants(format, quants, lane, group);
        }
        pack_half(extras, lane, large.scale);
        let factors = if format.has_minimum() {
            // Minimums are subtracted, so their sign is flipped here, once.
            pack_half(&mut extras[32..], lane, large.minimum ^ NEGATIVE);
            &mut extras[64..]
        } else {
            &mut extras[32..]
        };
        // The scales are written in pairs of parts: two adjacent bytes for each output.
        for part in 0..parts {
            let at = part / 2 * 2 * LANES + 2 * lane + part % 2;
            factors[at] = large.scales[part] as u8;
            if format.has_minimum() {
                factors[parts * LANES + at] = large.minimums[part];
            }
        }
    }
}
