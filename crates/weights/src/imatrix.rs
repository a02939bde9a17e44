//! Importance matrices: how much an error in each column of each matrix counts, as llama.cpp measures it.
//!
//! A network runs over texts, and for every matrix the squares of the inputs of each column are summed. Two forms are
//! read: GGUF with the tensors `NAME.in_sum2` and `NAME.counts`, and the older one of plain counts and floats. Either
//! becomes the means of these squares, one number per column; a matrix of several experts has the columns of each
//! expert in turn. For an expert that no token chose, all columns count equally.
//!
//! Sums of the inputs themselves (`NAME.in_sum`) are ignored, and names and lengths are not compared with a model.

use std::collections::BTreeMap;
use std::path::Path;

use crate::gguf::{self, Gguf, Reader};
use crate::{Bytes, Dtype, Tensor, WeightsError};

/// Minimum bytes of an entry of the older form: three numbers and one float.
const ENTRY_BYTES_MIN: u64 = 4 * 4;

/// The contents of a file of importances.
#[derive(Clone, Debug)]
pub struct ImportanceMatrix {
    /// The importances of each tensor, by its name in GGUF files.
    pub entries: BTreeMap<String, Importances>,
    /// The text that the network ran over, as the file names it.
    pub dataset: Option<String>,
    /// The number of chunks of that text that the network ran over.
    pub chunks: Option<u32>,
}

/// The importances of one tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Importances {
    /// One per column of each matrix; finite and at least 0.
    pub values: Vec<f32>,
    /// The number of matrices, if the file says it.
    pub matrices: Option<usize>,
}

/// Reads a file.
///
/// # Errors
/// [`WeightsError::Io`] if it cannot be mapped, else as [`parse`].
pub fn open(path: impl AsRef<Path>) -> Result<ImportanceMatrix, WeightsError> {
    let path = path.as_ref();
    parse(&path.display().to_string(), Bytes::map(path)?)
}

/// Reads the bytes of a file; `name` stands for it in error messages.
///
/// # Errors
/// [`WeightsError::Format`], [`WeightsError::Tensor`] or [`WeightsError::Key`] if it is malformed, holds no
/// importances, or has numbers that cannot be importances.
pub fn parse(name: &str, bytes: Bytes) -> Result<ImportanceMatrix, WeightsError> {
    match bytes.starts_with(b"GGUF") {
        true => from_gguf(name, &gguf::parse(name, bytes)?),
        false => from_counts(name, &bytes),
    }
}

fn from_gguf(file: &str, gguf: &Gguf) -> Result<ImportanceMatrix, WeightsError> {
    let mut entries = BTreeMap::new();
    for tensor in gguf.weights.iter() {
        if let Some(name) = tensor.name.strip_suffix(".counts") {
            // Counts without sums are refused here, sums without counts below.
            gguf.weights.find(&format!("{name}.in_sum2"))?;
        }
        let Some(name) = tensor.name.strip_suffix(".in_sum2") else { continue };
        let counts = floats(file, gguf.weights.find(&format!("{name}.counts"))?)?;
        let mut values = floats(file, tensor)?;
        if counts.is_empty() || values.is_empty() || !values.len().is_multiple_of(counts.len()) {
            let (expected, found) = (format!("a multiple of {}, the number of counts", counts.len()), values.len());
            return Err(WeightsError::tensor(file, &tensor.name, "sums", expected, found));
        }
        let columns = values.len() / counts.len();
        for (sums, count) in values.chunks_exact_mut(columns).zip(&counts) {
            let count = count.round();
            sums.iter_mut().for_each(|sum| *sum = if count > 0.0 { *sum / count } else { 1.0 });
        }
        entries.insert(name.to_string(), Importances { values, matrices: Some(counts.len()) });
    }
    if entries.is_empty() {
        let found = format!("{} others", gguf.weights.len());
        return Err(WeightsError::format(file, "tensors", "those of an importance matrix (NAME.in_sum2)", found));
    }
    let dataset = gguf.metadata.optional_strings("imatrix.datasets")?.and_then(|names| names.first().cloned());
    let chunks = gguf.metadata.optional_u32("imatrix.chunk_count")?;
    Ok(ImportanceMatrix { entries, dataset, chunks })
}

/// The elements of a tensor of f32, which must be finite and at least 0.
fn floats(file: &str, tensor: &Tensor) -> Result<Vec<f32>, WeightsError> {
    if tensor.dtype != Dtype::F32 {
        return Err(WeightsError::tensor(file, &tensor.name, "type", "F32", tensor.dtype));
    }
    sums(file, &tensor.name, &tensor.bytes)
}

fn sums(file: &str, tensor: &str, bytes: &[u8]) -> Result<Vec<f32>, WeightsError> {
    let (chunks, _) = bytes.as_chunks::<4>();
    let values: Vec<f32> = chunks.iter().map(|&chunk| f32::from_le_bytes(chunk)).collect();
    match values.iter().position(|value| !value.is_finite() || *value < 0.0) {
        None => Ok(values),
        Some(at) => {
            let found = format!("{} at index {at}", values[at]);
            Err(WeightsError::tensor(file, tensor, "sums", "finite numbers of at least 0", found))
        }
    }
}

/// Reads the older form: the number of entries; for each a name, a number of calls and the sums of all columns; then,
/// if they are there, the number of chunks and the name of the text.
fn from_counts(file: &str, bytes: &[u8]) -> Result<ImportanceMatrix, WeightsError> {
    let mut reader = Reader::new(file, bytes);
    let count_max = bytes.len() as u64 / ENTRY_BYTES_MIN;
    let count = number(&mut reader, "number of entries of an importance matrix")?;
    if count == 0 || u64::from(count) > count_max {
        let field = "number of entries of an importance matrix, before byte 4";
        return Err(WeightsError::format(file, field, format!("1 to {count_max}, for the bytes there are"), count));
    }
    let mut entries = BTreeMap::new();
    for index in 0..count {
        let len = number(&mut reader, &format!("length of the name of entry {index}"))?;
        let name = text(&mut reader, len, &format!("name of entry {index}"))?;
        let calls = number(&mut reader, &format!("calls of {name}"))?;
        let len = number(&mut reader, &format!("number of sums of {name}"))?;
        if len == 0 {
            return Err(WeightsError::tensor(file, &name, "sums", "one per column", "none"));
        }
        let bytes = reader.take(u64::from(len) * 4, &format_args!("sums of {name}"))?;
        let mut values = sums(file, &name, bytes)?;
        values.iter_mut().for_each(|sum| *sum /= calls.max(1) as f32);
        if entries.insert(name.clone(), Importances { values, matrices: None }).is_some() {
            return Err(WeightsError::tensor(file, &name, "name", "each name once", "it twice"));
        }
    }
    let (mut dataset, mut chunks) = (None, None);
    if reader.position() < bytes.len() {
        chunks = Some(number(&mut reader, "number of chunks")?);
    }
    if reader.position() < bytes.len() {
        let len = number(&mut reader, "length of the name of the dataset")?;
        dataset = Some(text(&mut reader, len, "name of the dataset")?).filter(|name| !name.is_empty());
    }
    Ok(ImportanceMatrix { entries, dataset, chunks })
}

/// Reads a signed 32-bit number, which must not be negative.
fn number(reader: &mut Reader<'_>, what: &str) -> Result<u32, WeightsError> {
    let number = reader.u32(&what)? as i32;
    u32::try_from(number).map_err(|_| reader.error(&what, "0 or more", number))
}

fn text(reader: &mut Reader<'_>, len: u32, what: &str) -> Result<String, WeightsError> {
    let bytes = reader.take(u64::from(len), &what)?;
    // Old writers end a name with a zero byte.
    let bytes = bytes.strip_suffix(b"\0").unwrap_or(bytes);
    str::from_utf8(bytes).map(str::to_string).map_err(|error| reader.error(&what, "UTF-8", error))
}
