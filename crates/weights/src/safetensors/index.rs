//! A model in a directory: one safetensors file, or shards that an index lists.
//!
//! The index (`model.safetensors.index.json`) says which file holds each tensor; tensors of a shard that it does not
//! mention are ignored. Shard names must be plain file names: a name with a path is refused, so that an index cannot
//! name files outside its directory. A symbolic link inside the directory may lead out of it, since download caches use
//! such links, and creating one takes more than writing an index. Pickled checkpoints (`pytorch_model.bin`) can run
//! code when they are loaded, so they are refused with the command that converts them.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Component, Path, PathBuf};

use serde::Deserialize;

use crate::{Bytes, Weights, WeightsError};

/// Maximum bytes of an index; the largest published ones have a few megabytes.
const INDEX_BYTES_MAX: usize = 100_000_000;

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// Maps and reads the model of a directory: `model.safetensors`, else the shards of `model.safetensors.index.json`,
/// else those of the only `*.safetensors.index.json` in the directory.
///
/// # Errors
/// [`WeightsError::Io`] if a file cannot be mapped, [`WeightsError::Format`] if there is no model, the index is
/// malformed or names a file outside the directory, [`WeightsError::Pickled`] if there is only a pickled model,
/// [`WeightsError::MissingTensor`] if a shard lacks a tensor that the index lists, and any error that [`super::parse`]
/// finds in a file.
pub fn open_dir(dir: impl AsRef<Path>) -> Result<Weights, WeightsError> {
    let dir = dir.as_ref();
    let single = dir.join("model.safetensors");
    // `symlink_metadata` so that a dangling link is an error about that link, not a reason to look elsewhere.
    if single.symlink_metadata().is_ok() {
        return super::open(single);
    }
    open_index(dir, &find_index(dir)?)
}

fn find_index(dir: &Path) -> Result<PathBuf, WeightsError> {
    let usual = dir.join("model.safetensors.index.json");
    if usual.symlink_metadata().is_ok() {
        return Ok(usual);
    }
    let entries = std::fs::read_dir(dir).map_err(|error| WeightsError::io(dir, "list", error))?;
    let mut indices = Vec::new();
    for entry in entries {
        let path = entry.map_err(|error| WeightsError::io(dir, "list", error))?.path();
        let is_index = |name: &OsStr| name.to_str().is_some_and(|name| name.ends_with(".safetensors.index.json"));
        if path.file_name().is_some_and(is_index) {
            indices.push(path);
        }
    }
    if indices.len() == 1 {
        return Ok(indices.remove(0));
    }
    for pickled in ["pytorch_model.bin", "pytorch_model.bin.index.json"] {
        if indices.is_empty() && dir.join(pickled).symlink_metadata().is_ok() {
            return Err(WeightsError::Pickled {
                file: dir.join(pickled).display().to_string(),
                dir: dir.to_path_buf(),
            });
        }
    }
    let expected = "model.safetensors or one *.safetensors.index.json";
    Err(WeightsError::format(&dir.display().to_string(), "model", expected, format!("{} indices", indices.len())))
}

fn open_index(dir: &Path, path: &Path) -> Result<Weights, WeightsError> {
    let file = path.display().to_string();
    let bytes = Bytes::map(path)?;
    if bytes.len() > INDEX_BYTES_MAX {
        let expected = format!("at most {INDEX_BYTES_MAX} bytes");
        return Err(WeightsError::format(&file, "length", expected, format!("{} bytes", bytes.len())));
    }
    let index: Index = serde_json::from_slice(&bytes)
        .map_err(|error| WeightsError::format(&file, "index", "a JSON object with a `weight_map`", error))?;

    let mut shards: BTreeMap<String, Weights> = BTreeMap::new();
    let mut tensors = Vec::with_capacity(index.weight_map.len());
    for (tensor, shard) in index.weight_map {
        if !is_plain_file_name(&shard) {
            let expected = "the name of a .safetensors file beside the index";
            return Err(WeightsError::tensor(&file, &tensor, "shard", expected, format!("`{shard}`")));
        }
        if !shards.contains_key(&shard) {
            shards.insert(shard.clone(), super::open(dir.join(&shard))?);
        }
        let found = shards[&shard].find(&tensor)?;
        tensors.push(found.clone());
    }
    Weights::new(&file, tensors)
}

/// Whether this is the name of a safetensors file in the directory itself, on every system.
fn is_plain_file_name(name: &str) -> bool {
    let mut components = Path::new(name).components();
    let one = matches!((components.next(), components.next()), (Some(Component::Normal(_)), None));
    // On Unix backslashes and colons are ordinary characters, but an index must mean the same everywhere.
    one && name.ends_with(".safetensors") && !name.contains(['/', '\\', ':', '\0'])
}
