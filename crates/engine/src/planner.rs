//! The planner: which drafters are asked in a pass, how far each drafts, and which of their tokens are verified.
//!
//! **What it knows** is learned from the passes that serve requests:
//!
//! - *Costs* (`meter`): the seconds of a pass by its rows and its context, and of each drafter's call, step and
//!   prefill, as plain numbers ([`foretoken_speculation::Costs`]). Only the meter reads measured times.
//! - *Experience* ([`foretoken_speculation::Experience`]): how often each drafter is right, by its confidence and by
//!   depth, and the speedup of speculation. Each sequence has its own; a new one begins with that of all requests with
//!   the same drafters and similar settings (`shared_experience`).
//! - *Trials* (`trials`): how much time may be spent on asking drafters that do not pay, to notice when they would.
//!
//! **One unit of cost.** A drafted token is worth its probability of being accepted, in tokens. A second costs the
//! tokens that decoding writes in it: the rate of plain decoding times the recent speedup of speculation (`baseline`).
//! So every decision compares the same quantity: expected tokens minus rate times seconds.
//!
//! **What it decides**, in this order, for each pass:
//!
//! 1. [`Planner::schedule`] (`rows`): how the rows of the pass are shared between pending tokens, prompts and trees, so
//!    that a long prompt does not stall sequences that decode (chunked prefill).
//! 2. [`Planner::begin`]: whether a pass without drafts is due, to measure the time that drafts are compared with.
//! 3. [`PassPlan::read_along`] (`reading`): how much of a prompt each draft model reads alongside the target.
//! 4. [`PassPlan::is_asked`]: whether a drafter is asked: if its expected tokens are worth its time, or it is given a
//!    trial. One that has many tokens to read is not asked; it reads a chunk of them.
//! 5. [`PassPlan::outlook`]: whether a draft model makes another step, which it asks before each step after the first.
//! 6. [`PassPlan::choose`]: which nodes are verified: of the candidates of all sequences those whose expected tokens
//!    are worth their rows ([`foretoken_speculation::choose`]).
//! 7. [`Planner::learn`]: the time of the pass and the accepted tokens become costs and experience.
//!
//! Budgets of requests other than `auto` are limits set by a user: their drafters are asked whether they pay or not.
//! No decision made here can change an output, since rows do not depend on each other and every token is verified. With
//! fixed costs ([`Meter::hold`]) no decision depends on the clock.
//!
//! Decided elsewhere: calls of drafters and the isolation of their faults (`drafting`), and pages (`step/admission`).

mod baseline;
mod beams;
mod meter;
mod pass;
mod reading;
mod rows;
mod shared_experience;
mod trials;

use foretoken_model::Capacity;
use foretoken_speculation::Experience;

use crate::beams::{BeamCheck, BeamRates};
use crate::request::Request;
use crate::sequence::{OutputCounts, PENDING_TOKENS_MAX, Sequence};
use baseline::Baseline;
use beams::BeamDrafts;
pub(crate) use beams::{BeamCandidate, BeamDraft};
pub use meter::{CostRecord, DrafterTime, WidthTime};
pub(crate) use meter::{DrafterCall, Meter, PassTiming};
pub(crate) use pass::{DrafterCandidate, PassEstimate, PassPlan};
pub(crate) use reading::ReadChunk;
pub(crate) use rows::Scheduled;
use shared_experience::SharedExperience;
use trials::Trials;

/// What is known from one pass to the next.
#[derive(Default)]
pub(crate) struct Planner {
    pub(crate) meter: Meter,
    shared: SharedExperience,
    trials: Trials,
    beams: BeamDrafts,
    /// Whether this pass is to have no drafts.
    is_plain: bool,
}

impl Planner {
    /// The experience that requests like this one share, with which a new one begins.
    pub(crate) fn experience_of(&mut self, request: &Request) -> &mut Experience {
        self.shared.of(request)
    }

    /// Distributes the rows of the next pass to the running sequences, which are in order of rank.
    pub(crate) fn schedule(&self, running: &[Sequence], capacity: &Capacity, scheduled: &mut Vec<Scheduled>) {
        let rows_max = rows::pass_rows_max(running, self.meter.costs(), capacity.rows_max);
        rows::schedule(running, rows_max, rows::scoring_rows_max(capacity.vocabulary), scheduled);
    }

    /// Begins a pass: clears the drafts of the last one, and sets how many nodes each sequence may have.
    pub(crate) fn begin(&mut self, running: &mut [Sequence], scheduled: &[Scheduled]) -> PassPlan<'_> {
        let Self { meter, trials, is_plain, .. } = self;
        running.iter_mut().for_each(|sequence| sequence.clear_draft(meter.costs()));
        let baseline = Baseline::new(running, scheduled, meter.costs());
        let (rows, context) = baseline.undrafted();
        let may_skip_draft = |entry: &Scheduled| running[entry.index].request.budget.is_auto() || entry.nodes_max == 0;
        // The time of plain decoding must be known, since drafts are compared with it.
        let can_be_plain = rows == baseline.emitting && scheduled.iter().all(may_skip_draft);
        *is_plain = can_be_plain && meter.plain_pass_is_due(rows, context);
        for entry in scheduled {
            let sequence = &mut running[entry.index];
            // The hypotheses of a beam search have a tree of their own.
            let is_undrafted = *is_plain || sequence.request.beams.is_some();
            sequence.draft.nodes_max = if is_undrafted { 0 } else { entry.nodes_max };
            sequence.draft.probes.clear(entry.probes_max);
        }
        let read_seconds = rows::reading_seconds(running, meter.costs(), rows);
        PassPlan::new(meter, trials, baseline, read_seconds)
    }

    /// What is drafted for a beam search, if anything is. `own`: the search's own rates.
    pub(crate) fn beam_draft(&mut self, candidate: BeamCandidate, own: &mut Option<BeamRates>) -> Option<BeamDraft> {
        if self.is_plain { None } else { self.beams.choose(candidate, own, self.meter.costs()) }
    }

    /// Learns what became of drafted steps of a beam search, for all and as its `own`.
    pub(crate) fn learn_beams(&mut self, number: u8, own: &mut Option<BeamRates>, checks: &[BeamCheck]) {
        self.beams.learn(number, own, checks);
    }

    /// Learns the seconds of a step that a drafter made for a beam search. With fixed costs nothing is learned from the
    /// clock.
    pub(crate) fn learn_beam_seconds(&mut self, number: u8, seconds: f64) {
        if !self.meter.is_held() {
            self.beams.learn_seconds(number, seconds);
        }
    }

    /// Learns the times of passes, at the context that was planned.
    pub(crate) fn learn_passes(&mut self, estimate: &PassEstimate, timings: impl Iterator<Item = PassTiming>) {
        let (_, context) = estimate.baseline.undrafted();
        timings.for_each(|timing| self.meter.learn_pass(timing, context));
    }

    /// Learns how many tokens the pass emitted for each sequence. `before`: the counts of each running sequence before
    /// the pass.
    pub(crate) fn learn(
        &mut self,
        estimate: &PassEstimate,
        running: &mut [Sequence],
        scheduled: &[Scheduled],
        before: &[OutputCounts],
    ) {
        let costs = self.meter.costs();
        let nodes = running.iter().map(|sequence| sequence.draft.tree.len() + sequence.draft.probes.len()).sum();
        let plain_passes = estimate.baseline.plain_passes(costs, nodes, estimate.drafting_seconds);
        let mut auto_drafters: Vec<u8> = Vec::new();
        for entry in scheduled.iter().filter(|entry| entry.complete) {
            let sequence = &mut running[entry.index];
            if sequence.request.drafters.is_empty() || sequence.request.beams.is_some() {
                continue;
            }
            // Forced tokens say nothing about drafters, and plain decoding skips them too.
            let (before, after) = (before[entry.index], sequence.output_counts());
            let skipped = after.skipped - before.skipped;
            let tokens = after.emitted - before.emitted - skipped;
            let shared = self.shared.of(&sequence.request);
            sequence.learn(tokens, skipped, shared);
            // A prefill pass says nothing about passes that decode.
            let decodes = entry.token_rows == 1 || entry.token_rows <= PENDING_TOKENS_MAX && sequence.stats.passes > 1;
            if decodes && !sequence.draft.drafters.is_empty() {
                shared.learn_pass(tokens, plain_passes);
                sequence.draft.experience.learn_pass(tokens, plain_passes);
                let (all, time) = sequence.stats.modelled;
                sequence.stats.modelled = (all + tokens, time + plain_passes);
            }
            if sequence.request.budget.is_auto() {
                let drafters = sequence.draft.drafters.iter();
                auto_drafters.extend(drafters.filter(|number| !auto_drafters.contains(number)).collect::<Vec<_>>());
            }
        }
        self.trials.earn(&auto_drafters, estimate.baseline.seconds(costs, nodes));
    }
}
