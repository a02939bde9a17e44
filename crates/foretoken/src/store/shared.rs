//! A store whose file several processes add to at the same time.
//!
//! Each process loads the file at its start and adds its own texts. To save, it locks the file and compares its
//! checksum (the last eight bytes) with the one that it last read or wrote; if they differ, it reads the file again and
//! appends its own texts. So no text is lost, in whatever order processes write. A missing file is created, a damaged
//! one is refused and kept. Drafters learn the texts of other processes in the next run.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use super::{Document, Store, format};
use crate::error::KeptFileError;
use crate::output_file::{OutputFile, WriteLock};

/// A store and its file.
pub(crate) struct SharedStore {
    path: PathBuf,
    store: Store,
    /// How many of the newest texts are not in the file yet.
    unsaved: usize,
    /// The checksum of the file when it was last read or written; `None` if there was no file.
    last_checksum: Option<u64>,
}

impl SharedStore {
    /// `store`: as it was read from its file, or empty; its limit of tokens also limits the file. `last_checksum`: of
    /// the file, if it exists.
    pub(crate) fn new(path: PathBuf, store: Store, last_checksum: Option<u64>) -> Self {
        Self { path, store, unsaved: 0, last_checksum }
    }

    /// Adds a text as the newest, for the next [`SharedStore::save`].
    pub(crate) fn add(&mut self, document: Document) {
        let added = self.store.add(document);
        self.unsaved = (self.unsaved + usize::from(added)).min(self.store.documents.len());
    }

    /// Writes the file with the texts that other processes added meanwhile. `next_request`: the number of the next
    /// request of this process.
    ///
    /// # Errors
    /// The file cannot be written, or is damaged now; it is then unchanged.
    pub(crate) fn save(&mut self, next_request: u64) -> Result<(), KeptFileError> {
        let failed = |path: &PathBuf, error: &io::Error| KeptFileError::io(path, "written", error);
        self.store.next_request = self.store.next_request.max(next_request);
        loop {
            let lock = WriteLock::take(&self.path).map_err(|error| failed(&self.path, &error))?;
            self.merge_file()?;
            match self.write(lock.has_file()) {
                Ok(checksum) => {
                    (self.last_checksum, self.unsaved) = (Some(checksum), 0);
                    return Ok(());
                }
                // Another process created the first file meanwhile.
                Err(error) if !lock.has_file() && error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(failed(&self.path, &error)),
            }
        }
    }

    /// Reads the file if it has changed, and appends the unsaved texts to its texts.
    fn merge_file(&mut self) -> Result<(), KeptFileError> {
        let now = match checksum_of(&self.path) {
            Ok(checksum) => Some(checksum),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(KeptFileError::io(&self.path, "read", &error)),
        };
        if now.is_none() || now == self.last_checksum {
            return Ok(());
        }
        let (mut found, checksum) = Store::load_with_checksum(&self.path, self.store.vocabulary)?;
        // Another process may keep more tokens. Its texts are only dropped to make room for these.
        found.tokens_max = self.store.tokens_max.max(found.tokens);
        found.next_request = found.next_request.max(self.store.next_request);
        let ours = self.store.documents.len() - self.unsaved;
        for document in self.store.documents.drain(ours..) {
            found.add(document);
        }
        found.tokens_max = self.store.tokens_max.max(found.tokens);
        self.unsaved = self.unsaved.min(found.documents.len());
        (self.store, self.last_checksum) = (found, Some(checksum));
        Ok(())
    }

    /// Writes the file; returns its checksum.
    fn write(&self, exists: bool) -> io::Result<u64> {
        let file = OutputFile::kept(&self.path)?;
        let mut file = if exists { file } else { file.if_absent() };
        let checksum = format::write(&mut file, &self.store)?;
        file.end()?;
        Ok(checksum)
    }
}

/// The last eight bytes of a file: the checksum of all bytes before.
fn checksum_of(path: &Path) -> io::Result<u64> {
    // The lock has checked that it is a file or does not exist.
    let mut file = File::open(path)?;
    let mut bytes = [0; 8];
    let len = file.metadata()?.len();
    if len >= 8 {
        file.seek(SeekFrom::End(-8))?;
        file.read_exact(&mut bytes)?;
    }
    Ok(u64::from_le_bytes(bytes))
}
