//! How many steps ahead is drafted for a beam search, and how many hypotheses of each.
//!
//! A step is included if all of the target's next hypotheses were drafted; then it needs no pass. If the drafted steps
//! are included with the rates r1, r2, ..., a draft of k steps of w hypotheses makes 1 + r1 + r1 r2 + ... steps in one
//! pass, which has k w rows more, and takes k steps of the draft model (Leviathan et al. 2023, appendix A.4, with times
//! in place of their number of operations). So k and w are those with which a second makes most, and nothing is drafted
//! if that is hardly more than without: then one step is drafted as a trial when a small part of the time since is as
//! long as it takes, to notice when drafting begins to pay.
//!
//! A rate depends on w (`beams/rates.rs`), and there are two kinds of steps: the first, and those that continue
//! hypotheses which are themselves drafted. A first step whose hypotheses are partly known (`step/beams.rs`) is a kind
//! of its own, since the draft guesses less of it.
//!
//! Estimate for the demo pair inflated, four beams: 0.55 to 0.6 of first steps need the first four alone. So in Q8_0,
//! where a pass of eight rows takes 1.05 to 1.2 of one of four, a step takes 0.7 to 0.8 of one without drafts.
//!
//! Times are learned from all beam searches with the same draft model. So are rates, with which a search begins; but
//! texts differ more than anything else, so what it begins with counts as a few steps, and its own steps decide soon.

use foretoken_speculation::Costs;

use crate::beams::{BeamCheck, BeamRates, BeamStep, WIDTHS, width};

/// Fraction of the time that may be spent on trials.
const TRIAL_TIME_PART: f64 = 0.01;
/// The benefit must exceed this factor, since estimates are rough.
const MARGIN: f64 = 1.03;

/// What is known of a drafter's drafts for beam searches.
#[derive(Clone, Copy, Debug, Default)]
struct BeamRecord {
    rates: BeamRates,
    /// Seconds of a step of the drafter, once they are known.
    step_seconds: Option<f64>,
    /// The seconds that may be spent on a trial.
    saved_seconds: f64,
}

/// A draft that may be made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BeamCandidate {
    /// The drafter.
    pub(crate) number: u8,
    /// Rows of the pass without the draft.
    pub(crate) rows: usize,
    /// Other sequences of the pass that write.
    pub(crate) others: usize,
    /// Tokens of its sequences, on average.
    pub(crate) context: usize,
    /// The beams of the search.
    pub(crate) beams: usize,
    /// The kind of the first step that would be drafted.
    pub(crate) kind: BeamStep,
    /// Maximum number of rows, and of steps.
    pub(crate) nodes_max: usize,
    pub(crate) depth_max: usize,
    /// Tokens that the drafter has not read.
    pub(crate) unread: usize,
    /// Steps that the search may still make.
    pub(crate) steps_left: usize,
}

/// A draft for a beam search: steps, and hypotheses of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BeamDraft {
    pub(crate) depth: usize,
    pub(crate) width: usize,
}

impl BeamCandidate {
    /// As many steps of this width as there may be, if any.
    pub(crate) fn of_width(&self, width: usize) -> Option<BeamDraft> {
        let depth = (self.nodes_max / width).min(self.depth_max);
        (depth > 0).then_some(BeamDraft { depth, width })
    }
}

/// The drafts for beam searches.
#[derive(Clone, Debug, Default)]
pub(crate) struct BeamDrafts {
    /// By drafter.
    records: Vec<BeamRecord>,
}

impl BeamDrafts {
    fn record(&mut self, number: u8) -> &mut BeamRecord {
        let at = usize::from(number);
        self.records.resize(self.records.len().max(at + 1), BeamRecord::default());
        &mut self.records[at]
    }

    /// The draft to make, if one pays or is due as a trial. `own`: the rates of the search, once it has any.
    pub(super) fn choose(
        &mut self,
        candidate: BeamCandidate,
        own: &mut Option<BeamRates>,
        costs: &Costs,
    ) -> Option<BeamDraft> {
        let BeamCandidate { number, rows, others, context, beams, unread, steps_left, .. } = candidate;
        let drafter = costs.drafter(number);
        let record = self.record(number);
        let step = record.step_seconds.unwrap_or(drafter.step);
        let reading = unread as f64 * drafter.catch_up;
        let rates = own.get_or_insert(record.rates.shared());
        let [first, later] = [candidate.kind, BeamStep::Later].map(|kind| rates.by_width(kind));
        let plain = costs.pass(rows, context);
        let seconds = |draft: BeamDraft| {
            costs.pass(rows + draft.depth * draft.width, context) + drafter.call + draft.depth as f64 * step
        };
        let (mut best, mut most) = (None, MARGIN * (others + 1) as f64 / plain);
        let mut trial: Option<(f64, BeamDraft)> = None;
        for (at, quarters) in WIDTHS.iter().enumerate() {
            let width = width(beams, *quarters);
            let (mut steps, mut rate) = (1.0, first[at]);
            for depth in 1..=candidate.depth_max.min(candidate.nodes_max / width) {
                let draft = BeamDraft { depth, width };
                steps += rate;
                rate *= later[at];
                // What has to be read first is read for all steps to come.
                let all = seconds(draft) + reading * steps / steps_left.max(1) as f64;
                let per_second = (others as f64 + steps) / all;
                if per_second > most {
                    (best, most) = (Some(draft), per_second);
                }
                if depth == 1 && trial.is_none_or(|(other, _)| per_second > other) {
                    trial = Some((per_second, draft));
                }
            }
        }
        let (_, trial) = trial?;
        if best.is_some() {
            record.saved_seconds = 0.0;
            return best;
        }
        record.saved_seconds += TRIAL_TIME_PART * plain;
        if record.saved_seconds < seconds(trial) - plain + reading {
            return None;
        }
        record.saved_seconds = 0.0;
        Some(trial)
    }

    /// Learns what became of drafted steps of a search, whose own rates are `own`.
    pub(super) fn learn(&mut self, number: u8, own: &mut Option<BeamRates>, checks: &[BeamCheck]) {
        let rates = &mut self.record(number).rates;
        own.get_or_insert(rates.shared()).learn(checks);
        rates.learn(checks);
    }

    /// Learns the seconds of a step of the drafter.
    pub(super) fn learn_seconds(&mut self, number: u8, seconds: f64) {
        let known = &mut self.record(number).step_seconds;
        *known = Some(known.map_or(seconds, |before| before + (seconds - before) * 0.1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use foretoken_speculation::DrafterCosts;
    use foretoken_speculation::costs::Curve;

    fn costs(row: f64, step: f64) -> Costs {
        let curve = Curve::new(0, vec![(1, 1.0), (101, 1.0 + 100.0 * row)]);
        Costs { curves: vec![curve], drafters: vec![DrafterCosts { step, ..DrafterCosts::default() }] }
    }

    const CANDIDATE: BeamCandidate = BeamCandidate {
        number: 0,
        rows: 4,
        others: 0,
        context: 9,
        beams: 4,
        kind: BeamStep::First,
        nodes_max: 32,
        depth_max: 5,
        unread: 0,
        steps_left: 50,
    };

    /// Drafts that have compared 100 steps of each kind, of which this many were included with `needed` of 8.
    fn learned(included: usize, needed: usize) -> BeamDrafts {
        let mut drafts = BeamDrafts::default();
        for kind in [BeamStep::First, BeamStep::PartlyKnown, BeamStep::Later] {
            // Included steps are spread over the others.
            let is_included = |at: usize| (at + 1) * included / 100 > at * included / 100;
            let needed = |at: usize| is_included(at).then_some(needed);
            let check = |at: usize| BeamCheck { kind, beams: 4, width: 8, needed: needed(at) };
            drafts.learn(0, &mut None, &(0..100).map(check).collect::<Vec<_>>());
        }
        drafts
    }

    #[test]
    fn more_steps_are_drafted_the_more_often_they_are_included_and_none_if_they_do_not_pay() {
        let depth = |included: usize, row: f64, step: f64| {
            let draft = learned(included, 4).choose(CANDIDATE, &mut None, &costs(row, step));
            draft.map_or(0, |draft| draft.depth)
        };
        let depths = [99, 60, 30, 1].map(|included| depth(included, 0.01, 0.05));
        assert!(depths[0] == 5 && depths.is_sorted_by(|a, b| a >= b) && depths[2] > 0, "{depths:?}");
        assert_eq!((depth(1, 0.01, 0.2), depth(99, 2.0, 0.05), depth(99, 0.01, 3.0)), (0, 0, 0));
        let none = BeamCandidate { depth_max: 0, ..CANDIDATE };
        assert_eq!(BeamDrafts::default().choose(none, &mut None, &costs(0.01, 0.05)), None);
        let full = BeamCandidate { nodes_max: 3, ..CANDIDATE };
        assert_eq!(learned(99, 4).choose(full, &mut None, &costs(0.01, 0.05)), None);
    }

    #[test]
    fn as_many_hypotheses_are_drafted_as_steps_need_if_their_rows_are_cheap() {
        let width = |needed: usize, row: f64| {
            let mut drafts = learned(90, needed);
            let mut own = Some(drafts.record(0).rates);
            drafts.choose(CANDIDATE, &mut own, &costs(row, 0.01)).map(|draft| draft.width)
        };
        assert_eq!([4, 5, 6, 8].map(|needed| width(needed, 0.001)), [Some(4), Some(5), Some(6), Some(8)]);
        assert_eq!(width(8, 0.2), None);
        // Where the pass serves others, too, they wait for the rows.
        let busy = BeamCandidate { others: 20, ..CANDIDATE };
        assert_eq!(learned(90, 4).choose(busy, &mut None, &costs(0.02, 0.01)), None);
    }

    #[test]
    fn trials_take_a_small_part_of_the_time_and_notice_when_drafting_pays() {
        let mut drafts = learned(0, 4);
        let costs = costs(0.01, 0.2);
        let (mut plain, mut trials) = (0.0, 0.0);
        for _ in 0..1000 {
            match drafts.choose(CANDIDATE, &mut None, &costs) {
                None => plain += costs.pass(4, 9),
                Some(BeamDraft { depth, width }) => {
                    assert_eq!(depth, 1);
                    trials += 0.2 + costs.pass(4 + width, 9) - costs.pass(4, 9);
                }
            }
        }
        assert!(trials > 0.0 && trials < 0.02 * plain, "{trials} of {plain}");
        let check = BeamCheck { kind: BeamStep::First, beams: 4, width: 4, needed: Some(4) };
        drafts.learn(0, &mut None, &[check; 60]);
        assert!(drafts.choose(CANDIDATE, &mut None, &costs).is_some());
    }

    #[test]
    fn a_search_begins_with_the_rates_of_all_and_soon_has_its_own() {
        let (mut drafts, costs) = (learned(60, 4), costs(0.05, 0.01));
        let fails = |kind| BeamCheck { kind, beams: 4, width: 4, needed: None };
        let mut own = None;
        let failed = (0..100).take_while(|_| {
            let is_drafted = drafts.choose(CANDIDATE, &mut own, &costs).is_some();
            drafts.learn(0, &mut own, &[fails(BeamStep::First)]);
            is_drafted
        });
        assert!((4..16).contains(&failed.count()));
        // The next one is not told that all fails.
        assert!(drafts.choose(CANDIDATE, &mut None, &costs).is_some());
    }

    #[test]
    fn a_long_prompt_is_not_read_for_a_few_steps() {
        let mut drafts = learned(90, 4);
        let mut costs = costs(0.01, 0.05);
        costs.drafters[0].catch_up = 0.01;
        let long = |steps_left| BeamCandidate { unread: 1000, steps_left, ..CANDIDATE };
        let mut choose = |steps_left| drafts.choose(long(steps_left), &mut None, &costs);
        assert_eq!(choose(5), None);
        assert!(choose(500).is_some());
    }
}
