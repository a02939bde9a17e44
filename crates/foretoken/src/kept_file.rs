//! Files that are kept between runs: checked when they are read, replaced atomically; and their errors.
//!
//! Each ends with a checksum of all bytes before. They are written as all files are ([`OutputFile`]), so a reader, also
//! after a crash, sees either the old file or the new one. Of two concurrent writers the last one wins, unless they
//! lock the file and each adds to what the other wrote (`store/shared.rs`).

use std::fmt::Display;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use foretoken_weights::whole;
use xxhash_rust::xxh3::Xxh3;

use crate::error::KeptFileError;
use crate::output_file::OutputFile;

/// Whether a file exists; a dangling link does not.
///
/// # Errors
/// The system returns another error than "not found": treating that as a missing file could overwrite one.
pub(crate) fn is_there(path: &Path) -> Result<bool, KeptFileError> {
    path.try_exists().map_err(|error| KeptFileError::io(path, "read", &error))
}

/// Opens a file for reading; also returns its length.
///
/// # Errors
/// The system's, or it is no regular file: reading a pipe may block, and a device has no end.
pub(crate) fn open(path: &Path) -> Result<(File, u64), KeptFileError> {
    whole::open_checked(path, whole::regular).map_err(|error| KeptFileError::io(path, "read", &error))
}

/// Reads a file's bytes in order, and computes their checksum.
pub(crate) struct Reader<'a, R> {
    /// The file, for messages.
    pub(crate) name: &'a str,
    pub(crate) from: R,
    pub(crate) hash: Xxh3,
}

impl<R: Read> Reader<'_, R> {
    /// The error of an invalid field.
    pub(crate) fn field(&self, field: impl Display, expected: impl Display, found: impl Display) -> KeptFileError {
        KeptFileError::Field {
            file: self.name.to_string(),
            field: field.to_string(),
            expected: expected.to_string(),
            found: found.to_string(),
        }
    }

    /// Reads as many bytes as the slice has.
    pub(crate) fn fill(&mut self, field: impl Display, bytes: &mut [u8]) -> Result<(), KeptFileError> {
        self.from.read_exact(bytes).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => self.field(field, format!("{} bytes", bytes.len()), "the end of the file"),
            _ => KeptFileError::Io { file: self.name.to_string(), tried: "read", found: error.to_string() },
        })?;
        self.hash.update(bytes);
        Ok(())
    }

    /// Reads `N` bytes.
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

/// Writes a file's content.
pub(crate) type WriteContent<'a> = dyn FnMut(&mut OutputFile) -> io::Result<()> + 'a;

/// Writes a file atomically. If the path is a link, its target is written, even if it does not exist yet. On Unix an
/// old file keeps its permissions (not its owner, if that is another user), and a new one is readable by its owner
/// alone, since it holds what people wrote.
///
/// # Errors
/// The folder or the file cannot be written, or links form a cycle; an old file is unchanged then.
pub(crate) fn replace(path: &Path, write: &mut WriteContent<'_>) -> Result<(), KeptFileError> {
    let written = OutputFile::kept(path).and_then(|mut file| write(&mut file).and_then(|()| file.end()));
    written.map_err(|error| KeptFileError::io(path, "written", &error))
}

/// Checks that a file could be written, so that the error comes before the work, not after it. Leaves nothing behind.
///
/// # Errors
/// As [`replace`].
pub(crate) fn check_writable(path: &Path) -> Result<(), KeptFileError> {
    OutputFile::kept(path).map(drop).map_err(|error| KeptFileError::io(path, "written", &error))
}
