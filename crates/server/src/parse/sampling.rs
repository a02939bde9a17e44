//! Fields of the law: how the next token is sampled, and when the answer ends.
//!
//! Names are those of OpenAI, vLLM and llama.cpp. Ranges are checked where settings are decided; checked here is only
//! what the conversion to settings would lose.

use foretoken::Token;
use foretoken::settings::{Limit, SamplingSettings};
use serde_json::Value;

use crate::error::{ApiError, shown};
use crate::fields::Fields;
use crate::law::REPEAT_PENALTY;

/// Most biased tokens of a request: all of them are applied for each generated token.
const BIASES_MAX: usize = 1024;
/// Most further tokens that end the answer.
const STOP_TOKENS_MAX: usize = 128;

/// The sampling settings of a request: the server's, overridden by its fields.
pub(super) fn parse(fields: &mut Fields, server: &SamplingSettings) -> Result<SamplingSettings, ApiError> {
    for (from, to) in [
        REPEAT_PENALTY,
        ("max_completion_tokens", "max_tokens"),
        ("n_predict", "max_tokens"),
        ("max_new_tokens", "max_tokens"),
        ("tokens_min", "min_tokens"),
    ] {
        fields.rename(from, to)?;
    }
    let mut settings = server.clone();
    for number in SamplingSettings::NUMBERS {
        let (least, most) = number.parameter().range.bounds;
        let setting = (number.get_mut)(&mut settings);
        *setting = fields.number(number.name, least, most)?.or(*setting);
    }
    for (name, setting) in
        [("presence_penalty", &mut settings.presence_penalty), ("frequency_penalty", &mut settings.frequency_penalty)]
    {
        *setting = fields.number(name, f32::MIN, f32::MAX)?.unwrap_or(*setting);
    }
    if let Some(top_k) = fields.integer("top_k", -1, i64::from(u32::MAX))? {
        // vLLM's -1 means off, as 0 does.
        settings.top_k = Some(usize::try_from(top_k).unwrap_or(0));
    }
    if let Some(window) = fields.integer("repeat_last_n", -1, i64::from(u32::MAX))? {
        settings.penalty_window = Some(Limit(usize::try_from(window).ok()));
    }
    if let Some(tokens) = fields.integer("max_tokens", -1, i64::from(u32::MAX))? {
        settings.tokens_max = Limit(usize::try_from(tokens).ok());
    }
    if let Some(least) = fields.count("min_tokens", 0, u32::MAX as usize)? {
        settings.tokens_min = least;
        if let Some(most) = settings.tokens_max.0.filter(|most| *most < least) {
            let max_tokens = fields.name("max_tokens");
            return Err(ApiError::field(
                "min_tokens",
                format!("expected at most {max_tokens} ({most}), found {least}"),
            ));
        }
    }
    if let Some(seed) = fields.raw("seed") {
        settings.seed = parse_seed(seed.get())?;
    }
    let has_stop = fields.has("stop");
    let stop = fields.strings("stop")?;
    if has_stop {
        settings.stop = stop;
        if settings.stop.iter().any(String::is_empty) {
            return Err(ApiError::field("stop", "expected strings of at least one letter, found an empty one"));
        }
    }
    settings.ignore_eos = fields.boolean("ignore_eos")?.unwrap_or(settings.ignore_eos);
    if let Some(skip) = fields.boolean("skip_special_tokens")? {
        settings.special = !skip;
    }
    if let Some(biases) = fields.value("logit_bias")? {
        settings.logit_bias = logit_bias(&biases)?;
    }
    Ok(settings)
}

/// A seed: any signed or unsigned number of 64 bits. As in llama.cpp, -1 means a random one.
fn parse_seed(found: &str) -> Result<Option<u64>, ApiError> {
    let error = || {
        let expected = "expected a whole number of 64 bits (-1: a random one), found";
        ApiError::field("seed", format!("{expected} {}", shown(found)))
    };
    match (found.parse::<u64>(), found.parse::<i64>()) {
        (Ok(seed), _) => Ok(Some(seed)),
        (_, Ok(-1)) => Ok(None),
        (_, Ok(seed)) => Ok(Some(seed.cast_unsigned())),
        _ => Err(error()),
    }
}

/// Tokens that end the answer, besides the model's own.
pub(super) fn stop_tokens(fields: &mut Fields) -> Result<Vec<Token>, ApiError> {
    let tokens: Vec<Token> = fields.take("stop_token_ids", "a list of tokens")?.unwrap_or_default();
    if tokens.len() > STOP_TOKENS_MAX {
        let found = tokens.len();
        return Err(ApiError::field("stop_token_ids", format!("expected at most {STOP_TOKENS_MAX}, found {found}")));
    }
    Ok(tokens)
}

/// OpenAI's object `{"15043": -100}`, or llama.cpp's list `[[15043, -1.0], [7, false]]`, where false bans a token.
fn logit_bias(value: &Value) -> Result<Vec<(Token, f32)>, ApiError> {
    let error = |found: &Value| {
        let expected = "expected an object from tokens to finite numbers, or a list of pairs of these, found";
        ApiError::field("logit_bias", format!("{expected} {}", shown(&found.to_string())))
    };
    let bias = |value: &Value| match value {
        Value::Bool(false) => Some(f32::NEG_INFINITY),
        other => other.as_f64().map(|bias| bias as f32).filter(|bias| bias.is_finite()),
    };
    let biases: Option<Vec<(Token, f32)>> = match value {
        Value::Object(pairs) => pairs.iter().map(|(token, value)| Some((token.parse().ok()?, bias(value)?))).collect(),
        Value::Array(pairs) => {
            let pair = |pair: &Value| match pair.as_array().map(Vec::as_slice) {
                Some([token, value]) => Some((Token::try_from(token.as_u64()?).ok()?, bias(value)?)),
                _ => None,
            };
            pairs.iter().map(pair).collect()
        }
        _ => None,
    };
    let biases = biases.ok_or_else(|| error(value))?;
    if biases.len() > BIASES_MAX {
        let found = biases.len();
        return Err(ApiError::field("logit_bias", format!("expected at most {BIASES_MAX} tokens, found {found}")));
    }
    Ok(biases)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_body(body: &str) -> Result<SamplingSettings, String> {
        let mut fields = Fields::of_body(body.as_bytes()).expect("an object");
        parse(&mut fields, &SamplingSettings::default()).map_err(|error| error.message)
    }

    #[test]
    fn names_of_other_servers_are_accepted() {
        let body = r#"{"temperature": 0.5, "top_k": -1, "repeat_penalty": 1.1, "max_completion_tokens": 7, "seed": -1,
            "stop": "x", "logit_bias": {"5": -100, "6": 1.5}, "repeat_last_n": -1, "skip_special_tokens": false}"#;
        let settings = parse_body(body).expect("all are good");
        assert_eq!((settings.temperature, settings.top_k), (Some(0.5), Some(0)));
        assert_eq!((settings.repetition_penalty, settings.tokens_max), (Some(1.1), Limit(Some(7))));
        assert_eq!((settings.seed, settings.special), (None, true));
        assert_eq!(settings.penalty_window, Some(Limit(None)));
        assert_eq!(settings.logit_bias, [(5, -100.0), (6, 1.5)]);
        let settings = parse_body(r#"{"logit_bias": [[5, false], [6, 1]], "max_tokens": -1, "stop": ["a", "b"]}"#);
        let settings = settings.expect("all are good");
        assert_eq!(settings.logit_bias, [(5, f32::NEG_INFINITY), (6, 1.0)]);
        assert_eq!((settings.tokens_max, settings.stop.len()), (Limit(None), 2));
    }

    #[test]
    fn errors_name_the_field() {
        for (body, expected) in [
            (r#"{"temperature": -1}"#, "temperature: expected a number from 0 up, found -1"),
            (r#"{"top_p": 1.5}"#, "top_p: expected a number from 0 to 1, found 1.5"),
            (r#"{"max_tokens": 1, "max_completion_tokens": 2}"#, "max_completion_tokens: expected it or max_tokens"),
            (r#"{"max_tokens": 1, "min_tokens": 2}"#, "min_tokens: expected at most max_tokens (1), found 2"),
            (r#"{"n_predict": "x"}"#, "n_predict: expected a whole number from -1 to 4294967295, found \"x\""),
            (r#"{"repeat_penalty": -1}"#, "repeat_penalty: expected a number from 0 up, found -1"),
            (r#"{"max_tokens": 1.5}"#, "max_tokens: expected a whole number from -1 to 4294967295, found 1.5"),
            (r#"{"stop": ["a", 1]}"#, "stop: expected a string or a list of strings, found [\"a\", 1]"),
            (r#"{"stop": ""}"#, "stop: expected strings of at least one letter, found an empty one"),
            (r#"{"logit_bias": {"x": 1}}"#, "logit_bias: expected an object from tokens to finite numbers"),
            (
                r#"{"logit_bias": {"5": 1e400}}"#,
                "logit_bias: expected JSON that is not nested too deeply, with numbers",
            ),
            (r#"{"logit_bias": [[1]]}"#, "logit_bias: expected an object from tokens to finite numbers"),
            (r#"{"seed": "7"}"#, "seed: expected a whole number of 64 bits (-1: a random one), found \"7\""),
            (r#"{"ignore_eos": 1}"#, "ignore_eos: expected true or false, found 1"),
        ] {
            let error = parse_body(body).expect_err(body);
            assert!(error.starts_with(expected), "{body}: {error}");
        }
    }
}
