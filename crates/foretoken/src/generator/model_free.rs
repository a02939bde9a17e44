//! The drafters that need no model, from their options.
//!
//! Left out: drafters with a network, which a workshop makes.

use std::path::Path;

use foretoken_speculation::draft::TrieOptions;
use foretoken_speculation::{
    Drafter, JacobiDrafter, LookupDrafter, NgramDrafter, PhrasesDrafter, RandomDrafter, SuffixDrafter, Token,
    TrieDrafter,
};
use foretoken_text::Tokenizer;

use crate::failure::Failure;
use crate::options::{DrafterOptions, Kind};
use crate::prompts;

/// A drafter of this kind, for texts in a vocabulary of so many tokens. `most`: tokens drafted a pass, at most.
///
/// # Errors
/// What it needs is not given, or is a file that cannot be used.
///
/// # Panics
/// Panics if the kind needs a model.
pub fn without_model(
    kind: Kind,
    options: &DrafterOptions,
    most: usize,
    vocabulary: usize,
    tokenizer: Option<&Tokenizer>,
) -> Result<Box<dyn Drafter>, Failure> {
    Ok(match kind {
        Kind::Draft => panic!("a draft without a model"),
        Kind::Lookup => {
            let lookup = &options.lookup;
            let (longest, most) = (lookup.max_matching_ngram_size, lookup.prompt_lookup_num_tokens);
            let mut drafter = match lookup.prompt_lookup_candidates {
                1 => LookupDrafter::chain(1, longest, most),
                _ => LookupDrafter::new(1, longest, most),
            };
            drafter.candidates = lookup.prompt_lookup_candidates;
            // Prompt lookup as others have it proposes whatever it finds.
            drafter.gain_min = if lookup.prompt_lookup_candidates == 1 { 0.0 } else { options.gain_min() };
            Box::new(drafter)
        }
        Kind::Trie => {
            Box::new(TrieDrafter::new(TrieOptions { gain_min: options.gain_min(), ..options.trie.options() }))
        }
        Kind::Suffix => {
            let suffix = &options.suffix;
            let mut drafter = SuffixDrafter::new(suffix.suffix_capacity);
            drafter.tokens_max = suffix.suffix_num_tokens;
            drafter.depth_max = suffix.suffix_max_tree_depth;
            drafter.depth_factor = suffix.suffix_max_spec_factor;
            drafter.token_min = suffix.suffix_min_token_prob;
            drafter.gain_min = options.gain_min();
            Box::new(drafter)
        }
        Kind::Ngram => {
            let ngram = &options.ngram;
            let mut drafter = NgramDrafter::new(ngram.ngram_order, ngram.ngram_source.into());
            drafter.n_max = ngram.ngram_num_tokens;
            drafter.branches_max = ngram.ngram_branches;
            Box::new(drafter)
        }
        Kind::Jacobi => {
            let jacobi = &options.jacobi;
            let (window, level) = (jacobi.lookahead_window, jacobi.lookahead_level);
            Box::new(JacobiDrafter::new(window, level, jacobi.lookahead_guesses))
        }
        Kind::Phrases => {
            let missing = "--phrases: expected a file of phrases, found none";
            let path = options.phrases.as_deref().ok_or_else(|| Failure::Usage(missing.into()))?;
            Box::new(PhrasesDrafter::new(phrases(path, tokenizer)?))
        }
        Kind::Random => {
            let mut drafter = RandomDrafter::new(vocabulary);
            drafter.nodes_max = most;
            Box::new(drafter)
        }
    })
}

/// The phrases of a file as tokens, each as it begins a text and as it goes on behind a space.
fn phrases(path: &Path, tokenizer: Option<&Tokenizer>) -> Result<Vec<Vec<Token>>, Failure> {
    let missing = "--phrases: expected a model with a tokenizer, found one without";
    let tokenizer = tokenizer.ok_or_else(|| Failure::Usage(missing.into()))?;
    let mut phrases = Vec::new();
    for text in prompts::lines(path)? {
        for text in [format!(" {text}"), text] {
            let phrase = tokenizer.encode(&text, false)?;
            if phrase.len() > 1 {
                phrases.push(phrase);
            }
        }
    }
    match phrases.is_empty() {
        true => Err(Failure::Other(format!("{}: expected phrases of several tokens, found none", path.display()))),
        false => Ok(phrases),
    }
}
