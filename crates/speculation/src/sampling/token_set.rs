//! A set of tokens: those that a constraint allows.
//!
//! It has one bit per token, 16 KiB for a vocabulary of 128 thousand, and one value for all tokens beyond the bits, so
//! that a constraint need not know the length of the rows that it masks.

use crate::Token;

/// A set of tokens.
///
/// ```
/// use foretoken_speculation::TokenSet;
/// let mut set = TokenSet::none();
/// set.insert(1);
/// let mut row = [0.5, 0.25, 0.125];
/// set.mask(&mut row);
/// assert_eq!(row, [f32::NEG_INFINITY, 0.25, f32::NEG_INFINITY]);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenSet {
    /// Bit i of word w is token 32 w + i.
    words: Vec<u32>,
    /// Whether tokens beyond the words are in the set.
    beyond: bool,
}

impl TokenSet {
    /// The empty set.
    pub fn none() -> TokenSet {
        TokenSet::default()
    }

    /// The set of all tokens.
    pub fn all() -> TokenSet {
        TokenSet { words: Vec::new(), beyond: true }
    }

    /// The set of the tokens whose bits are set, bit i of word w being token 32 w + i, without tokens beyond the words.
    pub fn of_words(words: Vec<u32>) -> TokenSet {
        TokenSet { words, beyond: false }
    }

    /// Adds a token.
    pub fn insert(&mut self, token: Token) {
        self.set(token, true);
    }

    /// Removes a token.
    pub fn remove(&mut self, token: Token) {
        self.set(token, false);
    }

    fn set(&mut self, token: Token, is_in: bool) {
        let (word, bit) = (token as usize / 32, token % 32);
        if word >= self.words.len() {
            if is_in == self.beyond {
                return;
            }
            self.words.resize(word + 1, if self.beyond { u32::MAX } else { 0 });
        }
        self.words[word] = self.words[word] & !(1 << bit) | u32::from(is_in) << bit;
    }

    /// Whether the set has a token.
    pub fn has(&self, token: Token) -> bool {
        self.words.get(token as usize / 32).map_or(self.beyond, |word| word >> (token % 32) & 1 == 1)
    }

    /// The tokens of the set below `len`, ascending.
    pub fn below(&self, len: usize) -> impl Iterator<Item = Token> + '_ {
        let beyond = if self.beyond { u32::MAX } else { 0 };
        let words = self.words.iter().copied().chain(std::iter::repeat(beyond)).take(len.div_ceil(32));
        words.enumerate().filter(|(_, word)| *word != 0).flat_map(move |(i, word)| {
            let tokens = (0..32).filter(move |bit| word >> bit & 1 == 1).map(move |bit| i as Token * 32 + bit);
            tokens.take_while(move |token| (*token as usize) < len)
        })
    }

    /// Sets the logits of all other tokens to minus infinity.
    pub fn mask(&self, logits: &mut [f32]) {
        let beyond = if self.beyond { u32::MAX } else { 0 };
        for (i, logits) in logits.chunks_mut(32).enumerate() {
            match self.words.get(i).copied().unwrap_or(beyond) {
                u32::MAX => {}
                0 => logits.fill(f32::NEG_INFINITY),
                word => {
                    for (bit, logit) in logits.iter_mut().enumerate() {
                        *logit = if word >> bit & 1 == 1 { *logit } else { f32::NEG_INFINITY };
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_set(
            edits in prop::collection::vec((0..100_u32, any::<bool>()), 0..40), all: bool, len in 0..130_usize,
        ) {
            let mut set = if all { TokenSet::all() } else { TokenSet::none() };
            let mut expected = [all; 130];
            for (token, is_in) in edits {
                if is_in { set.insert(token) } else { set.remove(token) }
                expected[token as usize] = is_in;
            }
            let tokens: Vec<Token> = (0..len as Token).filter(|token| expected[*token as usize]).collect();
            prop_assert!((0..130).all(|token| set.has(token) == expected[token as usize]));
            prop_assert_eq!(set.below(len).collect::<Vec<_>>(), tokens.clone());
            let mut row = vec![1.0; len];
            set.mask(&mut row);
            let left: Vec<Token> = (0..len as Token).filter(|token| row[*token as usize] == 1.0).collect();
            prop_assert_eq!(left, tokens);
        }
    }
}
