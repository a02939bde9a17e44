//! A request that waits or runs: its tokens, its cache state, and its draft in this pass.
//!
//! The cached length is at most the number of tokens minus one: the last token is pending, the root of the next
//! tree. Forced tokens are written without a pass, so several may be pending: their rows are part of the next pass,
//! which wants the logits of the last only. The cached length is less during the prefill, and 0 again after a
//! preemption.

mod beams;
mod cache;
mod draft;
mod text;

use std::cmp::Reverse;
use std::ops::Range;
use std::time::Instant;

use foretoken_speculation::{Choice, Costs, Experience, NodeId, Policy, SequenceId, Token};

use crate::faults::{Fault, is_made};
use crate::output::{Emitted, FinishReason, Origin};
use crate::pages::Owner;
use crate::request::{BudgetKind, Request};
use crate::stats::{DrafterStats, Stats};
pub(crate) use beams::SequenceBeams;
pub(crate) use cache::{Phase, SequenceCache};
pub(crate) use draft::{HiddenRows, SequenceDraft};
pub(crate) use text::SequenceText;

/// The rows of a sequence in one pass; the memory is reused.
#[derive(Default)]
pub(crate) struct SpanRows {
    pub(crate) tokens: Vec<Token>,
    /// How many of the first rows were computed by earlier passes.
    pub(crate) computed: usize,
    /// Empty if the rows are a chain.
    pub(crate) parents: Vec<Option<u32>>,
    /// The rows whose logits are wanted: first those that score tokens of the prompt, then the pending token's, then
    /// the tree's and the probes'.
    pub(crate) wanted: Vec<u32>,
    /// How many of the wanted ones score tokens of the prompt.
    pub(crate) scored: usize,
    /// The rows whose hidden states are wanted: those of the prompt's tokens and the pending one, or of the pending one
    /// only, then the tree's.
    pub(crate) hidden: Vec<u32>,
}

/// The last rows of a prompt that are computed for heads even if they are cached, since a head reads only hidden states
/// that it has observed. Measured with the head of SmolLM2-135M after prompts of at least 200 tokens, in tokens per
/// pass: the last row alone 1.72, 64 rows 1.83, 256 rows 2.01, all 2.10. More rows than 64 pay only for long answers
/// (`docs/log.md`).
const HIDDEN_PROMPT_ROWS: usize = 64;

/// A checkpoint is kept at the position at which a sequence diverges from a known one if it covers at least this many
/// tokens beyond the cached ones: it takes an additional pass, which on most machines costs as much as some rows.
const CHECKPOINT_TOKENS_MIN: usize = 8;
/// Maximum number of rows of a prompt that may be stored as inputs after a state: the beginning of an answer is
/// shorter.
const INPUT_ROWS_MAX: usize = 16;

/// How many tokens a sequence has emitted.
#[derive(Clone, Copy)]
pub(crate) struct OutputCounts {
    /// All of them.
    pub(crate) emitted: usize,
    /// Of these, forced ones without a pass.
    pub(crate) skipped: usize,
}

/// Maximum number of pending tokens of a sequence that decodes; more are computed first, like a prompt.
pub(crate) const PENDING_TOKENS_MAX: usize = 16;

/// A request that waits or runs.
pub(crate) struct Sequence {
    pub(crate) id: SequenceId,
    pub(crate) request: Request,
    /// The request's number, which addresses its random draws under *rejection*.
    pub(crate) request_number: u64,
    /// The owner of its cache rows.
    pub(crate) owner: Owner,
    pub(crate) text: SequenceText,
    pub(crate) cache: SequenceCache,
    pub(crate) draft: SequenceDraft,
    /// Its rows in this pass.
    pub(crate) rows: SpanRows,
    /// Its beam search, if it asks for one and has read the prompt.
    pub(crate) beams: Option<SequenceBeams>,
    pub(crate) stats: Stats,
    pub(crate) finished: Option<FinishReason>,
    /// Whether it has run before, so that its drafters are open.
    pub(crate) opened: bool,
    /// How often a later sequence was admitted before it.
    pub(crate) bypassed: usize,
    submitted: Instant,
}

impl Sequence {
    pub(crate) fn new(id: SequenceId, request: Request, context: usize, drafters: usize) -> Self {
        let prompt_len = request.prompt.len();
        let text = SequenceText::new(&request, context);
        let writes = text.limit > prompt_len;
        let own_drafters = if writes { request.drafters.clone() } else { Vec::new() };
        Self {
            id,
            request_number: 0,
            owner: Owner::default(),
            text,
            cache: SequenceCache::new(prompt_len),
            draft: SequenceDraft::new(&request, own_drafters),
            rows: SpanRows::default(),
            beams: None,
            stats: Stats {
                prompt_tokens: prompt_len,
                drafters: vec![DrafterStats::default(); drafters],
                lossy_lenience: request
                    .lenience()
                    .filter(|_| writes && !request.drafters.is_empty())
                    .map(|_| request.lossy_lenience),
                ..Stats::default()
            },
            // A request for no tokens ends before it is admitted.
            finished: (!writes && !request.prompt_log_probabilities).then_some(FinishReason::Length),
            opened: false,
            bypassed: 0,
            submitted: Instant::now(),
            request,
        }
    }

    /// Tokens without a cache row, the pending one included; those of all hypotheses of a beam search.
    pub(crate) fn uncached(&self) -> usize {
        let of_beams = self.beams.as_ref().map_or(0, |beams| beams.tree.len() - beams.tree.computed());
        self.text.tokens.len() - self.cache.cached + of_beams
    }

    /// Rows that it still needs: all that are not cached, except the last if it emits nothing.
    pub(crate) fn rows_left(&self) -> usize {
        self.uncached() - usize::from(self.text.limit == self.request.prompt.len())
    }

    /// Positions of the next `token_rows` rows whose logits score a token of the prompt that was not scored before:
    /// each scores the token after it.
    pub(crate) fn rows_to_score(&self, token_rows: usize) -> Range<usize> {
        if !self.request.prompt_log_probabilities {
            return 0..0;
        }
        let end = (self.cache.cached + token_rows).min(self.request.prompt.len() - 1);
        self.cache.cached.max(self.cache.scored.saturating_sub(1)).min(end)..end
    }

    /// How many of the next `token_rows` rows can be computed so that at most `most` score.
    pub(crate) fn cut_to_score(&self, token_rows: usize, most: usize) -> usize {
        let rows = self.rows_to_score(token_rows);
        if rows.len() <= most { token_rows } else { rows.start + most - self.cache.cached }
    }

    /// Decides at which positions of the prompt states are saved. `known_len`: the leading tokens that it shares with
    /// an earlier sequence; `len_to_save`: the length of a prefix that is to be saved.
    pub(crate) fn plan_checkpoints(&mut self, known_len: usize, len_to_save: Option<usize>) {
        let prompt_len = self.request.prompt.len();
        self.cache.checkpoints.clear();
        if self.stats.passes > 0 {
            return;
        }
        let Request { checkpoints, public_prefix, .. } = &self.request;
        let divergence = (known_len >= self.cache.cached + CHECKPOINT_TOKENS_MIN).then_some(known_len);
        let all =
            checkpoints.iter().copied().chain([*public_prefix, prompt_len - 1]).chain(divergence).chain(len_to_save);
        self.cache.checkpoints.extend(all.filter(|at| (self.cache.cached + 1..prompt_len).contains(at)));
        self.cache.checkpoints.sort_unstable();
        self.cache.checkpoints.dedup();
    }

    /// How many of the next `token_rows` rows are run, and how many of these recurrent states advance over. A pass ends
    /// where states are saved. Near the end of the prompt only the states stop there: the rows after it stay stored as
    /// inputs until the next pass, so that no additional pass is needed.
    pub(crate) fn stop_at_checkpoint(&self, token_rows: usize) -> [usize; 2] {
        let Some(at) = self.cache.next_checkpoint().filter(|at| *at < self.cache.cached + token_rows) else {
            // Only rows of the text are certain.
            return [token_rows, token_rows.min(self.text.tokens.len() - self.cache.cached)];
        };
        let rows = at - self.cache.cached;
        // A pass ends at the end of the public prefix, since the inputs after it belong to the tenant.
        let is_near =
            token_rows == self.uncached() && token_rows - rows <= INPUT_ROWS_MAX && at > self.request.public_prefix;
        [if is_near { token_rows } else { rows }, rows]
    }

    /// Sets how many leading rows are cached.
    pub(crate) fn set_cached(&mut self, cached: usize) {
        self.cache.cached = cached;
        self.cache.phase = if self.uncached() <= self.emitting_rows() { Phase::Decode } else { Phase::Prefill };
        if self.draft.hidden_rows != HiddenRows::None {
            self.cache.hidden_observed = self.cache.hidden_observed.max(cached);
        }
    }

    /// Whether it ended because it could not continue.
    pub(crate) fn has_failed(&self) -> bool {
        matches!(self.finished, Some(FinishReason::Failed(_)))
    }

    /// The number of leading tokens whose hidden states its drafters have observed or do not need, if they need any.
    pub(crate) fn hidden_observed(&self) -> usize {
        self.cache.hidden_observed
    }

    /// The first position whose hidden states its drafters still need; `usize::MAX` if they need none.
    fn hidden_from(&self) -> usize {
        match self.draft.hidden_rows {
            HiddenRows::None => usize::MAX,
            HiddenRows::Generated => self.cache.hidden_observed.max(self.request.prompt.len() - 1),
            HiddenRows::All => self.cache.hidden_observed,
        }
    }

    /// Its rank among all sequences: the lowest rank is first.
    pub(crate) fn rank(&self) -> (Reverse<i32>, SequenceId) {
        (Reverse(self.request.priority), self.id)
    }

    /// Maximum number of cached rows that it may adopt: it computes the last token's row, and rows whose hidden states
    /// or logits are needed.
    pub(crate) fn adopted_max(&self) -> usize {
        // A head needs only the end of a cached prompt.
        let enough = match self.draft.hidden_rows {
            HiddenRows::All => self.request.prompt.len().saturating_sub(HIDDEN_PROMPT_ROWS),
            HiddenRows::None | HiddenRows::Generated => 0,
        };
        let known = self.hidden_from().max(enough);
        let scores = self.request.prompt_log_probabilities
            && self.cache.scored < self.request.prompt.len()
            && !is_made(Fault::UnscoredAdopted);
        let scored = if scores { self.cache.scored.saturating_sub(1) } else { usize::MAX };
        known.min(scored).min(self.text.tokens.len() - 1)
    }

    /// Its pages were released between two passes: all rows are computed again, and its draft is discarded. Emitted
    /// tokens stay.
    pub(crate) fn preempt(&mut self) {
        self.forget_beam_rows();
        self.set_cached(0);
        if is_made(Fault::ScoredAgain) {
            self.cache.scored = self.cache.scored.min(1);
        }
        self.draft.discard();
        self.stats.preemptions += 1;
    }

    /// The number of tokens that it is still expected to emit.
    pub(crate) fn expected_tokens_left(&self) -> f64 {
        (self.text.tokens_left() as f64).min(self.draft.experience.answer_len())
    }

    /// Clears the draft of the last pass.
    pub(crate) fn clear_draft(&mut self, costs: &Costs) {
        self.draft.clear(&self.request, costs);
    }

    /// The input of the choice of nodes to verify.
    pub(crate) fn choice(&mut self) -> Choice<'_> {
        let Self { request, text: SequenceText { tokens, .. }, draft, .. } = self;
        let SequenceDraft { candidates, tree, experience, nodes_max, .. } = draft;
        let policy = match &request.budget {
            BudgetKind::Auto { .. } => Policy::ByCost,
            BudgetKind::Oracle { text, .. } => {
                let written = (tokens.len() - request.prompt.len()).min(text.len());
                Policy::Foreseen(&text[written..])
            }
            _ => Policy::Most,
        };
        let constraint = request.constraint.as_ref();
        Choice { promise: request.promise, policy, nodes_max: *nodes_max, constraint, experience, candidates, tree }
    }

    /// Fills `rows` with `token_rows` uncached tokens and, if they end with the last pending token, with the tree and
    /// the probes below it. An offered token outside the vocabulary is replaced by another in its row, which is not
    /// read.
    pub(crate) fn lay_out_rows(&mut self, token_rows: usize, vocabulary: usize) {
        if self.beams.is_some() {
            return self.lay_out_beams(token_rows);
        }
        let (to_score, hidden_from) = (self.rows_to_score(token_rows), self.hidden_from());
        let SpanRows { tokens, parents, wanted, scored, hidden, .. } = &mut self.rows;
        tokens.clear();
        parents.clear();
        wanted.clear();
        hidden.clear();
        *scored = to_score.len();
        wanted.extend(to_score.map(|row| (row - self.cache.cached) as u32));
        // Hidden states of rows that are computed again were observed before.
        hidden.extend(hidden_from.saturating_sub(self.cache.cached).min(token_rows) as u32..token_rows as u32);
        tokens.extend_from_slice(&self.text.tokens[self.cache.cached..self.cache.cached + token_rows]);
        if self.cache.cached + token_rows < self.text.tokens.len() {
            return;
        }
        let root = token_rows as u32 - 1;
        let drafted = self.draft.tree.tokens().iter().chain(self.draft.probes.tokens());
        tokens.extend(drafted.map(|token| if (*token as usize) < vocabulary { *token } else { 0 }));
        wanted.extend(root..tokens.len() as u32);
        if self.draft.hidden_rows != HiddenRows::None {
            hidden.extend(token_rows as u32..(token_rows + self.draft.tree.len()) as u32);
        }
        if !self.draft.tree.is_chain() || !self.draft.probes.is_empty() {
            parents.extend((0..token_rows as u32).map(|row| row.checked_sub(1)));
            let below =
                |parent: &Option<_>| parent.map_or(root, |node: NodeId| token_rows as u32 + node.index() as u32);
            parents.extend(self.draft.tree.parents().iter().map(|parent| Some(below(parent))));
            let first = (token_rows + self.draft.tree.len()) as u32;
            parents.extend(self.draft.probes.parents().iter().map(|at| Some(at.map_or(root, |at| first + at))));
        }
    }

    /// Adds a pass to the statistics and lets the budget learn. Only the first `emitted` tokens of the accepted path
    /// count: an end token or a stop string may have cut it. `overlaps`: sums of min(p, q), by drafter.
    pub(crate) fn count(
        &mut self,
        path: &[NodeId],
        emitted: usize,
        is_forced: impl Fn(NodeId) -> bool,
        overlaps: &[(u8, f64)],
    ) {
        let written = &path[..path.len().min(emitted)];
        self.stats.count(&self.draft.tree, written, is_forced, overlaps);
        self.draft.learn_budget(path);
    }

    /// How many tokens it has emitted.
    pub(crate) fn output_counts(&self) -> OutputCounts {
        OutputCounts { emitted: self.stats.emitted, skipped: self.stats.skipped }
    }

    /// Learns from the candidates of the pass how right its drafters were, for this sequence and for the `shared`
    /// experience of similar requests. `written`: tokens of the pass; `skipped`: forced tokens after them.
    pub(crate) fn learn(&mut self, written: usize, skipped: usize, shared: &mut Experience) {
        if self.draft.drafters.is_empty() && self.draft.asked.is_empty() {
            return;
        }
        let end = self.text.tokens.len() - skipped;
        let (written, drafters) = (&self.text.tokens[end - written..end], &mut self.stats.drafters);
        self.draft.learn(written, shared, |guess| {
            drafters[usize::from(guess.source)].judge(guess.acceptance, guess.right);
        });
    }

    /// Records that it is admitted for the first time.
    pub(crate) fn open(&mut self) {
        self.stats.time_waiting = self.submitted.elapsed();
    }

    /// Appends one chosen token. Adds the text that it completes, and sets `finished` if it ends the sequence.
    pub(crate) fn append(&mut self, mut emitted: Emitted) -> Emitted {
        let token = emitted.token;
        self.text.tokens.push(token);
        self.stats.emitted += 1;
        self.stats.forced += usize::from(emitted.origin == Origin::Forced);
        self.stats.time = self.submitted.elapsed();
        if emitted.pass <= 1 && self.stats.passes == 0 {
            self.stats.time_to_first_token = self.stats.time;
        }
        if self.request.sampling.end_tokens.contains(&token) {
            self.finished = Some(FinishReason::EndToken(token));
            return emitted;
        }
        let completed = self.text.complete(token);
        emitted.text = completed.text;
        if let Some(stop) = completed.stopped_by {
            self.finished = Some(FinishReason::StopString(stop));
        }
        if self.finished.is_none() && self.text.tokens_left() == 0 {
            let asked = self.request.tokens_max.is_some_and(|tokens| self.stats.emitted >= tokens);
            self.finished = Some(if asked { FinishReason::Length } else { FinishReason::Context });
        }
        emitted
    }

    /// The text that was held back, once the sequence has ended.
    pub(crate) fn held_text(&mut self) -> String {
        if matches!(self.finished, Some(FinishReason::StopString(_))) {
            return String::new();
        }
        self.text.release_held()
    }
}
