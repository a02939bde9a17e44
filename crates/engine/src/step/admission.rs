//! Admission and preemption: sequences are admitted if there are pages for them, and preempted if pages run out.
//!
//! The order is by rank: the higher priority first, then the earlier arrival. A sequence is admitted if the cache has
//! pages for its tokens that are not cached, and one more for each running sequence. If it has to wait, later sequences
//! may be admitted before it, but only [`BYPASSED_MAX`] times. A sequence also waits while a running one computes a
//! prefix that both share, so that requests with the same prompt compute it once.
//!
//! No pages are reserved for later. If pages run out, the running sequence of the last rank is *preempted*: it releases
//! its pages, waits at its rank, and later computes its rows again, as far as they are no longer cached. This happens
//! before a pass is drafted, and pages are taken for all rows that the pass may have, so no draft outlives its pass and
//! no pass stops halfway. The sequence of the first rank is never preempted, since a request that cannot run alone was
//! refused. So every sequence ends.
//!
//! A step costs a few integer operations per sequence, and one search for a prefix per sequence that is admitted or
//! examined; at most [`EXAMINED_MAX`] are examined.
//!
//! Decided elsewhere: which rows a pass has (`planner/rows.rs`), and which sequence holds which pages (`pages`).

use foretoken_model::{CacheEdit, ExecutorError, Source};

use super::Engine;
use crate::faults::{Fault, is_made};
use crate::output::{Event, FinishReason};
use crate::pages::Pages;
use crate::planner::Scheduled;
use crate::sequence::{Phase, Sequence};
use crate::sources::HeldSource;
use crate::stats::{PassTotals, Workload};

/// How often later sequences may be admitted before one that waits, so that a long request is not starved by short
/// ones.
const BYPASSED_MAX: usize = 8;
/// Maximum number of waiting sequences that are examined in a step, a bound on its time.
const EXAMINED_MAX: usize = 16;

impl Engine {
    /// Limits how many requests may wait besides those that can be admitted in the next step; more are refused. Without
    /// it there is no limit. Preempted sequences wait whatever the limit is.
    pub fn set_waiting_max(&mut self, waiting_max: usize) {
        self.waiting_max = waiting_max;
    }

    /// Checks the bookkeeping of pages: everything that is recorded twice must agree.
    ///
    /// # Errors
    /// The first inconsistency.
    pub fn check_pages(&self) -> Result<(), String> {
        self.pages.check(self.running.iter().chain(&self.waiting).map(|sequence| &sequence.cache.pages))?;
        self.sources.check(self.running.iter().filter(|sequence| sequence.request.source.is_some()).count())
    }

    /// The bookkeeping of the cache: who holds which page, and what is cached.
    pub fn pages(&self) -> &Pages {
        &self.pages
    }

    /// The totals of all passes so far.
    pub fn pass_totals(&self) -> PassTotals {
        self.totals
    }

    /// Whether the executor failed the latest pass, whatever its rows were: perhaps it fails all others as well.
    pub fn is_failing(&self) -> bool {
        self.is_failing
    }

    /// The running and waiting sequences and the pages that they hold, between two steps.
    pub fn workload(&self) -> Workload {
        let (pages, available) = (self.pages.len(), self.pages.available());
        Workload { running: self.running.len(), waiting: self.waiting.len(), pages, pages_held: pages - available }
    }

    /// Puts a sequence into the queue at its rank.
    pub(super) fn enqueue(&mut self, sequence: Sequence) {
        let at = self.waiting.partition_point(|other| other.rank() < sequence.rank());
        self.waiting.insert(at, sequence);
    }

    /// Admits waiting sequences, in order of rank, while there is room.
    pub(super) fn admit(&mut self) {
        self.retire();
        let mut at = 0;
        while at < self.waiting.len().min(EXAMINED_MAX) && self.running.len() < self.sequences_max {
            if self.can_be_admitted(&self.waiting[at]) {
                self.waiting[..at].iter_mut().for_each(|earlier| earlier.bypassed += 1);
                let sequence = self.waiting.remove(at);
                self.start(sequence);
            } else {
                at += 1;
            }
            if self.waiting[..at].iter().any(|earlier| earlier.bypassed >= BYPASSED_MAX) {
                break;
            }
        }
    }

    /// Whether a sequence can be admitted now: there are pages for it, and no running sequence is computing a prefix
    /// that it can adopt soon.
    fn can_be_admitted(&self, sequence: &Sequence) -> bool {
        let (adopted_max, beside) = (sequence.adopted_max(), self.running.len());
        // Sequences that were admitted in this step take their pages with their first pass.
        let new = self.running.iter().filter(|other| other.cache.pages.tables().iter().any(Vec::is_empty)).count();
        // Every sequence fits alone.
        self.running.is_empty()
            || sequence
                .request
                .source
                .as_ref()
                .is_none_or(|source| self.sources.has_room(sequence.owner.tenant, source))
                && !self.is_being_computed(sequence, adopted_max)
                && self.pages.admits(
                    &sequence.cache.pages,
                    &sequence.text.tokens,
                    adopted_max,
                    sequence.rows_after_text(),
                    [beside, new],
                )
    }

    /// Whether a running sequence will compute the next page of a prefix that this one can adopt, or reach a
    /// checkpoint.
    fn is_being_computed(&self, sequence: &Sequence, adopted_max: usize) -> bool {
        let next = |other: &Sequence| match self.pages.shared_every() {
            Some(every) => Some((other.cache.cached / every + 1) * every),
            None => other.cache.next_checkpoint(),
        };
        // A state cannot go back, so a sequence may compute a prefix that is already cached.
        let is_new =
            |next| !self.pages.has_states() || next > self.pages.found(&sequence.cache.pages, &sequence.text.tokens);
        let tokens = &sequence.text.tokens[..adopted_max.min(sequence.text.tokens.len())];
        self.running.iter().filter(|other| other.cache.phase == Phase::Prefill).any(|other| {
            let public = if sequence.owner.source == other.owner.source { other.request.public_prefix } else { 0 };
            let seen = if other.owner == sequence.owner { usize::MAX } else { public };
            // One page is enough: the pages after it are considered in the next step.
            next(other).is_some_and(|next| {
                let is_seen = next <= seen && next <= tokens.len();
                is_seen && other.text.tokens.starts_with(&tokens[..next]) && is_new(next)
            })
        })
    }

    /// Lets a sequence run, with the cached rows of its prefix.
    fn start(&mut self, mut sequence: Sequence) {
        let is_new = !std::mem::replace(&mut sequence.opened, true);
        if is_new {
            sequence.open();
            if !sequence.draft.drafters.is_empty() {
                sequence.draft.experience.clone_from(self.planner.experience_of(&sequence.request));
            }
            self.drafters.open(&mut sequence, &mut self.events);
            self.report_first_score(&mut sequence);
            self.write_first_forced(&mut sequence);
            if sequence.finished.is_some() {
                return self.end(sequence);
            }
        }
        if let Err(error) = self.open_in_executor(&sequence) {
            sequence.finished = Some(FinishReason::Failed(error.to_string()));
            return self.end(sequence);
        }
        let adopted_max = sequence.adopted_max();
        let adopted = self.pages.adopt(&mut sequence.cache.pages, &sequence.text.tokens, adopted_max);
        let copied = adopted.copied.filter(|_| !is_made(Fault::RowsNotCopied)).map_or(Ok(()), |copied| {
            let (from, to) = (&copied.from, sequence.cache.pages.tables());
            self.executor.rows(CacheEdit::Copy { from, to, positions: copied.positions })
        });
        let cached = match copied {
            Ok(()) if !is_new && is_made(Fault::ResumedLate) => (adopted.len + 1).min(sequence.text.tokens.len() - 1),
            Ok(()) => adopted.len,
            // Rows that could not be copied are computed.
            Err(_) => {
                self.pages.release(&mut sequence.cache.pages, &[]);
                0
            }
        };
        sequence.set_cached(cached);
        if self.pages.has_states() {
            let known_len = self.pages.known_len(&sequence.cache.pages, &sequence.text.tokens);
            sequence.plan_checkpoints(known_len, self.len_to_save(&sequence));
        }
        sequence.bypassed = 0;
        sequence.stats.prompt_tokens_shared += if is_new { cached } else { 0 };
        let at = self.running.partition_point(|other| other.rank() < sequence.rank());
        self.running.insert(at, sequence);
    }

    /// Writes the tokens that are forced right after the prompt.
    fn write_first_forced(&mut self, sequence: &mut Sequence) {
        let mut emitted = Vec::new();
        if sequence.request.beams.is_none()
            && sequence.finished.is_none()
            && sequence.text.limit > sequence.text.tokens.len()
        {
            sequence.write_forced(self.executor.capacity().vocabulary, &mut emitted);
        }
        if !emitted.is_empty() {
            self.events.push(Event::Tokens { sequence: sequence.id, emitted });
        }
    }

    /// Opens a sequence in the executor, which computes its source's rows unless they are cached.
    fn open_in_executor(&mut self, sequence: &Sequence) -> Result<(), ExecutorError> {
        let (id, tenant) = (sequence.id.0, sequence.owner.tenant);
        let Some(tokens) = &sequence.request.source else { return self.executor.open(id, None) };
        let HeldSource { table, is_computed } = self.sources.hold(tenant, tokens);
        let opened = self.executor.open(id, Some(Source { tokens, table: &table, is_computed }));
        if opened.is_err() {
            self.sources.release(tenant, tokens, is_computed);
        }
        opened
    }

    /// Releases a sequence in the executor.
    fn release_in_executor(&mut self, sequence: &Sequence) {
        self.executor.release(sequence.id.0);
        if let Some(tokens) = &sequence.request.source {
            self.sources.release(sequence.owner.tenant, tokens, true);
        }
    }

    /// Takes pages for all rows that the pass may have, trees and probes included. If there are not enough for the rows
    /// of tokens, the last sequences by rank are preempted and leave the pass. If there are not enough for a tree, it
    /// is limited to the pages that its sequence has, and its probes are dropped.
    pub(super) fn secure_pages(&mut self, scheduled: &mut Vec<Scheduled>) {
        let mut next = 0;
        while let Some(entry) = scheduled.get(next) {
            let sequence = &mut self.running[entry.index];
            let positions = sequence.positions_after(entry.token_rows);
            if self.pages.grow(&mut sequence.cache.pages, positions) {
                next += 1;
                continue;
            }
            let (index, compacted) = (entry.index, self.compact_beams(entry.index));
            if self.running[index].finished.is_some() {
                scheduled.remove(next);
            }
            if compacted || self.running[index].finished.is_some() {
                continue;
            }
            // The last sequence may be this one.
            let last = self.running.len() - 1;
            assert!(last > 0, "{:?} does not fit alone, and was not refused", self.running[0].id);
            self.preempt_last();
            if let Some(at) = scheduled.iter().position(|entry| entry.index == last) {
                scheduled.remove(at);
                next -= usize::from(at < next);
            }
        }
        for entry in scheduled.iter_mut().filter(|entry| entry.nodes_max > 0) {
            let sequence = &mut self.running[entry.index];
            let rows = sequence.positions_after(entry.token_rows);
            if !self.pages.grow(&mut sequence.cache.pages, rows + entry.nodes_max + entry.probes_max) {
                entry.nodes_max = entry.nodes_max.min(self.pages.room(&sequence.cache.pages) - rows);
                entry.probes_max = 0;
            }
        }
    }

    /// Keeps a checkpoint of a sequence that has reached a position, if one is planned there and its states have not
    /// advanced beyond it.
    pub(super) fn keep_checkpoint(&mut self, at: usize, position: usize) {
        let sequence = &self.running[at];
        let is_planned = sequence.cache.checkpoints.binary_search(&position).is_ok();
        if !is_planned || sequence.cache.pages.passed() > position {
            return;
        }
        let (from, executor) = (sequence.cache.pages.tables(), &mut self.executor);
        self.pages.keep_checkpoint(&sequence.cache.pages, &sequence.text.tokens[..position], |to, positions| {
            executor.rows(CacheEdit::Copy { from, to, positions }).is_ok()
        });
    }

    /// Preempts the running sequence of the last rank.
    fn preempt_last(&mut self) {
        let mut sequence = self.running.pop().expect("a running sequence");
        let beyond = is_made(Fault::RejectedRowKept) && self.pages.room(&sequence.cache.pages) > sequence.cache.cached;
        self.pages
            .release(&mut sequence.cache.pages, &sequence.text.tokens[..sequence.cache.cached + usize::from(beyond)]);
        self.release_in_executor(&sequence);
        sequence.preempt();
        self.enqueue(sequence);
    }

    /// Removes sequences that have ended.
    pub(super) fn retire(&mut self) {
        while let Some(at) = self.running.iter().position(|sequence| sequence.finished.is_some()) {
            let sequence = self.running.remove(at);
            if !is_made(Fault::ReleaseForgotten) {
                self.release_in_executor(&sequence);
            }
            self.end(sequence);
        }
        while let Some(at) = self.waiting.iter().position(|sequence| sequence.finished.is_some()) {
            let sequence = self.waiting.remove(at);
            self.end(sequence);
        }
    }

    /// Releases what a sequence holds that has ended, and reports its end.
    fn end(&mut self, mut sequence: Sequence) {
        let reason = sequence.finished.clone().expect("only sequences that have ended are removed");
        // Rows of a failed sequence are not cached, except those that others hold already.
        let kept = if sequence.has_failed() { 0 } else { sequence.cache.cached };
        self.pages.release(&mut sequence.cache.pages, &sequence.text.tokens[..kept]);
        if let Some(tokens) = &sequence.request.source {
            self.sources.remove_sequence(sequence.owner.tenant, tokens);
        }
        if sequence.opened {
            self.drafters.close(&sequence);
        }
        let is_complete = matches!(reason, FinishReason::EndToken(_) | FinishReason::StopString(_));
        if is_complete && !sequence.request.drafters.is_empty() && sequence.request.beams.is_none() {
            self.planner.experience_of(&sequence.request).learn_answer(sequence.stats.emitted);
        }
        let text = sequence.held_text();
        self.events.push(Event::Finished { sequence: sequence.id, reason, text, stats: Box::new(sequence.stats) });
    }
}
