//! A toy constraint. At most positions it forbids one token, and at two of five all but one, depending on the last
//! token and on the number of written tokens. [`Forbidding::applied_to`] is the same constraint as a table whose rows
//! lack the forbidden tokens.
//!
//! The constraint asserts that only accepted tokens are rolled back.

use foretoken_speculation::{Constraint, Token, TokenSet};

use crate::table::Table;

/// A [`Constraint`] that forbids one token of a vocabulary, or all but one, at every position.
#[derive(Clone, Debug)]
pub struct Forbidding {
    vocabulary: usize,
    accepted: Vec<Token>,
}

impl Forbidding {
    /// The constraint for a vocabulary of `vocabulary` tokens.
    pub fn new(vocabulary: usize) -> Forbidding {
        Forbidding { vocabulary, accepted: Vec::new() }
    }

    /// The token that may not be written after these; or, if the second value is true, the only one that may.
    fn rule(vocabulary: usize, written: &[Token]) -> (Token, bool) {
        let last = written.last().map_or(1, |token| *token as usize);
        let token = (2 * last + written.len() / 2 + 1) % vocabulary;
        (token as Token, (last + written.len()) % 5 < 2)
    }

    /// The model without the tokens that are forbidden after a prompt of `prompt_len` tokens, from which constrained
    /// requests are decoded.
    pub fn applied_to(table: &Table, prompt_len: usize) -> Table {
        let (table, vocabulary) = (table.clone(), table.vocabulary());
        Table::new(vocabulary, move |tokens| {
            let mut row = table.logits(tokens);
            let (token, is_only) = Forbidding::rule(vocabulary, &tokens[prompt_len..]);
            if is_only {
                row.fill(f32::NEG_INFINITY);
            }
            // A forced token is written, whatever its logit is.
            row[token as usize] = if is_only { 0.0 } else { f32::NEG_INFINITY };
            row
        })
    }
}

impl Constraint for Forbidding {
    fn allowed(&mut self) -> TokenSet {
        let (token, is_only) = Forbidding::rule(self.vocabulary, &self.accepted);
        let mut allowed = if is_only { TokenSet::none() } else { TokenSet::all() };
        if is_only {
            allowed.insert(token);
        } else {
            allowed.remove(token);
        }
        allowed
    }

    fn accept(&mut self, token: Token) -> bool {
        let (other, is_only) = Forbidding::rule(self.vocabulary, &self.accepted);
        let is_allowed = (token == other) == is_only;
        self.accepted.extend(is_allowed.then_some(token));
        is_allowed
    }

    fn roll_back(&mut self, tokens: usize) {
        let accepted = self.accepted.len();
        assert!(tokens <= accepted, "{tokens} tokens rolled back of {accepted} accepted");
        self.accepted.truncate(accepted - tokens);
    }

    fn foreseen(&mut self) -> Vec<Token> {
        let mut written = self.accepted.clone();
        while let (token, true) = Forbidding::rule(self.vocabulary, &written) {
            written.push(token);
            if written.len() > self.accepted.len() + 4 {
                break;
            }
        }
        written.split_off(self.accepted.len())
    }

    fn duplicate(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}
