//! Importance matrices: how much an error in each column of each matrix counts, as llama.cpp measures it.
//!
//! A network runs over texts, and for every matrix the squares of what its columns are multiplied with are added up.
//! Two forms are read: GGUF with the tensors `NAME.in_sum2` and `NAME.counts`, and the older one of plain counts and
//! floats. Either becomes the mean of these squares, a column a number, and a matrix of several experts has as many
//! times its columns. An expert that no text chose counts the same in all columns.
//!
//! Left out: the sums that are not of squares (`NAME.in_sum`), and whether names and lengths are those of a model.

use std::collections::BTreeMap;
use std::path::Path;

use crate::gguf::{self, Gguf, Reader};
use crate::{Bytes, Dtype, Tensor, WeightsError};

/// Bytes of an entry of the older form, at least: three numbers and one float.
const ENTRY_MIN: u64 = 4 * 4;

/// What is in a file of importances.
#[derive(Clone, Debug)]
pub struct ImportanceMatrix {
    /// By the names of tensors in GGUF files.
    pub entries: BTreeMap<String, Importances>,
    /// The text that was run over, as the file names it.
    pub dataset: Option<String>,
    /// How many pieces of it were.
    pub chunks: Option<u32>,
}

/// The importances of one tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Importances {
    /// One a column, for each of its matrices; finite and at least 0.
    pub values: Vec<f32>,
    /// How many matrices they are of, if the file says so.
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
/// importances, or numbers that are none.
pub fn parse(name: &str, bytes: Bytes) -> Result<ImportanceMatrix, WeightsError> {
    match bytes.starts_with(b"GGUF") {
        true => of_gguf(name, &gguf::parse(name, bytes)?),
        false => of_counts(name, &bytes),
    }
}

fn of_gguf(file: &str, gguf: &Gguf) -> Result<ImportanceMatrix, WeightsError> {
    let mut entries = BTreeMap::new();
    for tensor in gguf.weights.iter() {
        if let Some(name) = tensor.name.strip_suffix(".counts") {
            // Sums without counts are found below, and these are counts without sums.
            gguf.weights.find(&format!("{name}.in_sum2"))?;
        }
        let Some(name) = tensor.name.strip_suffix(".in_sum2") else { continue };
        let counts = floats(file, gguf.weights.find(&format!("{name}.counts"))?)?;
        let mut values = floats(file, tensor)?;
        if counts.is_empty() || values.is_empty() || !values.len().is_multiple_of(counts.len()) {
            let (expected, found) = (format!("as many for each of {} counts", counts.len()), values.len());
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
            let found = format!("{} as number {at}", values[at]);
            Err(WeightsError::tensor(file, tensor, "sums", "finite numbers of at least 0", found))
        }
    }
}

/// The older form: a number of entries, each a name, a number of calls, and sums of all columns; then perhaps how many
/// pieces of which text.
fn of_counts(file: &str, bytes: &[u8]) -> Result<ImportanceMatrix, WeightsError> {
    let mut reader = Reader::new(file, bytes);
    let most = bytes.len() as u64 / ENTRY_MIN;
    let count = number(&mut reader, "number of entries of an importance matrix")?;
    if count == 0 || u64::from(count) > most {
        let field = "number of entries of an importance matrix, before byte 4";
        return Err(WeightsError::format(file, field, format!("1 to {most}, for the bytes there are"), count));
    }
    let mut entries = BTreeMap::new();
    for index in 0..count {
        let len = number(&mut reader, &format!("length of the name of entry {index}"))?;
        let name = text(&mut reader, len, &format!("name of entry {index}"))?;
        let calls = number(&mut reader, &format!("calls of {name}"))?;
        let len = number(&mut reader, &format!("number of sums of {name}"))?;
        if len == 0 {
            return Err(WeightsError::tensor(file, &name, "sums", "one a column", "none"));
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

/// A number of 32 bits with a sign, which must not be negative.
fn number(reader: &mut Reader<'_>, what: &str) -> Result<u32, WeightsError> {
    let number = reader.u32(&what)? as i32;
    u32::try_from(number).map_err(|_| reader.error(&what, "0 or more", number))
}

fn text(reader: &mut Reader<'_>, len: u32, what: &str) -> Result<String, WeightsError> {
    let bytes = reader.take(u64::from(len), &what)?;
    // Old writers end a name with a zero.
    let bytes = bytes.strip_suffix(b"\0").unwrap_or(bytes);
    str::from_utf8(bytes).map(str::to_string).map_err(|error| reader.error(&what, "UTF-8", error))
}
