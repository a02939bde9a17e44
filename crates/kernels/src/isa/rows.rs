//! The kernels other than products and attention, which work on elements or rows: activations, norms, rotations, and
//! storing the sums of a tile.
//!
//! These are plain loops, compiled for each instruction set and vectorized by the compiler; what they compute is
//! documented at their callers (`activation.rs`, `norm.rs`, `rope.rs`, `panel/columns.rs`). The compiler changes
//! neither the order of additions nor fuses operations, so the results are equal to the bit on all sets.
//!
//! In a network of 135 million parameters these loops took a fifth of a pass of 8 rows when they were compiled for the
//! baseline instruction set alone, since one thread runs them while the others wait.

use super::shapes::Pairing;
use crate::softmax::exp;
use crate::{LANES, lane_sum};

#[inline(always)]
pub(super) fn silu_gate(gate: &mut [f32], up: &[f32]) {
    for (gate, up) in gate.iter_mut().zip(up) {
        *gate = *gate / (1.0 + exp(-*gate)) * up;
    }
}

#[inline(always)]
pub(super) fn clamped_gate(gate: &mut [f32], up: &[f32], slope: f32, limit: f32) {
    for (gate, up) in gate.iter_mut().zip(up) {
        // A comparison leaves NaN as it is, where `min` would return the limit.
        let g = if *gate > limit { limit } else { *gate };
        let u = up.clamp(-limit, limit);
        *gate = g / (1.0 + exp(-(slope * g))) * (u + 1.0);
    }
}

#[inline(always)]
pub(super) fn silu(x: &mut [f32]) {
    for x in x {
        *x /= 1.0 + exp(-*x);
    }
}

#[inline(always)]
pub(super) fn gelu_tanh(x: &mut [f32]) {
    for x in x {
        let u = 0.797_884_6 * (*x + 0.044_715 * *x * *x * *x);
        *x -= *x / (exp(2.0 * u) + 1.0);
    }
}

/// The sum of f(x), in the order of reduction of this crate.
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
pub(super) fn rms_norm(x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
    for (x, out) in x.chunks_exact(weight.len()).zip(out.chunks_exact_mut(weight.len())) {
        let scale = 1.0 / (sum(x, |x| x * x) / x.len() as f32 + epsilon).sqrt();
        for (out, (x, weight)) in out.iter_mut().zip(x.iter().zip(weight)) {
            *out = x * scale * weight;
        }
    }
}

#[inline(always)]
pub(super) fn layer_norm(x: &[f32], weight: &[f32], bias: &[f32], epsilon: f32, out: &mut [f32]) {
    for (x, out) in x.chunks_exact(weight.len()).zip(out.chunks_exact_mut(weight.len())) {
        let mean = sum(x, |x| x) / x.len() as f32;
        let variance = sum(x, |x| (x - mean) * (x - mean)) / x.len() as f32;
        let scale = 1.0 / (variance + epsilon).sqrt();
        for (out, ((x, weight), bias)) in out.iter_mut().zip(x.iter().zip(weight).zip(bias)) {
            *out = (x - mean) * scale * weight + bias;
        }
    }
}

#[inline(always)]
pub(super) fn rotate(row: &mut [f32], head_dim: usize, angles: &[f32], pairing: Pairing) {
    let (cosines, sines) = angles.split_at(angles.len() / 2);
    let half = cosines.len();
    for head in row.chunks_exact_mut(head_dim) {
        match pairing {
            Pairing::Halves => {
                let (first, second) = head[..2 * half].split_at_mut(half);
                let pairs = first.iter_mut().zip(second).zip(cosines.iter().zip(sines));
                pairs.for_each(|((x, y), (cosine, sine))| {
                    (*x, *y) = (*x * cosine - *y * sine, *y * cosine + *x * sine);
                });
            }
            Pairing::Interleaved => {
                let (pairs, _) = head[..2 * half].as_chunks_mut::<2>();
                let pairs = pairs.iter_mut().zip(cosines.iter().zip(sines));
                pairs.for_each(|(pair, (cosine, sine))| {
                    let [x, y] = *pair;
                    *pair = [x * cosine - y * sine, y * cosine + x * sine];
                });
            }
        }
    }
}

/// Compiles the loops with the features of the module that instantiates this.
macro_rules! row_kernels {
    ($(#[$feature:meta])*) => {
        /// The loop of [`silu_gate`](crate::activation::silu_gate).
        ///
        /// # Safety
        /// The CPU has the features of this module.
        $(#[$feature])*
        pub(crate) unsafe fn silu_gate(gate: &mut [f32], up: &[f32]) {
            $crate::isa::rows::silu_gate(gate, up);
        }

        /// The loop of [`clamped_gate`](crate::activation::clamped_gate).
        ///
        /// # Safety
        /// The CPU has the features of this module.
        $(#[$feature])*
        pub(crate) unsafe fn clamped_gate(gate: &mut [f32], up: &[f32], slope: f32, limit: f32) {
            $crate::isa::rows::clamped_gate(gate, up, slope, limit);
        }

        /// The loop of [`silu`](crate::activation::silu).
        ///
        /// # Safety
        /// The CPU has the features of this module.
        $(#[$feature])*
        pub(crate) unsafe fn silu(x: &mut [f32]) {
            $crate::isa::rows::silu(x);
        }

        /// The loop of [`gelu_tanh`](crate::activation::gelu_tanh).
        ///
        /// # Safety
        /// The CPU has the features of this module.
        $(#[$feature])*
        pub(crate) unsafe fn gelu_tanh(x: &mut [f32]) {
            $crate::isa::rows::gelu_tanh(x);
        }

        /// The loop of [`rms_norm`](crate::norm::rms_norm).
        ///
        /// # Safety
        /// The CPU has the features of this module.
        $(#[$feature])*
        pub(crate) unsafe fn rms_norm(x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
            $crate::isa::rows::rms_norm(x, weight, epsilon, out);
        }

        /// The loop of [`layer_norm`](crate::norm::layer_norm).
        ///
        /// # Safety
        /// The CPU has the features of this module.
        $(#[$feature])*
        pub(crate) unsafe fn layer_norm(x: &[f32], weight: &[f32], bias: &[f32], epsilon: f32, out: &mut [f32]) {
            $crate::isa::rows::layer_norm(x, weight, bias, epsilon, out);
        }

        /// The loop of [`rotate`](crate::rope::rotate).
        ///
        /// # Safety
        /// The CPU has the features of this module.
        $(#[$feature])*
        pub(crate) unsafe fn rotate(
            row: &mut [f32],
            head_dim: usize,
            angles: &[f32],
            pairing: $crate::isa::shapes::Pairing,
        ) {
            $crate::isa::rows::rotate(row, head_dim, angles, pairing);
        }

        /// Adds the panel's biases, if any, to its sums `[rows][16]`, then writes them to its columns of an output,
        /// whose rows are `stride` elements apart, or adds them to the values there.
        ///
        /// # Safety
        /// The CPU has the features of this module; sixteen elements of each of these rows can be read and written.
        $(#[$feature])*
        pub(crate) unsafe fn store_sums(
            sums: &[[f32; $crate::LANES]],
            out: *mut f32,
            stride: usize,
            bias: Option<&[f32; $crate::LANES]>,
            accumulate: bool,
        ) {
            for (row, sums) in sums.iter().enumerate() {
                // SAFETY: guaranteed by the caller.
                let out = unsafe { &mut *out.add(row * stride).cast::<[f32; $crate::LANES]>() };
                let mut lanes = *sums;
                if let Some(bias) = bias {
                    for l in 0..$crate::LANES {
                        lanes[l] += bias[l];
                    }
                }
                if accumulate {
                    for l in 0..$crate::LANES {
                        out[l] += lanes[l];
                    }
                } else {
                    *out = lanes;
                }
            }
        }
    };
}
pub(crate) use row_kernels;
