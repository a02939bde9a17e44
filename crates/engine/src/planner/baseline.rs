//! The pass without drafts, as the baseline that drafters are compared with: whether one is worth asking.
//!
//! The baseline is the rate at which decoding writes tokens: that of plain decoding of the same sequences, times the
//! recent speedup of speculation for each of them. A drafter without a network is asked while its expected right
//! tokens, minus the cost of their rows, are worth its time; while none of its tokens are chosen, it is asked in fewer
//! passes. A drafter with a network is asked while its first step pays and, if it has many tokens to read first, while
//! reading them pays within the expected rest of the answer. A drafter that is not worth asking gets trials (`trials`).
//!
//! Decided elsewhere: how many steps are made (the drafter asks [`Outlook`]) and which candidates are verified
//! ([`foretoken_speculation::choose`]).

use foretoken_speculation::{Branch, Costs, Experience, Outlook, PassSoFar};

use super::meter::READ_FREE_TOKENS;
use super::pass::DrafterCandidate;
use super::rows::Scheduled;
use crate::sequence::Sequence;

/// Fraction of the time that may be spent on asking drafters without a network of whose last draft no token was chosen:
/// the maximum that such calls may slow down decoding.
const UNCHOSEN_TIME_PART: f64 = 0.005;
/// Maximum number of passes between two calls of such a drafter: a copied passage must be noticed before it ends.
const CALL_INTERVAL_PASSES_MAX: f64 = 8.0;
/// A call is counted with this many times its own time, since its candidates must also be ranked and learned from.
const CALL_FACTOR: f64 = 2.0;

/// With several sequences in a pass the value of time is raised by up to this fraction. A row costs almost nothing for
/// a single sequence and nearly a token's time among eight, so only tokens that look almost certain would be worth
/// theirs; but the best of many candidates look better than they are, and a sequence that ends before the others saves
/// only its own rows. Measured with eight outputs that are hardly predictable, five runs each: 0.91 to 0.97 of plain
/// decoding without it, 0.95 to 1.03 with it.
const BATCH_SURCHARGE_PART: f64 = 0.25;

/// The pass without drafts, by the learned costs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Baseline {
    /// Sequences that emit tokens in it; a beam search counts as its hypotheses.
    pub(super) emitting: usize,
    /// Its rows, without any tree.
    rows: usize,
    /// Tokens of its sequences, on average.
    context: usize,
    /// Nodes of all trees of the last pass.
    all_nodes_before: usize,
    /// Tokens per second that decoding writes, all sequences together.
    rate: f64,
    /// Seconds of a plain pass of the emitting sequences alone.
    plain_seconds: f64,
    /// The cost of another row, in tokens, at the number of rows where it is least on average.
    row_min: f64,
}

impl Baseline {
    /// The baseline of a pass over what is scheduled.
    pub(super) fn new(running: &[Sequence], scheduled: &[Scheduled], costs: &Costs) -> Self {
        let emits = scheduled.iter().filter(|entry| entry.complete);
        let emitting = emits.map(|entry| running[entry.index].emitting_rows()).sum::<usize>();
        let tokens: usize = scheduled.iter().map(|entry| running[entry.index].text.tokens.len()).sum();
        let context = tokens / scheduled.len().max(1);
        let plain_seconds = costs.pass(emitting.max(1), context);
        let speedups = scheduled.iter().filter(|entry| entry.complete);
        let speedups: f64 = speedups.map(|entry| running[entry.index].draft.experience.speedup()).sum();
        // A pass that only reads prompts is valued as if one sequence wrote without speculation.
        let speedups = if emitting == 0 { 1.0 } else { speedups };
        let rows = scheduled.iter().map(|entry| entry.token_rows).sum();
        let rate = speedups / plain_seconds * (1.0 + BATCH_SURCHARGE_PART * (1.0 - 1.0 / emitting.max(1) as f64));
        // Without drafters it is not needed.
        let drafts = running.iter().any(|sequence| !sequence.draft.drafters.is_empty());
        let row_min = if drafts { rate * costs.row_min(rows, context) } else { 0.0 };
        let all_nodes_before = running.iter().map(|sequence| sequence.draft.nodes_before).sum();
        Self { emitting, rows, context, all_nodes_before, rate, plain_seconds, row_min }
    }

    /// The pass before candidates are added. `probes`: rows in addition to the trees.
    pub(super) fn pass_so_far(&self, probes: usize) -> PassSoFar {
        PassSoFar { rows: self.rows + probes, context: self.context, rate: self.rate }
    }

    /// Rows of the pass without drafts, and its context.
    pub(super) fn undrafted(&self) -> (usize, usize) {
        (self.rows, self.context)
    }

    /// The estimates that a drafter decides by, for a sequence that had this many nodes in the last pass. The other
    /// sequences are assumed to have as many nodes as in the last pass.
    pub(super) fn outlook<'a>(
        &self,
        nodes_before: usize,
        experience: &'a Experience,
        costs: &'a Costs,
        unique: f64,
    ) -> Outlook<'a> {
        let Self { rate, context, row_min, .. } = *self;
        Outlook {
            costs,
            experience,
            rate,
            rows: self.rows + self.all_nodes_before - nodes_before,
            context,
            unique,
            row_min,
        }
    }

    /// The time of a pass with its drafting, in plain passes of the same sequences. `nodes`: of all trees. Rows of
    /// prompts are not counted, since plain decoding would have computed them as well.
    pub(super) fn plain_passes(&self, costs: &Costs, nodes: usize, drafting_seconds: f64) -> f64 {
        (costs.pass(self.emitting + nodes, self.context) + drafting_seconds) / self.plain_seconds
    }

    /// Seconds of the pass with this many nodes, by the learned costs.
    pub(super) fn seconds(&self, costs: &Costs, nodes: usize) -> f64 {
        costs.pass(self.rows + nodes, self.context)
    }

    /// Whether a drafter should be asked for this sequence after those `before`.
    pub(super) fn is_worth_asking(
        &self,
        sequence: &Sequence,
        costs: &Costs,
        candidate: DrafterCandidate,
        before: &[u8],
    ) -> bool {
        let unique = unique(&sequence.draft.experience, before, candidate.number);
        let outlook = self.outlook(sequence.draft.nodes_before, &sequence.draft.experience, costs, unique);
        let drafter = costs.drafter(candidate.number);
        if !candidate.has_network {
            let probes = self.seconds_of_rows(costs, candidate.probes);
            let right = sequence.draft.experience.right_per_ask(candidate.number) * unique;
            // Every right token needs a row at least, and so does every drawn one.
            let rows = right.max(sequence.draft.experience.drawn_per_ask(candidate.number));
            return right - rows * self.row_min > self.rate * (drafter.call + probes);
        }
        let prospect = outlook.prospect(candidate.number, Branch::root(candidate.nodes_max));
        let unread = candidate.unread.saturating_sub(READ_FREE_TOKENS) as f64;
        // The time per token without this drafter and with it. The recent speedup may include what this drafter gained,
        // so that is not counted as the others' gain.
        let plain = self.plain_seconds / self.emitting.max(1) as f64;
        let others = (sequence.draft.experience.speedup() - prospect.tokens).max(1.0);
        let saved = plain / others - (plain + prospect.seconds) / (others + prospect.tokens);
        prospect.steps > 0 && sequence.expected_tokens_left() * saved > unread * drafter.catch_up
    }

    /// Whether a drafter may be asked in this pass. One without a network of whose last draft no token was chosen skips
    /// passes.
    pub(super) fn is_due(&self, sequence: &Sequence, costs: &Costs, candidate: DrafterCandidate) -> bool {
        if candidate.has_network || !sequence.draft.was_unchosen(candidate.number) {
            return true;
        }
        let all = CALL_FACTOR * costs.drafter(candidate.number).call * self.emitting as f64;
        let between = (all / (UNCHOSEN_TIME_PART * self.plain_seconds)).ceil().clamp(1.0, CALL_INTERVAL_PASSES_MAX);
        // Spread over the passes, so that not all sequences ask in the same one.
        sequence.id.0.wrapping_add(sequence.stats.passes as u64).is_multiple_of(between as u64)
    }

    /// Seconds of a trial: of asking a drafter for one token.
    pub(super) fn trial_seconds(&self, sequence: &Sequence, costs: &Costs, candidate: DrafterCandidate) -> f64 {
        let drafter = costs.drafter(candidate.number);
        let network = drafter.step + candidate.unread as f64 * drafter.catch_up + self.seconds_of_rows(costs, 1);
        let drawn = sequence.draft.experience.drawn_per_ask(candidate.number).ceil() as usize;
        let own = if candidate.has_network { network } else { self.seconds_of_rows(costs, drawn) };
        drafter.call + self.seconds_of_rows(costs, candidate.probes) + own
    }

    /// Seconds that this many rows add to the pass.
    fn seconds_of_rows(&self, costs: &Costs, rows: usize) -> f64 {
        if rows == 0 {
            return 0.0;
        }
        costs.pass(self.rows.saturating_add(rows), self.context) - costs.pass(self.rows, self.context)
    }
}

/// The weight of a drafter's right tokens after the drafters that were asked before it: the square root of the fraction
/// that no other drafter proposes. It is between that fraction and 1, since agreement makes a token more probable; of
/// the three the root measured best.
pub(super) fn unique(experience: &Experience, asked: &[u8], number: u8) -> f64 {
    if asked.is_empty() { 1.0 } else { experience.uniqueness(number).sqrt() }
}
