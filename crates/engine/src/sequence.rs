//! One text in the making: its tokens, how many of them are cached, its pages, and its state as text.
//!
//! The cached length is at most the number of tokens minus one: the last token is pending, the root of the next
//! tree. Forced tokens are written without a pass, so several may be pending: their rows ride in the next pass, and of
//! the last alone logits are asked. While a prompt is being computed the cached length is less, and when a sequence had
//! to give its pages away it is 0 again.
//! Everything else kept here is advanced by emitted tokens alone, so nothing has to go back when a draft is refused or
//! rows are computed again.

use std::cmp::Reverse;
use std::ops::Range;
use std::time::Instant;

use foretoken_speculation::budget::{Budget, Outcome};
use foretoken_speculation::{Choice, Costs, DraftTree, Experience, NodeId, Policy, Probes, SequenceId, Token};
use foretoken_text::{StopMatcher, TextStream};

use crate::faults::{Fault, is_made};
use crate::output::{Drafted, Emitted, FinishReason, Origin};
use crate::pages::{Owner, SequencePages};
use crate::request::{BudgetKind, Order, Request};
use crate::stats::{DrafterStats, Stats};

/// The rows of a sequence in one pass, kept for their memory.
#[derive(Default)]
pub(crate) struct SpanRows {
    pub(crate) tokens: Vec<Token>,
    /// Empty if the rows are a chain.
    pub(crate) parents: Vec<Option<u32>>,
    /// Those whose logits are wanted: first those that score tokens of the prompt, then the pending token's and those
    /// below it.
    pub(crate) wanted: Vec<u32>,
    /// How many of them score tokens of the prompt.
    pub(crate) scored: usize,
    /// Those whose hidden states are wanted: of a prompt's tokens and the pending one or of that alone, then the
    /// tree's.
    pub(crate) hidden: Vec<u32>,
}

/// Last rows of a prompt that are computed for heads, whoever has them: what was not told cannot be read. Measured with
/// the head of SmolLM2-135M behind prompts of 200 tokens and more, tokens a pass: the last row alone 1.72, 64 rows
/// 1.83, 256 rows 2.01, all 2.10. More rows than 64 pay in long answers only (`docs/log.md`).
const HIDDEN_PROMPT_ROWS: usize = 64;

/// Of which tokens the drafters of a sequence need hidden states.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum HiddenRows {
    #[default]
    None,
    /// Of the pending token and those that are drafted.
    Written,
    /// Of the prompt's too.
    All,
}

/// A checkpoint is taken where a text parts from a known one only if so many tokens more are saved by it: it takes a
/// pass, which on most machines costs as much as some rows.
const PARTS_MIN: usize = 8;
/// So many rows of a prompt may stay inputs behind a state: the beginning of an answer is shorter.
const BEHIND_MAX: usize = 16;

/// How much a sequence has written.
#[derive(Clone, Copy)]
pub(crate) struct Written {
    /// Tokens.
    pub(crate) emitted: usize,
    /// Of these, forced ones that no pass was made for.
    pub(crate) skipped: usize,
}

/// A text with more pending tokens than this reads them first, as if they were a prompt.
pub(crate) const PENDING_MAX: usize = 16;

/// What a sequence is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Rows of its prompt are missing, besides the last: they may be computed in several passes.
    Reads,
    /// All rows but those of the pending tokens are cached: each pass writes.
    Writes,
}

pub(crate) struct Sequence {
    pub(crate) id: SequenceId,
    pub(crate) request: Request,
    /// The request's number, by which its draws under *rejection* are addressed.
    pub(crate) number: u64,
    pub(crate) tokens: Vec<Token>,
    pub(crate) cached: usize,
    pub(crate) phase: Phase,
    /// Where its recurrent states are to be kept, ascending: positions of the prompt before which others may part.
    pub(crate) checkpoints: Vec<usize>,
    /// The sequence ends when it has so many tokens.
    pub(crate) limit: usize,
    pub(crate) pages: SequencePages,
    /// Whose its rows are.
    pub(crate) whose: Owner,
    /// Whether its drafters know of it: from when it first ran on.
    pub(crate) opened: bool,
    /// How often a later one was let in before it.
    pub(crate) passed: usize,
    /// Of so many first tokens hidden states were told, or are not needed, where drafters need any.
    told: usize,
    /// So many first tokens of the prompt were scored, where that is asked for.
    pub(crate) scored: usize,
    pub(crate) tree: DraftTree,
    /// What drafters propose, before the best of it becomes the tree.
    pub(crate) candidates: DraftTree,
    /// Most nodes of the tree in this pass; 0 where nothing is drafted.
    pub(crate) nodes_max: usize,
    /// Nodes of the tree of the last pass.
    pub(crate) nodes_before: usize,
    /// By drafter: how often in a row it was asked and got no row.
    in_vain: Vec<u8>,
    pub(crate) probes: Probes,
    /// Rows that its drafters may ask for beside the tree.
    pub(crate) probes_max: usize,
    pub(crate) experience: Experience,
    /// The drafters that it has: those of the request, less those that failed.
    pub(crate) drafters: Vec<u8>,
    /// Those of them that may be asked in this pass, in this order, before anybody was dropped.
    pub(crate) turns: Vec<u8>,
    /// Those that were asked.
    pub(crate) asked: Vec<u8>,
    /// Those that could not read the last piece that they were given: they are asked for drafts, and read then.
    pub(crate) stuck: Vec<u8>,
    /// Seconds a token that draft models took to read along with the last pass over its prompt; `None` before the
    /// first.
    pub(crate) read_along: Option<f64>,
    pub(crate) rows: SpanRows,
    pub(crate) hidden_rows: HiddenRows,
    pub(crate) budget: Box<dyn Budget>,
    pub(crate) stats: Stats,
    pub(crate) finished: Option<FinishReason>,
    stream: Option<TextStream>,
    stop: StopMatcher,
    submitted: Instant,
}

impl Sequence {
    pub(crate) fn new(id: SequenceId, request: Request, context: usize, drafters: usize) -> Self {
        let prompt_len = request.prompt.len();
        let limit = request.tokens_max.map_or(context, |tokens| context.min(prompt_len.saturating_add(tokens)));
        let stream = request.tokenizer.as_ref().map(|tokenizer| {
            let stream = TextStream::new(tokenizer.clone(), &request.prompt).skip_special(!request.special);
            stream.show_special(request.shown_special.clone())
        });
        Self {
            id,
            number: 0,
            tokens: request.prompt.clone(),
            cached: 0,
            phase: if prompt_len == 1 { Phase::Writes } else { Phase::Reads },
            checkpoints: Vec::new(),
            limit,
            pages: SequencePages::default(),
            whose: Owner::default(),
            opened: false,
            passed: 0,
            told: 0,
            scored: 0,
            tree: DraftTree::new(),
            candidates: DraftTree::new(),
            probes: Probes::default(),
            probes_max: 0,
            nodes_max: 0,
            nodes_before: 0,
            in_vain: Vec::new(),
            experience: Experience::default(),
            drafters: if limit == prompt_len { Vec::new() } else { request.drafters.clone() },
            turns: Vec::new(),
            asked: Vec::new(),
            stuck: Vec::new(),
            read_along: None,
            rows: SpanRows::default(),
            hidden_rows: HiddenRows::None,
            budget: request.budget.start(),
            stats: Stats {
                prompt_tokens: prompt_len,
                drafters: vec![DrafterStats::default(); drafters],
                ..Stats::default()
            },
            // Nothing asked for is an answer too: the sequence ends before it is admitted.
            finished: (limit == prompt_len && !request.prompt_log_probabilities).then_some(FinishReason::Length),
            stream,
            stop: StopMatcher::new(request.stop.clone()),
            submitted: Instant::now(),
            request,
        }
    }

    /// Tokens without a cache row, the pending one included.
    pub(crate) fn uncached(&self) -> usize {
        self.tokens.len() - self.cached
    }

    /// Rows that it can use: all that are not cached, unless it writes nothing and the last would be for nothing.
    pub(crate) fn rows_left(&self) -> usize {
        self.uncached() - usize::from(self.limit == self.request.prompt.len())
    }

    /// Of the next `take` rows, by position, those whose logits score a token of the prompt that was not scored before:
    /// each scores the token behind it.
    pub(crate) fn rows_to_score(&self, take: usize) -> Range<usize> {
        if !self.request.prompt_log_probabilities {
            return 0..0;
        }
        let end = (self.cached + take).min(self.request.prompt.len() - 1);
        self.cached.max(self.scored.saturating_sub(1)).min(end)..end
    }

    /// So many of the next `take` rows that at most `most` score.
    pub(crate) fn cut_to_score(&self, take: usize, most: usize) -> usize {
        let rows = self.rows_to_score(take);
        if rows.len() <= most { take } else { rows.start + most - self.cached }
    }

    /// Notes where states are to be kept on the way through the prompt, which some others `known_len` first tokens of,
    /// and of which `wanted_len` are to be saved.
    pub(crate) fn plan_checkpoints(&mut self, known_len: usize, wanted_len: Option<usize>) {
        let prompt_len = self.request.prompt.len();
        self.checkpoints.clear();
        if self.stats.passes > 0 {
            return;
        }
        let Request { checkpoints, public_prefix, .. } = &self.request;
        let parts = (known_len >= self.cached + PARTS_MIN).then_some(known_len);
        let all = checkpoints.iter().copied().chain([*public_prefix, prompt_len - 1]).chain(parts).chain(wanted_len);
        self.checkpoints.extend(all.filter(|at| (self.cached + 1..prompt_len).contains(at)));
        self.checkpoints.sort_unstable();
        self.checkpoints.dedup();
    }

    /// The next position at which its states are to be kept.
    pub(crate) fn next_checkpoint(&self) -> Option<usize> {
        self.checkpoints.iter().copied().find(|at| *at > self.cached)
    }

    /// Of the next `take` rows so many are run, and so many of these are certain to recurrent states. A pass ends where
    /// states are to be kept; close to the end of the prompt they stop there instead, and what lies behind stays a row
    /// of inputs until the next pass, so that no pass is made for it.
    pub(crate) fn stop_at_checkpoint(&self, take: usize) -> [usize; 2] {
        let Some(at) = self.next_checkpoint().filter(|at| *at < self.cached + take) else { return [take; 2] };
        let rows = at - self.cached;
        // What is everybody's has to end where that ends: the inputs behind it are the tenant's.
        let is_near = take == self.uncached() && take - rows <= BEHIND_MAX && at > self.request.public_prefix;
        [if is_near { take } else { rows }, rows]
    }

    /// So many first rows are cached.
    pub(crate) fn set_cached(&mut self, cached: usize) {
        self.cached = cached;
        self.phase = if self.uncached() <= 1 { Phase::Writes } else { Phase::Reads };
        if self.hidden_rows != HiddenRows::None {
            self.told = self.told.max(cached);
        }
    }

    /// Whether it ended because it could not go on.
    pub(crate) fn has_failed(&self) -> bool {
        matches!(self.finished, Some(FinishReason::Failed(_)))
    }

    /// Of so many first tokens hidden states were told, or are not needed, where drafters need any.
    pub(crate) fn told(&self) -> usize {
        self.told
    }

    /// From which position on hidden states are still to be told: from the end where nobody needs any.
    fn hidden_from(&self) -> usize {
        match self.hidden_rows {
            HiddenRows::None => usize::MAX,
            HiddenRows::Written => self.told.max(self.request.prompt.len() - 1),
            HiddenRows::All => self.told,
        }
    }

    /// Its place among all sequences: who is less goes first.
    pub(crate) fn rank(&self) -> (Reverse<i32>, SequenceId) {
        (Reverse(self.request.priority), self.id)
    }

    /// Most rows that it may adopt: the last token's are needed, and rows whose hidden states or logits are to be told.
    pub(crate) fn adopted_max(&self) -> usize {
        // A head makes do with the end of a prompt that others have computed.
        let enough = match self.hidden_rows {
            HiddenRows::All => self.request.prompt.len().saturating_sub(HIDDEN_PROMPT_ROWS),
            HiddenRows::None | HiddenRows::Written => 0,
        };
        let known = self.hidden_from().max(enough);
        let scores = self.request.prompt_log_probabilities
            && self.scored < self.request.prompt.len()
            && !is_made(Fault::UnscoredAdopted);
        let scored = if scores { self.scored.saturating_sub(1) } else { usize::MAX };
        known.min(scored).min(self.tokens.len() - 1)
    }

    /// Its pages were given back between two passes: all rows are to be computed again, and nothing of a draft is
    /// left. What was written stands.
    pub(crate) fn preempt(&mut self) {
        self.set_cached(0);
        if !is_made(Fault::DraftKept) {
            self.tree.clear();
        }
        if is_made(Fault::ScoredAgain) {
            self.scored = self.scored.min(1);
        }
        self.candidates.clear();
        self.probes.clear(0);
        self.asked.clear();
        self.stats.preemptions += 1;
    }

    /// How often in a row this drafter was asked and got no row.
    pub(crate) fn asked_in_vain(&self, number: u8) -> u8 {
        self.in_vain.get(usize::from(number)).copied().unwrap_or(0)
    }

    /// Tokens that it is expected to write yet.
    pub(crate) fn left(&self) -> f64 {
        ((self.limit - self.tokens.len()) as f64).min(self.experience.answer_len())
    }

    /// Forgets the draft of the last pass.
    pub(crate) fn clear_draft(&mut self, costs: &Costs) {
        self.nodes_before = self.tree.len();
        self.nodes_max = 0;
        if !(is_made(Fault::DraftKept) && self.asked.is_empty()) {
            self.tree.clear();
        }
        self.candidates.clear();
        self.candidates.compare_laws(self.request.measure);
        self.probes.clear(0);
        self.asked.clear();
        self.turns.clone_from(&self.drafters);
        let learned_from = match self.request.order {
            Order::Given => self.turns.len(),
            Order::Learned => 0,
            // It may have failed and be gone.
            Order::LearnedBehindFirst => usize::from(self.turns.first() == self.request.drafters.first()),
        };
        if let Some(turns @ [_, _, ..]) = self.turns.get_mut(learned_from..) {
            // Who was never asked comes first; among equals the order stays.
            let worth = |source: &u8| {
                let right = self.experience.right_per_ask(*source);
                let time = costs.drafter(*source);
                let known = self.experience.knows(*source);
                if known { right / (time.call + time.step * (1.0 + right)).max(1e-9) } else { f64::INFINITY }
            };
            turns.sort_by(|a, b| worth(b).total_cmp(&worth(a)));
        }
    }

    /// What is to be chosen from, and by what.
    pub(crate) fn choice(&mut self) -> Choice<'_> {
        let Self { request, tokens, candidates, tree, experience, nodes_max, .. } = self;
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

    /// Fills `rows` with `take` uncached tokens and, if they end with the pending token, with the tree and the probes
    /// below it. A drafter may have offered tokens that do not exist: their rows hold another, and nobody reads them.
    pub(crate) fn lay_out_rows(&mut self, take: usize, vocabulary: usize) {
        let (to_score, hidden_from) = (self.rows_to_score(take), self.hidden_from());
        let SpanRows { tokens, parents, wanted, scored, hidden } = &mut self.rows;
        tokens.clear();
        parents.clear();
        wanted.clear();
        hidden.clear();
        *scored = to_score.len();
        wanted.extend(to_score.map(|row| (row - self.cached) as u32));
        // Rows that are computed again were told before.
        hidden.extend(hidden_from.saturating_sub(self.cached).min(take) as u32..take as u32);
        tokens.extend_from_slice(&self.tokens[self.cached..self.cached + take]);
        if self.cached + take < self.tokens.len() {
            return;
        }
        let root = take as u32 - 1;
        let drafted = self.tree.tokens().iter().chain(self.probes.tokens());
        tokens.extend(drafted.map(|token| if (*token as usize) < vocabulary { *token } else { 0 }));
        wanted.extend(root..tokens.len() as u32);
        if self.hidden_rows != HiddenRows::None {
            hidden.extend(take as u32..(take + self.tree.len()) as u32);
        }
        if !self.tree.is_chain() || !self.probes.is_empty() {
            parents.extend((0..take as u32).map(|row| row.checked_sub(1)));
            let below = |parent: &Option<_>| parent.map_or(root, |node: NodeId| take as u32 + node.index() as u32);
            parents.extend(self.tree.parents().iter().map(|parent| Some(below(parent))));
            let first = (take + self.tree.len()) as u32;
            parents.extend(self.probes.parents().iter().map(|at| Some(at.map_or(root, |at| first + at))));
        }
    }

    /// Adds a pass to the statistics and lets the budget learn. Of an accepted path only the `emitted`
    /// first tokens count: an end token or a stop string may have cut it. `overlaps`: sums of min(p, q), by drafter.
    pub(crate) fn count(
        &mut self,
        path: &[NodeId],
        emitted: usize,
        is_forced: impl Fn(NodeId) -> bool,
        overlaps: &[(u8, f64)],
    ) {
        let written = &path[..path.len().min(emitted)];
        self.stats.count(&self.tree, written, is_forced, overlaps);
        if !self.tree.is_empty() {
            self.budget.learn(&Outcome { tree: &self.tree, path });
        }
    }

    /// The tree of the pass, of which these nodes were written.
    pub(crate) fn drafted(&self, written: &[NodeId]) -> Vec<Drafted> {
        let drafted = |node| Drafted {
            token: self.tree.token(node),
            drafter: self.tree.source(node),
            depth: self.tree.depth(node),
            accepted: written.contains(&node),
        };
        self.tree.nodes().map(drafted).collect()
    }

    /// How much it has written.
    pub(crate) fn written(&self) -> Written {
        Written { emitted: self.stats.emitted, skipped: self.stats.skipped }
    }

    /// Learns from the candidates of the pass how right its drafters were, now that so many tokens are written, and so
    /// many behind them that were forced; and lets those who begin on the same terms know.
    pub(crate) fn learn(&mut self, written: usize, skipped: usize, shared: &mut Experience) {
        if self.drafters.is_empty() && self.asked.is_empty() {
            return;
        }
        for number in &self.asked {
            let at = usize::from(*number);
            self.in_vain.resize(self.in_vain.len().max(at + 1), 0);
            let has_row = self.tree.offers().iter().any(|offer| offer.source == *number);
            self.in_vain[at] = if has_row { 0 } else { self.in_vain[at].saturating_add(1) };
        }
        let end = self.tokens.len() - skipped;
        let written = &self.tokens[end - written..end];
        let drafters = &mut self.stats.drafters;
        self.experience.learn(&self.asked, &self.candidates, written, |guess| {
            drafters[usize::from(guess.source)].judge(guess.acceptance, guess.right);
        });
        shared.learn(&self.asked, &self.candidates, written, |_| {});
    }

    /// Notes that it is let in, for the first time.
    pub(crate) fn open(&mut self) {
        self.stats.time_waiting = self.submitted.elapsed();
    }

    /// Appends one chosen token; says what it completes, and notes if it ends the sequence.
    pub(crate) fn append(&mut self, mut emitted: Emitted) -> Emitted {
        let token = emitted.token;
        self.tokens.push(token);
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
        if let Some(stream) = &mut self.stream {
            let pushed = self.stop.push(&stream.push(token));
            emitted.text = pushed.text;
            if pushed.stopped {
                self.finished = self.stop.matched().map(|stop| FinishReason::StopString(stop.to_string()));
            }
        }
        if self.finished.is_none() && self.tokens.len() >= self.limit {
            let asked = self.request.tokens_max.is_some_and(|tokens| self.stats.emitted >= tokens);
            self.finished = Some(if asked { FinishReason::Length } else { FinishReason::Context });
        }
        emitted
    }

    /// Text that was held back and can be released now that the sequence has ended.
    pub(crate) fn held_text(&mut self) -> String {
        if matches!(self.finished, Some(FinishReason::StopString(_))) {
            return String::new();
        }
        let Some(stream) = &self.stream else { return String::new() };
        let rest = self.stop.push(stream.finish());
        format!("{}{}", rest.text, self.stop.finish())
    }
}
