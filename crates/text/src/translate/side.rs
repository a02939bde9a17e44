//! One side of a translation: how a vocabulary continues its own last tokens with more bytes.
//!
//! The window behind which text is encoded begins where the last word does, if one begins in reach: at white space
//! behind a byte that no token of the vocabulary has before it, so that every encoding is cut there, and what lies
//! before cannot matter. A tokenizer that invents a first space then invents just the one that is there. Where no word
//! begins in reach the window is as long as it may be, and its first token in the new encoding may be an artefact of
//! the cut; aligning by the ends of tokens passes over it.

use std::collections::HashMap;
use std::sync::Arc;

use super::marks::Counterparts;
use crate::{Token, Tokenizer};

/// A vocabulary, and its ordinary tokens by their bytes.
#[derive(Debug)]
pub(super) struct Side {
    pub tokenizer: Arc<Tokenizer>,
    lookbehind: usize,
    pub words: HashMap<Box<[u8]>, Token>,
    /// Bytes of the longest ordinary token.
    longest: usize,
    /// For each byte which white space (a bit for each of [`WHITE`]) some token has right behind it.
    joined: Box<[u8; 256]>,
}

/// The part of a stretch of tokens that is encoded anew with what follows.
#[derive(Clone, Copy)]
struct Window<'t> {
    tokens: &'t [Token],
    /// The stretch begins here: a space may be invented, and belongs to the encoding.
    is_beginning: bool,
}

/// White space, the space first.
const WHITE: [u8; 4] = *b" \n\r\t";

/// The bit of this white space; 0 for other bytes.
fn white(byte: u8) -> u8 {
    WHITE.iter().position(|white| *white == byte).map_or(0, |bit| 1 << bit)
}

/// How many bytes at the end may be the first ones of a character that has not ended: at most 3.
pub(super) fn unfinished(bytes: &[u8]) -> usize {
    let tail = &bytes[bytes.len() - bytes.len().min(3)..];
    let cut = (0..tail.len()).find(|&at| match std::str::from_utf8(&tail[at..]) {
        Ok(_) => true,
        Err(error) => error.valid_up_to() == 0 && error.error_len().is_none(),
    });
    match cut {
        Some(at) if std::str::from_utf8(&tail[at..]).is_err() => tail.len() - at,
        _ => 0,
    }
}

impl Side {
    pub fn new(tokenizer: Arc<Tokenizer>, lookbehind: usize) -> Self {
        let mut words: HashMap<Box<[u8]>, Token> = HashMap::with_capacity(tokenizer.vocabulary_len());
        // A tokenizer that invents spaces would put one before any other white space.
        let always = if tokenizer.drops_first_space() { !1 } else { 0 };
        let (mut longest, mut joined) = (0, Box::new([always; 256]));
        for token in 0..tokenizer.vocabulary_len() as Token {
            let bytes = tokenizer.token_bytes(token);
            if tokenizer.is_special(token) || bytes.is_empty() {
                continue;
            }
            longest = longest.max(bytes.len());
            bytes.windows(2).for_each(|pair| joined[usize::from(pair[0])] |= white(pair[1]));
            match words.get_mut(bytes) {
                None => drop(words.insert(bytes.into(), token)),
                // A letter and the byte that it is: what encoding makes of it is the token that texts have.
                Some(other) if is_made(&tokenizer, token) => *other = token,
                Some(_) => {}
            }
        }
        Self { tokenizer, lookbehind: lookbehind.max(1), words, longest, joined }
    }

    fn len(&self, token: Token) -> usize {
        self.tokenizer.token_bytes(token).len()
    }

    /// The last tokens of a stretch behind which to encode these bytes.
    fn window<'t>(&self, stretch: &'t [Token], bytes: &[u8]) -> Window<'t> {
        let first = stretch.len().saturating_sub(self.lookbehind);
        let begins = |at: &usize| {
            let before = at.checked_sub(1).and_then(|at| self.tokenizer.token_bytes(stretch[at]).last());
            let next = stretch.get(*at).map_or(bytes, |token| self.tokenizer.token_bytes(*token)).first();
            match (before, next) {
                (Some(&before), Some(&next)) => {
                    white(before) == 0 && white(next) & !self.joined[usize::from(before)] != 0
                }
                _ => false,
            }
        };
        let word = (first..stretch.len() + 1).rfind(begins);
        let from = word.unwrap_or(first);
        Window { tokens: &stretch[from..], is_beginning: from == 0 }
    }

    /// The tokens of window and bytes together, and how many invented bytes stand before them, 0 or 1. `None` if they
    /// cannot be given back to the byte.
    fn encode(&self, window: Window<'_>, bytes: &[u8]) -> Option<(Vec<Token>, usize)> {
        let mut text = Vec::with_capacity(bytes.len() + window.tokens.len() * 8);
        window.tokens.iter().for_each(|&token| text.extend_from_slice(self.tokenizer.token_bytes(token)));
        text.extend_from_slice(bytes);
        let text = std::str::from_utf8(&text).ok()?;
        // What looks like a window's first space was invented, or is a word's own: encoding invents it again.
        let is_all_new = window.is_beginning && window.tokens.is_empty();
        if !is_all_new
            && self.tokenizer.drops_first_space()
            && let Some(rest) = text.strip_prefix(' ')
        {
            let tokens = self.tokenizer.encode_plain(rest).ok()?;
            if self.invented(&tokens, text) == Some(0) {
                return Some((tokens, 0));
            }
        }
        let tokens = self.tokenizer.encode_plain(text).ok()?;
        let invented = self.invented(&tokens, text)?;
        Some((tokens, invented))
    }

    /// How many bytes, 0 or 1, the tokens of a text have in front of it; `None` if they are of another text.
    fn invented(&self, tokens: &[Token], text: &str) -> Option<usize> {
        let mut space = self.total(tokens).checked_sub(text.len()).filter(|&invented| invented <= 1)?;
        let (invented, mut rest) = (space, text.as_bytes());
        for &token in tokens {
            let mut bytes = self.tokenizer.token_bytes(token);
            if space == 1 && !bytes.is_empty() {
                (bytes, space) = (bytes.strip_prefix(b" ")?, 0);
            }
            rest = rest.strip_prefix(bytes)?;
        }
        Some(invented)
    }

    fn total(&self, tokens: &[Token]) -> usize {
        tokens.iter().map(|&token| self.len(token)).sum()
    }

    /// Encodes bytes behind a stretch of this side's tokens, of which the end may change. Returns how many of the
    /// stretch's tokens stay; those that follow are appended to `more`. Bytes that cannot be said are left out.
    pub fn append(&self, stretch: &[Token], bytes: &[u8], more: &mut Vec<Token>) -> usize {
        if bytes.is_empty() {
            return stretch.len();
        }
        let window = self.window(stretch, bytes);
        if let Some((tokens, invented)) = self.encode(window, bytes)
            && let Some((stay, from)) = self.align(window, &tokens, invented)
        {
            more.extend_from_slice(&tokens[from..]);
            return stretch.len() - window.tokens.len() + stay;
        }
        self.spell(bytes, more);
        stretch.len()
    }

    /// Walks along two encodings of one text: how many tokens of the old one stay, and from where the new one goes on.
    /// Tokens at the front of which the ends do not agree are artefacts of the cut. `None` if no ends agree.
    fn align(&self, window: Window<'_>, new: &[Token], invented: usize) -> Option<(usize, usize)> {
        let old = window.tokens;
        if window.is_beginning && old.is_empty() {
            return Some((0, 0));
        }
        let (mut i, mut j, mut old_len, mut new_len) = (0, 0, invented, 0);
        loop {
            if old_len == new_len {
                match (old.get(i), new.get(j)) {
                    (Some(a), Some(b)) if a == b => {
                        (old_len, new_len) = (old_len + self.len(*a), new_len + self.len(*b));
                        (i, j) = (i + 1, j + 1);
                    }
                    _ => return Some((i, j)),
                }
            } else if old_len < new_len {
                (i, old_len) = (i + 1, old_len + self.len(*old.get(i)?));
            } else {
                (j, new_len) = (j + 1, new_len + self.len(*new.get(j)?));
            }
        }
    }

    /// Encodes bytes behind a stretch of this side's tokens, of which nothing may change; appends to `more`. Ends
    /// before what cannot be said, and says whether that was nothing.
    pub fn continue_with(&self, stretch: &[Token], bytes: &[u8], more: &mut Vec<Token>) -> bool {
        if bytes.is_empty() {
            return true;
        }
        let window = self.window(stretch, bytes);
        let Some((tokens, invented)) = self.encode(window, bytes) else {
            return self.spell_first(bytes, more) == bytes.len();
        };
        if window.is_beginning && window.tokens.is_empty() {
            more.extend(tokens);
            return true;
        }
        let boundary = self.total(window.tokens) + invented;
        let (mut at, mut len) = (0, 0);
        while len < boundary {
            len += self.len(tokens[at]);
            at += 1;
        }
        if len == boundary {
            more.extend_from_slice(&tokens[at..]);
            return true;
        }
        // It would have merged with what is written already. The rest of the word is spelt, the next one is whole
        // again.
        let begins = |&at: &usize| bytes[at] == b' ' && white(bytes[at - 1]) == 0;
        let word = (1..bytes.len()).find(begins).unwrap_or(bytes.len());
        let mut spelt = Vec::new();
        let said = self.spell_first(&bytes[..word], &mut spelt) == word;
        let mut words = Vec::new();
        let said = said && self.continue_with(&spelt, &bytes[word..], &mut words);
        more.append(&mut spelt);
        more.append(&mut words);
        said
    }

    /// Appends the longest tokens that spell these bytes; what no token can spell is left out.
    pub fn spell(&self, mut bytes: &[u8], tokens: &mut Vec<Token>) {
        while !bytes.is_empty() {
            let said = self.spell_first(bytes, tokens);
            bytes = bytes.get(said + 1..).unwrap_or(&[]);
        }
    }

    /// The same up to the first byte that no token begins with; how many bytes lie before it.
    fn spell_first(&self, bytes: &[u8], tokens: &mut Vec<Token>) -> usize {
        let mut at = 0;
        while at < bytes.len() {
            let rest = &bytes[at..];
            let longest = rest.len().min(self.longest);
            let Some((len, token)) = (1..=longest).rev().find_map(|len| Some((len, *self.words.get(&rest[..len])?)))
            else {
                break;
            };
            tokens.push(token);
            at += len;
        }
        at
    }
}

/// Whether encoding ever makes this token.
fn is_made(tokenizer: &Tokenizer, token: Token) -> bool {
    let text = std::str::from_utf8(tokenizer.token_bytes(token)).ok();
    let tokens = text.and_then(|text| tokenizer.encode_plain(text).ok());
    tokens.is_some_and(|tokens| tokens.contains(&token))
}

/// The tokens that stand for the same in both vocabularies, (from, to), ascending by `to`. `is_first`: where a text
/// begins, so that a side's invented space counts for nothing.
pub(super) fn shared(from: &Side, to: &Side, marks: &Counterparts, is_first: bool) -> Vec<(Token, Token)> {
    let first_word = |side: &Side, bytes: &[u8]| -> Option<Token> {
        let drops = is_first && side.tokenizer.drops_first_space();
        let with_space = drops.then(|| side.words.get([b" ", bytes].concat().as_slice()).copied()).flatten();
        with_space.or_else(|| side.words.get(bytes).copied())
    };
    let pair = |token: Token| {
        if from.tokenizer.is_special(token) {
            return Some((token, marks.of(token)?));
        }
        let bytes = from.tokenizer.token_bytes(token);
        if bytes.is_empty() {
            return None;
        }
        let drops = is_first && from.tokenizer.drops_first_space();
        let bytes =
            if drops { bytes.strip_prefix(b" ").filter(|rest| !rest.is_empty()).unwrap_or(bytes) } else { bytes };
        Some((token, first_word(to, bytes)?))
    };
    let mut pairs: Vec<_> = (0..from.tokenizer.vocabulary_len() as Token).filter_map(pair).collect();
    pairs.sort_by_key(|&(_, to)| to);
    pairs
}
