//! A range of bytes that many tensors can share: of a mapped file, of a static slice or of a `Vec`.
//!
//! The owner of the bytes is behind an `Arc`, and a view is two integers, so that a tensor can be cloned, stored and
//! sent to another thread without copying weights. This is the only module of the crate with `unsafe`: for the calls
//! that map a file and give pages back, and for the handler of truncated files ([`truncated`]).

mod truncated;

use std::fmt;
use std::ops::{Deref, Range};
use std::path::Path;
use std::sync::Arc;

use memmap2::Mmap;

use crate::WeightsError;
use crate::whole::{open_checked, regular};
use truncated::Listing;
pub use truncated::{exit_if_a_mapped_file_is_truncated, fail_where_a_file_may_not_grow};

/// The owner of the bytes.
#[derive(Clone)]
enum Owner {
    Static(&'static [u8]),
    Vec(Arc<Vec<u8>>),
    Map(Arc<Mapped>),
}

/// A mapped file. The fields are dropped in this order, so that the file is removed from the list before it is
/// unmapped.
struct Mapped {
    _listing: Listing,
    map: Mmap,
}

/// A range of a mapped file, of a static slice or of a `Vec`. It is cheap to clone; the owner lives as long as any
/// view.
#[derive(Clone)]
pub struct Bytes {
    owner: Owner,
    // Invariant: start <= end <= length of the owner. It is kept by `get`, the only place that narrows a range.
    start: usize,
    end: usize,
}

impl Bytes {
    /// Views the bytes of a model that is part of the program, for instance from `include_bytes!`.
    pub fn from_static(bytes: &'static [u8]) -> Bytes {
        Bytes { start: 0, end: bytes.len(), owner: Owner::Static(bytes) }
    }

    /// Views the bytes of a `Vec`, which are not copied.
    pub fn from_vec(bytes: Vec<u8>) -> Bytes {
        Bytes { start: 0, end: bytes.len(), owner: Owner::Vec(Arc::new(bytes)) }
    }

    /// Maps a whole file. The file must not be changed or shortened by anyone while the view lives: to replace one,
    /// rename another to its name ([`exit_if_a_mapped_file_is_truncated`] reports it if another program shortens it).
    ///
    /// # Errors
    /// [`WeightsError::Io`] if the path is not a regular file or cannot be opened or mapped.
    pub fn map(path: impl AsRef<Path>) -> Result<Bytes, WeightsError> {
        let path = path.as_ref();
        let (file, _) = open_checked(path, regular).map_err(|error| WeightsError::io(path, "open", error))?;
        // SAFETY: the mapping is read-only, so this process cannot change it. Another process that shortens
        // or rewrites a model file under a running engine can; no system call prevents that, and reading the weights
        // into memory instead would double the start-up time and the footprint of every process that shares them.
        let map = unsafe { Mmap::map(&file) }.map_err(|error| WeightsError::io(path, "map", error))?;
        let mapped = Mapped { _listing: Listing::new(path, &map), map };
        Ok(Bytes { start: 0, end: mapped.map.len(), owner: Owner::Map(Arc::new(mapped)) })
    }

    /// The part of this view at `range`, counted from the start of this view, or `None` if it does not lie inside.
    pub fn get(&self, range: Range<usize>) -> Option<Bytes> {
        if range.start > range.end || range.end > self.len() {
            return None;
        }
        Some(Bytes { owner: self.owner.clone(), start: self.start + range.start, end: self.start + range.end })
    }

    /// The part of this view at `range`, counted from the start of this view.
    ///
    /// # Panics
    /// If the range does not lie inside this view. Ranges that come from a file go through [`Bytes::get`].
    pub fn slice(&self, range: Range<usize>) -> Bytes {
        match self.get(range.clone()) {
            Some(bytes) => bytes,
            None => panic!("slice {range:?} of a view of {} bytes", self.len()),
        }
    }
}

impl Bytes {
    /// Tells the system that these bytes will not be read soon: the pages of a mapped file that lie wholly inside are
    /// given back, and are read again from the file if they are needed after all. For callers that have copied the
    /// weights.
    pub fn release(&self) {
        #[cfg(unix)]
        if let Owner::Map(map) = &self.owner {
            const PAGE: usize = 1 << 12; // larger pages are given back whole, with neighbouring bytes
            let (start, end) = (self.start.next_multiple_of(PAGE), self.end / PAGE * PAGE);
            if start < end {
                // SAFETY: the mapping is of a file and read-only, so the pages, and neighbouring bytes of a large one,
                // come back with the same content.
                let _ =
                    unsafe { map.map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, end - start) };
            }
        }
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let all: &[u8] = match &self.owner {
            Owner::Static(bytes) => bytes,
            Owner::Vec(bytes) => bytes,
            Owner::Map(map) => &map.map,
        };
        &all[self.start..self.end]
    }
}

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Bytes {
    /// Shows the owner and the range instead of gigabytes of weights.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let owner = match &self.owner {
            Owner::Static(_) => "static",
            Owner::Vec(_) => "vec",
            Owner::Map(_) => "map",
        };
        write!(f, "Bytes({owner}, {}..{})", self.start, self.end)
    }
}
