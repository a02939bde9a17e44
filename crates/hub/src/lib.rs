//! Models by a name of the Hugging Face hub: `org/name`, `org/name:Q4_K_M`, `org/name@revision`.
//!
//! A name is looked up in the cache folder that transformers and llama.cpp use as well
//! (`models--org--name/{blobs,refs,snapshots}`); what is missing there is fetched. What was fetched is a folder or a
//! file like any other: nothing here knows what a model is, beyond the names of its files.
//!
//! ```no_run
//! use foretoken_hub::{Asked, Hub, HubError, Settings};
//!
//! let hub = Hub::new(Settings::from_environment()?)?;
//! let found = hub.get(&Asked::new("Qwen/Qwen3-0.6B-GGUF:q8_0".parse()?), &|_| {})?;
//! println!("{} ({} bytes)", found.path.display(), found.bytes);
//! # Ok::<(), HubError>(())
//! ```
//!
//! # What is promised
//!
//! *Nothing is half-used.* A file is fetched beside its place (`.incomplete`), goes on where an earlier run was
//! interrupted, and gets its name only when its checksum is right; a snapshot gets its links only when all its files
//! are there. The listing of a revision is kept beside it (`trees/COMMIT.json`, where `huggingface_hub` keeps it too),
//! so that sizes can be checked without a network; what has another size is fetched again, and `fetch` with `verify`
//! reads every byte. *The server is not trusted.* Names in listings are refused unless they lie within the snapshot,
//! answers have bounded sizes, and a body is as long as was said or is refused. *A token goes to the hub alone*: never
//! to where the hub redirects, which is another host for large files. *Processes do not disturb each other*: each file
//! has a lock of its own, the one that `huggingface_hub` takes (`.locks/`).
//!
//! # Why not the crate `hf-hub`
//!
//! Its newest version (1.0.0) fetches through tokio, reqwest and the Xet client: 223 crates with the C of aws-lc, also
//! for its blocking face. A download that broke begins anew, and no checksum is compared. So the little that is needed
//! stands here, over `ureq` (38 crates).
//!
//! Left out: uploads, data sets, the Xet protocol (its files are served over plain HTTP too), and what a model is.

#![forbid(unsafe_code)]

mod cache;
mod checksum;
mod choice;
mod client;
mod download;
mod error;
mod fetch;
mod held;
mod listing;
mod name;
mod resolver;
mod settings;
mod space;
mod url;

pub use error::HubError;
pub use fetch::{Asked, Event, Found, Hub};
pub use held::{Form, Held, Kind, Removal};
pub use name::Name;
pub use settings::{Proxy, Settings, Token};
pub use space::readable;
