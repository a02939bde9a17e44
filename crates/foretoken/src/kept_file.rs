//! Files that are kept between runs: read with suspicion, replaced as a whole, and why one cannot be read or written.
//!
//! Each ends with a checksum of all that is before it. Writing goes through a file beside it that takes its place when
//! it is complete, so who reads it meanwhile, or after a crash, reads the old one. Of two who write at once the last
//! one wins, whole. Left out: what is in them, and what to do about one that cannot be used, which is for doors to say.

use std::fmt::{self, Display, Formatter};
use std::fs::{File, Permissions};
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use xxhash_rust::xxh3::Xxh3;

/// A file that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeptFileError {
    /// The operating system refused.
    Io {
        /// The file.
        file: String,
        /// What was tried: "read" or "written".
        tried: &'static str,
        /// What it said.
        found: String,
    },
    /// A field is not what it must be.
    Field {
        /// The file.
        file: String,
        /// The field, with the number of what it belongs to where there are several (from 1).
        field: String,
        /// What it must be.
        expected: String,
        /// What it is.
        found: String,
    },
}

impl KeptFileError {
    pub(crate) fn io(path: &Path, tried: &'static str, error: &io::Error) -> Self {
        Self::Io { file: path.display().to_string(), tried, found: error.to_string() }
    }

    pub(crate) fn no_file(path: &Path) -> Self {
        Self::Io { file: path.display().to_string(), tried: "written", found: "it names no file".to_string() }
    }
}

impl Display for KeptFileError {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { file, tried, found } => write!(f, "{file}: cannot be {tried}: {found}"),
            Self::Field { file, field, expected, found } => {
                write!(f, "{file}: {field}: expected {expected}, found {found}")
            }
        }
    }
}

impl std::error::Error for KeptFileError {}

/// A file's bytes in their order, with the checksum of what was read.
pub(crate) struct Reader<'a, R> {
    /// The file, for messages.
    pub(crate) name: &'a str,
    pub(crate) from: R,
    pub(crate) hash: Xxh3,
}

impl<R: Read> Reader<'_, R> {
    /// That a field is not what it must be.
    pub(crate) fn field(&self, field: impl Display, expected: impl Display, found: impl Display) -> KeptFileError {
        KeptFileError::Field {
            file: self.name.to_string(),
            field: field.to_string(),
            expected: expected.to_string(),
            found: found.to_string(),
        }
    }

    /// Reads as many bytes as there is room for.
    pub(crate) fn fill(&mut self, field: &str, bytes: &mut [u8]) -> Result<(), KeptFileError> {
        self.from.read_exact(bytes).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => self.field(field, format!("{} bytes", bytes.len()), "the end of the file"),
            _ => KeptFileError::Io { file: self.name.to_string(), tried: "read", found: error.to_string() },
        })?;
        self.hash.update(bytes);
        Ok(())
    }

    /// Reads so many bytes.
    pub(crate) fn bytes<const N: usize>(&mut self, field: &str) -> Result<[u8; N], KeptFileError> {
        let mut bytes = [0; N];
        self.fill(field, &mut bytes)?;
        Ok(bytes)
    }

    /// Reads a number.
    pub(crate) fn u32(&mut self, field: &str) -> Result<u32, KeptFileError> {
        self.bytes(field).map(u32::from_le_bytes)
    }

    /// Reads a number.
    pub(crate) fn u64(&mut self, field: &str) -> Result<u64, KeptFileError> {
        self.bytes(field).map(u64::from_le_bytes)
    }
}

/// What writes a file's bytes.
pub(crate) type Writing<'a> = dyn FnMut(&mut BufWriter<File>) -> io::Result<()> + 'a;

/// Writes a file, whole or not at all. What is written is the file that a link points to, whether or not there is one
/// yet. On Unix an old file's permissions stay (its owner does not, if that is somebody else), and a new one is for its
/// owner alone: it holds what people wrote.
///
/// # Errors
/// The folder or the file cannot be written, or links go round; an old file is unchanged then.
pub(crate) fn replace(path: &Path, write: &mut Writing<'_>) -> Result<(), KeptFileError> {
    let target = follow(path).map_err(|error| KeptFileError::io(path, "written", &error))?;
    let beside = beside(&target).ok_or_else(|| KeptFileError::no_file(path))?;
    let old = std::fs::metadata(&target).ok().filter(std::fs::Metadata::is_file);
    let written = write_to(&beside, old.map(|old| old.permissions()), write);
    if let Err(error) = written.and_then(|()| std::fs::rename(&beside, &target)) {
        std::fs::remove_file(&beside).ok();
        return Err(KeptFileError::io(path, "written", &error));
    }
    // The name is safe when its folder is; systems where a folder cannot be opened do it on their own.
    let folder = target.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder).and_then(|folder| folder.sync_all()).ok();
    Ok(())
}

/// Tries whether a file could be written, and leaves nothing behind: better known before the work than after it.
///
/// # Errors
/// As [`replace`].
pub(crate) fn try_place(path: &Path) -> Result<(), KeptFileError> {
    let target = follow(path).map_err(|error| KeptFileError::io(path, "written", &error))?;
    let beside = beside(&target).ok_or_else(|| KeptFileError::no_file(path))?;
    write_to(&beside, None, &mut |_| Ok(())).map_err(|error| KeptFileError::io(path, "written", &error))?;
    std::fs::remove_file(&beside).map_err(|error| KeptFileError::io(path, "written", &error))
}

/// `permissions`: those of the file that is replaced, if there is one.
fn write_to(path: &Path, permissions: Option<Permissions>, write: &mut Writing<'_>) -> io::Result<()> {
    let mut options = File::options();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let file = options.open(path)?;
    // Elsewhere permissions are one bit, which would forbid to replace the file.
    if let Some(permissions) = permissions.filter(|_| cfg!(unix)) {
        file.set_permissions(permissions)?;
    }
    let mut out = BufWriter::new(file);
    write(&mut out)?;
    out.flush()?;
    out.get_ref().sync_all()
}

/// Most links on the way to a file.
const LINKS_MAX: usize = 40;

/// Where a path leads to in the end: the file need not be there, as behind a link to nothing.
fn follow(path: &Path) -> io::Result<PathBuf> {
    let mut target = path.to_owned();
    for _ in 0..LINKS_MAX {
        match std::fs::read_link(&target) {
            // A relative link begins at its own folder.
            Ok(next) => target = target.parent().unwrap_or(Path::new("")).join(next),
            Err(_) => return Ok(target),
        }
    }
    Err(io::Error::other(format!("expected at most {LINKS_MAX} links, found more")))
}

/// The name of the file that is written first, in the same folder; `None` if the path names no file.
fn beside(path: &Path) -> Option<PathBuf> {
    // A name of its own for each process and each writing: no two write into the same file.
    static WRITTEN: AtomicU64 = AtomicU64::new(0);
    let (process, number) = (std::process::id(), WRITTEN.fetch_add(1, Ordering::Relaxed));
    let name = path.file_name()?.to_string_lossy();
    let beside = path.with_file_name(format!(".{name}.{process}-{number}.part"));
    // A process of the same number may have died while it wrote.
    std::fs::remove_file(&beside).ok();
    Some(beside)
}
