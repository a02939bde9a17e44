//! The options that commands share, in groups: model, speculation, drafters, sampling.
//!
//! Names are llama.cpp's where it has them, then those of the papers and of transformers. Options of a single command
//! are defined with it.

mod beams;
mod drafters;
mod guided;
mod model;
mod sampling;
mod speculation;

pub use crate::hub::HubOptions;
pub use beams::BeamOptions;
pub use drafters::DrafterOptions;
pub use guided::GuidedOptions;
pub use model::{CacheOptions, ModelOptions, PromptCacheOptions, TemplateOptions, requested_context};
pub use sampling::{LawOptions, SamplingOptions};
pub use speculation::{DraftingOptions, SpeculationOptions};
