//! Limits on how much longer a tokenizer may make a text.
//!
//! Texts are bounded by their bytes, so the output of an untrusted tokenizer's components must be bounded, too: a
//! normalizer that writes ten thousand letters for one, thirty pre-tokenizers that each write two, or a post-processor
//! that adds a million tokens would fill memory for one line of text. The bound is the product of the bytes that each
//! component may make of one byte, by its settings in the file. Known tokenizers stay below 2400 ([`GROWTH_MAX`]), and
//! far below it with real texts, so a text is measured when its bound is high ([`super::library`]). A model's work for
//! each letter, and work that is cubic in the length of a word, are bounded, too. Not bounded: decoders, of which only
//! the types are used, and a model's other work, which is linear in a text or quadratic in a word.

use serde_json::Value;
use tokenizers::{ModelWrapper, NormalizerWrapper, PreTokenizerWrapper};

use super::guard::base64_digit;
use crate::TextError;

/// Maximum number of bytes that normalizers may make of one. A table of characters that folds as NFKC does makes at
/// most 33 of three and counts as 33; NFKD counts as 12, lower case as three, collapsing spaces as two, and ALBERT has
/// all four.
const GROWTH_MAX: u64 = 1 << 12;

/// Maximum number of bytes that pre-tokenizers may make of one. One that writes each byte as a letter, with a space
/// before each piece, makes four; one that writes `▁` for a space makes six.
const PRE_TOKENIZER_GROWTH_MAX: u64 = 24;

/// Maximum number of bytes of the affixes that models add to each letter. Known ones have four.
const AFFIX_BYTES_MAX: usize = 16;

/// Maximum number of letters of a word that WordPiece looks up, in cubic time. Known files have 100.
const WORD_LETTERS_MAX: usize = 200;

/// Maximum number of tokens that a post-processor may add around a text. Known ones add two.
const ADDED_TOKENS_MAX: u64 = 1 << 12;

/// Refuses a tokenizer that makes a text too long.
pub(super) fn check(place: &str, tokenizer: &tokenizers::Tokenizer) -> Result<(), TextError> {
    check_text(place, tokenizer.get_normalizer(), tokenizer.get_pre_tokenizer())?;
    check_model(place, tokenizer.get_model())?;
    let added_tokens = added_tokens(&serde_json::to_value(tokenizer.get_post_processor()).unwrap_or(Value::Null));
    if added_tokens == REPEATED {
        return Err(TextError::field(place, "post_processor", "the text once", "it several times"));
    }
    if added_tokens > ADDED_TOKENS_MAX {
        let expected = format!("at most {ADDED_TOKENS_MAX} tokens around a text");
        return Err(TextError::field(place, "post_processor", expected, added_tokens));
    }
    Ok(())
}

/// Refuses a normalizer or a pre-tokenizer that makes a text too long.
pub(super) fn check_text(
    place: &str,
    normalizer: Option<&NormalizerWrapper>,
    pre_tokenizer: Option<&PreTokenizerWrapper>,
) -> Result<(), TextError> {
    let growths = [
        ("normalizer", of_normalizer(normalizer), GROWTH_MAX),
        ("pre_tokenizer", of_pre_tokenizer(pre_tokenizer), PRE_TOKENIZER_GROWTH_MAX),
    ];
    for (field, growth, most) in growths {
        if growth > most {
            return Err(TextError::field(place, field, format!("at most {most} bytes for one"), growth));
        }
    }
    Ok(())
}

/// Maximum number of bytes that a normalizer makes of one.
pub(super) fn of_normalizer(normalizer: Option<&NormalizerWrapper>) -> u64 {
    growth(&serde_json::to_value(normalizer).unwrap_or(Value::Null))
}

/// Maximum number of bytes that a pre-tokenizer makes of one.
pub(super) fn of_pre_tokenizer(pre_tokenizer: Option<&PreTokenizerWrapper>) -> u64 {
    growth(&serde_json::to_value(pre_tokenizer).unwrap_or(Value::Null))
}

/// Refuses a model with long affixes, or with words for which WordPiece's lookup (all substrings) is too slow.
fn check_model(place: &str, model: &ModelWrapper) -> Result<(), TextError> {
    let len = |affix: &Option<String>| affix.as_ref().map_or(0, String::len);
    let (before, behind, word) = match model {
        ModelWrapper::BPE(model) => (len(&model.continuing_subword_prefix), len(&model.end_of_word_suffix), 0),
        ModelWrapper::WordPiece(model) => (model.continuing_subword_prefix.len(), 0, model.max_input_chars_per_word),
        _ => (0, 0, 0),
    };
    for (field, found, most, what) in [
        ("model.continuing_subword_prefix", before, AFFIX_BYTES_MAX, "bytes"),
        ("model.end_of_word_suffix", behind, AFFIX_BYTES_MAX, "bytes"),
        ("model.max_input_chars_per_word", word, WORD_LETTERS_MAX, "letters"),
    ] {
        if found > most {
            return Err(TextError::field(place, field, format!("at most {most} {what}"), found));
        }
    }
    Ok(())
}

/// Maximum number of bytes that a normalizer or a pre-tokenizer makes of one.
fn growth(part: &Value) -> u64 {
    let text = |field: &str| part.get(field).and_then(Value::as_str);
    match text("type").unwrap_or_default() {
        "Sequence" => {
            let members = members(part, "normalizers").chain(members(part, "pretokenizers"));
            members.map(growth).fold(1, u64::saturating_mul)
        }
        // The text is added before each piece, which may be a single byte.
        "Prepend" => text("prepend").map_or(0, str::len) as u64 + 1,
        "Metaspace" => 2 * text("replacement").map_or(1, str::len) as u64,
        "Replace" => {
            let content = text("content").map_or(0, str::len) as u64;
            match part.pointer("/pattern/String").and_then(Value::as_str).map_or(0, str::len) as u64 {
                // An expression may match the empty string before each letter.
                0 => content + 1,
                len => content.div_ceil(len).max(1),
            }
        }
        "Precompiled" => text("precompiled_charsmap").map_or(1, longest_replacement),
        "NFKC" | "NFKD" => 12,
        "NFC" | "NFD" | "Lowercase" | "BertNormalizer" | "Nmt" => 3,
        "ByteLevel" if part.get("add_prefix_space") == Some(&Value::Bool(true)) => 4,
        "ByteLevel" => 2,
        _ => 1,
    }
}

/// [`added_tokens`] of a post-processor that writes the text several times.
const REPEATED: u64 = u64::MAX;

/// Maximum number of tokens that a post-processor adds.
fn added_tokens(part: &Value) -> u64 {
    match part.get("type").and_then(Value::as_str).unwrap_or_default() {
        "Sequence" => members(part, "processors").map(added_tokens).fold(0, u64::saturating_add),
        "BertProcessing" => 2,
        "RobertaProcessing" => 4,
        // After another processor the template for pairs may be used for a text.
        _ => ["single", "pair"].map(|form| template(part, form)).into_iter().max().unwrap_or(0),
    }
}

/// The number of tokens that a template adds.
fn template(part: &Value, form: &str) -> u64 {
    let ids = |piece: &Value| {
        let name = piece.pointer("/SpecialToken/id")?.as_str()?;
        Some(part.get("special_tokens")?.get(name)?.get("ids")?.as_array()?.len() as u64)
    };
    for text in ["A", "B"] {
        let is_text = |piece: &&Value| piece.pointer("/Sequence/id").and_then(Value::as_str) == Some(text);
        if members(part, form).filter(is_text).count() > 1 {
            return REPEATED;
        }
    }
    members(part, form).filter_map(ids).fold(0, u64::saturating_add)
}

fn members<'a>(part: &'a Value, field: &str) -> impl Iterator<Item = &'a Value> {
    part.get(field).and_then(Value::as_array).into_iter().flatten()
}

/// Bytes of the longest replacement of a table of characters in base64. The table has the length of its trie in four
/// bytes, the trie, and the replacements, each ended by a zero.
fn longest_replacement(base64: &str) -> u64 {
    let (mut bits, mut table) = (0_u32, Vec::with_capacity(base64.len() / 4 * 3));
    for (at, digit) in base64.bytes().map_while(base64_digit).enumerate() {
        bits = bits << 6 | u32::from(digit);
        if at % 4 > 0 {
            table.push((bits >> (6 - 2 * (at % 4))) as u8);
        }
    }
    let Some((trie, texts)) = table.split_first_chunk::<4>() else { return 1 };
    let texts = texts.get(u32::from_le_bytes(*trie) as usize..).unwrap_or_default();
    texts.split(|byte| *byte == 0).map(|text| text.len() as u64).max().unwrap_or(1).max(1)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn growth_of_normalizers() {
        let replace = |pattern: &str, content: String| {
            let pattern = json!({ "String": pattern });
            json!({"type": "Replace", "pattern": pattern, "content": content})
        };
        assert_eq!(growth(&Value::Null), 1);
        assert_eq!(growth(&replace(" ", "▁".to_string())), 3);
        assert_eq!(growth(&replace("``", "\"".to_string())), 1);
        assert_eq!(growth(&replace("a", "a".repeat(10_000))), 10_000);
        assert_eq!(growth(&json!({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})), 2);
        let seven = vec![replace("a", "a".repeat(10)); 7];
        assert_eq!(growth(&json!({"type": "Sequence", "normalizers": seven})), 10_000_000);
        assert_eq!(growth(&json!({"type": "Prepend", "prepend": "▁"})), 4);
        assert_eq!(growth(&json!({"type": "Prepend", "prepend": "a".repeat(1000)})), 1001);
    }

    #[test]
    fn growth_of_pre_tokenizers() {
        let bytes = |space: bool| json!({"type": "ByteLevel", "add_prefix_space": space, "use_regex": false});
        let cut = json!({"type": "Split", "pattern": {"Regex": "x"}, "behavior": "Isolated", "invert": false});
        let metaspace = json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true});
        assert_eq!((growth(&bytes(false)), growth(&bytes(true)), growth(&metaspace)), (2, 4, 6));
        assert_eq!(growth(&json!({"type": "Sequence", "pretokenizers": [cut, bytes(false)]})), 2);
        assert_eq!(growth(&json!({"type": "Sequence", "pretokenizers": vec![bytes(false); 30]})), 1 << 30);
    }

    #[test]
    fn growth_of_a_table_of_characters() {
        // A trie of four bytes, and the texts "abc" and "d".
        let bytes = [4, 0, 0, 0, 9, 9, 9, 9, b'a', b'b', b'c', 0, b'd', 0, 0];
        let digits = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let base64: String = bytes
            .chunks(3)
            .flat_map(|three| {
                let bits = three.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte));
                [18, 12, 6, 0].map(|shift| char::from(digits[(bits >> shift & 63) as usize]))
            })
            .collect();
        assert_eq!(longest_replacement(&base64), 3);
        assert_eq!((longest_replacement(""), longest_replacement("AAAA"), longest_replacement("/////w==")), (1, 1, 1));
    }

    #[test]
    fn tokens_added_by_post_processors() {
        let template = |count: usize| {
            json!({"type": "TemplateProcessing",
                "single": vec![json!({"SpecialToken": {"id": "x", "type_id": 0}}); count],
                "special_tokens": {"x": {"id": "x", "ids": vec![0; 100], "tokens": []}}})
        };
        assert_eq!(
            (added_tokens(&Value::Null), added_tokens(&template(2)), added_tokens(&template(500))),
            (0, 200, 50_000)
        );
        assert_eq!(added_tokens(&json!({"type": "Sequence", "processors": [template(1), template(2)]})), 300);
        let piece = |id: &str| json!({"Sequence": {"id": id, "type_id": 0}});
        let pair = json!({"type": "TemplateProcessing", "single": [piece("A")], "pair": [piece("A"), piece("B")]});
        assert_eq!(added_tokens(&pair), 0);
        for form in ["single", "pair"] {
            let repeated = json!({"type": "TemplateProcessing", form: [piece("A"), piece("A")]});
            assert_eq!(added_tokens(&json!({"type": "Sequence", "processors": [repeated]})), REPEATED);
        }
    }
}
