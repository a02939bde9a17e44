//! Fetches the files of one model, several at a time, and completes its listing.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use foretoken_weights::whole;

use super::{Hub, ModelRequest, missing};
use crate::cache::{Folder, TEXT_MAX};
use crate::checksum::Etag;
use crate::client::Client;
use crate::download::{Download, Event, Transfer};
use crate::error::HubError;
use crate::listing::Listing;
use crate::space::{free_bytes, readable};

/// Maximum number of files that are fetched at the same time.
const CONCURRENT_DOWNLOADS: usize = 4;
/// Bytes that must stay free on the disk.
const FREE_BYTES_MIN: u64 = 16 << 20;

/// The state of fetching one model.
pub(super) struct FetchRun<'a> {
    pub(super) hub: &'a Hub,
    pub(super) client: &'a Client,
    pub(super) request: &'a ModelRequest<'a>,
    pub(super) folder: &'a Folder,
    pub(super) listing: Listing,
}

impl FetchRun<'_> {
    /// Completes the entry of a file: the hub is asked if the listing has no checksum or size.
    fn resolve(&mut self, path: &str) -> Result<(), HubError> {
        let entry = self.listing.files.get(path).ok_or_else(|| missing(path))?;
        if entry.etag.is_none() || entry.size.is_none() {
            let entry = self.client.entry(&self.request.name, &self.listing.commit, path)?;
            self.listing.files.insert(path.to_string(), entry);
        }
        Ok(())
    }

    /// Checksum and size of a file whose entry is complete.
    pub(super) fn resolved(&self, path: &str) -> Result<(Etag, u64), HubError> {
        let entry = self.listing.files.get(path).ok_or_else(|| missing(path))?;
        entry.etag.clone().zip(entry.size).ok_or_else(|| missing(path))
    }

    /// Fetches a small file and returns its content.
    pub(super) fn text(&mut self, path: &str, watch: &(dyn Fn(Event<'_>) + Sync)) -> Result<Vec<u8>, HubError> {
        self.resolve(path)?;
        let (_, size) = self.resolved(path)?;
        if size > TEXT_MAX {
            return Err(HubError::Content(format!("{path}: size: expected at most {TEXT_MAX} bytes, found {size}")));
        }
        self.fetch(&[path.to_string()], watch)?;
        self.read(path)
    }

    /// The content of a fetched file.
    pub(super) fn read(&self, path: &str) -> Result<Vec<u8>, HubError> {
        let blob = self.folder.blob(&self.resolved(path)?.0);
        whole::read(&blob, TEXT_MAX).map_err(|error| HubError::disk(&blob, "read", &error))
    }

    /// Fetches files; returns their bytes, and how many of these were fetched.
    pub(super) fn fetch(
        &mut self,
        paths: &[String],
        watch: &(dyn Fn(Event<'_>) + Sync),
    ) -> Result<(u64, u64), HubError> {
        // Files with the same content share a blob.
        let mut blobs: BTreeMap<Etag, (&str, u64)> = BTreeMap::new();
        let mut bytes = 0u64;
        for path in paths {
            self.resolve(path)?;
            let (etag, size) = self.resolved(path)?;
            bytes = bytes.saturating_add(size);
            blobs.insert(etag, (path, size));
        }
        self.check_space(&blobs)?;
        watch(Event::Begin { files: paths.len(), bytes });
        let transfer =
            Transfer { stop: AtomicBool::new(false), done: AtomicU64::new(0), fetched: AtomicU64::new(0), watch };
        // The smallest first, so that errors of a repository come early.
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
            // This thread works too, so all files are fetched even if the system refuses other threads.
            let helper = |_| drop(std::thread::Builder::new().spawn_scoped(scope, work));
            (1..CONCURRENT_DOWNLOADS.min(all.len())).for_each(helper);
            work();
        });
        match failure.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner) {
            Some(error) => Err(error),
            None => Ok((bytes, transfer.fetched.into_inner())),
        }
    }

    fn download<'b>(&'b self, etag: &'b Etag, path: &'b str, size: u64) -> Download<'b> {
        let (name, client) = (&self.request.name, self.client);
        Download {
            client,
            name,
            path,
            url: client.file_url(name, &self.listing.commit, path),
            size,
            etag,
            folder: self.folder,
            blob: self.folder.blob(etag),
            verify: self.request.verify,
            pause: self.hub.settings.retry_pause,
        }
    }

    /// Checks that the files fit on the disk.
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
            Some(free) if missing > 0 && missing.saturating_add(FREE_BYTES_MIN) > free => {
                let (missing, free) = (readable(missing), readable(free));
                Err(HubError::Disk(format!("{}: expected {missing} of free space, found {free}", cache.display())))
            }
            _ => Ok(()),
        }
    }
}
