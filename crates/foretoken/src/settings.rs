//! What can be chosen, as plain structs: model, sampling, speculation.
//!
//! [`Settings::default`] is what the program does where nothing is set. The structs can be written and read (serde), so
//! that a configuration file, a request and the record of a run have the same fields; a missing field has its default,
//! and an unknown one is an error. `None` stands for "decided elsewhere": by the model's own files, by measured costs,
//! or by the drafter.

mod guided;
mod model;
mod sampling;
mod speculation;

pub use foretoken_drafters::{BRANCH_LENGTH_MAX, BranchSource, Layout, NgramSource, RetrievalRule};

pub use crate::drafters::*;
pub use crate::names::{Named, NamedValue, OneOf};
pub(crate) use guided::check_ends;
pub use guided::{GrammarForcing, GuidedSettings};
pub use model::ModelSettings;
pub use sampling::{DecidedSampling, FromModel, Limit, NumberSetting, SamplingSettings, logit_bias};
pub use speculation::{Budget, DraftingSettings, MemorySettings, SpeculationSettings};

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Message, within};
use crate::output_file::is_same;

/// Everything that a [`Generator`](crate::Generator) is made from.
///
/// ```
/// use foretoken::Settings;
/// let settings: Settings = serde_json::from_str(r#"{
///     "model": { "path": "models/demo-target" },
///     "speculation": { "spec_type": "draft+suffix", "verify": "rejection", "model_draft": ["models/demo-draft"] },
///     "sampling": { "temperature": 0.7, "seed": 7 }
/// }"#)?;
/// assert_eq!(settings.parallel, 1);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Which model, and how it is run.
    pub model: ModelSettings,
    /// How the next token is chosen, and when a text ends.
    pub sampling: SamplingSettings,
    /// Which drafters are used, how far they draft, and what is promised.
    pub speculation: SpeculationSettings,
    /// Sequences at a time, 1 to 256. A pass has 512 rows for all of them. The cache has room for one that fills the
    /// context; for each further sequence it has a quarter of that, but 1024 tokens at least
    /// ([`ModelSettings::cache_positions`]): with a context of 4096 tokens 16 sequences take the memory of 4.75 full
    /// ones, and the system allocates it as it is used. Where the cache is full, sequences are preempted and their rows
    /// computed again later, which does not change their texts.
    pub parallel: usize,
}

impl Default for Settings {
    /// One sequence at a time, of the demo model, if this build has it.
    fn default() -> Self {
        Self {
            model: ModelSettings::default(),
            sampling: SamplingSettings::default(),
            speculation: SpeculationSettings::default(),
            parallel: 1,
        }
    }
}

impl Settings {
    /// Checks what can be checked without a model.
    ///
    /// # Errors
    /// The first setting that is out of its range.
    pub fn check(&self) -> Result<(), Error> {
        within("parallel", self.parallel, 1, 256)?;
        within("threads", self.model.threads.unwrap_or(1), 1, 1024)?;
        within("ctx_size", self.model.ctx_size.unwrap_or(1), 0, 1 << 30)?;
        if self.model.prompt_cache_ro && self.model.prompt_cache.is_none() {
            let beside = Message::setting("prompt_cache_ro").and(": expected ").and_setting("prompt_cache");
            return Err(Error::Setting(beside.and(" beside it, found none")));
        }
        self.check_kept_files()?;
        within("target_lookbehind", self.speculation.target_lookbehind, 1, 1 << 30)?;
        self.speculation.draft.check()?;
        within("assistant_lookbehind", self.speculation.assistant_lookbehind, 1, 1 << 30)?;
        self.speculation.drafters.check()
    }

    /// Checks that each file that is kept between runs is a file, and that no two settings name the same one.
    fn check_kept_files(&self) -> Result<(), Error> {
        let Self { model, speculation, .. } = self;
        let prompt_cache = model.prompt_cache.as_deref();
        let files = [
            ("lookup_cache_dynamic", speculation.memory.lookup_cache_dynamic.as_deref()),
            ("prompt_cache", prompt_cache.filter(|_| !model.prompt_cache_ro)),
            ("costs", speculation.costs.as_deref()),
        ];
        let mut seen: Vec<(&'static str, &Path)> = Vec::new();
        for (setting, path) in files.into_iter().filter_map(|(setting, path)| Some((setting, path?))) {
            let place = path.display();
            if path == Path::new("-") {
                let expected = ": expected a file, which is read again, found - (a stream; ./- is a file of this name)";
                return Err(Error::Setting(Message::setting(setting).and(expected)));
            }
            if let Some((other, _)) = seen.iter().find(|(_, other)| is_same(path, other)) {
                let expected = Message::setting(setting).and(": expected another file than that of ");
                return Err(Error::Setting(expected.and_setting(other).and(format!(", found {place} for both"))));
            }
            seen.push((setting, path));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_as_they_were_written() {
        let mut settings = Settings::default();
        settings.model.dtype = Some(foretoken_model::WeightType::F16);
        settings.sampling.logit_bias = vec![(7, f32::NEG_INFINITY), (9, 0.1)];
        settings.sampling.penalty_window = Some(Limit(None));
        settings.sampling.temperature = Some(0.7);
        settings.speculation.spec_type = "draft:lookup+suffix".parse().expect("it is well-formed");
        settings.speculation.verify = foretoken_speculation::Promise::Block;
        let written = serde_json::to_string(&settings).expect("settings can be written");
        assert_eq!(serde_json::from_str::<Settings>(&written).expect("and read"), settings);
        assert_eq!(serde_json::from_str::<Settings>("{}").expect("all is optional"), Settings::default());
        let wrong = serde_json::from_str::<Settings>(r#"{"sampling": {"temprature": 1}}"#).expect_err("a typo");
        assert!(wrong.to_string().starts_with("unknown field `temprature`"), "{wrong}");
    }

    #[test]
    fn what_is_out_of_range_is_named() {
        assert_eq!(Settings::default().check(), Ok(()));
        let mut settings = Settings::default();
        settings.speculation.drafters.ngram.order = 9;
        let error = settings.check().expect_err("nine is too long");
        assert_eq!(error.to_string(), "ngram.order: expected a whole number from 1 to 8, found 9");
    }
}
