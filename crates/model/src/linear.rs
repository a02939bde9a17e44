//! Weights where they lie: a matrix in the mapped file, or an owned copy where the file's form cannot be used.
//!
//! Copies are made of tensors that are stored transposed, of blocks that are widened (Q8_0, for now), and of data
//! that happens to lie at an odd address. Everything else is computed from the mapping itself.

use bytemuck::{AnyBitPattern, try_cast_slice};
use foretoken_kernels::dtype::{Matrix, bf16, f16};
use foretoken_kernels::matmul::{Product, Weights};
use foretoken_weights::{Bytes, Dtype, Tensor, dequantize_q8_0};

/// Elements of one type, mapped or owned.
#[derive(Clone)]
pub(crate) enum Storage {
    MappedF32(Bytes),
    MappedF16(Bytes),
    MappedBF16(Bytes),
    F32(Vec<f32>),
    F16(Vec<f16>),
    BF16(Vec<bf16>),
}

/// Elements of `bytes` that lie where such elements may not lie, copied.
fn copied<T: AnyBitPattern>(bytes: &[u8]) -> Vec<T> {
    bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()
}

/// The transpose of `elements` `[rows, columns]`.
fn transposed<T: Copy>(elements: &[T], rows: usize, columns: usize) -> Vec<T> {
    let mut out = Vec::with_capacity(elements.len());
    for column in 0..columns {
        out.extend((0..rows).map(|row| elements[row * columns + column]));
    }
    out
}

impl Storage {
    /// The elements of `tensor`, which is of one of the four types that can be computed with.
    ///
    /// # Panics
    /// On any other type: `Weights::require` refuses those.
    pub(crate) fn new(tensor: &Tensor) -> Self {
        let bytes = &tensor.bytes;
        match tensor.dtype {
            Dtype::F32 if try_cast_slice::<u8, f32>(bytes).is_ok() => Self::MappedF32(bytes.clone()),
            Dtype::F16 if try_cast_slice::<u8, f16>(bytes).is_ok() => Self::MappedF16(bytes.clone()),
            Dtype::BF16 if try_cast_slice::<u8, bf16>(bytes).is_ok() => Self::MappedBF16(bytes.clone()),
            Dtype::F32 => Self::F32(copied(bytes)),
            Dtype::F16 => Self::F16(copied(bytes)),
            Dtype::BF16 => Self::BF16(copied(bytes)),
            Dtype::Q8_0 => {
                let mut out = vec![0.0; tensor.shape.iter().product()];
                dequantize_q8_0(bytes, &mut out);
                Self::F32(out)
            }
            other => panic!("tensor {}: type {} was let through", tensor.name, other.name()),
        }
    }

    pub(crate) fn matrix(&self) -> Matrix<'_> {
        match self {
            Self::MappedF32(bytes) => Matrix::F32(bytemuck::cast_slice(bytes)),
            Self::MappedF16(bytes) => Matrix::F16(bytemuck::cast_slice(bytes)),
            Self::MappedBF16(bytes) => Matrix::BF16(bytemuck::cast_slice(bytes)),
            Self::F32(elements) => Matrix::F32(elements),
            Self::F16(elements) => Matrix::F16(elements),
            Self::BF16(elements) => Matrix::BF16(elements),
        }
    }

    /// The same matrix with its axes exchanged, from `[rows, columns]`.
    fn transposed(&self, rows: usize, columns: usize) -> Self {
        match self.matrix() {
            Matrix::F32(w) => Self::F32(transposed(w, rows, columns)),
            Matrix::F16(w) => Self::F16(transposed(w, rows, columns)),
            Matrix::BF16(w) => Self::BF16(transposed(w, rows, columns)),
        }
    }

    /// Elements `range`: a view of a mapping, a copy of an owned matrix.
    fn part(&self, range: std::ops::Range<usize>) -> Self {
        let bytes = |size: usize| range.start * size..range.end * size;
        match self {
            Self::MappedF32(all) => Self::MappedF32(all.slice(bytes(4))),
            Self::MappedF16(all) => Self::MappedF16(all.slice(bytes(2))),
            Self::MappedBF16(all) => Self::MappedBF16(all.slice(bytes(2))),
            Self::F32(all) => Self::F32(all[range].to_vec()),
            Self::F16(all) => Self::F16(all[range].to_vec()),
            Self::BF16(all) => Self::BF16(all[range].to_vec()),
        }
    }
}

/// A table of rows: an embedding, or the matrix of a linear layer `[outputs, inputs]`.
#[derive(Clone)]
pub(crate) struct Linear {
    pub(crate) weights: Storage,
    pub(crate) bias: Option<Vec<f32>>,
    pub(crate) inputs: usize,
}

impl Linear {
    pub(crate) fn new(weights: Storage, bias: Option<Vec<f32>>, inputs: usize, outputs: usize) -> Self {
        assert_eq!(weights.matrix().len(), inputs * outputs, "linear: elements of a [{outputs}, {inputs}] matrix");
        Self { weights, bias, inputs }
    }

    /// From a matrix stored `[inputs, outputs]`.
    pub(crate) fn from_transposed(weights: &Storage, bias: Option<Vec<f32>>, inputs: usize, outputs: usize) -> Self {
        Self::new(weights.transposed(inputs, outputs), bias, inputs, outputs)
    }

    /// The layer that computes outputs `range` of this one.
    pub(crate) fn outputs(&self, range: std::ops::Range<usize>) -> Self {
        let bias = self.bias.as_ref().map(|bias| bias[range.clone()].to_vec());
        let weights = self.weights.part(range.start * self.inputs..range.end * self.inputs);
        Self::new(weights, bias, self.inputs, range.len())
    }

    /// This layer as a product into `out`.
    pub(crate) fn product<'a>(&'a self, out: &'a mut [f32], accumulate: bool) -> Product<'a> {
        Product { weights: Weights::Rows(self.weights.matrix()), bias: self.bias.as_deref(), out, accumulate }
    }
}
