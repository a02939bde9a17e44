//! Writes files atomically, and never over a file that should be kept.
//!
//! The bytes go to a temporary file in the same folder (`temporary_file.rs`), which is renamed when all of them are on
//! the disk: a reader, also after a crash, finds the complete file or the old one. A command chooses what may happen to
//! an existing file ([`Existing`]) and names the files that it reads, which are then never overwritten, whatever links
//! lead to them. Devices, named pipes and open files (`/dev/stdout`) are written to directly and never replaced
//! (`destination.rs`).

mod destination;
mod temporary_file;
#[cfg(test)]
mod tests;
mod write_lock;

use std::fs::{File, Permissions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::Error;
use crate::error::{KeptFileError, Message};
use destination::Destination;
pub(crate) use destination::is_same;
use temporary_file::TemporaryFile;
pub use temporary_file::remove_all as remove_unfinished;
pub(crate) use write_lock::WriteLock;

/// What may happen to an existing file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// It is kept, and the output refused, also if the file was created while the new one was being written.
    Kept,
    /// It is replaced: the user wants that (`--force`), or it is this program's own.
    Replaced,
}

/// A file that is being written. If it is dropped before [`OutputFile::finish`], nothing is left of it.
#[derive(Debug)]
pub struct OutputFile {
    /// The path as the user named it, for messages.
    path: PathBuf,
    out: BufWriter<File>,
    /// The temporary file and the path that it will get; `None` where the bytes are written directly.
    temporary: Option<(TemporaryFile, PathBuf)>,
    existing: Existing,
    /// Whether the bytes must be on the disk before the file is renamed.
    durable: bool,
}

impl OutputFile {
    /// Begins an output file that a user names. `read`: the files and folders that the caller reads; of a folder all
    /// files inside, except those ending in `.gguf`, which are never part of a folder's model. On Unix an existing file
    /// keeps its permissions.
    ///
    /// # Errors
    /// A file exists and is to be kept, or is one of those that are read; `path` is a folder, or names no file; or the
    /// system refuses to write there.
    pub fn create(path: &Path, existing: Existing, read: &[PathBuf]) -> Result<Self, Error> {
        let destination = Destination::of(path).map_err(|error| unwritable(path, &error))?;
        if let Destination::File { target, exists: true } = &destination {
            if let Some(read) = destination::find_among(target, read) {
                let found = format!("{}: expected another file than what is read, found {}", path.display(), read);
                return Err(Error::input(found));
            }
            if existing == Existing::Kept {
                return Err(refused(path));
            }
        }
        Ok(Self::begin(path, destination, existing, Access::Umask).map_err(|error| unwritable(path, &error))?)
    }

    /// Begins a file that is kept between runs: an existing one is replaced, and a new one is readable by its owner
    /// alone. Anything but a file is refused, since it could not be read again.
    pub(crate) fn kept(path: &Path) -> io::Result<Self> {
        let (target, exists) = Destination::of_file(path)?;
        Self::begin(path, Destination::File { target, exists }, Existing::Replaced, Access::Owner)
    }

    /// Makes finishing fail if another process has created a file of this name meanwhile.
    pub(crate) fn if_absent(self) -> Self {
        Self { existing: Existing::Kept, ..self }
    }

    /// Skips waiting for the disk: the file need not survive a power failure, since it can be computed again.
    pub(crate) fn not_durable(self) -> Self {
        Self { durable: false, ..self }
    }

    fn begin(path: &Path, destination: Destination, existing: Existing, access: Access) -> io::Result<Self> {
        let (file, temporary) = match destination {
            Destination::Stream(file) => (file, None),
            Destination::File { target, .. } => {
                let old = std::fs::metadata(&target).ok().filter(std::fs::Metadata::is_file);
                let (temporary_file, file) = TemporaryFile::create(&target, access == Access::Owner)?;
                // On other systems permissions are one read-only bit, which would forbid replacing the file.
                let permissions: Option<Permissions> = old.map(|old| old.permissions()).filter(|_| cfg!(unix));
                if let Some(permissions) = permissions {
                    file.set_permissions(permissions)?;
                }
                (file, Some((temporary_file, target)))
            }
        };
        Ok(Self { path: path.to_owned(), out: BufWriter::new(file), temporary, existing, durable: true })
    }

    /// Writes the content; an error names the file.
    pub(crate) fn fill(&mut self, write: impl FnOnce(&mut Self) -> io::Result<()>) -> Result<(), Error> {
        write(self).map_err(|error| unwritable(&self.path, &error).into())
    }

    /// Completes the file and gives it its name.
    ///
    /// # Errors
    /// It cannot be written, or another process created a file that is to be kept.
    pub fn finish(self) -> Result<(), Error> {
        let (path, existing) = (self.path.clone(), self.existing);
        self.end().map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists if existing == Existing::Kept => refused(&path),
            _ => unwritable(&path, &error).into(),
        })
    }

    /// As [`OutputFile::finish`], with the system's error.
    pub(crate) fn end(mut self) -> io::Result<()> {
        self.out.flush()?;
        let Some((temporary_file, target)) = self.temporary.take() else { return Ok(()) };
        if self.durable {
            self.out.get_ref().sync_all()?;
        }
        temporary_file.rename_to(&target, self.existing)?;
        // Renaming is durable once the folder is synced; systems where a folder cannot be opened need no sync.
        if self.durable {
            File::open(destination::folder(&target)).and_then(|folder| folder.sync_all()).ok();
        }
        Ok(())
    }
}

impl Write for OutputFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.out.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Who may read a new file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    /// Everybody whom the user's umask allows.
    Umask,
    /// The owner alone, since the file has users' texts.
    Owner,
}

fn unwritable(path: &Path, error: &io::Error) -> KeptFileError {
    KeptFileError::io(path, "written", error)
}

fn refused(path: &Path) -> Error {
    let message = Message::words(format!("{}: expected no such file (", path.display())).and_setting("force");
    Error::Input(message.and(" writes over it), found one"))
}
