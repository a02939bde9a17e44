//! How many steps ahead is drafted for a beam search.
//!
//! A step is included if all of the target's next hypotheses were drafted; then it needs no pass. With the rate r of
//! such steps, a draft of k steps makes 1 + r + ... + r^k steps in one pass, which has k times as many more rows as the
//! draft has hypotheses, and takes k steps of the draft model (Leviathan et al. 2023, appendix A.4, with times in place
//! of their number of operations). So k is the number of steps with which a second makes most, and 0 if drafting does
//! not pay: then one step is drafted as a trial when a small part of the time since is as long as it takes, to notice
//! when drafting begins to pay.
//!
//! Rates and times are learned from all beam searches with the same draft model.

use foretoken_speculation::Costs;

/// Fraction of the time that may be spent on trials.
const TRIAL_TIME_PART: f64 = 0.01;
/// Weight of what was learned before when another step is learned.
const MEMORY: f64 = 0.97;
/// The benefit must exceed this factor, since estimates are rough.
const MARGIN: f64 = 1.03;

/// What is known of a drafter's drafts for beam searches.
#[derive(Clone, Copy, Debug, Default)]
struct BeamRecord {
    /// Steps that were included, and all that were compared, the last ones counting most.
    included: f64,
    checked: f64,
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
    /// Tokens of its sequences, on average.
    pub(crate) context: usize,
    /// Rows of each step of the draft.
    pub(crate) width: usize,
    /// Maximum number of steps.
    pub(crate) depth_max: usize,
    /// Tokens that the drafter has not read.
    pub(crate) unread: usize,
    /// Steps that the search may still make.
    pub(crate) steps_left: usize,
}

/// The depth of drafts for beam searches.
#[derive(Clone, Debug, Default)]
pub(crate) struct BeamDepths {
    /// By drafter.
    records: Vec<BeamRecord>,
}

impl BeamDepths {
    fn record(&mut self, number: u8) -> &mut BeamRecord {
        let at = usize::from(number);
        self.records.resize(self.records.len().max(at + 1), BeamRecord::default());
        &mut self.records[at]
    }

    /// How many steps to draft.
    pub(super) fn depth(&mut self, candidate: BeamCandidate, costs: &Costs) -> usize {
        let BeamCandidate { number, rows, context, width, depth_max, unread, steps_left } = candidate;
        let drafter = costs.drafter(number);
        let record = self.record(number);
        // Before the first step is compared, one of two is assumed to be included.
        let rate = (record.included + 0.5) / (record.checked + 1.0);
        let step = record.step_seconds.unwrap_or(drafter.step);
        let reading = unread as f64 * drafter.catch_up;
        let seconds = |depth: usize| match depth {
            0 => costs.pass(rows, context),
            _ => costs.pass(rows + depth * width, context) + drafter.call + depth as f64 * step,
        };
        let plain = seconds(0);
        let (mut best, mut most, mut steps) = (0, MARGIN / plain, 1.0);
        for depth in 1..=depth_max {
            steps += rate.powi(depth as i32);
            // What has to be read first is read for all steps to come.
            let per_second = steps / (seconds(depth) + reading * steps / steps_left.max(1) as f64);
            if per_second > most {
                (best, most) = (depth, per_second);
            }
        }
        if best > 0 || depth_max == 0 {
            record.saved_seconds = 0.0;
            return best;
        }
        record.saved_seconds += TRIAL_TIME_PART * plain;
        let price = seconds(1) - plain + reading;
        if record.saved_seconds < price {
            return 0;
        }
        record.saved_seconds = 0.0;
        1
    }

    /// Learns how many steps were compared with a draft, and how many of them were included.
    pub(super) fn learn(&mut self, number: u8, checked: usize, included: usize) {
        let record = self.record(number);
        let kept = MEMORY.powi(checked as i32);
        record.checked = record.checked * kept + checked as f64;
        record.included = record.included * kept + included as f64;
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

    const CANDIDATE: BeamCandidate =
        BeamCandidate { number: 0, rows: 4, context: 9, width: 6, depth_max: 5, unread: 0, steps_left: 50 };

    #[test]
    fn more_steps_are_drafted_the_more_often_they_are_included_and_none_if_they_do_not_pay() {
        let depth = |included: usize, row: f64, step: f64| {
            let mut depths = BeamDepths::default();
            depths.learn(0, 100, included);
            depths.depth(CANDIDATE, &costs(row, step))
        };
        assert_eq!([99, 60, 30, 1].map(|included| depth(included, 0.01, 0.05)), [5, 3, 1, 0]);
        assert_eq!((depth(99, 0.5, 0.05), depth(99, 0.01, 3.0)), (0, 0));
        assert_eq!(BeamDepths::default().depth(BeamCandidate { depth_max: 0, ..CANDIDATE }, &costs(0.01, 0.05)), 0);
    }

    #[test]
    fn trials_take_a_small_part_of_the_time_and_notice_when_drafting_pays() {
        let mut depths = BeamDepths::default();
        depths.learn(0, 100, 0);
        let costs = costs(0.01, 0.2);
        let (mut plain, mut trials) = (0.0, 0.0);
        for _ in 0..1000 {
            match depths.depth(CANDIDATE, &costs) {
                0 => plain += costs.pass(4, 9),
                depth => trials += depth as f64 * (0.2 + costs.pass(10, 9) - costs.pass(4, 9)),
            }
        }
        assert!(trials > 0.0 && trials < 0.02 * plain, "{trials} of {plain}");
        (0..60).for_each(|_| depths.learn(0, 1, 1));
        assert!(depths.depth(CANDIDATE, &costs) > 0);
    }

    #[test]
    fn a_long_prompt_is_not_read_for_a_few_steps() {
        let mut depths = BeamDepths::default();
        depths.learn(0, 20, 18);
        let mut costs = costs(0.01, 0.05);
        costs.drafters[0].catch_up = 0.01;
        let depth = |depths: &mut BeamDepths, steps_left| {
            depths.depth(BeamCandidate { unread: 1000, steps_left, ..CANDIDATE }, &costs)
        };
        assert_eq!(depth(&mut depths, 5), 0);
        assert!(depth(&mut depths, 500) > 0);
    }
}
