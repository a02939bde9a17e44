//! Interpolated retrieval: the branches that continue the last tokens, from several tries at once, into a draft tree.
//!
//! The authors match a long prefix first, and a shorter one if that gives too few (`frequency`). Here all lengths are
//! matched at once and interpolated: a prefix seen n times (prompts weighing more) gives its continuations n / (n +
//! backoff) of the probability and leaves the rest to the next shorter prefix, down to the shortest, as interpolated
//! language models do. So a node's estimate is calibrated. The prefix of no tokens has all tries below it: if nothing
//! longer matches, the most frequent tokens are proposed, each with what follows it. Shared branches count for a
//! bounded number of occurrences relative to the sequence's own, however large a store has grown; the authors weight
//! prompts by orders of magnitude for the same reason.
//!
//! The best nodes are taken in order, the most probable path first, until the rows are used up: if more match than fit,
//! these are the most frequent ones, and if a long prefix gives few, shorter ones follow.
//!
//! Each drafted node keeps its matches in all tries, one per prefix and owner; its children are the children of these.

use crate::frontier::Frontier;
use crate::trie::nodes::{Counts, Nodes};
use crate::trie::options::{Layout, TrieOptions};
use crate::trie::tries::Tries;
use foretoken_speculation::Ask;
use foretoken_speculation::{Evidence, NodeId, Proposal, Token};

/// Factor of the backoff below the root: if a branch was right so far, its prefix has become longer, and continuations
/// of a longer prefix are right more often.
const BACKOFF_BELOW_ROOT: f32 = 0.5;

/// The node of a trie at which a matched prefix, and the path drafted after it, ends.
#[derive(Copy, Clone)]
struct Match<'a> {
    tries: &'a Tries,
    /// Whether these are the sequence's own tries.
    is_own: bool,
    /// Tokens of the prefix.
    prefix_len: usize,
    /// The node; `None` is above all tries, where the empty prefix ends.
    node: Option<(&'a Nodes, u32)>,
}

impl<'a> Match<'a> {
    fn child(self, token: Token) -> Option<Match<'a>> {
        let node = match self.node {
            None => self.tries.find(&[token]),
            Some((nodes, at)) => nodes.child(at, token).map(|child| (nodes, child)),
        };
        node.map(|node| Match { node: Some(node), ..self })
    }

    /// The tokens that follow, and the weights of their occurrences.
    fn children(self, options: &TrieOptions) -> impl Iterator<Item = (Token, f32)> {
        let common: &'a [(Token, Counts)] = if self.node.is_none() { self.tries.common().0 } else { &[] };
        let below =
            self.node.into_iter().flat_map(|(nodes, at)| nodes.children(at).map(move |child| nodes.node(child)));
        let children = common.iter().copied().chain(below.map(|node| (node.token, node.counts)));
        children.map(move |(token, counts)| (token, options.weight(counts, self.is_own)))
    }

    /// The weight of the occurrences of all tokens that follow, together.
    fn seen(self, options: &TrieOptions) -> f32 {
        match self.node {
            None => options.weight(self.tries.common().1, self.is_own),
            Some(_) => self.children(options).map(|(_, weight)| weight).sum(),
        }
    }
}

/// A node of the draft, or its root.
struct Drafted {
    node: Option<NodeId>,
    /// The range of its matches in the list of all.
    matches: std::ops::Range<usize>,
    /// Estimated probability of the path.
    gain: f32,
    depth: usize,
    has_child: bool,
}

/// A token that could be offered.
#[derive(Copy, Clone)]
struct Candidate {
    /// The drafted node that it continues.
    parent: usize,
    token: Token,
    share: f32,
    gain: f32,
}

/// The state of one draft.
pub(super) struct Retrieval<'a> {
    options: &'a TrieOptions,
    matches: Vec<Match<'a>>,
    drafted: Vec<Drafted>,
    frontier: Frontier<Candidate>,
    shares: Vec<(Token, f32)>,
}

impl<'a> Retrieval<'a> {
    /// Nothing matched yet.
    pub fn new(options: &'a TrieOptions) -> Retrieval<'a> {
        let frontier = Frontier::default();
        Retrieval { options, matches: Vec::new(), drafted: Vec::new(), frontier, shares: Vec::new() }
    }

    /// Matches the last tokens, longest run first, in the sequence's own tries and in the others that it may see.
    pub fn find(&mut self, tokens: &[Token], own: &'a Tries, others: impl Iterator<Item = &'a Tries> + Clone) {
        for prefix_len in (self.options.prefix_min..=self.options.prefix_max.min(tokens.len())).rev() {
            let run = &tokens[tokens.len() - prefix_len..];
            for (tries, is_own) in [(own, true)].into_iter().chain(others.clone().map(|tries| (tries, false))) {
                let node = if run.is_empty() { None } else { tries.find(run) };
                if run.is_empty() || node.is_some() {
                    self.matches.push(Match { tries, is_own, prefix_len, node });
                }
            }
        }
    }

    /// Offers the best continuations.
    pub fn offer(&mut self, ask: &mut Ask<'_>) {
        let matches = 0..self.matches.len();
        self.drafted.push(Drafted { node: None, matches, gain: 1.0, depth: 0, has_child: false });
        self.expand(0);
        let mut rows_left = self.options.nodes_max;
        while let Some(best) = self.frontier.pop() {
            if best.gain < ask.gain_min(self.options.gain_min) {
                break; // neither the others nor what follows them is better
            }
            let parent = &self.drafted[best.parent];
            // In the parallel layout a branch that forks off counts with all its tokens; otherwise only the new one.
            let forks = self.options.layout == Layout::Par && parent.has_child;
            let rows = if forks { parent.depth + 1 } else { 1 };
            if rows > rows_left || !ask.has_room_for(parent.node, best.token) {
                continue;
            }
            rows_left -= rows;
            let evidence = Evidence::estimate(best.share);
            let node = ask.tree.suggest(parent.node, best.token, Proposal::Point, ask.source, evidence);
            self.draft(best, node, rows_left > 0 && ask.is_confident(best.share, best.gain));
        }
    }

    /// Adds an offered node, and the candidates after it.
    fn draft(&mut self, best: Candidate, node: NodeId, goes_on: bool) {
        let from = self.matches.len();
        for at in self.drafted[best.parent].matches.clone() {
            let child = self.matches[at].child(best.token);
            self.matches.extend(child);
        }
        let parent = &mut self.drafted[best.parent];
        parent.has_child = true;
        let depth = parent.depth + 1;
        let matches = from..self.matches.len();
        self.drafted.push(Drafted { node: Some(node), matches, gain: best.gain, depth, has_child: false });
        if goes_on {
            self.expand(self.drafted.len() - 1);
        } else if self.options.layout == Layout::One {
            self.frontier.clear();
        }
    }

    /// Adds the candidates after a drafted node.
    fn expand(&mut self, parent: usize) {
        let Drafted { matches, gain, depth, .. } = &self.drafted[parent];
        let (matches, gain, depth) = (matches.clone(), *gain, *depth);
        self.share_out(matches, depth);
        if self.options.layout == Layout::One {
            self.frontier.clear();
        }
        for &(token, share) in &self.shares {
            self.frontier.push(gain * share, Candidate { parent, token, share, gain: gain * share });
        }
    }

    /// Estimates the probability of each token that may follow where these matches end.
    fn share_out(&mut self, matches: std::ops::Range<usize>, depth: usize) {
        let Self { options, matches: all, shares, .. } = self;
        shares.clear();
        let backoff = options.backoff * if depth == 0 { 1.0 } else { BACKOFF_BELOW_ROOT };
        let mut left = 1.0;
        for group in all[matches].chunk_by(|a, b| a.prefix_len == b.prefix_len) {
            // Shared tries may be very large: they must not outweigh the sequence's own.
            let seen_by = |is_own: bool| -> f32 {
                group.iter().filter(|found| found.is_own == is_own).map(|found| found.seen(options)).sum()
            };
            let (own, shared) = (seen_by(true), seen_by(false));
            let scale = if shared > options.shared_max { options.shared_max / shared } else { 1.0 };
            let seen = own + scale * shared;
            if seen <= 0.0 {
                continue;
            }
            let known = seen / (seen + backoff);
            let children = |found: &Match<'a>| {
                let scale = if found.is_own { 1.0 } else { scale };
                found.children(options).map(move |(token, weight)| (token, scale * weight))
            };
            for (token, weight) in group.iter().flat_map(children) {
                let share = left * known * weight / seen;
                if share < options.share_min {
                    continue;
                }
                match shares.iter_mut().find(|(other, _)| *other == token) {
                    Some((_, sum)) => *sum += share,
                    None => shares.push((token, share)),
                }
            }
            left *= 1.0 - known;
            if left < options.share_min {
                break;
            }
        }
    }
}
