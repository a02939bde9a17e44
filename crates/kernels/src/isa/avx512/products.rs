//! Products of quantized weights in 512-bit registers: AVX-512 with VNNI, whose `vpdpbusd` adds 64 exact products.
//!
//! Tiles have one panel by up to 8 rows, two panels by up to 6 rows, or two panels of floats by up to 12 rows. A line
//! of weights is unpacked once for all rows, and each row's activations come from memory as the broadcast operand of
//! the dot.

use std::arch::x86_64::*;

use super::{Vector, fma, load_bf16, load_f16, load_f32, splat, store, zero};
use crate::LANES;
use crate::isa::quantize_row::Factor;
use crate::isa::shapes::{Row, SMALL};

type Line = __m512i;
type Ints = __m512i;

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni,avx2,fma,f16c")]
fn zero_line() -> Line {
    _mm512_setzero_si512()
}

/// # Safety
/// 64 bytes can be read at `from`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni,avx2,fma,f16c")]
unsafe fn load_line(from: *const u8) -> Line {
    // SAFETY: guaranteed by the caller.
    unsafe { _mm512_loadu_si512(from.cast()) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni,avx2,fma,f16c")]
fn mask(line: Line, bits: u8) -> Line {
    _mm512_and_si512(line, _mm512_set1_epi8(bits as i8))
}

/// Bits that cross into a neighbouring byte are masked by the caller.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni,avx2,fma,f16c")]
fn shift_right(line: Line, by: usize) -> Line {
    match by {
        0 => line,
        1 => _mm512_srli_epi16::<1>(line),
        2 => _mm512_srli_epi16::<2>(line),
        3 => _mm512_srli_epi16::<3>(line),
        4 => _mm512_srli_epi16::<4>(line),
        5 => _mm512_srli_epi16::<5>(line),
        6 => _mm512_srli_epi16::<6>(line),
        _ => _mm512_srli_epi16::<7>(line),
    }
}

/// As [`shift_right`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni,avx2,fma,f16c")]
fn shift_left(line: Line, by: usize) -> Line {
    match by {
        0 => line,
        1 => _mm512_slli_epi16::<1>(line),
        2 => _mm512_slli_epi16::<2>(line),
        3 => _mm512_slli_epi16::<3>(line),
        _ => _mm512_slli_epi16::<4>(line),
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni,avx2,fma,f16c")]
fn or(a: Line, b: Line) -> Line {
    _mm512_or_si512(a, b)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni,avx2,fma,f16c")]
fn look_up(line: Line, table: &[u8; 16]) -> Line {
    // SAFETY: the table has sixteen bytes.
    let table = unsafe { _mm_loadu_si128(table.as_ptr().cast()) };
    _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), line)
}

/// # Safety
/// Four bytes can be read at `from`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni,avx2,fma,f16c")]
unsafe fn splat4(from: *const i8) -> Line {
    // SAFETY: guaranteed by the caller.
    _mm512_set1_epi32(unsafe { from.cast::<i32>().read_unaligned() })
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni,avx2,fma,f16c")]
fn dot(sum: Ints, line: Line, four: Line) -> Ints {
    _mm512_dpbusd_epi32(sum, line, four)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni,avx2,fma,f16c")]
fn dot_wide(sum: Ints, line: Line, four: Line) -> Ints {
    _mm512_dpbusd_epi32(sum, line, four)
}

/// # Safety
/// 32 bytes can be read at `from`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni,avx2,fma,f16c")]
unsafe fn widen_pairs(from: *const u8) -> Line {
    // SAFETY: guaranteed by the caller.
    _mm512_cvtepi8_epi16(unsafe { _mm256_loadu_si256(from.cast()) })
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni,avx2,fma,f16c")]
fn dot_pairs(sum: Ints, pairs: Line, two: Line) -> Ints {
    _mm512_dpwssd_epi32(sum, pairs, two)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni,avx2,fma,f16c")]
fn first_of_pairs(pairs: Line) -> Ints {
    _mm512_srai_epi32::<16>(_mm512_slli_epi32::<16>(pairs))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni,avx2,fma,f16c")]
fn second_of_pairs(pairs: Line) -> Ints {
    _mm512_srai_epi32::<16>(pairs)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni,avx2,fma,f16c")]
fn splat_ints(x: i32) -> Ints {
    _mm512_set1_epi32(x)
}

/// # Safety
/// `from` can be read.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni,avx2,fma,f16c")]
unsafe fn load_splat(from: *const i32) -> Ints {
    // SAFETY: guaranteed by the caller.
    _mm512_set1_epi32(unsafe { *from })
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni,avx2,fma,f16c")]
fn multiply_add(a: Ints, b: Ints, sum: Ints) -> Ints {
    _mm512_add_epi32(sum, _mm512_mullo_epi32(a, b))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni,avx2,fma,f16c")]
fn floats(ints: Ints) -> Vector {
    _mm512_cvtepi32_ps(ints)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni,avx2,fma,f16c")]
fn multiply(a: Vector, b: Vector) -> Vector {
    _mm512_mul_ps(a, b)
}

/// Prefetches into the L2 cache: the few buffers for misses of the L1 cache are left to the arithmetic.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni,avx2,fma,f16c")]
fn prefetch_l2(address: *const i8) {
    _mm_prefetch::<_MM_HINT_T1>(address);
}

crate::isa::panels::panel_kernels!(
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni,avx2,fma,f16c")]
    single: [1, 2, 3, 4, 5, 6, 7, 8],
    double: [4, 5, 6],
    floats: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12],
    float_pairs: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12],
    dot_offset: 0
);

/// Widens a line of pairs of bf16 to the first and the second elements: halves of 32 bits, moved and masked into place.
///
/// # Safety
/// 64 bytes can be read at `from`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni,avx2,fma,f16c")]
unsafe fn two_bf16(from: *const u8) -> [Vector; 2] {
    // SAFETY: guaranteed by the caller.
    let pairs = unsafe { _mm512_loadu_si512(from.cast()) };
    let second = _mm512_and_si512(pairs, _mm512_set1_epi32(0xffff_0000_u32 as i32));
    [_mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs)), _mm512_castsi512_ps(second)]
}

crate::isa::floats::float_kernels!(
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni,avx2,fma,f16c")]
    single: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12],
    double: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]
);

/// Loads up to 64 bytes, with zeros after them.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni,avx2,fma,f16c")]
fn load_up_to_64(bytes: &[i8]) -> Line {
    // A shift by all 64 bits is not possible; it means that the slice is empty and nothing is read.
    let mask = u64::MAX.checked_shr(64 - bytes.len().min(64) as u32).unwrap_or(0);
    // SAFETY: bytes beyond the slice are masked, and are not read.
    unsafe { _mm512_maskz_loadu_epi8(mask, bytes.as_ptr()) }
}

/// Quantizes a row to 8 bits, in the format of `quantized_rows.rs`. The result equals that of the plain loops of
/// `isa/quantize_row.rs`; a small block takes two registers. The cost is about 30 instructions for 32 elements, a tenth
/// of a nanosecond per element.
///
/// # Safety
/// The CPU has the features of this module.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni,avx2,fma,f16c")]
pub(crate) unsafe fn quantize_row(x: &[f32], row: &mut Row<'_>) {
    let block = x.len() / row.scales.len();
    assert!(block.is_multiple_of(SMALL) && row.quants.len() == x.len() && row.sums_of_32.len() == x.len() / SMALL);
    assert!(row.sums_of_16.len() == 2 * row.sums_of_32.len());
    let absolute = _mm512_set1_epi32(0x7fff_ffff);
    for (number, scale) in row.scales.iter_mut().enumerate() {
        let first = number * block;
        let mut largest = _mm512_setzero_si512();
        for i in (first..first + block).step_by(LANES) {
            // SAFETY: i + 16 <= the row's length.
            let bits = unsafe { _mm512_loadu_si512(x.as_ptr().add(i).cast()) };
            // Bits of magnitudes are ordered as their values are, with infinity and NaN above all finite ones.
            largest = _mm512_max_epu32(largest, _mm512_and_si512(bits, absolute));
        }
        let factor = Factor::of(f32::from_bits(_mm512_reduce_max_epu32(largest)));
        *scale = factor.scale;
        let inverse = _mm512_set1_ps(factor.inverse);
        for i in (first..first + block).step_by(LANES) {
            // SAFETY: i + 16 <= the length of both; the sums have a place for each 16 elements.
            unsafe {
                // A block whose factor is 0 counts as zeros: otherwise NaN times zero would become a number here.
                let x = if factor.inverse == 0.0 { zero() } else { load_f32(x.as_ptr().add(i)) };
                let quants = _mm512_cvtps_epi32(_mm512_mul_ps(x, inverse));
                _mm_storeu_si128(row.quants.as_mut_ptr().add(i).cast(), _mm512_cvtepi32_epi8(quants));
            }
        }
    }
    for (sums, quants) in row.sums_of_16.chunks_mut(4).zip(row.quants.chunks(64)) {
        // Up to 64 quants, a multiple of 16: sums of four by one dot, then those of sixteen in each part of 128 bits.
        let fours = _mm512_dpbusd_epi32(zero_line(), _mm512_set1_epi8(1), load_up_to_64(quants));
        let pairs = _mm512_add_epi32(fours, _mm512_shuffle_epi32::<0b10_11_00_01>(fours));
        let all = _mm512_add_epi32(pairs, _mm512_shuffle_epi32::<0b01_00_11_10>(pairs));
        let all = _mm512_castsi512_si128(_mm512_maskz_compress_epi32(0x1111, all));
        let mut four = [0i32; 4];
        // SAFETY: the array has 16 bytes.
        unsafe { _mm_storeu_si128(four.as_mut_ptr().cast(), all) };
        sums.iter_mut().zip(four).for_each(|(sum, of_16)| *sum = of_16 as i16);
    }
    for (sum, halves) in row.sums_of_32.iter_mut().zip(row.sums_of_16.chunks_exact(2)) {
        *sum = halves[0] + halves[1];
    }
}
