//! Writes tensors to a safetensors file, so that other tools can read logits or train on hidden states.
//!
//! This is a thin layer over the `safetensors` crate, with a few element types. It builds the whole file in memory, so
//! it is not meant for models.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::Write;

use safetensors::tensor::{self, View};

use crate::{Dtype, WeightsError};

/// The elements of a tensor to write, row-major.
#[derive(Clone, Copy, Debug)]
pub enum Elements<'a> {
    /// 32-bit floats.
    F32(&'a [f32]),
    /// 32-bit integers.
    I32(&'a [i32]),
    /// 64-bit integers.
    I64(&'a [i64]),
    /// Floats of this type (F32, F16 or BF16) as the bytes that the file has, little-endian.
    Bytes(Dtype, &'a [u8]),
}

struct Entry<'a> {
    shape: &'a [usize],
    elements: Elements<'a>,
}

impl View for Entry<'_> {
    fn dtype(&self) -> tensor::Dtype {
        match self.elements {
            Elements::F32(_) => tensor::Dtype::F32,
            Elements::I32(_) => tensor::Dtype::I32,
            Elements::I64(_) => tensor::Dtype::I64,
            Elements::Bytes(dtype, _) => float_dtype(dtype),
        }
    }

    fn shape(&self) -> &[usize] {
        self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        let bytes: Vec<u8> = match self.elements {
            Elements::F32(values) => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
            Elements::I32(values) => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
            Elements::I64(values) => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
            Elements::Bytes(_, bytes) => return Cow::Borrowed(bytes),
        };
        Cow::Owned(bytes)
    }

    fn data_len(&self) -> usize {
        match self.elements {
            Elements::F32(values) => size_of_val(values),
            Elements::I32(values) => size_of_val(values),
            Elements::I64(values) => size_of_val(values),
            Elements::Bytes(_, bytes) => bytes.len(),
        }
    }
}

/// The `safetensors` crate's value for a float type.
///
/// # Panics
/// If the type is not a plain float type.
fn float_dtype(dtype: Dtype) -> tensor::Dtype {
    match dtype {
        Dtype::F32 => tensor::Dtype::F32,
        Dtype::F16 => tensor::Dtype::F16,
        Dtype::BF16 => tensor::Dtype::BF16,
        Dtype::Quantized(_) | Dtype::Other(_) => panic!("a tensor of {dtype}, which is not written as bytes"),
    }
}

/// Writes tensors, each a name, a shape (outermost first) and its elements, as a file. `file` is its name in messages.
///
/// # Errors
/// [`WeightsError::Io`] if `out` cannot be written.
///
/// # Panics
/// If a shape does not fit its elements, or a name occurs twice.
pub fn write(out: &mut impl Write, file: &str, tensors: &[(&str, &[usize], Elements<'_>)]) -> Result<(), WeightsError> {
    write_with(out, file, tensors, None)
}

/// Like [`write()`], with strings in the header's `__metadata__`, which readers get from
/// [`Weights::metadata`](crate::Weights::metadata). Their order is unspecified.
///
/// # Errors
/// As [`write()`].
///
/// # Panics
/// As [`write()`].
pub fn write_with(
    out: &mut impl Write,
    file: &str,
    tensors: &[(&str, &[usize], Elements<'_>)],
    metadata: Option<HashMap<String, String>>,
) -> Result<(), WeightsError> {
    let mut entries: Vec<(&str, Entry<'_>)> = Vec::with_capacity(tensors.len());
    for &(name, shape, elements) in tensors {
        let entry = Entry { shape, elements };
        let (count, bytes) = (shape.iter().product::<usize>(), entry.dtype().bitsize() / 8);
        let len = entry.data_len();
        let found = len / bytes;
        assert!(count * bytes == len, "tensor `{name}`: shape {shape:?} asks for {count} elements, there are {found}");
        assert!(entries.iter().all(|(other, _)| *other != name), "tensor `{name}` comes twice");
        entries.push((name, entry));
    }
    let bytes = safetensors::serialize(entries, metadata).map_err(std::io::Error::other);
    let written = bytes.and_then(|bytes| out.write_all(&bytes));
    written.map_err(|error| WeightsError::io(file.as_ref(), "write", error))
}
