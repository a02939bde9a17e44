//! The options that commands share, in groups: model, speculation, drafters, sampling.
//!
//! An option has llama.cpp's name if it has one there, else that of a paper or of transformers. Options of a single
//! command are defined with the command.

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
