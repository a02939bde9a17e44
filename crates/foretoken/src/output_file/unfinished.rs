//! Temporary files: named after what they will be, locked by who writes them, and removed whatever happens.
//!
//! A file is removed when its owner is dropped and, by [`remove_all`], when a signal ends the program. Whoever dies
//! otherwise leaves it behind, without its lock; the next one who writes to the same place finds it by its name and
//! takes it away. A lock tells more than a process's number: it holds across containers and after a restart.

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{Existing, place};

/// Of this process, those that exist.
static ALL: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn all() -> MutexGuard<'static, Vec<PathBuf>> {
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes all files that this process has not finished, and lets it begin and finish none any more: for whoever is
/// about to end the process from another thread.
pub fn remove_all() {
    let all = all();
    all.iter().for_each(|path| _ = std::fs::remove_file(path));
    // Whoever finishes one now waits until the process is gone.
    std::mem::forget(all);
}

/// A file that is removed when it is dropped, unless it has taken its place.
#[derive(Debug)]
pub(super) struct Unfinished {
    path: PathBuf,
}

impl Unfinished {
    /// A new file beside `target`; what others left there is taken away first.
    pub(super) fn create(target: &Path, for_owner: bool) -> io::Result<(Self, File)> {
        // A name of its own for each process and each writing: no two write into the same file.
        static WRITTEN: AtomicU64 = AtomicU64::new(0);
        let name = target.file_name().ok_or_else(|| io::Error::other("it names no file"))?.to_string_lossy();
        remove_left_behind(place::folder(target), &name);
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
                // Another system's process of this number, on a shared disk, writes the same.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
                Ok(file) => {
                    // Another one may have found it before it was locked, and takes it for one that was left behind.
                    // Where files cannot be locked all of those stay.
                    if !matches!(file.try_lock(), Err(TryLockError::WouldBlock)) && path.exists() {
                        all.push(path.clone());
                        return Ok((Self { path }, file));
                    }
                }
            }
        }
    }

    /// Gives it the name `target`.
    pub(super) fn take_place(mut self, target: &Path, existing: Existing) -> io::Result<()> {
        // Held until it is done: a signal's end comes before or after.
        let mut all = all();
        let renamed = match existing {
            Existing::Replaced => std::fs::rename(&self.path, target),
            // A second name is refused where there is one already; renaming would take it away.
            Existing::Kept => match std::fs::hard_link(&self.path, target) {
                Ok(()) => std::fs::remove_file(&self.path),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(error),
                // Not all file systems have second names.
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

impl Drop for Unfinished {
    fn drop(&mut self) {
        if self.path.as_os_str().is_empty() {
            return;
        }
        let mut all = all();
        // Nobody is left to tell; a file that stays behind has a name that says what it is.
        let _ = std::fs::remove_file(&self.path);
        all.retain(|path| *path != self.path);
    }
}

/// Removes the temporary files of this name in a folder that nobody writes any more.
fn remove_left_behind(folder: &Path, name: &str) {
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
        // Locks are of open files, so this process's own count as well.
        let Ok(file) = File::options().write(true).open(entry.path()) else { continue };
        if !matches!(file.try_lock(), Err(TryLockError::WouldBlock | TryLockError::Error(_))) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}
