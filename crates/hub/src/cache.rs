//! The cache folder of one repository, in the layout of `huggingface_hub`.
//!
//! `blobs/ETAG` are the files, `snapshots/COMMIT/PATH` are links to them, and `refs/REVISION` has the commit that a
//! branch or tag pointed to; `trees/COMMIT.json` is the listing of a commit. `trees/COMMIT.foretoken.json`, which only
//! this program uses, is an incomplete listing, without some sizes or checksums. Files get their names when they are
//! complete. The cache itself may be behind a link, but nothing is written through a link that leads out of it.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use foretoken_weights::whole::{self, SETTINGS_BYTES_MAX};

use crate::checksum::Etag;
use crate::error::HubError;
use crate::listing::Listing;
use crate::name::{is_commit, is_part, is_revision};

/// Maximum number of bytes of a configuration or an index.
pub(crate) const TEXT_MAX: u64 = 128 << 20;
/// The deepest nesting of folders in a snapshot.
const DEPTH_MAX: usize = 8;
/// The prefix of a repository's folder.
const PREFIX: &str = "models--";
/// Maximum number of bytes of a record.
const RECORD_MAX: u64 = 64 << 20;

/// The folder of a repository in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Folder {
    /// `models--org--name`.
    pub path: PathBuf,
    cache: PathBuf,
    locks: PathBuf,
}

impl Folder {
    pub(crate) fn new(cache: &Path, owner: &str, repository: &str) -> Self {
        let name = format!("{PREFIX}{owner}--{repository}");
        Self { path: cache.join(&name), cache: cache.to_path_buf(), locks: cache.join(".locks").join(name) }
    }

    /// The folders of all repositories in a cache, by `org/name`.
    pub(crate) fn all(cache: &Path) -> BTreeMap<String, Self> {
        let entries = fs::read_dir(cache).into_iter().flatten().flatten();
        let named = entries.filter_map(|entry| {
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            let name = entry.file_name().into_string().ok().filter(|_| is_folder)?;
            let (owner, repository) = name.strip_prefix(PREFIX)?.split_once("--")?;
            let is_legal = is_part(owner) && is_part(repository);
            is_legal.then(|| (format!("{owner}/{repository}"), Self::new(cache, owner, repository)))
        });
        named.collect()
    }

    pub(crate) fn blob(&self, etag: &Etag) -> PathBuf {
        self.path.join("blobs").join(etag.to_string())
    }

    fn lock(&self, etag: &Etag) -> PathBuf {
        self.locks.join(format!("{etag}.lock"))
    }

    /// Opens the lock file of a blob, which is created if it does not exist. It is never removed: otherwise two
    /// processes could lock different files of the same name. Also returns its path, for messages.
    pub(crate) fn open_lock(&self, etag: &Etag) -> (PathBuf, io::Result<fs::File>) {
        let path = self.lock(etag);
        let file = self.make_folder_of(&path).and_then(|()| {
            let mut options = fs::OpenOptions::new();
            without_links(options.write(true).create(true).truncate(false)).open(&path)
        });
        (path, file)
    }

    /// Makes the folders between the cache and a file in it.
    ///
    /// # Errors
    /// The system's; or one of them is a link that leads out of the cache.
    pub(crate) fn make_folder_of(&self, file: &Path) -> io::Result<()> {
        fs::create_dir_all(&self.cache)?;
        let below = file.parent().and_then(|folder| folder.strip_prefix(&self.cache).ok()).unwrap_or(Path::new(""));
        let mut folder = self.cache.clone();
        for part in below {
            folder.push(part);
            match fs::symlink_metadata(&folder) {
                Ok(found) if found.is_symlink() && !self.holds(&folder) => {
                    let place = folder.display();
                    return Err(io::Error::other(format!("expected a folder of the cache, found a link out: {place}")));
                }
                Ok(_) => {}
                // Another process may make it at the same time.
                Err(_) => fs::create_dir(&folder).or_else(|error| match folder.is_dir() {
                    true => Ok(()),
                    false => Err(error),
                })?,
            }
        }
        Ok(())
    }

    /// Whether a link leads to a folder in the cache.
    fn holds(&self, link: &Path) -> bool {
        matches!((link.canonicalize(), self.cache.canonicalize()), (Ok(found), Ok(cache)) if found.starts_with(&cache))
    }

    /// The checksum of a file, if it is a blob or an incomplete one.
    pub(crate) fn etag_of(&self, file: &Path) -> Option<Etag> {
        let name = file.strip_prefix(self.path.join("blobs")).ok()?.to_str()?;
        Etag::parse(name.strip_suffix(".incomplete").unwrap_or(name))
    }

    pub(crate) fn snapshot(&self, commit: &str) -> PathBuf {
        self.path.join("snapshots").join(commit)
    }

    pub(crate) fn record(&self, commit: &str) -> PathBuf {
        self.path.join("trees").join(format!("{commit}.json"))
    }

    /// The commits that have snapshots.
    pub(crate) fn commits(&self) -> Vec<String> {
        let entries = fs::read_dir(self.path.join("snapshots")).into_iter().flatten().flatten();
        let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        let mut all: Vec<String> = folders.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        all.retain(|name| is_commit(name));
        all.sort_unstable();
        all
    }

    /// The commit that a revision pointed to when it was last fetched.
    pub(crate) fn commit_of(&self, revision: &str) -> Option<String> {
        if is_commit(revision) {
            return Some(revision.to_string());
        }
        let text = whole::read_text(&self.path.join("refs").join(revision), SETTINGS_BYTES_MAX).ok()?;
        Some(text.trim().to_string()).filter(|commit| is_commit(commit))
    }

    /// Branches and tags, with the commits that they pointed to.
    pub(crate) fn refs(&self) -> Vec<(String, String)> {
        let names = files_below(&self.path.join("refs"));
        let found = names.into_keys().filter(|name| is_revision(name));
        found.filter_map(|name| self.commit_of(&name).map(|commit| (name, commit))).collect()
    }

    /// The record of a listing that is incomplete, or whose record was written by another program.
    pub(crate) fn partial_record(&self, commit: &str) -> PathBuf {
        self.path.join("trees").join(format!("{commit}.foretoken.json"))
    }

    /// The recorded listing of a commit.
    pub(crate) fn read_record(&self, commit: &str) -> Option<Listing> {
        let whole = read_record_bytes(&self.record(commit)).and_then(|text| Listing::of_record(commit, &text));
        whole.or_else(|| Listing::of_partial(commit, &read_record_bytes(&self.partial_record(commit))?))
    }

    /// Links a file of a snapshot to its blob.
    pub(crate) fn link(&self, commit: &str, path: &str, etag: &Etag) -> Result<(), HubError> {
        let destination = self.snapshot(commit).join(path);
        let up = "../".repeat(path.matches('/').count() + 2);
        let target = PathBuf::from(format!("{up}blobs/{etag}"));
        if fs::read_link(&destination).is_ok_and(|found| found == target) {
            return Ok(());
        }
        self.write_atomically(&destination, |temporary| link(&target, temporary, &self.blob(etag)))
    }

    /// Writes the listing of a commit, as far as it is known. An existing record is kept, even if it cannot be parsed:
    /// it may have more.
    pub(crate) fn write_record(&self, listing: &Listing) -> Result<(), HubError> {
        let (destination, before) = (self.record(&listing.commit), self.read_record(&listing.commit));
        if let Some(record) = listing.record().filter(|_| fs::symlink_metadata(&destination).is_err()) {
            return self.write_atomically(&destination, |temporary| write_new(temporary, &record));
        }
        let all = listing.clone().with(before.clone());
        match before {
            Some(before) if before.clone().with(Some(all.clone())) == before => Ok(()),
            _ => self.write_atomically(&self.partial_record(&listing.commit), |temporary| {
                write_new(temporary, &all.partial())
            }),
        }
    }

    /// Writes the commit that a branch or tag points to.
    pub(crate) fn write_ref(&self, revision: &str, commit: &str) -> Result<(), HubError> {
        if is_commit(revision) || self.commit_of(revision).as_deref() == Some(commit) {
            return Ok(());
        }
        self.write_atomically(&self.path.join("refs").join(revision), |temporary| write_new(temporary, commit))
    }

    /// Creates something under a temporary name and renames it.
    fn write_atomically(&self, destination: &Path, make: impl Fn(&Path) -> io::Result<()>) -> Result<(), HubError> {
        let written = |error| HubError::disk(destination, "written", &error);
        self.make_folder_of(destination).map_err(written)?;
        let name = destination.file_name().unwrap_or_default().to_string_lossy();
        // The name is unique to the process and the thread.
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let temporary = destination.with_file_name(format!(".{name}.{}-{number}.new", std::process::id()));
        // A killed process of the same number may have left one.
        let _ = fs::remove_file(&temporary);
        make(&temporary).and_then(|()| fs::rename(&temporary, destination)).map_err(|error| {
            let _ = fs::remove_file(&temporary);
            written(error)
        })
    }
}

/// Writes a file that does not exist yet, not even as a link.
fn write_new(path: &Path, text: &str) -> io::Result<()> {
    fs::File::create_new(path)?.write_all(text.as_bytes())
}

/// Adds to options of opening that the system refuses to open a link.
#[cfg(unix)]
pub(crate) fn without_links(options: &mut fs::OpenOptions) -> &mut fs::OpenOptions {
    let flag = i32::try_from(rustix::fs::OFlags::NOFOLLOW.bits()).unwrap_or_default();
    std::os::unix::fs::OpenOptionsExt::custom_flags(options, flag)
}

#[cfg(not(unix))]
pub(crate) fn without_links(options: &mut fs::OpenOptions) -> &mut fs::OpenOptions {
    options
}

/// The bytes of a record, if it is not too long.
fn read_record_bytes(path: &Path) -> Option<Vec<u8>> {
    whole::read(path, RECORD_MAX).ok()
}

/// Whether a file is missing or has the wrong size; if the size is unknown, an empty file is incomplete.
pub(crate) fn is_incomplete(found: Option<u64>, expected: Option<u64>) -> bool {
    found.is_none_or(|found| expected.map_or(found == 0, |expected| found != expected))
}

#[cfg(unix)]
fn link(target: &Path, destination: &Path, _blob: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, destination)
}

/// If users may not create symbolic links, a hard link or a copy is used, as in `huggingface_hub`.
#[cfg(not(unix))]
fn link(_target: &Path, destination: &Path, blob: &Path) -> io::Result<()> {
    fs::hard_link(blob, destination).or_else(|_| fs::copy(blob, destination).map(|_| ()))
}

/// The files below a folder with their sizes, by path with slashes. Links to files count as these files; links to
/// folders are not followed.
pub(crate) fn files_below(folder: &Path) -> BTreeMap<String, u64> {
    fn walk(folder: &Path, prefix: &str, depth: usize, found: &mut BTreeMap<String, u64>) {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let (Ok(name), Ok(kind)) = (entry.file_name().into_string(), entry.file_type()) else { continue };
            let path = format!("{prefix}{name}");
            if kind.is_dir() && depth < DEPTH_MAX {
                walk(&entry.path(), &format!("{path}/"), depth + 1, found);
            } else if let Some(file) = fs::metadata(entry.path()).ok().filter(fs::Metadata::is_file) {
                found.insert(path, file.len());
            }
        }
    }
    let mut found = BTreeMap::new();
    walk(folder, "", 0, &mut found);
    found
}
