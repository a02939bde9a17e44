//! Models of the Hugging Face hub: where a name becomes a path.
//!
//! This is the one place where commands that run a model ask the hub. A path that is there is a path; what is none and
//! looks like `org/name` is looked up in the cache, and fetched if it is missing there. Whoever opens a model sees a
//! folder or a file, whose path names the exact revision. Left out: the cache and the protocol (`foretoken_hub`).

mod progress;

use std::path::{Path, PathBuf};

use foretoken::line::plain;
use foretoken_hub::{Asked, Found, Hub, Name, Settings, readable};

use crate::failure::Failure;
use crate::options::HubOptions;
use crate::progress::{detail, say};
pub use progress::Shown;

/// A name of the hub on the command line.
///
/// # Errors
/// It is none; clap adds what was found.
pub fn name(word: &str) -> Result<Name, String> {
    word.parse().map_err(|_| "expected org/name, org/name:QUANT or org/name@REVISION".to_string())
}

/// The hub that the environment names.
///
/// # Errors
/// The environment says something that cannot be.
pub fn hub() -> Result<Hub, Failure> {
    Ok(Hub::new(Settings::from_environment()?)?)
}

/// A name that a word stands for: one that is no path.
fn name_of(word: &Path) -> Option<Name> {
    let text = word.to_str().filter(|_| word.symlink_metadata().is_err())?;
    // As the browser has it, and as other programs take it.
    let hosts = ["https://huggingface.co/", "https://hf.co/", "huggingface.co/", "hf.co/"];
    let text = hosts.iter().find_map(|host| text.strip_prefix(host)).unwrap_or(text);
    if Name::is_like(text) { text.parse().ok() } else { None }
}

/// The path of a model that is a path or a name.
///
/// # Errors
/// It is a name, not in the cache, and cannot be fetched.
pub fn resolved(word: &Path) -> Result<PathBuf, Failure> {
    let Some(name) = name_of(word) else {
        let text = word.to_string_lossy();
        let is_path = text.contains(['/', '\\']) || text.ends_with(".gguf") || word.symlink_metadata().is_ok();
        if is_path {
            return Ok(word.to_path_buf());
        }
        let expected = "a directory, a .gguf file or a name of the hub (org/name)";
        return Err(Failure::Other(format!("{text}: expected {expected}, found nothing of this name")));
    };
    match fetched(&name, None) {
        Err(Failure::Other(line)) => Err(Failure::Other(format!("{line}; nor is there such a path"))),
        other => other,
    }
}

/// The path of the target, if one is named.
///
/// # Errors
/// As [`resolved`].
pub fn target(model: Option<&Path>, options: &HubOptions) -> Result<Option<PathBuf>, Failure> {
    match (&options.hf_repo, model) {
        (Some(name), _) => fetched(name, options.hf_file.as_deref()).map(Some),
        (None, Some(model)) => resolved(model).map(Some),
        (None, None) => Ok(None),
    }
}

/// The path of a model that lies in the cache, or that is a path; nothing is fetched.
///
/// # Errors
/// It is a name and does not lie in the cache whole.
pub fn in_cache(model: Option<&Path>, repo: Option<&str>, file: Option<&str>) -> Result<Option<PathBuf>, Failure> {
    let named = repo.map(|repo| name(repo).map_err(Failure::Usage)).transpose()?;
    let Some(name) = named.or_else(|| name_of(model?)) else { return Ok(model.map(Path::to_path_buf)) };
    let (hub, asked) = (hub()?, Asked { file: file.map(str::to_string), ..asked(name.clone()) });
    let line = || format!("{name}: expected it whole in the cache {}, found it lacking", hub.cache().display());
    hub.cached(&asked).map(|found| Some(found.path)).ok_or_else(|| Failure::Other(line()))
}

/// The name on the hub that was asked for, if it was one.
pub fn name_asked(model: Option<&Path>, options: &HubOptions) -> Option<String> {
    let name = options.hf_repo.clone().or_else(|| name_of(model?))?;
    Some(name.to_string())
}

/// The paths of draft models: those that are paths or names, then those that are names.
///
/// # Errors
/// As [`resolved`].
pub fn drafts(models: &[PathBuf], names: &[Name]) -> Result<Vec<PathBuf>, Failure> {
    let names = names.iter().map(|name| fetched(name, None));
    models.iter().map(|model| resolved(model)).chain(names).collect()
}

/// The path of a model in the cache, which is fetched if it is missing there.
fn fetched(name: &Name, file: Option<&str>) -> Result<PathBuf, Failure> {
    let asked = Asked { file: file.map(str::to_string), ..asked(name.clone()) };
    let shown = Shown::new(name);
    let found = hub()?.get(&asked, &|event| shown.hear(event))?;
    shown.end();
    if found.fetched_bytes > 0 {
        say(format_args!("note: {name}: {}", size_and_place(&found)));
    } else {
        detail(format_args!("{name}: {}", plain(&found.path.display().to_string())));
    }
    Ok(found.path)
}

/// A model that is asked for, by somebody who runs what this program knows.
pub fn asked(name: Name) -> Asked<'static> {
    Asked { usable: &foretoken::models::is_known, ..Asked::new(name) }
}

fn size_and_place(found: &Found) -> String {
    let (bytes, fetched) = (readable(found.bytes), readable(found.fetched_bytes));
    let of = if found.fetched_bytes == found.bytes { bytes } else { format!("{fetched} of {bytes}") };
    format!("{of} fetched to {}", found.path.display())
}
