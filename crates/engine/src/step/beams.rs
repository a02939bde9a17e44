//! A beam search consumes the logits of a pass where another sequence is verified: it chooses its next hypotheses.
//!
//! Of each hypothesis the best scores after its last token are taken, the search makes a step with them, and the new
//! hypotheses' tokens become rows of the next pass. If a row of the tree already has such a token, because it was
//! drafted, its logits are there as well: while all new hypotheses have such rows, the search makes another step
//! without a pass (Leviathan et al. 2023, appendix A.4). If only some have, the scores of these are kept, and the next
//! pass has rows for the others alone; what is drafted behind the known ones needs no guess. Rows do not depend on each
//! other, so the answer is the same whatever was drafted.

use foretoken_model::{CacheEdit, Outputs};
use foretoken_speculation::{Context, Scratch, Token};

use super::Engine;
use super::stuck::{refuses_what_it_allowed, why_no_law};
use crate::beams::{DraftedSteps, Hypothesis};
use crate::drafting::BeamLimits;
use crate::faults::{Fault, is_made};
use crate::law::NoLaw;
use crate::output::{Event, FinishReason};
use crate::planner::{BeamCandidate, BeamDraft, Scheduled};
use crate::request::Request;
use crate::sequence::{Sequence, SequenceBeams};

/// Maximum number of steps that are drafted ahead.
const DRAFTED_STEPS_MAX: usize = 8;
/// Tokens that a draft model may have to read in a step that is learned from.
const READ_TOKENS_MAX: usize = 32;

impl Engine {
    /// Lets the draft models of beam searches propose rows for this pass.
    pub(super) fn draft_beams(&mut self, scheduled: &[Scheduled]) {
        let Self { running, planner, clock, drafters, executor, events, times, .. } = self;
        let vocabulary = executor.capacity().vocabulary;
        let nodes: usize = scheduled.iter().map(|entry| running[entry.index].draft.tree.len()).sum();
        let others = scheduled.iter().filter(|entry| entry.complete).count().saturating_sub(1);
        let mut rows = nodes + scheduled.iter().map(|entry| entry.token_rows).sum::<usize>();
        for entry in scheduled.iter().filter(|entry| entry.complete && entry.nodes_max > 0) {
            let sequence = &mut running[entry.index];
            let Some(number) = sequence.draft.drafters.first().copied() else { continue };
            let unread = drafters.unread_of_beams(number, sequence);
            let Some(beams) = &mut sequence.beams else { continue };
            let steps_left = beams.search.tokens_left();
            let candidate = BeamCandidate {
                number,
                rows,
                others,
                context: sequence.text.tokens.len(),
                beams: beams.search.beams_max(),
                kind: beams.search.step_kind(),
                nodes_max: entry.nodes_max,
                depth_max: DRAFTED_STEPS_MAX.min(steps_left.saturating_sub(1)),
                unread,
                steps_left,
            };
            let draft = match sequence.request.budget.is_auto() {
                true => planner.beam_draft(candidate, &mut beams.rates),
                false => candidate.of_width(beams.search.draft_width()),
            };
            let Some(BeamDraft { depth, width }) = draft else { continue };
            let (started, before) = (clock.now(), sequence.stats.beams.drafted);
            let limits = BeamLimits { depth_max: depth, width, vocabulary };
            let seconds = drafters.draft_beams(number, sequence, limits, &**clock, events);
            times.drafters += clock.since(started).unwrap_or_default();
            rows += sequence.stats.beams.drafted - before;
            // A call that read much first says little about a step.
            if let Some(seconds) = seconds.filter(|_| candidate.unread <= READ_TOKENS_MAX) {
                planner.learn_beam_seconds(number, seconds);
            }
        }
    }

    /// Lets a beam search go on with the logits of a pass; `first` is the index of its first row among those with
    /// logits. A pass that was not complete has only computed rows.
    pub(super) fn advance_beams(&mut self, entry: Scheduled, first: usize) {
        let Self { running, scratch, executor, pages, events, planner, times, .. } = self;
        let sequence = &mut running[entry.index];
        let positions = sequence.add_computed(entry.token_rows, entry.complete);
        let cached = sequence.cache.cached;
        pages.commit_within(&mut sequence.cache.pages, &sequence.text.tokens[..cached], positions);
        if !entry.complete {
            sequence.stats.prompt_passes += 1;
            return;
        }
        sequence.stats.passes += 1;
        if sequence.stats.beams.steps > 0 {
            sequence.stats.beams.passes_time += times.passes;
        }
        sequence.begin_beams();
        let searched = search_on(sequence, executor.outputs(), first, scratch);
        if let (Some(number), Some(beams)) = (sequence.draft.drafters.first(), &mut sequence.beams) {
            planner.learn_beams(*number, &mut beams.rates, &beams.checks);
            beams.checks.clear();
        }
        match searched {
            Err(why) => {
                sequence.finished.get_or_insert(FinishReason::Failed(why));
            }
            Ok(true) => {
                let beams = sequence.take_beams();
                events.push(Event::Beams { sequence: sequence.id, beams });
            }
            Ok(false) => {
                // The new rows are pending.
                sequence.set_cached(cached);
                if sequence.is_beam_tree_sparse() {
                    self.compact_beams(entry.index);
                }
            }
        }
    }

    /// Removes rows of a beam search that no hypothesis continues, and makes rows that all share text; false if there
    /// are none, or rows cannot be moved, which ends the sequence.
    pub(super) fn compact_beams(&mut self, at: usize) -> bool {
        let Self { running, executor, pages, .. } = self;
        let sequence = &mut running[at];
        let start = sequence.cache.cached;
        let Some(compaction) = sequence.compact_beam_rows() else { return false };
        let from: Vec<usize> = compaction.moved.iter().map(|row| start + row).collect();
        let tables = sequence.cache.pages.tables();
        let moved = if from.is_empty() || is_made(Fault::BeamRowsNotMoved) {
            Ok(())
        } else {
            executor.rows(CacheEdit::Move { tables, from: &from, to: start + compaction.to })
        };
        sequence.set_cached(start + compaction.shared.len());
        if let Err(error) = moved {
            sequence.finished.get_or_insert(FinishReason::Failed(error.to_string()));
            return false;
        }
        let positions = sequence.positions_after(0);
        pages.commit_within(&mut sequence.cache.pages, &sequence.text.tokens[..sequence.cache.cached], positions);
        true
    }
}

/// Makes steps of a search while there are logits for them; `first` is the index of the first row among those with
/// logits. Returns whether the search is over; if it is not, the tokens that it chose last and whose scores are not
/// known are rows of the next pass. An error says why it cannot go on.
fn search_on(
    sequence: &mut Sequence,
    outputs: &dyn Outputs,
    first: usize,
    scratch: &mut Scratch,
) -> Result<bool, String> {
    let mut scores: Vec<Vec<(Token, f32)>> = Vec::new();
    loop {
        gather(sequence, outputs, first, scratch, &mut scores)?;
        sequence.note_beam_step();
        let SequenceBeams { search, tree, drafted, checks, .. } =
            sequence.beams.as_mut().expect("a beam search that has begun");
        let candidates = search.candidates(&scores);
        if !search.advance(&candidates) {
            return Err(refuses_what_it_allowed(sequence.request.prompt.len() + search.len()));
        }
        if search.is_over() {
            return Ok(true);
        }
        let mut rows: Vec<Option<u32>> = search.last_tokens().map(|(row, token)| tree.child(row, token)).collect();
        if is_made(Fault::BeamMissing) && rows.iter().any(Option::is_some) {
            let mut found = rows.iter().map(Option::is_some);
            search.running_mut().retain(|_| found.next() == Some(true));
            rows.retain(Option::is_some);
        }
        let all = rows.iter().all(Option::is_some);
        if let Some(check) = drafted.check(search.beams_max(), &rows) {
            sequence.stats.beams.checked += 1;
            sequence.stats.beams.included += usize::from(all);
            checks.push(check);
        }
        if !all {
            *drafted = DraftedSteps::NONE;
            keep_scores(sequence, (outputs, first), scratch, &rows)?;
            return Ok(false);
        }
        search.running_mut().iter_mut().zip(rows).for_each(|(hypothesis, row)| hypothesis.row = row);
    }
}

/// Notes the scores after the hypotheses that were drafted, which have these `rows`, since not all were. The others
/// become rows of the next pass. An error says why the search cannot go on.
fn keep_scores(
    sequence: &mut Sequence,
    (outputs, first): (&dyn Outputs, usize),
    scratch: &mut Scratch,
    rows: &[Option<u32>],
) -> Result<(), String> {
    let Sequence { request, beams, stats, .. } = sequence;
    let SequenceBeams { search, tree, context, .. } = beams.as_mut().expect("a beam search that has begun");
    let count = search.candidates_max();
    let scored = ScoredRows { request, outputs, first, wanted_from: tree.wanted_from() };
    for (hypothesis, row) in search.running_mut().iter_mut().zip(rows).filter(|(_, row)| row.is_some()) {
        let mut best = Vec::new();
        hypothesis.row = *row;
        scored.best_after(hypothesis, count, context, scratch, &mut best)?;
        hypothesis.scores = Some(best);
        stats.beams.kept += 1;
    }
    tree.want_from_here();
    for hypothesis in search.running_mut().iter_mut().filter(|hypothesis| hypothesis.scores.is_none()) {
        let token = *hypothesis.tokens.last().expect("a step adds a token");
        hypothesis.row = Some(tree.add(hypothesis.row, token));
    }
    Ok(())
}

/// The best scores after each hypothesis that runs. An error says why none can go on.
fn gather(
    sequence: &mut Sequence,
    outputs: &dyn Outputs,
    first: usize,
    scratch: &mut Scratch,
    scores: &mut Vec<Vec<(Token, f32)>>,
) -> Result<(), String> {
    let Sequence { request, beams, .. } = sequence;
    let SequenceBeams { search, tree, context, .. } = beams.as_mut().expect("a beam search that has begun");
    let count = search.candidates_max();
    let scored = ScoredRows { request, outputs, first, wanted_from: tree.wanted_from() };
    let mut impossible = None;
    scores.resize_with(search.running().len(), Vec::new);
    for (hypothesis, scores) in search.running_mut().iter_mut().zip(scores.iter_mut()) {
        if let Some(known) = hypothesis.scores.take() {
            *scores = known;
            continue;
        }
        scored.best_after(hypothesis, count, context, scratch, scores)?;
        if scores.is_empty() {
            impossible.get_or_insert_with(|| scored.why(NoLaw::NoToken, hypothesis, context));
        }
    }
    // Not all scores were known before the pass, so there is a reason.
    let is_stuck = scores.iter().all(Vec::is_empty) && !search.has_ended();
    impossible.filter(|_| is_stuck).map_or(Ok(()), Err)
}

/// The logits of a pass for a beam search.
struct ScoredRows<'a> {
    request: &'a Request,
    outputs: &'a dyn Outputs,
    /// The index of the search's first row among those with logits, and that row in its tree.
    first: usize,
    wanted_from: usize,
}

impl ScoredRows<'_> {
    fn row(&self, hypothesis: &Hypothesis) -> usize {
        self.first + hypothesis.row.map_or(0, |row| row as usize - self.wanted_from)
    }

    /// Writes into `best` the best scores after a hypothesis. `tokens` has the prompt. An error says why there are
    /// none.
    fn best_after(
        &self,
        hypothesis: &Hypothesis,
        count: usize,
        tokens: &mut Vec<Token>,
        scratch: &mut Scratch,
        best: &mut Vec<(Token, f32)>,
    ) -> Result<(), String> {
        let row = self.row(hypothesis);
        if self.outputs.has_nan(row) {
            return Err(self.why(NoLaw::NotNumbers, hypothesis, tokens));
        }
        let context = self.context(hypothesis, tokens);
        self.request.sampling.best_scores(self.outputs.row(row), &context, count, scratch, best);
        Ok(())
    }

    /// The text with a hypothesis, written behind the prompt in `tokens`.
    fn context<'a>(&self, hypothesis: &'a Hypothesis, tokens: &'a mut Vec<Token>) -> Context<'a> {
        let prompt_len = self.request.prompt.len();
        tokens.truncate(prompt_len);
        tokens.extend_from_slice(&hypothesis.tokens);
        Context { tokens, prompt_len, path: &[], constraint: hypothesis.writing.constraint.as_ref() }
    }

    /// Why no token can follow a hypothesis.
    fn why(&self, why: NoLaw, hypothesis: &Hypothesis, tokens: &mut Vec<Token>) -> String {
        let vocabulary = self.outputs.row(self.row(hypothesis)).len();
        why_no_law(why, &self.request.sampling, &self.context(hypothesis, tokens), vocabulary)
    }
}
