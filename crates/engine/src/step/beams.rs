//! A beam search consumes the logits of a pass where another sequence is verified: it chooses its next hypotheses.
//!
//! Of each hypothesis the best scores after its last token are taken, the search makes a step with them, and the new
//! hypotheses' tokens become rows of the next pass. If a row of the tree already has such a token, because it was
//! drafted, its logits are there as well: while all new hypotheses have such rows, the search makes another step
//! without a pass (Leviathan et al. 2023, appendix A.4). Rows do not depend on each other, so the answer is the same
//! whatever was drafted.

use foretoken_model::{CacheEdit, Outputs};
use foretoken_speculation::{Context, Scratch, Token};

use super::Engine;
use super::stuck::{refuses_what_it_allowed, why_no_law};
use crate::drafting::BeamLimits;
use crate::faults::{Fault, is_made};
use crate::law::NoLaw;
use crate::output::{Event, FinishReason};
use crate::planner::{BeamCandidate, Scheduled};
use crate::sequence::{Sequence, SequenceBeams};
use crate::stats::BeamStats;

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
        let mut rows = nodes + scheduled.iter().map(|entry| entry.token_rows).sum::<usize>();
        for entry in scheduled.iter().filter(|entry| entry.complete && entry.nodes_max > 0) {
            let sequence = &mut running[entry.index];
            let (Some(beams), Some(number)) = (&sequence.beams, sequence.draft.drafters.first().copied()) else {
                continue;
            };
            let (width, steps_left) = (beams.search.draft_width(), beams.search.tokens_left());
            let depth_max = (entry.nodes_max / width).min(DRAFTED_STEPS_MAX).min(steps_left.saturating_sub(1));
            let unread = drafters.unread_of_beams(number, sequence);
            let context = sequence.text.tokens.len();
            let candidate = BeamCandidate { number, rows, context, width, depth_max, unread, steps_left };
            let is_auto = sequence.request.budget.is_auto();
            let depth_max = if is_auto { planner.beam_depth(candidate) } else { depth_max };
            if depth_max == 0 {
                continue;
            }
            let (started, before) = (clock.now(), sequence.stats.beams.drafted);
            let limits = BeamLimits { depth_max, width, vocabulary };
            let seconds = drafters.draft_beams(number, sequence, limits, &**clock, events);
            times.drafters += clock.since(started).unwrap_or_default();
            rows += sequence.stats.beams.drafted - before;
            // A call that read much first says little about a step.
            if let Some(seconds) = seconds.filter(|_| unread <= READ_TOKENS_MAX) {
                planner.learn_beam_seconds(number, seconds);
            }
        }
    }

    /// Lets a beam search go on with the logits of a pass; `first` is the index of its first row among those with
    /// logits. A pass that was not complete has only computed rows.
    pub(super) fn advance_beams(&mut self, entry: Scheduled, first: usize) {
        let Self { running, scratch, executor, pages, events, planner, .. } = self;
        let sequence = &mut running[entry.index];
        let positions = sequence.add_computed(entry.token_rows, entry.complete);
        let cached = sequence.cache.cached;
        pages.commit_within(&mut sequence.cache.pages, &sequence.text.tokens[..cached], positions);
        if !entry.complete {
            sequence.stats.prompt_passes += 1;
            return;
        }
        sequence.stats.passes += 1;
        sequence.begin_beams();
        let before = sequence.stats.beams;
        let searched = search_on(sequence, executor.outputs(), first, scratch);
        if let Some(number) = sequence.draft.drafters.first() {
            let BeamStats { checked, included, .. } = sequence.stats.beams;
            planner.learn_beams(*number, checked - before.checked, included - before.included);
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
/// logits. Returns whether the search is over; if it is not, the tokens that it chose last are rows of the next pass.
/// An error says why it cannot go on.
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
        let SequenceBeams { search, tree, drafted_steps, .. } =
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
        if !all {
            // Those that were drafted are computed once more, since their logits are needed with the others'.
            tree.want_from_here();
            rows = search.last_tokens().map(|(row, token)| Some(tree.add(row, token))).collect();
        }
        search.running_mut().iter_mut().zip(rows).for_each(|(hypothesis, row)| hypothesis.row = row);
        // The step after the last that was drafted says nothing about drafts.
        if *drafted_steps > 0 {
            *drafted_steps -= 1;
            sequence.stats.beams.checked += 1;
            sequence.stats.beams.included += usize::from(all);
        }
        if !all {
            *drafted_steps = 0;
            return Ok(false);
        }
    }
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
    let SequenceBeams { search, tree, context: tokens, .. } = beams.as_mut().expect("a beam search that has begun");
    let (sampling, prompt_len) = (&request.sampling, request.prompt.len());
    let mut impossible = None;
    scores.resize_with(search.running().len(), Vec::new);
    for (hypothesis, scores) in search.running().iter().zip(scores.iter_mut()) {
        tokens.truncate(prompt_len);
        tokens.extend_from_slice(&hypothesis.tokens);
        let constraint = hypothesis.writing.constraint.as_ref();
        let context = Context { tokens, prompt_len, path: &[], constraint };
        let row = first + hypothesis.row.map_or(0, |row| row as usize - tree.wanted_from());
        let why = |why| why_no_law(why, sampling, &context, outputs.row(row).len());
        if outputs.has_nan(row) {
            return Err(why(NoLaw::NotNumbers));
        }
        sampling.best_scores(outputs.row(row), &context, search.candidates_max(), scratch, scores);
        if scores.is_empty() {
            impossible.get_or_insert_with(|| why(NoLaw::NoToken));
        }
    }
    let is_stuck = scores.iter().all(Vec::is_empty) && !search.has_ended();
    impossible.filter(|_| is_stuck).map_or(Ok(()), Err)
}
