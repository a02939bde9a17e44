//! Resolves names of the Hugging Face hub to paths of models.
//!
//! All commands that run a model use this module. An existing path is returned unchanged; anything else that looks like
//! `org/name` is looked up in the cache, and fetched if it is missing. The result is a folder or a file whose path has
//! the exact revision. The cache and the protocol are in `foretoken_hub`.

mod progress;

use std::path::{Path, PathBuf};

use clap::Args;
use foretoken::line::escaped;
use foretoken_hub::{Hub, ModelRequest, Name, Settings, readable};

use crate::failure::Failure;
use crate::progress::{detail, say};
pub use progress::DownloadProgress;

/// The target by its name on the hub.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Model")]
pub struct HubOptions {
    /// The target by its name on the Hugging Face hub (as -m)
    #[arg(long, hide_short_help = true, value_name = "ORG/NAME[:QUANT]", value_parser = name,
        conflicts_with = "model")]
    pub hf_repo: Option<Name>,
    /// Which .gguf file of that repository [default: the one of QUANT; Q4_K_M, Q8_0 or the first]
    #[arg(long, hide_short_help = true, value_name = "FILE", requires = "hf_repo")]
    pub hf_file: Option<String>,
}

/// A name of the hub on the command line.
///
/// # Errors
/// It is no name; clap adds what was found.
pub fn name(word: &str) -> Result<Name, String> {
    word.parse().map_err(|_| "expected org/name, org/name:QUANT or org/name@REVISION".to_string())
}

/// The hub with the settings of the environment variables.
///
/// # Errors
/// An environment variable is invalid.
pub fn hub() -> Result<Hub, Failure> {
    Ok(Hub::new(Settings::from_environment()?)?)
}

/// The word as a name of the hub, unless it is a path.
fn name_of(word: &Path) -> Option<Name> {
    let text = word.to_str().filter(|_| word.symlink_metadata().is_err())?;
    // URLs are accepted as in other programs.
    let hosts = ["https://huggingface.co/", "https://hf.co/", "huggingface.co/", "hf.co/"];
    let text = hosts.iter().find_map(|host| text.strip_prefix(host)).unwrap_or(text);
    if Name::is_like(text) { text.parse().ok() } else { None }
}

/// The path of a model that is named by a path or by a name of the hub.
///
/// # Errors
/// It is a name, not in the cache, and cannot be fetched; or it is neither.
pub fn resolve(word: &Path) -> Result<PathBuf, Failure> {
    let Some(name) = name_of(word) else {
        let text = word.to_string_lossy();
        let is_path = text.contains(['/', '\\']) || text.ends_with(".gguf") || word.symlink_metadata().is_ok();
        if is_path {
            return Ok(word.to_path_buf());
        }
        let expected = "a directory, a .gguf file or a name of the hub (org/name)";
        return Err(Failure::Other(format!("{text}: expected {expected}, found nothing of this name")));
    };
    match fetch(&name, None) {
        Err(Failure::Other(line)) => Err(Failure::Other(format!("{line}; nor is there such a path"))),
        other => other,
    }
}

/// The path of the target, if one is named.
///
/// # Errors
/// As [`resolve`].
pub fn target(model: Option<&Path>, options: &HubOptions) -> Result<Option<PathBuf>, Failure> {
    match (&options.hf_repo, model) {
        (Some(name), _) => fetch(name, options.hf_file.as_deref()).map(Some),
        (None, Some(model)) => resolve(model).map(Some),
        (None, None) => Ok(None),
    }
}

/// The path of a model that is named by a path or by a name of the hub; nothing is fetched.
///
/// # Errors
/// It is a name, and the model is not complete in the cache.
pub fn in_cache(model: Option<&Path>, repo: Option<&str>, file: Option<&str>) -> Result<Option<PathBuf>, Failure> {
    let named = repo.map(|repo| name(repo).map_err(Failure::Usage)).transpose()?;
    let Some(name) = named.or_else(|| name_of(model?)) else { return Ok(model.map(Path::to_path_buf)) };
    let (hub, request) = (hub()?, ModelRequest { file: file.map(str::to_string), ..request(name.clone()) });
    let line =
        || format!("{name}: expected the whole model in the cache {}, found at most a part", hub.cache().display());
    hub.cached(&request).map(|found| Some(found.path)).ok_or_else(|| Failure::Other(line()))
}

/// The requested name of the hub, if the model is named by one.
pub fn requested_name(model: Option<&Path>, options: &HubOptions) -> Option<String> {
    let name = options.hf_repo.clone().or_else(|| name_of(model?))?;
    Some(name.to_string())
}

/// The paths of draft models: first `models`, which are paths or names of the hub, then `names`.
///
/// # Errors
/// As [`resolve`].
pub fn drafts(models: &[PathBuf], names: &[Name]) -> Result<Vec<PathBuf>, Failure> {
    let names = names.iter().map(|name| fetch(name, None));
    models.iter().map(|model| resolve(model)).chain(names).collect()
}

/// The path of a model in the cache; the model is fetched if it is missing.
fn fetch(name: &Name, file: Option<&str>) -> Result<PathBuf, Failure> {
    let request = ModelRequest { file: file.map(str::to_string), ..request(name.clone()) };
    let progress = DownloadProgress::new(name);
    let found = hub()?.get(&request, &|event| progress.on_event(event))?;
    progress.end();
    if found.fetched_bytes > 0 {
        let (bytes, fetched) = (readable(found.bytes), readable(found.fetched_bytes));
        let of = if found.fetched_bytes == found.bytes { bytes } else { format!("{fetched} of {bytes}") };
        say(format_args!("note: {name}: {of} fetched to {}", found.path.display()));
    } else {
        detail(format_args!("{name}: {}", escaped(&found.path.display().to_string())));
    }
    Ok(found.path)
}

/// A request for a model that this program can run.
pub fn request(name: Name) -> ModelRequest<'static> {
    ModelRequest { usable: &foretoken::models::is_known, ..ModelRequest::new(name) }
}
