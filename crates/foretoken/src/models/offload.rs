//! Models larger than memory: whether layers are read from a file for every pass, and the file of packed layers.
//!
//! The file is made once for each model and type of weights, in the folder `layers` of the cache folder
//! (`$XDG_CACHE_HOME/foretoken` or `~/.cache/foretoken`), and takes as many bytes as the packed layers. It has the
//! identity of what it was made of ([`identity`]): of another model, type or version it is made anew, with a note. It
//! may be deleted whenever no model is open. How it is read is in `model/src/offload.rs`.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use foretoken_model::checkpoint::Sample;
use foretoken_model::{Offloading, Options, PackedFile, WriteLayersError, write_layers};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::Opened;
use crate::Error;
use crate::costs::cache_folder;
use crate::error::{KeptFileError, Message};
use crate::memory::parse_size;
use crate::names::Named;
use crate::output_file::OutputFile;

/// Whether layers are read from a file for every pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Offload {
    /// If the model does not fit into memory otherwise.
    #[default]
    Auto,
    /// Never: a model that does not fit is refused.
    Never,
    /// If the layers have more than these bytes, which are their memory.
    Within(usize),
}

impl Offload {
    /// The bytes that layers may take ([`Options::layer_bytes`]).
    pub(crate) fn layer_bytes(self) -> Option<usize> {
        match self {
            Self::Auto => None,
            Self::Never => Some(usize::MAX),
            Self::Within(bytes) => Some(bytes),
        }
    }
}

impl fmt::Display for Offload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Never => f.write_str("never"),
            Self::Within(bytes) => write!(f, "{bytes}"),
        }
    }
}

/// Parses `auto`, `never`, or bytes with or without a unit.
impl FromStr for Offload {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        match word {
            "auto" => Ok(Self::Auto),
            "never" => Ok(Self::Never),
            size => {
                parse_size(size).map(Self::Within).ok_or_else(|| "expected auto, never, or a size as 6GB".to_string())
            }
        }
    }
}

impl Named for Offload {
    fn name(&self) -> String {
        self.to_string()
    }

    fn named(name: &str) -> Option<Self> {
        name.parse().ok()
    }
}

/// The backend that reads the layers of a model from a file for every pass, if they have more than
/// [`Options::layer_bytes`]. The file is made if there is none, or one of something else. `progress` is called for each
/// layer that is packed, `notes` receives notes for users.
///
/// # Errors
/// The bytes are too few for two layers, a layer cannot be packed, the file cannot be written, or there is no cache
/// folder.
pub(crate) fn backend(
    model: &Opened,
    options: &Options,
    progress: &mut dyn FnMut(usize, usize),
    notes: &mut Vec<Message>,
) -> Result<Option<Offloading>, Error> {
    let Some(bytes) = options.layer_bytes.filter(|bytes| *bytes < usize::MAX) else { return Ok(None) };
    let need = model.layer_need(options.weight_type)?;
    if bytes >= need.all {
        return Ok(None);
    }
    need.check(&model.name, bytes)?;
    let path = path(model, options)?;
    let identity = identity(model, options).map_err(|error| Error::unreadable(Path::new(&model.name), &error))?;
    let opened = match PackedFile::open(&path, &identity) {
        Err(_) if !path.try_exists().unwrap_or(true) => None,
        Err(why) => {
            notes.push(Message::words(format!("{why}: made anew")));
            None
        }
        Ok(file) => Some(file),
    };
    let file = match opened {
        Some(file) => file,
        None => make(model, options, (&path, &identity), progress)?,
    };
    if !file.is_direct() {
        let found =
            format!(" {}: this disk cannot be read past the system's cache of files, so it is slower", file.name());
        notes.push(Message::setting("offload").and(found));
    }
    Ok(Some(Offloading::new(file)))
}

/// As [`backend`], with a file that is made anew, for one whose layers are damaged.
///
/// # Errors
/// As [`backend`].
pub(crate) fn backend_of_new_file(
    model: &Opened,
    options: &Options,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Offloading, Error> {
    let identity = identity(model, options).map_err(|error| Error::unreadable(Path::new(&model.name), &error))?;
    Ok(Offloading::new(make(model, options, (&path(model, options)?, &identity), progress)?))
}

/// Packs the layers of a model into its file, and opens it.
fn make(
    model: &Opened,
    options: &Options,
    (path, identity): (&Path, &str),
    progress: &mut dyn FnMut(usize, usize),
) -> Result<PackedFile, Error> {
    let unwritten = |error: &io::Error| Error::from(KeptFileError::io(path, "written", error));
    let folder = path.parent().expect("a file of a folder");
    std::fs::create_dir_all(folder).map_err(|error| unwritten(&error))?;
    let network = model.network(options)?;
    let mut file = OutputFile::kept(path).map_err(|error| unwritten(&error))?;
    write_layers(network, options, identity, &mut file, progress).map_err(|error| match error {
        WriteLayersError::Model(error) => Error::from(error),
        WriteLayersError::Output(error) => unwritten(&error),
    })?;
    file.end().map_err(|error| unwritten(&error))?;
    Ok(PackedFile::open(path, identity)?)
}

/// The file of a model's packed layers.
fn path(model: &Opened, options: &Options) -> Result<PathBuf, Error> {
    let missing = || Error::setting("offload", ": expected a cache folder (XDG_CACHE_HOME or HOME is set), found none");
    let name = xxh3_64(format!("{}\n{}", model.place(), weight_type(options)).as_bytes());
    Ok(cache_folder().ok_or_else(missing)?.join("layers").join(format!("{name:016x}.panels")))
}

fn weight_type(options: &Options) -> String {
    options.weight_type.map_or("types of the file".to_string(), |weights| weights.to_string())
}

/// What packed layers depend on, on one line: the model, by a sample of its tensors and by its files with their sizes
/// and times, and the requested type. Reading all tensors would take as long as packing them.
///
/// # Errors
/// The system's, for a file of the model.
fn identity(model: &Opened, options: &Options) -> io::Result<String> {
    let mut files = Xxh3::new();
    for file in model.files()? {
        let metadata = std::fs::metadata(&file)?;
        let modified = metadata.modified().ok().and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
        files.update(format!("{} {} {modified:?}", file.display(), metadata.len()).as_bytes());
        // Copies may keep the time of the original; when a file was changed by anything, the system alone says.
        #[cfg(unix)]
        {
            use std::os::unix::fs::MetadataExt;
            files.update(format!(" {} {}", metadata.ctime(), metadata.ctime_nsec()).as_bytes());
        }
    }
    let Sample { configuration, tensors, weights } = model.checkpoint.sample();
    let sample = format!("{configuration:016x} {tensors:016x} {weights:016x}");
    Ok(format!("{}, {}, {sample} {:016x}", model.place(), weight_type(options), files.digest()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_words_or_sizes() {
        let read = |word: &str| word.parse::<Offload>();
        assert_eq!((read("auto"), read("never")), (Ok(Offload::Auto), Ok(Offload::Never)));
        assert_eq!((read("2GB"), read("0")), (Ok(Offload::Within(2_000_000_000)), Ok(Offload::Within(0))));
        for wrong in ["", "Auto", "always", "-1", "2XB"] {
            assert_eq!(read(wrong), Err("expected auto, never, or a size as 6GB".to_string()), "{wrong}");
        }
        for value in [Offload::Auto, Offload::Never, Offload::Within(7)] {
            assert_eq!(read(&value.name()), Ok(value));
        }
    }
}
