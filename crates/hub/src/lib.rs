//! Models by a name of the Hugging Face hub: `org/name`, `org/name:Q4_K_M`, `org/name@revision`.
//!
//! A name is looked up in the cache folder that transformers and llama.cpp use as well
//! (`models--org--name/{blobs,refs,snapshots}`); missing files are fetched. A fetched model is a folder or a file like
//! any other: this crate knows nothing of models but the names of their files.
//!
//! ```no_run
//! use foretoken_hub::{ModelRequest, Hub, HubError, Settings};
//!
//! let hub = Hub::new(Settings::from_environment()?)?;
//! let found = hub.get(&ModelRequest::new("Qwen/Qwen3-0.6B-GGUF:q8_0".parse()?), &|_| {})?;
//! println!("{} ({} bytes)", found.path.display(), found.bytes);
//! # Ok::<(), HubError>(())
//! ```
//!
//! # What is promised
//!
//! *No partial file is used.* A file is fetched under another name (`.incomplete`), continued where an earlier run was
//! interrupted, and renamed only if its checksum is right; a snapshot gets its links only when all its files are there.
//! The listing of a revision is kept (`trees/COMMIT.json`, where `huggingface_hub` keeps it too), so that sizes can be
//! checked without a network; a file of another size is fetched again, and `fetch` with `verify` checks every byte.
//! *The server is not trusted.* Names in listings are refused unless they are paths within the snapshot, responses have
//! bounded sizes, and a body of another length than announced is refused. *Nothing is written outside the cache*, nor
//! through a link in it that leads out of it, even if a folder is exchanged for one in the meantime. *The token is sent
//! only to the hub*, never to hosts that it redirects to, as for large files. *Concurrent processes are safe*: each
//! file has a lock, the same as `huggingface_hub`'s (`.locks/`), and nothing is removed from a repository while files
//! of it are fetched.
//!
//! # Why not the crate `hf-hub`
//!
//! Its newest version (1.0.0) uses tokio, reqwest and the Xet client: 223 crates including the C code of aws-lc, even
//! for the blocking API. An interrupted download starts again from the beginning, and no checksum is compared. So the
//! few functions that are needed are implemented here, with `ureq` (38 crates).
//!
//! Left out: uploads, data sets, and the Xet protocol (its files are served over plain HTTP too).

#![forbid(unsafe_code)]

mod cache;
mod checksum;
mod choice;
mod client;
mod directory;
mod download;
mod error;
mod fetch;
mod listing;
mod name;
mod resolver;
mod settings;
mod snapshots;
mod space;
mod url;

pub use download::Event;
pub use error::HubError;
pub use fetch::{CachedModel, Hub, ModelRequest};
pub use name::Name;
pub use settings::{Proxy, Settings, Token};
pub use snapshots::{CachedSnapshot, ModelFormat, Removal, SnapshotModel};
pub use space::readable;
