//! The GGUF format (versions 2 and 3, little-endian): metadata, tensor infos, and after them the tensors, aligned.
//!
//! `Reader` reads from front to back. It knows how many bytes are left, and refuses any count or length that they
//! cannot hold, before a byte is allocated for it. Dimensions are stored innermost first; they are reversed here, so
//! that shapes are as in safetensors. A file without tensors has only a vocabulary, and is accepted. Gaps between
//! tensors are allowed, overlaps are not. Each file of a split model ([`open`]) is read in this way.

use std::path::Path;

use crate::tensor::size_in_bytes;
use crate::{Bytes, Dtype, Tensor, Weights, WeightsError};

mod metadata;
mod parts;
mod reader;
mod value;
mod write;

pub use metadata::Metadata;
pub use value::{Array, Value};
pub use write::{TensorInfo, Writer};

pub(crate) use reader::Reader;

/// Alignment of tensors, if the file does not give one.
const DEFAULT_ALIGNMENT: u32 = 32;
/// Maximum alignment; a huge page has 2 MiB.
const ALIGNMENT_MAX: u32 = 1 << 21;
/// Minimum bytes of a metadata entry: an empty key, a type, one byte.
const ENTRY_BYTES_MIN: u64 = 8 + 4 + 1;
/// Minimum bytes of a tensor info: an empty name, the number of dimensions, one of them, a type, an offset.
const INFO_BYTES_MIN: u64 = 8 + 4 + 8 + 4 + 8;
/// Maximum dimensions of a tensor, as in ggml.
const DIMENSIONS_MAX: u32 = 4;

/// The contents of a GGUF file.
#[derive(Clone, Debug)]
pub struct Gguf {
    /// The version of the format: 2 or 3.
    pub version: u32,
    /// The keys and values before the tensors: hyperparameters and vocabulary.
    pub metadata: Metadata,
    /// The tensors.
    pub weights: Weights,
}

/// Maps and reads a file and, if it is part of a split model (`name-00001-of-00003.gguf`), all other parts: the
/// metadata is then that of the first, and the tensors are those of all parts.
///
/// # Errors
/// [`WeightsError::Io`] if it cannot be mapped, [`WeightsError::Format`] if a part is missing or does not match its
/// name, [`WeightsError::Tensor`] if two parts have a tensor of one name, else as [`parse`].
pub fn open(path: impl AsRef<Path>) -> Result<Gguf, WeightsError> {
    let path = path.as_ref();
    parts::with_other_parts(path, parse(&path.display().to_string(), Bytes::map(path)?)?)
}

/// Reads the bytes of one file, which may be part of a split model; `name` stands for the file in error messages.
///
/// # Errors
/// [`WeightsError::Format`], [`WeightsError::Tensor`] or [`WeightsError::Key`] if the file is malformed.
pub fn parse(name: &str, bytes: Bytes) -> Result<Gguf, WeightsError> {
    let mut reader = Reader::new(name, &bytes);
    let magic = reader.take(4, &"magic")?;
    if magic != b"GGUF" {
        return Err(WeightsError::format(name, "magic", "GGUF", magic.escape_ascii()));
    }
    let version = read_version(name, &mut reader)?;
    let tensor_count = reader.count(INFO_BYTES_MIN, &"number of tensors")?;
    let entry_count = reader.count(ENTRY_BYTES_MIN, &"number of metadata entries")?;

    let mut metadata = Metadata::new(name, []);
    for index in 0..entry_count {
        let key = reader.string(&format_args!("key {index}"))?;
        let value = value::read(&mut reader, &key)?;
        if let Some((key, _)) = metadata.insert(key, value) {
            return Err(WeightsError::format(name, format!("key `{key}`"), "each key once", "it twice"));
        }
    }
    let mut infos = Vec::with_capacity(tensor_count);
    for index in 0..tensor_count {
        infos.push(read_info(name, &mut reader, index)?);
    }
    let alignment = alignment(&metadata)?;
    let data = data_section(name, &bytes, reader.position(), alignment, infos.is_empty())?;
    let weights = Weights::new(name, tensor_views(name, &data, alignment, infos)?)?;
    Ok(Gguf { version, metadata, weights })
}

fn read_version(name: &str, reader: &mut Reader<'_>) -> Result<u32, WeightsError> {
    let version = reader.u32(&"version")?;
    let found = match (version, version.swap_bytes()) {
        (2 | 3, _) => return Ok(version),
        (_, swapped @ 1..=3) => format!("version {swapped} in big-endian byte order"),
        _ => version.to_string(),
    };
    Err(WeightsError::format(name, "version", "2 or 3, little-endian", found))
}

fn alignment(metadata: &Metadata) -> Result<u32, WeightsError> {
    const KEY: &str = "general.alignment";
    let alignment = metadata.optional_u32(KEY)?.unwrap_or(DEFAULT_ALIGNMENT);
    if !alignment.is_power_of_two() || alignment > ALIGNMENT_MAX {
        let expected = format!("a power of two up to {ALIGNMENT_MAX}");
        return Err(WeightsError::format(metadata.source(), format!("key `{KEY}`"), expected, alignment));
    }
    Ok(alignment)
}

/// The entry of one tensor in the file.
struct Info {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    offset: u64,
}

fn read_info(file: &str, reader: &mut Reader<'_>, index: usize) -> Result<Info, WeightsError> {
    let name = reader.string(&format_args!("name of tensor {index}"))?;
    let what = format!("info of tensor `{name}`");
    let dimensions = reader.u32(&what)?;
    if !(1..=DIMENSIONS_MAX).contains(&dimensions) {
        let expected = format!("1 to {DIMENSIONS_MAX}");
        return Err(WeightsError::tensor(file, &name, "number of dimensions", expected, dimensions));
    }
    let mut shape = Vec::with_capacity(DIMENSIONS_MAX as usize);
    for _ in 0..dimensions {
        let dimension = reader.u64(&what)?;
        shape.push(usize::try_from(dimension).map_err(|_| {
            WeightsError::tensor(file, &name, "shape", format!("dimensions below 2^{}", usize::BITS), dimension)
        })?);
    }
    shape.reverse();
    let number = reader.u32(&what)?;
    let dtype = match Dtype::from_ggml(number) {
        Some(Ok(dtype)) => dtype,
        Some(Err(removed)) => {
            let found = format!("{number} ({removed}), whose size is not known");
            return Err(WeightsError::tensor(file, &name, "type", "a type of ggml in use", found));
        }
        None => return Err(WeightsError::tensor(file, &name, "type", "the number of a ggml type", number)),
    };
    let offset = reader.u64(&what)?;
    Ok(Info { name, dtype, shape, offset })
}

/// The data section, from the first aligned position after the infos to the end. Tensor offsets are relative to its
/// start.
fn data_section(
    name: &str,
    bytes: &Bytes,
    infos_end: usize,
    alignment: u32,
    vocabulary_only: bool,
) -> Result<Bytes, WeightsError> {
    // A file without tensors may end before the aligned position. No overflow: slices are shorter than isize::MAX.
    let start = infos_end.next_multiple_of(alignment as usize);
    let start = if vocabulary_only { start.min(bytes.len()) } else { start };
    bytes.get(start..bytes.len()).ok_or_else(|| {
        let found = format!("a file of {} bytes", bytes.len());
        WeightsError::format(name, "tensors", format!("a tensor at byte {start}"), found)
    })
}

/// Turns infos into views, after checking that each lies inside the data and none overlaps another.
fn tensor_views(file: &str, data: &Bytes, alignment: u32, mut infos: Vec<Info>) -> Result<Vec<Tensor>, WeightsError> {
    infos.sort_by_key(|info| info.offset);
    let mut tensors = Vec::with_capacity(infos.len());
    let mut end = 0;
    for Info { name, dtype, shape, offset } in infos {
        let size = size_in_bytes(file, &name, dtype, &shape)?;
        if !offset.is_multiple_of(u64::from(alignment)) {
            return Err(WeightsError::tensor(file, &name, "offset", format!("a multiple of {alignment}"), offset));
        }
        let range = usize::try_from(offset).ok().and_then(|from| Some(from..from.checked_add(size)?));
        let Some((range, bytes)) = range.and_then(|range| Some((range.clone(), data.get(range)?))) else {
            let expected = format!("{size} bytes inside the {} bytes of data", data.len());
            return Err(WeightsError::tensor(file, &name, "offset", expected, offset));
        };
        if size > 0 {
            if range.start < end {
                let expected = format!("{end} or more, where the tensor before it ends");
                return Err(WeightsError::tensor(file, &name, "offset", expected, offset));
            }
            end = range.end;
        }
        tensors.push(Tensor { name, dtype, shape, bytes });
    }
    Ok(tensors)
}
