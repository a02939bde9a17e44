//! The search: which hypotheses go on, which have ended, and when no better one can come.
//!
//! The steps are those of transformers (5.24, `_beam_search`). At each step the best *candidates*, continuations of a
//! running hypothesis by one token, are chosen by the sum of their scores, `max(2, 1 + end tokens)` times as many as
//! there are beams, so that enough of them go on. A candidate that ends (by an end token, a stop string or its length)
//! becomes a finished hypothesis if it is among the best `beams` candidates; the best others run on. Finished ones are
//! ranked by their sum divided by their length, end token included, to the power of the length penalty.
//!
//! What transformers leaves open or does in tensors: sums are `f64` of `f32` scores, ties go to the better hypothesis
//! before the step and then to the lower token (`torch.topk` has no order), a finished hypothesis comes before a later
//! one of the same rank, and impossible tokens are no candidates, so there may be fewer hypotheses than beams.

use foretoken_speculation::{Constrained, Token};
use foretoken_text::{StopMatcher, TextStream};

use super::{BeamSearch, BeamStep, EarlyStopping};
use crate::output::FinishReason;

/// What decides where a hypothesis ends and what it may write, besides its tokens.
#[derive(Clone, Debug, Default)]
pub(crate) struct Writing {
    /// The constraint, which has accepted the hypothesis' tokens.
    pub(crate) constraint: Option<Constrained>,
    /// Its text and the stop strings that are looked for in it; `None` without stop strings.
    pub(crate) text: Option<(TextStream, StopMatcher)>,
}

impl Writing {
    /// Adds a token. Returns the stop string that it completes, if any.
    fn push(&mut self, token: Token) -> Option<String> {
        let (stream, stop) = self.text.as_mut()?;
        stop.push(&stream.push(token)).stopped.then(|| stop.matched().unwrap_or_default().to_string())
    }

    /// Lets the constraint follow a token; false if it refuses what it allowed.
    fn follow(&self, token: Token) -> bool {
        self.constraint.as_ref().is_none_or(|constraint| constraint.advance(&[token]))
    }
}

/// A hypothesis that runs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hypothesis {
    /// The generated tokens.
    pub(crate) tokens: Vec<Token>,
    /// The sum of their scores.
    pub(crate) log_probability: f64,
    pub(crate) writing: Writing,
    /// The row of its last token in the tree; `None` before its first token.
    pub(crate) row: Option<u32>,
    /// The best scores after it, if they are known from a pass that it was drafted for.
    pub(crate) scores: Option<Vec<(Token, f32)>>,
}

/// A hypothesis that has ended.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Ended {
    pub(crate) tokens: Vec<Token>,
    pub(crate) log_probability: f64,
    pub(crate) score: f64,
    pub(crate) reason: FinishReason,
}

/// A continuation of a running hypothesis by one token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Candidate {
    /// The index of the hypothesis.
    beam: usize,
    token: Token,
    log_probability: f64,
}

/// A beam search.
#[derive(Debug)]
pub(crate) struct Search {
    settings: BeamSearch,
    end_tokens: Vec<Token>,
    /// Maximum number of generated tokens, and the reason of hypotheses that reach it.
    len_max: (usize, FinishReason),
    /// The hypotheses that run, the best first, all of the same length.
    running: Vec<Hypothesis>,
    /// The hypotheses that have ended, the best first.
    ended: Vec<Ended>,
    is_over: bool,
}

impl Search {
    /// A search from one hypothesis that has written nothing.
    pub(crate) fn new(
        settings: BeamSearch,
        end_tokens: &[Token],
        len_max: (usize, FinishReason),
        writing: Writing,
    ) -> Self {
        let mut end_tokens = end_tokens.to_vec();
        end_tokens.sort_unstable();
        end_tokens.dedup();
        let running = vec![Hypothesis { writing, ..Hypothesis::default() }];
        Self { settings, end_tokens, len_max, running, ended: Vec::new(), is_over: false }
    }

    /// The hypotheses that run, the best first.
    pub(crate) fn running(&self) -> &[Hypothesis] {
        &self.running
    }

    /// As [`Search::running`], to change their rows.
    pub(crate) fn running_mut(&mut self) -> &mut Vec<Hypothesis> {
        &mut self.running
    }

    /// Maximum number of hypotheses that run.
    pub(crate) fn beams_max(&self) -> usize {
        self.settings.beams
    }

    /// How many hypotheses are drafted for each step if nothing decides it by costs: more than there are beams, since a
    /// draft must contain all.
    pub(crate) fn draft_width(&self) -> usize {
        self.settings.beams + self.settings.beams.div_ceil(2)
    }

    /// The kind of the step that is made next, for what is drafted of it.
    pub(crate) fn step_kind(&self) -> BeamStep {
        let is_partly_known = self.running.iter().any(|hypothesis| hypothesis.scores.is_some());
        if is_partly_known { BeamStep::PartlyKnown } else { BeamStep::First }
    }

    /// Number of generated tokens of the hypotheses that run.
    pub(crate) fn len(&self) -> usize {
        self.running.first().map_or(0, |hypothesis| hypothesis.tokens.len())
    }

    /// The last token of each running hypothesis, and the row that it continues after a step.
    pub(crate) fn last_tokens(&self) -> impl Iterator<Item = (Option<u32>, Token)> {
        self.running.iter().filter_map(|hypothesis| Some((hypothesis.row, *hypothesis.tokens.last()?)))
    }

    /// Whether a hypothesis has ended.
    pub(crate) fn has_ended(&self) -> bool {
        !self.ended.is_empty()
    }

    /// Whether it has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Tokens that a running hypothesis may still write.
    pub(crate) fn tokens_left(&self) -> usize {
        self.len_max.0 - self.len()
    }

    /// How many candidates are chosen, and so how many scores of each row are needed.
    pub(crate) fn candidates_max(&self) -> usize {
        (1 + self.end_tokens.len()).max(2) * self.settings.beams
    }

    /// The hypotheses that are returned, the best first.
    pub(crate) fn into_ended(mut self) -> Vec<Ended> {
        self.ended.truncate(self.settings.returned);
        self.ended
    }

    /// Chooses the candidates, given the best scores after each running hypothesis: the best first.
    pub(crate) fn candidates(&self, scores: &[Vec<(Token, f32)>]) -> Vec<Candidate> {
        let mut all: Vec<Candidate> = Vec::with_capacity(scores.iter().map(Vec::len).sum());
        for (beam, (hypothesis, scores)) in self.running.iter().zip(scores).enumerate() {
            let sum = |score: f32| hypothesis.log_probability + f64::from(score);
            all.extend(scores.iter().map(|&(token, score)| Candidate { beam, token, log_probability: sum(score) }));
        }
        all.sort_by(|a, b| {
            b.log_probability.total_cmp(&a.log_probability).then((a.beam, a.token).cmp(&(b.beam, b.token)))
        });
        all.truncate(self.candidates_max());
        all
    }

    /// Makes a step with these candidates. The row of a new hypothesis is that of the one it continues. Returns false
    /// if a constraint refuses a token that it allowed.
    pub(crate) fn advance(&mut self, candidates: &[Candidate]) -> bool {
        let beams = self.settings.beams;
        let (mut next, mut is_followed) = (Vec::with_capacity(beams), true);
        let is_full = self.settings.early_stopping == EarlyStopping::True && self.ended.len() == beams;
        for (rank, candidate) in candidates.iter().enumerate() {
            let before = &self.running[candidate.beam];
            let is_end = self.end_tokens.binary_search(&candidate.token).is_ok();
            let mut writing = None;
            let stopped = if is_end || before.writing.text.is_none() {
                None
            } else {
                writing.insert(before.writing.clone()).push(candidate.token)
            };
            let is_last = before.tokens.len() + 1 >= self.len_max.0;
            let reason = match stopped {
                _ if is_end => Some(FinishReason::EndToken(candidate.token)),
                Some(stop) => Some(FinishReason::StopString(stop)),
                None => is_last.then(|| self.len_max.1.clone()),
            };
            if reason.is_none() && next.len() < beams {
                let writing = writing.unwrap_or_else(|| before.writing.clone());
                is_followed &= writing.follow(candidate.token);
                let tokens = continued(&before.tokens, candidate.token);
                let (log_probability, row) = (candidate.log_probability, before.row);
                next.push(Hypothesis { tokens, writing, log_probability, row, scores: None });
            }
            if let Some(reason) = reason.filter(|_| rank < beams && !is_full) {
                self.end(candidate, reason);
            }
        }
        self.running = next;
        self.is_over = !self.can_improve() || self.settings.early_stopping == EarlyStopping::True && self.is_full();
        is_followed
    }

    /// Whether as many hypotheses have ended as there are beams.
    fn is_full(&self) -> bool {
        self.ended.len() == self.settings.beams
    }

    /// Adds a hypothesis that ends with this candidate to those that have ended.
    fn end(&mut self, candidate: &Candidate, reason: FinishReason) {
        let tokens = continued(&self.running[candidate.beam].tokens, candidate.token);
        let score = self.score(candidate.log_probability, tokens.len());
        let at = self.ended.partition_point(|other| other.score >= score);
        self.ended.insert(at, Ended { tokens, log_probability: candidate.log_probability, score, reason });
        self.ended.truncate(self.settings.beams);
    }

    /// The score of a hypothesis of this many tokens.
    fn score(&self, log_probability: f64, len: usize) -> f64 {
        log_probability / (len as f64).powf(f64::from(self.settings.length_penalty))
    }

    /// Whether a running hypothesis may still become one of the best, by the estimate that the settings name
    /// (`_check_early_stop_heuristic`).
    fn can_improve(&self) -> bool {
        let Some(best) = self.running.first() else { return false };
        let favours_long = self.settings.length_penalty > 0.0;
        let len = match self.settings.early_stopping {
            EarlyStopping::Never if favours_long => self.len_max.0,
            _ => best.tokens.len(),
        };
        let worst = self.ended.last().filter(|_| self.is_full());
        worst.is_none_or(|worst| self.score(best.log_probability, len) > worst.score)
    }
}

/// These tokens and one more.
fn continued(tokens: &[Token], token: Token) -> Vec<Token> {
    let mut all = Vec::with_capacity(tokens.len() + 1);
    all.extend_from_slice(tokens);
    all.push(token);
    all
}
