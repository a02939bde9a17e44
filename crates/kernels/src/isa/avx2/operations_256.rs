//! The 256-bit operations of products of quantized weights, for AVX2 with and without VNNI.
//!
//! A line is two registers. The two instruction sets differ only in the dots: without VNNI a dot of up to 7 bits is
//! `vpmaddubsw` (127 x 127 x 2 fits 16 bits) and a widening sum of pairs; quants of 8 bits would saturate it, so they
//! are made signed, which subtracts the offset of 128 (`dot_offset`), and their sign is moved to the activation.

/// Instantiates the operations, given the features and the two dots of 32 bytes.
macro_rules! operations_256 {
    ($(#[$feature:meta])*) => {
        use std::arch::x86_64::*;

        use crate::isa::avx2::{Vector, fma, load_bf16, load_f16, load_f32, splat, store, zero};

        type Line = [__m256i; 2];
        type Ints = [__m256i; 2];

        #[inline]
        $(#[$feature])*
        fn zero_line() -> Line {
            [_mm256_setzero_si256(); 2]
        }

        /// # Safety
        /// 64 bytes can be read at `from`.
        #[inline]
        $(#[$feature])*
        unsafe fn load_line(from: *const u8) -> Line {
            // SAFETY: guaranteed by the caller.
            unsafe { [_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.add(32).cast())] }
        }

        #[inline]
        $(#[$feature])*
        fn mask(line: Line, bits: u8) -> Line {
            let bits = _mm256_set1_epi8(bits as i8);
            [_mm256_and_si256(line[0], bits), _mm256_and_si256(line[1], bits)]
        }

        /// Bits that cross into a neighbouring byte are masked by the caller.
        #[inline]
        $(#[$feature])*
        fn shift_right(line: Line, by: usize) -> Line {
            let by = _mm_cvtsi32_si128(by as i32);
            [_mm256_srl_epi16(line[0], by), _mm256_srl_epi16(line[1], by)]
        }

        /// As [`shift_right`].
        #[inline]
        $(#[$feature])*
        fn shift_left(line: Line, by: usize) -> Line {
            let by = _mm_cvtsi32_si128(by as i32);
            [_mm256_sll_epi16(line[0], by), _mm256_sll_epi16(line[1], by)]
        }

        #[inline]
        $(#[$feature])*
        fn or(a: Line, b: Line) -> Line {
            [_mm256_or_si256(a[0], b[0]), _mm256_or_si256(a[1], b[1])]
        }

        /// The bytes of a table at these indices.
        #[inline]
        $(#[$feature])*
        fn look_up(line: Line, table: &[u8; 16]) -> Line {
            // SAFETY: the table has sixteen bytes.
            let table = _mm256_broadcastsi128_si256(unsafe { _mm_loadu_si128(table.as_ptr().cast()) });
            [_mm256_shuffle_epi8(table, line[0]), _mm256_shuffle_epi8(table, line[1])]
        }

        /// # Safety
        /// Four bytes can be read at `from`.
        #[inline]
        $(#[$feature])*
        unsafe fn splat4(from: *const i8) -> __m256i {
            // SAFETY: guaranteed by the caller.
            _mm256_set1_epi32(unsafe { from.cast::<i32>().read_unaligned() })
        }

        #[inline]
        $(#[$feature])*
        fn dot(sum: Ints, line: Line, four: __m256i) -> Ints {
            [dot_32(sum[0], line[0], four), dot_32(sum[1], line[1], four)]
        }

        #[inline]
        $(#[$feature])*
        fn dot_wide(sum: Ints, line: Line, four: __m256i) -> Ints {
            [dot_wide_32(sum[0], line[0], four), dot_wide_32(sum[1], line[1], four)]
        }

        /// # Safety
        /// 32 bytes can be read at `from`.
        #[inline]
        $(#[$feature])*
        unsafe fn widen_pairs(from: *const u8) -> Line {
            // SAFETY: guaranteed by the caller.
            let bytes = unsafe { [_mm_loadu_si128(from.cast()), _mm_loadu_si128(from.add(16).cast())] };
            [_mm256_cvtepi8_epi16(bytes[0]), _mm256_cvtepi8_epi16(bytes[1])]
        }

        #[inline]
        $(#[$feature])*
        fn dot_pairs(sum: Ints, pairs: Line, two: __m256i) -> Ints {
            [
                _mm256_add_epi32(sum[0], _mm256_madd_epi16(pairs[0], two)),
                _mm256_add_epi32(sum[1], _mm256_madd_epi16(pairs[1], two)),
            ]
        }

        #[inline]
        $(#[$feature])*
        fn first_of_pairs(pairs: Line) -> Ints {
            [
                _mm256_srai_epi32::<16>(_mm256_slli_epi32::<16>(pairs[0])),
                _mm256_srai_epi32::<16>(_mm256_slli_epi32::<16>(pairs[1])),
            ]
        }

        #[inline]
        $(#[$feature])*
        fn second_of_pairs(pairs: Line) -> Ints {
            [_mm256_srai_epi32::<16>(pairs[0]), _mm256_srai_epi32::<16>(pairs[1])]
        }

        #[inline]
        $(#[$feature])*
        fn splat_ints(x: i32) -> Ints {
            [_mm256_set1_epi32(x); 2]
        }

        /// # Safety
        /// `from` can be read.
        #[inline]
        $(#[$feature])*
        unsafe fn load_splat(from: *const i32) -> Ints {
            // SAFETY: guaranteed by the caller.
            [_mm256_set1_epi32(unsafe { *from }); 2]
        }

        #[inline]
        $(#[$feature])*
        fn multiply_add(a: Ints, b: Ints, sum: Ints) -> Ints {
            [
                _mm256_add_epi32(sum[0], _mm256_mullo_epi32(a[0], b[0])),
                _mm256_add_epi32(sum[1], _mm256_mullo_epi32(a[1], b[1])),
            ]
        }

        #[inline]
        $(#[$feature])*
        fn floats(ints: Ints) -> Vector {
            [_mm256_cvtepi32_ps(ints[0]), _mm256_cvtepi32_ps(ints[1])]
        }

        #[inline]
        $(#[$feature])*
        fn multiply(a: Vector, b: Vector) -> Vector {
            [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])]
        }

        /// Prefetches into the L2 cache: the few buffers for misses of the L1 cache are left to the arithmetic.
        #[inline]
        $(#[$feature])*
        fn prefetch_l2(address: *const i8) {
            _mm_prefetch::<_MM_HINT_T1>(address);
        }
    };
}
pub(super) use operations_256;
