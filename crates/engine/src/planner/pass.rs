//! The plan of one pass: which drafters are asked, how far each goes, and which nodes are verified.
//!
//! Only the decisions are made here; `drafting` calls the drafters and isolates their faults. The time of a call is
//! learned at once, so the next decision of the same pass uses it.

use foretoken_speculation::{Choice, Experience, Outlook, choose};

use super::baseline::{Baseline, unique};
use super::meter::{DrafterCall, Meter};
use super::reading::ReadChunk;
use super::trials::Trials;
use crate::sequence::Sequence;

/// A drafter that may be asked for a sequence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DrafterCandidate {
    pub(crate) number: u8,
    /// Whether it runs a network.
    pub(crate) has_network: bool,
    /// Whether it drafts from a constraint. Such a drafter is asked in every pass, since tokens that a grammar forces
    /// must be drafted at once.
    pub(crate) needs_constraint: bool,
    /// Whether it reads the target's hidden states of the whole sequence.
    pub(crate) reads_hidden: bool,
    /// Tokens of the sequence that its network has not read.
    pub(crate) unread: usize,
    /// Rows that it needs in addition to the tree.
    pub(crate) probes: usize,
    /// Maximum number of nodes of the tree.
    pub(crate) nodes_max: usize,
}

/// The plan of one pass.
pub(crate) struct PassPlan<'a> {
    pub(super) meter: &'a mut Meter,
    trials: &'a mut Trials,
    pub(super) baseline: Baseline,
    /// Seconds of drafting in this pass, estimated by the learned costs.
    drafting_seconds: f64,
    /// Drafters that are not worth asking for some sequence.
    unprofitable: Vec<u8>,
    /// The unprofitable drafters that are asked as a trial, once for each such sequence, with the estimated seconds.
    tried: Vec<(u8, f64)>,
    /// Seconds for which draft models may still read in this pass; a sequence that takes longer is read in chunks.
    pub(super) read_seconds: f64,
    /// The chunks of the running sequences that draft models read in this pass.
    pub(crate) read_chunks: Vec<ReadChunk>,
}

/// The estimates by which a pass was planned; what is learned from the pass is compared with them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PassEstimate {
    pub(super) baseline: Baseline,
    /// Seconds of drafting, estimated by the learned costs.
    pub(super) drafting_seconds: f64,
}

impl PassEstimate {
    /// Sequences that emit tokens in the pass.
    pub(crate) fn emitting(&self) -> usize {
        self.baseline.emitting
    }
}

impl<'a> PassPlan<'a> {
    pub(super) fn new(
        meter: &'a mut Meter,
        trials: &'a mut Trials,
        baseline: Baseline,
        read_seconds: f64,
    ) -> PassPlan<'a> {
        let (unprofitable, tried, read_chunks) = (Vec::new(), Vec::new(), Vec::new());
        PassPlan { meter, trials, baseline, drafting_seconds: 0.0, unprofitable, tried, read_seconds, read_chunks }
    }

    /// Whether this drafter is asked for the running sequence `index`, after those `before`. One that has too many
    /// tokens to read reads a chunk instead.
    pub(crate) fn is_asked(
        &mut self,
        index: usize,
        candidate: DrafterCandidate,
        sequence: &Sequence,
        before: &[u8],
    ) -> bool {
        let tried = self.tried.len();
        if sequence.request.budget.is_auto() && !self.is_worth_it(candidate, sequence, before) {
            return false;
        }
        if self.reads_chunk_instead(index, candidate, sequence) {
            // The trial's time is spent on reading, so the trial is not charged for a draft.
            self.tried.truncate(tried);
            return false;
        }
        true
    }

    /// Whether a drafter pays, or is asked as a trial.
    fn is_worth_it(&mut self, candidate: DrafterCandidate, sequence: &Sequence, before: &[u8]) -> bool {
        let costs = self.meter.costs();
        if !candidate.needs_constraint && !self.baseline.is_due(sequence, costs, candidate) {
            return false;
        }
        if self.baseline.is_worth_asking(sequence, costs, candidate, before) {
            return true;
        }
        let number = candidate.number;
        self.unprofitable.push(number);
        // A long sequence is read in chunks, each of which is a trial.
        let chunk = DrafterCandidate { unread: candidate.unread.min(self.chunk_tokens(number)), ..candidate };
        let price = self.baseline.trial_seconds(sequence, costs, chunk);
        let is_tried = self.trials.spend(number, price);
        self.tried.extend(is_tried.then_some((number, price)));
        is_tried
    }

    /// Clears the trial time of the drafters that were asked, except unprofitable ones: the time for a trial is counted
    /// from the last pass in which a drafter paid for all sequences.
    pub(crate) fn clear_trials(&mut self, asked: impl Iterator<Item = u8>) {
        asked.filter(|number| !self.unprofitable.contains(number)).for_each(|number| self.trials.clear(number));
    }

    /// The estimates by which a drafter decides whether to make another step, for a sequence that had this many nodes
    /// in the last pass and for which the drafters `before` were asked.
    pub(crate) fn outlook<'b>(
        &'b self,
        number: u8,
        nodes_before: usize,
        experience: &'b Experience,
        before: &[u8],
    ) -> Outlook<'b> {
        let unique = unique(experience, before, number);
        self.baseline.outlook(nodes_before, experience, self.meter.costs(), unique)
    }

    /// Learns the time of a call in which a drafter drafted for this many sequences.
    pub(crate) fn learn_drafting(&mut self, number: u8, call: DrafterCall, sequences: usize) {
        self.meter.learn_call(number, call);
        self.drafting_seconds += call.expected(self.meter.costs().drafter(number));
        let tried = self.tried.iter().filter(|tried| tried.0 == number);
        // If all sequences of the call were trials, its time is their time. With fixed costs the estimate stands.
        let (count, price) = tried.fold((0, 0.0), |(count, sum), tried| (count + 1, sum + tried.1));
        if count == sequences && !self.meter.is_held() {
            self.trials.charge(number, call.seconds - price);
        }
    }

    /// Learns the time of a call in which a drafter read chunks.
    pub(crate) fn learn_reading(&mut self, number: u8, call: DrafterCall) {
        self.meter.learn_call(number, call);
    }

    /// Seconds of the pass without drafts; `None` with fixed costs, so that no decision depends on the clock.
    pub(crate) fn seconds_by_clock(&self) -> Option<f64> {
        let (rows, context) = self.baseline.undrafted();
        (!self.meter.is_held()).then(|| self.meter.costs().pass(rows, context))
    }

    /// Chooses the nodes to verify from all candidates.
    pub(crate) fn choose(self, running: &mut [Sequence]) -> PassEstimate {
        let probes = running.iter().map(|sequence| sequence.draft.probes.len()).sum();
        let drafted = running.iter_mut().filter(|sequence| !sequence.draft.candidates.is_empty());
        let mut choices: Vec<Choice<'_>> = drafted.map(Sequence::choice).collect();
        choose(&mut choices, self.meter.costs(), self.baseline.pass_so_far(probes));
        PassEstimate { baseline: self.baseline, drafting_seconds: self.drafting_seconds }
    }
}
