//! AVX2 with the dots of AVX-VNNI: all kernels but the products of quantized weights are those of AVX2.

pub(crate) use super::*;
pub(crate) use products::{TILES, strip_blocks};

mod products {
    crate::isa::avx2::operations_256::operations_256!(#[target_feature(enable = "avxvnni,avx2,fma,f16c")]);

    #[inline]
    #[target_feature(enable = "avxvnni,avx2,fma,f16c")]
    fn dot_32(sum: __m256i, quants: __m256i, four: __m256i) -> __m256i {
        _mm256_dpbusd_avx_epi32(sum, quants, four)
    }

    #[inline]
    #[target_feature(enable = "avxvnni,avx2,fma,f16c")]
    fn dot_wide_32(sum: __m256i, quants: __m256i, four: __m256i) -> __m256i {
        _mm256_dpbusd_avx_epi32(sum, quants, four)
    }

    crate::isa::panels::panel_kernels!(
        #[target_feature(enable = "avxvnni,avx2,fma,f16c")]
        single: [1, 2, 3, 4],
        double: [],
        floats: [1, 2, 3, 4],
        float_pairs: [1, 2],
        dot_offset: 0
    );
}
