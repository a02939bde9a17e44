//! Constraints: which tokens may be written, whatever the model's logits are.
//!
//! A grammar, a schema or a list decides token by token what may come next. It is part of the context of a law
//! ([`super::Context`]), so the target, draft models and verification see the same mask at each node of a draft tree. A
//! constraint accepts tokens and takes them back; [`Constrained`] moves it from node to node by the shortest path, and
//! caches its token set of each node until the sequence leaves that node, because draft models, verification and
//! [`super::Sampling::forced`] ask for the same sets.
//!
//! Grammars are not here; they implement [`Constraint`].

use std::cell::RefCell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::TokenSet;
use crate::Token;

/// A constraint on the next token, after the tokens accepted so far. It depends on these tokens alone.
pub trait Constraint: Send {
    /// The tokens that may come next. If the sequence may end, end tokens are among them.
    fn allowed(&mut self) -> TokenSet;

    /// Accepts a token, which may end the sequence. Returns false and changes nothing if the token may not come next.
    fn accept(&mut self, token: Token) -> bool;

    /// Takes back this many of the tokens that were accepted last.
    fn roll_back(&mut self, tokens: usize);

    /// A copy of the constraint in the same state.
    fn duplicate(&self) -> Box<dyn Constraint>;

    /// The name of the setting that asks for the constraint, for the message when a sequence cannot continue because of
    /// it.
    fn name(&self) -> &'static str {
        "constraint"
    }

    /// Whether it is certain that several tokens may come next, if that is known faster than by
    /// [`Constraint::allowed`]. `false` means that it is not known.
    fn leaves_choice(&mut self) -> bool {
        false
    }

    /// Whether the last token counts as accepted although the constraint could not follow it, so that nothing may come
    /// next. A failure to compute the allowed tokens is not reported here, since they may not have been asked for.
    fn has_given_up(&self) -> bool {
        false
    }

    /// Why nothing may come next, if the reason is not the grammar but, for example, a limit: what was expected and
    /// what was found.
    fn failure(&self) -> Option<String> {
        None
    }

    /// The tokens that almost certainly come next: the usual tokens of the string, if only one string may follow. They
    /// are a guess, since other tokens can spell the same string; empty if there is no such string.
    fn foreseen(&mut self) -> Vec<Token> {
        Vec::new()
    }

    /// The possible ends, here, of the part of the output that is being written, such as a value of any length. They
    /// are guesses; none by default.
    fn endings(&mut self) -> Vec<Ending> {
        Vec::new()
    }
}

/// An end of a part of the output, together with what has to follow it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ending {
    /// The usual tokens of the end and of what follows it.
    pub tokens: Vec<Token>,
    /// Other tokens that the end may begin with.
    pub others: Vec<Token>,
}

/// The constraint of one sequence, after its pending token.
pub struct Constrained(RefCell<Walk>);

struct Walk {
    constraint: Box<dyn Constraint>,
    /// The tokens after the pending one that were accepted to reach the node that was asked for last.
    path: Vec<Token>,
    /// The nodes that were asked for.
    cached: Vec<CachedNode>,
    /// Whether the constraint has panicked.
    is_broken: bool,
}

/// The answers of a constraint at a node.
struct CachedNode {
    path: Vec<Token>,
    allowed: TokenSet,
    failure: Option<String>,
}

/// The failure of a constraint that panicked.
const PANICKED: &str = "expected one that can be followed, found one that panicked";

impl Walk {
    /// Moves the constraint to the node of this path; false if there is none, because a token of the path may not be
    /// written.
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
    /// Wraps a constraint that has accepted nothing yet, for a sequence that has written nothing yet.
    pub fn new(constraint: Box<dyn Constraint>) -> Constrained {
        Constrained(RefCell::new(Walk { constraint, path: Vec::new(), cached: Vec::new(), is_broken: false }))
    }

    /// Sets the logits of tokens that may not follow this path to minus infinity; all of them if the path itself may
    /// not be written.
    pub fn mask(&self, path: &[Token], logits: &mut [f32]) {
        self.with_allowed(path, |allowed| allowed.mask(logits));
    }

    /// Calls `look` with the tokens that may follow this path: none if the path itself may not be written.
    pub fn with_allowed<R>(&self, path: &[Token], look: impl FnOnce(&TokenSet) -> R) -> R {
        self.cache(path);
        let walk = self.0.borrow();
        let node = walk.cached.iter().find(|node| node.path == path);
        look(node.map_or(&TokenSet::none(), |node| &node.allowed))
    }

    /// Whether these tokens may be written next, and the constraint can follow them. It does not depend on earlier
    /// calls.
    pub fn allows(&self, path: &[Token]) -> bool {
        self.walk(|walk| walk.go_to(path) && !walk.constraint.has_given_up()).unwrap_or(false)
    }

    /// Whether several tokens may certainly follow this path ([`Constraint::leaves_choice`]).
    pub(super) fn leaves_choice(&self, path: &[Token]) -> bool {
        let ask = |walk: &mut Walk| {
            let is_cached = walk.cached.iter().any(|node| node.path == path);
            !is_cached && walk.go_to(path) && walk.constraint.leaves_choice()
        };
        self.walk(ask).unwrap_or(false)
    }

    /// Tokens that almost certainly follow this path ([`Constraint::foreseen`]).
    pub fn foreseen(&self, path: &[Token]) -> Vec<Token> {
        let foresee = |walk: &mut Walk| if walk.go_to(path) { walk.constraint.foreseen() } else { Vec::new() };
        self.walk(foresee).unwrap_or_default()
    }

    /// The possible ends of the part of the output that this path is in ([`Constraint::endings`]).
    pub fn endings(&self, path: &[Token]) -> Vec<Ending> {
        let end = |walk: &mut Walk| if walk.go_to(path) { walk.constraint.endings() } else { Vec::new() };
        self.walk(end).unwrap_or_default()
    }

    /// The name of the constraint ([`Constraint::name`]).
    pub fn name(&self) -> &'static str {
        self.0.borrow().constraint.name()
    }

    /// Why nothing may follow this path, if the constraint itself has failed.
    pub fn failure(&self, path: &[Token]) -> Option<String> {
        self.cache(path);
        let walk = self.0.borrow();
        let node = walk.cached.iter().find(|node| node.path == path);
        if walk.is_broken { Some(PANICKED.to_string()) } else { node?.failure.clone() }
    }

    /// Accepts these tokens, which were written: the last of them is the pending token now. Returns false if one of
    /// them may not be written; the constraint then stays before that token.
    pub fn advance(&self, written: &[Token]) -> bool {
        let advance = |walk: &mut Walk| {
            let accepted = walk.go_to(written);
            walk.path.clear();
            walk.cached.retain_mut(|node| {
                let is_below = node.path.starts_with(written);
                node.path.drain(..if is_below { written.len() } else { 0 });
                is_below
            });
            accepted
        };
        self.walk(advance).unwrap_or(false)
    }

    /// Asks the constraint what may follow this path, unless that is cached.
    fn cache(&self, path: &[Token]) {
        self.walk(|walk| {
            if walk.cached.iter().any(|node| node.path == path) {
                return;
            }
            let is_reached = walk.go_to(path);
            let allowed = if is_reached { walk.constraint.allowed() } else { TokenSet::none() };
            let failure = walk.constraint.failure();
            walk.cached.push(CachedNode { path: path.to_vec(), allowed, failure });
        });
    }

    /// Calls `go` and catches its panics: a constraint that panics ends its own sequence alone, since from then on it
    /// allows no token.
    fn walk<R>(&self, go: impl FnOnce(&mut Walk) -> R) -> Option<R> {
        let mut walk = self.0.borrow_mut();
        if walk.is_broken {
            return None;
        }
        let gone = catch_unwind(AssertUnwindSafe(|| go(&mut walk)));
        walk.is_broken = gone.is_err();
        if walk.is_broken {
            walk.cached.clear();
        }
        gone.ok()
    }
}

/// What is used in place of a copy of a constraint that panicked: it allows no token.
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
