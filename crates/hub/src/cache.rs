//! The cache folder of one repository, as `huggingface_hub` lays it out.
//!
//! `blobs/ETAG` are the files, `snapshots/COMMIT/PATH` are links to them, and `refs/REVISION` says which commit a
//! branch or tag stood at; `trees/COMMIT.json` is the listing of a commit. `trees/COMMIT.foretoken.json`, which is
//! ours alone, is what is known of one that is not known whole. Files get their names when they are whole.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use foretoken_weights::whole::{self, SETTINGS_BYTES_MAX};

use crate::checksum::Etag;
use crate::error::HubError;
use crate::listing::Listing;
use crate::name::{is_commit, is_part, is_revision};

/// Folders within folders of a snapshot, at most.
const DEPTH_MAX: usize = 8;
/// What stands in front of a repository's name in its folder's.
const PREFIX: &str = "models--";
/// Bytes of a record, at most.
const RECORD_MAX: u64 = 64 << 20;

/// The folder of a repository in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Folder {
    /// `models--org--name`.
    pub path: PathBuf,
    locks: PathBuf,
}

impl Folder {
    pub(crate) fn new(cache: &Path, owner: &str, repository: &str) -> Self {
        let name = format!("{PREFIX}{owner}--{repository}");
        Self { path: cache.join(&name), locks: cache.join(".locks").join(name) }
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

    pub(crate) fn lock(&self, etag: &Etag) -> PathBuf {
        self.locks.join(format!("{etag}.lock"))
    }

    /// The lock of a file, if it is a blob or one that is not whole yet.
    pub(crate) fn lock_of(&self, file: &Path) -> Option<PathBuf> {
        let name = file.strip_prefix(self.path.join("blobs")).ok()?.to_str()?;
        let etag = Etag::parse(name.strip_suffix(".incomplete").unwrap_or(name))?;
        Some(self.lock(&etag))
    }

    pub(crate) fn snapshot(&self, commit: &str) -> PathBuf {
        self.path.join("snapshots").join(commit)
    }

    pub(crate) fn record(&self, commit: &str) -> PathBuf {
        self.path.join("trees").join(format!("{commit}.json"))
    }

    /// The commits whose snapshots are here.
    pub(crate) fn commits(&self) -> Vec<String> {
        let entries = fs::read_dir(self.path.join("snapshots")).into_iter().flatten().flatten();
        let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        let mut all: Vec<String> = folders.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        all.retain(|name| is_commit(name));
        all.sort_unstable();
        all
    }

    /// The commit that a revision stood at when it was last asked for.
    pub(crate) fn commit_of(&self, revision: &str) -> Option<String> {
        if is_commit(revision) {
            return Some(revision.to_string());
        }
        let text = whole::read_text(&self.path.join("refs").join(revision), SETTINGS_BYTES_MAX).ok()?;
        Some(text.trim().to_string()).filter(|commit| is_commit(commit))
    }

    /// Branches and tags, with the commits that they stood at.
    pub(crate) fn refs(&self) -> Vec<(String, String)> {
        let names = files_below(&self.path.join("refs"));
        let found = names.into_keys().filter(|name| is_revision(name));
        found.filter_map(|name| self.commit_of(&name).map(|commit| (name, commit))).collect()
    }

    /// What is kept of a commit's listing where not all is known of it, or where its record is not ours to write.
    pub(crate) fn partial_record(&self, commit: &str) -> PathBuf {
        self.path.join("trees").join(format!("{commit}.foretoken.json"))
    }

    /// The listing that is kept of a commit.
    pub(crate) fn read_record(&self, commit: &str) -> Option<Listing> {
        let whole = small(&self.record(commit)).and_then(|text| Listing::of_record(commit, &text));
        whole.or_else(|| Listing::of_partial(commit, &small(&self.partial_record(commit))?))
    }

    /// Links a file of a snapshot to its blob.
    pub(crate) fn link(&self, commit: &str, path: &str, etag: &Etag) -> Result<(), HubError> {
        let place = self.snapshot(commit).join(path);
        let up = "../".repeat(path.matches('/').count() + 2);
        let target = PathBuf::from(format!("{up}blobs/{etag}"));
        if fs::read_link(&place).is_ok_and(|found| found == target) {
            return Ok(());
        }
        in_place(&place, |beside| link(&target, beside, &self.blob(etag)))
    }

    /// Keeps the listing of a commit, as far as it is known. A record that is there stays, and also one that is not
    /// understood: it may say more.
    pub(crate) fn keep_record(&self, listing: &Listing) -> Result<(), HubError> {
        let (place, before) = (self.record(&listing.commit), self.read_record(&listing.commit));
        if let Some(record) = listing.record().filter(|_| fs::symlink_metadata(&place).is_err()) {
            return in_place(&place, |beside| fs::write(beside, &record));
        }
        let all = listing.clone().with(before.clone());
        match before {
            Some(before) if before.clone().with(Some(all.clone())) == before => Ok(()),
            _ => in_place(&self.partial_record(&listing.commit), |beside| fs::write(beside, all.partial())),
        }
    }

    /// Keeps what a branch or tag stands at.
    pub(crate) fn keep_ref(&self, revision: &str, commit: &str) -> Result<(), HubError> {
        if is_commit(revision) || self.commit_of(revision).as_deref() == Some(commit) {
            return Ok(());
        }
        in_place(&self.path.join("refs").join(revision), |beside| fs::write(beside, commit))
    }
}

/// A file's text, if it is no longer than a record may be.
fn small(path: &Path) -> Option<Vec<u8>> {
    whole::read(path, RECORD_MAX).ok()
}

/// Whether a file is missing or of another size than it should have; where nobody says, an empty one is none.
pub(crate) fn is_lacking(found: Option<u64>, expected: Option<u64>) -> bool {
    found.is_none_or(|found| expected.map_or(found == 0, |expected| found != expected))
}

/// Opens the file of a lock, which is made if it is not there. It is never removed: two processes that each made one
/// would not notice each other.
pub(crate) fn open_lock(path: &Path) -> std::io::Result<fs::File> {
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    fs::OpenOptions::new().write(true).create(true).truncate(false).open(path)
}

#[cfg(unix)]
fn link(target: &Path, place: &Path, _blob: &Path) -> std::io::Result<()> {
    std::os::unix::fs::symlink(target, place)
}

/// Where links are not everybody's to make, as `huggingface_hub` does: the file itself.
#[cfg(not(unix))]
fn link(_target: &Path, place: &Path, blob: &Path) -> std::io::Result<()> {
    fs::hard_link(blob, place).or_else(|_| fs::copy(blob, place).map(|_| ()))
}

/// Makes something beside its place and moves it there.
pub(crate) fn in_place(place: &Path, make: impl Fn(&Path) -> std::io::Result<()>) -> Result<(), HubError> {
    let written = |error| HubError::disk(place, "written", &error);
    if let Some(folder) = place.parent() {
        fs::create_dir_all(folder).map_err(written)?;
    }
    let name = place.file_name().unwrap_or_default().to_string_lossy();
    // Neither another process nor another thread has the same.
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let beside = place.with_file_name(format!(".{name}.{}-{number}.new", std::process::id()));
    // What a run that was killed left behind under the same number.
    let _ = fs::remove_file(&beside);
    make(&beside).and_then(|()| fs::rename(&beside, place)).map_err(|error| {
        let _ = fs::remove_file(&beside);
        written(error)
    })
}

/// The files below a folder with their sizes, by path with slashes. Links count as the files that they lead to, where
/// there are any; folders are not followed.
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
