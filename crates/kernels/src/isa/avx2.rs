//! Sixteen lanes as two 256-bit registers: AVX2 with FMA and F16C.
//!
//! Tiles have one panel by up to 4 rows, or for floats two panels by up to 2 rows: 8 of the 16 registers accumulate.

mod operations_256;
mod products;
pub(crate) mod vnni;

use std::arch::x86_64::*;

pub(crate) use products::{TILES, quantize_row, strip_bf16, strip_blocks, strip_f16, strip_f32};

pub(crate) type Vector = [__m256; 2];

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn zero() -> Vector {
    [_mm256_setzero_ps(); 2]
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn splat(x: f32) -> Vector {
    [_mm256_set1_ps(x); 2]
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn fma(a: Vector, b: Vector, accumulator: Vector) -> Vector {
    [_mm256_fmadd_ps(a[0], b[0], accumulator[0]), _mm256_fmadd_ps(a[1], b[1], accumulator[1])]
}

/// # Safety
/// Sixteen elements can be read at `from`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn load_f32(from: *const f32) -> Vector {
    // SAFETY: guaranteed by the caller.
    unsafe { [_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))] }
}

/// # Safety
/// As [`load_f32`].
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn load_f16(from: *const half::f16) -> Vector {
    // SAFETY: guaranteed by the caller.
    unsafe { [_mm256_cvtph_ps(_mm_loadu_si128(from.cast())), _mm256_cvtph_ps(_mm_loadu_si128(from.add(8).cast()))] }
}

/// # Safety
/// As [`load_f32`].
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn load_bf16(from: *const half::bf16) -> Vector {
    // SAFETY: guaranteed by the caller.
    let halves = unsafe { [_mm_loadu_si128(from.cast()), _mm_loadu_si128(from.add(8).cast())] };
    [
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(halves[0]))),
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(halves[1]))),
    ]
}

/// # Safety
/// As [`load_f32`].
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn load_i8(from: *const i8) -> Vector {
    // SAFETY: guaranteed by the caller.
    let bytes = unsafe { _mm_loadu_si128(from.cast()) };
    [
        _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
        _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128::<8>(bytes))),
    ]
}

/// # Safety
/// Sixteen elements can be written at `to`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn store(to: *mut f32, v: Vector) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        _mm256_storeu_ps(to, v[0]);
        _mm256_storeu_ps(to.add(8), v[1]);
    }
}

/// Prefetches a cache line into the L1 cache, if there is such an address.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn prefetch(address: *const i8) {
    _mm_prefetch::<_MM_HINT_T0>(address);
}

super::attention_kernels!(
    #[target_feature(enable = "avx2,fma,f16c")]
    one: [1, 2, 3, 4, 5, 6],
    two: [1, 2],
    four: [1]
);

super::row_kernels!(#[target_feature(enable = "avx2,fma,f16c")]);
