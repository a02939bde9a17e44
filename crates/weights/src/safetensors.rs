//! The safetensors format: an 8-byte length, a JSON header of that length, and the tensors one after another.
//!
//! The header is read here rather than by the `safetensors` crate, for three reasons: an error can name the tensor, a
//! name that occurs twice is refused instead of dropped, and an unknown type is named. Valid files are the same as for
//! that crate (a test compares the two): offsets leave no hole, do not overlap and end with the file. The format has no
//! shards; Hugging Face's index file over several files is read by [`open_dir`], which ignores the `__metadata__`
//! strings of the files, since no model needs them.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::path::Path;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};

use crate::tensor::size_in_bytes;
use crate::{Bytes, Dtype, Tensor, Weights, WeightsError};

mod index;
mod write;

pub use index::open_dir;
pub use write::{Elements, write, write_with};

/// Maximum bytes of a header, as in the `safetensors` crate.
const HEADER_BYTES_MAX: usize = 100_000_000;

/// Maps and reads one file.
///
/// # Errors
/// [`WeightsError::Io`] if it cannot be mapped, else as [`parse`].
pub fn open(path: impl AsRef<Path>) -> Result<Weights, WeightsError> {
    let path = path.as_ref();
    parse(&path.display().to_string(), Bytes::map(path)?)
}

/// Reads the bytes of one file; `name` stands for the file in error messages.
///
/// # Errors
/// [`WeightsError::Format`] or [`WeightsError::Tensor`] if the file is malformed.
pub fn parse(name: &str, bytes: Bytes) -> Result<Weights, WeightsError> {
    let (header, body) = split(name, &bytes)?;
    // The format requires a `{` first; JSON alone would allow blanks before it.
    if header.first() != Some(&b'{') {
        let found = header.first().map_or("nothing".to_string(), |byte| format!("byte {byte:#04x}"));
        return Err(WeightsError::format(name, "header", "`{`", found));
    }
    let Header { mut infos, metadata } = serde_json::from_slice(&header)
        .map_err(|error| WeightsError::format(name, "header", "a JSON object of tensors", error))?;
    // Duplicate names are reported before any other error of either tensor.
    let mut names = HashSet::with_capacity(infos.len());
    if let Some((duplicate, _)) = infos.iter().find(|(tensor, _)| !names.insert(tensor.as_str())) {
        return Err(WeightsError::tensor(name, duplicate, "name", "each name once", "it twice"));
    }
    infos.sort_by_key(|(_, info)| info.data_offsets);

    let mut tensors = Vec::with_capacity(infos.len());
    let mut end = 0;
    for (tensor, info) in infos {
        let dtype = Dtype::from_safetensors(&info.dtype).ok_or_else(|| {
            WeightsError::tensor(
                name,
                &tensor,
                "dtype",
                "a type of the safetensors format",
                format!("`{}`", info.dtype),
            )
        })?;
        // Each tensor begins where the one before it ended, so none overlap and every byte belongs to one.
        let size = size_in_bytes(name, &tensor, dtype, &info.shape)?;
        let (from, to) = info.data_offsets;
        if from != end || to.checked_sub(from) != Some(size) {
            let expected = format!("{size} bytes from {end} for {dtype} {:?}", info.shape);
            return Err(WeightsError::tensor(name, &tensor, "data_offsets", expected, format!("{from}..{to}")));
        }
        let view = body.get(from..to).ok_or_else(|| {
            let expected = format!("offsets up to {} at most, where the file ends", body.len());
            WeightsError::tensor(name, &tensor, "data_offsets", expected, format!("{from}..{to}"))
        })?;
        end = to;
        tensors.push(Tensor { name: tensor, dtype, shape: info.shape, bytes: view });
    }
    if end != body.len() {
        let expected = format!("{end} bytes after the header, where its tensors end");
        return Err(WeightsError::format(name, "length", expected, format!("{} bytes", body.len())));
    }
    Ok(Weights::new(name, tensors)?.with_metadata(metadata))
}

/// Splits a file into the header and the rest.
fn split(name: &str, bytes: &Bytes) -> Result<(Bytes, Bytes), WeightsError> {
    let Some(prefix) = bytes.first_chunk::<8>() else {
        return Err(WeightsError::format(name, "header length", "8 bytes", format!("{} bytes", bytes.len())));
    };
    let declared = u64::from_le_bytes(*prefix);
    let len = usize::try_from(declared)
        .ok()
        .filter(|&len| len <= HEADER_BYTES_MAX)
        .ok_or_else(|| WeightsError::format(name, "header length", format!("at most {HEADER_BYTES_MAX}"), declared))?;
    match (bytes.get(8..8 + len), bytes.get(8 + len..bytes.len())) {
        (Some(header), Some(body)) => Ok((header, body)),
        _ => {
            let found = format!("{} bytes after the length", bytes.len() - 8);
            Err(WeightsError::format(name, "header", format!("{len} bytes"), found))
        }
    }
}

/// The entry of one tensor in the header. Unknown fields are ignored but parsed: if they were skipped, the JSON library
/// would accept invalid JSON in them.
#[derive(Deserialize)]
struct Info {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: (usize, usize),
    #[serde(flatten)]
    _unknown: HashMap<String, IgnoredAny>,
}

/// All tensors of a header in the order of the file, with duplicate names kept.
struct Header {
    infos: Vec<(String, Info)>,
    metadata: HashMap<String, String>,
}

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Header, D::Error> {
        deserializer.deserialize_map(HeaderVisitor)
    }
}

struct HeaderVisitor;

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = Header;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
        let mut infos = Vec::new();
        let mut metadata = None;
        while let Some(key) = map.next_key::<String>()? {
            if key == "__metadata__" {
                if metadata.is_some() {
                    return Err(A::Error::custom("`__metadata__` comes twice"));
                }
                metadata = Some(map.next_value::<Option<HashMap<String, String>>>()?.unwrap_or_default());
            } else {
                let info = map.next_value().map_err(|error| A::Error::custom(format!("tensor `{key}`: {error}")))?;
                infos.push((key, info));
            }
        }
        Ok(Header { infos, metadata: metadata.unwrap_or_default() })
    }
}
