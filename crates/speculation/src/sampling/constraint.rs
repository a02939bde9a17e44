//! Constraints: what may be written at all, whatever the model says.
//!
//! A grammar, a schema or a list decides token by token what may come next. It stands in the context of a law
//! ([`super::Context`]), so the target, draft models, and verification see the same mask at each node of a draft tree.
//! A constraint is walked: it accepts tokens and takes them back, and [`Constrained`] brings it from node to node by
//! the shortest way, and keeps what it said of each until the text goes on elsewhere: a draft model, verification and
//! whoever asks whether a place leaves a choice ([`super::Sampling::forced`]) ask for the same sets.
//!
//! Left out: grammars. Whoever has one implements [`Constraint`].

use std::cell::RefCell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::TokenSet;
use crate::Token;

/// What may come next, after the tokens accepted so far. It depends on these tokens alone.
pub trait Constraint: Send {
    /// The tokens that may come next. Where the text may end, end tokens are among them.
    fn allowed(&mut self) -> TokenSet;

    /// Goes on with a token, also with one that ends the text; false, and nothing is changed, if it may not come next.
    fn accept(&mut self, token: Token) -> bool;

    /// Takes back so many of the tokens that were accepted last.
    fn roll_back(&mut self, tokens: usize);

    /// The same constraint after the same tokens, to be used by somebody else.
    fn duplicate(&self) -> Box<dyn Constraint>;

    /// What it is called where a text cannot go on because of it: the setting that asks for it.
    fn name(&self) -> &'static str {
        "constraint"
    }

    /// Whether several tokens may certainly come next, where that is known for less than [`Constraint::allowed`] takes:
    /// nobody has to ask then whether one alone may. `false` says nothing.
    fn leaves_choice(&mut self) -> bool {
        false
    }

    /// Whether the last token counts as accepted though the constraint could not follow it, so that nothing may follow.
    /// Not whether it fails to say what may come next, which may not have been asked.
    fn has_given_up(&self) -> bool {
        false
    }

    /// Why nothing may come next, where that is no part of the grammar: it has run into a limit, say. What was expected
    /// and found.
    fn failure(&self) -> Option<String> {
        None
    }

    /// How the text will all but certainly go on: where one string alone may come next, the tokens that usually spell
    /// it. It is a guess, for others may spell it too; empty where there is none.
    fn foreseen(&mut self) -> Vec<Token> {
        Vec::new()
    }

    /// How the part of the text that is being written may come to its end here: a value, say, whose length is open.
    /// Guesses again, and none by default.
    fn endings(&mut self) -> Vec<Ending> {
        Vec::new()
    }
}

/// An end of a part of a text, with what has to follow it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ending {
    /// The tokens that usually spell it.
    pub tokens: Vec<Token>,
    /// Other tokens that it may begin with.
    pub others: Vec<Token>,
}

/// The constraint of one sequence, at its pending token.
pub struct Constrained(RefCell<Walk>);

struct Walk {
    constraint: Box<dyn Constraint>,
    /// The tokens behind the pending one that were accepted on the way to the node that was asked for last.
    path: Vec<Token>,
    /// What is allowed behind which path.
    known: Vec<Known>,
    /// It panicked.
    is_broken: bool,
}

/// What a constraint said of a node.
struct Known {
    path: Vec<Token>,
    allowed: TokenSet,
    failure: Option<String>,
}

/// Why nothing may be written any more.
const PANICKED: &str = "expected one that can be followed, found one that panicked";

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
        Constrained(RefCell::new(Walk { constraint, path: Vec::new(), known: Vec::new(), is_broken: false }))
    }

    /// Sets the logits of tokens that may not follow this path to minus infinity; all of them where the path itself may
    /// not be written.
    pub fn mask(&self, path: &[Token], logits: &mut [f32]) {
        self.with_allowed(path, |allowed| allowed.mask(logits));
    }

    /// Shows the tokens that may follow this path to somebody: none where the path itself may not be written.
    pub fn with_allowed<R>(&self, path: &[Token], look: impl FnOnce(&TokenSet) -> R) -> R {
        self.know(path);
        let walk = self.0.borrow();
        let known = walk.known.iter().find(|known| known.path == path);
        look(known.map_or(&TokenSet::none(), |known| &known.allowed))
    }

    /// Whether a text may go on with these tokens, and the constraint can follow them. It does not depend on what was
    /// asked before.
    pub fn allows(&self, path: &[Token]) -> bool {
        self.walk(|walk| walk.go_to(path) && !walk.constraint.has_given_up()).unwrap_or(false)
    }

    /// Whether several tokens may certainly follow this path ([`Constraint::leaves_choice`]).
    pub(super) fn leaves_choice(&self, path: &[Token]) -> bool {
        let ask = |walk: &mut Walk| {
            let is_known = walk.known.iter().any(|known| known.path == path);
            !is_known && walk.go_to(path) && walk.constraint.leaves_choice()
        };
        self.walk(ask).unwrap_or(false)
    }

    /// Tokens that will all but certainly follow this path ([`Constraint::foreseen`]).
    pub fn foreseen(&self, path: &[Token]) -> Vec<Token> {
        let foresee = |walk: &mut Walk| if walk.go_to(path) { walk.constraint.foreseen() } else { Vec::new() };
        self.walk(foresee).unwrap_or_default()
    }

    /// How the part of the text that this path is in may come to its end ([`Constraint::endings`]).
    pub fn endings(&self, path: &[Token]) -> Vec<Ending> {
        let end = |walk: &mut Walk| if walk.go_to(path) { walk.constraint.endings() } else { Vec::new() };
        self.walk(end).unwrap_or_default()
    }

    /// What it is called ([`Constraint::name`]).
    pub fn name(&self) -> &'static str {
        self.0.borrow().constraint.name()
    }

    /// Why nothing may follow this path, where the constraint itself has failed.
    pub fn failure(&self, path: &[Token]) -> Option<String> {
        self.know(path);
        let walk = self.0.borrow();
        let known = walk.known.iter().find(|known| known.path == path);
        if walk.is_broken { Some(PANICKED.to_string()) } else { known?.failure.clone() }
    }

    /// These tokens were written: the last of them is the pending token now. False if one of them may not be written,
    /// behind which the constraint cannot go.
    pub fn advance(&self, written: &[Token]) -> bool {
        let advance = |walk: &mut Walk| {
            let accepted = walk.go_to(written);
            walk.path.clear();
            walk.known.retain_mut(|known| {
                let goes_on = known.path.starts_with(written);
                known.path.drain(..if goes_on { written.len() } else { 0 });
                goes_on
            });
            accepted
        };
        self.walk(advance).unwrap_or(false)
    }

    /// Asks the constraint what may follow this path, if it was not asked before.
    fn know(&self, path: &[Token]) {
        self.walk(|walk| {
            if walk.known.iter().any(|known| known.path == path) {
                return;
            }
            let is_there = walk.go_to(path);
            let allowed = if is_there { walk.constraint.allowed() } else { TokenSet::none() };
            let failure = walk.constraint.failure();
            walk.known.push(Known { path: path.to_vec(), allowed, failure });
        });
    }

    /// Walks. A constraint that panics is somebody else's code and ends its own text alone: from then on nothing may be
    /// written.
    fn walk<R>(&self, go: impl FnOnce(&mut Walk) -> R) -> Option<R> {
        let mut walk = self.0.borrow_mut();
        if walk.is_broken {
            return None;
        }
        let gone = catch_unwind(AssertUnwindSafe(|| go(&mut walk)));
        walk.is_broken = gone.is_err();
        if walk.is_broken {
            walk.known.clear();
        }
        gone.ok()
    }
}

/// Of a constraint that panicked: nothing may be written.
struct Broken;

impl Constraint for Broken {
    fn allowed(&mut self) -> TokenSet {
        TokenSet::none()
    }

    fn accept(&mut self, _token: Token) -> bool {
        false
    }

    fn roll_back(&mut self, _tokens: usize) {}

    fn duplicate(&self) -> Box<dyn Constraint> {
        Box::new(Broken)
    }

    fn failure(&self) -> Option<String> {
        Some(PANICKED.to_string())
    }
}

impl Clone for Constrained {
    fn clone(&self) -> Constrained {
        let copy = self.walk(|walk| {
            walk.go_to(&[]);
            walk.constraint.duplicate()
        });
        Constrained::new(copy.unwrap_or_else(|| Box::new(Broken)))
    }
}

impl fmt::Debug for Constrained {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Constrained").finish_non_exhaustive()
    }
}
