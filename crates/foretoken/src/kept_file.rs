//! Files that are kept between runs: read with suspicion, replaced as a whole, and why one cannot be read or written.
//!
//! Each ends with a checksum of all that is before it. They are written as all files are ([`OutputFile`]), so whoever
//! reads one meanwhile, or after a crash, reads the old one. Of two who write at once the last one wins, whole, unless
//! they take turns and each adds to what the other wrote (`store/shared.rs`). Left out: what is in them, and what to
//! do about one that cannot be used, which is for doors to say.

use std::fmt::{self, Display, Formatter};
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use foretoken_weights::line::{Line, plain};
use foretoken_weights::whole;
use xxhash_rust::xxh3::Xxh3;

use crate::output_file::OutputFile;

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
}

impl Display for KeptFileError {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { file, tried, found } => write!(f, "{}: cannot be {tried}: {}", Line(file), Line(found)),
            Self::Field { file, field, expected, found } => {
                let (file, field, expected, found) = (Line(file), Line(field), plain(expected), plain(found));
                write!(f, "{file}: {field}: expected {expected}, found {found}")
            }
        }
    }
}

impl std::error::Error for KeptFileError {}

/// Whether a file is there; a link to nothing is not.
///
/// # Errors
/// The system does not say: who took that for a no would write over a file.
pub(crate) fn is_there(path: &Path) -> Result<bool, KeptFileError> {
    path.try_exists().map_err(|error| KeptFileError::io(path, "read", &error))
}

/// Opens a file to be read, and says how long it is.
///
/// # Errors
/// The system's, or it is no regular file: a pipe would be waited for, and a device has no end.
pub(crate) fn open(path: &Path) -> Result<(File, u64), KeptFileError> {
    whole::open_checked(path, whole::regular).map_err(|error| KeptFileError::io(path, "read", &error))
}

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
    pub(crate) fn fill(&mut self, field: impl Display, bytes: &mut [u8]) -> Result<(), KeptFileError> {
        self.from.read_exact(bytes).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => self.field(field, format!("{} bytes", bytes.len()), "the end of the file"),
            _ => KeptFileError::Io { file: self.name.to_string(), tried: "read", found: error.to_string() },
        })?;
        self.hash.update(bytes);
        Ok(())
    }

    /// Reads so many bytes.
    pub(crate) fn bytes<const N: usize>(&mut self, field: impl Display) -> Result<[u8; N], KeptFileError> {
        let mut bytes = [0; N];
        self.fill(field, &mut bytes)?;
        Ok(bytes)
    }

    /// Reads a number.
    pub(crate) fn u32(&mut self, field: impl Display) -> Result<u32, KeptFileError> {
        self.bytes(field).map(u32::from_le_bytes)
    }

    /// Reads a number.
    pub(crate) fn u64(&mut self, field: impl Display) -> Result<u64, KeptFileError> {
        self.bytes(field).map(u64::from_le_bytes)
    }
}

/// What writes a file's bytes.
pub(crate) type Writing<'a> = dyn FnMut(&mut OutputFile) -> io::Result<()> + 'a;

/// Writes a file, whole or not at all. What is written is the file that a link points to, whether or not there is one
/// yet. On Unix an old file's permissions stay (its owner does not, if that is somebody else), and a new one is for its
/// owner alone: it holds what people wrote.
///
/// # Errors
/// The folder or the file cannot be written, or links go round; an old file is unchanged then.
pub(crate) fn replace(path: &Path, write: &mut Writing<'_>) -> Result<(), KeptFileError> {
    let written = OutputFile::kept(path).and_then(|mut file| write(&mut file).and_then(|()| file.end()));
    written.map_err(|error| KeptFileError::io(path, "written", &error))
}

/// Tries whether a file could be written, and leaves nothing behind: better known before the work than after it.
///
/// # Errors
/// As [`replace`].
pub(crate) fn try_place(path: &Path) -> Result<(), KeptFileError> {
    OutputFile::kept(path).map(drop).map_err(|error| KeptFileError::io(path, "written", &error))
}
