//! The options that commands share, in groups: model, speculation, drafters, sampling.
//!
//! Names are llama.cpp's where it has them, then those of the papers and of transformers. Left out: what only one
//! command knows.

mod drafters;
mod guided;
mod model;
mod sampling;
mod speculation;

pub use drafters::DrafterOptions;
pub use guided::GuidedOptions;
pub use model::{CacheOptions, HubOptions, ModelOptions, PromptCacheOptions, TemplateOptions, asked_context};
pub use sampling::{LawOptions, SamplingOptions};
pub use speculation::{Budget, DraftingOptions, SpeculationOptions, Verify};
