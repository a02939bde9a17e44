//! Settings of beam search: the most probable continuations of a prompt instead of drawn ones.
//!
//! Names, meaning and defaults are those of transformers' `generate`. All answers to a prompt come from one search
//! ([`Answer::each`](crate::Answer::each)). There are no random numbers in it, so the temperature is 0, whatever the
//! model's file says. A search returns its tokens at its end.

use foretoken_engine::BeamSearch;
use foretoken_model::Options;

use super::{ModelSettings, SamplingSettings};
use crate::error::{Error, Message, within};

/// Maximum number of beams of a search.
pub const BEAMS_MAX: usize = 256;

impl SamplingSettings {
    /// Whether texts are searched for, and not drawn.
    pub fn has_beams(&self) -> bool {
        self.num_beams > 1
    }

    /// The search of requests, if there is one; what was left open has transformers' defaults.
    pub(crate) fn beam_search(&self) -> Option<BeamSearch> {
        self.has_beams().then(|| BeamSearch {
            beams: self.num_beams,
            length_penalty: self.length_penalty.unwrap_or(1.0),
            early_stopping: self.early_stopping.unwrap_or_default(),
            returned: self.n_best,
        })
    }

    /// Options of the target, made for its cache's positions ([`ModelSettings::cache_positions`]). The hypotheses of a
    /// search may have nothing in common but the prompt, so there is room for the new tokens of each of them.
    pub(crate) fn with_room(&self, run_with: impl Fn(usize) -> Options, context: usize, parallel: usize) -> Options {
        let tokens = self.tokens_max.0.unwrap_or(context).min(context).max(1);
        let further = ModelSettings::cache_positions(tokens, parallel).saturating_mul(self.num_beams.saturating_sub(1));
        let options = run_with(ModelSettings::cache_positions(context, parallel).saturating_add(further));
        // A search drops rows, and needs those that any hypothesis sees through a window.
        Options { sequences_max: Some(parallel).filter(|_| !self.has_beams()), ..options }
    }

    /// Refuses what contradicts a search, and settings of a search without one.
    pub(super) fn check_beams(&self) -> Result<(), Error> {
        within("num_beams", self.num_beams, 1, BEAMS_MAX)?;
        let beside = |setting: &'static str, expected: String, found: String| {
            let expected = Message::setting(setting).and(expected).and_setting("num_beams");
            Err(Error::Setting(expected.and(format!(" {}, found {found}", self.num_beams))))
        };
        if !self.has_beams() {
            let of_search =
                [("length_penalty", self.length_penalty.is_some()), ("early_stopping", self.early_stopping.is_some())];
            return match of_search.into_iter().find(|(_, is_set)| *is_set) {
                Some((setting, _)) => {
                    let expected = Message::setting(setting).and(": expected ").and_setting("num_beams");
                    Err(Error::Setting(expected.and(" above 1 beside it, found 1")))
                }
                None => Ok(()),
            };
        }
        if let Some(found) = self.length_penalty.filter(|penalty| !penalty.is_finite()) {
            let expected = format!(": expected a finite number, found {found}");
            return Err(Error::setting("length_penalty", expected));
        }
        if let Some(found) = self.temperature.filter(|temperature| *temperature != 0.0) {
            return beside("temperature", ": expected 0 beside ".to_string(), found.to_string());
        }
        if self.n_best > self.num_beams {
            return beside("n_best", ": expected no more answers than ".to_string(), self.n_best.to_string());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use foretoken_engine::EarlyStopping;

    use super::*;

    #[test]
    fn what_contradicts_a_search_is_refused_in_one_line() {
        let search = || SamplingSettings { num_beams: 4, n_best: 2, ..SamplingSettings::default() };
        assert_eq!(search().check_beams(), Ok(()));
        assert_eq!(SamplingSettings { temperature: Some(0.0), ..search() }.check_beams(), Ok(()));
        for (settings, expected) in [
            (
                SamplingSettings { temperature: Some(0.7), ..search() },
                "temperature: expected 0 beside num_beams 4, found 0.7",
            ),
            (SamplingSettings { n_best: 5, ..search() }, "n_best: expected no more answers than num_beams 4, found 5"),
            (
                SamplingSettings { length_penalty: Some(f32::NAN), ..search() },
                "length_penalty: expected a finite number, found NaN",
            ),
            (
                SamplingSettings { num_beams: 0, ..search() },
                "num_beams: expected a whole number from 1 to 256, found 0",
            ),
            (
                SamplingSettings { num_beams: 1, length_penalty: Some(2.0), ..search() },
                "length_penalty: expected num_beams above 1 beside it, found 1",
            ),
        ] {
            assert_eq!(settings.check_beams().map_err(|error| error.to_string()), Err(expected.to_string()));
        }
    }

    #[test]
    fn a_search_has_transformers_defaults() {
        let settings: SamplingSettings = serde_json::from_str(r#"{"num_beams": 4, "early_stopping": "never"}"#)
            .expect("settings are read from JSON");
        let expected = BeamSearch { early_stopping: EarlyStopping::Never, ..BeamSearch::new(4) };
        assert_eq!(settings.beam_search(), Some(expected));
        assert_eq!(SamplingSettings::default().beam_search(), None);
    }
}
