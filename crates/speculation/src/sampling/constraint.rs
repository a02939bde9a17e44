//! Constraints: what may be written at all, whatever the model says.
//!
//! A grammar, a schema or a list decides token by token what may come next. It stands in the context of a law
//! ([`super::Context`]), so the target, every drafter with a law, and verification see the same mask at each node of a
//! draft tree. A constraint is walked: it accepts tokens and takes them back, and [`Constrained`] brings it from node
//! to node by the shortest way.
//!
//! Left out: grammars. Whoever has one implements [`Constraint`].

use std::cell::RefCell;
use std::fmt;

use crate::Token;

/// What may come next, after the tokens accepted so far. What is masked depends on these tokens alone.
pub trait Constraint: Send {
    /// Sets the logits of tokens that may not come next to minus infinity, and leaves the others as they are.
    fn mask(&mut self, logits: &mut [f32]);

    /// Goes on with a token; false, and nothing is changed, if it may not come next.
    fn accept(&mut self, token: Token) -> bool;

    /// Takes back so many of the tokens that were accepted last.
    fn roll_back(&mut self, tokens: usize);

    /// The same constraint after the same tokens, to be used by somebody else.
    fn duplicate(&self) -> Box<dyn Constraint>;
}

/// The constraint of one sequence, at its pending token.
pub struct Constrained(RefCell<Walk>);

struct Walk {
    constraint: Box<dyn Constraint>,
    /// The tokens behind the pending one that were accepted on the way to the node that was asked for last.
    path: Vec<Token>,
}

impl Walk {
    /// Goes to the node of this path; false if there is none, because a token on the way may not be written.
    fn go_to(&mut self, path: &[Token]) -> bool {
        let same = self.path.iter().zip(path).take_while(|(a, b)| a == b).count();
        if same < self.path.len() {
            self.constraint.roll_back(self.path.len() - same);
            self.path.truncate(same);
        }
        path[same..].iter().all(|&token| {
            let accepted = self.constraint.accept(token);
            self.path.extend(accepted.then_some(token));
            accepted
        })
    }
}

impl Constrained {
    /// A constraint that has accepted nothing yet, for a sequence that has written nothing yet.
    pub fn new(constraint: Box<dyn Constraint>) -> Constrained {
        Constrained(RefCell::new(Walk { constraint, path: Vec::new() }))
    }

    /// Sets the logits of tokens that may not follow this path to minus infinity; all of them where the path itself may
    /// not be written.
    pub fn mask(&self, path: &[Token], logits: &mut [f32]) {
        let mut walk = self.0.borrow_mut();
        match walk.go_to(path) {
            true => walk.constraint.mask(logits),
            false => logits.fill(f32::NEG_INFINITY),
        }
    }

    /// These tokens were written: the last of them is the pending token now.
    pub fn advance(&self, written: &[Token]) {
        let mut walk = self.0.borrow_mut();
        walk.go_to(written);
        walk.path.clear();
    }
}

impl Clone for Constrained {
    fn clone(&self) -> Constrained {
        let mut walk = self.0.borrow_mut();
        walk.go_to(&[]);
        Constrained::new(walk.constraint.duplicate())
    }
}

impl fmt::Debug for Constrained {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Constrained").finish_non_exhaustive()
    }
}
