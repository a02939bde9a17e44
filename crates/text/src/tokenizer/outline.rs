//! What a `tokenizer.json` would have the library build, looked at before the library sees it.
//!
//! The library builds whatever a file says: it normalizes added tokens and makes an automaton of them, compiles
//! expressions, and makes a tree of the pieces of a Unigram model, one level for each byte, all of it before anything
//! built could be looked at. So the parts of a file are read here first, as far as they are needed: how many there
//! are, how long their expressions, added tokens and pieces are, and what they make of a byte ([`growth`]). A file of
//! nine megabytes is gone through in some ten milliseconds. Left out: numbers of tokens and tables of characters
//! ([`super::guard`]), and what is known only of the tokenizer that was built ([`growth::check`]).

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;
use std::time::{Duration, Instant};

use serde::de::{DeserializeOwned, DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use tokenizers::{AddedToken, NormalizedString, Normalizer, NormalizerWrapper, PreTokenizerWrapper};

use super::growth;
use super::guard::guarded;
use crate::TextError;

/// Bytes of an added token, also as it is normalized. Real ones have some tens.
const ADDED_BYTES_MAX: u64 = 512;
/// Bytes of all added tokens as they are normalized.
const ALL_ADDED_BYTES_MAX: u64 = 16 << 20;
/// Added tokens. Models that write speech or pictures have up to 70 000.
const ADDED_MAX: usize = 1 << 18;
/// Normalizing added tokens may take so long. It takes some milliseconds.
const ADDED_TIME_MAX: Duration = Duration::from_secs(5);
/// Normalizers, pre-tokenizers, post-processors or decoders in a row. Known files have up to ten.
const PARTS_MAX: usize = 64;
/// Bytes of all expressions and texts of such a row, its table of characters aside. Known files have up to two
/// thousand. An expression may become a tree that is a third as deep as it is long, and each level is a call.
const WORDS_BYTES_MAX: usize = 8 << 10;
/// Bytes of a piece of a Unigram model, whose tree is one level deep for each. Known ones have up to 48.
const PIECE_BYTES_MAX: usize = 256;
/// Different beginnings of pieces, each of which is a node of some 350 bytes. The largest known vocabularies have some
/// four million.
const NODES_MAX: usize = 6 << 20;

/// A file as far as it is looked at. Of a name that stands in it twice the library takes one or the other, or takes
/// the object for something else, so it is refused.
#[derive(Deserialize)]
struct Outline<'a> {
    #[serde(default, deserialize_with = "or_nothing")]
    added_tokens: Vec<Added>,
    #[serde(borrow, default)]
    normalizer: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pre_tokenizer: Option<&'a RawValue>,
    #[serde(borrow, default)]
    post_processor: Option<&'a RawValue>,
    #[serde(borrow, default)]
    decoder: Option<&'a RawValue>,
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
    #[serde(borrow, default)]
    vocab: Pieces<'a>,
    #[serde(borrow, default)]
    merges: Option<&'a RawValue>,
}

/// The pieces of a list of pairs; of a map nothing.
#[derive(Default)]
struct Pieces<'a>(Vec<Cow<'a, str>>);

/// Refuses what the library would build without measure.
pub(super) fn check(place: &str, tokenizer_json: &[u8]) -> Result<(), TextError> {
    let outline = guarded(|| Ok(serde_json::from_slice::<Outline>(tokenizer_json)?));
    let outline = outline.map_err(|error| TextError::format(place, "a tokenizer", error))?;
    let rows = [
        ("normalizer", outline.normalizer),
        ("pre_tokenizer", outline.pre_tokenizer),
        ("post_processor", outline.post_processor),
        ("decoder", outline.decoder),
    ];
    for (field, row) in rows {
        let Row { parts, words } = read(place, row)?.unwrap_or_default();
        if parts > PARTS_MAX {
            return Err(TextError::field(place, field, format!("at most {PARTS_MAX} parts"), parts));
        }
        if words > WORDS_BYTES_MAX && field != "post_processor" {
            let expected = format!("at most {WORDS_BYTES_MAX} bytes of expressions and texts");
            return Err(TextError::field(place, field, expected, words));
        }
    }
    check_pieces(place, "model.vocab", outline.model.vocab.0.iter().map(Cow::as_ref).collect())?;
    if outline.model.dropout.is_some_and(|dropout| dropout != 0.0) {
        return Err(TextError::field(place, "model.dropout", "none: texts would be tokens by chance", "one"));
    }
    check_merges(place, &outline.model)?;
    let normalizer: Option<NormalizerWrapper> = read(place, outline.normalizer)?;
    let pre_tokenizer: Option<PreTokenizerWrapper> = read(place, outline.pre_tokenizer)?;
    growth::check_text(place, normalizer.as_ref(), pre_tokenizer.as_ref())?;
    let added = outline.added_tokens.into_iter().map(|Added { content, normalized, lstrip, rstrip }| {
        AddedToken::from(content, false).normalized(normalized).lstrip(lstrip).rstrip(rstrip)
    });
    check_added(place, normalizer.as_ref(), &added.collect::<Vec<_>>())
}

/// Reads a part of a file, if it is there, as the library would.
fn read<T: DeserializeOwned>(place: &str, part: Option<&RawValue>) -> Result<Option<T>, TextError> {
    let read = |part: &RawValue| guarded(|| Ok(serde_json::from_str(part.get())?));
    part.map(read).transpose().map(Option::flatten).map_err(|error| refused(place, error))
}

fn refused(place: &str, found: impl fmt::Display) -> TextError {
    TextError::format(place, "a tokenizer", found)
}

/// Refuses added tokens that are long, and those that take the white space beside them and begin or end with it: of a
/// run of n spaces the library would cut n pieces, each to the end of the run, or look back over it n times.
pub(super) fn check_added(
    place: &str,
    normalizer: Option<&NormalizerWrapper>,
    tokens: &[AddedToken],
) -> Result<(), TextError> {
    if tokens.len() > ADDED_MAX {
        return Err(TextError::field(place, "added_tokens", format!("at most {ADDED_MAX}"), tokens.len()));
    }
    let begun = Instant::now();
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
        if begun.elapsed() > ADDED_TIME_MAX {
            let expected = format!("to be normalized in {} s", ADDED_TIME_MAX.as_secs());
            return Err(TextError::field(place, "added_tokens", expected, "that it takes longer"));
        }
        let mut spelling = NormalizedString::from(token.content.as_str());
        if let (true, Some(normalizer)) = (token.normalized, normalizer) {
            guarded(|| normalizer.normalize(&mut spelling)).map_err(|error| refused(place, error))?;
        }
        let spelling = spelling.get();
        if spelling.len() as u64 > ADDED_BYTES_MAX {
            return Err(wrong(format!("at most {ADDED_BYTES_MAX} bytes when it is normalized"), &spelling.len()));
        }
        all += spelling.len() as u64;
        let takes_itself = token.rstrip && spelling.starts_with(char::is_whitespace)
            || token.lstrip && spelling.ends_with(char::is_whitespace);
        if takes_itself {
            return Err(wrong("no white space in it where it takes that beside it".to_string(), &"some"));
        }
    }
    if all > ALL_ADDED_BYTES_MAX {
        let expected = format!("at most {ALL_ADDED_BYTES_MAX} bytes of added tokens when they are normalized");
        return Err(TextError::field(place, "added_tokens", expected, all));
    }
    Ok(())
}

/// Refuses pieces of a Unigram model that are long, or have too many beginnings.
pub(super) fn check_pieces(place: &str, field: &str, mut pieces: Vec<&str>) -> Result<(), TextError> {
    let longest = pieces.iter().map(|piece| piece.len()).max().unwrap_or(0);
    if longest > PIECE_BYTES_MAX {
        return Err(TextError::field(place, field, format!("pieces of at most {PIECE_BYTES_MAX} bytes"), longest));
    }
    if pieces.iter().map(|piece| piece.len()).sum::<usize>() <= NODES_MAX {
        return Ok(());
    }
    pieces.sort_unstable();
    let new = |pair: &[&str]| pair[1].len() - pair[0].bytes().zip(pair[1].bytes()).take_while(|(a, b)| a == b).count();
    let nodes = pieces[0].len() + pieces.windows(2).map(new).sum::<usize>();
    if nodes > NODES_MAX {
        let expected = format!("pieces with at most {NODES_MAX} different beginnings");
        return Err(TextError::field(place, field, expected, nodes));
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
    let is_version = |merge: &&Merge| matches!(merge, Merge::Line(line) if line.starts_with("#version"));
    let merges = merges.iter().filter(|merge| !is_version(merge));
    match merges.map(right).find(|right| !right.starts_with(prefix.as_str())) {
        None => Ok(()),
        Some(found) => {
            let expected = format!("second parts that begin with continuing_subword_prefix ({prefix:?})");
            Err(TextError::field(place, "model.merges", expected, format!("{found:?}")))
        }
    }
}

/// What is counted of a row of parts.
#[derive(Default)]
struct Row {
    /// Parts, those of rows within it and the row itself included.
    parts: usize,
    /// Bytes of all texts, tables of characters aside.
    words: usize,
}

impl<'de> Deserialize<'de> for Row {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut row = Row { parts: 1, words: 0 };
        Count { row: &mut row, are_parts: false }.deserialize(deserializer)?;
        Ok(row)
    }
}

/// Counts a value, and refuses names that stand in an object twice.
struct Count<'row> {
    row: &'row mut Row,
    /// Whether the items of this list are parts.
    are_parts: bool,
}

impl<'de> DeserializeSeed<'de> for Count<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Count<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, text: &str) -> Result<(), E> {
        self.row.words += text.len();
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while list.next_element_seed(Count { row: &mut *self.row, are_parts: false })?.is_some() {
            self.row.parts += usize::from(self.are_parts);
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut names = HashSet::new();
        while let Some(name) = map.next_key::<String>()? {
            match name.as_str() {
                "precompiled_charsmap" => drop(map.next_value::<IgnoredAny>()?),
                name => {
                    let are_parts = ["normalizers", "pretokenizers", "processors", "decoders"].contains(&name);
                    map.next_value_seed(Count { row: &mut *self.row, are_parts })?;
                }
            }
            if names.contains(&name) {
                return Err(serde::de::Error::custom(format_args!("expected {name:?} once, found it twice")));
            }
            names.insert(name);
        }
        Ok(())
    }
}

fn or_nothing<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Added>, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

impl<'de: 'a, 'a> Deserialize<'de> for Pieces<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Piece<'a>(#[serde(borrow)] Cow<'a, str>, IgnoredAny);
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Pieces<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a vocabulary")
            }

            fn visit_unit<E>(self) -> Result<Pieces<'de>, E> {
                Ok(Pieces::default())
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pieces<'de>, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Pieces::default())
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Pieces<'de>, A::Error> {
                let mut pieces = Vec::new();
                while let Some(Piece(piece, _)) = list.next_element()? {
                    pieces.push(piece);
                }
                Ok(Pieces(pieces))
            }
        }
        deserializer.deserialize_any(Reader)
    }
}
