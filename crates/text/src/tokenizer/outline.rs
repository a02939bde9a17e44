//! What a `tokenizer.json` would have the library build, looked at before the library sees it.
//!
//! The library builds whatever a file says: it normalizes added tokens and makes an automaton of them, compiles
//! expressions, and makes a tree of the pieces of a Unigram model, one level for each byte, all of it before anything
//! built could be looked at. So the parts of a file are read here first, as far as they are needed: how many there
//! are, how long their expressions, added tokens and pieces are, and what they make of a byte ([`growth`]). A file of
//! nine megabytes is gone through in some ten milliseconds. Left out: numbers of tokens and tables of characters
//! ([`super::guard`]), and what is known only of the tokenizer that was built ([`growth::check`]).

use std::borrow::Cow;
use std::fmt;

use serde::de::{IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_json::value::RawValue;
use tokenizers::{AddedToken, NormalizedString, Normalizer, NormalizerWrapper, PreTokenizerWrapper};

use super::growth;
use super::guard::guarded;
use crate::TextError;

/// Bytes of an added token, also as it is normalized. Real ones have some tens.
const ADDED_BYTES_MAX: u64 = 512;
/// Bytes of all added tokens, each as long as it may be normalized.
const ALL_ADDED_BYTES_MAX: u64 = 16 << 20;
/// Added tokens, each of which may be looked for at every letter of a text. The largest known vocabularies have 6000.
const ADDED_MAX: usize = 1 << 15;
/// Normalizers, pre-tokenizers, post-processors or decoders in a row. Known files have up to ten.
const PARTS_MAX: usize = 64;
/// Bytes of all expressions and texts of such a row, its table of characters aside. Known files have up to two
/// thousand. An expression may become a tree that is a third as deep as it is long, and each level is a call.
const WORDS_BYTES_MAX: usize = 8 << 10;
/// Bytes of a piece of a Unigram model, whose tree is one level deep for each. Known ones have up to 48.
const PIECE_BYTES_MAX: usize = 256;
/// Bytes of all pieces, each of which may be a node of some 350 bytes. Known vocabularies have 3 MB.
const PIECES_BYTES_MAX: usize = 16 << 20;

/// A file as far as it is looked at. Of a name that stands in it twice the library takes one or the other, so it is
/// refused.
#[derive(Deserialize)]
struct Outline<'a> {
    #[serde(default, deserialize_with = "or_nothing")]
    added_tokens: Vec<Added>,
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    post_processor: Value,
    #[serde(default)]
    decoder: Value,
    #[serde(borrow)]
    model: Model<'a>,
}

#[derive(Deserialize)]
struct Added {
    content: String,
    #[serde(default)]
    normalized: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
}

#[derive(Deserialize)]
struct Model<'a> {
    #[serde(default)]
    dropout: Option<f64>,
    #[serde(default)]
    continuing_subword_prefix: Option<String>,
    #[serde(default)]
    vocab: Pieces,
    #[serde(borrow, default)]
    merges: Option<&'a RawValue>,
}

/// How long the pieces of a list of pairs are; of a map nothing.
#[derive(Default)]
struct Pieces {
    longest: usize,
    all: usize,
}

/// Refuses what the library would build without measure.
pub(super) fn check(place: &str, tokenizer_json: &[u8]) -> Result<(), TextError> {
    let outline = guarded(|| Ok(serde_json::from_slice::<Outline>(tokenizer_json)?));
    let outline = outline.map_err(|error| TextError::format(place, "a tokenizer", error))?;
    let rows = [
        ("normalizer", &outline.normalizer),
        ("pre_tokenizer", &outline.pre_tokenizer),
        ("post_processor", &outline.post_processor),
        ("decoder", &outline.decoder),
    ];
    for (field, row) in rows {
        let found = parts(row);
        if found > PARTS_MAX {
            return Err(TextError::field(place, field, format!("at most {PARTS_MAX} parts"), found));
        }
        let found = words(row);
        if found > WORDS_BYTES_MAX && field != "post_processor" {
            let expected = format!("at most {WORDS_BYTES_MAX} bytes of expressions and texts");
            return Err(TextError::field(place, field, expected, found));
        }
    }
    check_pieces(place, "model.vocab", outline.model.vocab.longest, outline.model.vocab.all)?;
    if outline.model.dropout.is_some_and(|dropout| dropout != 0.0) {
        return Err(TextError::field(place, "model.dropout", "none: texts would be tokens by chance", "one"));
    }
    check_merges(place, &outline.model)?;
    let normalizer: Option<NormalizerWrapper> =
        guarded(|| Ok(serde_json::from_value(outline.normalizer)?)).map_err(|error| refused(place, error))?;
    let pre_tokenizer: Option<PreTokenizerWrapper> =
        guarded(|| Ok(serde_json::from_value(outline.pre_tokenizer)?)).map_err(|error| refused(place, error))?;
    growth::check_text(place, normalizer.as_ref(), pre_tokenizer.as_ref())?;
    let added = outline.added_tokens.into_iter().map(|Added { content, normalized, lstrip, rstrip }| {
        AddedToken::from(content, false).normalized(normalized).lstrip(lstrip).rstrip(rstrip)
    });
    check_added(place, normalizer.as_ref(), &added.collect::<Vec<_>>())
}

fn refused(place: &str, found: impl fmt::Display) -> TextError {
    TextError::format(place, "a tokenizer", found)
}

/// Refuses added tokens that are long, and those that take the white space beside them and begin or end with it: of a
/// run of n spaces the library would cut n pieces, each to the end of the run.
pub(super) fn check_added(
    place: &str,
    normalizer: Option<&NormalizerWrapper>,
    tokens: &[AddedToken],
) -> Result<(), TextError> {
    if tokens.len() > ADDED_MAX {
        return Err(TextError::field(place, "added_tokens", format!("at most {ADDED_MAX}"), tokens.len()));
    }
    let growth = growth::of_normalizer(normalizer);
    let mut all = 0;
    for token in tokens {
        let wrong = |expected: String, found: &dyn fmt::Display| {
            let name: String = token.content.chars().take(40).collect();
            TextError::field(place, format!("added token {name:?}"), expected, found)
        };
        let len = token.content.len() as u64;
        if len > ADDED_BYTES_MAX {
            return Err(wrong(format!("at most {ADDED_BYTES_MAX} bytes"), &len));
        }
        all += if token.normalized { len * growth } else { len };
        let mut spelling = NormalizedString::from(token.content.as_str());
        if let (true, Some(normalizer)) = (token.normalized, normalizer) {
            guarded(|| normalizer.normalize(&mut spelling)).map_err(|error| refused(place, error))?;
        }
        let spelling = spelling.get();
        if spelling.len() as u64 > ADDED_BYTES_MAX {
            return Err(wrong(format!("at most {ADDED_BYTES_MAX} bytes when it is normalized"), &spelling.len()));
        }
        let takes_itself = |text: &str| {
            token.rstrip && text.starts_with(char::is_whitespace) || token.lstrip && text.ends_with(char::is_whitespace)
        };
        if takes_itself(spelling) || takes_itself(&token.content) {
            return Err(wrong("no white space in it where it takes that beside it".to_string(), &"some"));
        }
    }
    if all > ALL_ADDED_BYTES_MAX {
        let expected = format!("at most {ALL_ADDED_BYTES_MAX} bytes of added tokens when they are normalized");
        return Err(TextError::field(place, "added_tokens", expected, all));
    }
    Ok(())
}

/// Refuses pieces of a Unigram model that are long.
pub(super) fn check_pieces(place: &str, field: &str, longest: usize, all: usize) -> Result<(), TextError> {
    if longest > PIECE_BYTES_MAX {
        return Err(TextError::field(place, field, format!("pieces of at most {PIECE_BYTES_MAX} bytes"), longest));
    }
    if all > PIECES_BYTES_MAX {
        return Err(TextError::field(place, field, format!("at most {PIECES_BYTES_MAX} bytes of pieces"), all));
    }
    Ok(())
}

/// Refuses merges that do not have the prefix of all pieces but the first: the library cuts it off without a look, in
/// the middle of a letter for instance.
fn check_merges(place: &str, model: &Model<'_>) -> Result<(), TextError> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Merge {
        Pair((String, String)),
        Line(String),
    }
    let (Some(prefix), Some(merges)) = (&model.continuing_subword_prefix, model.merges) else { return Ok(()) };
    if prefix.is_empty() {
        return Ok(());
    }
    let merges: Vec<Merge> = serde_json::from_str(merges.get()).map_err(|error| refused(place, error))?;
    let right = |merge: &Merge| match merge {
        Merge::Pair((_, right)) => right.clone(),
        Merge::Line(line) => line.rsplit(' ').next().unwrap_or_default().to_string(),
    };
    match merges.iter().map(right).find(|right| !right.starts_with(prefix.as_str())) {
        None => Ok(()),
        Some(found) => {
            let expected = format!("second parts that begin with continuing_subword_prefix ({prefix:?})");
            Err(TextError::field(place, "model.merges", expected, format!("{found:?}")))
        }
    }
}

/// Parts of a row, rows within it included.
fn parts(row: &Value) -> usize {
    let members = ["normalizers", "pretokenizers", "processors", "decoders"];
    let members = members.iter().filter_map(|name| row.get(name)?.as_array()).flatten();
    1 + members.map(parts).sum::<usize>()
}

/// Bytes of all texts in a value, tables of characters aside.
fn words(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(words).sum(),
        Value::Object(fields) => {
            fields.iter().filter(|(name, _)| *name != "precompiled_charsmap").map(|(_, value)| words(value)).sum()
        }
        _ => 0,
    }
}

fn or_nothing<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Added>, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

impl<'de> Deserialize<'de> for Pieces {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Piece<'a>(#[serde(borrow)] Cow<'a, str>, IgnoredAny);
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Pieces;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a vocabulary")
            }

            fn visit_unit<E>(self) -> Result<Pieces, E> {
                Ok(Pieces::default())
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pieces, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Pieces::default())
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Pieces, A::Error> {
                let mut pieces = Pieces::default();
                while let Some(Piece(piece, _)) = list.next_element()? {
                    pieces.longest = pieces.longest.max(piece.len());
                    pieces.all += piece.len();
                }
                Ok(pieces)
            }
        }
        deserializer.deserialize_any(Reader)
    }
}
