//! The budgets that are measured: those of other commands, each also with limits of its own, and the oracle.
//!
//! They are written `KIND`, `KIND:NODES` or `KIND:NODES:P`, so that one command can sweep the settings that a user
//! might tune by hand, interleaved in one run. Budgets are defined in [`foretoken_speculation::budget`].

use std::fmt;
use std::str::FromStr;

use foretoken::Answer;
use foretoken::settings::{Budget, Named, OneOf};
use foretoken_console::values;
use foretoken_engine::BudgetKind;
use foretoken_speculation::DraftSettings;

/// A budget that is measured, with its own limits where it has any.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BudgetChoice {
    /// The budget; `None` is the oracle, which knows the text of plain decoding.
    budget: Option<Budget>,
    /// The most nodes of a tree, instead of `--spec-draft-n-max`.
    nodes_max: Option<usize>,
    /// The least probability of a token after which a branch continues, instead of `--spec-draft-p-min`.
    p_min: Option<f32>,
}

impl BudgetChoice {
    /// This number of nodes in every pass.
    pub fn fixed(nodes: usize) -> Self {
        Self { budget: Some(Budget::Fixed), nodes_max: Some(nodes), p_min: None }
    }

    /// Whether this is the oracle.
    pub fn is_oracle(self) -> bool {
        self.budget.is_none()
    }

    /// The budget of a request, with its own number of nodes or else `limit`. `plain`: the answer of plain decoding, if
    /// it is known.
    pub fn kind(self, limit: Option<usize>, plain: Option<&Answer>) -> BudgetKind {
        let limit = self.nodes_max.or(limit);
        match self.budget {
            Some(budget) => budget.up_to(limit),
            None => BudgetKind::Oracle {
                text: plain.map_or_else(Vec::new, Answer::ids).into(),
                nodes_max: limit.unwrap_or(BudgetKind::AUTO_NODES_MAX),
            },
        }
    }

    /// The most nodes of a tree, by default `limit`.
    pub fn nodes_max(self, limit: Option<usize>) -> usize {
        self.kind(limit, None).nodes_max()
    }

    /// The settings of a request, with this budget's own limit.
    pub fn settings(self, base: DraftSettings) -> DraftSettings {
        DraftSettings { p_min: self.p_min.or(base.p_min), ..base }
    }
}

impl fmt::Display for BudgetChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.budget.map_or("oracle".to_string(), |budget| budget.name()))?;
        self.nodes_max.map_or(Ok(()), |nodes| write!(f, ":{nodes}"))?;
        self.p_min.map_or(Ok(()), |p| write!(f, ":{p}"))
    }
}

impl FromStr for BudgetChoice {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let mut parts = word.split(':');
        let name = parts.next().unwrap_or_default();
        let budget = match (name, Budget::named(name)) {
            ("oracle", _) => None,
            (_, Some(budget)) => Some(budget),
            (_, None) => {
                let all: Vec<&str> = Budget::VALUES.iter().map(|one| one.names[0]).collect();
                return Err(format!("expected one of {}, oracle", all.join(", ")));
            }
        };
        let nodes_max = parts.next().map(values::whole).transpose()?;
        let p_min = parts.next().map(values::fraction).transpose()?;
        match parts.next() {
            Some(_) => Err("expected KIND, KIND:NODES or KIND:NODES:P".to_string()),
            None => Ok(Self { budget, nodes_max, p_min }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::rows::tests::answer;
    use super::*;

    #[test]
    fn budgets_are_those_of_other_commands_and_the_oracle_with_optional_limits() {
        for word in ["heuristic", "fixed", "oracle", "fixed:8", "oracle:4", "confidence:16:0.25"] {
            assert_eq!(word.parse::<BudgetChoice>().map(|budget| budget.to_string()), Ok(word.to_string()));
        }
        let limited: BudgetChoice = "fixed:8:0.5".parse().expect("a budget");
        assert!(matches!(limited.kind(Some(4), None), BudgetKind::Fixed { nodes: 8 }));
        assert_eq!(limited.settings(DraftSettings::default()).p_min, Some(0.5));
        let foretold: BudgetChoice = "oracle".parse().expect("a budget");
        assert!(foretold.is_oracle() && !limited.is_oracle());
        let foretold = foretold.kind(Some(4), Some(&answer(&[7, 8])));
        assert!(matches!(foretold, BudgetKind::Oracle { text, nodes_max: 4 } if *text == [7, 8]));
    }

    #[test]
    fn invalid_budgets_are_refused_with_what_was_expected() {
        let error = |word: &str| word.parse::<BudgetChoice>().expect_err("this is no budget");
        assert!(error("magic").ends_with(", oracle"));
        assert_eq!(error("fixed:many"), "expected a whole number from 0 up");
        assert_eq!(error("fixed:8:2"), "expected a number from 0 to 1");
        assert_eq!(error("fixed:8:0.5:x"), "expected KIND, KIND:NODES or KIND:NODES:P");
    }
}
