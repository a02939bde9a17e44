//! Models of the Hugging Face hub: the commands `pull`, `list` and `rm`.
//!
//! `console/src/hub.rs` turns a name into a path for the commands that run a model; `foretoken_hub` has the cache and
//! the protocol.

mod family;
mod head_training;
mod list;
mod pull;
mod remove;

pub use list::{List, cached_models};
pub use pull::Pull;
pub use remove::Remove;

/// Most tokens of a draft in estimates of the gain of a draft model.
const GAMMA_MAX: u32 = 16;
