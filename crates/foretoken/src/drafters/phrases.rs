//! Phrases: the option, and the constructor of the drafter from a file of phrases.
//!
//! A phrase has other tokens after a space than at the beginning of a line, so the drafter gets both forms.

use std::path::Path;

use foretoken_drafters::PhrasesDrafter;
use foretoken_speculation::Token;
use foretoken_text::Tokenizer;
use foretoken_weights::whole::{self, TEXT_BYTES_MAX};

use super::options::option;
use super::{Created, DrafterInputs, DrafterOption, Field};
use crate::error::Error;

pub(super) const OPTIONS: &[DrafterOption] = &[option("phrases", "phrases", |all| Field::Path(&mut all.phrases))
    .help("phrases: the file of phrases, one on each line, the most important first")];

pub(super) fn make(inputs: &DrafterInputs<'_>) -> Created {
    let missing = || Error::setting("phrases", ": expected a file of phrases, found none");
    let path = inputs.settings.phrases.as_deref().ok_or_else(missing)?;
    Ok(Box::new(PhrasesDrafter::new(phrases(path, inputs.tokenizer)?)))
}

/// The phrases of a file as tokens, each with and without a space before it.
fn phrases(path: &Path, tokenizer: Option<&Tokenizer>) -> Result<Vec<Vec<Token>>, Error> {
    let tokenizer = tokenizer.ok_or_else(|| Error::needs_tokenizer("phrases"))?;
    let place = path.display();
    let bytes = whole::read(path, TEXT_BYTES_MAX).map_err(|error| Error::unreadable(path, &error))?;
    let text = String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Error::input(format!("{place}: expected UTF-8, found another byte at {at}"))
    })?;
    let mut phrases = Vec::new();
    for text in text.lines().filter(|line| !line.trim().is_empty()) {
        for text in [&format!(" {text}"), text] {
            let phrase = tokenizer.encode_in_pieces(text, false)?;
            if phrase.len() > 1 {
                phrases.push(phrase);
            }
        }
    }
    match phrases.is_empty() {
        true => Err(Error::input(format!("{place}: expected phrases of several tokens, found none"))),
        false => Ok(phrases),
    }
}
