//! The defaults in a model's own files: sampling, the token that begins a text, and those that end it.
//!
//! Read from `generation_config.json` and, for the tokens only, from `config.json`, as transformers does. A field that
//! is null counts as missing.

use foretoken_speculation::Token;
use serde_json::Value;

use crate::Error;

/// The fields that are used; `None` where the files have no value.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Defaults {
    /// The file, for messages.
    pub file: String,
    /// `do_sample`.
    pub sample: Option<bool>,
    /// `temperature`.
    pub temperature: Option<f32>,
    /// `top_k`.
    pub top_k: Option<usize>,
    /// `top_p`.
    pub top_p: Option<f32>,
    /// `min_p`.
    pub min_p: Option<f32>,
    /// `typical_p`.
    pub typical_p: Option<f32>,
    /// `repetition_penalty`.
    pub repetition_penalty: Option<f32>,
    /// `bos_token_id`, of either file.
    pub bos: Option<Token>,
    /// `eos_token_id` of the first file that has one.
    pub end_tokens: Vec<Token>,
}

impl Defaults {
    /// Reads both files; each is its name for messages and its bytes, if it is there.
    ///
    /// # Errors
    /// A file is not a JSON object, or a field has the wrong type.
    pub fn read(generation: (&str, Option<&[u8]>), config: (&str, Option<&[u8]>)) -> Result<Self, Error> {
        let generation = Fields::parse(generation.0, generation.1)?;
        let config = Fields::parse(config.0, config.1)?;
        let config_ends = config.tokens("eos_token_id")?;
        let end_tokens = Some(generation.tokens("eos_token_id")?).filter(|tokens| !tokens.is_empty());
        Ok(Self {
            sample: generation.get("do_sample", "true or false", Value::as_bool)?,
            temperature: generation.number("temperature")?,
            top_k: generation.get("top_k", "a whole number", whole)?,
            top_p: generation.number("top_p")?,
            min_p: generation.number("min_p")?,
            typical_p: generation.number("typical_p")?,
            repetition_penalty: generation.number("repetition_penalty")?,
            bos: generation.tokens("bos_token_id")?.into_iter().chain(config.tokens("bos_token_id")?).next(),
            end_tokens: end_tokens.unwrap_or(config_ends),
            file: generation.file,
        })
    }
}

fn whole(value: &Value) -> Option<usize> {
    value.as_u64().and_then(|number| usize::try_from(number).ok())
}

fn token(value: &Value) -> Option<Token> {
    value.as_u64().and_then(|number| Token::try_from(number).ok())
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
            Value::Array(items) => items.iter().map(token).collect(),
            one => token(one).map(|token| vec![token]),
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
        assert_eq!((found.temperature, found.top_k, found.sample), (Some(0.6), None, Some(true)));
    }

    #[test]
    fn a_field_of_the_wrong_type_is_named() {
        let wrong = Defaults::read(("g.json", Some(br#"{"top_p": "high"}"#)), ("c", None)).expect_err("top_p is text");
        let expected = "g.json: top_p: expected a number, found \"high\"";
        assert_eq!(wrong.to_string(), expected);
    }
}
