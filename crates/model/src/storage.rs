//! The elements of a tensor: in the mapped file, or owned.
//!
//! Floats of a file are used in the mapping if they are aligned, and blocks always.

use std::ops::Range;

use bytemuck::{AnyBitPattern, try_cast_slice};
use foretoken_kernels::block::{self, Format};
use foretoken_kernels::dtype::{Matrix, bf16, f16};
use foretoken_kernels::panel::PanelFormat;
use foretoken_kernels::{Panels, Pool};
use foretoken_weights::{Bytes, Dtype, Tensor};

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

/// The elements of a [`Storage`], mapped or owned.
pub(crate) enum View<'a> {
    Floats(Matrix<'a>),
    Blocks(Format, &'a [u8]),
}

impl View<'_> {
    /// Packs a matrix `[outputs, inputs]` into panels of the same type; `None` if there is no memory for them.
    pub(crate) fn pack(&self, pool: &Pool, outputs: usize, inputs: usize) -> Option<Panels> {
        match *self {
            Self::Floats(matrix) => Panels::pack_floats(pool, matrix, outputs, inputs),
            Self::Blocks(format, bytes) => Panels::pack(pool, format, outputs, inputs, bytes),
        }
    }

    /// Packs the matrix into panels of this form and shape that held another matrix.
    pub(crate) fn refill(&self, pool: &Pool, panels: &mut Panels) {
        match *self {
            Self::Floats(matrix) => panels.refill_floats(pool, matrix),
            Self::Blocks(_, bytes) => panels.refill(pool, bytes),
        }
    }
}

/// A copy of the elements in `bytes`, which may not be aligned.
fn copied<T: AnyBitPattern>(bytes: &[u8]) -> Vec<T> {
    bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()
}

/// One of the matrices that are stacked in a tensor along its first dimension.
pub(crate) fn nth_matrix(tensor: &Tensor, number: usize) -> Tensor {
    let bytes = tensor.bytes.len() / tensor.shape[0];
    let part = tensor.bytes.slice(number * bytes..(number + 1) * bytes);
    Tensor { shape: tensor.shape[1..].to_vec(), bytes: part, ..tensor.clone() }
}

/// The `chosen` columns of `elements` `[_, columns]`, one after another.
fn gather_columns<T: Copy>(elements: &[T], chosen: impl ExactSizeIterator<Item = usize>, columns: usize) -> Vec<T> {
    let rows = elements.len() / columns.max(1);
    let mut out = Vec::with_capacity(rows * chosen.len());
    for column in chosen {
        out.extend((0..rows).map(|row| elements[row * columns + column]));
    }
    out
}

/// The kernels' name of a quantized type.
fn format(dtype: Dtype) -> Option<Format> {
    Format::ALL.into_iter().find(|format| format.name() == dtype.name())
}

impl Storage {
    /// The elements of `tensor`, whose type can be computed with.
    ///
    /// # Panics
    /// On any other type, which `Weights::require` refuses.
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

    /// The form of a tensor's panels.
    ///
    /// # Panics
    /// As [`new`](Self::new).
    pub(crate) fn form_of(tensor: &Tensor) -> PanelFormat {
        match tensor.dtype {
            Dtype::F32 => PanelFormat::F32,
            Dtype::F16 => PanelFormat::F16,
            Dtype::BF16 => PanelFormat::BF16,
            other => match format(other) {
                Some(format) => PanelFormat::Blocks(format),
                None => panic!("tensor {}: type {} was let through", tensor.name, other.name()),
            },
        }
    }

    /// The elements, mapped or owned.
    pub(crate) fn view(&self) -> View<'_> {
        match self {
            Self::MappedF32(bytes) => View::Floats(Matrix::F32(bytemuck::cast_slice(bytes))),
            Self::MappedF16(bytes) => View::Floats(Matrix::F16(bytemuck::cast_slice(bytes))),
            Self::MappedBF16(bytes) => View::Floats(Matrix::BF16(bytemuck::cast_slice(bytes))),
            Self::F32(elements) => View::Floats(Matrix::F32(elements)),
            Self::F16(elements) => View::Floats(Matrix::F16(elements)),
            Self::BF16(elements) => View::Floats(Matrix::BF16(elements)),
            Self::Blocks(format, bytes) => View::Blocks(*format, bytes),
        }
    }

    /// The format of the blocks, if it is quantized.
    pub(crate) fn format(&self) -> Option<Format> {
        match self.view() {
            View::Floats(_) => None,
            View::Blocks(format, _) => Some(format),
        }
    }

    /// Name of the type.
    pub(crate) fn dtype(&self) -> &'static str {
        self.form().name()
    }

    /// The elements as bytes of their type.
    pub(crate) fn bytes(&self) -> &[u8] {
        match self.view() {
            View::Floats(Matrix::F32(w)) => bytemuck::cast_slice(w),
            View::Floats(Matrix::F16(w)) => bytemuck::cast_slice(w),
            View::Floats(Matrix::BF16(w)) => bytemuck::cast_slice(w),
            View::Blocks(_, bytes) => bytes,
        }
    }

    /// The form of the panels.
    pub(crate) fn form(&self) -> PanelFormat {
        match self.view() {
            View::Floats(Matrix::F32(_)) => PanelFormat::F32,
            View::Floats(Matrix::F16(_)) => PanelFormat::F16,
            View::Floats(Matrix::BF16(_)) => PanelFormat::BF16,
            View::Blocks(format, _) => PanelFormat::Blocks(format),
        }
    }

    /// Number of elements.
    pub(crate) fn elements(&self) -> usize {
        match self.view() {
            View::Floats(matrix) => matrix.len(),
            View::Blocks(format, bytes) => bytes.len() / format.bytes() * format.elements(),
        }
    }

    /// The elements, those of blocks as floats.
    pub(crate) fn into_floats(self) -> Self {
        if self.format().is_none() {
            return self;
        }
        let mut out = vec![0.0; self.elements()];
        self.widen(0..out.len(), &mut out);
        Self::F32(out)
    }

    /// Reads elements `range`, a whole number of blocks, as floats.
    pub(crate) fn widen(&self, range: Range<usize>, out: &mut [f32]) {
        match self.view() {
            View::Floats(matrix) => matrix.slice(range).widen(out),
            View::Blocks(format, bytes) => {
                let at = |element: usize| element / format.elements() * format.bytes();
                block::dequantize(format, &bytes[at(range.start)..at(range.end)], out);
            }
        }
    }

    /// The `chosen` columns of a matrix with `columns` columns, as the rows of another matrix; columns of blocks become
    /// floats.
    pub(crate) fn columns(&self, chosen: impl ExactSizeIterator<Item = usize>, columns: usize) -> Self {
        match self.view() {
            View::Floats(Matrix::F32(w)) => Self::F32(gather_columns(w, chosen, columns)),
            View::Floats(Matrix::F16(w)) => Self::F16(gather_columns(w, chosen, columns)),
            View::Floats(Matrix::BF16(w)) => Self::BF16(gather_columns(w, chosen, columns)),
            View::Blocks(..) => {
                let mut all = vec![0.0; self.elements()];
                self.widen(0..all.len(), &mut all);
                Self::F32(gather_columns(&all, chosen, columns))
            }
        }
    }

    /// The elements `range`, a whole number of blocks: a view of a mapping, or a copy of an owned matrix.
    pub(crate) fn part(&self, range: Range<usize>) -> Self {
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

    /// A copy of ranges of elements, each a whole number of blocks, one after another.
    pub(crate) fn gather(&self, ranges: impl Iterator<Item = Range<usize>>) -> Self {
        fn all<T: Copy>(elements: &[T], ranges: impl Iterator<Item = Range<usize>>) -> Vec<T> {
            ranges.flat_map(|range| &elements[range]).copied().collect()
        }
        match self.view() {
            View::Floats(Matrix::F32(w)) => Self::F32(all(w, ranges)),
            View::Floats(Matrix::F16(w)) => Self::F16(all(w, ranges)),
            View::Floats(Matrix::BF16(w)) => Self::BF16(all(w, ranges)),
            View::Blocks(format, bytes) => {
                let at = |element: usize| element / format.elements() * format.bytes();
                let ranges = ranges.map(|range| at(range.start)..at(range.end));
                Self::Blocks(format, Bytes::from_vec(all(bytes, ranges)))
            }
        }
    }

    /// Rows of `columns` elements as floats, each normalized to length 1.
    pub(crate) fn unit_rows(&self, columns: usize) -> Self {
        let mut elements = vec![0.0; self.elements()];
        self.widen(0..elements.len(), &mut elements);
        elements.chunks_exact_mut(columns).for_each(normalize_row);
        Self::F32(elements)
    }

    /// Gives the pages of a mapped file back to the system.
    pub(crate) fn release(&self) {
        if let Self::MappedF32(bytes) | Self::MappedF16(bytes) | Self::MappedBF16(bytes) | Self::Blocks(_, bytes) = self
        {
            bytes.release();
        }
    }
}

/// Normalizes a row to length 1, as `torch.nn.functional.normalize` does.
pub(crate) fn normalize_row(row: &mut [f32]) {
    let length = row.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt().max(1e-12);
    row.iter_mut().for_each(|x| *x = (f64::from(*x) / length) as f32);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_copied_in_order_and_rows_normalized_to_length_1() {
        let matrix = Storage::F32(vec![3.0, 4.0, 0.0, -2.0, 0.0, 0.0]);
        let all = |storage: &Storage| {
            let mut out = vec![0.0; storage.elements()];
            storage.widen(0..out.len(), &mut out);
            out
        };
        assert_eq!(all(&matrix.unit_rows(2)), [0.6, 0.8, 0.0, -1.0, 0.0, 0.0]);
        assert_eq!(all(&matrix.gather([4..6, 0..2].into_iter())), [0.0, 0.0, 3.0, 4.0]);
        let (format, floats) = (Format::Q8_0, [0.5f32; 64]);
        let mut bytes = vec![0; 2 * format.bytes()];
        block::quantize(format, &floats, &mut bytes);
        let blocks = Storage::Blocks(format, Bytes::from_vec(bytes));
        let turned = blocks.gather([32..64, 0..32].into_iter());
        assert_eq!((turned.format(), all(&turned)), (Some(format), all(&blocks)));
    }
}
