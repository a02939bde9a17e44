//! Whether another step of drafting pays, before it is made.
//!
//! A draft model pays for each depth before its tokens are known, so what comes is estimated from what came: the gain
//! of the branch so far, and the mean acceptance of this drafter at the depths below. The next step pays if for some
//! number of further steps what they are expected to add is worth their time and that of the rows that the pass gets by
//! them: not only for the next one, because a step may be followed by a better bargain (a pass has steps where a strip
//! of rows begins).
//!
//! The answer depends on earlier passes and on what was offered already, and the branch stops *behind* a token: so it
//! is lawful under every promise.
//!
//! Left out: what other drafters say of this very branch; only how often they say the same is known.

use crate::{Costs, Evidence, Experience};

/// What a drafter needs to know to weigh its next step.
#[derive(Copy, Clone, Debug)]
pub struct Outlook<'a> {
    /// What passes and steps take.
    pub costs: &'a Costs,
    /// What is known of the drafters.
    pub experience: &'a Experience,
    /// Tokens a second that decoding writes, all sequences of the pass together.
    pub rate: f64,
    /// Rows that the pass has without this tree.
    pub rows: usize,
    /// Tokens of the sequences of the pass, on average.
    pub context: usize,
    /// Part of what this drafter adds that the drafters asked before it in this pass do not: 1 for the first.
    pub unique: f64,
    /// Least that another row of the pass costs on average, in tokens: that of the number of rows that is best.
    pub row_min: f64,
}

/// A branch that may be continued.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Branch {
    /// Estimated probability that all of it is accepted.
    pub gain: f64,
    /// Its tokens.
    pub depth: usize,
    /// Nodes that this drafter has offered so far, all its branches together.
    pub nodes: usize,
    /// Most tokens that it may still get.
    pub room: usize,
}

impl Branch {
    /// The root of an empty tree.
    pub fn root(room: usize) -> Branch {
        Branch { gain: 1.0, depth: 0, nodes: 0, room }
    }
}

/// The best that a branch is expected to come to.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub struct Prospect {
    /// Steps to be made for it.
    pub steps: usize,
    /// Expected tokens more.
    pub tokens: f64,
    /// Seconds more, of steps and rows.
    pub seconds: f64,
}

/// Further steps than this are not looked at,
const STEPS_MAX: usize = 32;
/// nor those behind what is less probable than this: so many times this little would not pay for a step.
const GAIN_MIN: f64 = 0.002;

impl Outlook<'_> {
    /// Calibrated probability that a guess of this drafter is accepted once what it stands behind is; `depth` is 1
    /// below the root.
    pub fn acceptance(&self, source: u8, evidence: Evidence, depth: usize) -> f64 {
        f64::from(self.experience.acceptance(source, evidence, depth))
    }

    /// Whether this drafter should make another step behind the branch.
    pub fn pays(&self, source: u8, branch: Branch) -> bool {
        self.prospect(source, branch).steps > 0
    }

    /// The number of further steps that is worth most, and what is expected of it; none if none pays.
    pub fn prospect(&self, source: u8, branch: Branch) -> Prospect {
        let step = self.costs.drafter(source).step;
        let pass = |nodes: usize| self.costs.pass(self.rows + nodes, self.context);
        let before = pass(branch.nodes);
        let (mut gain, mut tokens) = (branch.gain, 0.0);
        let (mut most, mut best) = (0.0, Prospect::default());
        for steps in 1..=branch.room.min(STEPS_MAX) {
            gain *= self.experience.mean_acceptance(source, branch.depth + steps);
            if gain < GAIN_MIN {
                break;
            }
            tokens += gain * self.unique;
            let seconds = steps as f64 * step + pass(branch.nodes + steps) - before;
            let value = tokens - self.rate * seconds;
            if value > most {
                (most, best) = (value, Prospect { steps, tokens, seconds });
            }
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::costs::{Curve, DrafterCosts};

    /// A pass of one row takes a second, of up to 8 rows a tenth more, of the ninth half a second more.
    fn costs(step: f64) -> Costs {
        let points = vec![(1, 1.0), (8, 1.1), (9, 1.6), (16, 1.7)];
        let drafters = vec![DrafterCosts { step, ..DrafterCosts::default() }];
        Costs { curves: vec![Curve::new(0, points)], drafters }
    }

    fn outlook<'a>(costs: &'a Costs, experience: &'a Experience, rate: f64) -> Outlook<'a> {
        Outlook { costs, experience, rate, rows: 1, context: 10, unique: 1.0, row_min: 0.0 }
    }

    #[test]
    fn a_cheap_step_is_made_while_the_branch_is_probable_and_a_dear_one_is_not() {
        let experience = Experience::default();
        let cheap = costs(0.01);
        let branch = |gain, depth| Branch { gain, depth, nodes: depth, room: 16 - depth };
        let good = outlook(&cheap, &experience, 2.0);
        assert!(good.pays(0, branch(1.0, 0)) && good.pays(0, branch(0.5, 4)));
        assert!(!good.pays(0, branch(0.01, 4)));
        // A draft as large as the target: a step takes as long as a pass, and plain decoding is better.
        let dear = costs(1.0);
        assert!(!outlook(&dear, &experience, 1.0).pays(0, branch(1.0, 0)));
        assert!(!good.pays(0, Branch { room: 0, ..branch(1.0, 0) }));
    }

    #[test]
    fn a_new_strip_of_rows_is_begun_only_for_several_tokens() {
        let (costs, experience) = (costs(0.0), Experience::default());
        let outlook = outlook(&costs, &experience, 2.0);
        // The ninth row costs half a second, which is one token: more than one token is worth it, if it can be had.
        let sure = Branch { gain: 1.0, depth: 7, nodes: 7, room: 1 };
        assert!(!outlook.pays(0, sure) && outlook.pays(0, Branch { nodes: 8, ..sure }));
        let far = outlook.prospect(0, Branch { room: 8, ..sure });
        assert!(far.steps > 3 && far.tokens > 1.0, "{far:?}");
    }
}
