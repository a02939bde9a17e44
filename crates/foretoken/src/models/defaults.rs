//! The defaults in a model's own files: sampling parameters, the beginning-of-text token and the end tokens.
//!
//! They are read from `generation_config.json` and, for the tokens only, from `config.json`, as in transformers. A
//! field that is null counts as missing. `num_beams` is not read: whoever wants a beam search
//! requests it, since it returns nothing before its end.

use std::collections::BTreeMap;

use foretoken_engine::EarlyStopping;
use foretoken_speculation::{Sampling, Token};
use serde_json::Value;

use crate::Error;
use crate::names::Named;

/// Sampling parameters that transformers does not have: a model's file does not decide them.
const NOT_OF_TRANSFORMERS: [&str; 2] = ["presence_penalty", "frequency_penalty"];

/// The defaults of both files; `None` or empty if they have no value.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Defaults {
    /// The file, for messages.
    pub file: String,
    /// Whether `do_sample` is false, which is temperature 0.
    pub is_greedy: bool,
    /// The sampling parameters that are one number ([`Sampling::PARAMETERS`]), if the file has them.
    pub numbers: BTreeMap<&'static str, f32>,
    /// `top_k`.
    pub top_k: Option<usize>,
    /// `length_penalty` of beam searches.
    pub length_penalty: Option<f32>,
    /// `early_stopping` of beam searches.
    pub early_stopping: Option<EarlyStopping>,
    /// `bos_token_id`, of either file.
    pub bos: Option<Token>,
    /// `eos_token_id` of the first file that has one.
    pub end_tokens: Vec<Token>,
}

impl Defaults {
    /// Reads both files. Each argument is a file's name, for messages, and its bytes, if it exists.
    ///
    /// # Errors
    /// A file is not a JSON object, or a field has the wrong type.
    pub fn read(generation: (&str, Option<&[u8]>), config: (&str, Option<&[u8]>)) -> Result<Self, Error> {
        let generation = Fields::parse(generation.0, generation.1)?;
        let config = Fields::parse(config.0, config.1)?;
        let config_ends = config.tokens("eos_token_id")?;
        let end_tokens = Some(generation.tokens("eos_token_id")?).filter(|tokens| !tokens.is_empty());
        let is_greedy = generation.get("do_sample", "true or false", Value::as_bool)? == Some(false);
        let mut numbers = BTreeMap::new();
        let names = Sampling::PARAMETERS.iter().map(|parameter| parameter.name);
        for name in names.filter(|name| !NOT_OF_TRANSFORMERS.contains(name)) {
            numbers.extend(generation.number(name)?.map(|number| (name, number)));
        }
        if is_greedy {
            numbers.insert("temperature", 0.0);
        }
        Ok(Self {
            is_greedy,
            numbers,
            top_k: generation.get("top_k", "a whole number", whole::<usize>)?,
            length_penalty: generation.number("length_penalty")?,
            early_stopping: generation.get("early_stopping", "true, false or \"never\"", early_stopping)?,
            bos: generation.tokens("bos_token_id")?.into_iter().chain(config.tokens("bos_token_id")?).next(),
            end_tokens: end_tokens.unwrap_or(config_ends),
            file: generation.file,
        })
    }
}

fn whole<T: TryFrom<u64>>(value: &Value) -> Option<T> {
    value.as_u64()?.try_into().ok()
}

fn early_stopping(value: &Value) -> Option<EarlyStopping> {
    match value {
        Value::Bool(is_early) => EarlyStopping::named(&is_early.to_string()),
        value => EarlyStopping::named(value.as_str()?),
    }
}

/// A JSON object whose getters return errors with the expected type.
struct Fields {
    file: String,
    value: Value,
}

impl Fields {
    fn parse(file: &str, bytes: Option<&[u8]>) -> Result<Self, Error> {
        let value = match bytes {
            None => Value::Null,
            Some(bytes) => match serde_json::from_slice(bytes) {
                Ok(value @ Value::Object(_)) => value,
                Ok(_) => return Err(Error::input(format!("{file}: expected a JSON object, found another value"))),
                Err(error) => return Err(Error::input(format!("{file}: expected JSON, found: {error}"))),
            },
        };
        Ok(Self { file: file.to_string(), value })
    }

    fn get<T>(&self, field: &str, expected: &str, read: impl Fn(&Value) -> Option<T>) -> Result<Option<T>, Error> {
        let Some(value) = self.value.get(field).filter(|value| !value.is_null()) else { return Ok(None) };
        let wrong = || Error::input(format!("{}: {field}: expected {expected}, found {value}", self.file));
        read(value).map(Some).ok_or_else(wrong)
    }

    fn number(&self, field: &str) -> Result<Option<f32>, Error> {
        self.get(field, "a number", |value| value.as_f64().map(|number| number as f32))
    }

    /// One token or a list of them.
    fn tokens(&self, field: &str) -> Result<Vec<Token>, Error> {
        let read = |value: &Value| match value {
            Value::Array(items) => items.iter().map(whole::<Token>).collect(),
            one => whole(one).map(|token: Token| vec![token]),
        };
        Ok(self.get(field, "a token or a list of tokens", read)?.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_files_are_read_and_null_counts_as_missing() {
        let generation: &[u8] = br#"{"eos_token_id": [2, 5], "temperature": 0.6, "top_k": null, "do_sample": true}"#;
        let config: &[u8] = br#"{"eos_token_id": 7, "bos_token_id": 1}"#;
        let found = Defaults::read(("g", Some(generation)), ("c", Some(config))).expect("both are well-formed");
        assert_eq!((found.end_tokens, found.bos), (vec![2, 5], Some(1)));
        let alone = Defaults::read(("g", None), ("c", Some(config))).expect("it is well-formed");
        assert_eq!(alone.end_tokens, [7]);
        assert_eq!((found.numbers, found.top_k, found.is_greedy), ([("temperature", 0.6)].into(), None, false));
    }

    #[test]
    fn do_sample_false_is_temperature_0() {
        let generation: &[u8] = br#"{"do_sample": false, "temperature": 0.6, "min_p": 0.1, "presence_penalty": "x"}"#;
        let found = Defaults::read(("g", Some(generation)), ("c", None)).expect("it is well-formed");
        assert_eq!((found.numbers, found.is_greedy), ([("min_p", 0.1), ("temperature", 0.0)].into(), true));
    }

    #[test]
    fn what_beam_searches_have_is_read() {
        let read = |generation: &[u8]| Defaults::read(("g", Some(generation)), ("c", None));
        let found = read(br#"{"num_beams": 4, "length_penalty": 2.0, "early_stopping": true}"#).expect("well-formed");
        assert_eq!((found.length_penalty, found.early_stopping), (Some(2.0), Some(EarlyStopping::True)));
        let wrong = read(br#"{"early_stopping": 1}"#).expect_err("it is a number");
        assert_eq!(wrong.to_string(), "g: early_stopping: expected true, false or \"never\", found 1");
    }

    #[test]
    fn a_field_of_the_wrong_type_is_named() {
        let wrong = Defaults::read(("g.json", Some(br#"{"top_p": "high"}"#)), ("c", None)).expect_err("top_p is text");
        let expected = "g.json: top_p: expected a number, found \"high\"";
        assert_eq!(wrong.to_string(), expected);
    }
}
