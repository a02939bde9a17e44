//! The specification of every operation: short, slow, obviously right. Tests compare the kernels with these.
//!
//! Sums are taken in f64, so a comparison measures the kernel's rounding and not this file's.

use crate::dtype::Matrix;

/// `x` `[rows, inputs]` times the transpose of `w` `[outputs, inputs]`.
pub fn product(x: &[f32], w: Matrix<'_>, inputs: usize) -> Vec<f32> {
    let outputs = w.len() / inputs;
    let mut out = Vec::new();
    for row in x.chunks_exact(inputs) {
        for o in 0..outputs {
            out.push((0..inputs).map(|k| f64::from(row[k]) * f64::from(w.get(o * inputs + k))).sum::<f64>() as f32);
        }
    }
    out
}

/// One query `[head_dim]` over keys and values `[positions][head_dim]`.
pub fn attention(query: &[f32], keys: &[&[f32]], values: &[&[f32]], scale: f32) -> Vec<f32> {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let scores: Vec<f64> = keys.iter().map(|key| dot(query, key) * f64::from(scale)).collect();
    let highest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|s| (s - highest).exp()).collect();
    let total: f64 = weights.iter().sum();
    (0..query.len())
        .map(|d| (0..keys.len()).map(|j| weights[j] / total * f64::from(values[j][d])).sum::<f64>() as f32)
        .collect()
}

/// RMSNorm of one row.
pub fn rms_norm(x: &[f32], weight: &[f32], epsilon: f32) -> Vec<f32> {
    let mean = x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / x.len() as f64;
    x.iter()
        .zip(weight)
        .map(|(x, w)| (f64::from(*x) / (mean + f64::from(epsilon)).sqrt() * f64::from(*w)) as f32)
        .collect()
}

/// LayerNorm of one row.
pub fn layer_norm(x: &[f32], weight: &[f32], bias: &[f32], epsilon: f32) -> Vec<f32> {
    let n = x.len() as f64;
    let mean = x.iter().map(|x| f64::from(*x)).sum::<f64>() / n;
    let variance = x.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / n;
    let scale = 1.0 / (variance + f64::from(epsilon)).sqrt();
    (0..x.len())
        .map(|i| ((f64::from(x[i]) - mean) * scale * f64::from(weight[i]) + f64::from(bias[i])) as f32)
        .collect()
}
