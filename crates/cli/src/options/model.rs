//! Options of the target: which model, how long its texts may be, and how it is run.

use std::path::PathBuf;

use clap::Args;
use foretoken_model::{CacheType, Options, WeightType};

use crate::demo;
use crate::failure::Failure;
use crate::models::Opened;
use crate::progress::say;
use crate::values;

/// The longest context that is made without being asked for.
const CONTEXT_DEFAULT: usize = 4096;

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
    /// Opens the model, or the demo if none is given.
    ///
    /// # Errors
    /// As [`Opened::at`]; or none is given and this build has no demo.
    pub fn open(&self) -> Result<Opened, Failure> {
        match (&self.model, demo::target()) {
            (Some(path), _) => Opened::at(path),
            (None, Some(files)) => Opened::embedded(files),
            (None, None) => Err(Failure::Usage("--model: expected a directory or a .gguf file, found none".into())),
        }
    }

    /// How the target is run, with room for `positions` positions.
    pub fn run_with(&self, positions: usize) -> Options {
        let CacheOptions { cache_type_k, cache_type_v } = self.cache;
        let options = Options::for_positions(positions, self.threads());
        Options { key_type: cache_type_k, value_type: cache_type_v, weight_type: self.dtype, ..options }
    }

    /// Threads to compute with.
    pub fn threads(&self) -> usize {
        self.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
    }

    /// Tokens that a text may have: what was asked for, but never more than the network can represent.
    pub fn context(&self, model: &Opened) -> usize {
        let own = model.spec.context_max;
        match self.ctx_size {
            None => own.min(CONTEXT_DEFAULT),
            Some(asked) if asked > own => {
                say(format_args!("note: --ctx-size {asked}: {} was made for {own} tokens, which is used", model.name));
                own
            }
            Some(asked) => asked,
        }
    }
}
