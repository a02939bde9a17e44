//! Re-encoding: continues tokens of one vocabulary with more bytes.
//!
//! The window that is encoded again begins at the last word boundary within the lookbehind: at white space after a byte
//! that no token has before that white space, so every encoding is split there, and earlier text does not matter. A
//! tokenizer that inserts a dummy prefix space then inserts just the one that is there. Without a word boundary the
//! window has the full lookbehind, and the first token of the new encoding may be an artefact of the cut, which the
//! alignment at token boundaries skips.

use std::collections::HashMap;
use std::sync::Arc;

use super::special_tokens::Counterparts;
use crate::{Token, Tokenizer};

/// A tokenizer with an index of its ordinary tokens by their bytes.
#[derive(Debug)]
pub(super) struct ReEncoder {
    pub tokenizer: Arc<Tokenizer>,
    lookbehind: usize,
    pub tokens_by_bytes: HashMap<Box<[u8]>, Token>,
    /// Bytes of the longest ordinary token.
    longest: usize,
    /// For each byte, the white space (a bit for each of [`WHITE`]) that some token has directly after it.
    joined: Box<[u8; 256]>,
}

/// The last tokens of a segment, which are encoded again with what follows.
#[derive(Clone, Copy)]
struct Window<'t> {
    tokens: &'t [Token],
    /// Whether the segment begins here, so that the encoding may begin with a dummy prefix space.
    is_beginning: bool,
}

/// White space, the space first.
const WHITE: [u8; 4] = *b" \n\r\t";

/// The bit of this white space; 0 for other bytes.
fn white(byte: u8) -> u8 {
    WHITE.iter().position(|white| *white == byte).map_or(0, |bit| 1 << bit)
}

/// The number of bytes at the end that may begin an incomplete character: at most 3.
pub(super) fn incomplete_len(bytes: &[u8]) -> usize {
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

impl ReEncoder {
    pub fn new(tokenizer: Arc<Tokenizer>, lookbehind: usize) -> Self {
        let mut tokens_by_bytes: HashMap<Box<[u8]>, Token> = HashMap::with_capacity(tokenizer.vocabulary_len());
        // A tokenizer with a dummy prefix would put a space before any other white space.
        let always = if tokenizer.drops_first_space() { !1 } else { 0 };
        let (mut longest, mut joined) = (0, Box::new([always; 256]));
        for token in 0..tokenizer.vocabulary_len() as Token {
            let bytes = tokenizer.token_bytes(token);
            if tokenizer.is_special(token) || bytes.is_empty() {
                continue;
            }
            longest = longest.max(bytes.len());
            bytes.windows(2).for_each(|pair| joined[usize::from(pair[0])] |= white(pair[1]));
            match tokens_by_bytes.get_mut(bytes) {
                None => drop(tokens_by_bytes.insert(bytes.into(), token)),
                // A letter may have a token of its own and a byte token; the one that encoding gives is kept.
                Some(other) if is_produced(&tokenizer, token) => *other = token,
                Some(_) => {}
            }
        }
        Self { tokenizer, lookbehind: lookbehind.max(1), tokens_by_bytes, longest, joined }
    }

    fn len(&self, token: Token) -> usize {
        self.tokenizer.token_bytes(token).len()
    }

    /// The last tokens of a segment after which to encode these bytes.
    fn window<'t>(&self, segment: &'t [Token], bytes: &[u8]) -> Window<'t> {
        let first = segment.len().saturating_sub(self.lookbehind);
        let begins = |at: &usize| {
            let before = at.checked_sub(1).and_then(|at| self.tokenizer.token_bytes(segment[at]).last());
            let next = segment.get(*at).map_or(bytes, |token| self.tokenizer.token_bytes(*token)).first();
            match (before, next) {
                (Some(&before), Some(&next)) => {
                    white(before) == 0 && white(next) & !self.joined[usize::from(before)] != 0
                }
                _ => false,
            }
        };
        let word = (first..segment.len() + 1).rfind(begins);
        let from = word.unwrap_or(first);
        Window { tokens: &segment[from..], is_beginning: from == 0 }
    }

    /// Encodes window and bytes together; returns the tokens and the length of their dummy prefix, 0 or 1. `None` if
    /// the tokens do not reproduce the bytes.
    fn encode(&self, window: Window<'_>, bytes: &[u8]) -> Option<(Vec<Token>, usize)> {
        let mut text = Vec::with_capacity(bytes.len() + window.tokens.len() * 8);
        window.tokens.iter().for_each(|&token| text.extend_from_slice(self.tokenizer.token_bytes(token)));
        text.extend_from_slice(bytes);
        let text = std::str::from_utf8(&text).ok()?;
        // A window's first space is a dummy prefix or belongs to a word: encoding inserts it again.
        let is_all_new = window.is_beginning && window.tokens.is_empty();
        if !is_all_new
            && self.tokenizer.drops_first_space()
            && let Some(rest) = text.strip_prefix(' ')
        {
            let tokens = self.tokenizer.encode_plain(rest).ok()?;
            if self.dummy_len(&tokens, text) == Some(0) {
                return Some((tokens, 0));
            }
        }
        let tokens = self.tokenizer.encode_plain(text).ok()?;
        let dummy_len = self.dummy_len(&tokens, text)?;
        Some((tokens, dummy_len))
    }

    /// The length of the dummy prefix, 0 or 1, that the tokens of a text have; `None` if they are of another text.
    fn dummy_len(&self, tokens: &[Token], text: &str) -> Option<usize> {
        let mut space = self.total(tokens).checked_sub(text.len()).filter(|&dummy_len| dummy_len <= 1)?;
        let (dummy_len, mut rest) = (space, text.as_bytes());
        for &token in tokens {
            let mut bytes = self.tokenizer.token_bytes(token);
            if space == 1 && !bytes.is_empty() {
                (bytes, space) = (bytes.strip_prefix(b" ")?, 0);
            }
            rest = rest.strip_prefix(bytes)?;
        }
        Some(dummy_len)
    }

    fn total(&self, tokens: &[Token]) -> usize {
        tokens.iter().map(|&token| self.len(token)).sum()
    }

    /// Encodes bytes after a segment, whose last tokens may change. Returns how many of the segment's tokens are kept;
    /// those that follow are appended to `more`. Bytes that no token has are left out.
    pub fn append(&self, segment: &[Token], bytes: &[u8], more: &mut Vec<Token>) -> usize {
        if bytes.is_empty() {
            return segment.len();
        }
        let window = self.window(segment, bytes);
        if let Some((tokens, dummy_len)) = self.encode(window, bytes)
            && let Some((stay, from)) = self.align(window, &tokens, dummy_len)
        {
            more.extend_from_slice(&tokens[from..]);
            return segment.len() - window.tokens.len() + stay;
        }
        self.encode_greedily(bytes, more);
        segment.len()
    }

    /// Aligns two encodings of one text: returns how many tokens of the old one are kept, and where the new one
    /// continues. First tokens that do not end at the same byte are artefacts of the cut. `None` if no boundaries
    /// agree.
    fn align(&self, window: Window<'_>, new: &[Token], dummy_len: usize) -> Option<(usize, usize)> {
        let old = window.tokens;
        if window.is_beginning && old.is_empty() {
            return Some((0, 0));
        }
        let (mut i, mut j, mut old_len, mut new_len) = (0, 0, dummy_len, 0);
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

    /// Encodes bytes after a segment that must not change, and appends the tokens to `more`. Stops before bytes that no
    /// token has; returns whether all bytes were encoded.
    pub fn continue_with(&self, segment: &[Token], bytes: &[u8], more: &mut Vec<Token>) -> bool {
        if bytes.is_empty() {
            return true;
        }
        let window = self.window(segment, bytes);
        let Some((tokens, dummy_len)) = self.encode(window, bytes) else {
            return self.encode_greedily_until(bytes, more) == bytes.len();
        };
        if window.is_beginning && window.tokens.is_empty() {
            more.extend(tokens);
            return true;
        }
        let boundary = self.total(window.tokens) + dummy_len;
        let (mut at, mut len) = (0, 0);
        while len < boundary {
            len += self.len(tokens[at]);
            at += 1;
        }
        if len == boundary {
            more.extend_from_slice(&tokens[at..]);
            return true;
        }
        // A token would merge with the segment. The rest of the word is encoded greedily, the next word as usual.
        let begins = |&at: &usize| bytes[at] == b' ' && white(bytes[at - 1]) == 0;
        let word = (1..bytes.len()).find(begins).unwrap_or(bytes.len());
        let mut current_word = Vec::new();
        let encoded = self.encode_greedily_until(&bytes[..word], &mut current_word) == word;
        let mut next_words = Vec::new();
        let encoded = encoded && self.continue_with(&current_word, &bytes[word..], &mut next_words);
        more.append(&mut current_word);
        more.append(&mut next_words);
        encoded
    }

    /// Appends the longest tokens that have these bytes; bytes that no token has are left out.
    pub fn encode_greedily(&self, mut bytes: &[u8], tokens: &mut Vec<Token>) {
        while !bytes.is_empty() {
            let encoded = self.encode_greedily_until(bytes, tokens);
            bytes = bytes.get(encoded + 1..).unwrap_or(&[]);
        }
    }

    /// As [`ReEncoder::encode_greedily`], up to the first byte that no token begins with; returns the number of bytes
    /// before it.
    fn encode_greedily_until(&self, bytes: &[u8], tokens: &mut Vec<Token>) -> usize {
        let mut at = 0;
        while at < bytes.len() {
            let rest = &bytes[at..];
            let longest = rest.len().min(self.longest);
            let Some((len, token)) =
                (1..=longest).rev().find_map(|len| Some((len, *self.tokens_by_bytes.get(&rest[..len])?)))
            else {
                break;
            };
            tokens.push(token);
            at += len;
        }
        at
    }
}

/// Whether encoding ever gives this token.
fn is_produced(tokenizer: &Tokenizer, token: Token) -> bool {
    let text = std::str::from_utf8(tokenizer.token_bytes(token)).ok();
    let tokens = text.and_then(|text| tokenizer.encode_plain(text).ok());
    tokens.is_some_and(|tokens| tokens.contains(&token))
}

/// The equal tokens of both vocabularies, (from, to), ascending by `to`. `is_first`: at the beginning of a text, where
/// dummy prefix spaces are ignored.
pub(super) fn shared(
    from: &ReEncoder,
    to: &ReEncoder,
    special_tokens: &Counterparts,
    is_first: bool,
) -> Vec<(Token, Token)> {
    let first_word = |vocabulary: &ReEncoder, bytes: &[u8]| -> Option<Token> {
        let drops = is_first && vocabulary.tokenizer.drops_first_space();
        let with_space =
            drops.then(|| vocabulary.tokens_by_bytes.get([b" ", bytes].concat().as_slice()).copied()).flatten();
        with_space.or_else(|| vocabulary.tokens_by_bytes.get(bytes).copied())
    };
    let pair = |token: Token| {
        if from.tokenizer.is_special(token) {
            return Some((token, special_tokens.of(token)?));
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
