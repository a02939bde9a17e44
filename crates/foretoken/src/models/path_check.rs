//! Errors for paths that are nearly a model: a file of its directory, a folder of `.gguf` files, pickled weights.
//!
//! Without these checks the error would be about a wrong magic number. The files themselves are checked when they are
//! read.

use std::path::{Path, PathBuf};

use crate::Error;

/// Files of a model's directory besides its weights.
const PARTS: [&str; 6] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "spiece.model",
    "tokenizer_config.json",
];

/// File extensions of weights in Python's pickle format.
const PICKLED: [&str; 4] = ["bin", "pt", "pth", "ckpt"];

/// Refuses a path that is nearly a model.
///
/// # Errors
/// The path is nearly a model; the message names one that is.
pub(super) fn check(path: &Path) -> Result<(), Error> {
    let wrong = |expected: &str, found: &str| {
        Err(Error::input(format!("{}: expected {expected}, found {found}", path.display())))
    };
    const EITHER: &str = "a model's directory or a .gguf file";
    if path.is_dir() {
        if path.join("config.json").exists() {
            return Ok(());
        }
        return match first_gguf_file(path) {
            Some(file) => wrong(EITHER, &format!("a folder of .gguf files; give one of them, as {}", file.display())),
            None => wrong("config.json with .safetensors files, or a .gguf file", "neither"),
        };
    }
    if !path.is_file() {
        return Ok(());
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let ends = |endings: &[&str]| path.extension().is_some_and(|ending| endings.iter().any(|other| ending == *other));
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if (PARTS.contains(&name.as_ref()) || ends(&["safetensors"]) || name.ends_with(".index.json"))
        && directory.join("config.json").exists()
    {
        return wrong(EITHER, &format!("a file of one; give {}", directory.display()));
    }
    if ends(&["safetensors"]) {
        return wrong(EITHER, "weights without config.json beside them");
    }
    if ends(&PICKLED) {
        return wrong(EITHER, "pickled tensors; save the model as safetensors (save_pretrained of transformers does)");
    }
    Ok(())
}

/// The first of a folder's `.gguf` files, by name.
fn first_gguf_file(folder: &Path) -> Option<PathBuf> {
    let files = std::fs::read_dir(folder).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    files.filter(|path| path.extension().is_some_and(|ending| ending == "gguf")).min()
}
