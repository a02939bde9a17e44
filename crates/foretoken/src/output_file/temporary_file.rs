//! Temporary files: named after the file that they become, locked by their writer, and removed in the end.
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

/// Removes all files that this process has not finished, and prevents it from creating or finishing others. Call it
/// before the process is ended from another thread.
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
    /// Creates a file in the folder of `target`; removes abandoned ones first.
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
                // A process of the same number on another machine, with a shared disk, writes the same.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
                Ok(file) => {
                    // Another process may have found it before it was locked, and takes it for an abandoned one. Where
                    // files cannot be locked, abandoned ones are never removed.
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
        // Locked, so that a signal ends the process before or after this.
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
            self.path = PathBuf::new(); // nothing is left to be removed
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

/// Removes the temporary files of this name in a folder that no process has locked.
fn remove_abandoned(folder: &Path, name: &str) {
    let (before, behind) = (format!(".{name}."), ".part");
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let found = entry.file_name();
        let middle = found.to_str().and_then(|found| found.strip_prefix(&before)?.strip_suffix(behind));
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
