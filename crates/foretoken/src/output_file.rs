//! Files that a program writes: whole or not at all, and never over what nobody wanted to lose.
//!
//! The bytes go to a temporary file beside the place (`unfinished.rs`), which takes the place's name when all of them
//! are on the disk: whoever opens that name, after a crash too, finds a whole file or the old one. A command says what
//! may happen to a file that is there ([`Existing`]) and what it reads, which it can then not destroy, whatever links
//! lead to it. Devices, named pipes and open files (`/dev/stdout`) are written to as they are and never replaced
//! (`place.rs`). Left out: what is in a file.

mod place;
#[cfg(test)]
mod tests;
mod turn;
mod unfinished;

use std::fs::{File, Permissions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::Error;
use crate::error::Message;
use crate::kept_file::KeptFileError;
use place::Place;
pub(crate) use place::is_same;
pub(crate) use turn::Turn;
use unfinished::Unfinished;
pub use unfinished::remove_all as remove_unfinished;

/// What may happen to a file that is there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// Nothing: it is refused, and kept if it only came while the new one was being written.
    Kept,
    /// It is replaced: somebody said so (`--force`), or it is this program's own.
    Replaced,
}

/// A file that is being written. Dropped before [`OutputFile::finish`] it leaves no trace.
#[derive(Debug)]
pub struct OutputFile {
    /// As it was named, for messages.
    path: PathBuf,
    out: BufWriter<File>,
    /// The temporary file and the place that it will take; none of what is written to as it is.
    beside: Option<(Unfinished, PathBuf)>,
    existing: Existing,
    /// Whether the bytes must be on the disk before the name is given.
    durable: bool,
}

impl OutputFile {
    /// Begins the file that will be at `path`, of an output that a user names. `read`: the files and folders that the
    /// caller reads; of a folder all files inside but those of the ending `.gguf`, which no folder's model has.
    ///
    /// On Unix an old file's permissions stay.
    ///
    /// # Errors
    /// A file is there and is to be kept, or is one of those that are read; `path` is a folder, or names no file; or
    /// the system does not let us write there.
    pub fn create(path: &Path, existing: Existing, read: &[PathBuf]) -> Result<Self, Error> {
        let place = Place::of(path).map_err(|error| unwritable(path, &error))?;
        if let Place::File { target, is_there: true } = &place {
            if let Some(read) = place::found_among(target, read) {
                let found = format!("{}: expected another file than what is read, found {}", path.display(), read);
                return Err(Error::input(found));
            }
            if existing == Existing::Kept {
                return Err(refused(path));
            }
        }
        Ok(Self::begin(path, place, existing, Rights::OfUmask).map_err(|error| unwritable(path, &error))?)
    }

    /// The same of a file that this program keeps for itself: it is replaced, and a new one is for its owner alone.
    /// What is no file cannot be kept and read again, so it is refused.
    pub(crate) fn kept(path: &Path) -> io::Result<Self> {
        let (target, is_there) = Place::of_file(path)?;
        Self::begin(path, Place::File { target, is_there }, Existing::Replaced, Rights::OfOwner)
    }

    /// The same file, which is only kept if none comes to its place meanwhile.
    pub(crate) fn if_first(self) -> Self {
        Self { existing: Existing::Kept, ..self }
    }

    /// The same file, which need not survive a failure of power: what is lost is made anew.
    pub(crate) fn fleeting(self) -> Self {
        Self { durable: false, ..self }
    }

    fn begin(path: &Path, place: Place, existing: Existing, rights: Rights) -> io::Result<Self> {
        let (file, beside) = match place {
            Place::Stream(file) => (file, None),
            Place::File { target, .. } => {
                let old = std::fs::metadata(&target).ok().filter(std::fs::Metadata::is_file);
                let (unfinished, file) = Unfinished::create(&target, rights == Rights::OfOwner)?;
                // Elsewhere permissions are one bit, which would forbid to replace the file.
                let permissions: Option<Permissions> = old.map(|old| old.permissions()).filter(|_| cfg!(unix));
                if let Some(permissions) = permissions {
                    file.set_permissions(permissions)?;
                }
                (file, Some((unfinished, target)))
            }
        };
        Ok(Self { path: path.to_owned(), out: BufWriter::new(file), beside, existing, durable: true })
    }

    /// Writes into the file; an error names it.
    pub(crate) fn fill(&mut self, write: &mut dyn FnMut(&mut Self) -> io::Result<()>) -> Result<(), Error> {
        write(self).map_err(|error| unwritable(&self.path, &error).into())
    }

    /// Ends the file and gives it its name.
    ///
    /// # Errors
    /// It cannot be written, or a file that is to be kept has come to its place meanwhile.
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
        let Some((unfinished, target)) = self.beside.take() else { return Ok(()) };
        if self.durable {
            self.out.get_ref().sync_all()?;
        }
        unfinished.take_place(&target, self.existing)?;
        // The name is safe when its folder is; systems where a folder cannot be opened do it on their own.
        if self.durable {
            File::open(place::folder(&target)).and_then(|folder| folder.sync_all()).ok();
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
enum Rights {
    /// Whom the user's settings let.
    OfUmask,
    /// Its owner: it holds what people wrote.
    OfOwner,
}

fn unwritable(path: &Path, error: &io::Error) -> KeptFileError {
    KeptFileError::io(path, "written", error)
}

fn refused(path: &Path) -> Error {
    let message = Message::words(format!("{}: expected no such file (", path.display())).and_setting("force");
    Error::Input(message.and(" writes over it), found one"))
}
