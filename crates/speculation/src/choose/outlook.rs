//! The decision whether another step of drafting pays, made before the step.
//!
//! A draft model spends the time of each step before the step's tokens are known, so its gain is estimated: from the
//! gain of the branch so far, and the mean acceptance of this drafter at the depths below. The next step pays if for
//! some number of further steps the expected tokens are worth the time of the steps and of the rows that they add to
//! the pass. Several steps are considered because the time of a pass jumps when a new strip of rows begins, so a step
//! that does not pay alone may pay together with the steps after it.
//!
//! The answer depends on earlier passes and on earlier offers, and the branch stops *after* a token: so the law of the
//! output is kept under every promise.
//!
//! Other drafters' offers for the same branch are not considered, only how often they agree with this one on average.

use crate::{Costs, Evidence, Experience};

/// What a drafter needs to decide whether its next step pays.
#[derive(Copy, Clone, Debug)]
pub struct Outlook<'a> {
    /// The times of passes and steps.
    pub costs: &'a Costs,
    /// How often the drafters were right so far.
    pub experience: &'a Experience,
    /// Tokens per second that decoding writes, all sequences of the pass together.
    pub rate: f64,
    /// Rows that the pass has without this tree.
    pub rows: usize,
    /// Tokens of the sequences of the pass, on average.
    pub context: usize,
    /// Fraction of this drafter's right tokens that the drafters that were asked before it in this pass do not propose;
    /// 1 for the drafter that is asked first.
    pub unique: f64,
    /// The cost of a further row of the pass, in tokens: the minimum over all numbers of further rows
    /// ([`Costs::row_min`]).
    pub row_min: f64,
}

/// A branch that may be continued.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Branch {
    /// Estimated probability that the whole branch is accepted.
    pub gain: f64,
    /// Number of its tokens.
    pub depth: usize,
    /// Nodes that this drafter has offered so far, all its branches together.
    pub nodes: usize,
    /// Maximum number of tokens that may still be added to it.
    pub room: usize,
}

impl Branch {
    /// The empty branch, at the root of an empty tree.
    pub fn root(room: usize) -> Branch {
        Branch { gain: 1.0, depth: 0, nodes: 0, room }
    }
}

/// The best continuation of a branch, as far as it is expected to pay.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub struct Prospect {
    /// Number of its steps.
    pub steps: usize,
    /// The tokens that it is expected to add.
    pub tokens: f64,
    /// The seconds that it adds, for steps and rows.
    pub seconds: f64,
}

/// Maximum number of further steps that are considered.
const STEPS_MAX: usize = 32;
/// A continuation is not considered once its gain is below this: `STEPS_MAX` such gains would not pay for a step.
const GAIN_MIN: f64 = 0.002;

impl Outlook<'_> {
    /// Calibrated probability that a token of this drafter is accepted once its parent is; `depth` is 1 for a child of
    /// the root.
    pub fn acceptance(&self, source: u8, evidence: Evidence, depth: usize) -> f64 {
        f64::from(self.experience.acceptance(source, evidence, depth))
    }

    /// Whether this drafter should make another step after the branch.
    pub fn pays(&self, source: u8, branch: Branch) -> bool {
        self.prospect(source, branch).steps > 0
    }

    /// The most valuable number of further steps, with its expected tokens and time; no steps if none pay.
    pub fn prospect(&self, source: u8, branch: Branch) -> Prospect {
        let step = self.costs.drafter(source).step;
        let pass = |nodes: usize| self.costs.pass(self.rows + nodes, self.context);
        let before = pass(branch.nodes);
        let (mut gain, mut tokens) = (branch.gain, 0.0);
        let (mut best_value, mut best) = (0.0, Prospect::default());
        for steps in 1..=branch.room.min(STEPS_MAX) {
            gain *= self.experience.mean_acceptance(source, branch.depth + steps);
            if gain < GAIN_MIN {
                break;
            }
            tokens += gain * self.unique;
            let seconds = steps as f64 * step + pass(branch.nodes + steps) - before;
            let value = tokens - self.rate * seconds;
            if value > best_value {
                (best_value, best) = (value, Prospect { steps, tokens, seconds });
            }
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::costs::{Curve, DrafterCosts};

    /// Costs by which a pass of one row takes a second, one of up to 8 rows a tenth longer, and the ninth row half a
    /// second more.
    fn costs(step: f64) -> Costs {
        let points = vec![(1, 1.0), (8, 1.1), (9, 1.6), (16, 1.7)];
        let drafters = vec![DrafterCosts { step, ..DrafterCosts::default() }];
        Costs { curves: vec![Curve::new(0, points)], drafters }
    }

    fn outlook<'a>(costs: &'a Costs, experience: &'a Experience, rate: f64) -> Outlook<'a> {
        Outlook { costs, experience, rate, rows: 1, context: 10, unique: 1.0, row_min: 0.0 }
    }

    #[test]
    fn a_cheap_step_is_made_while_the_branch_is_probable_and_an_expensive_one_is_not() {
        let experience = Experience::default();
        let cheap = costs(0.01);
        let branch = |gain, depth| Branch { gain, depth, nodes: depth, room: 16 - depth };
        let good = outlook(&cheap, &experience, 2.0);
        assert!(good.pays(0, branch(1.0, 0)) && good.pays(0, branch(0.5, 4)));
        assert!(!good.pays(0, branch(0.01, 4)));
        // A draft model as large as the target: a step takes as long as a pass, and plain decoding is better.
        let expensive = costs(1.0);
        assert!(!outlook(&expensive, &experience, 1.0).pays(0, branch(1.0, 0)));
        assert!(!good.pays(0, Branch { room: 0, ..branch(1.0, 0) }));
    }

    #[test]
    fn a_new_strip_of_rows_is_begun_only_for_several_tokens() {
        let (costs, experience) = (costs(0.0), Experience::default());
        let outlook = outlook(&costs, &experience, 2.0);
        // The ninth row costs half a second, which is one token: it pays only if it adds more than one token.
        let sure = Branch { gain: 1.0, depth: 7, nodes: 7, room: 1 };
        assert!(!outlook.pays(0, sure) && outlook.pays(0, Branch { nodes: 8, ..sure }));
        let far = outlook.prospect(0, Branch { room: 8, ..sure });
        assert!(far.steps > 3 && far.tokens > 1.0, "{far:?}");
    }
}
