//! The destination of an output: a new file, an existing one, or a stream.
//!
//! Links are followed to their target, which need not exist; the links themselves are kept. A path of a file that is
//! already open, such as `/dev/stdout`, is a stream, even if it is a regular file: if it were replaced by another file,
//! the process that opened it would lose the output.

use std::collections::HashSet;
use std::fs::{File, Metadata};
use std::io;
use std::path::{Path, PathBuf};

/// The most links that are followed.
const LINKS_MAX: usize = 40;

/// The destination of an output.
#[derive(Debug)]
pub(super) enum Destination {
    /// A device, a named pipe or an open file.
    Stream(File),
    /// A file to be created or replaced.
    File {
        /// The path with all links resolved.
        target: PathBuf,
        /// Whether it exists.
        exists: bool,
    },
}

impl Destination {
    /// The destination at a path. A named pipe is opened, which waits for its reader.
    ///
    /// # Errors
    /// It is a folder, names no file, or cannot be opened; or links form a cycle.
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        Self::at(path, true)
    }

    /// The path of a file with all links resolved, and whether the file exists. A stream is refused without opening it.
    ///
    /// # Errors
    /// As [`Destination::of`], or it is a stream.
    pub(super) fn of_file(path: &Path) -> io::Result<(PathBuf, bool)> {
        match Self::at(path, false)? {
            Self::File { target, exists } => Ok((target, exists)),
            Self::Stream(_) => Err(not_a_file()),
        }
    }

    fn at(path: &Path, may_open: bool) -> io::Result<Self> {
        let mut target = std::path::absolute(path)?;
        for _ in 0..LINKS_MAX {
            if let Some(file) = open_file_of(&target)? {
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
            Ok(found) if found.is_file() => Ok(Self::File { target, exists: true }),
            Ok(_) if !may_open => Err(not_a_file()),
            Ok(_) => File::options().write(true).open(&target).map(Self::Stream),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::File { target, exists: false }),
            Err(error) => Err(error),
        }
    }
}

fn not_a_file() -> io::Error {
    io::Error::other("expected a file, found a device, a pipe or an open file")
}

/// The open file that a path such as `/dev/stdout` means; `None` for other paths.
fn open_file_of(path: &Path) -> io::Result<Option<File>> {
    #[cfg(unix)]
    {
        use std::os::fd::AsFd;
        let folders = ["/dev/fd", "/proc/self/fd", "/proc/thread-self/fd"].map(Path::new);
        let own = PathBuf::from(format!("/proc/{}/fd", std::process::id()));
        let is_numbered = path.parent().is_some_and(|folder| folders.contains(&folder) || folder == own);
        let number = path.file_name().and_then(|name| name.to_str()).filter(|_| is_numbered);
        let file = |stream: std::os::fd::BorrowedFd<'_>| stream.try_clone_to_owned().map(|it| Some(File::from(it)));
        match (path.to_str(), number) {
            // The same open file, so that the output is appended to it.
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

/// The one of the files and folders `read` that is or contains this file.
pub(super) fn find_among(target: &Path, read: &[PathBuf]) -> Option<String> {
    let wanted = identity(target, &std::fs::metadata(target).ok()?);
    let found = read.iter().find(|path| is_or_contains(path, &wanted, &mut HashSet::new()));
    found.map(|path| path.display().to_string())
}

/// Whether two paths lead to the same file, even if it does not exist.
pub(crate) fn is_same(one: &Path, other: &Path) -> bool {
    let found = |path: &Path| {
        let (target, exists) = Destination::of_file(path).ok()?;
        match exists {
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

/// Whether a path is the file, or a folder that contains it.
fn is_or_contains(path: &Path, wanted: &Identity, seen: &mut HashSet<Identity>) -> bool {
    let Ok(metadata) = std::fs::metadata(path) else { return false };
    let own = identity(path, &metadata);
    if !metadata.is_dir() {
        return own == *wanted || has_part(path, wanted);
    }
    // A link to a parent folder would be followed forever.
    let is_new = seen.insert(own);
    let Ok(entries) = std::fs::read_dir(path) else { return false };
    is_new
        && entries.flatten().map(|entry| entry.path()).any(|path| {
            let is_gguf = path.extension().is_some_and(|ending| ending == "gguf");
            !is_gguf && is_or_contains(&path, wanted, seen)
        })
}

/// Whether the file is another part of the model of which `path` is a part (`name-00001-of-00003.gguf`).
fn has_part(path: &Path, wanted: &Identity) -> bool {
    let parts = |path: &Path| {
        let name = path.file_name()?.to_str()?.strip_suffix(".gguf")?;
        let (rest, count) = name.rsplit_once("-of-")?;
        let (model, number) = rest.rsplit_once('-')?;
        let is_number = |part: &str| part.len() == 5 && part.bytes().all(|byte| byte.is_ascii_digit());
        (is_number(count) && is_number(number)).then(|| (model.to_string(), count.to_string()))
    };
    let (Some(model), Ok(entries)) = (parts(path), std::fs::read_dir(folder(path))) else { return false };
    let mut other_parts =
        entries.flatten().map(|entry| entry.path()).filter(|other| parts(other).as_ref() == Some(&model));
    other_parts.any(|path| std::fs::metadata(&path).is_ok_and(|found| identity(&path, &found) == *wanted))
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
