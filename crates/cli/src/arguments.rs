//! The front of the command line: llama.cpp's short options of several letters, and clap's complaints in one line.
//!
//! clap knows no `-md`, so it is written out before clap sees it. What clap says about a bad value is turned into
//! this program's form: the option, what was expected, what was found. Left out: what options mean.

use std::error::Error as _;
use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::failure::Failure;

/// Short options of more than one letter, with the long ones that they stand for.
const LONG_SHORTS: [(&str, &str); 16] = [
    ("-md", "--model-draft"),
    ("-np", "--parallel"),
    ("-to", "--timeout"),
    ("-npp", "--prompt-tokens"),
    ("-ntg", "--n-predict"),
    ("-ctk", "--cache-type-k"),
    ("-ctv", "--cache-type-v"),
    ("-ctkd", "--cache-type-k-draft"),
    ("-ctvd", "--cache-type-v-draft"),
    ("-lcs", "--lookup-cache-static"),
    ("-lcd", "--lookup-cache-dynamic"),
    ("-hf", "--hf-repo"),
    ("-hfr", "--hf-repo"),
    ("-hff", "--hf-file"),
    ("-hfd", "--hf-repo-draft"),
    ("-hfrd", "--hf-repo-draft"),
];

/// Options whose next word is text that may look like an option.
const TAKES_TEXT: [&str; 6] = ["-p", "--prompt", "--stop", "--reverse-prompt", "--system", "-sys"];

/// Writes out the short options of several letters.
pub fn written_out(words: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut out: Vec<OsString> = Vec::new();
    let mut options = true;
    for word in words {
        let is_text = out.last().is_some_and(|before| TAKES_TEXT.iter().any(|option| before == option));
        options &= word != "--" || is_text;
        let long = LONG_SHORTS.iter().filter(|_| options && !is_text).find_map(|(short, long)| {
            let rest = word.to_str()?.strip_prefix(short)?;
            (rest.is_empty() || rest.starts_with('=')).then(|| format!("{long}{rest}"))
        });
        out.push(long.map_or(word, OsString::from));
    }
    out
}

/// What clap complains about, in one line.
pub fn in_one_line(error: &clap::Error) -> Failure {
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        Some(ContextValue::Strings(texts)) => Some(texts.join(", ")),
        _ => None,
    };
    let found = context(ContextKind::InvalidValue).filter(|value| !value.is_empty());
    let found = found.map_or("nothing".to_string(), |value| format!("{value:?}"));
    // "--temp <T>" names the option and its value; the option is what the user wrote.
    let option = context(ContextKind::InvalidArg).unwrap_or_default();
    let option = option.split([' ', '=', '[']).next().unwrap_or_default().to_string();
    let message = match error.kind() {
        ErrorKind::ValueValidation => {
            let reason = error.source().map_or("expected another value".to_string(), ToString::to_string);
            format!("{option}: {reason}, found {found}")
        }
        ErrorKind::InvalidValue => match context(ContextKind::ValidValue) {
            Some(valid) if found != "nothing" => format!("{option}: expected one of {valid}, found {found}"),
            _ => format!("{option}: expected a value, found none"),
        },
        _ => first_paragraphs(&error.to_string()),
    };
    Failure::Usage(message)
}

/// clap's own words without usage and the hint at the help.
fn first_paragraphs(text: &str) -> String {
    let end = text.find("\n\nUsage:").or_else(|| text.find("\n\nFor more")).unwrap_or(text.len());
    text[..end].trim_start_matches("error: ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn out(words: &[&str]) -> Vec<String> {
        let out = written_out(words.iter().map(|word| OsString::from(*word)));
        out.into_iter().map(|word| word.into_string().expect("the words are text")).collect()
    }

    #[test]
    fn options_of_several_letters_are_written_out_where_they_are_options() {
        assert_eq!(out(&["x", "-md", "d", "-np", "4"]), ["x", "--model-draft", "d", "--parallel", "4"]);
        assert_eq!(out(&["x", "-md=d", "-np=4", "-n", "5"]), ["x", "--model-draft=d", "--parallel=4", "-n", "5"]);
        assert_eq!(out(&["-ctkd", "f32", "-ctk=f16"]), ["--cache-type-k-draft", "f32", "--cache-type-k=f16"]);
        assert_eq!(out(&["x", "-p", "-md", "--", "-np"]), ["x", "-p", "-md", "--", "-np"]);
    }
}
