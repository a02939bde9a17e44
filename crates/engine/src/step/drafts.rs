//! The drafts of a step: the planner decides which drafters are asked, these offer candidates, and the planner chooses
//! the nodes to verify.

use std::time::Duration;

use foretoken_speculation::Chance;

use super::Engine;
use crate::drafting::DraftPass;
use crate::planner::{PassEstimate, Scheduled};
use crate::sequence::OutputCounts;

/// A pass that was drafted.
pub(super) struct DraftedPass {
    /// The estimates by which it was planned.
    estimate: PassEstimate,
    /// The time of planning and choosing, without the drafters' own.
    bookkeeping: Duration,
}

impl Engine {
    /// Asks the drafters for candidates, and chooses the nodes to verify.
    pub(super) fn draft(&mut self, scheduled: &[Scheduled], chance: &mut dyn Chance) -> DraftedPass {
        let started = self.clock.now();
        let Self { running, planner, clock, drafters, executor, events, times, .. } = self;
        let vocabulary = executor.capacity().vocabulary;
        let plan = planner.begin(running, scheduled);
        let mut pass = DraftPass { plan, clock: &**clock, vocabulary, events, time: Duration::ZERO };
        for entry in scheduled.iter().filter(|entry| !entry.complete) {
            let seconds = drafters.read_along(entry, &running[entry.index], &mut pass);
            running[entry.index].draft.read_along_seconds = Some(seconds);
        }
        drafters.draft(running, &mut pass, chance);
        drafters.read(running, &mut pass);
        let DraftPass { plan, time, .. } = pass;
        times.drafters = time;
        let estimate = plan.choose(running);
        let bookkeeping = clock.since(started).unwrap_or_default().saturating_sub(time);
        self.draft_beams(scheduled);
        DraftedPass { estimate, bookkeeping }
    }

    /// Learns the time of the pass and the tokens that it emitted. `before`: the counts of each running sequence before
    /// the pass.
    pub(super) fn learn(&mut self, scheduled: &[Scheduled], drafted: &DraftedPass, before: &[OutputCounts]) {
        let started = self.clock.now();
        let DraftedPass { estimate, bookkeeping } = drafted;
        let Self { planner, running, timings, clock, .. } = self;
        planner.learn_passes(estimate, timings.drain(..));
        if estimate.emitting() == 0 {
            return;
        }
        planner.learn(estimate, running, scheduled, before);
        let each = (*bookkeeping + clock.since(started).unwrap_or_default()) / estimate.emitting() as u32;
        let emitting = scheduled.iter().filter(|entry| entry.complete);
        emitting.for_each(|entry| running[entry.index].stats.bookkeeping += each);
    }
}
