//! SentencePiece's Unigram model, as GGUF files hold it (`t5`): a score per token; the most probable segmentation of a
//! text wins.
//!
//! Files hold it in two ways. One that normalizes text (by a compiled table of characters, or by dropping spaces) and
//! has no exact scores was made from SentencePiece's own file, so it is encoded as that is ([`model_file`]).
//!
//! For others the `tokenizers` library implements it, as for the folder that the file was made from: text is split
//! before spaces, a space is inserted before the text and after every added token unless there is one, and characters
//! without a token become bytes if there are byte tokens. llama.cpp does not split first, inserts a space even before a
//! space, and uses the unknown token instead of bytes; both agree on texts of known letters with single spaces.
//!
//! Two segmentations of a run of one character are often equally likely, and then the last bit of a sum decides. GGUF
//! rounds scores to f32, so foretoken's own files also hold the exact ones ([`EXACT_SCORES`]), which others ignore.

use tokenizers::NormalizerWrapper;
use tokenizers::models::unigram::Unigram;
use tokenizers::normalizers::Precompiled;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::metaspace::{Metaspace, PrependScheme};
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::whitespace::WhitespaceSplit;

use super::build_limits::check_pieces;
use super::gguf_bpe::register_added_tokens;
use super::gguf_spm::{ModelFileSettings, SentencePieceEncoder};
use super::gguf_vocabulary::{EXACT_SCORES, GgufVocabulary, Kind};
use super::growth;
use super::library::Library;
use super::sentencepiece::normalizer::Normalizer;
use crate::TextError;

/// The key of a compiled table of characters.
const CHARACTERS: &str = "tokenizer.ggml.precompiled_charsmap";

/// Whether a vocabulary was made from SentencePiece's own file.
pub(super) fn is_of_model_file(vocabulary: &GgufVocabulary) -> bool {
    vocabulary.exact_scores.is_empty() && (vocabulary.removes_spaces || !vocabulary.characters.is_empty())
}

/// The encoder of SentencePiece's own file, of which GGUF's keys are a copy.
pub(super) fn model_file(
    place: &str,
    vocabulary: &GgufVocabulary,
    kinds: &[Kind],
) -> Result<SentencePieceEncoder, TextError> {
    let settings = ModelFileSettings {
        normalizer: Normalizer::new(place, &vocabulary.characters, vocabulary.removes_spaces)?,
        is_unigram: true,
        byte_fallback: kinds.contains(&Kind::Byte),
        prefix_first_only: false,
        rstripped: Vec::new(),
    };
    Ok(SentencePieceEncoder::new(place, vocabulary, kinds)?.with_model_file(settings, vocabulary, kinds))
}

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
    let spaces: PreTokenizerWrapper = Metaspace::new('▁', scheme, true).into();
    tokenizer.with_pre_tokenizer(Some(match vocabulary.removes_spaces {
        // Words are what stands between white space.
        true => Sequence::new(vec![WhitespaceSplit.into(), spaces]).into(),
        false => spaces,
    }));
    if !vocabulary.characters.is_empty() {
        let refused = |error| TextError::field(place, CHARACTERS, "a table for these tokens", error);
        tokenizer.with_normalizer(Some(characters(place, &vocabulary.characters)?)).map_err(refused)?;
    }
    growth::check_text(place, tokenizer.get_normalizer(), tokenizer.get_pre_tokenizer())?;
    register_added_tokens(place, &mut tokenizer, vocabulary, kinds)?;
    Ok((Library::new(tokenizer), adds_prefix_space))
}

/// The library's normalizer for a compiled table of characters.
fn characters(place: &str, table: &[u8]) -> Result<NormalizerWrapper, TextError> {
    // The library believes the lengths that a table says.
    Normalizer::new(place, table, false)?;
    let malformed = |error| TextError::field(place, CHARACTERS, "a compiled table of characters", error);
    Precompiled::from(table).map(NormalizerWrapper::Precompiled).map_err(malformed)
}

#[cfg(test)]
mod tests {
    use super::super::Tokenizer;
    use super::*;

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
    fn missing_and_malformed_fields_are_refused() {
        let short = GgufVocabulary { scores: vec![0.0], ..vocabulary() };
        let error = Tokenizer::from_gguf_vocabulary("small", &short).unwrap_err().to_string();
        assert_eq!(error, "small: tokenizer.ggml.scores: expected 8 scores, one for each token, found 1");
        // A table that says to be longer than it is, for both ways of encoding.
        for exact_scores in [Vec::new(), vec![0.0; 8]] {
            let table = GgufVocabulary { characters: vec![255, 255, 255, 0, 1], exact_scores, ..vocabulary() };
            let error = Tokenizer::from_gguf_vocabulary("small", &table).unwrap_err().to_string();
            assert_eq!(
                error,
                "small: expected a compiled table of characters, found: a length of 16777215 where 1 bytes are left"
            );
        }
    }

    #[test]
    fn extra_spaces_are_removed() {
        // Without exact scores as SentencePiece does it, with them as the library does.
        for exact_scores in [Vec::new(), vec![0.0, -3.0, -2.0, -2.0, -1.0, -9.0, -9.0, 0.0]] {
            let removes = GgufVocabulary { removes_spaces: true, exact_scores, ..vocabulary() };
            let tokenizer = Tokenizer::from_gguf_vocabulary("small", &removes).unwrap();
            assert_eq!(tokenizer.encode("  ab   ba  ", true).unwrap(), [4, 1, 3, 2]);
            assert_eq!(tokenizer.encode("<|end|> ab", false).unwrap(), [7, 4]);
            assert!(tokenizer.encode("   ", true).unwrap().is_empty());
            assert_eq!(tokenizer.decode(&[4, 1, 3, 2], false), "ab ba");
        }
    }
}
