//! Turns: who reads a file, adds to it and replaces it does so while no other process does.
//!
//! The file itself is locked, so nothing lies beside it that somebody would have to take away. Because it is replaced
//! and not written over, a lock counts only if the file still has its name once we have it. Where there is no file yet
//! nothing can be locked; of those who make the first one a single one gets the name, and the others take their turn
//! ([`Turn::is_of_a_file`]). A lock ends with its process. Left out: systems and disks without such locks, where the
//! last one wins, whole.

use std::fs::{File, TryLockError};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use super::place::{self, Place};

/// So long a process waits for the others. Each holds its turn for as long as it reads and writes one file.
const WAIT_MAX: Duration = Duration::from_secs(30);
/// Between two looks whether it is our turn.
const LOOK: Duration = Duration::from_millis(2);

/// The right to replace a file, until it is dropped.
#[derive(Debug)]
pub(crate) struct Turn {
    locked: Option<File>,
}

impl Turn {
    /// Waits for the turn of this process to replace the file at `path`.
    ///
    /// # Errors
    /// Another process has had its turn for [`WAIT_MAX`]; or the file cannot be opened, or is none.
    pub(crate) fn take(path: &Path) -> io::Result<Self> {
        let until = Instant::now() + WAIT_MAX;
        loop {
            let (target, is_there) = Place::of_file(path)?;
            if !is_there {
                return Ok(Self { locked: None });
            }
            let file = match opened(&target) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                other => other?,
            };
            // Locks of other systems forbid others to read, and a file that is open cannot be replaced there.
            if cfg!(not(unix)) {
                return Ok(Self { locked: Some(file) });
            }
            match file.try_lock() {
                Ok(()) if place::is_at(&file, &target) => return Ok(Self { locked: Some(file) }),
                // It was replaced by the one whose turn it was.
                Ok(()) => continue,
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                // Not all disks have locks.
                Err(TryLockError::Error(_)) => return Ok(Self { locked: Some(file) }),
            }
            if Instant::now() > until {
                let found = format!("found another one writing for {} seconds", WAIT_MAX.as_secs());
                return Err(io::Error::other(format!("expected other processes to end writing, {found}")));
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Whether there is a file to be replaced; else ours must be the first.
    pub(crate) fn is_of_a_file(&self) -> bool {
        self.locked.is_some()
    }
}

/// The file, for a lock: some disks want it to be open for writing, and some files may only be read.
fn opened(target: &Path) -> io::Result<File> {
    let for_both = File::options().read(true).write(true).open(target);
    for_both.or_else(|error| match error.kind() {
        io::ErrorKind::NotFound => Err(error),
        _ => File::open(target),
    })
}
