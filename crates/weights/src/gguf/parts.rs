//! Models split into several files: `name-00001-of-00003.gguf` and so on.
//!
//! Each part is a complete GGUF file with tensors of its own. It says which one it is (`split.no`, from 0), how many
//! there are (`split.count`) and how many tensors all of them have (`split.tensors.count`); the first also holds the
//! keys of the model. Whichever part is opened, all parts are, and every number is compared with the others and with
//! the files' names, so that no part of another model is accepted.

use std::path::Path;

use super::{Gguf, parse};
use crate::{Bytes, Tensor, Weights, WeightsError};

const NUMBER_KEY: &str = "split.no";
const COUNT_KEY: &str = "split.count";
const TENSOR_COUNT_KEY: &str = "split.tensors.count";

/// The file name of part `number`, counted from 0, as llama.cpp writes it.
fn file_name(prefix: &str, number: usize, count: usize) -> String {
    format!("{prefix}-{:05}-of-{count:05}.gguf", number + 1)
}

/// Opens all parts of the model that `part` belongs to: the metadata is that of the first, the tensors are those of
/// all. A file that is not split is returned as it is.
///
/// # Errors
/// [`WeightsError::Format`] if the file is not named as part of a model, a part is missing or has another number than
/// its name; [`WeightsError::Tensor`] if two parts have a tensor of one name; any error that [`parse`] finds in a part.
pub(super) fn with_other_parts(path: &Path, part: Gguf) -> Result<Gguf, WeightsError> {
    let count = part.metadata.optional_usize(COUNT_KEY)?.unwrap_or(1);
    if count <= 1 {
        return Ok(part);
    }
    let (file, number) = (path.display().to_string(), part.metadata.usize(NUMBER_KEY)?);
    if number >= count {
        let expected = format!("below {COUNT_KEY} = {count}");
        return Err(WeightsError::format(&file, format!("key `{NUMBER_KEY}`"), expected, number));
    }
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let suffix = file_name("", number, count);
    let Some(prefix) = name.strip_suffix(&suffix) else {
        let expected = format!("a name that ends with {suffix}, as the file is part {} of {count}", number + 1);
        return Err(WeightsError::format(&file, "name", expected, name));
    };
    let path_of = |number| path.with_file_name(file_name(prefix, number, count));

    let mut part = Some(part);
    let (mut first, mut tensors): (Option<Gguf>, Vec<Tensor>) = (None, Vec::new());
    let mut origin = std::collections::HashMap::new();
    for at in 0..count {
        let path = path_of(at);
        let opened = match part.take_if(|_| at == number) {
            Some(opened) => opened,
            None => open_part(&file, &path, at, count)?,
        };
        for tensor in opened.weights.iter() {
            if let Some(other) = origin.insert(tensor.name.clone(), at) {
                let found = format!("it also in {}", path_of(other).display());
                let file = path.display().to_string();
                return Err(WeightsError::tensor(&file, &tensor.name, "name", "each name in one part", found));
            }
            tensors.push(tensor.clone());
        }
        first.get_or_insert(opened);
    }
    let Some(Gguf { version, metadata, .. }) = first else { unreachable!("{count} parts, and none is the first") };
    let declared = metadata.usize(TENSOR_COUNT_KEY)?;
    if declared != tensors.len() {
        let found = format!("{} in its {count} parts", tensors.len());
        let expected = format!("{declared} tensors, as the key `{TENSOR_COUNT_KEY}` says");
        return Err(WeightsError::format(metadata.source(), "tensors", expected, found));
    }
    let weights = Weights::new(metadata.source(), tensors)?;
    Ok(Gguf { version, metadata, weights })
}

/// Opens part `number` of `count`. Errors name `requested`, the part that the caller opened.
fn open_part(requested: &str, path: &Path, number: usize, count: usize) -> Result<Gguf, WeightsError> {
    let file = path.display().to_string();
    if path.symlink_metadata().is_err() {
        let what = format!("part {} of {count}", number + 1);
        return Err(WeightsError::format(requested, what, format!("the file {file}"), "no such file"));
    }
    let part = parse(&file, Bytes::map(path)?)?;
    for (key, expected) in [(NUMBER_KEY, number), (COUNT_KEY, count)] {
        let found = part.metadata.usize(key)?;
        if found != expected {
            let expected = format!("{expected}, as the file's name says");
            return Err(WeightsError::format(&file, format!("key `{key}`"), expected, found));
        }
    }
    Ok(part)
}
