//! A draft model drafts for a beam search by a beam search of its own.
//!
//! The hypotheses are a tree behind the tokens that they share, and the draft model caches it as such: the rows of the
//! hypotheses' last tokens are run in one pass, their best continuations by the sums of both models' scores are
//! proposed (those that a search of this width would continue, and the next best), and the rows of these are run in the
//! next pass. A hypothesis whose scores are known from the target is not run in the first one. Rows stay cached while
//! the shared tokens stay the same, so a pass runs few more rows than there are hypotheses. When the search has more
//! tokens in common, the rows after them are run again, which is about every tenth step.
//!
//! A constraint is not applied: tokens that it forbids may be proposed, and are rows that nothing continues.

use super::ModelDrafter;
use super::cache::Cached;
use crate::Scorer;
use foretoken_speculation::{BeamAsk, BeamLeaf, Context, Sampling, Scratch, Token};

/// Rows of dropped hypotheses that stay cached, besides as many as the others have.
const DEAD_ROWS: usize = 128;

/// A hypothesis of the draft.
struct Draft<'a> {
    /// The row of its last token in the ask.
    row: u32,
    /// That row in the cache.
    cached: u32,
    /// Its tokens after the shared ones.
    path: Vec<Token>,
    log_probability: f64,
    /// The best scores after it, if they are known from the target.
    scores: Option<&'a [(Token, f32)]>,
}

impl<S: Scorer> ModelDrafter<S> {
    /// As [`foretoken_speculation::Drafter::draft_beams`].
    pub(super) fn draft_for_beams<'a>(&mut self, ask: &mut BeamAsk<'a>) {
        let paths: Vec<Vec<Token>> = ask.beams.iter().map(|beam| ask.path(beam.row)).collect();
        let longest = paths.iter().map(Vec::len).max().unwrap_or(0);
        if ask.tokens.len() + longest + ask.depth_max > self.scorer.context_max() {
            return;
        }
        let cached = self.caches.get_mut(&ask.sequence);
        let cached = cached.unwrap_or_else(|| panic!("{:?} was not opened", ask.sequence));
        let rows: usize = paths.iter().map(Vec::len).sum();
        let is_small = cached.tokens.len() <= 2 * rows + DEAD_ROWS;
        if cached.in_pass || cached.committed != ask.tokens || !is_small {
            cached.catch_up(ask.sequence, ask.tokens, &mut self.scorer);
            cached.adopt(ask.sequence, ask.tokens, &mut self.scorer);
        }
        let draft = |(path, beam): (Vec<Token>, &BeamLeaf<'a>)| {
            let BeamLeaf { row, log_probability, scores } = *beam;
            let cached = row_of_path(cached, &path, scores.is_none());
            Draft { row, cached, path, log_probability, scores }
        };
        let mut drafts: Vec<Draft<'a>> = paths.into_iter().zip(ask.beams).map(draft).collect();
        let mut scratch = Scratch::default();
        for step in 1..=ask.depth_max {
            if !self.run_beams(ask, &drafts) {
                return;
            }
            let next = self.best_continuations(ask, &drafts, &mut scratch);
            let cached = self.caches.get_mut(&ask.sequence).expect("opened, or nothing was run");
            let go_on = |(at, token, log_probability): (usize, Token, f64)| {
                let before = &drafts[at];
                let row = ask.propose(before.row, token);
                let new = if step < ask.depth_max { cached.add_row(Some(before.cached), token) } else { 0 };
                let path = [&before.path[..], &[token]].concat();
                Draft { row, cached: new, path, log_probability, scores: None }
            };
            drafts = next.into_iter().map(go_on).collect();
            if drafts.is_empty() {
                return;
            }
        }
    }

    /// Runs the rows of the last tokens of these hypotheses, of those without scores, and those before them that are
    /// not cached. Returns whether there are logits or nothing to run.
    fn run_beams(&mut self, ask: &BeamAsk<'_>, drafts: &[Draft<'_>]) -> bool {
        if drafts.iter().all(|draft| draft.scores.is_some()) {
            return true;
        }
        let cached = self.caches.get_mut(&ask.sequence).expect("opened, or catching up had failed");
        cached.in_pass = true;
        let unread = ask.tokens.len() - cached.committed.len();
        let mut span = cached.span(ask.tokens, unread > 0);
        let unscored = drafts.iter().filter(|draft| draft.scores.is_none());
        span.wanted = unscored.map(|draft| unread as u32 + draft.cached).collect();
        self.rows.clear();
        self.scorer.score(&[span.ask(ask.sequence, ask.tokens.len())], &mut self.rows);
        self.work.passes += 1;
        let has_run = (0..self.rows.len()).any(|row| self.rows.row(row).is_some());
        cached.in_pass = false;
        if has_run {
            self.work.read += unread as u64;
            cached.committed.extend_from_slice(&ask.tokens[ask.tokens.len() - unread..]);
            cached.computed = cached.tokens.len();
        }
        cached.truncate(cached.computed);
        has_run
    }

    /// The best continuations of these hypotheses; the logits of those without scores are those of the last pass. Each
    /// has the index of its hypothesis, its token and its log-probability. End tokens are left out, since no hypothesis
    /// goes on after one.
    fn best_continuations(
        &self,
        ask: &BeamAsk<'_>,
        drafts: &[Draft<'_>],
        scratch: &mut Scratch,
    ) -> Vec<(usize, Token, f64)> {
        let row_tokens = self.rows.row_tokens();
        // Settings name tokens of the whole vocabulary.
        let plain = Sampling::default();
        let sampling = if row_tokens.is_some() { &plain } else { ask.sampling };
        let (mut all, mut best, mut rows) = (Vec::new(), Vec::new(), 0..);
        for (at, draft) in drafts.iter().enumerate() {
            best.clear();
            if let Some(scores) = draft.scores {
                best.extend_from_slice(scores);
            } else if let Some(logits) = rows.next().and_then(|row| self.rows.row(row)) {
                let (tokens, prompt_len) = (ask.tokens, ask.prompt_len);
                let context = Context { tokens, prompt_len, path: &draft.path, constraint: None };
                let count = ask.width + ask.sampling.end_tokens.len();
                sampling.best_scores(logits, &context, count, scratch, &mut best);
                let tokens = row_tokens.unwrap_or_default();
                best.iter_mut().for_each(|(token, _)| *token = *tokens.get(*token as usize).unwrap_or(token));
            }
            let goes_on = best.iter().filter(|(token, _)| !ask.sampling.end_tokens.contains(token));
            all.extend(goes_on.map(|&(token, score)| (at, token, draft.log_probability + f64::from(score))));
        }
        all.sort_by(|a, b| b.2.total_cmp(&a.2));
        // First those that a search of as many hypotheses would continue.
        let (mut own, mut others) = (Vec::with_capacity(ask.width), Vec::new());
        for candidate in all {
            let is_own = candidate.0 < ask.beams_max && own.len() < ask.beams_max;
            if is_own { own.push(candidate) } else { others.push(candidate) }
        }
        others.truncate(ask.width - own.len());
        own.append(&mut others);
        own
    }
}

/// The row of the last token of a path, after rows for those before it, which are added where there are none. If the
/// last token's logits are wanted, its row is a new one even if there is one already.
fn row_of_path(cached: &mut Cached, path: &[Token], is_wanted: bool) -> u32 {
    let (last, before) = path.split_last().expect("a hypothesis has tokens");
    let parent = before.iter().fold(None, |row, token| Some(cached.row_of(row, *token)));
    if is_wanted { cached.add_row(parent, *last) } else { cached.row_of(parent, *last) }
}
