//! Who runs and who waits: sequences are let in where there are pages for them, and give way where there are none.
//!
//! Everything goes by rank: the higher priority first, then the earlier arrival. A sequence is let in when the cache
//! has pages for what is not computed of its tokens, and one more for each that runs. If it has to wait, later ones
//! that fit may pass it, but only so many times. Whoever begins with tokens that another is just reading waits for
//! those, too: a prompt that is asked several things at once is computed once.
//!
//! Nobody reserves what it may need later. Where pages run out in the middle of a text, the running sequence of the
//! last rank is *preempted*: it gives its pages back, waits in its old place, and computes its rows again, as far as
//! they are not cached any more. This happens before anything of a pass is drafted, and pages are secured for all rows
//! that a pass may have, so no draft outlives its pass and no pass stops halfway. The first of all is never preempted:
//! what cannot run alone was refused. So everybody comes to an end.
//!
//! A step's part of this is a few operations on integers for each sequence, plus one search for a prefix for each that
//! is let in or is looked at in vain, of which there are at most [`LOOKED_AT_MAX`].
//!
//! Left out: which rows a pass has (`scheduler`), and which pages are whose (`pages`).

use foretoken_model::{CacheEdit, ExecutorError, Source};

use super::Engine;
use crate::faults::{Fault, is_made};
use crate::output::{Event, FinishReason};
use crate::pages::Pages;
use crate::scheduler::Scheduled;
use crate::sequence::{Phase, Sequence};
use crate::sources::Held;
use crate::stats::{PassTotals, Workload};

/// So many times a sequence that waits for pages may be passed by later ones.
const PASSED_MAX: usize = 8;
/// So many of those that wait are looked at in a step.
const LOOKED_AT_MAX: usize = 16;

impl Engine {
    /// From now on at most so many requests wait behind those that run or can begin with the next step, and more are
    /// refused; without it there is no bound. Sequences that were preempted are let wait whatever it says.
    pub fn set_waiting_max(&mut self, waiting_max: usize) {
        self.waiting_max = waiting_max;
    }

    /// Checks the bookkeeping of pages, as [`crate::Pages::check`].
    ///
    /// # Errors
    /// The first thing that is not in order.
    pub fn check_pages(&self) -> Result<(), String> {
        self.pages.check(self.running.iter().chain(&self.waiting).map(|sequence| &sequence.pages))?;
        self.sources.check(self.running.iter().filter(|sequence| sequence.request.source.is_some()).count())
    }

    /// Who holds which page, and what is cached.
    pub fn pages(&self) -> &Pages {
        &self.pages
    }

    /// The passes so far.
    pub fn pass_totals(&self) -> PassTotals {
        self.totals
    }

    /// How much there is to do.
    pub fn workload(&self) -> Workload {
        let (pages, available) = (self.pages.len(), self.pages.available());
        Workload { running: self.running.len(), waiting: self.waiting.len(), pages, pages_held: pages - available }
    }

    /// Lets a sequence wait in its place.
    pub(super) fn wait(&mut self, sequence: Sequence) {
        let at = self.waiting.partition_point(|other| other.rank() < sequence.rank());
        self.waiting.insert(at, sequence);
    }

    /// Lets waiting sequences in, in order of rank, while there is room.
    pub(super) fn admit(&mut self) {
        self.retire();
        let mut at = 0;
        while at < self.waiting.len().min(LOOKED_AT_MAX) && self.running.len() < self.sequences_max {
            if self.fits(&self.waiting[at]) {
                self.waiting[..at].iter_mut().for_each(|passed| passed.passed += 1);
                let sequence = self.waiting.remove(at);
                self.begin(sequence);
            } else {
                at += 1;
            }
            if self.waiting[..at].iter().any(|passed| passed.passed >= PASSED_MAX) {
                break;
            }
        }
    }

    /// Whether a sequence is to be let in now: there are pages for it, and nobody is computing a prefix that it can
    /// have in a moment.
    fn fits(&self, sequence: &Sequence) -> bool {
        let (adopted_max, beside) = (sequence.adopted_max(), self.running.len());
        // Who was let in a moment ago takes its pages with its first pass.
        let new = self.running.iter().filter(|other| other.pages.tables().iter().any(Vec::is_empty)).count();
        // Alone everybody fits.
        self.running.is_empty()
            || sequence
                .request
                .source
                .as_ref()
                .is_none_or(|source| self.sources.has_room(sequence.whose.tenant, source))
                && !self.is_under_way(sequence, adopted_max)
                && self.pages.admits(&sequence.pages, &sequence.tokens, adopted_max, [beside, new])
    }

    /// Whether a running sequence is about to compute a page that this one could adopt, or to come to a checkpoint.
    fn is_under_way(&self, sequence: &Sequence, adopted_max: usize) -> bool {
        let next = |other: &Sequence| match self.pages.shared_every() {
            Some(every) => Some((other.cached / every + 1) * every),
            None => other.next_checkpoint(),
        };
        // A state cannot go back, so who computes a prefix may be behind what is there.
        let is_new = |next| !self.pages.has_states() || next > self.pages.found(&sequence.pages, &sequence.tokens);
        let tokens = &sequence.tokens[..adopted_max.min(sequence.tokens.len())];
        self.running.iter().filter(|other| other.phase == Phase::Reads).any(|other| {
            let public = if sequence.whose.source == other.whose.source { other.request.public_prefix } else { 0 };
            let seen = if other.whose == sequence.whose { usize::MAX } else { public };
            // One page is enough: what comes behind it is asked for again in the next step.
            next(other).is_some_and(|next| {
                let is_seen = next <= seen && next <= tokens.len();
                is_seen && other.tokens.starts_with(&tokens[..next]) && is_new(next)
            })
        })
    }

    /// Lets a sequence run, with what is cached of its tokens.
    fn begin(&mut self, mut sequence: Sequence) {
        let is_new = !std::mem::replace(&mut sequence.opened, true);
        if is_new {
            sequence.open();
            if !sequence.drafters.is_empty() {
                sequence.experience.clone_from(self.shared.of(&sequence.request));
            }
            self.drafters.open(&mut sequence, &mut self.events);
            self.tell_first_score(&mut sequence);
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
        let adopted = self.pages.adopt(&mut sequence.pages, &sequence.tokens, adopted_max);
        let copied = adopted.copied.filter(|_| !is_made(Fault::RowsNotCopied)).map_or(Ok(()), |copied| {
            let (from, to) = (&copied.from, sequence.pages.tables());
            self.executor.rows(CacheEdit::Copy { from, to, positions: copied.positions })
        });
        let cached = match copied {
            Ok(()) if !is_new && is_made(Fault::ResumedLate) => (adopted.len + 1).min(sequence.tokens.len() - 1),
            Ok(()) => adopted.len,
            // What could not be copied is computed.
            Err(_) => {
                self.pages.release(&mut sequence.pages, &[]);
                0
            }
        };
        sequence.set_cached(cached);
        if self.pages.has_states() {
            let known_len = self.pages.known_len(&sequence.pages, &sequence.tokens);
            sequence.plan_checkpoints(known_len, self.wanted_len(&sequence));
        }
        sequence.passed = 0;
        sequence.stats.prompt_tokens_shared += if is_new { cached } else { 0 };
        let at = self.running.partition_point(|other| other.rank() < sequence.rank());
        self.running.insert(at, sequence);
    }

    /// Writes what nobody has to be asked for behind the prompt.
    fn write_first_forced(&mut self, sequence: &mut Sequence) {
        let mut emitted = Vec::new();
        if sequence.finished.is_none() && sequence.limit > sequence.tokens.len() {
            sequence.write_forced(self.executor.capacity().vocabulary, &mut emitted);
        }
        if !emitted.is_empty() {
            self.events.push(Event::Tokens { sequence: sequence.id, emitted });
        }
    }

    /// Tells the executor that a sequence runs from now on, and has its source's rows computed if nobody has.
    fn open_in_executor(&mut self, sequence: &Sequence) -> Result<(), ExecutorError> {
        let (id, tenant) = (sequence.id.0, sequence.whose.tenant);
        let Some(tokens) = &sequence.request.source else { return self.executor.open(id, None) };
        let Held { table, is_computed } = self.sources.hold(tenant, tokens);
        let opened = self.executor.open(id, Some(Source { tokens, table: &table, is_computed }));
        if opened.is_err() {
            self.sources.let_go(tenant, tokens, is_computed);
        }
        opened
    }

    /// The same of one that does not run any more.
    fn release_in_executor(&mut self, sequence: &Sequence) {
        self.executor.release(sequence.id.0);
        if let Some(tokens) = &sequence.request.source {
            self.sources.let_go(sequence.whose.tenant, tokens, true);
        }
    }

    /// Takes pages for all rows that the pass may have, trees and probes included. Where there are not enough for the
    /// rows of the text, the last sequences by rank are preempted and leave the pass; where there are not enough for a
    /// tree, it is kept to the pages that its sequence has, and probes are given up.
    pub(super) fn secure_pages(&mut self, scheduled: &mut Vec<Scheduled>) {
        let mut next = 0;
        while let Some(entry) = scheduled.get(next) {
            let sequence = &mut self.running[entry.at];
            if self.pages.grow(&mut sequence.pages, sequence.cached + entry.take) {
                next += 1;
                continue;
            }
            // It may be this one itself.
            let last = self.running.len() - 1;
            assert!(last > 0, "{:?} has no room alone, and was not refused", self.running[0].id);
            self.preempt_last();
            if let Some(at) = scheduled.iter().position(|entry| entry.at == last) {
                scheduled.remove(at);
                next -= usize::from(at < next);
            }
        }
        for entry in scheduled.iter_mut().filter(|entry| entry.nodes_max > 0) {
            let sequence = &mut self.running[entry.at];
            let rows = sequence.cached + entry.take;
            if !self.pages.grow(&mut sequence.pages, rows + entry.nodes_max + entry.probes_max) {
                entry.nodes_max = entry.nodes_max.min(self.pages.room(&sequence.pages) - rows);
                entry.probes_max = 0;
            }
        }
    }

    /// Keeps a checkpoint of a sequence that has just come to a position, if one is wanted there and its states have
    /// not passed it.
    pub(super) fn keep_checkpoint(&mut self, at: usize, position: usize) {
        let sequence = &self.running[at];
        let is_wanted = sequence.checkpoints.binary_search(&position).is_ok();
        if !is_wanted || sequence.pages.passed() > position {
            return;
        }
        let (from, executor) = (sequence.pages.tables(), &mut self.executor);
        self.pages.keep_checkpoint(&sequence.pages, &sequence.tokens[..position], |to, positions| {
            executor.rows(CacheEdit::Copy { from, to, positions }).is_ok()
        });
    }

    fn preempt_last(&mut self) {
        let mut sequence = self.running.pop().expect("somebody runs");
        let beyond = is_made(Fault::RefusedRowKept) && self.pages.room(&sequence.pages) > sequence.cached;
        self.pages.release(&mut sequence.pages, &sequence.tokens[..sequence.cached + usize::from(beyond)]);
        self.release_in_executor(&sequence);
        sequence.preempt();
        self.wait(sequence);
    }

    /// Lets go of sequences that have ended.
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

    fn end(&mut self, mut sequence: Sequence) {
        let reason = sequence.finished.clone().expect("only sequences that have ended are let go of");
        // Of a sequence that failed only what others may hold already is kept.
        let kept = if sequence.has_failed() { 0 } else { sequence.cached };
        self.pages.release(&mut sequence.pages, &sequence.tokens[..kept]);
        if let Some(tokens) = &sequence.request.source {
            self.sources.end_text(sequence.whose.tenant, tokens);
        }
        if sequence.opened {
            self.drafters.close(&sequence);
        }
        let said_all = matches!(reason, FinishReason::EndToken(_) | FinishReason::StopString(_));
        if said_all && !sequence.request.drafters.is_empty() {
            self.shared.of(&sequence.request).learn_answer(sequence.stats.emitted);
        }
        let text = sequence.held_text();
        self.events.push(Event::Finished { sequence: sequence.id, reason, text, stats: Box::new(sequence.stats) });
    }
}
