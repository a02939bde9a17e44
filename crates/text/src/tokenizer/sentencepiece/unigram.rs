//! Unigram encoding: the segmentation with the highest sum of scores, by Viterbi's algorithm.
//!
//! Sums are taken from the left in f32, and a later path must be better to win, both as in SentencePiece: two
//! segmentations of a run of one character are often equally likely. User-defined pieces always win.

use std::collections::HashMap;

use crate::Token;

/// Penalty of an unknown character below the lowest score.
const UNKNOWN_PENALTY: f32 = 10.0;

/// The pieces of a Unigram model.
#[derive(Debug)]
pub(crate) struct UnigramEncoder {
    /// Token and score of each piece; `None` for a user-defined one.
    pieces: HashMap<Box<str>, (Token, Option<f32>)>,
    longest: usize,
    best: f32,
    unknown: f32,
}

/// The last step of the best path to a position in the text.
#[derive(Clone, Copy)]
struct PathStep {
    from: usize,
    token: Option<Token>,
    score: f32,
}

impl UnigramEncoder {
    /// From pieces with their tokens and scores; `None` for a user-defined one.
    pub fn new(pieces: HashMap<Box<str>, (Token, Option<f32>)>) -> Self {
        let scores = || pieces.values().filter_map(|piece| piece.1);
        let (worst, best) = (scores().fold(f32::MAX, f32::min), scores().fold(f32::MIN, f32::max));
        let longest = pieces.keys().map(|piece| piece.len()).max().unwrap_or(0);
        Self { pieces, longest, best, unknown: worst - UNKNOWN_PENALTY }
    }

    /// The pieces of a text with their tokens; `None` for a character that no piece has.
    pub fn segment<'a>(&self, text: &'a str) -> Vec<(&'a str, Option<Token>)> {
        let mut steps: Vec<Option<PathStep>> = vec![None; text.len() + 1];
        for (from, character) in text.char_indices() {
            let before = if from == 0 { 0.0 } else { steps[from].map_or(f32::MIN, |step| step.score) };
            let mut reach = |end: usize, token: Option<Token>, score: f32| {
                let score = score + before;
                if steps[end].is_none_or(|known| score > known.score) {
                    steps[end] = Some(PathStep { from, token, score });
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
            let step = steps[end].expect("every character is reached from the one before it");
            pieces.push((&text[step.from..end], step.token));
            end = step.from;
        }
        pieces.reverse();
        pieces
    }
}
