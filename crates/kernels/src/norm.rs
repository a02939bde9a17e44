//! Normalization of rows: RMSNorm and LayerNorm.
//!
//! Sums run over sixteen lanes, without fused operations, one row at a time: a row has a few kilobytes and lies in the
//! L1 cache, so threads would cost more than they save.

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
/// As [`rms_norm`], and if bias and weight differ in length.
pub fn layer_norm(isa: Isa, x: &[f32], weight: &[f32], bias: &[f32], epsilon: f32, out: &mut [f32]) {
    assert!(x.len() == out.len() && x.len().is_multiple_of(weight.len()), "layer_norm: shapes");
    assert_eq!(weight.len(), bias.len(), "layer_norm: weight and bias");
    dispatch!(isa, layer_norm(x, weight, bias, epsilon, out));
}
