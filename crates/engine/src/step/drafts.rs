//! The drafts of a step: who is asked, what is chosen of it, and what came of it.
//!
//! Everything here is decided by [`foretoken_speculation::choose`] and its kin; the engine brings together what they need:
//! who writes in the pass, what it costs, and what is known of the drafters. Left out: the pass itself.

use foretoken_speculation::{Chance, Choice, choose};

use super::Engine;
use crate::drafting::DraftPass;
use crate::scheduler::Part;
use crate::sequence::Sequence;
use crate::weighing::Weighing;

/// A plain pass is made for its time if there was none among so many passes.
const PLAIN_EVERY: u64 = 256;

impl Engine {
    /// Lets drafters offer candidates, and chooses of them what is verified. Returns what it went by and what it took, in
    /// seconds by what is known of costs.
    pub(super) fn draft(&mut self, parts: &[Part], chance: &mut dyn Chance) -> (Weighing, f64) {
        let Self { running, meter, trials, drafters, executor, events, .. } = self;
        running.iter_mut().for_each(|sequence| sequence.clear_draft(meter.costs()));
        let weighing = Weighing::new(running, parts, meter.costs());
        let (rows, context) = weighing.undrafted();
        let by_costs = |part: &Part| running[part.at].request.budget.is_auto() || part.nodes_max == 0;
        // What plain decoding takes must be known for drafts to be weighed against it.
        let is_plain_without = rows == weighing.writers && parts.iter().all(by_costs);
        let plain = is_plain_without && meter.plain_is_due(rows, context, PLAIN_EVERY);
        for part in parts {
            let sequence = &mut running[part.at];
            sequence.nodes_max = if plain { 0 } else { part.nodes_max };
            sequence.probes.clear(part.probes_max);
        }
        let vocabulary = executor.capacity().vocabulary;
        let mut pass = DraftPass { weighing, meter, trials, vocabulary, events, seconds: 0.0 };
        drafters.draft(running, &mut pass, chance);
        let seconds = pass.seconds;
        let probes = running.iter().map(|sequence| sequence.probes.len()).sum();
        let drafted = running.iter_mut().filter(|sequence| !sequence.candidates.is_empty());
        let mut choices: Vec<Choice<'_>> = drafted.map(Sequence::choice).collect();
        choose(&mut choices, meter.costs(), weighing.pass_so_far(probes));
        (weighing, seconds)
    }

    /// Learns what the pass was worth to those who wrote in it. `written`: what each running sequence had written before.
    pub(super) fn learn(&mut self, parts: &[Part], weighing: &Weighing, drafting: f64, written: &[usize]) {
        if weighing.writers == 0 {
            return;
        }
        let costs = self.meter.costs();
        let nodes = self.running.iter().map(|sequence| sequence.tree.len() + sequence.probes.len()).sum();
        let plain_passes = weighing.plain_passes(costs, nodes, drafting);
        let mut weighed: Vec<u8> = Vec::new();
        for part in parts.iter().filter(|part| part.complete) {
            let sequence = &mut self.running[part.at];
            let tokens = sequence.stats.emitted - written[part.at];
            sequence.learn(tokens, self.shared.of(&sequence.request));
            // The pass of a prompt says nothing about passes that decode.
            if part.take == 1 && !sequence.drafters.is_empty() {
                let shared = self.shared.of(&sequence.request);
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
    }
}
