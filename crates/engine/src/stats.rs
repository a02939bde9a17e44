//! Statistics of sequences, drafters, steps and engines.

use std::time::Duration;

use foretoken_model::WeightsRead;
use foretoken_speculation::{DraftTree, NodeId};

/// The statistics of one drafter.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DrafterStats {
    /// Nodes that it was the first to propose.
    pub drafted: usize,
    /// How many of them were accepted.
    pub accepted: usize,
    /// Passes in which it was the first to propose a node.
    pub drafts: usize,
    /// Drafted nodes by depth in the tree, from depth 1 on.
    pub drafted_at: Vec<usize>,
    /// How many of them were accepted.
    pub accepted_at: Vec<usize>,
    /// Time that it took to draft.
    pub time: Duration,
    /// Sum of alpha, the overlap of min(p, q), over the positions where its law was compared with the target's, and the
    /// number of these positions ([`DrafterStats::alpha`]).
    pub overlap: (f64, usize),
    /// How often it failed and was dropped.
    pub failures: usize,
    /// Expected and actual acceptance of its offers, by tenths of the expected acceptance, the least first.
    pub reliability: [Reliability; 10],
}

/// Offers of about the same expected acceptance.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reliability {
    /// How many were judged: all that were offered after a written token, verified or not.
    pub judged: usize,
    /// Sum of their expected acceptances.
    pub expected: f64,
    /// How many were right.
    pub right: usize,
}

impl DrafterStats {
    /// 1 + accepted / drafts, over the passes in which it proposed something; 1 without any.
    pub fn mean_accepted_len(&self) -> f64 {
        if self.drafts == 0 { 1.0 } else { 1.0 + self.accepted as f64 / self.drafts as f64 }
    }

    /// Accepted over drafted tokens; `None` if nothing was drafted.
    pub fn acceptance_rate(&self) -> Option<f64> {
        (self.drafted > 0).then(|| self.accepted as f64 / self.drafted as f64)
    }

    /// The empirical alpha: the mean of sum over x of min(p(x), q(x)), which is the probability that a token drawn from
    /// q is accepted if p is wanted (Leviathan et al. 2023, "Fast Inference from Transformers via Speculative
    /// Decoding", Corollary 3.6: alpha = E(min(p, q))). `None` if it was not measured.
    ///
    /// Under a lenience l it is that of lenient verification, sum over x of min(p(x) / l, q(x)), or of its greedy form
    /// ([`foretoken_speculation::Lenience::overlap`]).
    ///
    /// The mean is over all positions where a token was chosen and the drafter had a law q: after the pending token and
    /// after each accepted one. p and q are laws after all sampling settings. A q that is a point mass counts like any
    /// other (under greedy settings all are), and the positions are the same under every promise, so values can be
    /// compared. Drafters without a law, such as a lookup, have no alpha.
    pub fn alpha(&self) -> Option<f64> {
        (self.overlap.1 > 0).then(|| self.overlap.0 / self.overlap.1 as f64)
    }

    /// Adds the counts of another sequence.
    pub fn add(&mut self, other: &DrafterStats) {
        self.drafted += other.drafted;
        self.accepted += other.accepted;
        self.drafts += other.drafts;
        add_each(&mut self.drafted_at, &other.drafted_at);
        add_each(&mut self.accepted_at, &other.accepted_at);
        self.time += other.time;
        self.overlap.0 += other.overlap.0;
        self.overlap.1 += other.overlap.1;
        self.failures += other.failures;
        for (sum, other) in self.reliability.iter_mut().zip(&other.reliability) {
            sum.judged += other.judged;
            sum.expected += other.expected;
            sum.right += other.right;
        }
    }

    /// Counts an offer that was judged.
    pub(crate) fn judge(&mut self, acceptance: f32, right: bool) {
        let reliability = &mut self.reliability[((acceptance * 10.0) as usize).min(9)];
        reliability.judged += 1;
        reliability.expected += f64::from(acceptance);
        reliability.right += usize::from(right);
    }

    /// Counts a drafted node.
    fn draft(&mut self, depth: usize, accepted: bool) {
        self.drafted += 1;
        count_at(&mut self.drafted_at, depth - 1);
        if accepted {
            self.accepted += 1;
            count_at(&mut self.accepted_at, depth - 1);
        }
    }
}

/// Increments a count of a list that grows as needed.
fn count_at(counts: &mut Vec<usize>, at: usize) {
    if counts.len() <= at {
        counts.resize(at + 1, 0);
    }
    counts[at] += 1;
}

fn add_each(counts: &mut Vec<usize>, others: &[usize]) {
    counts.resize(counts.len().max(others.len()), 0);
    counts.iter_mut().zip(others).for_each(|(count, other)| *count += other);
}

/// The statistics of a beam search.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BeamStats {
    /// Steps: positions at which all beams were extended.
    pub steps: usize,
    /// Nodes of all draft trees.
    pub drafted: usize,
    /// Steps whose next beams were compared with drafts.
    pub checked: usize,
    /// How many of these had all of their next beams among the drafts, so that the next step needed no pass.
    pub included: usize,
    /// Rows of passes that were saved because some of the next beams, though not all, were among the drafts.
    pub kept: usize,
    /// The time of the passes after the first step; other sequences may share them.
    pub passes_time: Duration,
}

impl BeamStats {
    /// How often all of the next beams were among the drafts; `None` if nothing was drafted.
    pub fn inclusion_rate(&self) -> Option<f64> {
        (self.checked > 0).then(|| self.included as f64 / self.checked as f64)
    }

    /// Adds the counts of another sequence.
    pub fn add(&mut self, other: &BeamStats) {
        self.steps += other.steps;
        self.drafted += other.drafted;
        self.checked += other.checked;
        self.included += other.included;
        self.kept += other.kept;
        self.passes_time += other.passes_time;
    }
}

/// The times of one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepTimes {
    /// The time of the whole step.
    pub all: Duration,
    /// The time of the target's passes in it, if they succeeded.
    pub passes: Duration,
    /// The time of the drafters in it, for drafting and prefill.
    pub drafters: Duration,
    /// Rows of the target's passes.
    pub rows: usize,
}

impl StepTimes {
    /// The time that is neither a pass nor a drafter: scheduling, pages, laws and random draws, and learning.
    pub fn bookkeeping(&self) -> Duration {
        self.all.saturating_sub(self.passes + self.drafters)
    }
}

/// Totals of an engine's passes that succeeded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PassTotals {
    /// Number of passes.
    pub passes: usize,
    /// Their rows.
    pub rows: usize,
    /// Distinct experts that each pass read, all layers and passes added up; 0 for a network without experts.
    pub experts: usize,
    /// The number of those experts that had to be packed first.
    pub packed: usize,
    /// Bytes of weights that they read, as far as the executor reports them ([`foretoken_model::WeightsRead`]).
    pub bytes: usize,
}

impl PassTotals {
    /// Adds a pass.
    pub(crate) fn count(&mut self, rows: usize, read: WeightsRead) {
        self.passes += 1;
        self.rows += rows;
        self.experts = self.experts.wrapping_add(read.experts);
        self.packed = self.packed.wrapping_add(read.packed);
        self.bytes = self.bytes.wrapping_add(read.bytes);
    }

    /// The difference from earlier totals of the same engine.
    pub fn since(self, before: PassTotals) -> PassTotals {
        PassTotals {
            passes: self.passes - before.passes,
            rows: self.rows - before.rows,
            experts: self.experts.wrapping_sub(before.experts),
            packed: self.packed.wrapping_sub(before.packed),
            bytes: self.bytes.wrapping_sub(before.bytes),
        }
    }

    /// Adds others.
    pub fn add(&mut self, other: PassTotals) {
        self.passes += other.passes;
        self.rows += other.rows;
        self.experts = self.experts.wrapping_add(other.experts);
        self.packed = self.packed.wrapping_add(other.packed);
        self.bytes = self.bytes.wrapping_add(other.bytes);
    }
}

/// The load of an engine between two steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Workload {
    /// Sequences that run.
    pub running: usize,
    /// Sequences that wait for admission, for the first time or after a preemption.
    pub waiting: usize,
    /// Pages of the cache, those of its first group.
    pub pages: usize,
    /// The number of those pages that sequences hold.
    pub pages_held: usize,
}

/// The statistics of one sequence.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stats {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// The number of tokens of the prompt whose rows were cached from an earlier sequence with the same prefix.
    pub prompt_tokens_shared: usize,
    /// How often it was preempted.
    pub preemptions: usize,
    /// Tokens emitted.
    pub emitted: usize,
    /// The number of tokens emitted up to the end of the first pass that emitted any.
    pub emitted_first: usize,
    /// The number of emitted tokens that were forced: no other was possible. Drafts and acceptance are counted without
    /// them.
    pub forced: usize,
    /// The number of forced tokens that were written without a pass.
    pub skipped: usize,
    /// Passes of the target that emitted tokens.
    pub passes: usize,
    /// Passes of the target that emitted none: chunks of the prompt, or rows computed again after a preemption.
    pub prompt_passes: usize,
    /// The number of emitting passes that had a draft.
    pub drafts: usize,
    /// Nodes of all draft trees.
    pub drafted: usize,
    /// Accepted nodes.
    pub accepted: usize,
    /// How many drafts had 0, 1, 2, ... accepted nodes.
    pub accepted_lens: Vec<usize>,
    /// Of a beam search; zero for other requests.
    pub beams: BeamStats,
    /// Tokens of the decoding passes after the first, and the time of these passes with all drafting, in plain passes,
    /// by [`foretoken_speculation::Costs`] and not by the clock.
    pub modelled: (usize, f64),
    /// The sequence's share of the time of planning, choosing and learning, without the drafters' own time.
    pub bookkeeping: Duration,
    /// By drafter of the engine.
    pub drafters: Vec<DrafterStats>,
    /// The lenience of verification if it was **lossy** ([`crate::Request::lossy_lenience`] below 1, with drafters); of
    /// several sequences the least.
    pub lossy_lenience: Option<f32>,
    /// From submission to the first emitted token, including the wait for admission.
    pub time_to_first_token: Duration,
    /// How much of that it waited for its first admission.
    pub time_waiting: Duration,
    /// From submission to the last emitted token.
    pub time: Duration,
}

impl Stats {
    /// Adds an emitting pass: its tree, the part of the accepted path that was emitted, which nodes of it were forced,
    /// and the measured sums of min(p, q), by drafter.
    pub(crate) fn count(
        &mut self,
        tree: &DraftTree,
        written: &[NodeId],
        is_forced: impl Fn(NodeId) -> bool,
        overlaps: &[(u8, f64)],
    ) {
        self.passes += 1;
        if self.passes == 1 {
            self.emitted_first = self.emitted;
        }
        for (source, overlap) in overlaps {
            let (sum, count) = &mut self.drafters[usize::from(*source)].overlap;
            (*sum, *count) = (*sum + overlap, *count + 1);
        }
        if tree.is_empty() {
            return;
        }
        let accepted = written.iter().filter(|node| !is_forced(**node)).count();
        self.drafts += 1;
        self.drafted += tree.len() - (written.len() - accepted);
        self.accepted += accepted;
        count_at(&mut self.accepted_lens, accepted);
        let mut proposed = [false; 256];
        for node in tree.nodes().filter(|node| !(written.contains(node) && is_forced(*node))) {
            let source = tree.source(node);
            let drafter = &mut self.drafters[usize::from(source)];
            drafter.draft(tree.depth(node), written.contains(&node));
            drafter.drafts += usize::from(!std::mem::replace(&mut proposed[usize::from(source)], true));
        }
    }

    /// Adds another sequence's statistics. Times are added up, so rates are per sequence.
    pub fn add(&mut self, other: &Stats) {
        self.prompt_tokens += other.prompt_tokens;
        self.prompt_tokens_shared += other.prompt_tokens_shared;
        self.preemptions += other.preemptions;
        self.emitted += other.emitted;
        self.emitted_first += other.emitted_first;
        self.forced += other.forced;
        self.skipped += other.skipped;
        self.passes += other.passes;
        self.prompt_passes += other.prompt_passes;
        self.modelled = (self.modelled.0 + other.modelled.0, self.modelled.1 + other.modelled.1);
        self.bookkeeping += other.bookkeeping;
        self.drafts += other.drafts;
        self.drafted += other.drafted;
        self.accepted += other.accepted;
        add_each(&mut self.accepted_lens, &other.accepted_lens);
        self.lossy_lenience =
            self.lossy_lenience.into_iter().chain(other.lossy_lenience).reduce(|least, other| least.min(other));
        self.beams.add(&other.beams);
        self.time_to_first_token += other.time_to_first_token;
        self.time_waiting += other.time_waiting;
        self.time += other.time;
        self.drafters.resize(self.drafters.len().max(other.drafters.len()), DrafterStats::default());
        self.drafters.iter_mut().zip(&other.drafters).for_each(|(sum, drafter)| sum.add(drafter));
    }

    /// 1 + accepted / drafts, over passes that had a draft; 1 without any.
    pub fn mean_accepted_len(&self) -> f64 {
        if self.drafts == 0 { 1.0 } else { 1.0 + self.accepted as f64 / self.drafts as f64 }
    }

    /// The speedup over plain decoding by the learned costs; `None` before a second pass.
    pub fn modelled_speedup(&self) -> Option<f64> {
        (self.modelled.1 > 0.0).then(|| self.modelled.0 as f64 / self.modelled.1)
    }

    /// Emitted tokens over passes: 1 for plain decoding, and more with forced tokens.
    pub fn tokens_per_pass(&self) -> f64 {
        if self.passes == 0 { 0.0 } else { self.emitted as f64 / self.passes as f64 }
    }

    /// [`Stats::tokens_per_pass`] without the tokens that were written without a pass ([`Stats::skipped`]).
    pub fn asked_tokens_per_pass(&self) -> f64 {
        if self.passes == 0 { 0.0 } else { (self.emitted - self.skipped) as f64 / self.passes as f64 }
    }

    /// Accepted over drafted tokens; `None` if nothing was drafted.
    pub fn acceptance_rate(&self) -> Option<f64> {
        (self.drafted > 0).then(|| self.accepted as f64 / self.drafted as f64)
    }

    /// Tokens after the first emitting pass, over the time after the first token; `None` if there are none.
    ///
    /// The first pass is left out because it computes the prompt and may emit several tokens.
    pub fn tokens_per_second(&self) -> Option<f64> {
        let seconds = self.time.saturating_sub(self.time_to_first_token).as_secs_f64();
        let tokens = self.emitted - self.emitted_first;
        (tokens > 0 && seconds > 0.0).then(|| tokens as f64 / seconds)
    }
}
