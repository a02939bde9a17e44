//! Models of the Hugging Face hub: the commands `pull`, `list` and `rm`.
//!
//! Left out: where a name becomes a path for whoever runs a model (`console/src/hub.rs`), the cache and the protocol
//! (`foretoken_hub`).

mod estimate;
mod evening;
mod family;
mod list;
mod pull;
mod remove;

pub use list::{List, held};
pub use pull::Pull;
pub use remove::Remove;
