//! Normalization of rows: RMSNorm and LayerNorm.
//!
//! Sums run over sixteen lanes, without fused operations, one row at a time: a row is a few kilobytes in the L1 cache,
//! so threads would cost more than they save.

use crate::Isa;
use crate::isa::dispatch;

/// `out[row] = x[row] / sqrt(mean(x[row]^2) + epsilon) * weight`, rows of `weight.len()` elements.
///
/// # Panics
/// If `x` is not a whole number of rows, or `out` differs in length.
pub fn rms_norm(isa: Isa, x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
    assert!(x.len() == out.len() && x.len().is_multiple_of(weight.len()), "rms_norm: shapes");
    dispatch!(isa, rms_norm(x, weight, epsilon, out));
}

/// `out[row] = (x[row] - mean) / sqrt(variance + epsilon) * weight + bias`, rows of `weight.len()` elements.
///
/// # Panics
/// As [`rms_norm`], and if the bias has another length than the weight.
pub fn layer_norm(isa: Isa, x: &[f32], weight: &[f32], bias: &[f32], epsilon: f32, out: &mut [f32]) {
    assert!(x.len() == out.len() && x.len().is_multiple_of(weight.len()), "layer_norm: shapes");
    assert_eq!(weight.len(), bias.len(), "layer_norm: weight and bias");
    dispatch!(isa, layer_norm(x, weight, bias, epsilon, out));
}

/// The loops themselves, which `isa/rows.rs` compiles for each instruction set.
pub(crate) mod plain {
    use crate::{LANES, lane_sum};

    /// Sum of f(x) in the crate's order of reduction.
    #[inline(always)]
    fn sum(x: &[f32], f: impl Fn(f32) -> f32) -> f32 {
        let mut lanes = [0f32; LANES];
        let (chunks, rest) = x.as_chunks::<LANES>();
        for chunk in chunks {
            for l in 0..LANES {
                lanes[l] += f(chunk[l]);
            }
        }
        for (l, x) in rest.iter().enumerate() {
            lanes[l] += f(*x);
        }
        lane_sum(&lanes)
    }

    #[inline(always)]
    pub(crate) fn rms_norm(x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
        for (x, out) in x.chunks_exact(weight.len()).zip(out.chunks_exact_mut(weight.len())) {
            let scale = 1.0 / (sum(x, |x| x * x) / x.len() as f32 + epsilon).sqrt();
            for (out, (x, weight)) in out.iter_mut().zip(x.iter().zip(weight)) {
                *out = x * scale * weight;
            }
        }
    }

    #[inline(always)]
    pub(crate) fn layer_norm(x: &[f32], weight: &[f32], bias: &[f32], epsilon: f32, out: &mut [f32]) {
        for (x, out) in x.chunks_exact(weight.len()).zip(out.chunks_exact_mut(weight.len())) {
            let mean = sum(x, |x| x) / x.len() as f32;
            let variance = sum(x, |x| (x - mean) * (x - mean)) / x.len() as f32;
            let scale = 1.0 / (variance + epsilon).sqrt();
            for (out, ((x, weight), bias)) in out.iter_mut().zip(x.iter().zip(weight).zip(bias)) {
                *out = (x - mean) * scale * weight + bias;
            }
        }
    }
}
