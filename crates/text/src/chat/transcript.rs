//! Keeps the tokens of a conversation from turn to turn, so that cached rows of earlier turns can be reused.
//!
//! Templates render the whole conversation at every turn. Encoded again, a model's answer may become other tokens than
//! the model generated, and everything after them would have to be computed again. So a transcript knows the bytes of
//! each of its tokens. The next turn keeps the tokens as far as the newly rendered text agrees with these bytes and
//! special tokens; only after that place it has the tokens of the newly encoded text. That text is always encoded as a
//! whole and split where one of its tokens begins, so no token depends on the split.
//!
//! If a template renders earlier turns differently (without their thoughts, or trimmed), only the tokens before the
//! change are kept.

use crate::tokenizer::SpecialSpan;
use crate::{TextError, Token, Tokenizer};

/// A conversation up to some turn: its tokens and their bytes. An empty one shares nothing with any other.
#[derive(Clone, Debug, Default)]
pub struct Transcript {
    text: Vec<u8>,
    special_spans: Vec<SpecialSpan>,
    tokens: Vec<Token>,
    /// Where each token begins in the text, if that is known: then the text before it belongs to the tokens before it.
    starts: Vec<Option<usize>>,
}

impl Transcript {
    /// The tokens of the conversation.
    pub fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    /// Appends tokens that the model generated.
    pub fn extend(&mut self, tokenizer: &Tokenizer, tokens: &[Token]) {
        for &token in tokens {
            let start = self.text.len();
            self.text.extend_from_slice(tokenizer.token_bytes(token));
            if tokenizer.is_special(token) {
                self.special_spans.push(SpecialSpan { range: start..self.text.len(), token });
            }
            self.tokens.push(token);
            self.starts.push(Some(start));
        }
    }

    /// Encodes a text with special tokens in these places, as [`Tokenizer::encode_with`] does.
    pub(super) fn encoded(
        tokenizer: &Tokenizer,
        text: String,
        special_spans: Vec<SpecialSpan>,
    ) -> Result<Self, TextError> {
        let tokens = tokenizer.encode_with(&text, &special_spans)?;
        let text = text.into_bytes();
        let starts = starts(tokenizer, &text, &special_spans, &tokens);
        Ok(Self { text, special_spans, tokens, starts })
    }

    /// This conversation with the tokens of an earlier transcript as far as both agree.
    pub(super) fn reusing(mut self, before: &Self) -> Self {
        let common = self.common_prefix(before);
        let boundary = before.boundaries().filter(|(place, _)| *place <= common).rev().find_map(|(place, kept)| {
            let own: Vec<_> = self.boundaries().collect();
            let at = own.binary_search_by_key(&place, |(place, _)| *place).ok()?;
            Some((kept, own[at].1))
        });
        let (kept, new) = boundary.unwrap_or_default();
        self.tokens.splice(..new, before.tokens[..kept].iter().copied());
        self.starts.splice(..new, before.starts[..kept].iter().copied());
        self
    }

    /// The number of its tokens within the common prefix with this text.
    pub(super) fn tokens_within(&self, text: &str) -> usize {
        let common = self.text.iter().zip(text.as_bytes()).take_while(|(a, b)| a == b).count();
        self.boundaries().take_while(|(place, _)| *place <= common).last().map_or(0, |(_, tokens)| tokens)
    }

    /// The length of the common prefix in bytes, with the same special tokens.
    fn common_prefix(&self, other: &Self) -> usize {
        let bytes = self.text.iter().zip(&other.text).take_while(|(a, b)| a == b).count();
        let special_spans = self.special_spans.iter().zip(&other.special_spans).take_while(|(a, b)| a == b).count();
        let next =
            [self, other].map(|side| side.special_spans.get(special_spans).map_or(usize::MAX, |span| span.range.start));
        bytes.min(next[0]).min(next[1])
    }

    /// Known token boundaries, each once, with the number of tokens before them; both ascend.
    fn boundaries(&self) -> impl DoubleEndedIterator<Item = (usize, usize)> {
        let starts = self.starts.iter().enumerate().filter_map(|(token, start)| start.map(|start| (start, token)));
        let mut boundaries: Vec<(usize, usize)> = starts.chain([(self.text.len(), self.tokens.len())]).collect();
        boundaries.dedup_by_key(|(place, _)| *place);
        boundaries.into_iter()
    }
}

/// Where each token of an encoded text begins, if that can be determined. Special tokens have known places, and from
/// each of them tokens are followed backwards as long as their bytes equal the text, which a normalizer may have
/// changed.
fn starts(tokenizer: &Tokenizer, text: &[u8], special_spans: &[SpecialSpan], tokens: &[Token]) -> Vec<Option<usize>> {
    let mut starts = vec![None; tokens.len()];
    // Where the text after the last special token begins, in bytes and in tokens.
    let (mut from, mut first, mut left) = (0, 0, special_spans.iter());
    let mut special = left.next();
    for at in 0..=tokens.len() {
        let end = match (special, tokens.get(at)) {
            (Some(span), Some(token)) if span.token == *token => span.range.start,
            (_, Some(_)) => continue,
            (_, None) => text.len(),
        };
        let mut place = end;
        for token in (first + 1..at).rev() {
            let bytes = tokenizer.token_bytes(tokens[token]);
            if !text[from..place].ends_with(bytes) {
                // It may be a dummy prefix space, which belongs to the token after it.
                starts[token + 1..at].iter_mut().take(1).for_each(|start| *start = None);
                break;
            }
            place -= bytes.len();
            starts[token] = Some(place);
        }
        if first < at {
            starts[first] = Some(from);
        }
        if let (Some(span), true) = (special, at < tokens.len()) {
            starts[at] = Some(end);
            (from, first, special) = (span.range.end, at + 1, left.next());
        }
    }
    match special {
        None => starts,
        // Not all special tokens were found, so no place is certain.
        Some(_) => vec![None; tokens.len()],
    }
}
