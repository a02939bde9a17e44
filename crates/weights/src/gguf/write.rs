//! Writes a GGUF file (version 3): a header that describes all tensors, then their data.
//!
//! The header has the offset of every tensor, so all names, types and shapes must be known first. The data follows in
//! pieces of any length, in the order of the header, and only the current piece is in memory. Giving a file its name
//! only when it is complete is up to the caller. Split files are not written, and no key but `general.alignment` has a
//! meaning here.

use std::collections::HashSet;
use std::io::Write;

use super::{Array, DIMENSIONS_MAX, Metadata, Value, alignment};
use crate::tensor::size_in_bytes;
use crate::{Dtype, WeightsError};

/// The entry of a header for a tensor that is to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Its name.
    pub name: String,
    /// The type of its elements.
    pub dtype: Dtype,
    /// Its dimensions, outermost first.
    pub shape: Vec<usize>,
}

/// A GGUF file that is being written, into `W`.
#[derive(Debug)]
pub struct Writer<W> {
    out: W,
    /// The name of the file, for messages.
    file: String,
    alignment: usize,
    /// Bytes of each tensor of the header.
    sizes: Vec<usize>,
    /// The index of the tensor that is being written.
    current: usize,
    /// Number of its bytes that are written.
    written: usize,
}

impl<W: Write> Writer<W> {
    /// Begins a file: metadata and the tensors' infos are written at once. Tensors are aligned to `general.alignment`,
    /// or to 32 bytes if the metadata does not have that key. `file` is its name in messages.
    ///
    /// # Errors
    /// [`WeightsError::Tensor`] if a name occurs twice, or a tensor has a type or a shape that GGUF cannot express;
    /// [`WeightsError::Format`] if the alignment is invalid; [`WeightsError::Io`] if `out` cannot be written.
    pub fn new(out: W, file: &str, metadata: &Metadata, tensors: &[TensorInfo]) -> Result<Self, WeightsError> {
        let alignment = alignment(metadata)? as usize;
        let (header, sizes) = header(file, metadata, tensors, alignment)?;
        let mut writer = Writer { out, file: file.to_owned(), alignment, sizes, current: 0, written: 0 };
        // A file without tensors may end with its header.
        let len = if tensors.is_empty() { header.len() } else { header.len().next_multiple_of(alignment) };
        writer.put(&header)?;
        writer.pad(len - header.len())?;
        writer.skip_empty()?;
        Ok(writer)
    }

    /// Appends bytes to the current tensor. When it is complete, the next tensor becomes the current one.
    ///
    /// # Errors
    /// [`WeightsError::Io`] if the file cannot be written.
    ///
    /// # Panics
    /// If the bytes go beyond the tensor, or no tensor is left.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), WeightsError> {
        if bytes.is_empty() {
            return Ok(());
        }
        assert!(self.current < self.sizes.len(), "{} bytes after the last tensor", bytes.len());
        let size = self.sizes[self.current];
        self.written += bytes.len();
        assert!(self.written <= size, "{} bytes for tensor {} of {size}", self.written, self.current);
        self.put(bytes)?;
        if self.written == size {
            self.end_tensor()?;
            self.skip_empty()?;
        }
        Ok(())
    }

    /// Ends the file and returns the output.
    ///
    /// # Errors
    /// [`WeightsError::Io`] if it cannot be written.
    ///
    /// # Panics
    /// If a tensor of the header is not complete.
    pub fn finish(mut self) -> Result<W, WeightsError> {
        let (complete, declared) = (self.current, self.sizes.len());
        assert!(complete == declared, "{complete} of {declared} tensors are complete");
        self.out.flush().map_err(|error| WeightsError::io(self.file.as_ref(), "write", error))?;
        Ok(self.out)
    }

    fn end_tensor(&mut self) -> Result<(), WeightsError> {
        (self.current, self.written) = (self.current + 1, 0);
        let size = self.sizes[self.current - 1];
        self.pad(size.next_multiple_of(self.alignment) - size)
    }

    /// Ends tensors without elements, which no bytes could complete.
    fn skip_empty(&mut self) -> Result<(), WeightsError> {
        while self.sizes.get(self.current) == Some(&0) {
            self.end_tensor()?;
        }
        Ok(())
    }

    fn pad(&mut self, len: usize) -> Result<(), WeightsError> {
        self.put(&vec![0; len])
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), WeightsError> {
        self.out.write_all(bytes).map_err(|error| WeightsError::io(self.file.as_ref(), "write", error))
    }
}

/// Returns everything before the data, and the size of each tensor in bytes.
fn header(
    file: &str,
    metadata: &Metadata,
    tensors: &[TensorInfo],
    alignment: usize,
) -> Result<(Vec<u8>, Vec<usize>), WeightsError> {
    let mut out = b"GGUF".to_vec();
    out.extend(3u32.to_le_bytes());
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend((metadata.len() as u64).to_le_bytes());
    for (key, value) in metadata.iter() {
        put_string(&mut out, key);
        put_value(&mut out, value);
    }
    let (mut names, mut sizes, mut offset) = (HashSet::new(), Vec::with_capacity(tensors.len()), 0u64);
    for TensorInfo { name, dtype, shape } in tensors {
        let refuse = |field, expected: &str, found: String| WeightsError::tensor(file, name, field, expected, found);
        if !names.insert(name) {
            return Err(refuse("name", "each name once", "it twice".to_string()));
        }
        let number = dtype.ggml_number().ok_or_else(|| refuse("type", "a type of ggml", dtype.to_string()))?;
        if !(1..=DIMENSIONS_MAX as usize).contains(&shape.len()) {
            return Err(refuse("number of dimensions", "1 to 4", shape.len().to_string()));
        }
        let size = size_in_bytes(file, name, *dtype, shape)?;
        put_string(&mut out, name);
        out.extend((shape.len() as u32).to_le_bytes());
        out.extend(shape.iter().rev().flat_map(|&dimension| (dimension as u64).to_le_bytes()));
        out.extend(number.to_le_bytes());
        out.extend(offset.to_le_bytes());
        sizes.push(size);
        offset += (size as u64).next_multiple_of(alignment as u64);
    }
    Ok((out, sizes))
}

fn put_string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

/// Writes the number of a value's type, then its bytes.
fn put_value(out: &mut Vec<u8>, value: &Value) {
    // A single value is an array of one element without its header.
    let one = match value {
        Value::U8(value) => Array::U8(vec![*value]),
        Value::I8(value) => Array::I8(vec![*value]),
        Value::U16(value) => Array::U16(vec![*value]),
        Value::I16(value) => Array::I16(vec![*value]),
        Value::U32(value) => Array::U32(vec![*value]),
        Value::I32(value) => Array::I32(vec![*value]),
        Value::F32(value) => Array::F32(vec![*value]),
        Value::Bool(value) => Array::Bool(vec![*value]),
        Value::String(value) => Array::String(vec![value.clone()]),
        Value::U64(value) => Array::U64(vec![*value]),
        Value::I64(value) => Array::I64(vec![*value]),
        Value::F64(value) => Array::F64(vec![*value]),
        Value::Array(array) => {
            out.extend(ARRAY.to_le_bytes());
            return put_array(out, array);
        }
    };
    out.extend(number(&one).to_le_bytes());
    put_elements(out, &one);
}

/// The type number of an array.
const ARRAY: u32 = 9;

fn put_array(out: &mut Vec<u8>, array: &Array) {
    out.extend(number(array).to_le_bytes());
    out.extend((array.len() as u64).to_le_bytes());
    put_elements(out, array);
}

/// The type number of an array's elements.
fn number(array: &Array) -> u32 {
    match array {
        Array::U8(_) => 0,
        Array::I8(_) => 1,
        Array::U16(_) => 2,
        Array::I16(_) => 3,
        Array::U32(_) => 4,
        Array::I32(_) => 5,
        Array::F32(_) => 6,
        Array::Bool(_) => 7,
        Array::String(_) => 8,
        Array::Array(_) => ARRAY,
        Array::U64(_) => 10,
        Array::I64(_) => 11,
        Array::F64(_) => 12,
    }
}

fn put_elements(out: &mut Vec<u8>, array: &Array) {
    macro_rules! numbers {
        ($values:expr) => {
            $values.iter().for_each(|value| out.extend(value.to_le_bytes()))
        };
    }
    match array {
        Array::U8(values) => numbers!(values),
        Array::I8(values) => numbers!(values),
        Array::U16(values) => numbers!(values),
        Array::I16(values) => numbers!(values),
        Array::U32(values) => numbers!(values),
        Array::I32(values) => numbers!(values),
        Array::F32(values) => numbers!(values),
        Array::Bool(values) => out.extend(values.iter().map(|&value| u8::from(value))),
        Array::String(values) => values.iter().for_each(|value| put_string(out, value)),
        Array::Array(values) => values.iter().for_each(|value| put_array(out, value)),
        Array::U64(values) => numbers!(values),
        Array::I64(values) => numbers!(values),
        Array::F64(values) => numbers!(values),
    }
}
