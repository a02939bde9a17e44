//! A conversation as tokens that stay: what was computed for one turn is the beginning of the next.
//!
//! Templates write the whole conversation out at every turn. Encoded again, a model's answer may become other tokens
//! than the model wrote it with, and everything from there on has to be computed again. So a transcript knows which of
//! its tokens stand for which bytes. The next turn keeps its tokens as far as the text that the template writes now
//! agrees with its bytes and special tokens, and only behind that place has the tokens of the newly encoded text. That
//! text is always encoded as a whole and cut where one of its tokens begins, so that no token depends on the cut.
//!
//! Left out: a template that writes earlier turns in another way than before (without their thoughts, or trimmed) keeps
//! what is before the change only.

use crate::tokenizer::SpecialSpan;
use crate::{TextError, Token, Tokenizer};

/// A conversation up to some turn: its tokens, and the bytes that they stand for. An empty one is that of nobody.
#[derive(Clone, Debug, Default)]
pub struct Transcript {
    text: Vec<u8>,
    specials: Vec<SpecialSpan>,
    tokens: Vec<Token>,
    /// Where each token begins in the text, where that is known: then what is before it stands for the tokens before
    /// it.
    starts: Vec<Option<usize>>,
}

impl Transcript {
    /// Its tokens.
    pub fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    /// Appends what a model wrote.
    pub fn extend(&mut self, tokenizer: &Tokenizer, tokens: &[Token]) {
        for &token in tokens {
            let start = self.text.len();
            self.text.extend_from_slice(tokenizer.token_bytes(token));
            if tokenizer.is_special(token) {
                self.specials.push(SpecialSpan { range: start..self.text.len(), token });
            }
            self.tokens.push(token);
            self.starts.push(Some(start));
        }
    }

    /// A text with special tokens in these places, encoded as [`Tokenizer::encode_with`] does.
    pub(super) fn encoded(tokenizer: &Tokenizer, text: String, specials: Vec<SpecialSpan>) -> Result<Self, TextError> {
        let tokens = tokenizer.encode_with(&text, &specials)?;
        let text = text.into_bytes();
        let starts = starts(tokenizer, &text, &specials, &tokens);
        Ok(Self { text, specials, tokens, starts })
    }

    /// This conversation as it is written now, with the tokens of an earlier transcript as far as both agree.
    pub(super) fn behind(mut self, before: &Self) -> Self {
        let agreed = self.agreement(before);
        let joint = before.joints().filter(|(place, _)| *place <= agreed).rev().find_map(|(place, kept)| {
            let own: Vec<_> = self.joints().collect();
            let at = own.binary_search_by_key(&place, |(place, _)| *place).ok()?;
            Some((kept, own[at].1))
        });
        let (kept, new) = joint.unwrap_or_default();
        self.tokens.splice(..new, before.tokens[..kept].iter().copied());
        self.starts.splice(..new, before.starts[..kept].iter().copied());
        self
    }

    /// The most of its tokens that stand for no more than the first bytes that it has in common with this text.
    pub(super) fn tokens_within(&self, text: &str) -> usize {
        let agreed = self.text.iter().zip(text.as_bytes()).take_while(|(a, b)| a == b).count();
        self.joints().take_while(|(place, _)| *place <= agreed).last().map_or(0, |(_, tokens)| tokens)
    }

    /// So many first bytes are the same in both, with the same special tokens.
    fn agreement(&self, other: &Self) -> usize {
        let bytes = self.text.iter().zip(&other.text).take_while(|(a, b)| a == b).count();
        let specials = self.specials.iter().zip(&other.specials).take_while(|(a, b)| a == b).count();
        let next = [self, other].map(|side| side.specials.get(specials).map_or(usize::MAX, |span| span.range.start));
        bytes.min(next[0]).min(next[1])
    }

    /// Places where tokens meet, each once, with the number of tokens before them; both ascend.
    fn joints(&self) -> impl DoubleEndedIterator<Item = (usize, usize)> {
        let starts = self.starts.iter().enumerate().filter_map(|(token, start)| start.map(|start| (start, token)));
        let mut joints: Vec<(usize, usize)> = starts.chain([(self.text.len(), self.tokens.len())]).collect();
        joints.dedup_by_key(|(place, _)| *place);
        joints.into_iter()
    }
}

/// Where each token of an encoded text begins, where that can be told. Special tokens lie where they are read, and from
/// each of them tokens are followed to the front as long as they are spelt as the text is; a normalizer may change it.
fn starts(tokenizer: &Tokenizer, text: &[u8], specials: &[SpecialSpan], tokens: &[Token]) -> Vec<Option<usize>> {
    let mut starts = vec![None; tokens.len()];
    // Where the text that is not special begins, in bytes and in tokens.
    let (mut from, mut first, mut left) = (0, 0, specials.iter());
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
                // It may be an invented space, which belongs to what follows it.
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
        // Not all were made into tokens, so nobody knows which were.
        Some(_) => vec![None; tokens.len()],
    }
}
