//! Models in several files: `name-00001-of-00003.gguf` and its fellows.
//!
//! Each part is a whole GGUF file with tensors of its own. It says which one it is (`split.no`, from 0), how many there
//! are (`split.count`) and how many tensors all of them have (`split.tensors.count`); the first also holds the keys of
//! the model. Whichever part is asked for, all are opened and every number is checked against the others and against
//! the files' names, so that a part of another model cannot slip in. Left out: splitting, and parts under other names.

use std::path::Path;

use super::{Gguf, parse};
use crate::{Bytes, Tensor, Weights, WeightsError};

const NUMBER: &str = "split.no";
const COUNT: &str = "split.count";
const TENSORS: &str = "split.tensors.count";

/// The file of part `number`, from 0, as llama.cpp names it.
fn file_name(prefix: &str, number: usize, count: usize) -> String {
    format!("{prefix}-{:05}-of-{count:05}.gguf", number + 1)
}

/// All parts of the model of which `part` is one: the metadata of the first, the tensors of all. A file that is alone
/// stays as it is.
///
/// # Errors
/// [`WeightsError::Format`] if the file is not named as part of a model, a part is missing or says another number than
/// its name; [`WeightsError::Tensor`] if two parts have a tensor of one name; whatever [`parse`] finds in a part.
pub(super) fn with_the_others(path: &Path, part: Gguf) -> Result<Gguf, WeightsError> {
    let count = part.metadata.optional_usize(COUNT)?.unwrap_or(1);
    if count <= 1 {
        return Ok(part);
    }
    let (file, number) = (path.display().to_string(), part.metadata.usize(NUMBER)?);
    if number >= count {
        let expected = format!("below {COUNT} = {count}");
        return Err(WeightsError::format(&file, format!("key `{NUMBER}`"), expected, number));
    }
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let suffix = file_name("", number, count);
    let Some(prefix) = name.strip_suffix(&suffix) else {
        let expected = format!("a name that ends with {suffix}, as the file is part {} of {count}", number + 1);
        return Err(WeightsError::format(&file, "name", expected, name));
    };
    let place = |number| path.with_file_name(file_name(prefix, number, count));

    let mut part = Some(part);
    let (mut first, mut tensors): (Option<Gguf>, Vec<Tensor>) = (None, Vec::new());
    let mut origin = std::collections::HashMap::new();
    for at in 0..count {
        let path = place(at);
        let opened = match part.take_if(|_| at == number) {
            Some(opened) => opened,
            None => open_part(&file, &path, at, count)?,
        };
        for tensor in opened.weights.iter() {
            if let Some(other) = origin.insert(tensor.name.clone(), at) {
                let found = format!("it also in {}", place(other).display());
                let file = path.display().to_string();
                return Err(WeightsError::tensor(&file, &tensor.name, "name", "each name in one part", found));
            }
            tensors.push(tensor.clone());
        }
        first.get_or_insert(opened);
    }
    let Some(Gguf { version, metadata, .. }) = first else { unreachable!("{count} parts, and no first") };
    let promised = metadata.usize(TENSORS)?;
    if promised != tensors.len() {
        let found = format!("{} in its {count} parts", tensors.len());
        let expected = format!("{promised} tensors, as the key `{TENSORS}` says");
        return Err(WeightsError::format(metadata.source(), "tensors", expected, found));
    }
    let weights = Weights::new(metadata.source(), tensors)?;
    Ok(Gguf { version, metadata, weights })
}

/// Part `number` of `count`, on behalf of `asked`, the part that was asked for.
fn open_part(asked: &str, path: &Path, number: usize, count: usize) -> Result<Gguf, WeightsError> {
    let file = path.display().to_string();
    if path.symlink_metadata().is_err() {
        let what = format!("part {} of {count}", number + 1);
        return Err(WeightsError::format(asked, what, format!("the file {file}"), "no such file"));
    }
    let part = parse(&file, Bytes::map(path)?)?;
    for (key, expected) in [(NUMBER, number), (COUNT, count)] {
        let found = part.metadata.usize(key)?;
        if found != expected {
            let expected = format!("{expected}, as the file's name says");
            return Err(WeightsError::format(&file, format!("key `{key}`"), expected, found));
        }
    }
    Ok(part)
}
