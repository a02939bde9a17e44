//! A model by its name: looked up in the cache, and fetched as far as it is missing there.
//!
//! What lies in the cache whole is used without asking anybody. Otherwise the hub is asked for the listing of the
//! revision, the files that are needed are chosen, and those that are missing are fetched, several at a time. The
//! snapshot gets its links when all of them are there; what an interrupted run has fetched stays for the next.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

use foretoken_weights::whole;

use crate::cache::{Folder, files_below, is_lacking};
use crate::checksum::Etag;
use crate::choice::{Choice, Files, Weights, shards};
use crate::client::Client;
use crate::download::{Download, Transfer};
use crate::error::HubError;
use crate::held::{Held, held};
use crate::listing::Listing;
use crate::name::Name;
use crate::settings::Settings;
use crate::space::{free_bytes, readable};

/// Files that are fetched at a time.
const AT_A_TIME: usize = 4;
/// Bytes of a configuration or an index, at most.
pub(crate) const TEXT_MAX: u64 = 128 << 20;
/// Bytes that are left free on the disk.
const SPARE: u64 = 16 << 20;
/// Names of a cache that a message lists, at most.
const LISTED_MAX: usize = 8;

/// A model that is asked for.
pub struct Asked<'a> {
    /// Its name.
    pub name: Name,
    /// A GGUF file of its repository, by path.
    pub file: Option<String>,
    /// Of a repository with both safetensors and GGUF: whether this configuration (`config.json`) is one of a network
    /// that can be run. If not, a GGUF file is taken.
    pub usable: &'a (dyn Fn(&[u8]) -> bool + Sync),
    /// Whether files that lie in the cache are read to their ends and checked, and not their sizes alone.
    pub verify: bool,
}

impl Asked<'_> {
    /// A model of whatever configuration.
    pub fn new(name: Name) -> Self {
        Self { name, file: None, usable: &|_| true, verify: false }
    }
}

/// What happens while a model is fetched. Files are fetched by several threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// So many files and bytes belong to it, with those that lie in the cache already.
    Begin {
        /// Files.
        files: usize,
        /// Bytes of all of them.
        bytes: u64,
    },
    /// So many bytes lie in the cache by now.
    Done {
        /// Bytes.
        bytes: u64,
    },
    /// Another process fetches this file, and is waited for.
    Waits {
        /// The file.
        file: &'a str,
    },
    /// A connection broke, and is taken up again.
    Retry {
        /// The file.
        file: &'a str,
        /// How it broke.
        why: &'a str,
    },
    /// What others have fetched is used as it lies in the cache, since it cannot be checked or completed.
    Unchecked {
        /// Why.
        why: &'a str,
    },
}

/// A model that lies in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The folder of the snapshot, or a GGUF file in it: what is opened.
    pub path: PathBuf,
    /// The commit of the snapshot.
    pub commit: String,
    /// Number of its files that are needed.
    pub files: usize,
    /// Bytes of these.
    pub bytes: u64,
    /// Bytes that were fetched just now.
    pub fetched_bytes: u64,
}

/// What a look into the cache found.
enum Looked {
    /// All of it, by the listing of its revision.
    Whole(Found),
    /// All that is known to belong to it; somebody else fetched it, and there is no listing.
    Unlisted(Found),
    /// Not all of it: why.
    Lacking(String),
}

/// The hub and its cache folder.
pub struct Hub {
    settings: Settings,
    /// Made when it is first needed: what lies in the cache needs none, and reading certificates takes its time.
    client: OnceLock<Client>,
}

impl Hub {
    /// The hub that settings name.
    ///
    /// # Errors
    /// The endpoint is no address.
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

    /// What lies in the cache.
    pub fn held(&self) -> Vec<Held> {
        held(&self.settings.cache)
    }

    /// A model, from the cache if it lies there whole; the hub is not asked then. Of what others have fetched nobody
    /// knows whether it is whole; if the hub does not say, or nothing can be written, it is taken as it is.
    ///
    /// # Errors
    /// It is not there and cannot be fetched, or must not be (`HF_HUB_OFFLINE`).
    pub fn get(&self, asked: &Asked<'_>, watch: &(dyn Fn(Event<'_>) + Sync)) -> Result<Found, HubError> {
        let looked = self.look(asked);
        let lacking = match &looked {
            Looked::Whole(found) => return Ok(found.clone()),
            Looked::Unlisted(found) if self.settings.offline => return Ok(found.clone()),
            Looked::Unlisted(_) => String::new(),
            Looked::Lacking(why) => why.clone(),
        };
        if self.settings.offline {
            let line = format!("{lacking}; nothing is fetched, since HF_HUB_OFFLINE is set; {}", self.others());
            return Err(HubError::NoNetwork(line).at(&asked.name));
        }
        match (self.fetch_at(asked, watch, matches!(looked, Looked::Unlisted(_))), looked) {
            // What others fetched is theirs to vouch for.
            (Err(HubError::NoNetwork(_) | HubError::Refused(_)), Looked::Unlisted(found)) => Ok(found),
            (Err(HubError::Disk(why) | HubError::Content(why)), Looked::Unlisted(found)) => {
                watch(Event::Unchecked { why: &why });
                Ok(found)
            }
            (Err(HubError::NoNetwork(why)), _) => {
                Err(HubError::NoNetwork(format!("{why}; {lacking}; {}", self.others())).at(&asked.name))
            }
            (fetched, _) => fetched.map_err(|error| error.at(&asked.name)),
        }
    }

    /// A model as the hub has it now; what lies in the cache already is not fetched again.
    ///
    /// # Errors
    /// The hub cannot be reached or refuses, what it sends is not what it should be, or files cannot be written.
    pub fn fetch(&self, asked: &Asked<'_>, watch: &(dyn Fn(Event<'_>) + Sync)) -> Result<Found, HubError> {
        let fetched = match self.settings.offline {
            true => Err(HubError::NoNetwork("nothing is fetched, since HF_HUB_OFFLINE is set".to_string())),
            false => self.fetch_at(asked, watch, false),
        };
        let there = || match self.look(asked) {
            Looked::Whole(found) | Looked::Unlisted(found) => format!("in the cache it is {}", found.path.display()),
            Looked::Lacking(why) => format!("{why}; {}", self.others()),
        };
        fetched.map_err(|error| match error {
            HubError::NoNetwork(why) => HubError::NoNetwork(format!("{why}; {}", there())).at(&asked.name),
            other => other.at(&asked.name),
        })
    }

    /// A model that lies in the cache whole, without asking the hub.
    pub fn cached(&self, asked: &Asked<'_>) -> Option<Found> {
        match self.look(asked) {
            Looked::Whole(found) | Looked::Unlisted(found) => Some(found),
            Looked::Lacking(_) => None,
        }
    }

    /// Bytes that would have to lie here for a model, without fetching any of its weights; as [`Hub::fetch`] otherwise.
    ///
    /// # Errors
    /// As [`Hub::fetch`].
    pub fn size(&self, asked: &Asked<'_>) -> Result<u64, HubError> {
        if let Some(found) = self.cached(asked) {
            return Ok(found.bytes);
        }
        if self.settings.offline {
            return Err(HubError::NoNetwork("HF_HUB_OFFLINE is set".to_string()).at(&asked.name));
        }
        let sized = || {
            let listing = self.client()?.listing(&asked.name, asked.name.revision())?;
            let files = Files::new(listing.files.keys().map(String::as_str));
            let size = |path: &String| listing.files.get(path).and_then(|entry| entry.size).unwrap_or(0);
            Ok(match files.choose(asked.name.quant.as_deref(), asked.file.as_deref(), true)? {
                Choice::Gguf(parts) => parts.iter().map(size).fold(0, u64::saturating_add),
                Choice::Safetensors(_, Weights::Whole(path)) => size(&path),
                Choice::Safetensors(_, Weights::Index(_)) => {
                    let shard = |path: &&String| path.ends_with(".safetensors") && !path.contains('/');
                    listing.files.keys().filter(shard).map(size).fold(0, u64::saturating_add)
                }
            })
        };
        sized().map_err(|error: HubError| error.at(&asked.name))
    }

    fn folder(&self, name: &Name) -> Folder {
        Folder::new(&self.settings.cache, &name.owner, &name.repository)
    }

    /// What else lies in the cache, for messages.
    fn others(&self) -> String {
        let names: Vec<String> = self.held().iter().flat_map(Held::names).collect();
        let more =
            if names.len() > LISTED_MAX { format!(" and {} more", names.len() - LISTED_MAX) } else { String::new() };
        let cache = self.settings.cache.display();
        match names.is_empty() {
            true => format!("the cache {cache} is empty"),
            false => format!("the cache {cache} has {}{more}", names[..names.len().min(LISTED_MAX)].join(", ")),
        }
    }

    /// Looks into the cache, without the hub.
    fn look(&self, asked: &Asked<'_>) -> Looked {
        let (folder, name) = (self.folder(&asked.name), &asked.name);
        let Some(commit) = folder.commit_of(name.revision()) else {
            return Looked::Lacking("it is not in the cache".to_string());
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
            config.is_none_or(|config| (asked.usable)(&config))
        };
        let files = Files::new(paths.into_iter());
        let needed = files.choose(name.quant.as_deref(), asked.file.as_deref(), usable(&files)).and_then(|choice| {
            needed(&choice, &|index| whole::read(&snapshot.join(index), TEXT_MAX).map_err(|_| missing(index)))
        });
        let needed = match needed {
            Ok(needed) => needed,
            Err(error) => return Looked::Lacking(format!("it does not lie in the cache whole: {error}")),
        };
        let (mut bytes, mut is_listed) = (0, true);
        for path in &needed.all {
            let expected = record.as_ref().and_then(|listing| listing.files.get(path)?.size);
            let found = there.get(path).copied();
            if is_lacking(found, expected) {
                return Looked::Lacking(match (found, expected) {
                    (Some(found), Some(expected)) => {
                        format!("{path}: expected {expected} bytes in the cache, found {found}")
                    }
                    _ => format!("it does not lie in the cache whole: {path} is missing"),
                });
            }
            bytes += found.unwrap_or(0);
            is_listed &= expected.is_some();
        }
        let found = needed.found(&snapshot, commit, bytes, 0);
        if is_listed { Looked::Whole(found) } else { Looked::Unlisted(found) }
    }

    /// Fetches a model; of one that is in the cache `as_cached` the revision that lies there.
    fn fetch_at(
        &self,
        asked: &Asked<'_>,
        watch: &(dyn Fn(Event<'_>) + Sync),
        as_cached: bool,
    ) -> Result<Found, HubError> {
        let (folder, name) = (self.folder(&asked.name), &asked.name);
        let cached = if as_cached { folder.commit_of(name.revision()) } else { None };
        let revision = cached.as_deref().unwrap_or(name.revision());
        let client = self.client()?;
        let listing = client.listing(name, revision)?;
        if crate::name::is_commit(revision) && listing.commit != revision {
            let line = format!("listing: sha: expected {revision}, found {}", listing.commit);
            return Err(HubError::Content(line));
        }
        let paths: Vec<String> = listing.files.keys().cloned().collect();
        let files = Files::new(paths.iter().map(String::as_str));
        let mut run = Run { hub: self, client, asked, folder: &folder, listing };
        let nobody = |_: Event<'_>| {};
        let by_config = files.has_both() && name.quant.is_none() && asked.file.is_none();
        let usable = !by_config || (asked.usable)(&run.text("config.json", &nobody)?);
        let choice = files.choose(name.quant.as_deref(), asked.file.as_deref(), usable)?;
        if let Choice::Safetensors(_, Weights::Index(index)) = &choice {
            run.text(index, &nobody)?;
        }
        let needed = needed(&choice, &|index| run.read(index))?;
        let (bytes, fetched) = run.fetch(&needed.all, watch)?;
        let commit = run.listing.commit.clone();
        // The configuration that decided has to be there when it is decided again, without the hub.
        let decided = by_config.then_some("config.json");
        for path in needed.all.iter().map(String::as_str).chain(decided) {
            let (etag, _) = run.known(path)?;
            folder.link(&commit, path, &etag)?;
        }
        folder.keep_record(&run.listing)?;
        folder.keep_ref(revision, &commit)?;
        Ok(needed.found(&folder.snapshot(&commit), commit, bytes, fetched))
    }
}

/// The files of a choice, with what is opened of them.
struct Needed {
    all: Vec<String>,
    /// The file that is opened; none: the folder.
    opened: Option<String>,
}

impl Needed {
    fn found(&self, snapshot: &Path, commit: String, bytes: u64, fetched_bytes: u64) -> Found {
        let path = self.opened.as_ref().map_or(snapshot.to_path_buf(), |file| snapshot.join(file));
        Found { path, commit, files: self.all.len(), bytes, fetched_bytes }
    }
}

/// The files of a choice; `read` reads an index.
fn needed(choice: &Choice, read: &dyn Fn(&str) -> Result<Vec<u8>, HubError>) -> Result<Needed, HubError> {
    Ok(match choice {
        Choice::Gguf(parts) => Needed { all: parts.clone(), opened: parts.first().cloned() },
        Choice::Safetensors(beside, Weights::Whole(path)) => {
            Needed { all: [beside.as_slice(), std::slice::from_ref(path)].concat(), opened: None }
        }
        Choice::Safetensors(beside, Weights::Index(index)) => {
            let shards = shards(index, &read(index)?)?;
            Needed { all: [beside.as_slice(), std::slice::from_ref(index), &shards].concat(), opened: None }
        }
    })
}

fn missing(path: &str) -> HubError {
    HubError::Refused(format!("expected the file {path}, found none"))
}

/// One model that is being fetched.
struct Run<'a> {
    hub: &'a Hub,
    client: &'a Client,
    asked: &'a Asked<'a>,
    folder: &'a Folder,
    listing: Listing,
}

impl Run<'_> {
    /// Checksum and size of a file; the hub is asked where the listing did not say them.
    fn know(&mut self, path: &str) -> Result<(), HubError> {
        let entry = self.listing.files.get(path).ok_or_else(|| missing(path))?;
        if entry.etag.is_none() || entry.size.is_none() {
            let entry = self.client.entry(&self.asked.name, &self.listing.commit, path)?;
            self.listing.files.insert(path.to_string(), entry);
        }
        Ok(())
    }

    fn known(&self, path: &str) -> Result<(Etag, u64), HubError> {
        let entry = self.listing.files.get(path).ok_or_else(|| missing(path))?;
        entry.etag.clone().zip(entry.size).ok_or_else(|| missing(path))
    }

    /// A small file's content, which is fetched first.
    fn text(&mut self, path: &str, watch: &(dyn Fn(Event<'_>) + Sync)) -> Result<Vec<u8>, HubError> {
        self.know(path)?;
        let (_, size) = self.known(path)?;
        if size > TEXT_MAX {
            return Err(HubError::Content(format!("{path}: size: expected at most {TEXT_MAX} bytes, found {size}")));
        }
        self.fetch(&[path.to_string()], watch)?;
        self.read(path)
    }

    /// The content of a file that was fetched.
    fn read(&self, path: &str) -> Result<Vec<u8>, HubError> {
        let blob = self.folder.blob(&self.known(path)?.0);
        whole::read(&blob, TEXT_MAX).map_err(|error| HubError::disk(&blob, "read", &error))
    }

    /// Fetches files; gives their bytes, and those of them that were fetched.
    fn fetch(&mut self, paths: &[String], watch: &(dyn Fn(Event<'_>) + Sync)) -> Result<(u64, u64), HubError> {
        // Files of the same content are one blob.
        let mut blobs: BTreeMap<Etag, (&str, u64)> = BTreeMap::new();
        let mut bytes = 0u64;
        for path in paths {
            self.know(path)?;
            let (etag, size) = self.known(path)?;
            bytes = bytes.saturating_add(size);
            blobs.insert(etag, (path, size));
        }
        self.check_space(&blobs)?;
        watch(Event::Begin { files: paths.len(), bytes });
        let transfer =
            Transfer { stop: AtomicBool::new(false), done: AtomicU64::new(0), fetched: AtomicU64::new(0), watch };
        // The smallest first, so that what is wrong with a repository shows early.
        let mut all: Vec<(&Etag, &str, u64)> = blobs.iter().map(|(etag, (path, size))| (etag, *path, *size)).collect();
        all.sort_by_key(|(_, _, size)| *size);
        let (next, failure) = (AtomicUsize::new(0), Mutex::new(None));
        let work = || {
            while let Some((etag, path, size)) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
                if transfer.stop.load(Ordering::Relaxed) {
                    return;
                }
                if let Err(error) = self.download(etag, path, *size).run(&transfer) {
                    let mut failure = failure.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    transfer.stop.store(true, Ordering::Relaxed);
                    failure.get_or_insert(error);
                    return;
                }
            }
        };
        std::thread::scope(|scope| {
            // This thread works too, so all is fetched whether or not the system gives others.
            let helper = |_| drop(std::thread::Builder::new().spawn_scoped(scope, work));
            (1..AT_A_TIME.min(all.len())).for_each(helper);
            work();
        });
        match failure.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner) {
            Some(error) => Err(error),
            None => Ok((bytes, transfer.fetched.into_inner())),
        }
    }

    fn download<'b>(&'b self, etag: &'b Etag, path: &'b str, size: u64) -> Download<'b> {
        let (name, client) = (&self.asked.name, self.client);
        Download {
            client,
            name,
            path,
            url: client.file_url(name, &self.listing.commit, path),
            size,
            etag,
            blob: self.folder.blob(etag),
            lock: self.folder.lock(etag),
            verify: self.asked.verify,
            pause: self.hub.settings.retry_pause,
        }
    }

    /// Refuses what would not fit on the disk.
    fn check_space(&self, blobs: &BTreeMap<Etag, (&str, u64)>) -> Result<(), HubError> {
        let cache = &self.hub.settings.cache;
        std::fs::create_dir_all(cache).map_err(|error| HubError::disk(cache, "made", &error))?;
        let len = |path: &Path| std::fs::metadata(path).map_or(0, |found| found.len());
        let missing = |(etag, (_, size)): (&Etag, &(&str, u64))| {
            let blob = self.folder.blob(etag);
            let there =
                if len(&blob) == *size { *size } else { len(&blob.with_file_name(format!("{etag}.incomplete"))) };
            size.saturating_sub(there)
        };
        let missing = blobs.iter().map(missing).fold(0, u64::saturating_add);
        match free_bytes(cache) {
            Some(free) if missing > 0 && missing.saturating_add(SPARE) > free => {
                let (missing, free) = (readable(missing), readable(free));
                Err(HubError::Disk(format!("{}: expected {missing} of free space, found {free}", cache.display())))
            }
            _ => Ok(()),
        }
    }
}
