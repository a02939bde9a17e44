//! Options of the target: which model, how long its texts may be, and how it is run.

use std::path::PathBuf;

use clap::Args;
use foretoken::models::{Opened, Options};
use foretoken::settings::ModelSettings;
use foretoken::{CacheType, WeightType};
use foretoken_hub::Name;

use crate::failure::Failure;
use crate::{hub, values};

/// Which model, and how it is run.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Model")]
pub struct ModelOptions {
    /// The model: a directory, .gguf file or org/name [default: a demo]
    ///
    /// It is the target: the model whose text is written, whoever drafts. A name is one of the Hugging Face hub (also
    /// org/name:QUANT, org/name@REVISION), if there is no such path; what is not in the cache is fetched.
    #[arg(short, long, value_name = "MODEL")]
    pub model: Option<PathBuf>,
    /// The same by a name of the hub.
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
    /// Bring the weights from floats to this type as they are loaded: f32, f16, bf16, q8_0, q4_0, q4_k or q6_k
    /// [default: as they are]
    #[arg(long, hide_short_help = true, value_name = "TYPE", value_parser = values::weight_type)]
    pub dtype: Option<WeightType>,
    /// How its keys and values are kept.
    #[command(flatten)]
    pub cache: CacheOptions,
    /// Memory for copies of recurrent states, from which later prompts that begin alike go on [default: 512MiB]
    ///
    /// Of keys and values every row is kept; a recurrent state is kept before each answer and at ends of texts. Those
    /// that were not used for longest go first. Models without recurrent states, all that are known by now, take none.
    #[arg(long, value_name = "SIZE", hide_short_help = true, value_parser = values::size, allow_hyphen_values = true)]
    pub checkpoints: Option<usize>,
    /// Memory for the experts that tokens choose, in networks of experts [default: all of them, or what there is]
    ///
    /// Where not all fit, they are read from the model's file when they are chosen, and those that were not chosen for
    /// longest make room. The text is the same.
    #[arg(long, value_name = "SIZE", hide_short_help = true, value_parser = values::size, allow_hyphen_values = true)]
    pub expert_memory: Option<usize>,
}

/// The target by a name of the hub.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Model")]
pub struct HubOptions {
    /// The target by its name on the Hugging Face hub (as -m)
    #[arg(long, hide_short_help = true, value_name = "ORG/NAME[:QUANT]", value_parser = hub::name,
        conflicts_with = "model")]
    pub hf_repo: Option<Name>,
    /// Which .gguf file of that repository [default: the one of QUANT; Q4_K_M, Q8_0 or the first]
    #[arg(long, hide_short_help = true, value_name = "FILE", requires = "hf_repo")]
    pub hf_file: Option<String>,
}

/// How conversations are written out.
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

/// What is kept of long prompts between runs.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Model")]
pub struct PromptCacheOptions {
    /// Keep what was computed of the prompt in this file (of several prompts what they begin with), and begin with what
    /// is in it already; one of another model, other types or other arithmetic is refused. The text is the same. A
    /// prompt that goes another way takes the place of what was kept: --prompt-cache-ro keeps it
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

/// In what form the target's keys and values are kept.
#[derive(Args, Clone, Copy, Debug)]
#[command(next_help_heading = "Model")]
pub struct CacheOptions {
    /// What cached keys are rounded to: f32, f16, bf16 or q8_0
    #[arg(long, value_name = "TYPE", default_value = "f16", value_parser = values::cache_type, hide_short_help = true)]
    pub cache_type_k: CacheType,
    /// What cached values are rounded to
    #[arg(long, value_name = "TYPE", default_value = "f16", value_parser = values::cache_type, hide_short_help = true)]
    pub cache_type_v: CacheType,
}

impl ModelOptions {
    /// The same of a model that is named in the command's first place.
    pub fn at(&self, place: Option<&PathBuf>) -> Self {
        Self { model: place.or(self.model.as_ref()).cloned(), ..self.clone() }
    }

    /// Where the model lies, if one is named.
    ///
    /// # Errors
    /// As [`settings`](Self::settings).
    pub fn path(&self) -> Result<Option<PathBuf>, Failure> {
        hub::target(self.model.as_deref(), &self.hub)
    }

    /// The library's settings. A model of the hub is fetched if it is not in the cache, and is a path from then on.
    ///
    /// # Errors
    /// It is not there and cannot be fetched.
    pub fn settings(&self) -> Result<ModelSettings, Failure> {
        Ok(ModelSettings { path: self.path()?, ..self.manner() })
    }

    /// How the model is run, whichever it is.
    fn manner(&self) -> ModelSettings {
        let Self { ctx_size, threads, dtype, cache, checkpoints, expert_memory, .. } = self.clone();
        let CacheOptions { cache_type_k, cache_type_v } = cache;
        let default = ModelSettings::default();
        let default = ModelSettings { expert_memory, ..default };
        ModelSettings { ctx_size, threads, dtype, cache_type_k, cache_type_v, checkpoints, ..default }
    }

    /// Opens the model, or the demo if none is given.
    ///
    /// # Errors
    /// As [`Opened::at`] and [`ModelOptions::settings`]; or none is given and this build has no demo.
    pub fn open(&self) -> Result<Opened, Failure> {
        Ok(self.settings()?.open()?)
    }

    /// Tokens that a text may have, of a model that was made for `own`, where no less is the default.
    pub fn context(&self, own: usize) -> usize {
        asked_context(self.ctx_size, own)
    }

    /// How the target is run, with room for `positions` positions.
    pub fn run_with(&self, positions: usize) -> Options {
        self.manner().run_with(positions)
    }

    /// Threads to compute with.
    pub fn threads(&self) -> usize {
        self.manner().threads()
    }
}

/// What was asked for of the `own` tokens that a model was made for; 0 and nothing are all of them.
pub fn asked_context(asked: Option<usize>, own: usize) -> usize {
    asked.filter(|asked| *asked > 0).map_or(own, |asked| asked.min(own))
}
