//! Products of quantized weights with AVX2, without VNNI.

super::operations_256::operations_256!(#[target_feature(enable = "avx2,fma,f16c")]);

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn dot_32(sum: __m256i, quants: __m256i, four: __m256i) -> __m256i {
    let pairs = _mm256_maddubs_epi16(quants, four);
    _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
}

/// The dot of the quants minus 128: 128 x 127 x 2 fits 16 bits.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn dot_wide_32(sum: __m256i, quants: __m256i, four: __m256i) -> __m256i {
    let signed = _mm256_xor_si256(quants, _mm256_set1_epi8(i8::MIN));
    dot_32(sum, _mm256_abs_epi8(signed), _mm256_sign_epi8(four, signed))
}

crate::isa::panels::panel_kernels!(
    #[target_feature(enable = "avx2,fma,f16c")]
    single: [1, 2, 3, 4],
    double: [],
    floats: [1, 2, 3, 4],
    float_pairs: [1, 2],
    dot_offset: 128
);

/// Widens a line of pairs of bf16 to the first and the second elements: halves of 32 bits, moved and masked into place.
///
/// # Safety
/// 64 bytes can be read at `from`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn two_bf16(from: *const u8) -> [Vector; 2] {
    // SAFETY: guaranteed by the caller.
    let pairs = unsafe { load_line(from) };
    let upper = _mm256_set1_epi32(0xffff_0000_u32 as i32);
    [
        pairs.map(|pairs| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(pairs))),
        pairs.map(|pairs| _mm256_castsi256_ps(_mm256_and_si256(pairs, upper))),
    ]
}

crate::isa::floats::float_kernels!(
    #[target_feature(enable = "avx2,fma,f16c")]
    single: [1, 2, 3, 4],
    double: [1, 2]
);

/// Quantizes a row to 8 bits, in the format of `quantized_rows.rs`.
///
/// # Safety
/// The CPU has the features of this module.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn quantize_row(x: &[f32], row: &mut crate::isa::shapes::Row<'_>) {
    crate::isa::quantize_row::quantize_row(x, row);
}
