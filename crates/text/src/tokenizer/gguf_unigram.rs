//! SentencePiece's Unigram model, as GGUF files hold it (`t5`): a score per token; the most probable segmentation of a
//! text wins.
//!
//! The `tokenizers` library implements it, as for the folder that the file was made from: text is split before spaces,
//! a space is inserted before the text and after every added token unless there is one, and characters without a token
//! become bytes if there are byte tokens. llama.cpp does not split first, inserts a space even before a space, and uses
//! the unknown token instead of bytes; both agree on texts of known letters with single spaces.
//!
//! Two segmentations of a run of one character are often equally likely, and then the last bit of a sum decides. GGUF
//! rounds scores to f32, so foretoken's own files also hold the exact ones ([`EXACT_SCORES`]), which others ignore.
//!
//! Normalization (a compiled table of characters, collapsed spaces) is not supported and refused by name.

use tokenizers::models::unigram::Unigram;
use tokenizers::pre_tokenizers::metaspace::{Metaspace, PrependScheme};

use super::build_limits::check_pieces;
use super::gguf_bpe::register_added_tokens;
use super::gguf_vocabulary::{EXACT_SCORES, GgufVocabulary, Kind};
use super::library::Library;
use crate::TextError;

/// The library's tokenizer for a vocabulary, and whether it inserts a space before a text.
pub(super) fn library(place: &str, vocabulary: &GgufVocabulary, kinds: &[Kind]) -> Result<(Library, bool), TextError> {
    let count = vocabulary.tokens.len();
    let wrong =
        |key: &str, len: usize| TextError::field(place, key, format!("{count} scores, one for each token"), len);
    if vocabulary.scores.len() != count {
        return Err(wrong("tokenizer.ggml.scores", vocabulary.scores.len()));
    }
    let rounded = vocabulary.scores.iter().map(|score| f64::from(*score));
    let scores: Vec<f64> = match vocabulary.exact_scores.len() {
        0 => rounded.collect(),
        len if len == count => vocabulary.exact_scores.clone(),
        len => return Err(wrong(EXACT_SCORES, len)),
    };
    let pieces: Vec<(String, f64)> = vocabulary.tokens.iter().cloned().zip(scores).collect();
    check_pieces(place, "tokenizer.ggml.tokens", pieces.iter().map(|(piece, _)| piece.as_str()).collect())?;
    let bytes = kinds.contains(&Kind::Byte);
    let model = Unigram::from(pieces, vocabulary.unknown.map(|token| token as usize), bytes)
        .map_err(|error| TextError::field(place, "tokenizer.ggml.tokens", "pieces of a Unigram model", error))?;
    let adds_prefix_space = vocabulary.add_space_prefix.unwrap_or(true);
    let scheme = if adds_prefix_space { PrependScheme::Always } else { PrependScheme::Never };
    let mut tokenizer = tokenizers::Tokenizer::new(model);
    tokenizer.with_pre_tokenizer(Some(Metaspace::new('▁', scheme, true)));
    register_added_tokens(place, &mut tokenizer, vocabulary, kinds)?;
    Ok((Library::new(tokenizer), adds_prefix_space))
}

#[cfg(test)]
mod tests {
    use super::super::Tokenizer;
    use super::super::gguf_vocabulary::refuse_normalization;
    use super::*;
    use foretoken_weights::gguf::{Metadata, Value};

    fn vocabulary() -> GgufVocabulary {
        let text = |list: &[&str]| list.iter().map(|text| text.to_string()).collect();
        GgufVocabulary {
            model: "t5".into(),
            tokens: text(&["<unk>", "▁", "a", "b", "▁ab", "<0xC3>", "<0xA9>", "<|end|>"]),
            scores: vec![0.0, -3.0, -2.0, -2.0, -1.0, -9.0, -9.0, 0.0],
            token_types: vec![2, 1, 1, 1, 1, 6, 6, 3],
            unknown: Some(0),
            ..GgufVocabulary::default()
        }
    }

    #[test]
    fn segmentation_bytes_and_special_tokens() {
        let tokenizer = Tokenizer::from_gguf_vocabulary("small", &vocabulary()).unwrap();
        assert_eq!(tokenizer.encode("ab ba", true).unwrap(), [4, 1, 3, 2]);
        assert_eq!(tokenizer.encode("é<|end|>ab", false).unwrap(), [1, 5, 6, 7, 4]);
        assert_eq!(tokenizer.decode(&[4, 1, 3, 2, 5, 6], false), "ab baé");
        assert!(tokenizer.drops_first_space() && !tokenizer.adds_bos());
        let plain = GgufVocabulary { add_space_prefix: Some(false), ..vocabulary() };
        let tokenizer = Tokenizer::from_gguf_vocabulary("small", &plain).unwrap();
        assert_eq!(tokenizer.encode("ab ab", false).unwrap(), [2, 3, 4]);
    }

    #[test]
    fn exact_scores_override_rounded_ones() {
        // The rounded scores prefer the longer token, the exact ones the shorter tokens.
        let exact = vec![0.0, -3.0, -2.0, -2.0, -8.0, -9.0, -9.0, 0.0];
        let tokenizer =
            |exact_scores| Tokenizer::from_gguf_vocabulary("small", &GgufVocabulary { exact_scores, ..vocabulary() });
        assert_eq!(tokenizer(exact).unwrap().encode("ab", false).unwrap(), [1, 2, 3]);
        let error = tokenizer(vec![1.0; 3]).unwrap_err().to_string();
        assert_eq!(error, "small: foretoken.tokenizer.scores: expected 8 scores, one for each token, found 3");
    }

    #[test]
    fn unsupported_and_missing_fields_are_refused() {
        let short = GgufVocabulary { scores: vec![0.0], ..vocabulary() };
        let error = Tokenizer::from_gguf_vocabulary("small", &short).unwrap_err().to_string();
        assert_eq!(error, "small: tokenizer.ggml.scores: expected 8 scores, one for each token, found 1");
        let asks = |key: &str, value: Value| {
            let metadata = Metadata::new("small", [(format!("tokenizer.ggml.{key}"), value)]);
            refuse_normalization("small", &metadata).unwrap_err().to_string()
        };
        let error = asks("precompiled_charsmap", Value::Bool(true));
        assert_eq!(
            error,
            "small: tokenizer.ggml.precompiled_charsmap: expected nothing (text as it is), found a table of characters"
        );
        let error = asks("remove_extra_whitespaces", Value::Bool(true));
        assert_eq!(error, "small: tokenizer.ggml.remove_extra_whitespaces: expected false (text as it is), found true");
    }
}
