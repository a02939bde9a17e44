//! The decision which of all candidates in a pass are verified.
//!
//! Drafters offer candidates for the sequences of a pass; [`choose`] makes of them the trees that are verified, however
//! many drafters and sequences there are.
//!
//! Every candidate has a *gain*, the estimated probability that it is accepted (`gains`), and every row a cost: the
//! additional time of the pass ([`Costs::pass`]), times the *rate*, the tokens per second that decoding has written
//! lately. The rate makes passes comparable: time spent on an improbable token is not available to the next pass. So of
//! all sets of candidates the one with the greatest
//!
//! ```text
//! sum of gains - rate * (seconds of the pass with them - seconds without)
//! ```
//!
//! is best (renewal reward: maximising tokens over time in the long run maximises tokens - rate * time in each pass). A
//! node's gain is at most its parent's, so the best set of every size is a prefix of the candidates sorted by gain, and
//! no node is in it without its parent. All sizes are compared: the kernels compute rows in strips, and the time of a
//! pass jumps when a new strip begins, so the value of a set can fall and rise again with its size. In a batch the
//! prefix runs over all sequences, since their rows share one pass.
//!
//! The promise decides which candidates may be dropped. Under *exact* all may, since the output does not depend on the
//! offers. Under *rejection* a drawn token must be offered, whatever it is, so all drawn offers go first, in the order
//! in which they were drawn, and only points are chosen, after all draws (`copying`). Points that a constraint forbids
//! are dropped first, whichever drafter made them: their probability under the target's law is 0.
//!
//! How far a drafter goes before this is decided while it drafts ([`Outlook`]).

mod copying;
mod gains;
mod outlook;

use crate::{Constrained, Costs, DraftTree, Experience, NodeId, Promise, Proposal, Token};

use copying::copy;
pub use copying::{lawful_offers, retain};
use gains::gains;
pub use outlook::{Branch, Outlook, Prospect};

/// How a sequence's candidates are chosen.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Policy<'a> {
    /// By gains and costs.
    #[default]
    ByCost,
    /// As many as are allowed, with the highest gains first.
    Most,
    /// By an oracle: exactly those that will be accepted, given the tokens that plain decoding writes after the pending
    /// one. This is the upper bound of all policies: every row of the pass is kept and no accepted node is lost. Draws
    /// are dropped by their value, so it is for measurements, and the output keeps its law only if the target's pick
    /// does not depend on what was offered.
    Foreseen(&'a [Token]),
}

/// One sequence's candidates, and the tree that is made of them.
#[derive(Debug)]
pub struct Choice<'a> {
    /// How the tree will be verified.
    pub promise: Promise,
    /// How candidates are chosen.
    pub policy: Policy<'a>,
    /// Maximum number of nodes of the tree. Drawn nodes are never dropped, so drafters that draw must have kept to it.
    pub nodes_max: usize,
    /// The constraint on the output, if there is one. Points that it forbids are dropped, whichever drafter offered
    /// them.
    pub constraint: Option<&'a Constrained>,
    /// How often the drafters were right so far.
    pub experience: &'a Experience,
    /// All that was offered. Its laws are moved to the tree, and its nodes and offers stay.
    pub candidates: &'a mut DraftTree,
    /// The tree to verify; it is cleared first.
    pub tree: &'a mut DraftTree,
}

/// The pass before candidates are added to it.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct PassSoFar {
    /// Rows that it has already: pending tokens, prompts, probes.
    pub rows: usize,
    /// Tokens of its sequences, on average.
    pub context: usize,
    /// Tokens per second that decoding writes, all sequences of the pass together.
    pub rate: f64,
}

/// Fills the trees of all sequences of a pass.
///
/// ```
/// use foretoken_speculation::{Choice, Costs, DraftTree, Evidence, Experience, PassSoFar};
/// use foretoken_speculation::{Policy, Promise, Proposal, choose};
///
/// let mut candidates = DraftTree::new();
/// candidates.suggest(None, 7, Proposal::Point, 0, Evidence::estimate(0.9));
/// candidates.suggest(None, 8, Proposal::Point, 0, Evidence::estimate(0.01));
/// let mut tree = DraftTree::new();
/// let (costs, experience) = (Costs::default(), Experience::default());
/// let choice = Choice {
///     promise: Promise::Exact,
///     policy: Policy::ByCost,
///     nodes_max: 9,
///     constraint: None,
///     experience: &experience,
///     candidates: &mut candidates,
///     tree: &mut tree,
/// };
/// choose(&mut [choice], &costs, PassSoFar { rows: 1, context: 5, rate: 1.0 / costs.pass(1, 5) });
/// assert_eq!(tree.tokens(), [7]); // the other is not worth its row
/// ```
pub fn choose(choices: &mut [Choice<'_>], costs: &Costs, pass: PassSoFar) {
    let mut ranked: Vec<Ranked> = choices.iter().map(Ranked::of).collect();
    let mandatory = choices.iter().zip(&ranked).map(|(choice, ranked)| ranked.mandatory_rows(choice));
    let rows = pass.rows + mandatory.sum::<usize>();
    // The sequences whose policy is by cost compete: every candidate with its gain and the index of its sequence.
    let mut optional: Vec<(f32, usize)> = Vec::new();
    for (i, (choice, ranked)) in choices.iter().zip(&mut ranked).enumerate() {
        if choice.policy == Policy::ByCost {
            optional.extend(ranked.nodes.iter().map(|(gain, _)| (*gain, i)));
        }
    }
    // Stable: within a sequence, parents stay before their children.
    optional.sort_by(|a, b| b.0.total_cmp(&a.0));
    let taken = most_valuable(optional.iter().map(|(gain, _)| *gain), costs, PassSoFar { rows, ..pass });
    let mut counts = vec![0; choices.len()];
    optional[..taken].iter().for_each(|(_, i)| counts[*i] += 1);
    for ((choice, ranked), count) in choices.iter_mut().zip(&mut ranked).zip(counts) {
        if choice.policy == Policy::ByCost {
            ranked.nodes.truncate(count);
        }
        copy(ranked.keeps_draws, choice.candidates, ranked.nodes.iter().map(|(_, node)| *node), choice.tree);
    }
}

/// The number of leading gains whose sum exceeds the cost of their rows by the largest amount.
fn most_valuable(gains: impl Iterator<Item = f32>, costs: &Costs, pass: PassSoFar) -> usize {
    let without = costs.pass(pass.rows, pass.context);
    let (mut sum, mut best) = (0.0, (0.0, 0));
    for (i, gain) in gains.enumerate() {
        sum += f64::from(gain);
        let value = sum - pass.rate * (costs.pass(pass.rows + i + 1, pass.context) - without);
        if value > best.0 {
            best = (value, i + 1);
        }
    }
    best.1
}

/// The candidates of one sequence that may be dropped, in order of descending gain.
struct Ranked {
    /// Whether draws may not be dropped.
    keeps_draws: bool,
    /// Number of candidates that may not be dropped: draws and the nodes above them.
    mandatory: usize,
    nodes: Vec<(f32, NodeId)>,
}

impl Ranked {
    fn of(choice: &Choice<'_>) -> Ranked {
        let tree = &*choice.candidates;
        if let Policy::Foreseen(text) = choice.policy {
            let path = tree.follow(text).into_iter().take(choice.nodes_max);
            return Ranked { keeps_draws: false, mandatory: 0, nodes: path.map(|node| (1.0, node)).collect() };
        }
        let keeps_draws = choice.promise != Promise::Exact;
        let mut is_mandatory = vec![false; if keeps_draws { tree.len() } else { 0 }];
        let drawn = tree.offers().iter().filter(|offer| keeps_draws && matches!(offer.proposal, Proposal::Drawn(_)));
        for offer in drawn {
            let mut at = Some(offer.node);
            while let Some(node) = at.filter(|node| !is_mandatory[node.index()]) {
                is_mandatory[node.index()] = true;
                at = tree.parent(node);
            }
        }
        let mandatory = is_mandatory.iter().filter(|mandatory| **mandatory).count();
        let gains = gains(tree, choice.experience);
        let is_allowed = allowed(choice);
        let free = tree.nodes().filter(|node| !(keeps_draws && is_mandatory[node.index()]) && is_allowed(*node));
        let mut nodes: Vec<(f32, NodeId)> = free.map(|node| (gains[node.index()], node)).collect();
        // Stable, and parents come before their children in node order: a child's gain is never more than its parent's.
        nodes.sort_by(|a, b| b.0.total_cmp(&a.0));
        nodes.truncate(choice.nodes_max.saturating_sub(mandatory));
        Ranked { keeps_draws, mandatory, nodes }
    }

    /// Rows that the pass has before candidates compete by cost.
    fn mandatory_rows(&self, choice: &Choice<'_>) -> usize {
        self.mandatory + if choice.policy == Policy::ByCost { 0 } else { self.nodes.len() }
    }
}

/// Whether the constraint allows a node.
fn allowed(choice: &Choice<'_>) -> impl Fn(NodeId) -> bool + use<> {
    let tree = &*choice.candidates;
    let mut is_allowed: Vec<bool> = Vec::new();
    if let Some(constraint) = choice.constraint {
        let mut path = Vec::new();
        for node in tree.nodes() {
            let is_reached = tree.parent(node).is_none_or(|parent| is_allowed[parent.index()]);
            tree.path_into(Some(node), &mut path);
            is_allowed.push(is_reached && constraint.allows(&path));
        }
    }
    move |node| is_allowed.get(node.index()).copied().unwrap_or(true)
}

/// The limit of nodes for the next of several drafters: the tree has `candidates` nodes, the pass takes up to
/// `nodes_max`, and `to_come` more drafters are asked after this one.
///
/// Under *exact* each may fill the whole pass, since any candidate can be dropped. Under the other promises draws
/// cannot, so the candidates must fit into the pass: a quarter of what is left is kept for the later drafters.
pub fn share(promise: Promise, nodes_max: usize, candidates: usize, to_come: usize) -> usize {
    let left = nodes_max.saturating_sub(candidates);
    match promise {
        Promise::Exact => candidates.saturating_add(nodes_max),
        Promise::Rejection | Promise::Block if to_come == 0 => nodes_max,
        Promise::Rejection | Promise::Block => nodes_max - left / 4,
    }
}

#[cfg(test)]
mod tests;
