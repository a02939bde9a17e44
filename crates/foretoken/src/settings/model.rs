//! Settings of the target: which model, how long its texts may be, and how it is run.

use std::path::PathBuf;

use foretoken_model::{CacheType, Options, WeightType};
use serde::{Deserialize, Serialize};

use super::names;
use crate::Error;
use crate::error::Message;
use crate::models::{Opened, demo};

/// The longest context that is made without being asked for.
const CONTEXT_DEFAULT: usize = 4096;

/// Which model, and how it is run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelSettings {
    /// The target: a directory or a `.gguf` file; `None` is the demo model, if this build has it.
    pub path: Option<PathBuf>,
    /// Longest text in tokens, prompt included; `None` is the model's own, at most 4096.
    pub ctx_size: Option<usize>,
    /// Threads to compute with; `None` is one a core.
    pub threads: Option<usize>,
    /// Weights are brought from floats to this type as they are loaded; `None` leaves them as they are.
    #[serde(with = "names::optional")]
    pub dtype: Option<WeightType>,
    /// What cached keys are rounded to.
    #[serde(with = "names")]
    pub cache_type_k: CacheType,
    /// What cached values are rounded to.
    #[serde(with = "names")]
    pub cache_type_v: CacheType,
    /// Rows of a long prompt's beginning are read from this file, if it is there, and written to it. It changes no
    /// text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_cache: Option<PathBuf>,
    /// That file is read and never written.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub prompt_cache_ro: bool,
}

impl ModelSettings {
    /// Opens the model, or the demo if none is given.
    ///
    /// # Errors
    /// As [`Opened::at`]; or none is given and this build has no demo.
    pub fn open(&self) -> Result<Opened, Error> {
        match (&self.path, demo::target()) {
            (Some(path), _) => Opened::at(path),
            (None, Some(files)) => Opened::embedded(files),
            (None, None) => {
                let message = Message::setting("model").and(": expected a directory or a .gguf file, found none");
                Err(Error::Setting(message))
            }
        }
    }

    /// How the target is run, with room for `positions` positions.
    pub fn run_with(&self, positions: usize) -> Options {
        let options = Options::for_positions(positions, self.threads());
        let Self { cache_type_k: key_type, cache_type_v: value_type, dtype: weight_type, .. } = *self;
        Options { key_type, value_type, weight_type, ..options }
    }

    /// Threads to compute with.
    pub fn threads(&self) -> usize {
        self.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
    }

    /// Tokens that a text may have: what was asked for, but never more than the network can represent.
    pub fn context(&self, model: &Opened) -> usize {
        let own = model.spec.context_max;
        self.ctx_size.map_or(own.min(CONTEXT_DEFAULT), |asked| asked.min(own))
    }

    /// What is to be said where less context is used than was asked for.
    pub(crate) fn note(&self, model: &Opened) -> Option<Message> {
        let (asked, own) = (self.ctx_size?, model.spec.context_max);
        let rest = format!(" {asked}: {} was made for {own} tokens, which is used", model.name);
        (asked > own).then(|| Message::setting("ctx_size").and(rest))
    }
}
