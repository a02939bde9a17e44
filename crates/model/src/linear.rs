//! Weights as products want them: from where they lie in the mapped file into panels.
//!
//! The idea: matrices are packed once, tensor by tensor, on all threads, and their pages of the file are given back as
//! soon as that is done, so that no second copy of the model is ever there. A table of which single rows are read (an
//! embedding) stays in the file in any form.
//!
//! With a type asked for at load ([`WeightType`]), the matrices of layers and head are brought to it from floats.

use bytemuck::{AnyBitPattern, try_cast_slice};
use foretoken_kernels::block::{self, Format};
use foretoken_kernels::dtype::{Matrix, bf16, f16};
use foretoken_kernels::matmul::Product;
use foretoken_kernels::{Panels, Pool};
use foretoken_weights::{Bytes, Dtype, Tensor};

use crate::weight_type::WeightType;

/// Elements of one type, mapped or owned.
#[derive(Clone)]
pub(crate) enum Storage {
    MappedF32(Bytes),
    MappedF16(Bytes),
    MappedBF16(Bytes),
    F32(Vec<f32>),
    F16(Vec<f16>),
    BF16(Vec<bf16>),
    Blocks(Format, Bytes),
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

/// The kernels' name of a quantized type.
fn format(dtype: Dtype) -> Option<Format> {
    Format::ALL.into_iter().find(|format| format.name() == dtype.name())
}

impl Storage {
    /// The elements of `tensor`, which is of a type that can be computed with.
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
            other => match format(other) {
                Some(format) => Self::Blocks(format, bytes.clone()),
                None => panic!("tensor {}: type {} was let through", tensor.name, other.name()),
            },
        }
    }

    /// The elements as a matrix of floats, or nothing if they are blocks.
    fn matrix(&self) -> Option<Matrix<'_>> {
        Some(match self {
            Self::MappedF32(bytes) => Matrix::F32(bytemuck::cast_slice(bytes)),
            Self::MappedF16(bytes) => Matrix::F16(bytemuck::cast_slice(bytes)),
            Self::MappedBF16(bytes) => Matrix::BF16(bytemuck::cast_slice(bytes)),
            Self::F32(elements) => Matrix::F32(elements),
            Self::F16(elements) => Matrix::F16(elements),
            Self::BF16(elements) => Matrix::BF16(elements),
            Self::Blocks(..) => return None,
        })
    }

    /// Panels of floats `[outputs, inputs]`.
    pub(crate) fn pack(&self, pool: &Pool, outputs: usize, inputs: usize) -> Panels {
        Panels::pack_floats(pool, self.matrix().expect("blocks are packed as such"), outputs, inputs)
    }

    /// Number of elements.
    pub(crate) fn elements(&self) -> usize {
        match self {
            Self::Blocks(format, bytes) => bytes.len() / format.bytes() * format.elements(),
            floats => floats.matrix().map_or(0, |matrix| matrix.len()),
        }
    }

    /// Elements `range`, which is whole blocks, as floats.
    pub(crate) fn widen(&self, range: std::ops::Range<usize>, out: &mut [f32]) {
        match (self, self.matrix()) {
            (Self::Blocks(format, bytes), _) => {
                let at = |element: usize| element / format.elements() * format.bytes();
                block::dequantize(*format, &bytes[at(range.start)..at(range.end)], out);
            }
            (_, Some(matrix)) => matrix.slice(range).widen(out),
            (_, None) => unreachable!("only blocks are no matrix"),
        }
    }

    /// The same matrix with its axes exchanged, from `[rows, columns]`. Of blocks, as floats.
    fn transposed(&self, rows: usize, columns: usize) -> Self {
        match self.matrix() {
            Some(Matrix::F32(w)) => Self::F32(transposed(w, rows, columns)),
            Some(Matrix::F16(w)) => Self::F16(transposed(w, rows, columns)),
            Some(Matrix::BF16(w)) => Self::BF16(transposed(w, rows, columns)),
            None => {
                let mut all = vec![0.0; self.elements()];
                self.widen(0..all.len(), &mut all);
                Self::F32(transposed(&all, rows, columns))
            }
        }
    }

    /// Elements `range`, which is whole blocks: a view of a mapping, a copy of an owned matrix.
    fn part(&self, range: std::ops::Range<usize>) -> Self {
        let bytes = |size: usize| range.start * size..range.end * size;
        match self {
            Self::MappedF32(all) => Self::MappedF32(all.slice(bytes(4))),
            Self::MappedF16(all) => Self::MappedF16(all.slice(bytes(2))),
            Self::MappedBF16(all) => Self::MappedBF16(all.slice(bytes(2))),
            Self::F32(all) => Self::F32(all[range].to_vec()),
            Self::F16(all) => Self::F16(all[range].to_vec()),
            Self::BF16(all) => Self::BF16(all[range].to_vec()),
            Self::Blocks(format, all) => {
                let at = |element: usize| element / format.elements() * format.bytes();
                Self::Blocks(*format, all.slice(at(range.start)..at(range.end)))
            }
        }
    }

    /// Gives the pages of a mapped file back to the system.
    fn release(&self) {
        if let Self::MappedF32(bytes) | Self::MappedF16(bytes) | Self::MappedBF16(bytes) | Self::Blocks(_, bytes) = self
        {
            bytes.release();
        }
    }
}

/// A table `[rows, width]` of which single rows are read: an embedding.
#[derive(Clone)]
pub(crate) struct Table {
    storage: Storage,
    width: usize,
}

impl Table {
    pub(crate) fn new(storage: Storage, width: usize, rows: usize) -> Self {
        assert_eq!(storage.elements(), width * rows, "table: elements of a [{rows}, {width}] matrix");
        Self { storage, width }
    }

    /// Row `tokens[i]`, widened, to row i of `out` `[tokens.len(), width]`.
    pub(crate) fn embed(&self, tokens: &[u32], out: &mut [f32]) {
        for (token, out) in tokens.iter().zip(out.chunks_exact_mut(self.width)) {
            let first = *token as usize * self.width;
            self.storage.widen(first..first + self.width, out);
        }
    }

    /// The format of its blocks, if it is quantized.
    pub(crate) fn format(&self) -> Option<Format> {
        match self.storage {
            Storage::Blocks(format, _) => Some(format),
            _ => None,
        }
    }

    /// The table as the matrix of a layer without bias.
    pub(crate) fn matrix(&self) -> Unpacked {
        Unpacked::new(self.storage.clone(), None, self.width, self.storage.elements() / self.width)
    }
}

/// A linear layer as it lies in the file.
#[derive(Clone)]
pub(crate) struct Unpacked {
    storage: Storage,
    bias: Option<Vec<f32>>,
    inputs: usize,
    outputs: usize,
}

impl Unpacked {
    pub(crate) fn new(storage: Storage, bias: Option<Vec<f32>>, inputs: usize, outputs: usize) -> Self {
        assert_eq!(storage.elements(), inputs * outputs, "linear: elements of a [{outputs}, {inputs}] matrix");
        Self { storage, bias, inputs, outputs }
    }

    /// From a matrix stored `[inputs, outputs]`.
    pub(crate) fn from_transposed(storage: &Storage, bias: Option<Vec<f32>>, inputs: usize, outputs: usize) -> Self {
        let transposed = storage.transposed(inputs, outputs);
        storage.release();
        Self::new(transposed, bias, inputs, outputs)
    }

    /// The layer that computes outputs `range` of this one.
    pub(crate) fn outputs(&self, range: std::ops::Range<usize>) -> Self {
        let bias = self.bias.as_ref().map(|bias| bias[range.clone()].to_vec());
        let storage = self.storage.part(range.start * self.inputs..range.end * self.inputs);
        Self::new(storage, bias, self.inputs, range.len())
    }

    /// Brings the weights to the form in which they are multiplied: the type that is asked for, or the file's own.
    pub(crate) fn pack(self, pool: &Pool, wanted: Option<WeightType>) -> Linear {
        let Self { storage, bias, inputs, outputs } = self;
        let weights = match (&storage, wanted) {
            (Storage::Blocks(format, bytes), _) => Panels::pack(pool, *format, outputs, inputs, bytes),
            (floats, Some(wanted)) => wanted.convert(pool, floats, outputs, inputs),
            (floats, None) => floats.pack(pool, outputs, inputs),
        };
        storage.release();
        Linear { weights, bias }
    }
}

/// A linear layer `[outputs, inputs]`.
pub(crate) struct Linear {
    weights: Panels,
    bias: Option<Vec<f32>>,
}

impl Linear {
    /// This layer as a product into `out`.
    pub(crate) fn product<'a>(&'a self, out: &'a mut [f32], accumulate: bool) -> Product<'a> {
        Product { weights: &self.weights, bias: self.bias.as_deref(), out, accumulate }
    }

    /// Name of the weights' type, number of weights, bytes that a product reads.
    pub(crate) fn size(&self) -> (&'static str, usize, usize) {
        let panels = &self.weights;
        (panels.form().name(), panels.outputs() * panels.inputs(), panels.bytes())
    }
}
