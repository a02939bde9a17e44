//! A toy constraint: at every place one token is forbidden, which one depends on the last token and on how many were
//! written. Small enough to be written down a second time, as a table whose rows lack the forbidden tokens.
//!
//! It checks how it is used: only what was accepted is taken back.

use foretoken_speculation::{Constraint, Token, TokenSet};

use crate::table::Table;

/// Forbids one token of a vocabulary at every place.
#[derive(Clone, Debug)]
pub struct Forbidding {
    vocabulary: usize,
    accepted: Vec<Token>,
}

impl Forbidding {
    /// For a vocabulary of so many tokens.
    pub fn new(vocabulary: usize) -> Forbidding {
        Forbidding { vocabulary, accepted: Vec::new() }
    }

    /// The token that may not be written after these.
    fn forbidden(vocabulary: usize, written: &[Token]) -> Token {
        let last = written.last().map_or(1, |token| *token as usize);
        ((2 * last + written.len() / 2 + 1) % vocabulary) as Token
    }

    /// The same model without what is forbidden after a prompt of so many tokens: what a constrained text is decoded
    /// from.
    pub fn applied_to(table: &Table, prompt_len: usize) -> Table {
        let (table, vocabulary) = (table.clone(), table.vocabulary());
        Table::new(vocabulary, move |tokens| {
            let mut row = table.logits(tokens);
            row[Forbidding::forbidden(vocabulary, &tokens[prompt_len..]) as usize] = f32::NEG_INFINITY;
            row
        })
    }
}

impl Constraint for Forbidding {
    fn allowed(&mut self) -> TokenSet {
        let mut allowed = TokenSet::all();
        allowed.remove(Forbidding::forbidden(self.vocabulary, &self.accepted));
        allowed
    }

    fn accept(&mut self, token: Token) -> bool {
        let allowed = token != Forbidding::forbidden(self.vocabulary, &self.accepted);
        self.accepted.extend(allowed.then_some(token));
        allowed
    }

    fn roll_back(&mut self, tokens: usize) {
        let (found, taken) = (self.accepted.len(), tokens);
        assert!(taken <= found, "{taken} tokens taken back of {found} accepted");
        self.accepted.truncate(found - taken);
    }

    fn duplicate(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}
