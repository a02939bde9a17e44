//! Options of the target: which model, how long its texts may be, and how it is run.

use std::path::PathBuf;

use clap::Args;
use foretoken::models::Opened;
use foretoken::settings::ModelSettings;
use foretoken_model::{CacheType, Options, WeightType};

use crate::failure::Failure;
use crate::values;

/// Which model, and how it is run.
#[derive(Args, Clone, Debug)]
pub struct ModelOptions {
    /// The target: a directory or a .gguf file [default: the demo model that is part of this program]
    #[arg(short, long, value_name = "MODEL")]
    pub model: Option<PathBuf>,
    /// Longest text in tokens, prompt included [default: the model's own, at most 4096]
    #[arg(short, long, value_name = "N", value_parser = values::one_up, allow_negative_numbers = true)]
    pub ctx_size: Option<usize>,
    /// Threads [default: one a core]
    #[arg(short, long, value_name = "N", value_parser = values::threads, allow_negative_numbers = true)]
    pub threads: Option<usize>,
    /// Bring the weights from floats to this type as they are loaded: f32, f16, bf16, q8_0, q4_0, q4_k or q6_k
    /// [default: as they are]
    #[arg(long, value_name = "TYPE", value_parser = values::weight_type)]
    pub dtype: Option<WeightType>,
    #[command(flatten)]
    pub cache: CacheOptions,
}

/// How conversations are written out.
#[derive(Args, Clone, Debug)]
pub struct TemplateOptions {
    /// Write conversations out by this template instead of the model's own: a Jinja file, a name (chatml, gemma,
    /// llama2, llama3, phi3, vicuna or zephyr), or Jinja itself
    #[arg(long, alias = "chat-template-file", value_name = "FILE|NAME", value_parser = values::chat_template)]
    chat_template: Option<String>,
}

impl TemplateOptions {
    /// The settings of a model, with this template.
    pub fn with(&self, model: ModelSettings) -> ModelSettings {
        ModelSettings { chat_template: self.chat_template.clone(), ..model }
    }
}

/// What is kept of long prompts between runs.
#[derive(Args, Clone, Debug)]
pub struct PromptCacheOptions {
    /// Keep what was computed of the prompt in this file (of several prompts what they begin with), and begin with what
    /// is in it already; one of another model, other types or other arithmetic is refused. The text is the same. A
    /// prompt that goes another way takes the place of what was kept: --prompt-cache-ro keeps it
    #[arg(long, value_name = "FILE")]
    prompt_cache: Option<PathBuf>,
    /// Only read that file
    #[arg(long, requires = "prompt_cache")]
    prompt_cache_ro: bool,
}

impl PromptCacheOptions {
    /// The settings of a model, with this file.
    pub fn with(&self, model: ModelSettings) -> ModelSettings {
        let Self { prompt_cache, prompt_cache_ro } = self.clone();
        ModelSettings { prompt_cache, prompt_cache_ro, ..model }
    }
}

/// In what form the target's keys and values are kept.
#[derive(Args, Clone, Copy, Debug)]
pub struct CacheOptions {
    /// What cached keys are rounded to: f32, f16, bf16 or q8_0 (also -ctk)
    #[arg(long, value_name = "TYPE", default_value = "f16", value_parser = values::cache_type)]
    pub cache_type_k: CacheType,
    /// What cached values are rounded to (also -ctv)
    #[arg(long, value_name = "TYPE", default_value = "f16", value_parser = values::cache_type)]
    pub cache_type_v: CacheType,
}

impl ModelOptions {
    /// The model, if one is named.
    pub fn path(&self) -> Option<PathBuf> {
        self.model.clone()
    }

    /// The library's settings.
    pub fn settings(&self) -> ModelSettings {
        let Self { model, ctx_size, threads, dtype, cache } = self.clone();
        let CacheOptions { cache_type_k, cache_type_v } = cache;
        let default = ModelSettings::default();
        ModelSettings { path: model, ctx_size, threads, dtype, cache_type_k, cache_type_v, ..default }
    }

    /// Opens the model, or the demo if none is given.
    ///
    /// # Errors
    /// As [`Opened::at`]; or none is given and this build has no demo.
    pub fn open(&self) -> Result<Opened, Failure> {
        Ok(self.settings().open()?)
    }

    /// How the target is run, with room for `positions` positions.
    pub fn run_with(&self, positions: usize) -> Options {
        self.settings().run_with(positions)
    }

    /// Threads to compute with.
    pub fn threads(&self) -> usize {
        self.settings().threads()
    }
}
