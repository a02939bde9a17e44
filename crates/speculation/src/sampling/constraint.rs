//! Constraints: what may be written at all, whatever the model says.
//!
//! A grammar, a schema or a list decides token by token what may come next. It stands in the context of a law
//! ([`super::Context`]), so the target, draft models, and verification see the same mask at each node of a draft tree.
//! A constraint is walked: it accepts tokens and takes them back, and [`Constrained`] brings it from node to node by
//! the shortest way.
//!
//! Left out: grammars. Whoever has one implements [`Constraint`].

use std::cell::RefCell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::Token;

/// What may come next, after the tokens accepted so far. What is masked depends on these tokens alone.
pub trait Constraint: Send {
    /// Sets the logits of tokens that may not come next to minus infinity, and leaves the others as they are. A draft
    /// model's row may be shorter than the vocabulary. Where the text may end, end tokens are among those left.
    fn mask(&mut self, logits: &mut [f32]);

    /// Goes on with a token, also with one that ends the text; false, and nothing is changed, if it may not come next.
    fn accept(&mut self, token: Token) -> bool;

    /// Takes back so many of the tokens that were accepted last.
    fn roll_back(&mut self, tokens: usize);

    /// The same constraint after the same tokens, to be used by somebody else.
    fn duplicate(&self) -> Box<dyn Constraint>;

    /// Why nothing may come next, where that is no part of the grammar: it has run into a limit, say.
    fn failure(&self) -> Option<String> {
        None
    }
}

/// The constraint of one sequence, at its pending token.
pub struct Constrained(RefCell<Walk>);

struct Walk {
    constraint: Box<dyn Constraint>,
    /// The tokens behind the pending one that were accepted on the way to the node that was asked for last.
    path: Vec<Token>,
    /// It panicked.
    is_broken: bool,
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
        Constrained(RefCell::new(Walk { constraint, path: Vec::new(), is_broken: false }))
    }

    /// Sets the logits of tokens that may not follow this path to minus infinity; all of them where the path itself may
    /// not be written.
    pub fn mask(&self, path: &[Token], logits: &mut [f32]) {
        let is_there = self.walk(|walk| {
            let is_there = walk.go_to(path);
            if is_there {
                walk.constraint.mask(logits);
            }
            is_there
        });
        if !is_there {
            logits.fill(f32::NEG_INFINITY);
        }
    }

    /// Whether a text may go on with these tokens.
    pub fn allows(&self, path: &[Token]) -> bool {
        self.walk(|walk| walk.go_to(path))
    }

    /// Why nothing may follow the path that was asked for last, where the constraint itself has failed.
    pub fn failure(&self) -> Option<String> {
        let walk = self.0.borrow();
        if walk.is_broken { Some("the constraint panicked".to_string()) } else { walk.constraint.failure() }
    }

    /// These tokens were written: the last of them is the pending token now. False if one of them may not be written,
    /// behind which the constraint cannot go.
    pub fn advance(&self, written: &[Token]) -> bool {
        self.walk(|walk| {
            let accepted = walk.go_to(written);
            walk.path.clear();
            accepted
        })
    }

    /// Walks. A constraint that panics is somebody else's code and ends its own text alone: from then on nothing may be
    /// written.
    fn walk(&self, go: impl FnOnce(&mut Walk) -> bool) -> bool {
        let mut walk = self.0.borrow_mut();
        if walk.is_broken {
            return false;
        }
        let gone = catch_unwind(AssertUnwindSafe(|| go(&mut walk)));
        walk.is_broken = gone.is_err();
        gone.unwrap_or(false)
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
