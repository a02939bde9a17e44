//! Phrases: the option, and the drafter that is made of a file of them.
//!
//! A phrase has other tokens behind a space than at the beginning of a line, so each is kept in both forms.

use std::path::Path;

use foretoken_drafters::PhrasesDrafter;
use foretoken_speculation::Token;
use foretoken_text::Tokenizer;
use foretoken_weights::whole::{self, TEXT_BYTES_MAX};

use super::options::option;
use super::{DrafterInputs, DrafterOption, Made, Slot};
use crate::error::{Error, Message};

pub(super) const OPTIONS: &[DrafterOption] = &[option("phrases", "phrases", |all| Slot::Path(&mut all.phrases))
    .help("phrases: the file of phrases, one on each line, the most important first")];

pub(super) fn make(inputs: &DrafterInputs<'_>) -> Made {
    let missing = || Message::setting("phrases").and(": expected a file of phrases, found none");
    let path = inputs.settings.phrases.as_deref().ok_or_else(|| Error::Setting(missing()))?;
    Ok(Box::new(PhrasesDrafter::new(phrases(path, inputs.tokenizer)?)))
}

/// The phrases of a file as tokens, each with and without a space before it.
fn phrases(path: &Path, tokenizer: Option<&Tokenizer>) -> Result<Vec<Vec<Token>>, Error> {
    let missing = || Message::setting("phrases").and(": expected a model with a tokenizer, found one without");
    let tokenizer = tokenizer.ok_or_else(|| Error::Setting(missing()))?;
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
