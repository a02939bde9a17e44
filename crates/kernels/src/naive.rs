//! The specification of the operations: short, slow functions that are easy to verify. Tests compare the kernels with
//! them.
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

/// How the scores of one query head are modified; see [`Arguments`](crate::attention::Arguments).
#[derive(Clone)]
pub struct ScoreOptions {
    /// What the scores are multiplied by.
    pub scale: f32,
    /// Soft cap of the scores.
    pub soft_cap: Option<f32>,
    /// What is subtracted for each position of distance (ALiBi).
    pub slope: f32,
    /// What is added for each position of `keys`, before any window is applied; empty if nothing is added.
    pub bias: Vec<f32>,
    /// The number of latest positions that are visible.
    pub window: Option<usize>,
    /// The attention sink: one more score, without a value.
    pub sink: Option<f32>,
}

/// Attention of one query `[head_dim]` over keys and values `[positions][head_dim]`, the last of which are its own.
pub fn attention(query: &[f32], keys: &[&[f32]], values: &[&[f32]], options: &ScoreOptions) -> Vec<f32> {
    let skipped = options.window.map_or(0, |window| keys.len().saturating_sub(window));
    let (keys, values) = (&keys[skipped..], &values[skipped..]);
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let score = |(j, key): (usize, &&[f32])| {
        let score = dot(query, key) * f64::from(options.scale);
        let capped = options.soft_cap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh());
        let bias = options.bias.get(skipped + j).copied().map_or(0.0, f64::from);
        capped + bias - f64::from(options.slope) * (keys.len() - 1 - j) as f64
    };
    let scores: Vec<f64> = keys.iter().enumerate().map(score).collect();
    let sink = options.sink.map_or(f64::NEG_INFINITY, f64::from);
    let highest = scores.iter().copied().fold(sink, f64::max);
    let weights: Vec<f64> = scores.iter().map(|s| (s - highest).exp()).collect();
    let total = weights.iter().sum::<f64>() + (sink - highest).exp();
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
