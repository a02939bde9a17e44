//! The kernels beside the products, which work on elements or rows: activations, norms, rotations, and storing the sums
//! of a tile.
//!
//! These are plain loops, written where they are explained (`activation.rs`, `norm.rs`, `rope.rs`, `panel/columns.rs`),
//! compiled here for each instruction set and vectorized by the compiler. None of them is compiled to another order of
//! additions or to fused operations, so their results are equal to the bit on all sets.
//!
//! On a network of 135 M parameters these loops took a fifth of a pass of 8 rows when they were compiled for the
//! baseline instruction set alone, since one thread runs them while the others wait.

/// Compiles the loops with the features of the module that instantiates this.
macro_rules! row_kernels {
    ($(#[$feature:meta])*) => {
        /// See [`silu_gate`](crate::activation::silu_gate).
        ///
        /// # Safety
        /// The CPU has the features of this module.
        $(#[$feature])*
        pub(crate) unsafe fn silu_gate(gate: &mut [f32], up: &[f32]) {
            $crate::activation::plain::silu_gate(gate, up);
        }

        /// See [`clamped_gate`](crate::activation::clamped_gate).
        ///
        /// # Safety
        /// The CPU has the features of this module.
        $(#[$feature])*
        pub(crate) unsafe fn clamped_gate(gate: &mut [f32], up: &[f32], slope: f32, limit: f32) {
            $crate::activation::plain::clamped_gate(gate, up, slope, limit);
        }

        /// See [`silu`](crate::activation::silu).
        ///
        /// # Safety
        /// The CPU has the features of this module.
        $(#[$feature])*
        pub(crate) unsafe fn silu(x: &mut [f32]) {
            $crate::activation::plain::silu(x);
        }

        /// See [`gelu_tanh`](crate::activation::gelu_tanh).
        ///
        /// # Safety
        /// The CPU has the features of this module.
        $(#[$feature])*
        pub(crate) unsafe fn gelu_tanh(x: &mut [f32]) {
            $crate::activation::plain::gelu_tanh(x);
        }

        /// See [`rms_norm`](crate::norm::rms_norm).
        ///
        /// # Safety
        /// The CPU has the features of this module.
        $(#[$feature])*
        pub(crate) unsafe fn rms_norm(x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
            $crate::norm::plain::rms_norm(x, weight, epsilon, out);
        }

        /// See [`layer_norm`](crate::norm::layer_norm).
        ///
        /// # Safety
        /// The CPU has the features of this module.
        $(#[$feature])*
        pub(crate) unsafe fn layer_norm(x: &[f32], weight: &[f32], bias: &[f32], epsilon: f32, out: &mut [f32]) {
            $crate::norm::plain::layer_norm(x, weight, bias, epsilon, out);
        }

        /// See [`rotate`](crate::rope::rotate).
        ///
        /// # Safety
        /// The CPU has the features of this module.
        $(#[$feature])*
        pub(crate) unsafe fn rotate(row: &mut [f32], head_dim: usize, angles: &[f32], pairing: $crate::rope::Pairing) {
            $crate::rope::plain::rotate(row, head_dim, angles, pairing);
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
                // SAFETY: the caller's promise.
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
