//! Limits on what a `tokenizer.json` makes the library build, checked before the library reads it.
//!
//! The library builds whatever a file says: it normalizes added tokens and makes an automaton of them, compiles
//! expressions, and makes a trie of the pieces of a Unigram model, one level for each byte, all of it before the result
//! can be inspected. So this file first counts the components, measures their expressions, added tokens and pieces, and
//! bounds how much longer they make a text ([`growth`]). A file of nine megabytes takes some ten milliseconds. Token
//! ids and tables of characters are checked in [`super::guard`], properties of the built tokenizer in
//! [`growth::check`].

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

/// Maximum number of bytes of an added token, before and after it is normalized. Real ones have some tens.
const ADDED_BYTES_MAX: u64 = 512;
/// Maximum number of bytes of all added tokens when they are normalized.
const ALL_ADDED_BYTES_MAX: u64 = 16 << 20;
/// Maximum number of added tokens. Models that generate speech or images have up to 70 000.
const ADDED_MAX: usize = 1 << 18;
/// Longest time for normalizing added tokens. It usually takes some milliseconds.
const ADDED_TIME_MAX: Duration = Duration::from_secs(5);
/// Maximum number of normalizers, pre-tokenizers, post-processors or decoders of a file. Known files have up to ten.
const COMPONENTS_MAX: usize = 64;
/// Maximum number of bytes of all expressions and texts of such components, tables of characters aside. Known files
/// have up to two thousand. An expression may become a tree that is a third as deep as it is long, and each level is a
/// call.
const TEXT_BYTES_MAX: usize = 8 << 10;
/// Maximum number of bytes of a piece of a Unigram model, whose trie has a level for each. Known ones have up to 48.
const PIECE_BYTES_MAX: usize = 256;
/// Maximum number of distinct prefixes of pieces, each of which is a trie node of some 350 bytes. The largest known
/// vocabularies have some four million.
const NODES_MAX: usize = 6 << 20;

/// The fields of a file that are checked. A field name that occurs twice is refused: the library would use either
/// value, or take the object for another component.
#[derive(Deserialize)]
struct TokenizerFile<'a> {
    #[serde(default, deserialize_with = "null_as_empty")]
    added_tokens: Vec<AddedTokenFields>,
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
struct AddedTokenFields {
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

/// The pieces of a vocabulary that is a list of pairs (Unigram); empty for a map.
#[derive(Default)]
struct Pieces<'a>(Vec<Cow<'a, str>>);

/// Refuses a file for which the library would build structures without bound.
pub(super) fn check(place: &str, tokenizer_json: &[u8]) -> Result<(), TextError> {
    let file = guarded(|| Ok(serde_json::from_slice::<TokenizerFile>(tokenizer_json)?));
    let file = file.map_err(|error| TextError::format(place, "a tokenizer", error))?;
    let fields = [
        ("normalizer", file.normalizer),
        ("pre_tokenizer", file.pre_tokenizer),
        ("post_processor", file.post_processor),
        ("decoder", file.decoder),
    ];
    for (field, component) in fields {
        let ComponentCounts { components, text_bytes } = read_component(place, component)?.unwrap_or_default();
        if components > COMPONENTS_MAX {
            return Err(TextError::field(place, field, format!("at most {COMPONENTS_MAX} parts"), components));
        }
        if text_bytes > TEXT_BYTES_MAX && field != "post_processor" {
            let expected = format!("at most {TEXT_BYTES_MAX} bytes of expressions and texts");
            return Err(TextError::field(place, field, expected, text_bytes));
        }
    }
    check_pieces(place, "model.vocab", file.model.vocab.0.iter().map(Cow::as_ref).collect())?;
    if file.model.dropout.is_some_and(|dropout| dropout != 0.0) {
        return Err(TextError::field(place, "model.dropout", "none: texts would be tokens by chance", "one"));
    }
    check_merges(place, &file.model)?;
    let normalizer: Option<NormalizerWrapper> = read_component(place, file.normalizer)?;
    let pre_tokenizer: Option<PreTokenizerWrapper> = read_component(place, file.pre_tokenizer)?;
    growth::check_text(place, normalizer.as_ref(), pre_tokenizer.as_ref())?;
    let added = file.added_tokens.into_iter().map(|AddedTokenFields { content, normalized, lstrip, rstrip }| {
        AddedToken::from(content, false).normalized(normalized).lstrip(lstrip).rstrip(rstrip)
    });
    check_added(place, normalizer.as_ref(), &added.collect::<Vec<_>>())
}

/// Reads an optional component of a file as the library would.
fn read_component<T: DeserializeOwned>(place: &str, part: Option<&RawValue>) -> Result<Option<T>, TextError> {
    let read = |part: &RawValue| guarded(|| Ok(serde_json::from_str(part.get())?));
    part.map(read).transpose().map(Option::flatten).map_err(|error| refused(place, error))
}

fn refused(place: &str, found: impl fmt::Display) -> TextError {
    TextError::format(place, "a tokenizer", found)
}

/// Refuses long added tokens, and those that strip white space (`lstrip`, `rstrip`) and begin or end with it: in a run
/// of n spaces the library would find n matches, each to the end of the run, or scan back over it n times.
pub(super) fn check_added(
    place: &str,
    normalizer: Option<&NormalizerWrapper>,
    tokens: &[AddedToken],
) -> Result<(), TextError> {
    if tokens.len() > ADDED_MAX {
        return Err(TextError::field(place, "added_tokens", format!("at most {ADDED_MAX}"), tokens.len()));
    }
    let started = Instant::now();
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
        if started.elapsed() > ADDED_TIME_MAX {
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
        let matches_stripped_space = token.rstrip && spelling.starts_with(char::is_whitespace)
            || token.lstrip && spelling.ends_with(char::is_whitespace);
        if matches_stripped_space {
            return Err(wrong("no white space in it where it takes that beside it".to_string(), &"some"));
        }
    }
    if all > ALL_ADDED_BYTES_MAX {
        let expected = format!("at most {ALL_ADDED_BYTES_MAX} bytes of added tokens when they are normalized");
        return Err(TextError::field(place, "added_tokens", expected, all));
    }
    Ok(())
}

/// Refuses pieces of a Unigram model that are long, or have too many distinct prefixes.
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

/// Refuses merges whose second part lacks `continuing_subword_prefix`: the library removes that many bytes unchecked,
/// even within a character.
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

/// Counts of a component and those within it.
#[derive(Default)]
struct ComponentCounts {
    /// Number of components, itself included.
    components: usize,
    /// Bytes of all texts, tables of characters aside.
    text_bytes: usize,
}

impl<'de> Deserialize<'de> for ComponentCounts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut counts = ComponentCounts { components: 1, text_bytes: 0 };
        ComponentCounter { counts: &mut counts, are_components: false }.deserialize(deserializer)?;
        Ok(counts)
    }
}

/// Counts a value, and refuses names that occur twice in an object.
struct ComponentCounter<'counts> {
    counts: &'counts mut ComponentCounts,
    /// Whether the items of this list are components.
    are_components: bool,
}

impl<'de> DeserializeSeed<'de> for ComponentCounter<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ComponentCounter<'_> {
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
        self.counts.text_bytes += text.len();
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while list.next_element_seed(ComponentCounter { counts: &mut *self.counts, are_components: false })?.is_some() {
            self.counts.components += usize::from(self.are_components);
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut names = HashSet::new();
        while let Some(name) = map.next_key::<String>()? {
            match name.as_str() {
                "precompiled_charsmap" => drop(map.next_value::<IgnoredAny>()?),
                name => {
                    let are_components = ["normalizers", "pretokenizers", "processors", "decoders"].contains(&name);
                    map.next_value_seed(ComponentCounter { counts: &mut *self.counts, are_components })?;
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

fn null_as_empty<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<AddedTokenFields>, D::Error> {
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
