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

/// Tokens of a prompt of some paragraphs and its answer: so many at least are reckoned with for each text after the
/// first.
const FURTHER_TEXT_MIN: usize = 1024;

/// Which model, and how it is run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelSettings {
    /// The target: a directory or a `.gguf` file; `None` is the demo model, if this build has it.
    pub path: Option<PathBuf>,
    /// Longest text in tokens, prompt included; 0 is the model's own, `None` that, but at most 4096.
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
    /// Bytes for checkpoints of recurrent states, from which later prompts go on; networks without states need none.
    /// `None` is 512 MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoints: Option<usize>,
    /// Bytes for the experts that rows choose, of a network of experts. Where not all fit, they are brought to memory
    /// when they are chosen, and those that were not chosen for longest make room; no text changes. `None` is all, or
    /// where there is not memory enough for them what there is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expert_memory: Option<usize>,
    /// How conversations are written out, instead of the model's own chat template: a Jinja template, or the name of
    /// one that is known ([`ChatTemplate::names`](crate::ChatTemplate::names)).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chat_template: Option<String>,
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
        let checkpoint_bytes = self.checkpoints.unwrap_or(options.checkpoint_bytes);
        Options { key_type, value_type, weight_type, checkpoint_bytes, expert_bytes: self.expert_memory, ..options }
    }

    /// Threads to compute with.
    pub fn threads(&self) -> usize {
        self.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
    }

    /// What is to be said where the system gave fewer threads than were asked for.
    pub(crate) fn note_threads(&self, found: usize) -> Option<Message> {
        let expected = self.threads();
        let rest = format!(": expected {expected}, found {found}: the system gives no more; texts stay the same");
        (found < expected).then(|| Message::setting("threads").and(rest))
    }

    /// What is to be said where room for checkpoints was asked for and there is nothing to keep there.
    pub(crate) fn note_checkpoints(&self, model: &Opened, has_states: bool) -> Option<Message> {
        let rest = format!(": {} has no recurrent states, of which checkpoints would be kept", model.name);
        (self.checkpoints.is_some() && !has_states).then(|| Message::setting("checkpoints").and(rest))
    }

    /// What is to be said where room for experts was asked for and the network has none.
    pub(crate) fn note_experts(&self, model: &Opened) -> Option<Message> {
        let rest = format!(": {} has no experts that tokens choose", model.name);
        let is_vain = self.expert_memory.is_some() && model.spec.experts.is_none();
        is_vain.then(|| Message::setting("expert_memory").and(rest))
    }

    /// Tokens that a text may have: what was asked for, but never more than the network can represent.
    pub fn context(&self, model: &Opened) -> usize {
        let own = model.spec.context_max;
        match self.ctx_size {
            None => own.min(CONTEXT_DEFAULT),
            Some(0) => own,
            Some(asked) => asked.min(own),
        }
    }

    /// Positions that the target's cache has for so many texts at a time of up to `context` tokens.
    ///
    /// Few texts are as long as they may be, and what is not computed yet takes no room; so only the first gets all
    /// that a text may need, and the others a quarter of it, but 1024 tokens at least. Where they grow beyond
    /// that, some give their pages back for a while and compute their rows again later. What is left over keeps
    /// beginnings that later texts may share.
    pub fn cache_positions(context: usize, parallel: usize) -> usize {
        // A page belongs to one text, so each text's share is a whole number of pages.
        let pages = |positions: usize| positions.next_multiple_of(Options::for_positions(1, 1).page_len);
        let further = context.min((context / 4).max(FURTHER_TEXT_MIN));
        pages(context) + (parallel - 1) * pages(further)
    }

    /// What is to be said where less context is used than was asked for.
    pub(crate) fn note(&self, model: &Opened) -> Option<Message> {
        let (asked, own) = (self.ctx_size?, model.spec.context_max);
        let rest = format!(" {asked}: {} was made for {own} tokens, which is used", model.name);
        (asked > own).then(|| Message::setting("ctx_size").and(rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(feature = "demo")]
    fn a_context_of_nought_is_the_models_own() {
        let mut demo = ModelSettings::default().open().expect("the demo opens");
        demo.spec.context_max = 3 * CONTEXT_DEFAULT;
        let of = |ctx_size| ModelSettings { ctx_size, ..ModelSettings::default() }.context(&demo);
        let most = 3 * CONTEXT_DEFAULT;
        assert_eq!([None, Some(0), Some(9), Some(1 << 30)].map(of), [CONTEXT_DEFAULT, most, 9, most]);
        let settings = ModelSettings { ctx_size: Some(0), ..ModelSettings::default() };
        assert_eq!(settings.note(&demo), None);
        let all = crate::Settings { model: settings, parallel: 1, ..crate::Settings::default() };
        all.check().expect("0 is in the range");
    }

    #[test]
    #[cfg(feature = "demo")]
    fn room_for_checkpoints_that_nobody_keeps_is_told() {
        let demo = ModelSettings::default().open().expect("the demo opens");
        let of = |checkpoints: Option<usize>, has_states: bool| {
            let settings = ModelSettings { checkpoints, ..ModelSettings::default() };
            settings.note_checkpoints(&demo, has_states).map(|message| message.to_string())
        };
        assert_eq!((of(None, false), of(Some(9), true)), (None, None));
        let expected = "checkpoints: demo has no recurrent states, of which checkpoints would be kept";
        assert_eq!(of(Some(9), false).map(|said| said.replace(&demo.name, "demo")).as_deref(), Some(expected));
        let options = ModelSettings { checkpoints: Some(9), ..ModelSettings::default() }.run_with(5);
        assert_eq!(options.checkpoint_bytes, 9);
    }

    #[test]
    #[cfg(feature = "demo")]
    fn room_for_experts_that_are_not_there_is_told() {
        let settings = ModelSettings { expert_memory: Some(9), ..ModelSettings::default() };
        let demo = settings.open().expect("the demo opens");
        let said = settings.note_experts(&demo).map(|said| said.to_string());
        assert_eq!(said, Some(format!("expert_memory: {} has no experts that tokens choose", demo.name)));
        assert_eq!(ModelSettings::default().note_experts(&demo), None);
        assert_eq!(settings.run_with(5).expert_bytes, Some(9));
    }

    #[test]
    fn threads_that_the_system_refuses_are_told() {
        let settings = ModelSettings { threads: Some(8), ..ModelSettings::default() };
        let line = settings.note_threads(3).expect("three are fewer than eight").to_string();
        assert_eq!(line, "threads: expected 8, found 3: the system gives no more; texts stay the same");
        assert_eq!(settings.note_threads(8), None);
    }

    #[test]
    fn the_cache_grows_with_the_texts_by_what_they_mostly_need() {
        let positions = ModelSettings::cache_positions;
        assert_eq!([positions(4096, 1), positions(4096, 16)], [4096, 4096 + 15 * 1024]);
        assert_eq!([positions(32_768, 4), positions(100, 1)], [32_768 + 3 * 8192, 128]);
        // A short context is reserved whole: texts that may not be long do not give way.
        assert_eq!([positions(1024, 4), positions(100, 3)], [4 * 1024, 3 * 128]);
    }
}
