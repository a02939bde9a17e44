//! The drafts of a step: who is asked, what is chosen of it, and what came of it.
//!
//! Everything here is decided by [`foretoken_speculation::choose`] and its kin; the engine brings together what they
//! need: who writes in the pass, what it costs, and what is known of the drafters. Left out: the pass itself.

use std::time::Duration;

use foretoken_speculation::{Chance, Choice, choose};

use super::Engine;
use crate::drafting::DraftPass;
use crate::scheduler::{Scheduled, reading_seconds};
use crate::sequence::{PENDING_MAX, Sequence, Written};
use crate::weighing::Weighing;

/// What was drafted for a pass.
pub(super) struct Drafted {
    /// What the decisions went by.
    pub(super) weighing: Weighing,
    /// What drafting takes by what is known of costs, in seconds.
    seconds: f64,
    /// What everything but the drafters themselves took.
    bookkeeping: Duration,
}

impl Engine {
    /// Lets drafters offer candidates, and chooses of them what is verified.
    pub(super) fn draft(&mut self, scheduled: &[Scheduled], chance: &mut dyn Chance) -> Drafted {
        let started = self.clock.now();
        let Self { running, meter, clock, trials, drafters, executor, events, times, .. } = self;
        running.iter_mut().for_each(|sequence| sequence.clear_draft(meter.costs()));
        let weighing = Weighing::new(running, scheduled, meter.costs());
        let (rows, context) = weighing.undrafted();
        let by_costs = |entry: &Scheduled| running[entry.at].request.budget.is_auto() || entry.nodes_max == 0;
        // What plain decoding takes must be known for drafts to be weighed against it.
        let is_plain_without = rows == weighing.writers && scheduled.iter().all(by_costs);
        let plain = is_plain_without && meter.plain_is_due(rows, context);
        for entry in scheduled {
            let sequence = &mut running[entry.at];
            sequence.nodes_max = if plain { 0 } else { entry.nodes_max };
            sequence.probes.clear(entry.probes_max);
        }
        let vocabulary = executor.capacity().vocabulary;
        let read_seconds = reading_seconds(running, meter.costs(), rows);
        let mut pass = DraftPass {
            weighing,
            meter,
            clock: &**clock,
            trials,
            vocabulary,
            events,
            seconds: 0.0,
            time: Duration::ZERO,
            resting: Vec::new(),
            tried: Vec::new(),
            read_seconds,
            reading: Vec::new(),
        };
        let prompts = scheduled.iter().filter(|entry| !entry.complete);
        for entry in prompts {
            let seconds = drafters.read_along(entry.at, entry.take, &running[entry.at], &mut pass);
            running[entry.at].read_along = Some(seconds);
        }
        drafters.draft(running, &mut pass, chance);
        drafters.read(running, &mut pass);
        let DraftPass { seconds, time, .. } = pass;
        times.drafters = time;
        let probes = running.iter().map(|sequence| sequence.probes.len()).sum();
        let drafted = running.iter_mut().filter(|sequence| !sequence.candidates.is_empty());
        let mut choices: Vec<Choice<'_>> = drafted.map(Sequence::choice).collect();
        choose(&mut choices, meter.costs(), weighing.pass_so_far(probes));
        Drafted { weighing, seconds, bookkeeping: clock.since(started).unwrap_or_default().saturating_sub(time) }
    }

    /// Learns what the pass was worth to those who wrote in it. `written`: what each running sequence had written
    /// before.
    pub(super) fn learn(&mut self, scheduled: &[Scheduled], drafted: &Drafted, written: &[Written]) {
        let started = self.clock.now();
        let Drafted { weighing, seconds: drafting, bookkeeping } = *drafted;
        for made in self.made.drain(..) {
            self.meter.learn_pass(made, weighing.undrafted().1);
        }
        if weighing.writers == 0 {
            return;
        }
        let costs = self.meter.costs();
        let nodes = self.running.iter().map(|sequence| sequence.tree.len() + sequence.probes.len()).sum();
        let plain_passes = weighing.plain_passes(costs, nodes, drafting);
        let mut weighed: Vec<u8> = Vec::new();
        for entry in scheduled.iter().filter(|entry| entry.complete) {
            let sequence = &mut self.running[entry.at];
            if sequence.request.drafters.is_empty() {
                continue;
            }
            // Forced tokens say nothing of drafters, and plain decoding skips them too.
            let now = sequence.written();
            let skipped = now.skipped - written[entry.at].skipped;
            let tokens = now.emitted - written[entry.at].emitted - skipped;
            let shared = self.shared.of(&sequence.request);
            sequence.learn(tokens, skipped, shared);
            // The pass of a prompt says nothing about passes that decode.
            let decodes = entry.take == 1 || entry.take <= PENDING_MAX && sequence.stats.passes > 1;
            if decodes && !sequence.drafters.is_empty() {
                shared.learn_pass(tokens, plain_passes);
                sequence.experience.learn_pass(tokens, plain_passes);
                let (all, time) = sequence.stats.modelled;
                sequence.stats.modelled = (all + tokens, time + plain_passes);
            }
            if sequence.request.budget.is_auto() {
                weighed.extend(sequence.drafters.iter().filter(|number| !weighed.contains(number)).collect::<Vec<_>>());
            }
        }
        self.trials.earn(&weighed, weighing.seconds(costs, nodes));
        let each = (bookkeeping + self.clock.since(started).unwrap_or_default()) / weighing.writers as u32;
        let writers = scheduled.iter().filter(|entry| entry.complete);
        writers.for_each(|entry| self.running[entry.at].stats.bookkeeping += each);
    }
}
