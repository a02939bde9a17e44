//! Sixteen lanes as one 512-bit register: AVX-512 with BW and VNNI.
//!
//! Tiles of floats have up to 12 rows by two panels: 24 of the 32 registers are accumulators, each of which is a sum of
//! its own. The tiles of quantized weights are in `avx512/products.rs`.

mod products;

use std::arch::x86_64::*;

pub(crate) use products::{TILES, quantize_row, strip_bf16, strip_blocks, strip_f16, strip_f32};

pub(crate) type Vector = __m512;

#[inline]
#[target_feature(enable = "avx512f,avx2,fma,f16c")]
fn zero() -> Vector {
    _mm512_setzero_ps()
}

#[inline]
#[target_feature(enable = "avx512f,avx2,fma,f16c")]
fn splat(x: f32) -> Vector {
    _mm512_set1_ps(x)
}

#[inline]
#[target_feature(enable = "avx512f,avx2,fma,f16c")]
fn fma(a: Vector, b: Vector, accumulator: Vector) -> Vector {
    _mm512_fmadd_ps(a, b, accumulator)
}

/// # Safety
/// Sixteen elements can be read at `from`.
#[inline]
#[target_feature(enable = "avx512f,avx2,fma,f16c")]
unsafe fn load_f32(from: *const f32) -> Vector {
    // SAFETY: guaranteed by the caller.
    unsafe { _mm512_loadu_ps(from) }
}

/// # Safety
/// As [`load_f32`].
#[inline]
#[target_feature(enable = "avx512f,avx2,fma,f16c")]
unsafe fn load_f16(from: *const half::f16) -> Vector {
    // SAFETY: guaranteed by the caller.
    _mm512_cvtph_ps(unsafe { _mm256_loadu_si256(from.cast()) })
}

/// # Safety
/// As [`load_f32`].
#[inline]
#[target_feature(enable = "avx512f,avx2,fma,f16c")]
unsafe fn load_bf16(from: *const half::bf16) -> Vector {
    // SAFETY: guaranteed by the caller.
    let halves = unsafe { _mm256_loadu_si256(from.cast()) };
    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(halves)))
}

/// # Safety
/// As [`load_f32`].
#[inline]
#[target_feature(enable = "avx512f,avx2,fma,f16c")]
unsafe fn load_i8(from: *const i8) -> Vector {
    // SAFETY: guaranteed by the caller.
    _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(unsafe { _mm_loadu_si128(from.cast()) }))
}

/// # Safety
/// Sixteen elements can be written at `to`.
#[inline]
#[target_feature(enable = "avx512f,avx2,fma,f16c")]
unsafe fn store(to: *mut f32, v: Vector) {
    // SAFETY: guaranteed by the caller.
    unsafe { _mm512_storeu_ps(to, v) }
}

/// Prefetches a cache line into the L1 cache, if there is such an address.
#[inline]
#[target_feature(enable = "avx512f,avx2,fma,f16c")]
fn prefetch(address: *const i8) {
    _mm_prefetch::<_MM_HINT_T0>(address);
}

super::attention_kernels!(
    #[target_feature(enable = "avx512f,avx2,fma,f16c")]
    one: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12],
    two: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12],
    four: [1, 2, 3, 4, 5, 6]
);

super::row_kernels!(#[target_feature(enable = "avx512f,avx2,fma,f16c")]);
