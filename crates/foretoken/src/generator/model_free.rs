//! The drafters that need no model, from their settings.
//!
//! Drafters with a network are made in `drafters.rs`.

use std::path::Path;

use foretoken_drafters::TrieOptions;
use foretoken_drafters::{
    GrammarDrafter, JacobiDrafter, LlmaDrafter, NgramDrafter, PhrasesDrafter, PredictionDrafter, RandomDrafter,
    SuffixDrafter, TrieDrafter,
};
use foretoken_speculation::{Drafter, Token};
use foretoken_text::Tokenizer;
use foretoken_weights::whole::{self, TEXT_BYTES_MAX};

use crate::Error;
use crate::error::Message;
use crate::settings::DrafterSettings;
use crate::spec_type::DrafterKind;

/// A drafter of this kind, for texts in a vocabulary of so many tokens. `most`: tokens drafted a pass, at most.
///
/// # Errors
/// A setting that it needs is missing, or its file cannot be used.
///
/// # Panics
/// Panics if the kind needs a model.
pub fn without_model(
    kind: DrafterKind,
    settings: &DrafterSettings,
    most: usize,
    vocabulary: usize,
    tokenizer: Option<&Tokenizer>,
) -> Result<Box<dyn Drafter>, Error> {
    Ok(match kind {
        DrafterKind::Draft | DrafterKind::Exit => panic!("a draft without a model"),
        DrafterKind::Lookup => {
            let lookup = &settings.lookup;
            let (longest, most) = (lookup.ngram_max, lookup.nodes_max);
            let mut drafter = match lookup.candidates {
                1 => SuffixDrafter::lookup_chain(1, longest, most),
                _ => SuffixDrafter::lookup(1, longest, most),
            };
            drafter.candidates = lookup.candidates;
            // Prompt lookup in other programs proposes whatever it finds.
            drafter.gain_min = if lookup.candidates == 1 { 0.0 } else { settings.gain_min() };
            Box::new(drafter)
        }
        DrafterKind::Llma => Box::new(LlmaDrafter::new(settings.llma.run_min, settings.llma.nodes_max)),
        DrafterKind::Trie => {
            Box::new(TrieDrafter::new(TrieOptions { gain_min: settings.gain_min(), ..settings.trie.options() }))
        }
        DrafterKind::Suffix => {
            let suffix = &settings.suffix;
            let mut drafter = SuffixDrafter::new(suffix.capacity);
            drafter.nodes_max = suffix.nodes_max;
            drafter.depth_max = suffix.depth_max;
            drafter.depth_factor = suffix.depth_factor;
            drafter.token_min = suffix.token_min;
            drafter.gain_min = settings.gain_min();
            Box::new(drafter)
        }
        DrafterKind::Ngram => {
            let ngram = &settings.ngram;
            let mut drafter = NgramDrafter::new(ngram.order, ngram.source);
            drafter.depth_max = ngram.depth_max;
            drafter.branches_max = ngram.branches_max;
            Box::new(drafter)
        }
        DrafterKind::Prediction => {
            let mut drafter = PredictionDrafter::default();
            drafter.gain_min = settings.gain_min();
            Box::new(drafter)
        }
        DrafterKind::Grammar => Box::new(GrammarDrafter::default()),
        DrafterKind::Jacobi => {
            let jacobi = &settings.jacobi;
            Box::new(JacobiDrafter::new(jacobi.window, jacobi.level, jacobi.guesses))
        }
        DrafterKind::Phrases => {
            let missing = || Message::setting("phrases").and(": expected a file of phrases, found none");
            let path = settings.phrases.as_deref().ok_or_else(|| Error::Setting(missing()))?;
            Box::new(PhrasesDrafter::new(phrases(path, tokenizer)?))
        }
        DrafterKind::Random => {
            let mut drafter = RandomDrafter::new(vocabulary);
            drafter.nodes_max = most;
            Box::new(drafter)
        }
    })
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
