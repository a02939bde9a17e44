//! Settings of the target: which model, its context, and how it is run.

use std::path::PathBuf;

use foretoken_model::{CacheType, Options, WeightType};
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::error::Message;
use crate::memory::MemoryNeed;
use crate::models::{Offload, Opened, demo};
use crate::names;

/// The longest context that is used by default.
const CONTEXT_DEFAULT: usize = 4096;

/// The fewest tokens for which the cache has room for each sequence after the first: a prompt of some paragraphs and
/// its answer.
const FURTHER_SEQUENCE_MIN: usize = 1024;

/// The target model, its context window, and how it is run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelSettings {
    /// The target: a directory or a `.gguf` file; `None` is the demo model, if this build has it.
    pub path: Option<PathBuf>,
    /// Context window: the longest sequence in tokens, prompt included. 0 is the model's own limit; `None` is the
    /// model's own limit, but at most 4096.
    pub ctx_size: Option<usize>,
    /// Threads to compute with; `None` is one for each core.
    pub threads: Option<usize>,
    /// Weights are converted from floats to this type as they are loaded; `None` leaves them as they are.
    #[serde(with = "names::optional")]
    pub dtype: Option<WeightType>,
    /// The type of cached keys.
    #[serde(with = "names")]
    pub cache_type_k: CacheType,
    /// The type of cached values.
    #[serde(with = "names")]
    pub cache_type_v: CacheType,
    /// Bytes for checkpoints of recurrent states, from which later prompts continue; networks without states need none.
    /// `None` is 512 MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoints: Option<usize>,
    /// Bytes for the routed experts of a mixture-of-experts network. If not all fit, experts are packed when they are
    /// chosen, in the memory of the least recently used ones; texts do not change. `None` is room for all, or all free
    /// memory if that is less.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expert_memory: Option<usize>,
    /// Whether layers are read from a file for every pass, for models larger than memory; texts do not change.
    #[serde(with = "names", skip_serializing_if = "is_default")]
    pub offload: Offload,
    /// The chat template that is used instead of the model's own: a Jinja template, or the name of a built-in one
    /// ([`ChatTemplate::names`](crate::ChatTemplate::names)).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chat_template: Option<String>,
    /// The KV-cache rows of the prompts' common prefix are read from this file, if it exists, and written to it. Texts
    /// do not change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_cache: Option<PathBuf>,
    /// The prompt cache is read and never written.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub prompt_cache_ro: bool,
}

impl ModelSettings {
    /// Opens the model, or the demo if none is given.
    ///
    /// # Errors
    /// As [`Opened::at`]; or none is given and this build has no demo, or it cannot have a prompt cache.
    pub fn open(&self) -> Result<Opened, Error> {
        let opened = match (&self.path, demo::target()) {
            (Some(path), _) => Opened::at(path)?,
            (None, Some(files)) => Opened::embedded(files)?,
            (None, None) => return Err(Error::setting("model", ": expected a directory or a .gguf file, found none")),
        };
        self.check_prompt_cache(&opened)?;
        Ok(opened)
    }

    /// Options for loading the target, with a KV cache of `positions` positions.
    pub fn run_with(&self, positions: usize) -> Options {
        let options = Options::for_positions(positions, self.threads());
        let Self { cache_type_k: key_type, cache_type_v: value_type, dtype: weight_type, .. } = *self;
        let checkpoint_bytes = self.checkpoints.unwrap_or(options.checkpoint_bytes);
        let (expert_bytes, layer_bytes) = (self.expert_memory, self.offload.layer_bytes());
        Options { key_type, value_type, weight_type, checkpoint_bytes, expert_bytes, layer_bytes, ..options }
    }

    /// Threads to compute with.
    pub fn threads(&self) -> usize {
        self.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
    }

    /// A note for users if the system started fewer threads than the settings have.
    pub(crate) fn note_threads(&self, found: usize) -> Option<Message> {
        let expected = self.threads();
        let rest = format!(": expected {expected}, found {found}: the system gives no more; texts stay the same");
        (found < expected).then(|| Message::setting("threads").and(rest))
    }

    /// A note for users if room for checkpoints was set and the network has no recurrent states.
    pub(crate) fn note_checkpoints(&self, model: &Opened, has_states: bool) -> Option<Message> {
        let rest = format!(": {} has no recurrent states, of which checkpoints would be kept", model.name);
        (self.checkpoints.is_some() && !has_states).then(|| Message::setting("checkpoints").and(rest))
    }

    /// A note for users if room for experts was set and the network has none.
    fn note_experts(&self, model: &Opened) -> Option<Message> {
        let rest = format!(": {} has no experts that tokens choose", model.name);
        let is_unused = self.expert_memory.is_some() && model.spec.experts.is_none();
        is_unused.then(|| Message::setting("expert_memory").and(rest))
    }

    /// Notes for users about experts and layers that are not all in memory, or for which room was set in vain.
    pub(crate) fn notes_of_need(&self, model: &Opened, need: &MemoryNeed, options: &Options) -> Vec<Message> {
        let experts = need.note_experts(options).or_else(|| self.note_experts(model));
        let layers = need.note_layers(options).or_else(|| self.note_offload(model, need.layers > 0));
        experts.into_iter().chain(layers).collect()
    }

    /// A note for users if room for layers was set and the model's layers all stay in memory.
    fn note_offload(&self, model: &Opened, can_be_offloaded: bool) -> Option<Message> {
        if can_be_offloaded || !matches!(self.offload, Offload::Within(_)) {
            return None;
        }
        let message = Message::setting("offload").and(format!(": the layers of {} stay in memory, ", model.name));
        Some(match &model.spec {
            spec if spec.experts.is_some() => {
                message.and("and room for its experts is set by ").and_setting("expert_memory")
            }
            spec if spec.encoder.is_some() => message.and("as those of every encoder-decoder"),
            _ => message.and("as on all ranks and devices"),
        })
    }

    /// Tokens that a sequence may have: the setting, but never more than the network's limit.
    pub fn context(&self, model: &Opened) -> usize {
        let most = model.spec.context_max;
        match self.ctx_size {
            None => most.min(CONTEXT_DEFAULT),
            Some(0) => most,
            Some(wanted) => wanted.min(most),
        }
    }

    /// Positions of the target's KV cache for `parallel` sequences of up to `context` tokens.
    ///
    /// Few sequences fill their context, and pages are taken as they grow. So there is room for one full sequence, and
    /// for a quarter of that, but at least 1024 tokens, for each of the others. If they need more, some are preempted
    /// and their rows computed again later. Free pages keep prefixes that later sequences may share.
    pub fn cache_positions(context: usize, parallel: usize) -> usize {
        // A page belongs to one sequence, so each sequence's part is a whole number of pages.
        let pages = |positions: usize| positions.next_multiple_of(Options::for_positions(1, 1).page_len);
        let further = context.min((context / 4).max(FURTHER_SEQUENCE_MIN));
        pages(context) + (parallel - 1) * pages(further)
    }

    /// Refuses a prompt cache for an encoder-decoder: its rows depend on the source, too.
    fn check_prompt_cache(&self, model: &Opened) -> Result<(), Error> {
        if model.spec.encoder.is_none() || self.prompt_cache.is_none() {
            return Ok(());
        }
        let found = format!(": expected none, since the rows of {} depend on its source, found one", model.name);
        Err(Error::setting("prompt_cache", found))
    }

    /// A note for users if the context is shorter than the setting.
    pub(crate) fn note_context(&self, model: &Opened) -> Option<Message> {
        let (wanted, most) = (self.ctx_size?, model.spec.context_max);
        let rest = format!(" {wanted}: {} was made for {most} tokens, which is used", model.name);
        (wanted > most).then(|| Message::setting("ctx_size").and(rest))
    }
}

fn is_default(offload: &Offload) -> bool {
    *offload == Offload::default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(feature = "demo")]
    fn a_context_of_0_is_the_models_own() {
        let mut demo = ModelSettings::default().open().expect("the demo opens");
        demo.spec.context_max = 3 * CONTEXT_DEFAULT;
        let of = |ctx_size| ModelSettings { ctx_size, ..ModelSettings::default() }.context(&demo);
        let most = 3 * CONTEXT_DEFAULT;
        assert_eq!([None, Some(0), Some(9), Some(1 << 30)].map(of), [CONTEXT_DEFAULT, most, 9, most]);
        let settings = ModelSettings { ctx_size: Some(0), ..ModelSettings::default() };
        assert_eq!(settings.note_context(&demo), None);
        let all = crate::Settings { model: settings, parallel: 1, ..crate::Settings::default() };
        all.check().expect("0 is in the range");
    }

    #[test]
    #[cfg(feature = "demo")]
    fn unused_room_for_checkpoints_is_noted() {
        let demo = ModelSettings::default().open().expect("the demo opens");
        let of = |checkpoints: Option<usize>, has_states: bool| {
            let settings = ModelSettings { checkpoints, ..ModelSettings::default() };
            settings.note_checkpoints(&demo, has_states).map(|message| message.to_string())
        };
        assert_eq!((of(None, false), of(Some(9), true)), (None, None));
        let expected = "checkpoints: demo has no recurrent states, of which checkpoints would be kept";
        assert_eq!(of(Some(9), false).map(|note| note.replace(&demo.name, "demo")).as_deref(), Some(expected));
        let options = ModelSettings { checkpoints: Some(9), ..ModelSettings::default() }.run_with(5);
        assert_eq!(options.checkpoint_bytes, 9);
    }

    #[test]
    #[cfg(feature = "demo")]
    fn unused_room_for_experts_is_noted() {
        let settings = ModelSettings { expert_memory: Some(9), ..ModelSettings::default() };
        let demo = settings.open().expect("the demo opens");
        let note = settings.note_experts(&demo).map(|note| note.to_string());
        assert_eq!(note, Some(format!("expert_memory: {} has no experts that tokens choose", demo.name)));
        assert_eq!(ModelSettings::default().note_experts(&demo), None);
        assert_eq!(settings.run_with(5).expert_bytes, Some(9));
    }

    #[test]
    fn threads_that_the_system_refuses_are_noted() {
        let settings = ModelSettings { threads: Some(8), ..ModelSettings::default() };
        let line = settings.note_threads(3).expect("three are fewer than eight").to_string();
        assert_eq!(line, "threads: expected 8, found 3: the system gives no more; texts stay the same");
        assert_eq!(settings.note_threads(8), None);
    }

    #[test]
    fn the_cache_grows_by_a_quarter_of_the_context_for_each_sequence() {
        let positions = ModelSettings::cache_positions;
        assert_eq!([positions(4096, 1), positions(4096, 16)], [4096, 4096 + 15 * 1024]);
        assert_eq!([positions(32_768, 4), positions(100, 1)], [32_768 + 3 * 8192, 128]);
        // Each sequence of a short context has room for all of it, so it is not preempted.
        assert_eq!([positions(1024, 4), positions(100, 3)], [4 * 1024, 3 * 128]);
    }
}
