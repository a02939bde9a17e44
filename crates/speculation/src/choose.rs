//! The one decision: which of all candidates are verified.
//!
//! Drafters offer candidates for the sequences of a pass; [`choose`] turns them into the trees that are verified. One
//! drafter or many, one sequence or many, there is no other way into a tree.
//!
//! Every candidate has a *gain*, the estimated probability that it is accepted (`gains`), and every row has its price:
//! what the pass takes longer for it ([`Costs::pass`]), times the tokens that a second of plain or speculative decoding
//! has been writing lately. That rate is what makes passes comparable: time spent on an improbable guess is time that
//! the next pass does not have. So of all sets of candidates the one with the greatest
//!
//! ```text
//! sum of gains - rate * (seconds of the pass with them - seconds without)
//! ```
//!
//! is best (renewal reward: maximising tokens over time in the long run maximises tokens - rate * time in each pass).
//! Gains never grow downwards, so the best set of every size is a prefix of the candidates by gain, whole branches from
//! the root on, and all sizes are compared: a pass has steps where a new strip of rows begins, and the first dip is no
//! reason to stop. In a batch the prefix runs over all sequences, for their rows share one pass.
//!
//! What may be dropped is the law's business. Under *exact* everything may: offers are only consulted. Under
//! *rejection* a drawn token must be offered whatever it is, so all drawn offers go first, in the order in which they
//! were drawn, and only points are chosen, behind all draws (`copying`). Points that a constraint forbids are dropped
//! before anything is weighed, for all drafters alike: the target's law has nothing for them.
//!
//! Left out: how far a drafter goes before this, which is decided as it goes ([`Outlook`]).

mod copying;
mod gains;
mod outlook;

use crate::{Constrained, Costs, DraftTree, Experience, NodeId, Promise, Proposal, Token};

use copying::copy;
pub use copying::{lawful_offers, retain};
use gains::gains;
pub(crate) use gains::{Company, Siblings};
pub use outlook::{Branch, Outlook, Prospect};

/// By what a sequence's candidates are chosen.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Policy<'a> {
    /// By gains and costs.
    #[default]
    ByCost,
    /// As many as are allowed, the greatest gains first.
    Most,
    /// Exactly those that will be accepted, of which these tokens tell: what plain decoding writes after the pending
    /// one. No way to choose nodes gains more, for every row of the pass is kept and no accepted node is lost. Draws
    /// are dropped by their value, so this is for measurements, and only lawful where the target's pick does not depend
    /// on what was offered.
    Foreseen(&'a [Token]),
}

/// One sequence's candidates, and where its tree goes.
#[derive(Debug)]
pub struct Choice<'a> {
    /// How the tree will be verified.
    pub promise: Promise,
    /// By what is chosen.
    pub policy: Policy<'a>,
    /// Most nodes of the tree. Drawn ones are never dropped, so drafters that draw must have kept to it.
    pub nodes_max: usize,
    /// What may be written at all, if not everything. Points that it forbids are dropped, whoever offered them: no row
    /// is spent on them.
    pub constraint: Option<&'a Constrained>,
    /// What is known of the drafters.
    pub experience: &'a Experience,
    /// All that was offered. Laws move over to the tree, the rest stays.
    pub candidates: &'a mut DraftTree,
    /// The tree to verify; what it holds is forgotten first.
    pub tree: &'a mut DraftTree,
}

/// The pass that is being put together.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct PassSoFar {
    /// Rows that it has already: pending tokens, prompts, probes.
    pub rows: usize,
    /// Tokens of its sequences, on average.
    pub context: usize,
    /// Tokens a second that decoding writes, all sequences of the pass together.
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
    let rows = pass.rows + choices.iter().zip(&ranked).map(|(choice, ranked)| ranked.certain(choice)).sum::<usize>();
    // The choices by cost compete: every candidate with its gain and whose it is.
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
        copy(ranked.binds, choice.candidates, ranked.nodes.iter().map(|(_, node)| *node), choice.tree);
    }
}

/// How many of the first of these gains are worth their rows in all.
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

/// The candidates of one sequence that may be left out, the greatest gains first, and how many may not.
struct Ranked {
    binds: bool,
    bound: usize,
    nodes: Vec<(f32, NodeId)>,
}

impl Ranked {
    fn of(choice: &Choice<'_>) -> Ranked {
        let tree = &*choice.candidates;
        if let Policy::Foreseen(text) = choice.policy {
            let path = tree.follow(text).into_iter().take(choice.nodes_max);
            return Ranked { binds: false, bound: 0, nodes: path.map(|node| (1.0, node)).collect() };
        }
        let binds = choice.promise != Promise::Exact;
        let mut is_bound = vec![false; if binds { tree.len() } else { 0 }];
        let drawn = tree.offers().iter().filter(|offer| binds && matches!(offer.proposal, Proposal::Drawn(_)));
        for offer in drawn {
            let mut at = Some(offer.node);
            while let Some(node) = at.filter(|node| !is_bound[node.index()]) {
                is_bound[node.index()] = true;
                at = tree.parent(node);
            }
        }
        let bound = is_bound.iter().filter(|bound| **bound).count();
        let gains = gains(tree, choice.experience);
        let is_allowed = allowed(choice);
        let free = tree.nodes().filter(|node| !(binds && is_bound[node.index()]) && is_allowed(*node));
        let mut nodes: Vec<(f32, NodeId)> = free.map(|node| (gains[node.index()], node)).collect();
        // Stable, and parents come before their children in node order: a child's gain is never more than its parent's.
        nodes.sort_by(|a, b| b.0.total_cmp(&a.0));
        nodes.truncate(choice.nodes_max.saturating_sub(bound));
        Ranked { binds, bound, nodes }
    }

    /// Rows that the pass has whatever is chosen.
    fn certain(&self, choice: &Choice<'_>) -> usize {
        self.bound + if choice.policy == Policy::ByCost { 0 } else { self.nodes.len() }
    }
}

/// Which nodes may be written at all.
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

/// How many nodes the tree of `candidates` nodes may have when the next of several drafters is asked, for a pass of up
/// to `nodes_max`; `to_come` are asked after it.
///
/// Under *exact* each may fill the whole pass, for anything can be dropped. Under the other promises draws cannot, so
/// the candidates must fit into the pass: a quarter of what is left is kept for those to come.
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
