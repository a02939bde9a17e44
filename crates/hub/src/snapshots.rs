//! The snapshots in the cache, and their removal.
//!
//! A snapshot can hold several models: one in safetensors, and GGUF files of several quantizations. A removal is
//! planned before anything is removed: files of snapshots, and blobs that no other snapshot links to. It is carried out
//! only if the plan is still the same and nobody fetches from the repository. Links are removed and never followed out
//! of the repository's folder.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::{self, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use foretoken_weights::whole;

use crate::cache::{Folder, TEXT_MAX, files_below, is_incomplete, is_temporary};
use crate::choice::{Choice, Files, Weights, matches_quant, quant_of, shards};
use crate::directory::Directory;
use crate::error::HubError;
use crate::name::Name;

/// A snapshot in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedSnapshot {
    /// `org/name`.
    pub repo: String,
    /// Its commit.
    pub commit: String,
    /// Branches and tags that pointed to it.
    pub refs: Vec<String>,
    /// The models in it.
    pub models: Vec<SnapshotModel>,
    /// Bytes of incomplete downloads of this repository.
    pub partial_bytes: u64,
}

/// The format of a model's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelFormat {
    /// A folder of safetensors.
    Safetensors,
    /// A GGUF file, of this quantization.
    Gguf(String),
}

/// A model of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotModel {
    /// The format of its files.
    pub kind: ModelFormat,
    /// What is opened.
    pub path: PathBuf,
    /// Bytes of its files.
    pub bytes: u64,
    /// The first file that is missing or has the wrong size, if there is one.
    pub missing_file: Option<String>,
}

impl CachedSnapshot {
    /// The names of its complete models.
    pub fn names(&self) -> Vec<String> {
        let whole = self.models.iter().filter(|model| model.missing_file.is_none());
        whole.map(|model| self.name_of(model)).collect()
    }

    /// The name of one of its models.
    pub fn name_of(&self, model: &SnapshotModel) -> String {
        let at = if self.refs.iter().any(|name| name == "main") {
            String::new()
        } else {
            format!("@{}", self.refs.first().unwrap_or(&self.commit))
        };
        match &model.kind {
            ModelFormat::Safetensors => format!("{}{at}", self.repo),
            ModelFormat::Gguf(quant) => format!("{}:{quant}{at}", self.repo),
        }
    }
}

/// The snapshots of a cache, by name.
pub(crate) fn snapshots(cache: &Path) -> Vec<CachedSnapshot> {
    let mut all = Vec::new();
    for (repo, folder) in Folder::all(cache) {
        let refs = folder.refs();
        let partial = files_below(&folder.path.join("blobs")).into_iter();
        let partial_bytes = partial.filter(|(name, _)| name.ends_with(".incomplete")).map(|(_, size)| size).sum();
        let mut commits = folder.commits();
        if commits.is_empty() && partial_bytes > 0 {
            commits.push(String::new());
        }
        for commit in commits {
            let refs = refs.iter().filter(|(_, other)| *other == commit).map(|(name, _)| name.clone()).collect();
            let models = if commit.is_empty() { Vec::new() } else { models(&folder, &commit) };
            all.push(CachedSnapshot { repo: repo.clone(), commit, refs, models, partial_bytes });
        }
    }
    all
}

/// The models of a snapshot of which there are files of weights.
fn models(folder: &Folder, commit: &str) -> Vec<SnapshotModel> {
    let snapshot = folder.snapshot(commit);
    let there = files_below(&snapshot);
    let record = folder.read_record(commit);
    let paths: BTreeSet<&str> = match &record {
        Some(listing) => listing.files.keys().map(String::as_str).collect(),
        None => there.keys().map(String::as_str).collect(),
    };
    let is_missing = |path: &String| {
        let expected = record.as_ref().and_then(|listing| listing.files.get(path)?.size);
        is_incomplete(there.get(path).copied(), expected)
    };
    let model = |kind, path, files: &[String]| SnapshotModel {
        kind,
        path,
        bytes: files.iter().filter_map(|path| there.get(path)).sum(),
        missing_file: files.iter().find(|path| is_missing(path)).cloned(),
    };
    let mut models = Vec::new();
    let files = Files::new(paths.iter().copied());
    // Without any file of safetensors there is no such model.
    let has_weights = there.keys().any(|path| path.ends_with(".safetensors"));
    if let (true, Ok(Choice::Safetensors(mut all, weights))) = (has_weights, files.choose(None, None, true)) {
        match weights {
            Weights::Whole(path) => all.push(path),
            Weights::Index(index) => {
                let found =
                    whole::read(&snapshot.join(&index), TEXT_MAX).ok().and_then(|text| shards(&index, &text).ok());
                all.push(index);
                all.extend(found.into_iter().flatten());
            }
        }
        models.push(model(ModelFormat::Safetensors, snapshot.clone(), &all));
    }
    for path in files.ggufs().filter(|path| there.contains_key(*path)) {
        let parts = files.parts(path).unwrap_or_else(|_| vec![path.to_string()]);
        let mut model = model(ModelFormat::Gguf(quant_of(path)), snapshot.join(path), &parts);
        if let (None, Err(error)) = (&model.missing_file, files.parts(path)) {
            model.missing_file = Some(error.to_string());
        }
        models.push(model);
    }
    models
}

/// What is to be removed for a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removal {
    /// Bytes that it frees.
    pub bytes: u64,
    /// Files and links.
    files: Vec<PathBuf>,
    /// Folders that are removed if they are empty then, the innermost first.
    folders: Vec<PathBuf>,
    /// The repository, which has the locks of its files.
    repository: Folder,
    /// What was asked for.
    name: Name,
}

impl Removal {
    fn new(repository: &Folder, name: &Name) -> Self {
        let (repository, name) = (repository.clone(), name.clone());
        Self { bytes: 0, files: Vec::new(), folders: Vec::new(), repository, name }
    }

    /// Plans the removal of a name: the whole repository, with `@REVISION` one snapshot of it, with `:QUANT` the GGUF
    /// files of one quantization.
    ///
    /// # Errors
    /// There is nothing of that name, or the repository's folder is a link, or one in it from which files are removed.
    pub fn plan(cache: &Path, name: &Name) -> Result<Self, HubError> {
        let folder = Folder::new(cache, &name.owner, &name.repository);
        let nothing = || HubError::Refused(format!("{name}: expected it in the cache {}, found none", cache.display()));
        fs::symlink_metadata(&folder.path).map_err(|_| nothing())?;
        check_folder(&folder.path)?;
        if name.revision.is_none() && name.quant.is_none() {
            return Ok(Self::whole(&folder, name));
        }
        ["blobs", "refs", "snapshots", "trees"].iter().try_for_each(|part| check_folder(&folder.path.join(part)))?;
        Self::partial(&folder, name).ok_or_else(nothing)
    }

    fn whole(folder: &Folder, name: &Name) -> Self {
        let mut removal = Self::new(folder, name);
        removal.add_all(&folder.path);
        removal
    }

    /// Adds a folder and everything below it, without following links.
    fn add_all(&mut self, folder: &Path) {
        let mut entries: Vec<fs::DirEntry> = fs::read_dir(folder).into_iter().flatten().flatten().collect();
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            match entry.metadata() {
                Ok(found) if found.is_dir() => self.add_all(&entry.path()),
                found => {
                    self.bytes += found.ok().filter(fs::Metadata::is_file).map_or(0, |found| found.len());
                    self.files.push(entry.path());
                }
            }
        }
        self.folders.push(folder.to_path_buf());
    }

    fn partial(folder: &Folder, name: &Name) -> Option<Self> {
        let commits = match &name.revision {
            Some(revision) => vec![folder.commit_of(revision)?],
            None => folder.commits(),
        };
        let mut removal = Self::new(folder, name);
        // For each blob: whether a link to it is kept, and whether one is removed.
        let mut blobs: BTreeMap<PathBuf, (bool, bool)> = BTreeMap::new();
        for commit in folder.commits() {
            let snapshot = folder.snapshot(&commit);
            let mut is_kept = false;
            let mut all = Self::new(folder, name);
            all.add_all(&snapshot);
            for file in all.files {
                let path = file.strip_prefix(&snapshot).ok()?.to_string_lossy().replace('\\', "/");
                // What a run that was killed left behind keeps nothing.
                let is_removed = is_temporary(&file)
                    || commits.contains(&commit) && name.quant.as_ref().is_none_or(|quant| matches_quant(&path, quant));
                is_kept |= !is_removed;
                if let Some(blob) = blob_of(folder, &file) {
                    let entry = blobs.entry(blob).or_default();
                    (entry.0, entry.1) = (entry.0 | !is_removed, entry.1 | is_removed);
                } else if is_removed {
                    removal.bytes +=
                        fs::symlink_metadata(&file).ok().filter(fs::Metadata::is_file).map_or(0, |f| f.len());
                }
                if is_removed {
                    removal.files.push(file);
                }
            }
            if commits.contains(&commit) && !is_kept {
                removal.folders.extend(all.folders);
                let refs = folder.refs().into_iter().filter(|(_, other)| *other == commit);
                removal.files.extend(refs.map(|(name, _)| folder.path.join("refs").join(name)));
                removal.files.extend([folder.record(&commit), folder.partial_record(&commit)]);
            }
        }
        for (blob, (is_kept, is_removed)) in blobs {
            if is_removed && !is_kept {
                removal.bytes += fs::symlink_metadata(&blob).ok().filter(fs::Metadata::is_file).map_or(0, |f| f.len());
                removal.files.push(blob);
            }
        }
        (!removal.files.is_empty()).then_some(removal)
    }

    /// Removes it. Returns the bytes that were freed.
    ///
    /// # Errors
    /// Another process fetches files of the repository, or has changed what would be removed: then nothing is removed.
    /// Or a file cannot be removed after others were.
    pub fn carry_out(&self) -> Result<u64, HubError> {
        let place = self.repository.path.display();
        let whole = || format!("{place}: another process fetches or removes files of it");
        let _alone = locked(self.repository.open_repository_lock(), whole)?;
        // Another process may have fetched something meanwhile that shares blobs.
        if Self::plan(&self.repository.cache, &self.name)? != *self {
            let line = format!("{}: it has changed since it was looked up; nothing is removed", self.name);
            return Err(HubError::Disk(line));
        }
        // One at a time, since a model may have more files than a process may open.
        self.files.iter().try_for_each(|file| self.locked(file).map(drop))?;
        // Blobs come last: a run that is killed leaves no link without its file.
        let (blobs, others): (Vec<&PathBuf>, _) = self.files.iter().partition(|file| self.is_blob(file));
        for file in others.into_iter().chain(blobs) {
            let _lock = self.locked(file)?;
            self.remove(file, |folder, name| folder.remove(name))?;
        }
        // Folders with new files are kept.
        self.folders.iter().for_each(|folder| _ = self.remove(folder, |parent, name| parent.remove_folder(name)));
        Ok(self.bytes)
    }

    fn is_blob(&self, file: &Path) -> bool {
        file.starts_with(self.repository.path.join("blobs"))
    }

    /// Removes something in the open folder that it is in.
    fn remove(&self, path: &Path, how: impl Fn(&Directory, &OsStr) -> io::Result<()>) -> Result<(), HubError> {
        let name = path.file_name().unwrap_or_default();
        match self.repository.existing_directory_of(path).and_then(|folder| how(&folder, name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(HubError::disk(path, "removed", &error)),
            _ => Ok(()),
        }
    }

    /// Locks a file that another process may be fetching; the lock is held until it is dropped.
    fn locked(&self, file: &Path) -> Result<Option<fs::File>, HubError> {
        let Some(etag) = self.repository.etag_of(file) else { return Ok(None) };
        let fetched = || format!("{}: another process fetches it", file.display());
        locked(self.repository.open_lock(&etag), fetched).map(Some)
    }
}

/// Takes a lock, which has this path. `taken`: the beginning of the error if another process has it.
fn locked((path, lock): (PathBuf, io::Result<fs::File>), taken: impl Fn() -> String) -> Result<fs::File, HubError> {
    let lock = lock.map_err(|error| HubError::disk(&path, "locked", &error))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::Error(error)) => Err(HubError::disk(&path, "locked", &error)),
        Err(TryLockError::WouldBlock) => Err(HubError::Disk(format!("{}; nothing is removed while it does", taken()))),
    }
}

/// Refuses a link or a file in place of a folder.
fn check_folder(path: &Path) -> Result<(), HubError> {
    match fs::symlink_metadata(path) {
        Ok(found) if !found.is_dir() => {
            let place = path.display();
            Err(HubError::Disk(format!("{place}: expected a folder, found a link or a file, which stays")))
        }
        _ => Ok(()),
    }
}

/// The blob that a file of a snapshot links to, if it is one of this repository.
fn blob_of(folder: &Folder, file: &Path) -> Option<PathBuf> {
    let target = fs::read_link(file).ok()?;
    let name = target.file_name()?;
    let blob = folder.path.join("blobs").join(name);
    let same = file.parent()?.join(&target).canonicalize().ok()? == blob.canonicalize().ok()?;
    same.then_some(blob)
}
