//! The element types in which weights are stored, and their widening to f32.
//!
//! Weights stay in the type of their file; kernels widen them in registers. Widening is exact, so a product in bf16
//! equals the f32 product of the same numbers. Quantized blocks are in `block.rs`.

pub use half::{bf16, f16};

/// A matrix of weights `[outputs, inputs]`, row-major: each row has the weights of one output.
#[derive(Clone, Copy)]
pub enum Matrix<'a> {
    /// 32-bit floats.
    F32(&'a [f32]),
    /// IEEE half precision.
    F16(&'a [f16]),
    /// The upper halves of 32-bit floats.
    BF16(&'a [bf16]),
}

impl<'a> Matrix<'a> {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Matrix::F32(w) => w.len(),
            Matrix::F16(w) => w.len(),
            Matrix::BF16(w) => w.len(),
        }
    }

    /// Whether the matrix has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements `range` as a matrix.
    ///
    /// # Panics
    /// If the range is not within the matrix.
    pub fn slice(&self, range: std::ops::Range<usize>) -> Matrix<'a> {
        match self {
            Matrix::F32(w) => Matrix::F32(&w[range]),
            Matrix::F16(w) => Matrix::F16(&w[range]),
            Matrix::BF16(w) => Matrix::BF16(&w[range]),
        }
    }

    /// Element `i`, widened.
    pub fn get(&self, i: usize) -> f32 {
        match self {
            Matrix::F32(w) => w[i],
            Matrix::F16(w) => f16_to_f32(w[i].to_bits()),
            Matrix::BF16(w) => w[i].to_f32(),
        }
    }

    /// Widens the whole matrix into `out`.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn widen(&self, out: &mut [f32]) {
        assert_eq!(self.len(), out.len(), "widen: lengths of matrix and output");
        match self {
            Matrix::F32(w) => out.copy_from_slice(w),
            Matrix::F16(w) => out.iter_mut().zip(*w).for_each(|(o, w)| *o = f16_to_f32(w.to_bits())),
            Matrix::BF16(w) => out.iter_mut().zip(*w).for_each(|(o, w)| *o = w.to_f32()),
        }
    }
}

/// Widens an IEEE half to f32 exactly, with a branch only for infinity and NaN.
///
/// The fields are shifted into place, then multiplied by 2^112, which also turns denormal halves into normal floats.
#[inline(always)]
pub(crate) fn f16_to_f32(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let magnitude = u32::from(bits & 0x7fff) << 13;
    let value = if magnitude >= 0x0f80_0000 {
        f32::from_bits(magnitude | 0x7f80_0000) // infinity or NaN
    } else {
        f32::from_bits(magnitude) * f32::from_bits(0x7780_0000)
    };
    f32::from_bits(value.to_bits() | sign)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_widens_as_the_half_crate_says() {
        for bits in 0..=u16::MAX {
            let (ours, theirs) = (f16_to_f32(bits), f16::from_bits(bits).to_f32());
            assert!(ours.to_bits() == theirs.to_bits() || (ours.is_nan() && theirs.is_nan()), "{bits:#x}");
        }
    }
}
