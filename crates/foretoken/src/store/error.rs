//! Why a store of texts cannot be read or written: one line that names file and field, expected and found.
//!
//! Left out: what to do about it, which is a door's business.

use std::fmt;
use std::path::Path;

/// A store's file that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreError {
    /// The operating system refused.
    Io {
        /// The file.
        file: String,
        /// What was tried: "read" or "written".
        tried: &'static str,
        /// What it said.
        found: String,
    },
    /// A field is not what it must be.
    Field {
        /// The file.
        file: String,
        /// The field, with the number of its document where it has one (from 1).
        field: String,
        /// What it must be.
        expected: String,
        /// What it is.
        found: String,
    },
}

impl StoreError {
    pub(super) fn io(path: &Path, tried: &'static str, error: &std::io::Error) -> Self {
        Self::Io { file: path.display().to_string(), tried, found: error.to_string() }
    }

    pub(super) fn no_file(path: &Path) -> Self {
        Self::Io { file: path.display().to_string(), tried: "written", found: "it names no file".to_string() }
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { file, tried, found } => write!(f, "{file}: cannot be {tried}: {found}"),
            Self::Field { file, field, expected, found } => {
                write!(f, "{file}: {field}: expected {expected}, found {found}")
            }
        }
    }
}

impl std::error::Error for StoreError {}
