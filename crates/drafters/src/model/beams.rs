//! A draft model drafts for a beam search by a beam search of its own.
//!
//! The hypotheses are a tree behind the tokens that they share, and the draft model caches it as such: the rows of the
//! hypotheses' last tokens are run in one pass, their best continuations by the sums of both models' scores are
//! proposed (those that a search of this width would continue, and the next best), and the rows of these are run in the
//! next pass. Rows stay cached while the shared tokens stay the same, so a pass
//! runs few more rows than there are hypotheses. When the search has more tokens in common, the rows after them are run
//! again, which is about every tenth step.
//!
//! A constraint is not applied: tokens that it forbids may be proposed, and are rows that nothing continues.

use super::ModelDrafter;
use super::cache::Cached;
use crate::Scorer;
use foretoken_speculation::{BeamAsk, Context, Sampling, Scratch, Token};

/// Rows of dropped hypotheses that stay cached, besides as many as the others have.
const DEAD_ROWS: usize = 128;

/// A hypothesis of the draft.
struct Draft {
    /// The row of its last token in the ask.
    row: u32,
    /// That row in the cache.
    cached: u32,
    /// Its tokens after the shared ones.
    path: Vec<Token>,
    log_probability: f64,
}

impl<S: Scorer> ModelDrafter<S> {
    /// As [`foretoken_speculation::Drafter::draft_beams`].
    pub(super) fn draft_for_beams(&mut self, ask: &mut BeamAsk<'_>) {
        let paths: Vec<Vec<Token>> = ask.beams.iter().map(|(row, _)| ask.path(*row)).collect();
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
        let draft = |(path, (row, log_probability)): (Vec<Token>, &(u32, f64))| {
            let cached = row_of_path(cached, &path);
            Draft { row: *row, cached, path, log_probability: *log_probability }
        };
        let mut drafts: Vec<Draft> = paths.into_iter().zip(ask.beams).map(draft).collect();
        let mut scratch = Scratch::default();
        for step in 1..=ask.depth_max {
            if !self.run_beams(ask, &drafts) {
                return;
            }
            let next = self.best_continuations(ask, &drafts, &mut scratch);
            let cached = self.caches.get_mut(&ask.sequence).expect("opened, or nothing was run");
            let go_on = |(at, token, log_probability): (usize, Token, f64)| {
                let before: &Draft = &drafts[at];
                let row = ask.propose(before.row, token);
                let new = if step < ask.depth_max { cached.add_row(Some(before.cached), token) } else { 0 };
                Draft { row, cached: new, path: [&before.path[..], &[token]].concat(), log_probability }
            };
            drafts = next.into_iter().map(go_on).collect();
            if drafts.is_empty() {
                return;
            }
        }
    }

    /// Runs the rows of these hypotheses' last tokens, and those before them that are not cached. Returns whether there
    /// are logits.
    fn run_beams(&mut self, ask: &BeamAsk<'_>, drafts: &[Draft]) -> bool {
        let cached = self.caches.get_mut(&ask.sequence).expect("opened, or catching up had failed");
        cached.in_pass = true;
        let unread = ask.tokens.len() - cached.committed.len();
        let mut span = cached.span(ask.tokens, unread > 0);
        span.wanted = drafts.iter().map(|draft| unread as u32 + draft.cached).collect();
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

    /// The best continuations of these hypotheses, whose logits are those of the last pass: each with the index of its
    /// hypothesis, its token and its log-probability. End tokens are left out, since no hypothesis goes on after one.
    fn best_continuations(
        &self,
        ask: &BeamAsk<'_>,
        drafts: &[Draft],
        scratch: &mut Scratch,
    ) -> Vec<(usize, Token, f64)> {
        let row_tokens = self.rows.row_tokens();
        // Settings name tokens of the whole vocabulary.
        let plain = Sampling::default();
        let sampling = if row_tokens.is_some() { &plain } else { ask.sampling };
        let (mut all, mut best) = (Vec::new(), Vec::new());
        for (at, draft) in drafts.iter().enumerate() {
            let Some(logits) = self.rows.row(at) else { continue };
            let context =
                Context { tokens: ask.tokens, prompt_len: ask.prompt_len, path: &draft.path, constraint: None };
            let count = ask.width + ask.sampling.end_tokens.len();
            sampling.best_scores(logits, &context, count, scratch, &mut best);
            let token_of = |column: Token| row_tokens.map_or(column, |tokens| tokens[column as usize]);
            let scored = best.iter().map(|&(column, score)| (token_of(column), score));
            let goes_on = scored.filter(|(token, _)| !ask.sampling.end_tokens.contains(token));
            all.extend(goes_on.map(|(token, score)| (at, token, draft.log_probability + f64::from(score))));
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

/// Adds a row for the last token of a path, and rows for those before it that have none. The last token's logits are
/// wanted, so its row is a new one even if there is one already.
fn row_of_path(cached: &mut Cached, path: &[Token]) -> u32 {
    let (last, before) = path.split_last().expect("a hypothesis has tokens");
    let parent = before.iter().fold(None, |row, token| Some(cached.row_of(row, *token)));
    cached.add_row(parent, *last)
}
