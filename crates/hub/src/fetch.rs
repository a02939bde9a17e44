//! A model by its name: looked up in the cache, and fetched if files are missing. The fetching itself is in `run`.
//!
//! A complete model in the cache is used without a request to the hub. Otherwise the hub is asked for the listing of
//! the revision, the files that are needed are chosen, and missing ones are fetched, several at a time. The snapshot
//! gets its links when all of them are there; what an interrupted run has fetched is kept for the next. Meanwhile
//! nothing of the repository can be removed (`Removal`).

mod run;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use foretoken_weights::whole;

use crate::cache::{Folder, TEXT_MAX, files_below, is_incomplete};
use crate::choice::{Choice, Files, Weights, shards};
use crate::client::Client;
use crate::download::Event;
use crate::error::HubError;
use crate::name::Name;
use crate::settings::Settings;
use crate::snapshots::{CachedSnapshot, snapshots};
use run::FetchRun;

/// Maximum number of names of cached models that a message lists.
const LISTED_MAX: usize = 8;

/// A request for a model.
pub struct ModelRequest<'a> {
    /// Its name.
    pub name: Name,
    /// A GGUF file of its repository, by path.
    pub file: Option<String>,
    /// Whether the network of this configuration (`config.json`) can be run; asked for a repository with both
    /// safetensors and GGUF. If not, a GGUF file is used.
    pub usable: &'a (dyn Fn(&[u8]) -> bool + Sync),
    /// Whether the checksums of cached files are checked, not only their sizes.
    pub verify: bool,
}

impl ModelRequest<'_> {
    /// A request that accepts any configuration.
    pub fn new(name: Name) -> Self {
        Self { name, file: None, usable: &|_| true, verify: false }
    }
}

/// A model in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedModel {
    /// What is opened: the folder of the snapshot, or a GGUF file in it.
    pub path: PathBuf,
    /// The commit of the snapshot.
    pub commit: String,
    /// The number of its files.
    pub files: usize,
    /// Bytes of the files.
    pub bytes: u64,
    /// Bytes that were fetched by this call.
    pub fetched_bytes: u64,
}

/// The result of a lookup in the cache.
enum CacheLookup {
    /// All files, according to the listing of its revision.
    Complete(CachedModel),
    /// All files that are known; another program fetched them, and there is no listing.
    Unlisted(CachedModel),
    /// Files are missing: the message.
    Incomplete(String),
}

/// The hub and its cache folder.
pub struct Hub {
    settings: Settings,
    /// Created when it is first needed: a cached model needs none, and reading certificates takes time.
    client: OnceLock<Client>,
}

impl Hub {
    /// A hub with these settings.
    ///
    /// # Errors
    /// The endpoint is not a URL.
    pub fn new(settings: Settings) -> Result<Self, HubError> {
        crate::settings::endpoint(&settings.endpoint)?;
        Ok(Self { client: OnceLock::new(), settings })
    }

    fn client(&self) -> Result<&Client, HubError> {
        if let Some(client) = self.client.get() {
            return Ok(client);
        }
        let client = Client::new(&self.settings)?;
        Ok(self.client.get_or_init(|| client))
    }

    /// The cache folder.
    pub fn cache(&self) -> &Path {
        &self.settings.cache
    }

    /// The snapshots in the cache.
    pub fn snapshots(&self) -> Vec<CachedSnapshot> {
        snapshots(&self.settings.cache)
    }

    /// A model, from the cache if it is complete there, without a request to the hub. Files that another program
    /// fetched may be incomplete; if the hub cannot be asked, or nothing can be written, they are used as they are.
    ///
    /// # Errors
    /// It is not in the cache and cannot be fetched, or must not be (`HF_HUB_OFFLINE`).
    pub fn get(&self, request: &ModelRequest<'_>, watch: &(dyn Fn(Event<'_>) + Sync)) -> Result<CachedModel, HubError> {
        let lookup = self.look_up(request);
        let missing = match &lookup {
            CacheLookup::Complete(found) => return Ok(found.clone()),
            CacheLookup::Unlisted(found) if self.settings.offline => return Ok(found.clone()),
            CacheLookup::Unlisted(_) => String::new(),
            CacheLookup::Incomplete(why) => why.clone(),
        };
        if self.settings.offline {
            let line = format!("{missing}; nothing is fetched, since HF_HUB_OFFLINE is set; {}", self.others());
            return Err(HubError::NoNetwork(line).at(&request.name));
        }
        match (self.fetch_at(request, watch, matches!(lookup, CacheLookup::Unlisted(_))), lookup) {
            // The files that another program fetched are used as they are.
            (Err(HubError::NoNetwork(_) | HubError::Refused(_)), CacheLookup::Unlisted(found)) => Ok(found),
            (Err(HubError::Disk(why) | HubError::Content(why)), CacheLookup::Unlisted(found)) => {
                watch(Event::Unchecked { why: &why });
                Ok(found)
            }
            (Err(HubError::NoNetwork(why)), _) => {
                Err(HubError::NoNetwork(format!("{why}; {missing}; {}", self.others())).at(&request.name))
            }
            (fetched, _) => fetched.map_err(|error| error.at(&request.name)),
        }
    }

    /// A model as the hub has it now; files that are in the cache are not fetched again.
    ///
    /// # Errors
    /// The hub cannot be reached or refuses, its response is invalid, or files cannot be written.
    pub fn fetch(
        &self,
        request: &ModelRequest<'_>,
        watch: &(dyn Fn(Event<'_>) + Sync),
    ) -> Result<CachedModel, HubError> {
        let fetched = match self.settings.offline {
            true => Err(HubError::NoNetwork("nothing is fetched, since HF_HUB_OFFLINE is set".to_string())),
            false => self.fetch_at(request, watch, false),
        };
        let there = || match self.look_up(request) {
            CacheLookup::Complete(found) | CacheLookup::Unlisted(found) => {
                format!("in the cache it is {}", found.path.display())
            }
            CacheLookup::Incomplete(why) => format!("{why}; {}", self.others()),
        };
        fetched.map_err(|error| match error {
            HubError::NoNetwork(why) => HubError::NoNetwork(format!("{why}; {}", there())).at(&request.name),
            other => other.at(&request.name),
        })
    }

    /// A model that is complete in the cache, without a request to the hub.
    pub fn cached(&self, request: &ModelRequest<'_>) -> Option<CachedModel> {
        match self.look_up(request) {
            CacheLookup::Complete(found) | CacheLookup::Unlisted(found) => Some(found),
            CacheLookup::Incomplete(_) => None,
        }
    }

    /// Bytes of a model's weights, without fetching them; otherwise as [`Hub::fetch`].
    ///
    /// # Errors
    /// As [`Hub::fetch`].
    pub fn size(&self, request: &ModelRequest<'_>) -> Result<u64, HubError> {
        if let Some(found) = self.cached(request) {
            return Ok(found.bytes);
        }
        if self.settings.offline {
            return Err(HubError::NoNetwork("HF_HUB_OFFLINE is set".to_string()).at(&request.name));
        }
        let sized = || {
            let listing = self.client()?.listing(&request.name, request.name.revision())?;
            let files = Files::new(listing.files.keys().map(String::as_str));
            let size = |path: &String| listing.files.get(path).and_then(|entry| entry.size).unwrap_or(0);
            Ok(match files.choose(request.name.quant.as_deref(), request.file.as_deref(), true)? {
                Choice::Gguf(parts) => parts.iter().map(size).fold(0, u64::saturating_add),
                Choice::Safetensors(_, Weights::Whole(path)) => size(&path),
                Choice::Safetensors(_, Weights::Index(_)) => {
                    let shard = |path: &&String| path.ends_with(".safetensors") && !path.contains('/');
                    listing.files.keys().filter(shard).map(size).fold(0, u64::saturating_add)
                }
            })
        };
        sized().map_err(|error: HubError| error.at(&request.name))
    }

    fn folder(&self, name: &Name) -> Folder {
        Folder::new(&self.settings.cache, &name.owner, &name.repository)
    }

    /// The other models in the cache, for messages.
    fn others(&self) -> String {
        let names: Vec<String> = self.snapshots().iter().flat_map(CachedSnapshot::names).collect();
        let more =
            if names.len() > LISTED_MAX { format!(" and {} more", names.len() - LISTED_MAX) } else { String::new() };
        let cache = self.settings.cache.display();
        match names.is_empty() {
            true => format!("the cache {cache} is empty"),
            false => format!("the cache {cache} has {}{more}", names[..names.len().min(LISTED_MAX)].join(", ")),
        }
    }

    /// Looks a model up in the cache, without a request to the hub.
    fn look_up(&self, request: &ModelRequest<'_>) -> CacheLookup {
        let (folder, name) = (self.folder(&request.name), &request.name);
        let Some(commit) = folder.commit_of(name.revision()) else {
            return CacheLookup::Incomplete("it is not in the cache".to_string());
        };
        let snapshot = folder.snapshot(&commit);
        let there = files_below(&snapshot);
        let record = folder.read_record(&commit);
        let paths: Vec<&str> = match &record {
            Some(listing) => listing.files.keys().map(String::as_str).collect(),
            None => there.keys().map(String::as_str).collect(),
        };
        let usable = |files: &Files<'_>| {
            let config =
                if files.has_both() { whole::read(&snapshot.join("config.json"), TEXT_MAX).ok() } else { None };
            config.is_none_or(|config| (request.usable)(&config))
        };
        let files = Files::new(paths.into_iter());
        let needed = files.choose(name.quant.as_deref(), request.file.as_deref(), usable(&files)).and_then(|choice| {
            needed(&choice, &|index| whole::read(&snapshot.join(index), TEXT_MAX).map_err(|_| missing(index)))
        });
        let needed = match needed {
            Ok(needed) => needed,
            Err(error) => return CacheLookup::Incomplete(format!("it is not complete in the cache: {error}")),
        };
        let (mut bytes, mut is_listed) = (0, true);
        for path in &needed.all {
            let expected = record.as_ref().and_then(|listing| listing.files.get(path)?.size);
            let found = there.get(path).copied();
            if is_incomplete(found, expected) {
                return CacheLookup::Incomplete(match (found, expected) {
                    (Some(found), Some(expected)) => {
                        format!("{path}: expected {expected} bytes in the cache, found {found}")
                    }
                    _ => format!("it is not complete in the cache: {path} is missing"),
                });
            }
            bytes += found.unwrap_or(0);
            is_listed &= expected.is_some();
        }
        let found = needed.found(&snapshot, commit, bytes, 0);
        if is_listed { CacheLookup::Complete(found) } else { CacheLookup::Unlisted(found) }
    }

    /// Fetches a model; with `as_cached` the revision that is in the cache, if there is one.
    fn fetch_at(
        &self,
        request: &ModelRequest<'_>,
        watch: &(dyn Fn(Event<'_>) + Sync),
        as_cached: bool,
    ) -> Result<CachedModel, HubError> {
        let (folder, name) = (self.folder(&request.name), &request.name);
        let cached = if as_cached { folder.commit_of(name.revision()) } else { None };
        let revision = cached.as_deref().unwrap_or(name.revision());
        let client = self.client()?;
        let listing = client.listing(name, revision)?;
        if crate::name::is_commit(revision) && listing.commit != revision {
            let line = format!("listing: sha: expected {revision}, found {}", listing.commit);
            return Err(HubError::Content(line));
        }
        let _lock = shared_lock(&folder)?;
        let paths: Vec<String> = listing.files.keys().cloned().collect();
        let files = Files::new(paths.iter().map(String::as_str));
        let mut run = FetchRun { hub: self, client, request, folder: &folder, listing };
        let nobody = |_: Event<'_>| {};
        let by_config = files.has_both() && name.quant.is_none() && request.file.is_none();
        let usable = !by_config || (request.usable)(&run.text("config.json", &nobody)?);
        let choice = files.choose(name.quant.as_deref(), request.file.as_deref(), usable)?;
        if let Choice::Safetensors(_, Weights::Index(index)) = &choice {
            run.text(index, &nobody)?;
        }
        let needed = needed(&choice, &|index| run.read(index))?;
        let (bytes, fetched) = run.fetch(&needed.all, watch)?;
        let commit = run.listing.commit.clone();
        // The configuration has to be in the cache, so that the same format is chosen without the hub.
        let decided = by_config.then_some("config.json");
        for path in needed.all.iter().map(String::as_str).chain(decided) {
            let (etag, size) = run.resolved(path)?;
            let blob = folder.blob(&etag);
            if is_incomplete(std::fs::metadata(&blob).ok().map(|found| found.len()), Some(size)) {
                return Err(HubError::Disk(format!("{}: removed while the others were fetched", blob.display())));
            }
            folder.link(&commit, path, &etag)?;
        }
        folder.write_record(&run.listing)?;
        folder.write_ref(revision, &commit)?;
        Ok(needed.found(&folder.snapshot(&commit), commit, bytes, fetched))
    }
}

/// The files of a choice, and the one that is opened.
struct Needed {
    all: Vec<String>,
    /// The file that is opened; `None` for the folder.
    opened: Option<String>,
}

impl Needed {
    fn found(&self, snapshot: &Path, commit: String, bytes: u64, fetched_bytes: u64) -> CachedModel {
        let path = self.opened.as_ref().map_or(snapshot.to_path_buf(), |file| snapshot.join(file));
        CachedModel { path, commit, files: self.all.len(), bytes, fetched_bytes }
    }
}

/// The files of a choice; `read` reads an index.
fn needed(choice: &Choice, read: &dyn Fn(&str) -> Result<Vec<u8>, HubError>) -> Result<Needed, HubError> {
    Ok(match choice {
        Choice::Gguf(parts) => Needed { all: parts.clone(), opened: parts.first().cloned() },
        Choice::Safetensors(companions, Weights::Whole(path)) => {
            Needed { all: [companions.as_slice(), std::slice::from_ref(path)].concat(), opened: None }
        }
        Choice::Safetensors(companions, Weights::Index(index)) => {
            let shards = shards(index, &read(index)?)?;
            Needed { all: [companions.as_slice(), std::slice::from_ref(index), &shards].concat(), opened: None }
        }
    })
}

/// Locks a repository against removals, until the file is dropped.
fn shared_lock(folder: &Folder) -> Result<File, HubError> {
    let (path, lock) = folder.open_repository_lock();
    let locked = lock.and_then(|lock| lock.lock_shared().map(|()| lock));
    locked.map_err(|error| HubError::disk(&path, "locked", &error))
}

/// The error of a file that the repository does not have.
fn missing(path: &str) -> HubError {
    HubError::Refused(format!("expected the file {path}, found none"))
}
