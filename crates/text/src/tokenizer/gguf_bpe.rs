//! Byte-pair encoding, as GGUF files hold it: tokens, merges, and the name of a pre-tokenizer.
//!
//! The `tokenizers` library implements all of it, so this file only configures it: split the text
//! ([`super::pre_tokenizer`]), write the bytes in GPT-2's alphabet, merge. Gemma 4 and similar models merge characters,
//! with spaces written as "▁", and fall back to `<0xNN>` for characters without a token. Special and user-defined
//! tokens become added tokens, which are matched before anything else.

use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::normalizers::Replace;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{AddedToken, PreTokenizerWrapper, SplitDelimiterBehavior};

use super::gguf_vocabulary::{GgufVocabulary, Kind};
use super::library::Library;
use super::pre_tokenizer::{PreTokenizer, Symbols};
use crate::TextError;

/// An encoder for a vocabulary.
pub(super) fn library(
    place: &str,
    vocabulary: &GgufVocabulary,
    kinds: &[Kind],
    pre_tokenizer: &PreTokenizer,
) -> Result<Library, TextError> {
    tokenizer(place, vocabulary, kinds, pre_tokenizer).map(Library::new)
}

/// The library's tokenizer for a vocabulary.
pub(super) fn tokenizer(
    place: &str,
    vocabulary: &GgufVocabulary,
    kinds: &[Kind],
    pre_tokenizer: &PreTokenizer,
) -> Result<tokenizers::Tokenizer, TextError> {
    let ids_by_text: Vocab = vocabulary.tokens.iter().cloned().zip(0..).collect();
    let merges = merges(place, vocabulary, &ids_by_text)?;
    let mut model = BPE::builder().vocab_and_merges(ids_by_text, merges).ignore_merges(pre_tokenizer.ignore_merges);
    if pre_tokenizer.symbols == Symbols::Characters {
        model = model.byte_fallback(true).fuse_unk(true);
        if let Some(unknown) = vocabulary.unknown {
            model = model.unk_token(vocabulary.spelling(Some(unknown)).to_owned());
        }
    }
    let model =
        model.build().map_err(|error| TextError::field(place, "tokenizer.ggml.merges", "merges of tokens", error))?;
    let mut tokenizer = tokenizers::Tokenizer::new(model);
    if pre_tokenizer.symbols == Symbols::Characters {
        let refused = |error| TextError::format(place, "spaces as ▁", error);
        tokenizer.with_normalizer(Some(Replace::new(" ", "▁").map_err(refused)?)).map_err(refused)?;
    }
    if pre_tokenizer.symbols == Symbols::Bytes || !pre_tokenizer.patterns.is_empty() {
        tokenizer.with_pre_tokenizer(Some(split_pre_tokenizer(
            place,
            pre_tokenizer.patterns,
            pre_tokenizer.symbols == Symbols::Bytes,
        )?));
    }
    register_added_tokens(place, &mut tokenizer, vocabulary, kinds)?;
    Ok(tokenizer)
}

/// Registers special and user-defined tokens with the library as added tokens.
pub(super) fn register_added_tokens(
    place: &str,
    tokenizer: &mut tokenizers::Tokenizer,
    vocabulary: &GgufVocabulary,
    kinds: &[Kind],
) -> Result<(), TextError> {
    let refused = |error| TextError::field(place, "tokenizer.ggml.tokens", "tokens that can be added", error);
    let of_kind = |wanted: fn(Kind) -> bool, special| {
        let chosen = vocabulary.tokens.iter().zip(kinds).filter(move |(text, kind)| wanted(**kind) && !text.is_empty());
        chosen.map(move |(text, _)| AddedToken::from(text.as_str(), special).normalized(false)).collect::<Vec<_>>()
    };
    tokenizer.add_special_tokens(of_kind(Kind::is_special, true)).map_err(refused)?;
    tokenizer.add_tokens(of_kind(|kind| kind == Kind::UserDefined, false)).map_err(refused)?;
    Ok(())
}

/// A pre-tokenizer that splits by one expression after the other, and then writes the bytes in GPT-2's alphabet.
pub(super) fn split_pre_tokenizer(
    place: &str,
    patterns: &[&str],
    byte_level: bool,
) -> Result<PreTokenizerWrapper, TextError> {
    let mut steps: Vec<PreTokenizerWrapper> = Vec::with_capacity(patterns.len() + 1);
    for &pattern in patterns {
        let split = Split::new(SplitPattern::Regex(pattern.into()), SplitDelimiterBehavior::Isolated, false);
        steps.push(split.map_err(|error| TextError::format(place, "a pre-tokenizer that compiles", error))?.into());
    }
    if byte_level {
        steps.push(ByteLevel::new(false, false, false).into());
    }
    Ok(Sequence::new(steps).into())
}

fn merges(place: &str, vocabulary: &GgufVocabulary, ids_by_text: &Vocab) -> Result<Vec<(String, String)>, TextError> {
    let pair = |(index, merge): (usize, &String)| {
        // A token may begin with a space, but not contain one elsewhere.
        let split = merge.char_indices().skip(1).find(|&(_, character)| character == ' ');
        let pair = split.map(|(at, _)| (&merge[..at], &merge[at + 1..]));
        let known = |text: &str| ids_by_text.contains_key(text);
        match pair {
            Some((left, right)) if known(left) && known(right) && known(&[left, right].concat()) => {
                Ok((left.to_owned(), right.to_owned()))
            }
            _ => {
                let field = format!("tokenizer.ggml.merges[{index}]");
                let expected = "two tokens and a space between, whose union is a token";
                Err(TextError::field(place, field, expected, format!("{merge:?}")))
            }
        }
    };
    vocabulary.merges.iter().enumerate().map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::super::Tokenizer;
    use super::*;

    fn vocabulary() -> GgufVocabulary {
        let text = |list: &[&str]| list.iter().map(|text| text.to_string()).collect();
        GgufVocabulary {
            model: "gpt2".into(),
            pre: Some("gpt-2".into()),
            tokens: text(&["a", "b", "Ġ", "ab", "Ġab", "<|end|>", "[x]", "é"]),
            token_types: vec![1, 1, 1, 1, 1, 3, 4, 4],
            merges: text(&["a b", "Ġ ab"]),
            eos: Some(5),
            ..GgufVocabulary::default()
        }
    }

    #[test]
    fn merges_splits_and_special_tokens() {
        let tokenizer = Tokenizer::from_gguf_vocabulary("small", &vocabulary()).unwrap();
        assert_eq!(tokenizer.encode("ab abb", true).unwrap(), [3, 4, 1]);
        assert_eq!(tokenizer.encode("a<|end|>[x]é", false).unwrap(), [0, 5, 6, 7]);
        assert_eq!(tokenizer.encode_plain("<|a[x]").unwrap(), [0, 6]);
        assert_eq!(tokenizer.decode(&[3, 4, 5, 6, 7], false), "ab ab<|end|>[x]é");
        assert_eq!(tokenizer.decode(&[3, 5, 6], true), "ab[x]");
        assert_eq!((tokenizer.end_tokens(), tokenizer.turn_end_tokens()), (&[5][..], &[5][..]));
        assert_eq!((tokenizer.bos(), tokenizer.adds_bos()), (None, false));
    }

    #[test]
    fn merges_must_name_tokens() {
        for (merge, shown) in [("a c", "\"a c\""), ("ab", "\"ab\""), ("b a", "\"b a\"")] {
            let vocabulary = GgufVocabulary { merges: vec!["a b".into(), merge.into()], ..vocabulary() };
            let error = Tokenizer::from_gguf_vocabulary("small", &vocabulary).unwrap_err().to_string();
            let expected = "two tokens and a space between, whose union is a token";
            assert_eq!(error, format!("small: tokenizer.ggml.merges[1]: expected {expected}, found {shown}"));
        }
    }

    #[test]
    fn unknown_kinds_are_refused() {
        let error = |vocabulary| Tokenizer::from_gguf_vocabulary("small", &vocabulary).unwrap_err().to_string();
        let other = GgufVocabulary { model: "bert".into(), ..vocabulary() };
        assert_eq!(
            error(other),
            "small: tokenizer.ggml.model: expected llama, gpt2, gemma4 or t5, found bert (WordPiece, of encoders)"
        );
        let other = GgufVocabulary { token_types: vec![1], ..vocabulary() };
        assert_eq!(error(other), "small: tokenizer.ggml.token_type: expected 8 types, one for each token, found 1");
        let other = GgufVocabulary { token_types: vec![9; 8], ..vocabulary() };
        assert_eq!(error(other), "small: tokenizer.ggml.token_type[0]: expected a number from 0 to 6, found 9");
        let other = GgufVocabulary { pre: Some("none".into()), ..vocabulary() };
        assert!(error(other).ends_with("found none"));
    }
}
