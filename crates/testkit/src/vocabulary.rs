//! Toy vocabularies: a few strings over a few letters, merged as in SentencePiece.
//!
//! They are so small that every text can be enumerated, and have cases that are hard to translate: letters that only
//! one side has, words that overlap the other side's, special tokens with and without a counterpart, and a space that
//! only the assistant adds at the beginning.

use std::sync::Arc;

use foretoken_engine::{TextTranslator, Token};
use foretoken_text::{GgufVocabulary, Tokenizer, Vocabularies};

/// The words of toy targets; the first letters are in every vocabulary.
const TARGET: [&str; 11] = ["a", "b", "ab", "c", "<end>", "bb", "ca", "abc", "aa", "<only>", "cab"];
/// The words of toy assistants.
const ASSISTANT: [&str; 9] = ["b", "a", "ba", "c", "<end>", "cc", "bab", "<other>", "d"];

/// A tokenizer of these words; those in angle brackets are special tokens. Longer words are merged first.
pub fn tokenizer(name: &str, words: &[&str], adds_space: bool) -> Arc<Tokenizer> {
    let vocabulary = GgufVocabulary {
        model: "llama".into(),
        tokens: words.iter().map(|word| (*word).to_string()).collect(),
        scores: words.iter().enumerate().map(|(i, word)| word.len() as f32 - i as f32 * 0.01).collect(),
        token_types: words.iter().map(|word| if word.starts_with('<') { 3 } else { 1 }).collect(),
        add_bos: Some(false),
        add_space_prefix: Some(adds_space),
        ..GgufVocabulary::default()
    };
    Arc::new(Tokenizer::from_gguf_vocabulary(name, &vocabulary).expect("a toy vocabulary is a good one"))
}

/// The string of a token of toy targets.
///
/// # Panics
///
/// Panics if there is no such token.
pub fn word(token: Token) -> &'static str {
    TARGET[token as usize]
}

/// The tokenizer of a toy target of `tokens` tokens.
///
/// # Panics
///
/// Panics if there is no toy target of this size.
pub fn target(tokens: usize) -> Arc<Tokenizer> {
    tokenizer("toy target", &TARGET[..tokens], false)
}

/// A translator from a target of `target` tokens to an assistant of `assistant` tokens.
///
/// # Panics
///
/// Panics if there are no toys of this size.
pub fn translator(target: usize, assistant: usize, lookbehind: usize) -> TextTranslator {
    let target = tokenizer("toy target", &TARGET[..target], false);
    let assistant = tokenizer("toy assistant", &ASSISTANT[..assistant], false);
    let vocabularies = Vocabularies::new(target, assistant, lookbehind, lookbehind);
    TextTranslator::new(vocabularies.expect("toys have letters in common"))
}

/// Like [`translator`], with an assistant that has spaces in its words and adds one before each text.
///
/// # Panics
///
/// Panics if there is no toy target of this size.
pub fn spaced_translator(target: usize) -> TextTranslator {
    let target = tokenizer("toy target", &TARGET[..target], false);
    let assistant = tokenizer("toy assistant", &["a", "b", "▁a", "▁", "ba", "c", "▁ba"], true);
    TextTranslator::new(Vocabularies::new(target, assistant, 2, 2).expect("toys have letters in common"))
}
