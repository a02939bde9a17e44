//! A store's file that several processes add to: a chat that is open, and whoever writes beside it.
//!
//! Each process learned the file as it was when it began, and adds its own texts. Before it writes it takes its turn,
//! looks whether the file is still the one that it last saw (by its checksum, the last eight bytes), and if not takes
//! over what is in it now and adds its own texts behind that. So no text is lost, whoever writes when. What was removed
//! or cannot be understood is treated as at the start: a file that is gone is made anew, a damaged one is refused and
//! kept. Left out: learning what others wrote meanwhile, which the next run does.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::PathBuf;

use super::{Document, Store, TOKENS_MAX, format};
use crate::kept_file::KeptFileError;
use crate::output_file::{OutputFile, Turn};

/// A store with the file that it is kept in.
pub(crate) struct SharedStore {
    path: PathBuf,
    store: Store,
    /// The newest texts of the store that are in no file yet.
    unsaved: usize,
    /// The checksum of the file as it was last read or written; `None`: there was none.
    seen: Option<u64>,
}

impl SharedStore {
    /// The file that is there, as it was read, or none. `tokens_max` of `store` is what the file may hold from now on.
    pub(crate) fn new(path: PathBuf, store: Store, seen: Option<u64>) -> Self {
        Self { path, store, unsaved: 0, seen }
    }

    /// Adds a text as the newest, for the next [`SharedStore::save`].
    pub(crate) fn add(&mut self, document: Document) {
        let added = self.store.add(document);
        self.unsaved = (self.unsaved + usize::from(added)).min(self.store.documents.len());
    }

    /// Writes the file, with what others wrote to it since it was last seen. `next_request`: the number that the next
    /// request of this process will have.
    ///
    /// # Errors
    /// The file cannot be written, or what is there now cannot be used; it is unchanged then.
    pub(crate) fn save(&mut self, next_request: u64) -> Result<(), KeptFileError> {
        let failed = |path: &PathBuf, error: &io::Error| KeptFileError::io(path, "written", error);
        self.store.next_request = self.store.next_request.max(next_request);
        loop {
            let turn = Turn::take(&self.path).map_err(|error| failed(&self.path, &error))?;
            self.take_over()?;
            match self.write(turn.is_of_a_file()) {
                Ok(sum) => {
                    (self.seen, self.unsaved) = (Some(sum), 0);
                    return Ok(());
                }
                // Another process made the first file meanwhile.
                Err(error) if !turn.is_of_a_file() && error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(failed(&self.path, &error)),
            }
        }
    }

    /// Reads the file if it is another one than was last seen, and puts what was not saved yet behind its texts.
    fn take_over(&mut self) -> Result<(), KeptFileError> {
        let now = match last_sum(&self.path) {
            Ok(sum) => Some(sum),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(KeptFileError::io(&self.path, "read", &error)),
        };
        if now.is_none() || now == self.seen {
            return Ok(());
        }
        let (mut found, sum) = Store::load_with_sum(&self.path, self.store.vocabulary, TOKENS_MAX)?;
        // Whoever keeps more may do so: only as many of its texts go as ours need room.
        found.tokens_max = self.store.tokens_max.max(found.tokens);
        found.next_request = found.next_request.max(self.store.next_request);
        let ours = self.store.documents.len() - self.unsaved;
        for document in self.store.documents.drain(ours..) {
            found.add(document);
        }
        found.tokens_max = self.store.tokens_max.max(found.tokens);
        self.unsaved = self.unsaved.min(found.documents.len());
        (self.store, self.seen) = (found, Some(sum));
        Ok(())
    }

    /// Writes the file; its checksum.
    fn write(&self, is_there: bool) -> io::Result<u64> {
        let file = OutputFile::kept(&self.path)?;
        let mut file = if is_there { file } else { file.if_first() };
        let sum = format::write(&mut file, &self.store)?;
        file.end()?;
        Ok(sum)
    }
}

/// The last eight bytes of a file: the checksum of all before.
fn last_sum(path: &PathBuf) -> io::Result<u64> {
    // The turn has seen that it is a file, or that nothing was there.
    let mut file = File::open(path)?;
    let mut bytes = [0; 8];
    let len = file.metadata()?.len();
    if len >= 8 {
        file.seek(SeekFrom::End(-8))?;
        file.read_exact(&mut bytes)?;
    }
    Ok(u64::from_le_bytes(bytes))
}
