//! Sampling parameters, and when a text ends.
//!
//! A parameter that is not set is decided by the model's own `generation_config.json`, else by llama.cpp's default.
//! [`DecidedSampling`] records who decided each setting, since a model's file changes texts without the user's
//! knowledge.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use foretoken_engine::EarlyStopping;
use foretoken_speculation::{Sampling, SamplingParameter, Token};
use foretoken_text::{Grammar, Tokenizer};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::Error;
use crate::error::{Message, within};
use crate::models::Opened;
use crate::names::{self, Named};
use crate::settings::GuidedSettings;

/// A limit of tokens; `None` is no limit, which is serialized as -1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit(pub Option<usize>);

impl From<usize> for Limit {
    fn from(limit: usize) -> Self {
        Self(Some(limit))
    }
}

impl Serialize for Limit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_i64(self.0.map_or(-1, |limit| i64::try_from(limit).unwrap_or(i64::MAX)))
    }
}

impl<'a> Deserialize<'a> for Limit {
    fn deserialize<D: Deserializer<'a>>(deserializer: D) -> Result<Self, D::Error> {
        match i64::deserialize(deserializer)? {
            -1 => Ok(Self(None)),
            number => usize::try_from(number).map(|limit| Self(Some(limit))).map_err(|_| {
                D::Error::custom(format!("expected a whole number from 0 up, or -1 for no limit, found {number}"))
            }),
        }
    }
}

/// Sampling parameters, and when a text ends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SamplingSettings {
    /// Temperature; 0 is greedy. `None`: the model's, else 0.8.
    pub temperature: Option<f32>,
    /// Only the k most probable tokens; 0 is off. `None`: the model's, else 40.
    pub top_k: Option<usize>,
    /// Only the most probable tokens of this mass; 1 is off. `None`: the model's, else 0.95.
    pub top_p: Option<f32>,
    /// Only tokens at least this fraction as probable as the most probable one; 0 is off. `None`: the model's, else
    /// 0.05.
    pub min_p: Option<f32>,
    /// Only the tokens nearest to the entropy, of this mass; 1 is off. `None`: the model's, else 1.
    pub typical_p: Option<f32>,
    /// Divides the logits of tokens that occurred before; 1 is off. `None`: the model's, else 1.
    pub repetition_penalty: Option<f32>,
    /// How many of the last tokens are penalized; 0 is off. `None`: all if the model's file sets a repetition penalty,
    /// else 64.
    pub penalty_window: Option<Limit>,
    /// Subtracted from the logits of tokens that occurred before.
    pub presence_penalty: f32,
    /// Subtracted from logits for each earlier occurrence of the token.
    pub frequency_penalty: f32,
    /// Added to the logits of tokens; written as llama.cpp does, `"15043+1"` or `"15043-inf"`.
    #[serde(with = "biases")]
    pub logit_bias: Vec<(Token, f32)>,
    /// Tokens that are never generated.
    pub banned_tokens: Vec<Token>,
    /// The text does not end before it has this many tokens.
    pub tokens_min: usize,
    /// The most tokens to generate; without a limit, until the text ends or the context is full.
    pub tokens_max: Limit,
    /// Strings that end the text and are not part of it.
    pub stop: Vec<String>,
    /// Continue after end tokens.
    pub ignore_eos: bool,
    /// Show special tokens in the text.
    pub special: bool,
    /// Seed of all random numbers; `None`: a random one.
    pub seed: Option<u64>,
    /// The grammar that the text has to match, if any.
    pub guided: GuidedSettings,
    /// Answers to each prompt, 1 to 256. Each has its own seed ([`seed_of_answer`](crate::seed_of_answer)), the first
    /// `seed` itself. Of a beam search they are its best hypotheses, at most as many as it has beams.
    pub n_best: usize,
    /// Beams of a beam search, 2 to 256; 1 is none. transformers' `num_beams`, as are the two that follow.
    pub num_beams: usize,
    /// A hypothesis scores its log-probability divided by its length to the power of this. `None`: the model's, else 1.
    pub length_penalty: Option<f32>,
    /// When a search stops that has as many finished hypotheses as beams. `None`: the model's, else `false`.
    #[serde(with = "names::optional")]
    pub early_stopping: Option<EarlyStopping>,
}

impl Default for SamplingSettings {
    fn default() -> Self {
        Self {
            temperature: None,
            top_k: None,
            top_p: None,
            min_p: None,
            typical_p: None,
            repetition_penalty: None,
            penalty_window: None,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            banned_tokens: Vec::new(),
            tokens_min: 0,
            tokens_max: Limit(None),
            stop: Vec::new(),
            ignore_eos: false,
            special: false,
            seed: None,
            guided: GuidedSettings::default(),
            n_best: 1,
            num_beams: 1,
            length_penalty: None,
            early_stopping: None,
        }
    }
}

/// A sampling parameter that is one number and may be left open (`None`). The field of its name in the model's file
/// then decides it, else the program's default.
#[derive(Clone, Copy, Debug)]
pub struct NumberSetting {
    /// Its name.
    pub name: &'static str,
    /// The program's default, which is llama.cpp's.
    pub default: f32,
    /// Its field in the settings.
    pub get_mut: fn(&mut SamplingSettings) -> &mut Option<f32>,
}

impl NumberSetting {
    /// The engine's parameter of the same name.
    ///
    /// # Panics
    /// The engine has none of this name; a test rules that out.
    pub fn parameter(&self) -> &'static SamplingParameter {
        let found = Sampling::PARAMETERS.iter().find(|parameter| parameter.name == self.name);
        found.expect("a number's setting has the name of a parameter")
    }
}

/// The most stop strings of a request, and the most bytes of one: each is searched for after every token.
const STOPS_MAX: usize = 64;
const STOP_BYTES_MAX: usize = 1024;

/// The sampling parameters of a request, and who decided each.
#[derive(Clone, Debug, PartialEq)]
pub struct DecidedSampling {
    /// The sampling parameters, for the engine.
    pub sampling: Sampling,
    /// The grammar that the text has to match, if any, compiled for the tokenizer.
    pub grammar: Option<Arc<Grammar>>,
    /// The settings, with a value for each that was left open.
    pub settings: SamplingSettings,
    /// The settings as they were given.
    pub asked: SamplingSettings,
    /// The settings that the model's file decided, even if the value equals the program's default.
    pub decided_by_model: Vec<&'static str>,
    /// The settings that the model's file decided and whose value differs from the program's default, with their
    /// values.
    pub from_model: Vec<(&'static str, String)>,
    /// The model's file.
    pub file: String,
}

impl DecidedSampling {
    /// A note for users about the settings that the model's file decided.
    pub fn note(&self) -> Option<Message> {
        let ((first, _), rest) = self.from_model.split_first()?;
        let values: Vec<String> = self.from_model.iter().map(|(setting, value)| format!("{setting} {value}")).collect();
        let start = Message::words(format!("from {}: {}; to change: ", self.file, values.join(", ")));
        Some(rest.iter().fold(start.and_setting(first), |note, (setting, _)| note.and(", ").and_setting(setting)))
    }
}

/// Decides each setting: the user's value, else the model's, else the program's default.
struct Decider {
    decided_by_model: Vec<&'static str>,
    from_model: Vec<(&'static str, String)>,
}

impl Decider {
    fn decide<T: Copy + PartialEq>(
        &mut self,
        setting: &'static str,
        (users, models, default): (Option<T>, Option<T>, T),
        shown: impl Fn(T) -> String,
    ) -> T {
        if users.is_none()
            && let Some(value) = models
        {
            self.decided_by_model.push(setting);
            if value != default {
                self.from_model.push((setting, shown(value)));
            }
        }
        users.or(models).unwrap_or(default)
    }
}

impl SamplingSettings {
    /// The sampling parameters that are one number and may be left open, in the order of notes to users.
    pub const NUMBERS: &'static [NumberSetting] = &[
        NumberSetting { name: "temperature", default: 0.8, get_mut: |all| &mut all.temperature },
        NumberSetting { name: "top_p", default: 0.95, get_mut: |all| &mut all.top_p },
        NumberSetting { name: "min_p", default: 0.05, get_mut: |all| &mut all.min_p },
        NumberSetting { name: "typical_p", default: 1.0, get_mut: |all| &mut all.typical_p },
        NumberSetting { name: "repetition_penalty", default: 1.0, get_mut: |all| &mut all.repetition_penalty },
    ];

    /// Refuses too many stop strings, or too long ones.
    fn check_stops(&self) -> Result<(), Error> {
        let longest = self.stop.iter().map(String::len).max().unwrap_or(0);
        if self.stop.len() > STOPS_MAX || longest > STOP_BYTES_MAX {
            let expected = format!(": expected at most {STOPS_MAX} strings of at most {STOP_BYTES_MAX} bytes");
            let found = format!(", found {}, the longest of {longest} bytes", self.stop.len());
            return Err(Error::setting("stop", expected + &found));
        }
        Ok(())
    }

    /// Decides each sampling parameter: by these settings, else the model's own files, else llama.cpp's defaults. If no
    /// seed is set, one is drawn.
    ///
    /// # Errors
    /// A value of the model's files or of these settings is out of its range, there are stop strings and no tokenizer,
    /// or the grammar cannot be used ([`GuidedSettings`]).
    pub fn decided(&self, model: &Opened, tokenizer: Option<&Tokenizer>) -> Result<DecidedSampling, Error> {
        if tokenizer.is_none() && !self.stop.is_empty() {
            return Err(Error::needs_tokenizer("stop"));
        }
        self.check_stops()?;
        within("n_best", self.n_best, 1, 256)?;
        self.check_beams()?;
        let defaults = &model.defaults;
        let mut settings = self.clone();
        if self.has_beams() {
            // A search draws nothing, whatever the model's file says of drawing.
            settings.temperature = Some(0.0);
        }
        let mut sampling = Sampling {
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            logit_bias: self.logit_bias.clone(),
            banned_tokens: self.banned_tokens.clone(),
            tokens_min: self.tokens_min,
            end_tokens: if self.ignore_eos { Vec::new() } else { model.end_tokens(tokenizer) },
            ..Sampling::default()
        };
        let mut decider = Decider { decided_by_model: Vec::new(), from_model: Vec::new() };
        for number in Self::NUMBERS {
            let setting = (number.get_mut)(&mut settings);
            let candidates = (*setting, defaults.numbers.get(number.name).copied(), number.default);
            let value = decider.decide(number.name, candidates, |value: f32| match number.name {
                "temperature" if defaults.is_greedy => "0 (do_sample false)".to_string(),
                _ => value.to_string(),
            });
            *setting = Some(value);
            *(number.parameter().get_mut)(&mut sampling) = value;
        }
        let top_k = decider.decide("top_k", (self.top_k, defaults.top_k, 40), |value: usize| value.to_string());
        (sampling.top_k, settings.top_k) = (top_k, Some(top_k));
        // A penalty of the model's file is applied as in transformers, to all tokens.
        let everything = decider.decided_by_model.contains(&"repetition_penalty").then_some(Limit(None));
        let window = (self.penalty_window, everything, Limit(Some(64)));
        let window = decider.decide("penalty_window", window, |_| "-1".to_string());
        (sampling.penalty_window, settings.penalty_window) = (window.0, Some(window));
        if !sampling.has_penalties() {
            // Without penalties the window has no effect.
            decider.from_model.retain(|(setting, _)| *setting != "penalty_window");
        }
        if let Some(problem) = sampling.problem() {
            if decider.decided_by_model.contains(&problem.field) {
                return Err(Error::input(format!("{}: {problem}", defaults.file)));
            }
            let words = format!(": expected {}, found {}", problem.expected, problem.found);
            return Err(Error::setting(problem.field, words));
        }
        if self.has_beams() {
            let length = (self.length_penalty, defaults.length_penalty, 1.0);
            settings.length_penalty = Some(decider.decide("length_penalty", length, |value| value.to_string()));
            let stopping = (self.early_stopping, defaults.early_stopping, EarlyStopping::default());
            settings.early_stopping = Some(decider.decide("early_stopping", stopping, |value| value.name()));
        }
        let grammar = self.guided.compiled(tokenizer)?;
        // The standard library seeds its hash tables with random numbers of the system; 32 bits are easy to type.
        settings.seed = Some(self.seed.unwrap_or_else(|| RandomState::new().hash_one(0) >> 32));
        let (Decider { decided_by_model, from_model }, file) = (decider, defaults.file.clone());
        Ok(DecidedSampling { sampling, grammar, settings, asked: self.clone(), decided_by_model, from_model, file })
    }
}

/// A bias in llama.cpp's spelling: `TOKEN_ID+BIAS` or `TOKEN_ID-BIAS`, where the bias may be minus infinity.
///
/// # Errors
/// The word is no bias; the message says what was expected.
pub fn logit_bias(word: &str) -> Result<(Token, f32), String> {
    let wrong = || "expected TOKEN_ID+BIAS or TOKEN_ID-BIAS".to_string();
    let sign = word.find(['+', '-']).ok_or_else(wrong)?;
    let token = word[..sign].trim().parse().map_err(|_| wrong())?;
    let bias: f32 = word[sign..].trim().parse().map_err(|_| wrong())?;
    if bias.is_nan() || bias == f32::INFINITY {
        return Err("expected TOKEN_ID+BIAS or TOKEN_ID-BIAS, finite or minus infinity".to_string());
    }
    Ok((token, bias))
}

/// Biases as strings, since JSON has no infinity.
mod biases {
    use super::{Deserialize, Deserializer, Serializer, Token, logit_bias};
    use serde::de::Error as _;

    pub(super) fn serialize<S: Serializer>(biases: &[(Token, f32)], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(biases.iter().map(|(token, bias)| format!("{token}{bias:+}")))
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(deserializer: D) -> Result<Vec<(Token, f32)>, D::Error> {
        let words = Vec::<String>::deserialize(deserializer)?;
        let bias = |word: &String| logit_bias(word).map_err(|why| D::Error::custom(format!("{why}, found {word:?}")));
        words.iter().map(bias).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bias_is_a_token_and_a_signed_number() {
        assert_eq!(logit_bias("15043+1"), Ok((15043, 1.0)));
        assert_eq!(logit_bias("7-0.5"), Ok((7, -0.5)));
        assert_eq!(logit_bias("7-inf"), Ok((7, f32::NEG_INFINITY)));
        for wrong in ["7", "7=1", "+1", "7+", "7+inf", "7-nan", "x+1"] {
            assert!(logit_bias(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn each_sampling_parameter_has_its_setting() {
        for number in SamplingSettings::NUMBERS {
            let mut settings = SamplingSettings::default();
            *(number.get_mut)(&mut settings) = Some(0.25);
            let written = serde_json::to_value(&settings).expect("settings can be written");
            assert_eq!((written[number.name].as_f64(), number.parameter().name), (Some(0.25), number.name));
        }
        let defaults = serde_json::to_value(SamplingSettings::default()).expect("settings can be written");
        for parameter in Sampling::PARAMETERS {
            let default = defaults.get(parameter.name).unwrap_or_else(|| panic!("{}: no setting", parameter.name));
            let is_open = SamplingSettings::NUMBERS.iter().any(|number| number.name == parameter.name);
            assert_eq!(default.is_null(), is_open, "{}", parameter.name);
        }
    }
}
