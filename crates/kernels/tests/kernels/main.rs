//! Tests that compare the kernels with their naive references and with themselves among other rows, and tests of the
//! threads that run them.

mod attention;
mod block;
mod ceilings;
mod panels;
mod pool;
mod quantization_error;
mod reference;
mod rows;
mod shape_overflow;

use std::sync::LazyLock;

use foretoken_kernels::dtype::{Matrix, bf16, f16};
use foretoken_kernels::matmul::{Product, product};
use foretoken_kernels::{Compute, Isa, Panels, Pool};
use foretoken_testkit::rows::{Numbers, first_difference};

/// Every instruction set of this machine with 1 to 4 threads. The first is portable with one thread.
pub(crate) static COMPUTES: LazyLock<Vec<Compute>> = LazyLock::new(|| {
    let all = Isa::available().into_iter();
    all.flat_map(|isa| (1..=4).map(move |threads| Compute::with(isa, Pool::new(threads)))).collect()
});

/// The instruction set and the threads, for messages.
pub(crate) fn name(compute: &Compute) -> String {
    format!("{} with {} threads", compute.isa.name(), compute.pool.threads())
}

/// Asserts that both have the same bits.
#[track_caller]
pub(crate) fn assert_same_bits(found: &[f32], expected: &[f32], what: &str) {
    if let Some(at) = first_difference(found, expected) {
        panic!("{what}: element {at}: {:e} instead of {:e}", found[at], expected[at]);
    }
}

/// Whether both have the same bits, or both are NaN.
pub(crate) fn same_float(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
}

/// Owned weights of one of the three float types.
#[derive(Clone, Debug)]
pub(crate) enum Weights {
    F32(Vec<f32>),
    F16(Vec<f16>),
    BF16(Vec<bf16>),
}

impl Weights {
    /// `len` random weights of type number `kind`.
    pub(crate) fn random(numbers: &mut Numbers, kind: usize, len: usize) -> Self {
        let wide = numbers.units(len).into_iter();
        match kind {
            0 => Self::F32(wide.collect()),
            1 => Self::F16(wide.map(f16::from_f32).collect()),
            _ => Self::BF16(wide.map(bf16::from_f32).collect()),
        }
    }

    pub(crate) fn matrix(&self) -> Matrix<'_> {
        match self {
            Self::F32(w) => Matrix::F32(w),
            Self::F16(w) => Matrix::F16(w),
            Self::BF16(w) => Matrix::BF16(w),
        }
    }
}

/// A product of given weights, with or without bias and residual, as a kernel of rows.
pub(crate) struct Layer {
    pub(crate) weights: Weights,
    pub(crate) bias: Option<Vec<f32>>,
    pub(crate) inputs: usize,
    pub(crate) outputs: usize,
    /// What each row is added to, if there is a residual.
    pub(crate) residual: Option<Vec<f32>>,
}

impl Layer {
    pub(crate) fn random(numbers: &mut Numbers, kind: usize, inputs: usize, outputs: usize) -> Self {
        let biased = numbers.below(2) == 0;
        let accumulates = numbers.below(2) == 0;
        Self {
            weights: Weights::random(numbers, kind, inputs * outputs),
            bias: biased.then(|| numbers.units(outputs)),
            inputs,
            outputs,
            residual: accumulates.then(|| numbers.units(outputs)),
        }
    }

    pub(crate) fn panels(&self, compute: &Compute) -> Panels {
        Panels::pack_floats(&compute.pool, self.weights.matrix(), self.outputs, self.inputs).expect("there is memory")
    }

    pub(crate) fn run(&self, compute: &Compute, x: &[f32], rows: usize) -> Vec<f32> {
        let mut out = match &self.residual {
            Some(residual) => residual.repeat(rows),
            None => vec![f32::NAN; rows * self.outputs],
        };
        let panels = self.panels(compute);
        let one = Product {
            weights: &panels,
            bias: self.bias.as_deref(),
            out: &mut out,
            accumulate: self.residual.is_some(),
        };
        product(compute, x, rows, self.inputs, one);
        out
    }
}
