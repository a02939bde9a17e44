//! The cache folder of one repository, in the layout of `huggingface_hub`.
//!
//! `blobs/ETAG` are the files, `snapshots/COMMIT/PATH` are links to them, and `refs/REVISION` has the commit that a
//! branch or tag pointed to; `trees/COMMIT.json` is the listing of a commit. `trees/COMMIT.foretoken.json`, which only
//! this program uses, is an incomplete listing, without some sizes or checksums. Files get their names when they are
//! complete. The cache itself may be behind a link, but nothing is written through a link that leads out of it
//! (`directory.rs`).

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use foretoken_weights::whole::{self, SETTINGS_BYTES_MAX};

use crate::checksum::Etag;
use crate::directory::Directory;
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
    pub cache: PathBuf,
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

    /// Opens the lock file of a blob, which is created if it does not exist. It is never removed: otherwise two
    /// processes could lock different files of the same name. Also returns its path, for messages.
    pub(crate) fn open_lock(&self, etag: &Etag) -> (PathBuf, io::Result<fs::File>) {
        self.open_lock_of(&etag.to_string())
    }

    /// As [`Folder::open_lock`], of the whole repository: whoever fetches from it shares the lock, so that nothing that
    /// is needed is removed before it is linked, and whoever removes from it has the lock alone.
    pub(crate) fn open_repository_lock(&self) -> (PathBuf, io::Result<fs::File>) {
        self.open_lock_of("repository")
    }

    fn open_lock_of(&self, what: &str) -> (PathBuf, io::Result<fs::File>) {
        let name = format!("{what}.lock");
        let path = self.locks.join(&name);
        let file = self.directory_of(&path).and_then(|locks| locks.open_or_create(&name));
        (path, file)
    }

    /// Opens the folder of a file in the cache, and makes it if it is missing.
    ///
    /// # Errors
    /// The system's; or a folder is a link that leads out of the cache.
    pub(crate) fn directory_of(&self, file: &Path) -> io::Result<Directory> {
        Directory::make(&self.cache, file.parent().unwrap_or(&self.cache))
    }

    /// Opens the folder of a file to remove it, not through any link in the cache.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn existing_directory_of(&self, file: &Path) -> io::Result<Directory> {
        Directory::existing(&self.cache, file.parent().unwrap_or(&self.cache))
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
        let blob = self.blob(etag);
        self.write_atomically(&destination, |folder, temporary| folder.link(temporary, &target, &blob))
    }

    /// Writes the listing of a commit, as far as it is known. An existing record is kept, even if it cannot be parsed:
    /// it may have more.
    pub(crate) fn write_record(&self, listing: &Listing) -> Result<(), HubError> {
        let (destination, before) = (self.record(&listing.commit), self.read_record(&listing.commit));
        if let Some(record) = listing.record().filter(|_| fs::symlink_metadata(&destination).is_err()) {
            return self.write_atomically(&destination, |folder, temporary| write_new(folder, temporary, &record));
        }
        let all = listing.clone().with(before.clone());
        match before {
            Some(before) if before.clone().with(Some(all.clone())) == before => Ok(()),
            _ => self.write_atomically(&self.partial_record(&listing.commit), |folder, temporary| {
                write_new(folder, temporary, &all.partial())
            }),
        }
    }

    /// Writes the commit that a branch or tag points to.
    pub(crate) fn write_ref(&self, revision: &str, commit: &str) -> Result<(), HubError> {
        if is_commit(revision) || self.commit_of(revision).as_deref() == Some(commit) {
            return Ok(());
        }
        self.write_atomically(&self.path.join("refs").join(revision), |folder, temporary| {
            write_new(folder, temporary, commit)
        })
    }

    /// Creates something under a temporary name and renames it.
    fn write_atomically(
        &self,
        destination: &Path,
        make: impl Fn(&Directory, &str) -> io::Result<()>,
    ) -> Result<(), HubError> {
        let written = |error| HubError::disk(destination, "written", &error);
        let folder = self.directory_of(destination).map_err(written)?;
        let name = destination.file_name().unwrap_or_default().to_string_lossy();
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        loop {
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let temporary = format!(".{name}.{}-{number}.new", std::process::id());
            match make(&folder, &temporary) {
                // A process of the same number made it: in another container, which may still be writing, or killed.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                made => {
                    return made.and_then(|()| folder.rename(&temporary, &name)).map_err(|error| {
                        let _ = folder.remove(temporary.as_ref());
                        written(error)
                    });
                }
            }
        }
    }
}

/// Whether a file has the name of one that was not yet renamed.
pub(crate) fn is_temporary(file: &Path) -> bool {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    name.starts_with('.') && name.ends_with(".new")
}

/// Writes a file that does not exist yet, not even as a link.
fn write_new(folder: &Directory, name: &str, text: &str) -> io::Result<()> {
    folder.create_new(name)?.write_all(text.as_bytes())
}

/// The bytes of a record, if it is not too long.
fn read_record_bytes(path: &Path) -> Option<Vec<u8>> {
    whole::read(path, RECORD_MAX).ok()
}

/// Whether a file is missing or has the wrong size; if the size is unknown, an empty file is incomplete.
pub(crate) fn is_incomplete(found: Option<u64>, expected: Option<u64>) -> bool {
    found.is_none_or(|found| expected.map_or(found == 0, |expected| found != expected))
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
