//! Products of quantized weights on plain arrays: the reference that the other instruction sets must equal.

use super::{Vector, fma, load_bf16, load_f16, load_f32, splat, store, zero};
use crate::LANES;

type Line = [u8; 64];
type Ints = [i32; LANES];

#[inline(always)]
fn zero_line() -> Line {
    [0; 64]
}

/// # Safety
/// 64 bytes can be read at `from`.
#[inline(always)]
unsafe fn load_line(from: *const u8) -> Line {
    // SAFETY: guaranteed by the caller.
    unsafe { from.cast::<Line>().read_unaligned() }
}

#[inline(always)]
fn mask(line: Line, bits: u8) -> Line {
    line.map(|byte| byte & bits)
}

/// Bits that cross into a neighbouring byte are masked by the caller, and need not be moved there.
#[inline(always)]
fn shift_right(line: Line, by: usize) -> Line {
    line.map(|byte| byte >> by)
}

#[inline(always)]
fn shift_left(line: Line, by: usize) -> Line {
    line.map(|byte| byte << by)
}

#[inline(always)]
fn or(mut a: Line, b: Line) -> Line {
    a.iter_mut().zip(b).for_each(|(a, b)| *a |= b);
    a
}

#[inline(always)]
fn look_up(line: Line, table: &[u8; 16]) -> Line {
    line.map(|index| table[usize::from(index)])
}

/// # Safety
/// Four bytes can be read at `from`.
#[inline(always)]
unsafe fn splat4(from: *const i8) -> Line {
    // SAFETY: guaranteed by the caller.
    let four = unsafe { from.cast::<[u8; 4]>().read_unaligned() };
    std::array::from_fn(|i| four[i % 4])
}

#[inline(always)]
fn dot(mut sum: Ints, line: Line, four: Line) -> Ints {
    for lane in 0..LANES {
        for i in 4 * lane..4 * lane + 4 {
            sum[lane] += i32::from(line[i]) * i32::from(four[i] as i8);
        }
    }
    sum
}

#[inline(always)]
fn dot_wide(sum: Ints, line: Line, four: Line) -> Ints {
    dot(sum, line, four)
}

/// # Safety
/// 32 bytes can be read at `from`.
#[inline(always)]
unsafe fn widen_pairs(from: *const u8) -> [i16; 2 * LANES] {
    // SAFETY: guaranteed by the caller.
    unsafe { from.cast::<[i8; 2 * LANES]>().read_unaligned() }.map(i16::from)
}

#[inline(always)]
fn dot_pairs(mut sum: Ints, pairs: [i16; 2 * LANES], four: Line) -> Ints {
    let two = [i16::from_le_bytes([four[0], four[1]]), i16::from_le_bytes([four[2], four[3]])];
    for lane in 0..LANES {
        sum[lane] += i32::from(pairs[2 * lane]) * i32::from(two[0]);
        sum[lane] += i32::from(pairs[2 * lane + 1]) * i32::from(two[1]);
    }
    sum
}

#[inline(always)]
fn first_of_pairs(pairs: [i16; 2 * LANES]) -> Ints {
    std::array::from_fn(|lane| i32::from(pairs[2 * lane]))
}

#[inline(always)]
fn second_of_pairs(pairs: [i16; 2 * LANES]) -> Ints {
    std::array::from_fn(|lane| i32::from(pairs[2 * lane + 1]))
}

#[inline(always)]
fn splat_ints(x: i32) -> Ints {
    [x; LANES]
}

/// # Safety
/// `from` can be read.
#[inline(always)]
unsafe fn load_splat(from: *const i32) -> Ints {
    // SAFETY: guaranteed by the caller.
    [unsafe { *from }; LANES]
}

#[inline(always)]
fn multiply_add(a: Ints, b: Ints, mut sum: Ints) -> Ints {
    for lane in 0..LANES {
        sum[lane] += a[lane] * b[lane];
    }
    sum
}

#[inline(always)]
fn floats(ints: Ints) -> Vector {
    ints.map(|int| int as f32)
}

#[inline(always)]
fn multiply(mut a: Vector, b: Vector) -> Vector {
    for lane in 0..LANES {
        a[lane] *= b[lane];
    }
    a
}

#[inline(always)]
fn prefetch_l2(_address: *const i8) {}

crate::isa::panels::panel_kernels!(single: [1, 2], double: [], floats: [1, 2], float_pairs: [], dot_offset: 0);

/// Widens a line of pairs of bf16 to the first and the second elements.
///
/// # Safety
/// 64 bytes can be read at `from`.
#[inline(always)]
unsafe fn two_bf16(from: *const u8) -> [Vector; 2] {
    // SAFETY: guaranteed by the caller; a bf16 is the upper 16 bits of an f32.
    let pairs = unsafe { from.cast::<[u32; LANES]>().read_unaligned() };
    [pairs.map(|pair| f32::from_bits(pair << 16)), pairs.map(|pair| f32::from_bits(pair & 0xffff_0000))]
}

crate::isa::floats::float_kernels!(single: [1, 2], double: []);

/// Quantizes a row to 8 bits, in the format of `quantized_rows.rs`.
///
/// # Safety
/// The CPU has the features of this module.
pub(crate) unsafe fn quantize_row(x: &[f32], row: &mut crate::isa::shapes::Row<'_>) {
    crate::isa::quantize_row::quantize_row(x, row);
}
