//! What is at the path of an output: nothing, a file, or a stream.
//!
//! Links are followed to their target, which need not exist; the links themselves are kept. A path of a file that is
//! open already, such as `/dev/stdout`, is a stream, even if it is a regular file: replaced by another file, it would
//! be lost to the process that opened it.

use std::collections::HashSet;
use std::fs::{File, Metadata};
use std::io;
use std::path::{Path, PathBuf};

/// The most links that are followed.
const LINKS_MAX: usize = 40;

/// Where an output is written.
#[derive(Debug)]
pub(super) enum Destination {
    /// A device, a named pipe or an open file.
    Stream(File),
    /// A file to be created or replaced.
    File {
        /// The path with all links resolved.
        target: PathBuf,
        /// Whether it exists.
        is_there: bool,
    },
}

impl Destination {
    /// The destination at a path. A named pipe is opened, which waits for its reader.
    ///
    /// # Errors
    /// It is a folder, names no file, or cannot be opened; or links form a cycle.
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        Self::found(path, true)
    }

    /// The same where a file is required: a stream is refused, and is not opened.
    ///
    /// # Errors
    /// As [`Destination::of`].
    pub(super) fn of_file(path: &Path) -> io::Result<(PathBuf, bool)> {
        match Self::found(path, false)? {
            Self::File { target, is_there } => Ok((target, is_there)),
            Self::Stream(_) => Err(no_file()),
        }
    }

    fn found(path: &Path, may_open: bool) -> io::Result<Self> {
        let mut target = std::path::absolute(path)?;
        for _ in 0..LINKS_MAX {
            if let Some(file) = opened(&target)? {
                return Ok(Self::Stream(file));
            }
            match std::fs::read_link(&target) {
                // A relative link begins at its own folder.
                Ok(next) => target = target.parent().unwrap_or(Path::new("")).join(next),
                Err(_) => return Self::without_links(target, may_open),
            }
        }
        Err(io::Error::other(format!("expected at most {LINKS_MAX} links, found more")))
    }

    fn without_links(target: PathBuf, may_open: bool) -> io::Result<Self> {
        match std::fs::metadata(&target) {
            Ok(found) if found.is_dir() => Err(io::Error::other("expected a file, found a folder")),
            Ok(found) if found.is_file() => Ok(Self::File { target, is_there: true }),
            Ok(_) if !may_open => Err(no_file()),
            Ok(_) => File::options().write(true).open(&target).map(Self::Stream),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::File { target, is_there: false }),
            Err(error) => Err(error),
        }
    }
}

fn no_file() -> io::Error {
    io::Error::other("expected a file, found a device, a pipe or an open file")
}

/// The open file that a path such as `/dev/stdout` stands for, if it is one.
fn opened(path: &Path) -> io::Result<Option<File>> {
    #[cfg(unix)]
    {
        use std::os::fd::AsFd;
        let folders = ["/dev/fd", "/proc/self/fd", "/proc/thread-self/fd"].map(Path::new);
        let own = PathBuf::from(format!("/proc/{}/fd", std::process::id()));
        let is_numbered = path.parent().is_some_and(|folder| folders.contains(&folder) || folder == own);
        let number = path.file_name().and_then(|name| name.to_str()).filter(|_| is_numbered);
        let file = |stream: std::os::fd::BorrowedFd<'_>| stream.try_clone_to_owned().map(|it| Some(File::from(it)));
        match (path.to_str(), number) {
            // The same open file, so that output is appended to what it has.
            (Some("/dev/stdout"), _) | (_, Some("1")) => return file(io::stdout().as_fd()),
            (Some("/dev/stderr"), _) | (_, Some("2")) => return file(io::stderr().as_fd()),
            (_, Some(_)) => return File::options().append(true).open(path).map(Some),
            _ => {}
        }
    }
    Ok(None)
}

/// The folder of a file.
pub(super) fn folder(file: &Path) -> &Path {
    file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Which of the files and folders that are read is or contains this file.
pub(super) fn find_among(target: &Path, read: &[PathBuf]) -> Option<String> {
    let own = identity(target, &std::fs::metadata(target).ok()?);
    let holds = |path: &&PathBuf| holds(path, &own, &mut HashSet::new());
    read.iter().find(holds).map(|path| path.display().to_string())
}

/// Whether two paths lead to one file, even if it does not exist.
pub(crate) fn is_same(one: &Path, other: &Path) -> bool {
    let found = |path: &Path| {
        let (target, is_there) = Destination::of_file(path).ok()?;
        match is_there {
            true => Some(Ok(identity(&target, &std::fs::metadata(&target).ok()?))),
            false => Some(Err(std::fs::canonicalize(folder(&target)).ok()?.join(target.file_name()?))),
        }
    };
    found(one).is_some_and(|one| Some(one) == found(other))
}

/// Whether an open file is the one at this path.
pub(super) fn is_at(file: &File, path: &Path) -> bool {
    let own = |metadata: Metadata| identity(path, &metadata);
    file.metadata().ok().map(own) == std::fs::metadata(path).ok().map(own)
}

/// Whether a path is this file, or a folder that contains it.
fn holds(path: &Path, wanted: &Identity, seen: &mut HashSet<Identity>) -> bool {
    let Ok(metadata) = std::fs::metadata(path) else { return false };
    let own = identity(path, &metadata);
    if !metadata.is_dir() {
        return own == *wanted || is_other_part(path, wanted);
    }
    // A link to a parent folder would be followed forever.
    let is_new = seen.insert(own);
    let Ok(entries) = std::fs::read_dir(path) else { return false };
    is_new
        && entries.flatten().map(|entry| entry.path()).any(|path| {
            let is_gguf = path.extension().is_some_and(|ending| ending == "gguf");
            !is_gguf && holds(&path, wanted, seen)
        })
}

/// Whether a file is another part of the model that `path` is a part of (`name-00001-of-00003.gguf`).
fn is_other_part(path: &Path, wanted: &Identity) -> bool {
    let parts = |path: &Path| {
        let name = path.file_name()?.to_str()?.strip_suffix(".gguf")?;
        let (rest, count) = name.rsplit_once("-of-")?;
        let (model, number) = rest.rsplit_once('-')?;
        let is_number = |part: &str| part.len() == 5 && part.bytes().all(|byte| byte.is_ascii_digit());
        (is_number(count) && is_number(number)).then(|| (model.to_string(), count.to_string()))
    };
    let (Some(model), Ok(entries)) = (parts(path), std::fs::read_dir(folder(path))) else { return false };
    let other_parts = entries.flatten().map(|entry| entry.path()).filter(|other| parts(other).as_ref() == Some(&model));
    let is_wanted = |path: PathBuf| std::fs::metadata(&path).is_ok_and(|found| identity(&path, &found) == *wanted);
    other_parts.into_iter().any(is_wanted)
}

/// Identifies a file under all its names.
#[cfg(unix)]
type Identity = (u64, u64);
#[cfg(not(unix))]
type Identity = PathBuf;

#[cfg(unix)]
fn identity(_: &Path, metadata: &Metadata) -> Identity {
    use std::os::unix::fs::MetadataExt;
    (metadata.dev(), metadata.ino())
}

#[cfg(not(unix))]
fn identity(path: &Path, _: &Metadata) -> Identity {
    std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}
