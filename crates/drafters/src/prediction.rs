//! Predicted outputs: the user gives the probable output, and the drafter aligns it with what is written.
//!
//! If a file is edited or a text corrected, most of the answer is known before it is written. A cursor starts at the
//! beginning of the prediction; a token that agrees moves it on, and the prediction from the cursor on is proposed, as
//! one chain. If the output differs, the cursor is lost and is searched for again:
//!
//! 1. near the position of the difference ([`NEAR_MAX`]), where the last tokens written, two at least, occur: the
//!    longest match, of ties the nearest. That finds words that were inserted, left out or replaced;
//! 2. anywhere that the last three or more occur, at a few positions ahead and behind, if that match is clearly longer:
//!    a part that was moved, or long insertions and omissions. They are found by an index of 3-grams, 4 bytes per
//!    token, which is built by sorting when the sequence begins;
//! 3. until then the cursor is guessed, each guess a branch: tokens were left out before the last one, if that occurs a
//!    little ahead; as many tokens were replaced; or what was written was inserted.
//!
//! So a token takes a bounded number of comparisons and two binary searches, and only if the output differs. How often
//! each kind of guess is right is counted for the sequence and given as evidence; after a new match the estimate starts
//! low and grows with each token that agrees.
//!
//! One alignment is followed at a time. A tree of all matches is suffix matching ([`crate::SuffixDrafter`]), which uses
//! predictions too.

use std::collections::BTreeMap;

use crate::frontier::Frontier;
use foretoken_speculation::{Ask, Drafter, Opening};
use foretoken_speculation::{Chance, Evidence, NodeId, Proposal, SequenceId, Token};

mod index;

use index::Index;

/// How many tokens after a difference are searched for the cursor, as long as no more were written since.
const NEAR_MAX: usize = 64;
/// Maximum number of tokens that are guessed to be left out before a token that was just written.
const GAP_MAX: usize = 16;
/// How many tokens after a difference the cursor is guessed.
const GUESSED_MAX: usize = 12;
/// Minimum number of tokens that must match near the position of a difference.
const MATCH_MIN: usize = 2;
/// By how many tokens a match elsewhere must be longer than one that is near.
const FAR_EXCESS_MIN: usize = 2;
/// Matches are not followed further back than this.
const MATCH_MAX: usize = 16;
/// How many tokens in a row must agree for the cursor to be certain.
const CERTAIN_RUN_MIN: usize = 4;
/// Prior of the tokens of a prediction that agree: right tokens, and all tokens.
const FOLLOWED_PRIOR: (f32, f32) = (19.0, 20.0);
/// Kinds of guesses while the cursor is lost, each with the fraction that is expected to be right.
const KINDS: [f32; 3] = [0.5, 0.3, 0.2];
/// Weight of that expectation, in guesses.
const KIND_PRIOR: f32 = 4.0;

/// A [`Drafter`] that follows the prediction of a request. Proposes point masses; needs no model and no chance, and
/// proposes nothing for sequences without a prediction.
#[derive(Debug)]
pub struct PredictionDrafter {
    /// A node is not proposed if the estimated probability that it is accepted is below this, 0 to 1.
    pub gain_min: f32,
    running: BTreeMap<SequenceId, Running>,
    frontier: Frontier<Guess>,
}

impl Default for PredictionDrafter {
    fn default() -> PredictionDrafter {
        PredictionDrafter { gain_min: 0.01, running: BTreeMap::new(), frontier: Frontier::default() }
    }
}

/// The state of a sequence that has a prediction.
#[derive(Debug)]
struct Running {
    prediction: Index,
    /// The number of leading tokens of the sequence that the cursor has passed, those of the prompt included.
    read: usize,
    cursor: Cursor,
}

/// The position of the output in the prediction.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
struct Cursor {
    /// The position of the prediction that is expected to be written next; `None` while the cursor is lost.
    next: Option<usize>,
    /// Tokens in a row that agree.
    run: usize,
    /// The last certain position.
    certain: usize,
    /// The number of tokens that were written since then.
    since: usize,
    /// The number of tokens after a certain position that agreed, and the number of all of them.
    followed: (f32, f32),
    /// The numbers of right guesses and of all guesses, for each kind.
    guessed: [(f32, f32); KINDS.len()],
}

/// A token of the prediction that may be offered.
#[derive(Copy, Clone, Debug)]
struct Guess {
    parent: Option<NodeId>,
    at: usize,
    /// Tokens in a row that will agree before it.
    run: usize,
    acceptance: f32,
    gain: f32,
}

impl Cursor {
    /// Advances by the last of the tokens written.
    fn step(&mut self, prediction: &Index, written: &[Token]) {
        let Some(&token) = written.last() else { return };
        let agrees = |at: usize| prediction.tokens().get(at) == Some(&token);
        self.since += 1;
        match self.next {
            Some(next) if agrees(next) => {
                self.count_followed(true);
                (self.next, self.run) = (Some(next + 1), self.run + 1);
                if self.run >= CERTAIN_RUN_MIN {
                    (self.certain, self.since) = (next + 1, 0);
                }
                return;
            }
            Some(next) if next < prediction.tokens().len() => self.count_followed(false),
            _ => {}
        }
        let guesses = self.guesses(prediction, &written[..written.len() - 1]);
        for (count, at) in self.guessed.iter_mut().zip(guesses) {
            let Some(at) = at else { continue };
            *count = (count.0 + f32::from(u8::from(agrees(at))), count.1 + 1.0);
        }
        let guessed = guesses.into_iter().flatten().find(|at| agrees(*at)).map(|at| (at + 1, 1));
        let found = self.find(prediction, written).or(guessed);
        (self.next, self.run) = (found.map(|(next, _)| next), found.map_or(0, |(_, run)| run));
    }

    fn count_followed(&mut self, agrees: bool) {
        if self.run >= CERTAIN_RUN_MIN {
            let (right, all) = self.followed;
            self.followed = (right + f32::from(u8::from(agrees)), all + 1.0);
        }
    }

    /// The position at which the output continues, with the length of the match before it.
    fn find(&self, prediction: &Index, written: &[Token]) -> Option<(usize, usize)> {
        let tokens = prediction.tokens();
        let matched = |next: usize| (next, matched(&tokens[..next], written));
        // Of ties the first is kept: `max_by_key` would take the last.
        let longer = |best: Option<(usize, usize)>, found: (usize, usize)| match best {
            Some(best) if best.1 >= found.1 => Some(best),
            _ => Some(found),
        };
        let end = if self.since <= NEAR_MAX { tokens.len().min(self.certain + NEAR_MAX) } else { 0 };
        let near = (self.certain + 1..=end).map(matched).filter(|found| found.1 >= MATCH_MIN).fold(None, longer);
        let far = prediction.positions(written, self.certain).map(matched).fold(None, longer);
        let needed = near.map_or(0, |near| near.1 + FAR_EXCESS_MIN);
        far.filter(|far| far.1 >= needed).or(near)
    }

    /// The possible positions of a lost cursor, one per kind of guess: tokens were left out before the last one;
    /// replaced by as many; or inserted.
    fn guesses(&self, prediction: &Index, written: &[Token]) -> [Option<usize>; KINDS.len()] {
        if self.next.is_some() || self.since > GUESSED_MAX {
            return [None; KINDS.len()];
        }
        let tokens = prediction.tokens();
        let ahead = tokens.iter().skip(self.certain + 1).take(GAP_MAX);
        let left_out = written.last().and_then(|last| ahead.clone().position(|token| token == last));
        let left_out = left_out.map(|skipped| self.certain + skipped + 2);
        [left_out, Some(self.certain + self.since), Some(self.certain)].map(|at| at.filter(|at| *at < tokens.len()))
    }

    /// Estimated probability that the prediction is right after `run` tokens in a row that agree.
    fn acceptance(&self, run: usize) -> f32 {
        let right = (self.followed.0 + FOLLOWED_PRIOR.0) / (self.followed.1 + FOLLOWED_PRIOR.1);
        let run = run as f32;
        right * (run + 1.0) / (run + 1.5)
    }

    /// Adds the tokens that may be written next to the frontier.
    fn begin(&self, prediction: &Index, written: &[Token], frontier: &mut Frontier<Guess>) {
        if let Some(at) = self.next {
            let acceptance = self.acceptance(self.run);
            frontier.push(acceptance, Guess { parent: None, at, run: self.run, acceptance, gain: acceptance });
            return;
        }
        let guesses = self.guesses(prediction, written);
        for (kind, at) in guesses.into_iter().enumerate() {
            let token = |at: usize| prediction.tokens().get(at);
            // One offer per token: by the first kind of guess that has it.
            let is_offered = |at: usize| guesses[..kind].iter().flatten().any(|other| token(*other) == token(at));
            let Some(at) = at.filter(|at| !is_offered(*at)) else { continue };
            let (right, all) = self.guessed[kind];
            let acceptance = (right + KIND_PRIOR * KINDS[kind]) / (all + KIND_PRIOR);
            frontier.push(acceptance, Guess { parent: None, at, run: 0, acceptance, gain: acceptance });
        }
    }
}

/// How many last tokens two sequences have in common, up to [`MATCH_MAX`].
fn matched(text: &[Token], other: &[Token]) -> usize {
    let pairs = text.iter().rev().zip(other.iter().rev()).take(MATCH_MAX);
    pairs.take_while(|(a, b)| a == b).count()
}

impl PredictionDrafter {
    fn propose(&mut self, ask: &mut Ask<'_>) {
        // Most sequences have no prediction.
        let Some(Running { prediction, read, cursor }) = self.running.get_mut(&ask.sequence) else { return };
        let answer = |len: usize| &ask.tokens[ask.prompt_len..len];
        for len in *read..ask.written_len {
            cursor.step(prediction, answer(len + 1));
        }
        *read = ask.written_len.max(*read);
        // Tokens that a draft model has drafted advance a copy of the cursor.
        let mut cursor = *cursor;
        for len in ask.written_len..ask.tokens.len() {
            cursor.step(prediction, answer(len + 1));
        }
        let gain_min = ask.gain_min(self.gain_min);
        self.frontier.clear();
        cursor.begin(prediction, answer(ask.tokens.len()), &mut self.frontier);
        while let Some(Guess { parent, at, run, acceptance, gain }) = self.frontier.pop() {
            let Some(&token) = prediction.tokens().get(at) else { continue };
            if gain < gain_min || !ask.has_room_for(parent, token) {
                return;
            }
            let evidence = Evidence::estimate(acceptance);
            let node = ask.tree.suggest(parent, token, Proposal::Point, ask.source, evidence);
            if ask.is_confident(acceptance, gain) {
                let acceptance = cursor.acceptance(run + 1);
                let next = Guess { parent: Some(node), at: at + 1, run: run + 1, acceptance, gain: gain * acceptance };
                self.frontier.push(next.gain, next);
            }
        }
    }
}

impl Drafter for PredictionDrafter {
    fn name(&self) -> &str {
        "prediction"
    }

    fn open(&mut self, opening: &Opening<'_>) {
        if opening.prediction.is_empty() {
            return;
        }
        let cursor = Cursor { next: Some(0), ..Cursor::default() };
        let prediction = Index::new(opening.prediction);
        let running = Running { prediction, read: opening.prompt.len(), cursor };
        let before = self.running.insert(opening.sequence, running);
        assert!(before.is_none(), "{:?} was opened twice", opening.sequence);
    }

    fn draft(&mut self, asks: &mut [Ask<'_>], _chance: &mut dyn Chance) {
        asks.iter_mut().for_each(|ask| self.propose(ask));
    }

    fn close(&mut self, sequence: SequenceId) {
        self.running.remove(&sequence);
    }
}

#[cfg(test)]
mod tests;
