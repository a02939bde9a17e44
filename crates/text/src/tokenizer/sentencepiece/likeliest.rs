//! Unigram: of all ways to cut a text into pieces the likeliest, the one with the highest sum of scores.
//!
//! Sums are taken from the left in f32, and a later way must be better to win, both as SentencePiece does it: two ways
//! to cut a run of one character are often equally likely. A piece that the user has defined always wins.

use std::collections::HashMap;

use crate::Token;

/// What an unknown character costs beyond the worst piece.
const UNKNOWN_PENALTY: f32 = 10.0;

/// The pieces that a text is cut into.
#[derive(Debug)]
pub(crate) struct Likeliest {
    /// The score of a piece, or nothing for one that the user has defined.
    pieces: HashMap<Box<str>, (Token, Option<f32>)>,
    longest: usize,
    best: f32,
    unknown: f32,
}

/// The best way to a place in the text.
#[derive(Clone, Copy)]
struct Way {
    from: usize,
    token: Option<Token>,
    score: f32,
}

impl Likeliest {
    /// Pieces with their scores, nothing for those that the user has defined.
    pub fn new(pieces: HashMap<Box<str>, (Token, Option<f32>)>) -> Self {
        let scores = || pieces.values().filter_map(|piece| piece.1);
        let (worst, best) = (scores().fold(f32::MAX, f32::min), scores().fold(f32::MIN, f32::max));
        let longest = pieces.keys().map(|piece| piece.len()).max().unwrap_or(0);
        Self { pieces, longest, best, unknown: worst - UNKNOWN_PENALTY }
    }

    /// The pieces of a text with their tokens, nothing for a character that no piece has.
    pub fn cut<'a>(&self, text: &'a str) -> Vec<(&'a str, Option<Token>)> {
        let mut ways: Vec<Option<Way>> = vec![None; text.len() + 1];
        for (from, character) in text.char_indices() {
            let before = if from == 0 { 0.0 } else { ways[from].map_or(f32::MIN, |way| way.score) };
            let mut reach = |end: usize, token: Option<Token>, score: f32| {
                let score = score + before;
                if ways[end].is_none_or(|known| score > known.score) {
                    ways[end] = Some(Way { from, token, score });
                }
            };
            let single = from + character.len_utf8();
            let mut has_single = false;
            let ends = text[from..].char_indices().map(|(at, found)| from + at + found.len_utf8());
            for end in ends.take_while(|end| end - from <= self.longest) {
                let Some(&(token, score)) = self.pieces.get(&text[from..end]) else { continue };
                reach(end, Some(token), score.unwrap_or_else(|| (end - from) as f32 * self.best - 0.1));
                has_single |= end == single;
            }
            if !has_single {
                reach(single, None, self.unknown);
            }
        }
        let mut pieces = Vec::new();
        let mut end = text.len();
        while end > 0 {
            let way = ways[end].expect("every character is reached from the one before it");
            pieces.push((&text[way.from..end], way.token));
            end = way.from;
        }
        pieces.reverse();
        pieces
    }
}
