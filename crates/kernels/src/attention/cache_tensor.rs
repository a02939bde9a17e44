//! The keys or the values of a layer in the KV cache: their layout in memory, and their rounding when they are stored.
//!
//! Sixteen consecutive slots are a panel. A panel of one key-value head is a block, and blocks are what attention
//! reads. A block of keys is `[head_dim][16]`, so sixteen scores are sixteen lanes and need no sum across them; a block
//! of values is `[16][head_dim]`, so lanes are elements of the output. Keys and values may have different types. Values
//! are rounded to the type here, once, and that is the only error that a narrow cache adds: widening is exact, and so
//! is the product of a quant and its scale (7 bits by 11).
//!
//! A slot of a head of 64 elements takes 256 bytes in f32, 128 in f16 and bf16, 68 in q8_0.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::LANES;
use crate::allocator::fallibly;
use crate::dtype::f16_to_f32;
use crate::isa::shapes::{CACHE_LINE, Q8_BLOCK};

/// The element type of cached keys or values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CacheType {
    /// 32-bit floats, without rounding.
    F32,
    /// IEEE half precision: significands of 11 bits, values up to 65504.
    #[default]
    F16,
    /// The upper halves of 32-bit floats: significands of 8 bits.
    BF16,
    /// Blocks of 32 elements of a head: an f16 scale and signed bytes.
    Q8_0,
}

impl CacheType {
    /// Every type, the widest first.
    pub const ALL: [CacheType; 4] = [CacheType::F32, CacheType::F16, CacheType::BF16, CacheType::Q8_0];

    /// The name of the type in options.
    pub fn name(self) -> &'static str {
        match self {
            CacheType::F32 => "f32",
            CacheType::F16 => "f16",
            CacheType::BF16 => "bf16",
            CacheType::Q8_0 => "q8_0",
        }
    }

    /// The number of which head dimensions must be multiples.
    pub fn block(self) -> usize {
        if self == CacheType::Q8_0 { Q8_BLOCK } else { 1 }
    }

    /// Number of bytes of `elements` elements; `usize::MAX` if that overflows.
    pub fn bytes(self, elements: usize) -> usize {
        match self {
            CacheType::F32 => elements.saturating_mul(4),
            CacheType::F16 | CacheType::BF16 => elements.saturating_mul(2),
            CacheType::Q8_0 => elements.div_ceil(Q8_BLOCK).saturating_mul(Q8_BLOCK + 2),
        }
    }
}

/// The elements, from [`CacheTensor::start`] on. After the last there is room for a vector, since the last vector of a
/// block may be read past its end.
pub(crate) enum Elements {
    F32(Vec<f32>),
    /// The bits as plain integers, since zeroed memory for integers costs nothing before it is used.
    F16(Vec<u16>),
    /// The bits.
    BF16(Vec<u16>),
    Q8 {
        quants: Vec<i8>,
        /// The bits of f16 scales, `[blocks of slots, kv_heads, head_dim / 32, 16]` for keys and for values.
        scales: Vec<u16>,
    },
}

/// The keys or the values of one layer, for a number of slots.
pub struct CacheTensor {
    pub(crate) elements: Elements,
    /// The index of the first element, such that blocks of 64 elements begin at a cache line.
    pub(crate) start: usize,
    slots: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    /// Elements between slots of a block, and between elements of a slot.
    steps: [usize; 2],
}

impl CacheTensor {
    /// Makes a tensor for keys, all zero; `None` if there is no memory for it.
    ///
    /// # Panics
    /// If the type cannot hold heads of this width.
    pub fn keys(kind: CacheType, slots: usize, kv_heads: usize, head_dim: usize) -> Option<Self> {
        Self::new(kind, slots, [kv_heads, head_dim], [1, LANES])
    }

    /// Makes a tensor for values, all zero; `None` if there is no memory for it.
    ///
    /// # Panics
    /// As [`keys`](Self::keys).
    pub fn values(kind: CacheType, slots: usize, kv_heads: usize, head_dim: usize) -> Option<Self> {
        Self::new(kind, slots, [kv_heads, head_dim], [head_dim, 1])
    }

    fn new(kind: CacheType, slots: usize, [kv_heads, head_dim]: [usize; 2], steps: [usize; 2]) -> Option<Self> {
        assert!(head_dim.is_multiple_of(kind.block()), "cache: heads of {head_dim} in {}", kind.name());
        u32::try_from(slots).ok()?;
        let elements = slots.checked_next_multiple_of(LANES)?.checked_mul(kv_heads)?.checked_mul(head_dim)?;
        let padded = elements.checked_add(LANES + CACHE_LINE)?;
        let elements = match kind {
            CacheType::F32 => Elements::F32(zeros(padded)?),
            CacheType::F16 => Elements::F16(zeros(padded)?),
            CacheType::BF16 => Elements::BF16(zeros(padded)?),
            CacheType::Q8_0 => Elements::Q8 { quants: zeros(padded)?, scales: zeros(elements / Q8_BLOCK)? },
        };
        let start = match &elements {
            Elements::F32(all) => all.as_ptr().align_offset(CACHE_LINE),
            Elements::F16(all) | Elements::BF16(all) => all.as_ptr().align_offset(CACHE_LINE),
            Elements::Q8 { quants, .. } => quants.as_ptr().align_offset(CACHE_LINE),
        };
        // `align_offset` may fail by its contract; nothing depends on the alignment.
        let start = start.min(CACHE_LINE);
        Some(Self { elements, start, slots, kv_heads, head_dim, steps })
    }

    /// The number of slots.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// The index of the first element of the block of a panel (sixteen slots) and a head, counted from
    /// [`CacheTensor::start`].
    pub(crate) fn block(&self, panel: usize, head: usize) -> usize {
        (panel * self.kv_heads + head) * LANES * self.head_dim
    }

    /// The indices of the first element and of the first scale of a slot and head.
    fn first(&self, slot: u32, head: usize) -> [usize; 2] {
        assert!((slot as usize) < self.slots, "cache: slot {slot} of {}", self.slots);
        let (panel, lane) = (slot as usize / LANES, slot as usize % LANES);
        let block = self.block(panel, head);
        [self.start + block + lane * self.steps[0], block / Q8_BLOCK + lane]
    }

    /// Stores one row `[kv_heads, head_dim]`, rounded to the type.
    ///
    /// # Panics
    /// If there is no such slot, or the row has another length.
    pub fn store(&mut self, slot: u32, row: &[f32]) {
        assert_eq!(row.len(), self.kv_heads * self.head_dim, "cache: length of a row");
        let step = self.steps[1];
        for (head, row) in row.chunks_exact(self.head_dim).enumerate() {
            let [mut at, mut scale_at] = self.first(slot, head);
            for part in row.chunks(Q8_BLOCK) {
                match &mut self.elements {
                    Elements::F32(all) => scatter(&mut all[at..], step, part),
                    Elements::F16(all) => {
                        let mut halves = [f16::ZERO; Q8_BLOCK];
                        halves[..part.len()].convert_from_f32_slice(part);
                        scatter(&mut all[at..], step, &halves.map(f16::to_bits)[..part.len()]);
                    }
                    Elements::BF16(all) => {
                        let mut halves = [bf16::ZERO; Q8_BLOCK];
                        halves[..part.len()].convert_from_f32_slice(part);
                        scatter(&mut all[at..], step, &halves.map(bf16::to_bits)[..part.len()]);
                    }
                    Elements::Q8 { quants, scales } => {
                        let (scale, bytes) = quantized(part);
                        scales[scale_at] = scale;
                        scatter(&mut quants[at..], step, &bytes[..part.len()]);
                    }
                }
                (at, scale_at) = (at + step * part.len(), scale_at + LANES);
            }
        }
    }

    /// Copies the row of one slot to another, unchanged.
    ///
    /// # Panics
    /// If there is no such slot.
    pub fn copy(&mut self, from: u32, to: u32) {
        for head in 0..self.kv_heads {
            let ([from, from_scale], [to, to_scale]) = (self.first(from, head), self.first(to, head));
            let indices = (0..self.head_dim).map(|i| (from + i * self.steps[1], to + i * self.steps[1]));
            match &mut self.elements {
                Elements::F32(all) => indices.for_each(|(from, to)| all[to] = all[from]),
                Elements::F16(all) | Elements::BF16(all) => indices.for_each(|(from, to)| all[to] = all[from]),
                Elements::Q8 { quants, scales } => {
                    indices.for_each(|(from, to)| quants[to] = quants[from]);
                    for i in (0..self.head_dim / Q8_BLOCK).map(|block| block * LANES) {
                        scales[to_scale + i] = scales[from_scale + i];
                    }
                }
            }
        }
    }

    /// Number of bytes of a row when it is [saved](Self::save).
    pub fn row_bytes(&self) -> usize {
        self.head_bytes() * self.kv_heads
    }

    /// Number of bytes of a head of a row when it is saved.
    pub fn head_bytes(&self) -> usize {
        let kind = match &self.elements {
            Elements::F32(_) => CacheType::F32,
            Elements::F16(_) => CacheType::F16,
            Elements::BF16(_) => CacheType::BF16,
            Elements::Q8 { .. } => CacheType::Q8_0,
        };
        kind.bytes(self.head_dim)
    }

    /// Appends the row of a slot as bytes: for each head its elements in order, little-endian; for q8_0 the quants of
    /// the head and then its scales. The bytes depend neither on the slot nor on the layout in memory.
    ///
    /// # Panics
    /// If there is no such slot.
    pub fn save(&self, slot: u32, out: &mut Vec<u8>) {
        for head in 0..self.kv_heads {
            let [first, first_scale] = self.first(slot, head);
            let indices = (0..self.head_dim).map(|i| first + i * self.steps[1]);
            match &self.elements {
                Elements::F32(all) => indices.for_each(|at| out.extend_from_slice(&all[at].to_le_bytes())),
                Elements::F16(all) | Elements::BF16(all) => {
                    indices.for_each(|at| out.extend_from_slice(&all[at].to_le_bytes()));
                }
                Elements::Q8 { quants, scales } => {
                    indices.for_each(|at| out.push(quants[at] as u8));
                    for block in 0..self.head_dim / Q8_BLOCK {
                        out.extend_from_slice(&scales[first_scale + block * LANES].to_le_bytes());
                    }
                }
            }
        }
    }

    /// Stores a row that was [saved](Self::save) from a tensor with the same type and heads.
    ///
    /// # Panics
    /// If there is no such slot, or the row has another number of bytes.
    pub fn load(&mut self, slot: u32, row: &[u8]) {
        assert_eq!(row.len(), self.row_bytes(), "cache: bytes of a saved row");
        for (head, row) in row.chunks_exact(row.len() / self.kv_heads).enumerate() {
            let [first, first_scale] = self.first(slot, head);
            let indices = (0..self.head_dim).map(|i| first + i * self.steps[1]);
            match &mut self.elements {
                Elements::F32(all) => {
                    let (row, _) = row.as_chunks();
                    indices.zip(row).for_each(|(at, bytes)| all[at] = f32::from_le_bytes(*bytes));
                }
                Elements::F16(all) | Elements::BF16(all) => {
                    let (row, _) = row.as_chunks();
                    indices.zip(row).for_each(|(at, bytes)| all[at] = u16::from_le_bytes(*bytes));
                }
                Elements::Q8 { quants, scales } => {
                    let (row, of_blocks) = row.split_at(self.head_dim);
                    indices.zip(row).for_each(|(at, byte)| quants[at] = *byte as i8);
                    let (of_blocks, _) = of_blocks.as_chunks();
                    for (block, scale) in of_blocks.iter().enumerate() {
                        scales[first_scale + block * LANES] = u16::from_le_bytes(*scale);
                    }
                }
            }
        }
    }

    /// The row of a slot as attention sees it, widened: `[kv_heads, head_dim]`.
    ///
    /// # Panics
    /// If there is no such slot.
    pub fn row(&self, slot: u32) -> Vec<f32> {
        let element = |i: usize| {
            let [first, scale] = self.first(slot, i / self.head_dim);
            let (at, block) = (first + i % self.head_dim * self.steps[1], i % self.head_dim / Q8_BLOCK);
            match &self.elements {
                Elements::F32(all) => all[at],
                Elements::F16(all) => f16_to_f32(all[at]),
                Elements::BF16(all) => bf16::from_bits(all[at]).to_f32(),
                Elements::Q8 { quants, scales } => f32::from(quants[at]) * f16_to_f32(scales[scale + block * LANES]),
            }
        };
        (0..self.kv_heads * self.head_dim).map(element).collect()
    }
}

/// Zeroed memory that costs nothing before it is used; `None` if there is no memory for it.
fn zeros<T: Clone + Default>(count: usize) -> Option<Vec<T>> {
    // Zeroed memory cannot be requested fallibly, so the same amount is requested first and freed; `black_box` keeps
    // the compiler from removing that.
    let mut requested = Vec::<T>::new();
    fallibly(|| requested.try_reserve_exact(count)).ok()?;
    drop(std::hint::black_box(requested));
    Some(vec![T::default(); count])
}

fn scatter<T: Copy>(to: &mut [T], step: usize, from: &[T]) {
    to.iter_mut().step_by(step).zip(from).for_each(|(to, from)| *to = *from);
}

/// The bits of a block's scale, and its quants. The scale is a 127th of the largest magnitude, rounded to f16 before
/// the quants are chosen. A block with an infinity or a NaN becomes NaN as a whole, so that the fault stays visible.
fn quantized(block: &[f32]) -> (u16, [i8; Q8_BLOCK]) {
    let largest = block.iter().fold(0f32, |largest, x| largest.max(x.abs()));
    let scale = f16::from_f32(largest / 127.0);
    if !scale.is_finite() || block.iter().any(|x| x.is_nan()) {
        return (f16::NAN.to_bits(), [1; Q8_BLOCK]);
    }
    let inverse = if scale == f16::ZERO { 0.0 } else { 1.0 / scale.to_f32() };
    let mut quants = [0; Q8_BLOCK];
    for (quant, x) in quants.iter_mut().zip(block) {
        *quant = (x * inverse).round_ties_even().clamp(-127.0, 127.0) as i8;
    }
    (scale.to_bits(), quants)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The error is at most half a unit of the type, relative to the element. For q8_0 it is half a step of the block,
    /// which is a 254th of its largest magnitude, plus 127 times the rounding of the f16 scale.
    #[test]
    fn stored_rows_are_rounded_once() {
        let row: Vec<f32> = (0..3 * 64).map(|i| ((i * 37 % 101) as f32 - 50.0) / 17.0).collect();
        for kind in CacheType::ALL {
            for make in [CacheTensor::keys, CacheTensor::values] {
                let mut tensor = make(kind, 37, 3, 64).unwrap();
                tensor.store(36, &row);
                tensor.copy(36, 5);
                let found = tensor.row(5);
                assert_eq!(found, tensor.row(36));
                let mut saved = Vec::new();
                tensor.save(5, &mut saved);
                assert_eq!(saved.len(), tensor.row_bytes());
                tensor.load(17, &saved);
                assert_eq!(found, tensor.row(17));
                let mut again = Vec::new();
                tensor.save(17, &mut again);
                assert_eq!(again, saved, "{kind:?}");
                for (i, (a, b)) in found.iter().zip(&row).enumerate() {
                    let block = &row[i / Q8_BLOCK * Q8_BLOCK..][..Q8_BLOCK];
                    let largest = block.iter().fold(0f32, |largest, x| largest.max(x.abs()));
                    let allowed = match kind {
                        CacheType::F32 => 0.0,
                        CacheType::F16 => b.abs() / 2048.0,
                        CacheType::BF16 => b.abs() / 256.0,
                        CacheType::Q8_0 => largest / 127.0 * 0.5 * 1.13,
                    };
                    assert!((a - b).abs() <= allowed, "{kind:?}: {a} for {b}");
                }
                assert!(tensor.row(4).iter().all(|x| *x == 0.0));
            }
        }
    }

    #[test]
    fn non_finite_rows_become_nan_and_tiny_ones_zero() {
        for broken in [f32::NAN, f32::INFINITY, 1e30] {
            let mut tensor = CacheTensor::values(CacheType::Q8_0, 1, 1, 32).unwrap();
            let mut row = [1.0; 32];
            row[7] = broken;
            tensor.store(0, &row);
            assert!(tensor.row(0).iter().all(|x| x.is_nan()));
            tensor.store(0, &[1e-30; 32]);
            assert!(tensor.row(0).iter().all(|x| *x == 0.0));
        }
    }

    #[test]
    fn missing_memory_and_overflows_give_none() {
        assert!(CacheTensor::keys(CacheType::F16, usize::MAX, 1, 1).is_none());
        assert!(CacheTensor::keys(CacheType::F32, u32::MAX as usize, 1 << 20, 1 << 10).is_none());
        assert_eq!(CacheType::Q8_0.bytes(64), 68);
    }
}
