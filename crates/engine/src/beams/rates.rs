//! How often drafted steps of a beam search are included, by kind of step and number of hypotheses.
//!
//! The draft orders its hypotheses, and of each step that was compared it is known how many of the first would have
//! been enough, or that all were too few. The rate of a number of them is estimated from both as a survival function is
//! (Kaplan and Meier 1958).

use super::{BeamCheck, BeamStep};

/// Weight of what was learned before when another step of the same kind is learned.
const MEMORY: f64 = 0.97;
/// Steps of each width that the rates of all searches count as, in a search that begins with them. Few, since texts
/// differ: with all that was learned from others, summaries took up to 1.18 times as long as without drafts.
const SHARED_STEPS_MAX: f64 = 6.0;
/// How many hypotheses of a step are drafted, in quarters of the number of beams.
pub(crate) const WIDTHS: [usize; 6] = [4, 5, 6, 8, 12, 16];
/// Before anything is learned: how often a step that needs more than the last width is included with the next one.
const PRIOR: [f64; 6] = [0.5, 0.1, 0.1, 0.1, 0.1, 0.1];

/// This number of quarters of the beams, rounded up.
pub(crate) fn width(beams: usize, quarters: usize) -> usize {
    (beams * quarters).div_ceil(4)
}

/// How often steps of one kind were included, by width.
#[derive(Clone, Copy, Debug, Default)]
struct Rates {
    /// For each width: steps that needed more than the width before it and had this one, and how many of these were
    /// included with it. The last ones count most.
    tried: [f64; WIDTHS.len()],
    included: [f64; WIDTHS.len()],
}

impl Rates {
    fn learn(&mut self, check: &BeamCheck) {
        for (at, quarters) in WIDTHS.iter().enumerate() {
            let width = width(check.beams, *quarters);
            if width > check.width {
                return;
            }
            let is_included = check.needed.is_some_and(|needed| needed <= width);
            self.tried[at] = self.tried[at] * MEMORY + 1.0;
            self.included[at] = self.included[at] * MEMORY + f64::from(u8::from(is_included));
            if is_included {
                return;
            }
        }
    }

    /// The rate of steps that are included, for each width.
    fn by_width(&self) -> [f64; WIDTHS.len()] {
        let mut excluded = 1.0;
        std::array::from_fn(|at| {
            excluded *= 1.0 - (self.included[at] + PRIOR[at]) / (self.tried[at] + 1.0);
            1.0 - excluded
        })
    }
}

/// How often drafted steps were included, by kind of step: those of one search, or of all with the same drafter.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BeamRates([Rates; 3]);

impl BeamRates {
    /// Learns what became of drafted steps.
    pub(crate) fn learn(&mut self, checks: &[BeamCheck]) {
        checks.iter().for_each(|check| self.0[check.kind as usize].learn(check));
    }

    /// The rates of steps of a kind, for each width.
    pub(crate) fn by_width(&self, kind: BeamStep) -> [f64; WIDTHS.len()] {
        self.0[kind as usize].by_width()
    }

    /// The same rates for a search that begins with them.
    pub(crate) fn shared(mut self) -> Self {
        for Rates { tried, included } in &mut self.0 {
            for (tried, included) in tried.iter_mut().zip(included) {
                let part = (SHARED_STEPS_MAX / *tried).min(1.0);
                (*tried, *included) = (*tried * part, *included * part);
            }
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_width_that_was_too_small_says_nothing_about_larger_ones() {
        let mut rates = Rates::default();
        let check = BeamCheck { kind: BeamStep::First, beams: 4, width: 8, needed: Some(8) };
        (0..50).for_each(|_| rates.learn(&check));
        let before = rates.by_width();
        assert!(before[2] < 0.1 && before[3] > 0.9, "{before:?}");
        (0..50).for_each(|_| rates.learn(&BeamCheck { width: 6, needed: None, ..check }));
        let after = rates.by_width();
        assert!(after[2] < 0.1 && after[3] > 0.9, "{after:?}");
    }
}
