//! Options of the target: which model, its context, and how it is run.

use std::path::PathBuf;

use clap::Args;
use foretoken::models::{Opened, Options};
use foretoken::settings::ModelSettings;
use foretoken::{CacheType, Offload, WeightType};

use crate::failure::Failure;
use crate::hub::{self, HubOptions};
use crate::values;

/// The target model, its context window, and how it is run.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Model")]
pub struct ModelOptions {
    /// The model: a directory, .gguf file or org/name [default: a demo]
    ///
    /// It is the target, the model whose text is generated. If there is no such path, it is a name of the Hugging Face
    /// hub (also org/name:QUANT, org/name@REVISION), and is fetched if it is not in the cache.
    #[arg(short, long, value_name = "MODEL")]
    pub model: Option<PathBuf>,
    /// The model by its name on the hub.
    #[command(flatten)]
    pub hub: HubOptions,
    /// Longest text in tokens [default: the model's own, at most 4096]
    ///
    /// The prompt is part of it. 0 is the model's own, however long.
    #[arg(short, long, value_name = "N", value_parser = values::context, allow_negative_numbers = true)]
    pub ctx_size: Option<usize>,
    /// Threads [default: one a core]
    #[arg(short, long, value_name = "N", value_parser = values::threads, allow_negative_numbers = true)]
    pub threads: Option<usize>,
    /// Convert weights of floats to this type as they are loaded: f32, f16, bf16, q8_0, q4_0, q4_k or q6_k [default: as
    /// they are]
    #[arg(long, hide_short_help = true, value_name = "TYPE", value_parser = values::weight_type)]
    pub dtype: Option<WeightType>,
    /// The types of its keys and values.
    #[command(flatten)]
    pub cache: CacheOptions,
    /// Memory for checkpoints of recurrent states, from which later prompts with the same prefix continue [default:
    /// 512MiB]
    ///
    /// A checkpoint is taken before each answer and at the end of a text. The least recently used ones are dropped
    /// first. Models without recurrent states, which are all that are supported now, need none.
    #[arg(long, value_name = "SIZE", hide_short_help = true, value_parser = values::size, allow_hyphen_values = true)]
    pub checkpoints: Option<usize>,
    /// Memory for the routed experts of a mixture of experts [default: room for all, or what is free]
    ///
    /// Where not all fit, experts are read from the model's file when they are chosen, and replace the least recently
    /// used ones. The text is the same.
    #[arg(long, value_name = "SIZE", hide_short_help = true, value_parser = values::size, allow_hyphen_values = true)]
    pub expert_memory: Option<usize>,
    /// Read layers from a file for every pass: auto (if the model does not fit into memory), never, or if layers have
    /// more than SIZE, which is their memory [default: auto]
    ///
    /// The file of packed layers is made once, in the cache folder, and takes as much room as the model. A pass takes
    /// as long as the disk needs to read the layers that are not in memory, so drafts gain more than elsewhere. The
    /// text is the same.
    #[arg(
        long,
        value_name = "WHEN|SIZE",
        hide_short_help = true,
        default_value = "auto",
        hide_default_value = true,
        allow_hyphen_values = true
    )]
    pub offload: Offload,
}

/// The chat template.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Model")]
pub struct TemplateOptions {
    /// Write conversations out by this template: a Jinja file, a name or Jinja itself [default: the model's own]
    ///
    /// Names: chatml, gemma, llama2, llama3, phi3, vicuna, zephyr.
    #[arg(long, hide_short_help = true, alias = "chat-template-file", value_name = "FILE|NAME",
        value_parser = values::chat_template)]
    chat_template: Option<String>,
}

impl TemplateOptions {
    /// The settings of a model, with this template.
    pub fn with(&self, model: ModelSettings) -> ModelSettings {
        ModelSettings { chat_template: self.chat_template.clone(), ..model }
    }
}

/// The file in which KV-cache rows of prompts are kept between runs.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Model")]
pub struct PromptCacheOptions {
    /// Keep the computed rows of the prompt in this file (of several prompts those of their common prefix), and reuse
    /// those that are in it; a file of another model, other types or other arithmetic is refused. The text is the same.
    /// A different prompt replaces what was kept; --prompt-cache-ro keeps it
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    prompt_cache: Option<PathBuf>,
    /// Only read that file
    #[arg(long, requires = "prompt_cache", hide_short_help = true)]
    prompt_cache_ro: bool,
}

impl PromptCacheOptions {
    /// The settings of a model, with this file.
    pub fn with(&self, model: ModelSettings) -> ModelSettings {
        let Self { prompt_cache, prompt_cache_ro } = self.clone();
        ModelSettings { prompt_cache, prompt_cache_ro, ..model }
    }
}

/// The types of the target's keys and values.
#[derive(Args, Clone, Copy, Debug)]
#[command(next_help_heading = "Model")]
pub struct CacheOptions {
    /// Type of cached keys: f32, f16, bf16 or q8_0
    #[arg(long, value_name = "TYPE", default_value = "f16", value_parser = values::cache_type, hide_short_help = true)]
    pub cache_type_k: CacheType,
    /// Type of cached values
    #[arg(long, value_name = "TYPE", default_value = "f16", value_parser = values::cache_type, hide_short_help = true)]
    pub cache_type_v: CacheType,
}

impl ModelOptions {
    /// These options with the model of the command's first argument, if there is one.
    pub fn with_model(&self, place: Option<&PathBuf>) -> Self {
        Self { model: place.or(self.model.as_ref()).cloned(), ..self.clone() }
    }

    /// The model's path, if one is named.
    ///
    /// # Errors
    /// As [`settings`](Self::settings).
    pub fn path(&self) -> Result<Option<PathBuf>, Failure> {
        hub::target(self.model.as_deref(), &self.hub)
    }

    /// The library's settings. A model of the hub is fetched if it is not in the cache; the settings have its path.
    ///
    /// # Errors
    /// The model is not in the cache and cannot be fetched.
    pub fn settings(&self) -> Result<ModelSettings, Failure> {
        Ok(ModelSettings { path: self.path()?, ..self.run_settings() })
    }

    /// The library's settings without the model's path.
    fn run_settings(&self) -> ModelSettings {
        let Self { ctx_size, threads, dtype, cache, checkpoints, expert_memory, offload, .. } = *self;
        let CacheOptions { cache_type_k, cache_type_v } = cache;
        let settings =
            ModelSettings { ctx_size, threads, dtype, cache_type_k, cache_type_v, ..ModelSettings::default() };
        ModelSettings { checkpoints, expert_memory, offload, ..settings }
    }

    /// Opens the model, or the demo if none is given.
    ///
    /// # Errors
    /// As [`Opened::at`] and [`ModelOptions::settings`]; or none is given and this build has no demo.
    pub fn open(&self) -> Result<Opened, Failure> {
        Ok(self.settings()?.open()?)
    }

    /// Tokens that a sequence of a model may have, by default the model's context window of `most` tokens.
    pub fn context(&self, most: usize) -> usize {
        requested_context(self.ctx_size, most)
    }

    /// Options for loading the target, with a KV cache of `positions` positions.
    pub fn run_with(&self, positions: usize) -> Options {
        self.run_settings().run_with(positions)
    }

    /// Threads to compute with.
    pub fn threads(&self) -> usize {
        self.run_settings().threads()
    }
}

/// The requested context window, at most the model's, which has `most` tokens; 0 and `None` are the model's.
pub fn requested_context(wanted: Option<usize>, most: usize) -> usize {
    wanted.filter(|wanted| *wanted > 0).map_or(most, |wanted| wanted.min(most))
}
