//! The record of a run: all settings that decided its texts, and who decided each.
//!
//! Under *exact* verification the seed and the sampling parameters are enough to generate a text again. Under
//! *rejection* and *block* verification the text of a seed also depends on what is drafted, so the record has
//! everything that decides drafting: drafters, limits, the number of the first request, and the costs, if they were
//! fixed. Without fixed costs drafting depends on the clock, and a repeated run has only the same distribution of
//! texts. Prompts and the content of named files are not in the record.

use std::collections::BTreeMap;
use std::path::PathBuf;

use foretoken_speculation::Token;
use serde::{Deserialize, Serialize, Serializer, ser::Error as _};
use serde_json::Value;

use crate::settings::{DecidedSampling, Settings};

/// Who decided a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DecidedBy {
    /// The program's default.
    Program,
    /// The model's `generation_config.json`.
    Model,
    /// The user.
    User,
}

/// Every setting that decided the texts of a run. [`Generator::repeat`](crate::Generator::repeat) repeats the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// The version of this library.
    pub version: String,
    /// The settings, with a value for each that was left open and decides a text; paths are absolute. A target without
    /// a path is the demo model.
    #[serde(serialize_with = "in_decimals")]
    pub settings: Settings,
    /// Who decided each setting and the end tokens, by its path: `"sampling.temperature": "model"`. A setting that was
    /// given with its default value counts as the program's, unless `None` is its default.
    pub decided_by: BTreeMap<String, DecidedBy>,
    /// The tokens that end a text, which the model's files decide.
    pub end_tokens: Vec<Token>,
    /// Names of the drafters, in the order in which they draft (`auto` learns the order).
    pub drafters: Vec<String>,
    /// The number of the run's first request; the others are numbered consecutively.
    pub first_request: u64,
    /// The costs of passes and drafts if they were fixed, in the format of a file of costs.
    pub costs: Option<Value>,
}

impl Record {
    /// A record. `given`: the settings as they were given; `settings`: with a value for each that was left open.
    pub(crate) fn new(
        given: &Settings,
        mut settings: Settings,
        decided: &DecidedSampling,
        drafters: Vec<String>,
        first_request: u64,
        costs: Option<Value>,
    ) -> Self {
        let mut given = given.clone();
        for settings in [&mut given, &mut settings] {
            // The prompt cache does not change texts.
            (settings.model.prompt_cache, settings.model.prompt_cache_ro) = (None, false);
            make_absolute(settings);
        }
        let mut decided_by = decided_by(&given, &settings, &decided.decided_by_model);
        let end = if settings.sampling.ignore_eos { DecidedBy::User } else { DecidedBy::Model };
        decided_by.insert("end_tokens".to_string(), end);
        Self {
            version: env!("CARGO_PKG_VERSION").to_string(),
            settings,
            decided_by,
            end_tokens: decided.sampling.end_tokens.clone(),
            drafters,
            first_request,
            costs,
        }
    }
}

/// Serializes settings with the shortest decimals of each f32: 0.8, and not the nearest f32 as an f64.
fn in_decimals<S: Serializer>(settings: &Settings, serializer: S) -> Result<S::Ok, S::Error> {
    fn shorten(value: &mut Value) {
        match value {
            Value::Object(fields) => fields.values_mut().for_each(shorten),
            Value::Array(items) => items.iter_mut().for_each(shorten),
            Value::Number(number) if number.is_f64() => {
                let shortest = number.as_f64().and_then(|number| (number as f32).to_string().parse::<f64>().ok());
                if let Some(shortest) = shortest {
                    *value = Value::from(shortest);
                }
            }
            _ => {}
        }
    }
    let mut value = serde_json::to_value(settings).map_err(S::Error::custom)?;
    shorten(&mut value);
    value.serialize(serializer)
}

/// Who decided each setting, by its path.
fn decided_by(given: &Settings, settings: &Settings, by_model: &[&str]) -> BTreeMap<String, DecidedBy> {
    let (given, default) = (values(given), values(&Settings::default()));
    let by = |path: &String| match path.strip_prefix("sampling.") {
        Some(setting) if by_model.contains(&setting) => DecidedBy::Model,
        _ if given.get(path) != default.get(path) => DecidedBy::User,
        _ => DecidedBy::Program,
    };
    values(settings).keys().map(|path| (path.clone(), by(path))).collect()
}

/// The settings by their paths.
fn values(settings: &Settings) -> BTreeMap<String, Value> {
    fn collect(path: &str, value: Value, values: &mut BTreeMap<String, Value>) {
        match value {
            Value::Object(fields) => {
                let dot = if path.is_empty() { "" } else { "." };
                fields.into_iter().for_each(|(name, value)| collect(&format!("{path}{dot}{name}"), value, values));
            }
            value => drop(values.insert(path.to_string(), value)),
        }
    }
    let mut all = BTreeMap::new();
    collect("", serde_json::to_value(settings).expect("settings are plain values"), &mut all);
    all
}

/// Makes paths absolute, and Unicode by replacing other bytes.
fn make_absolute(settings: &mut Settings) {
    let Settings { model, speculation, .. } = settings;
    let memory = &mut speculation.memory;
    let single =
        [&mut model.path, &mut speculation.costs, &mut memory.lookup_cache_static, &mut memory.lookup_cache_dynamic];
    let paths = single.into_iter().flatten().chain(&mut speculation.model_draft);
    let absolute = |path: &mut PathBuf| {
        let whole = std::path::absolute(&*path).unwrap_or_else(|_| path.clone());
        *path = PathBuf::from(whole.to_string_lossy().into_owned());
    };
    paths.for_each(absolute);
    speculation.drafters.change_paths(absolute);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn a_path_that_is_not_unicode_is_recorded() {
        use std::os::unix::ffi::OsStrExt;
        let mut settings = Settings::default();
        settings.model.path = Some(PathBuf::from(std::ffi::OsStr::from_bytes(b"models/bad\xff")));
        make_absolute(&mut settings);
        assert_eq!(
            values(&settings)["model.path"].as_str().map(|path| path.ends_with("models/bad\u{fffd}")),
            Some(true)
        );
    }

    #[test]
    fn whoever_decided_a_setting_is_named() {
        let mut asked = Settings::default();
        asked.sampling.top_p = Some(0.95);
        asked.parallel = 2;
        let by = decided_by(&asked, &asked, &["temperature"]);
        let of = |path: &str| by[path];
        assert_eq!((of("sampling.temperature"), of("sampling.top_p")), (DecidedBy::Model, DecidedBy::User));
        assert_eq!((of("sampling.top_k"), of("parallel")), (DecidedBy::Program, DecidedBy::User));
        assert_eq!(of("speculation.drafters.suffix.nodes_max"), DecidedBy::Program);
        let mut written = Vec::new();
        in_decimals(&asked, &mut serde_json::Serializer::new(&mut written)).expect("it can be written");
        let written = String::from_utf8(written).expect("JSON is text");
        assert!(written.contains(r#""top_p":0.95,"#), "{written}");
    }
}
