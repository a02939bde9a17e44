//! Parsers of option values: each parses one word, and its error says what was expected.
//!
//! The command line's parser (`cli/src/arguments.rs`) turns an error into one line with the option's name.

use std::str::FromStr;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use foretoken::settings::{BRANCH_LENGTH_MAX, Limit, Named, NamedValue, OneOf};
use foretoken::whole::TEMPLATE_BYTES_MAX;
use foretoken::{CacheType, ChatTemplate, Token, WeightType, whole};

/// A valid number; `expected` describes what is valid.
fn number<T: FromStr + Copy>(word: &str, expected: &str, is_valid: impl Fn(T) -> bool) -> Result<T, String> {
    word.parse().ok().filter(|number| is_valid(*number)).ok_or_else(|| format!("expected {expected}"))
}

/// A finite number from 0 up.
pub fn zero_up(word: &str) -> Result<f32, String> {
    number(word, "a number from 0 up", |x: f32| x >= 0.0 && x.is_finite())
}

/// A finite number above 0.
pub fn positive(word: &str) -> Result<f32, String> {
    number(word, "a number above 0", |x: f32| x > 0.0 && x.is_finite())
}

/// Seconds of a time limit: above 0, at most a week.
pub fn seconds(word: &str) -> Result<f32, String> {
    number(word, "a number of seconds above 0, at most a week (604800)", |x: f32| x > 0.0 && x <= 604_800.0)
}

/// A number from 0 to 1.
pub fn fraction(word: &str) -> Result<f32, String> {
    number(word, "a number from 0 to 1", |x| (0.0..=1.0).contains(&x))
}

/// A number above 0 and up to 1.
pub fn positive_fraction(word: &str) -> Result<f32, String> {
    number(word, "a number above 0 and up to 1", |x| x > 0.0 && x <= 1.0)
}

/// A finite number.
pub fn finite(word: &str) -> Result<f32, String> {
    number(word, "a finite number", f32::is_finite)
}

/// A whole number from 1 up.
pub fn one_up(word: &str) -> Result<usize, String> {
    number(word, "a whole number from 1 up", |x| (1..=1 << 30).contains(&x))
}

/// A context's length in tokens.
pub fn context(word: &str) -> Result<usize, String> {
    number(word, "a whole number from 1 up, or 0 for the model's own", |x| x <= 1 << 30)
}

/// A whole number from 0 up.
pub fn whole(word: &str) -> Result<usize, String> {
    number(word, "a whole number from 0 up", |x| x <= 1 << 30)
}

/// Tokens of a trie's branch.
pub fn branch_length(word: &str) -> Result<usize, String> {
    let expected = format!("a whole number from 1 to {BRANCH_LENGTH_MAX}");
    number(word, &expected, |x| (1..=BRANCH_LENGTH_MAX).contains(&x))
}

/// Threads: a whole number that a machine might have.
pub fn threads(word: &str) -> Result<usize, String> {
    number(word, "a whole number from 1 to 1024", |x| (1..=1024).contains(&x))
}

/// A size in bytes.
pub fn size(word: &str) -> Result<usize, String> {
    foretoken::parse_size(word).ok_or_else(|| "expected a size as 6GB or 512MiB, or 0".to_string())
}

/// Sequences at a time, or answers to a prompt.
pub fn texts(word: &str) -> Result<usize, String> {
    number(word, "a whole number from 1 to 256", |x| (1..=256).contains(&x))
}

/// A whole number, or -1 for no limit.
pub fn whole_or_unlimited(word: &str) -> Result<Limit, String> {
    let number = number(word, "a whole number from 0 up, or -1 for no limit", |x: i64| x >= -1)?;
    Ok(Limit(usize::try_from(number).ok()))
}

/// A seed, or none for a random one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seed(pub Option<u64>);

/// A seed; -1 asks for a random one, as in llama.cpp.
pub fn seed(word: &str) -> Result<Seed, String> {
    if word == "-1" {
        return Ok(Seed(None));
    }
    number(word, "a whole number from 0 to 2^64 - 1, or -1 for a random one", |_: u64| true)
        .map(|seed| Seed(Some(seed)))
}

/// The name of one of a setting's values.
pub fn names_of<T: OneOf>() -> PossibleValuesParser {
    let possible = |one: &NamedValue<T>| PossibleValue::new(one.names[0]).aliases(&one.names[1..]).help(one.help);
    PossibleValuesParser::new(T::VALUES.iter().map(possible))
}

/// One of a setting's values, by its name.
pub fn one_of<T: OneOf + Send + Sync>() -> impl TypedValueParser<Value = T> {
    names_of::<T>().map(|name| T::named(&name).expect("the name is one of the values'"))
}

/// A type of the KV cache.
pub fn cache_type(word: &str) -> Result<CacheType, String> {
    CacheType::named(word).ok_or_else(|| "expected one of f32, f16, bf16, q8_0".to_string())
}

/// A type of weights; floats also by PyTorch's names.
pub fn weight_type(word: &str) -> Result<WeightType, String> {
    match word {
        "float32" | "float" => Ok(WeightType::F32),
        "float16" | "half" => Ok(WeightType::F16),
        "bfloat16" => Ok(WeightType::BF16),
        other => other.parse(),
    }
}

/// A chat template: the text of a file, or the word itself.
pub fn chat_template(word: &str) -> Result<String, String> {
    match whole::read_text(word.as_ref(), TEMPLATE_BYTES_MAX) {
        Ok(text) => Ok(text),
        Err(_) if ChatTemplate::source_for(word).is_some() => Ok(word.to_string()),
        Err(error) => {
            let names = ChatTemplate::names().collect::<Vec<_>>().join(", ");
            Err(format!("expected Jinja, one of {names}, or a file ({error})"))
        }
    }
}

/// A token.
pub fn token(word: &str) -> Result<Token, String> {
    number(word.trim(), "token ids, as 1,2,3", |_: Token| true)
}

/// A bias in llama.cpp's spelling.
pub use foretoken::settings::logit_bias;

/// A stop string, which must not be empty.
pub fn stop(word: &str) -> Result<String, String> {
    if word.is_empty() { Err("expected a text of at least one character".to_string()) } else { Ok(word.to_string()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minus_one_is_no_limit_and_a_random_seed() {
        assert_eq!(whole_or_unlimited("-1"), Ok(Limit(None)));
        assert_eq!(whole_or_unlimited("0"), Ok(Limit(Some(0))));
        assert!(whole_or_unlimited("-2").is_err());
        assert_eq!(seed("-1"), Ok(Seed(None)));
        assert_eq!(seed("18446744073709551615"), Ok(Seed(Some(u64::MAX))));
    }

    #[test]
    fn invalid_numbers_are_refused() {
        for wrong in ["-1", "nan", "inf", "warm", ""] {
            assert!(zero_up(wrong).is_err(), "{wrong}");
        }
        assert!(fraction("2").is_err() && fraction("-0.1").is_err() && positive_fraction("0").is_err());
        assert!(cache_type("q4_0").is_err() && cache_type("q8_0") == Ok(CacheType::Q8_0));
        assert!(one_up("0").is_err() && threads("0").is_err() && token("-3").is_err());
    }
}
