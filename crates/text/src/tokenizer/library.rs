//! The `tokenizers` library as an encoder, with a say in which special tokens are read.
//!
//! The library reads special tokens wherever a text spells them, or nowhere. A conversation needs both at once: the
//! template's are read, a user's are text ([`Library::encode_with`]).
//!
//! Left out: loading, which is [`super::folder`]'s and the GGUF files'; truncation and padding.

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

/// Bytes that normalizer and pre-tokenizer may make of a text. Each takes some twenty in the library.
const MADE_BYTES_MAX: u64 = 256 << 20;

/// A text is normalized in pieces of so many bytes where it is only measured.
const PIECE_BYTES: usize = 2 << 10;

/// A tokenizer of the `tokenizers` library, twice as far as special tokens go.
pub(crate) struct Library {
    tokenizer: tokenizers::Tokenizer,
    /// The same added tokens, but the special ones are not looked for.
    plain: AddedVocabulary,
    /// Bytes that normalizer and pre-tokenizer make of one, at most.
    growth: [u64; 2],
    /// Special tokens that the model itself could make out of text: Unigram models list them among their pieces.
    reachable: Vec<(Token, String)>,
}

/// Cuts a text inside every occurrence of these spellings, so that none of them can become one token.
struct Apart<'a>(Vec<&'a str>);

impl Pattern for Apart<'_> {
    fn find_matches(&self, inside: &str) -> tokenizers::Result<Vec<(Offsets, bool)>> {
        let begins = |at: usize| self.0.iter().any(|spelling| inside[at..].starts_with(spelling));
        let inner = inside.char_indices().filter(|&(at, _)| begins(at)).map(|(at, first)| at + first.len_utf8());
        let mut cuts: Vec<usize> = inner.chain([0, inside.len()]).collect();
        cuts.sort_unstable();
        cuts.dedup();
        Ok(cuts.windows(2).map(|pair| ((pair[0], pair[1]), false)).collect())
    }
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The library's own output is the whole vocabulary.
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

    /// Refuses a text of which too much would be made. What could be is known beforehand; where that is much, the text
    /// is normalized piece by piece, and what comes out is counted.
    fn check(&self, text: &str) -> tokenizers::Result<()> {
        let [normalized, cut] = self.growth;
        let made = |bytes: u64| bytes.saturating_mul(cut);
        if made(normalized.saturating_mul(text.len() as u64)) <= MADE_BYTES_MAX {
            return Ok(());
        }
        // Between added tokens each piece is normalized for itself, which may write something before each.
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
                if made(bytes) > MADE_BYTES_MAX {
                    let most = MADE_BYTES_MAX;
                    return Err(format!("expected a text of which it makes at most {most} bytes, found more").into());
                }
            }
        }
        Ok(())
    }

    fn encode_all(&self, text: &str) -> tokenizers::Result<Vec<Token>> {
        Ok(self.tokenizer.encode_fast(text, false)?.get_ids().to_vec())
    }

    /// As `encode`, but special tokens spelt in the text are text.
    pub fn encode_plain(&self, text: &str) -> Result<Vec<Token>, String> {
        guarded(|| self.check(text).and_then(|()| self.encode_reading(&self.plain, text)))
    }

    /// Where `encode` reads special tokens, in the order of the text. A token that takes the white space around it
    /// has that in its range.
    ///
    /// None where the library fails: encoding, which reads the text in the same way, says so.
    pub fn specials(&self, text: &str) -> Vec<SpecialSpan> {
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

    /// As `encode`, but with special tokens in these places and nowhere else.
    pub fn encode_with(&self, text: &str, specials: &[SpecialSpan]) -> Result<Vec<Token>, String> {
        guarded(|| self.check(text).and_then(|()| self.encode_those(text, specials)))
    }

    fn encode_those(&self, text: &str, specials: &[SpecialSpan]) -> tokenizers::Result<Vec<Token>> {
        if self.specials_of(text) == specials {
            let tokens = self.encode_all(text)?;
            // More of them than were found: the model has made one out of text.
            if tokens.iter().filter(|&&token| self.is_special(token)).count() == specials.len() {
                return Ok(tokens);
            }
        }
        self.encode_stood_in(text, specials)
    }

    /// The library looks for tokens by their spelling alone. So each special token is written as a character that the
    /// text does not have, and these characters are looked for as the special tokens would be.
    fn encode_stood_in(&self, text: &str, specials: &[SpecialSpan]) -> tokenizers::Result<Vec<Token>> {
        let mut unused = unused_characters(&[text]);
        let mut characters: BTreeMap<Token, String> = BTreeMap::new();
        let (mut stood_in, mut end) = (String::with_capacity(text.len()), 0);
        for SpecialSpan { range, token } in specials {
            let character = match characters.entry(*token) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => {
                    let character = unused.next().ok_or("the text has every character that there is")?;
                    new.insert(character.to_string())
                }
            };
            stood_in.extend([&text[end..range.start], character]);
            end = range.end;
        }
        stood_in.push_str(&text[end..]);

        let mut added = self.plain.clone();
        let known = self.plain.get_added_tokens_decoder();
        let stand_in = |(token, character): (&Token, &String)| {
            let like = known.get(token)?.clone();
            Some(AddedToken { content: character.clone(), special: false, ..like })
        };
        let (model, normalizer) = (self.tokenizer.get_model(), self.tokenizer.get_normalizer());
        added.add_tokens(characters.iter().filter_map(stand_in), model, normalizer)?;
        let meaning = |(token, character): (&Token, &String)| Some((*added.get_vocab().get(character)?, *token));
        let meanings: HashMap<Token, Token> = characters.iter().filter_map(meaning).collect();
        let mut tokens = self.encode_reading(&added, &stood_in)?;
        for token in &mut tokens {
            *token = meanings.get(token).copied().unwrap_or(*token);
        }
        Ok(tokens)
    }

    fn is_special(&self, token: Token) -> bool {
        self.plain.get_added_tokens_decoder().get(&token).is_some_and(|token| token.special)
    }

    /// Tokens of a text in which these added tokens are read, and no special token is made by the model either.
    fn encode_reading(&self, added: &AddedVocabulary, text: &str) -> tokenizers::Result<Vec<Token>> {
        let tokens = self.encode_apart(added, text, &Apart(Vec::new()))?;
        let made: HashSet<Token> = match self.reachable.is_empty() {
            true => return Ok(tokens),
            false => tokens.iter().copied().collect(),
        };
        if !self.reachable.iter().any(|(token, _)| made.contains(token)) {
            return Ok(tokens);
        }
        let spellings = self.reachable.iter().map(|(_, spelling)| spelling.as_str()).collect();
        self.encode_apart(added, text, &Apart(spellings))
    }

    /// The library's own steps, with another list of added tokens.
    fn encode_apart(&self, added: &AddedVocabulary, text: &str, apart: &Apart<'_>) -> tokenizers::Result<Vec<Token>> {
        let mut pieces = added.extract_and_normalize(self.tokenizer.get_normalizer(), text);
        if let Some(pre_tokenizer) = self.tokenizer.get_pre_tokenizer() {
            pre_tokenizer.pre_tokenize(&mut pieces)?;
        }
        if !apart.0.is_empty() {
            pieces.split(|_, piece| piece.split(Apart(apart.0.clone()), SplitDelimiterBehavior::Isolated))?;
        }
        pieces.tokenize(|piece| self.tokenizer.get_model().tokenize(piece.get()))?;
        Ok(pieces.into_encoding(None, 0, OffsetType::None)?.get_ids().to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_go_through_every_occurrence() {
        let pieces = |text: &str, spellings: &[&'static str]| {
            let matches = Apart(spellings.to_vec()).find_matches(text).unwrap();
            matches.into_iter().map(|((start, end), _)| text[start..end].to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(pieces("x<a>y", &["<a>"]), ["x<", "a>y"]);
        assert_eq!(pieces("aaa", &["aa"]), ["a", "a", "a"]);
        assert_eq!(pieces("äb", &["ä"]), ["ä", "b"]);
        assert_eq!(pieces("", &["a"]), [""; 0]);
    }
}
