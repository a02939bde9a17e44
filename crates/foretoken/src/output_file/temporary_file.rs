//! Temporary files: named after the file that they become, locked by their writer, and removed at the end.
//!
//! A file is removed when its [`TemporaryFile`] is dropped and, by [`remove_all`], when a signal ends the program. A
//! process that is killed leaves its file behind, without the lock; the next process that writes the same file finds it
//! by its name and removes it. A lock is more reliable than a process's number: it works across containers and after a
//! restart.

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{Existing, destination};

/// The temporary files of this process that exist.
static ALL: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn all() -> MutexGuard<'static, Vec<PathBuf>> {
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes all unfinished files of this process, and prevents it from creating or finishing others. Call it before
/// ending the process while other threads run.
pub fn remove_all() {
    let all = all();
    all.iter().for_each(|path| _ = std::fs::remove_file(path));
    // The lock is never released: other threads wait until the process ends.
    std::mem::forget(all);
}

/// A file that is removed when it is dropped, unless it was renamed.
#[derive(Debug)]
pub(super) struct TemporaryFile {
    path: PathBuf,
}

impl TemporaryFile {
    /// Creates a file in the folder of `target`; first removes abandoned ones. `for_owner`: only its owner may read it.
    pub(super) fn create(target: &Path, for_owner: bool) -> io::Result<(Self, File)> {
        // The name is unique to the process and the write: no two write into the same file.
        static WRITTEN: AtomicU64 = AtomicU64::new(0);
        let name = target.file_name().ok_or_else(|| io::Error::other("it names no file"))?.to_string_lossy();
        remove_abandoned(destination::folder(target), &name);
        let mut options = File::options();
        options.write(true).create_new(true);
        #[cfg(unix)]
        if for_owner {
            std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        }
        #[cfg(not(unix))]
        let _ = for_owner;
        loop {
            let (process, number) = (std::process::id(), WRITTEN.fetch_add(1, Ordering::Relaxed));
            let path = target.with_file_name(format!(".{name}.{process}-{number}.part"));
            let mut all = all();
            match options.open(&path) {
                // A process with the same number on another machine writes to the same shared disk.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
                Ok(file) => {
                    // Before it is locked here, another process may lock and remove it as an abandoned one. Where files
                    // cannot be locked, abandoned ones are never removed.
                    if !matches!(file.try_lock(), Err(TryLockError::WouldBlock)) && path.exists() {
                        all.push(path.clone());
                        return Ok((Self { path }, file));
                    }
                }
            }
        }
    }

    /// Renames it to `target`.
    pub(super) fn rename_to(mut self, target: &Path, existing: Existing) -> io::Result<()> {
        // While this is locked, `remove_all` waits, so a signal ends the process before or after the renaming.
        let mut all = all();
        let renamed = match existing {
            Existing::Replaced => std::fs::rename(&self.path, target),
            // A hard link is refused if the name exists; renaming would replace it.
            Existing::Kept => match std::fs::hard_link(&self.path, target) {
                Ok(()) => std::fs::remove_file(&self.path),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(error),
                // Not all file systems have hard links.
                Err(_) if target.symlink_metadata().is_ok() => Err(io::ErrorKind::AlreadyExists.into()),
                Err(_) => std::fs::rename(&self.path, target),
            },
        };
        if renamed.is_ok() {
            all.retain(|path| *path != self.path);
            self.path = PathBuf::new(); // Dropping removes nothing.
        }
        renamed
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        if self.path.as_os_str().is_empty() {
            return;
        }
        let mut all = all();
        // An error cannot be reported here; the next writer removes the file.
        let _ = std::fs::remove_file(&self.path);
        all.retain(|path| *path != self.path);
    }
}

/// Removes the temporary files for a file `name` in a folder that no process has locked.
fn remove_abandoned(folder: &Path, name: &str) {
    let prefix = format!(".{name}.");
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let found = entry.file_name();
        let middle = found.to_str().and_then(|found| found.strip_prefix(&prefix)?.strip_suffix(".part"));
        let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        let numbers = middle.and_then(|middle| middle.split_once('-'));
        let is_ours = numbers.is_some_and(|(process, number)| is_number(process) && is_number(number));
        if !is_ours || !entry.file_type().is_ok_and(|kind| kind.is_file()) {
            continue;
        }
        // Locks belong to open files, so this process's own files are skipped as well.
        let Ok(file) = File::options().write(true).open(entry.path()) else { continue };
        if !matches!(file.try_lock(), Err(TryLockError::WouldBlock | TryLockError::Error(_))) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}
