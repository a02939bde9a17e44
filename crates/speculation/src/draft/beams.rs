//! The request to a drafter of a beam search: continuations of all hypotheses at once.

use crate::{Sampling, SequenceId, Token};

/// The request to a drafter to propose the next hypotheses of a beam search, several steps ahead.
///
/// A step of the search is accepted if all of the target's next hypotheses were proposed (Leviathan et al. 2023,
/// appendix A.4), so a drafter makes steps of the same search by its own law. What it proposes is never part of an
/// answer by itself, so every proposal is allowed.
#[derive(Debug)]
pub struct BeamAsk<'a> {
    /// The sequence, which was opened before.
    pub sequence: SequenceId,
    /// The tokens that all hypotheses begin with: the prompt and what was generated in common.
    pub tokens: &'a [Token],
    /// How many of `tokens` are the prompt.
    pub prompt_len: usize,
    /// The settings that the target's scores go through ([`Sampling::best_scores`]).
    pub sampling: &'a Sampling,
    /// The tokens after these, row by row: a tree of all hypotheses, and rows that belong to none.
    pub rows: &'a [Token],
    /// For each row the earlier one that it continues; `None`: it continues `tokens`.
    pub parents: &'a [Option<u32>],
    /// The hypotheses, the best first.
    pub beams: &'a [BeamLeaf<'a>],
    /// Maximum number of steps.
    pub depth_max: usize,
    /// How many hypotheses the search continues at most.
    pub beams_max: usize,
    /// Maximum number of proposals of each step: more than `beams_max`, since all of the next hypotheses have to be
    /// among them.
    pub width: usize,
    /// The proposals: a token and the row that it continues. They are numbered as rows after `rows`, and may continue
    /// each other.
    pub drafted: &'a mut Vec<(u32, Token)>,
}

/// A hypothesis of a beam search that is to be continued.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BeamLeaf<'a> {
    /// The row of its last token.
    pub row: u32,
    /// Its log-probability.
    pub log_probability: f64,
    /// The target's best scores after it, the highest first, if an earlier pass has yielded them because the hypothesis
    /// was proposed: its continuations need no guess.
    pub scores: Option<&'a [(Token, f32)]>,
}

impl BeamAsk<'_> {
    /// The tokens from the first row to this one.
    pub fn path(&self, row: u32) -> Vec<Token> {
        let mut path: Vec<Token> = Vec::new();
        let mut at = Some(row);
        while let Some(row) = at {
            path.push(self.rows[row as usize]);
            at = self.parents[row as usize];
        }
        path.reverse();
        path
    }

    /// Proposes a token after a row. Returns its own row.
    pub fn propose(&mut self, row: u32, token: Token) -> u32 {
        self.drafted.push((row, token));
        (self.rows.len() + self.drafted.len() - 1) as u32
    }
}
