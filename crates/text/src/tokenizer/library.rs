//! The `tokenizers` library as an encoder, with control over which special tokens are matched.
//!
//! The library matches special tokens wherever a text has their spelling, or nowhere. A conversation needs both at
//! once: those of the template are matched, those that a user typed are text ([`Library::encode_with`]).

use std::collections::btree_map::{BTreeMap, Entry};
use std::collections::{HashMap, HashSet};
use std::fmt;

use tokenizers::pattern::Pattern;
use tokenizers::{
    AddedToken, AddedVocabulary, Model, NormalizedString, Normalizer, NormalizerWrapper, OffsetReferential, OffsetType,
    Offsets, PreTokenizer, SplitDelimiterBehavior,
};

use super::growth;
use super::guard::guarded;
use super::special::{SpecialSpan, unused_characters};
use crate::Token;

/// Maximum number of bytes that normalizer and pre-tokenizer may make of a text. Each takes some twenty bytes of memory
/// in the library.
const OUTPUT_BYTES_MAX: u64 = 256 << 20;

/// Bytes of the pieces in which a text is normalized to measure it.
const PIECE_BYTES: usize = 2 << 10;

/// A tokenizer of the `tokenizers` library, with a second added vocabulary that matches no special tokens.
pub(crate) struct Library {
    tokenizer: tokenizers::Tokenizer,
    /// The same added tokens, but the special ones are not matched.
    plain: AddedVocabulary,
    /// Maximum number of bytes that normalizer and pre-tokenizer make of one byte.
    growth: [u64; 2],
    /// Special tokens that the model itself can produce from text: Unigram models list them among their pieces.
    reachable: Vec<(Token, String)>,
}

/// Splits a text inside every occurrence of these spellings, so that none of them can become one token.
struct SplitInside<'a>(Vec<&'a str>);

impl Pattern for SplitInside<'_> {
    fn find_matches(&self, inside: &str) -> tokenizers::Result<Vec<(Offsets, bool)>> {
        let begins = |at: usize| self.0.iter().any(|spelling| inside[at..].starts_with(spelling));
        let inner = inside.char_indices().filter(|&(at, _)| begins(at)).map(|(at, first)| at + first.len_utf8());
        let mut boundaries: Vec<usize> = inner.chain([0, inside.len()]).collect();
        boundaries.sort_unstable();
        boundaries.dedup();
        Ok(boundaries.windows(2).map(|pair| ((pair[0], pair[1]), false)).collect())
    }
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The library's own output contains the whole vocabulary.
        f.debug_struct("Library").field("tokens", &self.tokenizer.get_vocab_size(true)).finish()
    }
}

impl Library {
    pub fn new(tokenizer: tokenizers::Tokenizer) -> Self {
        let mut plain = tokenizer.get_added_vocabulary().clone();
        plain.set_encode_special_tokens(true);
        let special = plain.get_added_tokens_decoder().iter().filter(|(_, token)| token.special);
        let reachable = special
            .filter(|(id, token)| tokenizer.get_model().token_to_id(&token.content) == Some(**id))
            .map(|(id, token)| (*id, token.content.clone()))
            .collect();
        let growth = [
            growth::of_normalizer(tokenizer.get_normalizer()),
            growth::of_pre_tokenizer(tokenizer.get_pre_tokenizer()),
        ];
        Self { tokenizer, plain, growth, reachable }
    }

    pub fn encode(&self, text: &str) -> Result<Vec<Token>, String> {
        guarded(|| self.check(text).and_then(|()| self.encode_all(text)))
    }

    /// Refuses a text that normalizer and pre-tokenizer would make too long. If the upper bound exceeds the limit, the
    /// text is normalized piece by piece and measured.
    fn check(&self, text: &str) -> tokenizers::Result<()> {
        let [normalized, pre_tokenized] = self.growth;
        let output_bytes = |bytes: u64| bytes.saturating_mul(pre_tokenized);
        if output_bytes(normalized.saturating_mul(text.len() as u64)) <= OUTPUT_BYTES_MAX {
            return Ok(());
        }
        // The text between added tokens is normalized separately, which may add a prefix to each segment.
        let added = self.tokenizer.get_added_vocabulary();
        let pieces = added.extract_and_normalize(None::<&NormalizerWrapper>, text);
        let mut bytes = 0;
        for (mut rest, ..) in pieces.get_splits(OffsetReferential::Original, OffsetType::Byte) {
            while !rest.is_empty() {
                let (piece, behind) = rest.split_at(rest.floor_char_boundary(PIECE_BYTES.min(rest.len())));
                rest = behind;
                let mut piece = NormalizedString::from(piece);
                if let Some(normalizer) = self.tokenizer.get_normalizer() {
                    normalizer.normalize(&mut piece)?;
                }
                bytes += piece.get().len() as u64;
                if output_bytes(bytes) > OUTPUT_BYTES_MAX {
                    let most = OUTPUT_BYTES_MAX;
                    return Err(format!("expected a text of which it makes at most {most} bytes, found more").into());
                }
            }
        }
        Ok(())
    }

    fn encode_all(&self, text: &str) -> tokenizers::Result<Vec<Token>> {
        Ok(self.tokenizer.encode_fast(text, false)?.get_ids().to_vec())
    }

    /// Like `encode`, but special tokens written in the text are text.
    pub fn encode_plain(&self, text: &str) -> Result<Vec<Token>, String> {
        guarded(|| self.check(text).and_then(|()| self.encode_added(&self.plain, text)))
    }

    /// The special tokens that `encode` matches in a text, in order. White space that a token strips is in its range.
    ///
    /// Empty if the library fails; encoding the text then returns the error.
    pub fn special_spans(&self, text: &str) -> Vec<SpecialSpan> {
        guarded(|| self.check(text).map(|()| self.specials_of(text))).unwrap_or_default()
    }

    fn specials_of(&self, text: &str) -> Vec<SpecialSpan> {
        let added = self.tokenizer.get_added_vocabulary();
        let pieces = added.extract_and_normalize(self.tokenizer.get_normalizer(), text);
        let splits = pieces.get_splits(OffsetReferential::Original, OffsetType::Byte);
        let span = |(_, (start, end), tokens): (_, Offsets, &Option<Vec<tokenizers::Token>>)| {
            let token = tokens.as_ref()?.first()?.id;
            self.is_special(token).then_some(SpecialSpan { range: start..end, token })
        };
        splits.into_iter().filter_map(span).collect()
    }

    /// Like `encode`, but with special tokens in these places and nowhere else.
    pub fn encode_with(&self, text: &str, special_spans: &[SpecialSpan]) -> Result<Vec<Token>, String> {
        guarded(|| self.check(text).and_then(|()| self.encode_spans(text, special_spans)))
    }

    fn encode_spans(&self, text: &str, special_spans: &[SpecialSpan]) -> tokenizers::Result<Vec<Token>> {
        if self.specials_of(text) == special_spans {
            let tokens = self.encode_all(text)?;
            // If there are more, the model has produced one from text.
            if tokens.iter().filter(|&&token| self.is_special(token)).count() == special_spans.len() {
                return Ok(tokens);
            }
        }
        self.encode_with_placeholders(text, special_spans)
    }

    /// Encodes with placeholders: the library matches tokens by their spelling alone, so each special token is replaced
    /// by a character that the text does not have, and these characters are added tokens.
    fn encode_with_placeholders(&self, text: &str, special_spans: &[SpecialSpan]) -> tokenizers::Result<Vec<Token>> {
        let mut unused = unused_characters(&[text]);
        let mut characters: BTreeMap<Token, String> = BTreeMap::new();
        let (mut replaced, mut end) = (String::with_capacity(text.len()), 0);
        for SpecialSpan { range, token } in special_spans {
            let character = match characters.entry(*token) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => {
                    let character = unused.next().ok_or("the text has every character that there is")?;
                    new.insert(character.to_string())
                }
            };
            replaced.extend([&text[end..range.start], character]);
            end = range.end;
        }
        replaced.push_str(&text[end..]);

        let mut added = self.plain.clone();
        let known = self.plain.get_added_tokens_decoder();
        let placeholder = |(token, character): (&Token, &String)| {
            let added_token = known.get(token)?.clone();
            Some(AddedToken { content: character.clone(), special: false, ..added_token })
        };
        let (model, normalizer) = (self.tokenizer.get_model(), self.tokenizer.get_normalizer());
        added.add_tokens(characters.iter().filter_map(placeholder), model, normalizer)?;
        let original = |(token, character): (&Token, &String)| Some((*added.get_vocab().get(character)?, *token));
        let originals: HashMap<Token, Token> = characters.iter().filter_map(original).collect();
        let mut tokens = self.encode_added(&added, &replaced)?;
        for token in &mut tokens {
            *token = originals.get(token).copied().unwrap_or(*token);
        }
        Ok(tokens)
    }

    fn is_special(&self, token: Token) -> bool {
        self.plain.get_added_tokens_decoder().get(&token).is_some_and(|token| token.special)
    }

    /// Encodes a text with these added tokens, and without special tokens that the model produces from text.
    fn encode_added(&self, added: &AddedVocabulary, text: &str) -> tokenizers::Result<Vec<Token>> {
        let tokens = self.encode_split(added, text, &SplitInside(Vec::new()))?;
        let produced: HashSet<Token> = match self.reachable.is_empty() {
            true => return Ok(tokens),
            false => tokens.iter().copied().collect(),
        };
        if !self.reachable.iter().any(|(token, _)| produced.contains(token)) {
            return Ok(tokens);
        }
        let spellings = self.reachable.iter().map(|(_, spelling)| spelling.as_str()).collect();
        self.encode_split(added, text, &SplitInside(spellings))
    }

    /// The library's own steps with other added tokens.
    fn encode_split(
        &self,
        added: &AddedVocabulary,
        text: &str,
        splits_inside: &SplitInside<'_>,
    ) -> tokenizers::Result<Vec<Token>> {
        let mut pieces = added.extract_and_normalize(self.tokenizer.get_normalizer(), text);
        if let Some(pre_tokenizer) = self.tokenizer.get_pre_tokenizer() {
            pre_tokenizer.pre_tokenize(&mut pieces)?;
        }
        if !splits_inside.0.is_empty() {
            pieces.split(|_, piece| {
                piece.split(SplitInside(splits_inside.0.clone()), SplitDelimiterBehavior::Isolated)
            })?;
        }
        pieces.tokenize(|piece| self.tokenizer.get_model().tokenize(piece.get()))?;
        Ok(pieces.into_encoding(None, 0, OffsetType::None)?.get_ids().to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_occurrence_is_split() {
        let pieces = |text: &str, spellings: &[&'static str]| {
            let matches = SplitInside(spellings.to_vec()).find_matches(text).unwrap();
            matches.into_iter().map(|((start, end), _)| text[start..end].to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(pieces("x<a>y", &["<a>"]), ["x<", "a>y"]);
        assert_eq!(pieces("aaa", &["aa"]), ["a", "a", "a"]);
        assert_eq!(pieces("äb", &["ä"]), ["ä", "b"]);
        assert_eq!(pieces("", &["a"]), [""; 0]);
    }
}
