//! A lock for replacing a file after reading it, which one process has at a time.
//!
//! The file itself is locked, so no lock file can be left behind. Because the file is replaced and not overwritten, a
//! lock is valid only if the locked file still has its name. A file that does not exist cannot be locked: of several
//! processes that create it one succeeds, and the others try again ([`WriteLock::has_file`]). A lock ends with its
//! process. On systems and disks without locks the last writer wins.

use std::fs::{File, TryLockError};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use super::destination::{self, Destination};

/// The longest wait for other processes, each of which has the lock while it reads and writes one file.
const WAIT_MAX: Duration = Duration::from_secs(30);
/// Time between two attempts to lock.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// The right to replace a file, until it is dropped.
#[derive(Debug)]
pub(crate) struct WriteLock {
    locked: Option<File>,
}

impl WriteLock {
    /// Waits for the lock of the file at `path`.
    ///
    /// # Errors
    /// Other processes had the lock for [`WAIT_MAX`]; or the path cannot be opened or is not a file.
    pub(crate) fn take(path: &Path) -> io::Result<Self> {
        let until = Instant::now() + WAIT_MAX;
        loop {
            let (target, exists) = Destination::of_file(path)?;
            if !exists {
                return Ok(Self { locked: None });
            }
            let file = match open_to_lock(&target) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                other => other?,
            };
            // On other systems a lock prevents reading, and an open file cannot be replaced.
            if cfg!(not(unix)) {
                return Ok(Self { locked: Some(file) });
            }
            match file.try_lock() {
                Ok(()) if destination::is_at(&file, &target) => return Ok(Self { locked: Some(file) }),
                // Another process replaced the file before this one had the lock.
                Ok(()) => continue,
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                // Not all file systems have locks.
                Err(TryLockError::Error(_)) => return Ok(Self { locked: Some(file) }),
            }
            if Instant::now() > until {
                let found = format!("found another one writing for {} seconds", WAIT_MAX.as_secs());
                return Err(io::Error::other(format!("expected other processes to end writing, {found}")));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Whether there is a file to be replaced; otherwise this process has to create it.
    pub(crate) fn has_file(&self) -> bool {
        self.locked.is_some()
    }
}

/// Opens the file to lock it: for writing, which some file systems require, or for reading where it is read-only.
fn open_to_lock(target: &Path) -> io::Result<File> {
    let for_both = File::options().read(true).write(true).open(target);
    for_both.or_else(|error| match error.kind() {
        io::ErrorKind::NotFound => Err(error),
        _ => File::open(target),
    })
}
