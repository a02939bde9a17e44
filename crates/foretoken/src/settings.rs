//! Settings of a generator as plain structs: model, sampling, speculation.
//!
//! The structs are serialized (serde), so a configuration file, a request and the record of a run have the same fields;
//! a missing field has its default, and an unknown one is an error. `None` means that the value is decided elsewhere:
//! by the model's own files, by measured costs, or by the drafter.

mod beams;
mod guided;
mod model;
mod sampling;
mod speculation;

pub use foretoken_drafters::{BRANCH_LENGTH_MAX, BranchSource, Layout, NgramSource, RetrievalRule};

pub use crate::drafters::*;
pub use crate::names::{Named, NamedValue, OneOf};
pub use beams::BEAMS_MAX;
pub(crate) use guided::check_ends;
pub use guided::{GrammarForcing, GuidedSettings};
pub use model::ModelSettings;
pub use sampling::{DecidedSampling, Limit, NumberSetting, SamplingSettings, logit_bias};
pub use speculation::{Budget, DraftingSettings, MemorySettings, SpeculationSettings, check_lenience};

use std::path::Path;

use foretoken_speculation::Promise;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Message, within};
use crate::output_file::is_same;

/// All settings of a [`Generator`](crate::Generator).
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
    /// The target model, its context window, and how it is run.
    pub model: ModelSettings,
    /// Sampling parameters, and when a text ends.
    pub sampling: SamplingSettings,
    /// Which drafters are used, how much they draft, and how drafts are verified.
    pub speculation: SpeculationSettings,
    /// Sequences at a time, 1 to 256. A pass has 512 rows for all of them. The KV cache has room for one sequence that
    /// fills the context, and for a quarter of that, but at least 1024 tokens, for each further one
    /// ([`ModelSettings::cache_positions`]): with a context of 4096 tokens 16 sequences take the memory of 4.75 full
    /// ones, and the system allocates it as it is used. When the cache is full, sequences are preempted and their rows
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
            let missing = Message::setting("prompt_cache_ro").and(": expected ").and_setting("prompt_cache");
            return Err(Error::Setting(missing.and(" beside it, found none")));
        }
        self.check_kept_files()?;
        within("target_lookbehind", self.speculation.target_lookbehind, 1, 1 << 30)?;
        self.speculation.draft.check()?;
        check_lenience(self.speculation.lossy_lenience, Promise::Rejection, 0.0)?;
        within("assistant_lookbehind", self.speculation.assistant_lookbehind, 1, 1 << 30)?;
        self.speculation.drafters.check()
    }

    /// Checks that no file that is kept between runs is `-`, and that no two settings name the same one.
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
                return Err(Error::setting(setting, expected));
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
        settings.speculation.verify = Promise::Block;
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
        for wrong in [0.0, -0.5, 1.1, f32::NAN] {
            let speculation = SpeculationSettings { lossy_lenience: wrong, ..SpeculationSettings::default() };
            let error = Settings { speculation, ..Settings::default() }.check().expect_err("it is out of range");
            let expected = format!("lossy_lenience: expected a number above 0 and up to 1, found {wrong}");
            assert_eq!(error.to_string(), expected);
        }
    }

    #[test]
    fn a_lenience_stands_beside_rejection_or_temperature_0() {
        assert_eq!(check_lenience(0.5, Promise::Rejection, 0.8), Ok(()));
        for (promise, name) in [(Promise::Exact, "exact"), (Promise::Block, "block")] {
            assert_eq!((check_lenience(1.0, promise, 0.8), check_lenience(0.5, promise, 0.0)), (Ok(()), Ok(())));
            let error = check_lenience(0.5, promise, 0.8).expect_err("the promise is a contradiction");
            let expected =
                "lossy_lenience 0.5: expected verify rejection beside it, or temperature 0, since it is lossy";
            assert_eq!(error.to_string(), format!("{expected}, found {name}"));
        }
    }
}
