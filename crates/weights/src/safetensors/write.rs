//! Writing numbers to a safetensors file, for whoever wants to look at logits with other tools.
//!
//! A thin layer over the `safetensors` crate: two element types, the whole file built in memory. It is not the way to
//! write a model.

use std::borrow::Cow;
use std::io::Write;

use safetensors::tensor::{Dtype, View};

use crate::WeightsError;

/// The elements of a tensor to write, row-major.
#[derive(Clone, Copy, Debug)]
pub enum Elements<'a> {
    /// 32-bit floats.
    F32(&'a [f32]),
    /// 32-bit integers.
    I32(&'a [i32]),
}

struct Entry<'a> {
    shape: &'a [usize],
    elements: Elements<'a>,
}

impl View for Entry<'_> {
    fn dtype(&self) -> Dtype {
        match self.elements {
            Elements::F32(_) => Dtype::F32,
            Elements::I32(_) => Dtype::I32,
        }
    }

    fn shape(&self) -> &[usize] {
        self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        let bytes: Vec<u8> = match self.elements {
            Elements::F32(values) => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
            Elements::I32(values) => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        };
        Cow::Owned(bytes)
    }

    fn data_len(&self) -> usize {
        4 * self.len()
    }
}

impl Entry<'_> {
    fn len(&self) -> usize {
        match self.elements {
            Elements::F32(values) => values.len(),
            Elements::I32(values) => values.len(),
        }
    }
}

/// Writes tensors, each a name, a shape (outermost first) and its elements, as a file. `file` is its name in messages.
///
/// # Errors
/// [`WeightsError::Io`] if `out` cannot be written.
///
/// # Panics
/// If a shape does not fit its elements, or a name comes twice.
pub fn write(out: &mut impl Write, file: &str, tensors: &[(&str, &[usize], Elements<'_>)]) -> Result<(), WeightsError> {
    let mut entries: Vec<(&str, Entry<'_>)> = Vec::with_capacity(tensors.len());
    for &(name, shape, elements) in tensors {
        let entry = Entry { shape, elements };
        let (count, len) = (shape.iter().product::<usize>(), entry.len());
        assert!(count == len, "tensor `{name}`: shape {shape:?} asks for {count} elements, there are {len}");
        assert!(entries.iter().all(|(other, _)| *other != name), "tensor `{name}` comes twice");
        entries.push((name, entry));
    }
    let bytes = safetensors::serialize(entries, None).map_err(std::io::Error::other);
    let written = bytes.and_then(|bytes| out.write_all(&bytes));
    written.map_err(|error| WeightsError::io(file.as_ref(), "write", error))
}
