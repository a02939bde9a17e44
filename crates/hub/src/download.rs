//! The download of one file: resumed where it was interrupted, checked, and only then renamed.
//!
//! Bytes go to `blobs/ETAG.incomplete`, as with `huggingface_hub`, so that either program can resume the other's
//! download. A broken connection is retried as long as attempts fetch bytes. An incomplete file of an earlier run may
//! be damaged: if the checksum of the complete file is wrong, it is fetched once more from its start.

use std::fs::{File, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use ureq::Body;
use ureq::http::Response;

use crate::cache::Folder;
use crate::checksum::{Checksum, Etag};
use crate::client::{Client, RequestFailure, header};
use crate::directory::Directory;
use crate::error::{HubError, excerpt};
use crate::name::Name;

/// What happens while a model is fetched. Files are fetched by several threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// The files and bytes of the model, including those that are cached already.
    Begin {
        /// Number of files.
        files: usize,
        /// Number of bytes of all of them.
        bytes: u64,
    },
    /// The bytes that are in the cache now.
    Done {
        /// Number of bytes.
        bytes: u64,
    },
    /// Another process fetches this file; this one waits for it.
    Waits {
        /// The file.
        file: &'a str,
    },
    /// A connection broke, and the request is repeated.
    Retry {
        /// The file.
        file: &'a str,
        /// The error.
        why: &'a str,
    },
    /// Files that another program fetched are used although they cannot be checked or completed.
    Unchecked {
        /// Why they cannot be checked or completed.
        why: &'a str,
    },
}

/// Maximum number of attempts in a row that fetch no byte.
const ATTEMPTS_MAX: u32 = 5;
/// The longest pause between two attempts.
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// The state that all downloads of a run share.
pub(crate) struct Transfer<'a> {
    /// Set if a download has failed: all others stop.
    pub stop: AtomicBool,
    /// Bytes that are in the cache.
    pub done: AtomicU64,
    /// Bytes that were fetched.
    pub fetched: AtomicU64,
    pub watch: &'a (dyn Fn(Event<'_>) + Sync),
}

impl Transfer<'_> {
    /// Adds bytes that are in the cache now.
    fn add(&self, bytes: u64) {
        let before = self.done.fetch_add(bytes, Ordering::Relaxed);
        if bytes > 0 {
            (self.watch)(Event::Done { bytes: before + bytes });
        }
    }

    /// Subtracts bytes that have to be fetched again.
    fn subtract(&self, bytes: u64) {
        self.done.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// A file to fetch.
pub(crate) struct Download<'a> {
    pub client: &'a Client,
    pub name: &'a Name,
    pub path: &'a str,
    pub url: String,
    pub size: u64,
    pub etag: &'a Etag,
    pub folder: &'a Folder,
    pub blob: PathBuf,
    /// Whether the checksum of an existing file is checked, not only its size.
    pub verify: bool,
    pub pause: Duration,
}

/// Why an attempt failed.
enum AttemptFailure {
    /// Another attempt may succeed.
    Connection {
        why: String,
        wait: Option<Duration>,
    },
    Final(HubError),
}

impl From<HubError> for AttemptFailure {
    fn from(error: HubError) -> Self {
        Self::Final(error)
    }
}

impl Download<'_> {
    /// Fetches the file, unless it is there.
    pub(crate) fn run(&self, transfer: &Transfer<'_>) -> Result<(), HubError> {
        let _lock = self.locked(transfer)?;
        if self.is_there()? {
            transfer.add(self.size);
            return Ok(());
        }
        let blobs = self.folder.directory_of(&self.blob);
        let blobs = blobs.map_err(|error| HubError::disk(&self.blob, "written", &error))?;
        let (name, incomplete) = (self.etag.to_string(), self.incomplete_name());
        let mut partial = Partial::open(self, &blobs)?;
        transfer.add(partial.done);
        let mut is_fresh = partial.done == 0;
        loop {
            self.fetch_rest(&mut partial, transfer)?;
            let found = partial.checksum.end();
            if found == name {
                break;
            }
            transfer.subtract(self.size);
            partial.file.set_len(0).map_err(|error| self.unwritable(&error))?;
            if is_fresh {
                let _ = blobs.remove(incomplete.as_ref());
                let line = format!("{}: checksum: expected {}, found {found}", self.path, self.etag);
                return Err(HubError::Content(line));
            }
            partial = Partial::open(self, &blobs)?;
            is_fresh = true;
        }
        partial.file.sync_all().map_err(|error| self.unwritable(&error))?;
        blobs.rename(&incomplete, &name).map_err(|error| self.unwritable(&error))
    }

    fn incomplete_name(&self) -> String {
        format!("{}.incomplete", self.etag)
    }

    fn incomplete_path(&self) -> PathBuf {
        self.blob.with_file_name(self.incomplete_name())
    }

    fn unwritable(&self, error: &std::io::Error) -> HubError {
        HubError::disk(&self.incomplete_path(), "written", error)
    }

    fn is_there(&self) -> Result<bool, HubError> {
        match std::fs::metadata(&self.blob) {
            Ok(found) if !found.is_file() || found.len() != self.size => Ok(false),
            Ok(_) if !self.verify => Ok(true),
            Ok(_) => self.etag.is_of(&self.blob, self.size).map_err(|error| HubError::disk(&self.blob, "read", &error)),
            Err(_) => Ok(false),
        }
    }

    /// Locks this file, which another process may be fetching; the lock is held until it is dropped.
    fn locked(&self, transfer: &Transfer<'_>) -> Result<File, HubError> {
        let (path, file) = self.folder.open_lock(self.etag);
        let wrong = |error: &std::io::Error| HubError::disk(&path, "locked", error);
        let file = file.map_err(|error| wrong(&error))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                (transfer.watch)(Event::Waits { file: self.path });
                file.lock().map_err(|error| wrong(&error))?;
            }
            Err(TryLockError::Error(error)) => return Err(wrong(&error)),
        }
        Ok(file)
    }

    /// Fetches the rest of the file, in as many attempts as it takes.
    fn fetch_rest(&self, partial: &mut Partial<'_>, transfer: &Transfer<'_>) -> Result<(), HubError> {
        let (mut attempts, mut furthest) = (0, partial.done);
        while partial.done < self.size {
            let (why, wait) = match self.attempt(partial, transfer) {
                Ok(()) => continue,
                Err(AttemptFailure::Final(error)) => return Err(error),
                Err(AttemptFailure::Connection { why, wait }) => (why, wait),
            };
            if partial.done > furthest {
                (furthest, attempts) = (partial.done, 0);
            }
            attempts += 1;
            if attempts >= ATTEMPTS_MAX {
                let kept = match partial.done {
                    0 => String::new(),
                    done => format!("; {done} of {} bytes are kept, and the next run continues from there", self.size),
                };
                return Err(HubError::NoNetwork(format!("{}: {why}{kept}", self.path)));
            }
            (transfer.watch)(Event::Retry { file: self.path, why: &why });
            let pause = wait.unwrap_or(self.pause * 2u32.pow(attempts - 1)).min(PAUSE_MAX);
            let step = Duration::from_millis(50);
            let mut waited = Duration::ZERO;
            while waited < pause {
                if transfer.stop.load(Ordering::Relaxed) {
                    return Err(HubError::Stopped);
                }
                std::thread::sleep(step.min(pause - waited));
                waited += step;
            }
        }
        Ok(())
    }

    /// Sends one request and writes the body of its response.
    fn attempt(&self, partial: &mut Partial<'_>, transfer: &Transfer<'_>) -> Result<(), AttemptFailure> {
        let response = self.client.file(&self.url, partial.done).map_err(|why| match why {
            RequestFailure::Connection(why) => {
                AttemptFailure::Connection { why: format!("no connection to {why}"), wait: None }
            }
            RequestFailure::Final(error) => AttemptFailure::Final(error.at(self.path)),
        })?;
        let response = self.accepted(response, partial, transfer)?;
        let mut body = response.into_body().into_reader();
        let mut buffer = vec![0; 1 << 18];
        loop {
            if transfer.stop.load(Ordering::Relaxed) {
                return Err(HubError::Stopped.into());
            }
            let broken = |why: String| AttemptFailure::Connection { why, wait: None };
            let len = match body.read(&mut buffer) {
                Ok(len) => len,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(broken(format!("the connection broke: {}", excerpt(&error.to_string())))),
            };
            if len == 0 {
                let (done, size) = (partial.done, self.size);
                let short = || broken(format!("the connection ended after {done} of {size} bytes"));
                return if done == size { Ok(()) } else { Err(short()) };
            }
            if len as u64 > self.size - partial.done {
                return Err(self.wrong_size("more".to_string()).into());
            }
            partial.append(&buffer[..len]).map_err(|error| self.unwritable(&error))?;
            transfer.fetched.fetch_add(len as u64, Ordering::Relaxed);
            transfer.add(len as u64);
        }
    }

    /// Checks that the body of a response continues the file; empties the file if the body starts from the beginning.
    fn accepted(
        &self,
        mut response: Response<Body>,
        partial: &mut Partial<'_>,
        transfer: &Transfer<'_>,
    ) -> Result<Response<Body>, AttemptFailure> {
        let status = response.status().as_u16();
        match status {
            200 if partial.done > 0 => self.restart(partial, transfer)?,
            200 => {}
            206 => {
                let range = header(response.headers(), "content-range").unwrap_or_default();
                let expected = format!("bytes {}-{}/{}", partial.done, self.size - 1, self.size);
                if range != expected {
                    let found = excerpt(range);
                    let line = format!("{}: range: expected \"{expected}\", found \"{found}\"", self.path);
                    return Err(HubError::Content(line).into());
                }
            }
            416 if partial.done > 0 => {
                self.restart(partial, transfer)?;
                return Err(AttemptFailure::Connection { why: "status 416".to_string(), wait: None });
            }
            408 | 429 | 500.. => {
                let seconds = header(response.headers(), "retry-after").and_then(|text| text.parse().ok());
                let why = format!("{}: status {status}", self.client.server());
                return Err(AttemptFailure::Connection { why, wait: seconds.map(Duration::from_secs) });
            }
            _ => return Err(self.client.refused(self.name, &mut response).at(self.path).into()),
        }
        if let Some(coding) = header(response.headers(), "content-encoding").filter(|coding| *coding != "identity") {
            let found = excerpt(coding);
            let line = format!("{}: encoding: expected the file as it is, found {found}", self.path);
            return Err(HubError::Content(line).into());
        }
        let length = header(response.headers(), "content-length").and_then(|text| text.parse::<u64>().ok());
        match length.filter(|length| *length != self.size - partial.done) {
            None => Ok(response),
            Some(length) => Err(self.wrong_size(format!("{}", partial.done.saturating_add(length))).into()),
        }
    }

    fn wrong_size(&self, found: String) -> HubError {
        HubError::Content(format!("{}: size: expected {} bytes, found {found}", self.path, self.size))
    }

    fn restart(&self, partial: &mut Partial<'_>, transfer: &Transfer<'_>) -> Result<(), HubError> {
        transfer.subtract(partial.done);
        partial.file.set_len(0).map_err(|error| self.unwritable(&error))?;
        *partial = Partial::open(self, partial.blobs)?;
        Ok(())
    }
}

/// An incomplete file.
struct Partial<'a> {
    /// Its folder.
    blobs: &'a Directory,
    file: File,
    /// Its length.
    done: u64,
    /// The checksum of all its bytes.
    checksum: Checksum,
}

impl<'a> Partial<'a> {
    /// Opens the incomplete file, or creates it.
    fn open(download: &Download<'_>, blobs: &'a Directory) -> Result<Self, HubError> {
        let (name, path) = (download.incomplete_name(), download.incomplete_path());
        let mut file = opened(blobs, &name, &path).map_err(|error| download.unwritable(&error))?;
        let mut done = file.metadata().map_err(|error| download.unwritable(&error))?.len();
        let mut checksum = download.etag.begin(download.size);
        let read = |file: &mut File, checksum: &mut Checksum| {
            if done > download.size {
                file.set_len(0)?;
                done = 0;
            }
            checksum.read(file, done)?;
            file.seek(SeekFrom::Start(done))
        };
        let mut read = read;
        read(&mut file, &mut checksum).map_err(|error| download.unwritable(&error))?;
        Ok(Self { blobs, file, done, checksum })
    }

    fn append(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.file.write_all(bytes)?;
        self.checksum.update(bytes);
        self.done += bytes.len() as u64;
        Ok(())
    }
}

/// Opens an incomplete file to continue it. No download leaves a link, so a link is removed, and its target is not
/// overwritten.
fn opened(blobs: &Directory, name: &str, path: &Path) -> std::io::Result<File> {
    // If the file is replaced by a link after the check, the system refuses to open it.
    if std::fs::symlink_metadata(path).is_ok_and(|found| !found.is_file()) {
        blobs.remove(name.as_ref())?;
    }
    let file = blobs.open_or_create(name)?;
    if !has_other_names(&file.metadata()?) {
        return Ok(file);
    }
    blobs.remove(name.as_ref())?;
    blobs.create_new(name)
}

/// Whether a file is a hard link to another one.
#[cfg(unix)]
fn has_other_names(file: &std::fs::Metadata) -> bool {
    std::os::unix::fs::MetadataExt::nlink(file) != 1
}

#[cfg(not(unix))]
fn has_other_names(_: &std::fs::Metadata) -> bool {
    false
}
