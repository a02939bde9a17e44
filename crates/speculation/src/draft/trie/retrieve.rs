//! Retrieval: the branches that continue the last tokens, from several tries at once, into a draft tree.
//!
//! The authors match a long prefix first and a shorter one again where that gives too few tokens. Here all lengths are
//! matched at once and merged by what they are worth: what a longer prefix was followed by gets its share of the
//! probability, what it does not know is left to the next shorter one, down to the shortest. A prefix seen n times
//! (prompts weighing more) keeps n / (n + backoff) and leaves the rest, as interpolated language models do. So a node's
//! estimate is honest, and the best nodes can be taken in order, the most probable path first, until the rows are spent:
//! where more match than fit these are the most frequent ones, and where a long prefix gives few, shorter ones follow.
//!
//! Each node keeps its places in all matched tries, one per prefix and store; its children are the children there.

use crate::draft::Ask;
use crate::draft::trie::live::Live;
use crate::draft::trie::nodes::{Counts, Nodes};
use crate::draft::trie::options::{BranchSource, Layout, TrieOptions};
use crate::draft::trie::store::Store;
use crate::{Evidence, NodeId, Proposal, Token};

/// What is left of the backoff below the root: if a branch was right so far, its prefix is longer than it was. On news
/// summaries shares of about a half are then right in half of all cases; without it in seven of ten.
const BACKOFF_BELOW: f32 = 0.5;

/// A place in a trie.
#[derive(Copy, Clone)]
struct Place<'a> {
    nodes: &'a Nodes,
    at: u32,
    /// Tokens of the prefix that led here.
    prefix_len: usize,
}

/// A node of the draft, or its root.
struct Drafted {
    node: Option<NodeId>,
    /// Its places, among all.
    places: std::ops::Range<usize>,
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

/// What one draft collects.
pub(super) struct Retrieval<'a> {
    options: &'a TrieOptions,
    places: Vec<Place<'a>>,
    drafted: Vec<Drafted>,
    open: Vec<Candidate>,
    shares: Vec<(Token, f32)>,
}

impl<'a> Retrieval<'a> {
    /// Nothing matched yet.
    pub fn new(options: &'a TrieOptions) -> Retrieval<'a> {
        Retrieval { options, places: Vec::new(), drafted: Vec::new(), open: Vec::new(), shares: Vec::new() }
    }

    /// Matches the ends of the text, longest first, in the sequence's own tries and in the shared ones.
    pub fn find(&mut self, tokens: &[Token], live: &'a Live, stores: [Option<&'a Store>; 2]) {
        for prefix_len in (self.options.prefix_min..=self.options.prefix_max.min(tokens.len())).rev() {
            let run = &tokens[tokens.len() - prefix_len..];
            let shared = stores.iter().flatten().map(|store| store.find(run));
            let found = std::iter::once(live.find_in(run)).chain(shared).flatten();
            self.places.extend(found.map(|(nodes, at)| Place { nodes, at, prefix_len }));
        }
    }

    /// Offers the best continuations.
    pub fn offer(&mut self, ask: &mut Ask<'_>) {
        let places = 0..self.places.len();
        self.drafted.push(Drafted { node: None, places, gain: 1.0, depth: 0, has_child: false });
        self.expand(0);
        let mut rows_left = self.options.decoding_length;
        while let Some(best) = self.take_best() {
            let parent = &self.drafted[best.parent];
            // Side by side, a branch that forks off pays for all its tokens; otherwise only for the new one.
            let forks = self.options.layout == Layout::Par && parent.has_child;
            let rows = if forks { parent.depth + 1 } else { 1 };
            if rows > rows_left || !(ask.has_room() || ask.tree.child(parent.node, best.token).is_some()) {
                continue;
            }
            rows_left -= rows;
            let evidence = Evidence::estimate(best.share);
            let node = ask.tree.suggest(parent.node, best.token, Proposal::Point, ask.source, evidence);
            let goes_on = best.share >= ask.limits.token_min && best.gain >= ask.limits.path_min;
            self.draft(best, node, goes_on && rows_left > 0);
        }
    }

    /// Adds an offered node, and what may follow it.
    fn draft(&mut self, best: Candidate, node: NodeId, goes_on: bool) {
        let from = self.places.len();
        for at in self.drafted[best.parent].places.clone() {
            let place = self.places[at];
            let child = place.nodes.child(place.at, best.token);
            self.places.extend(child.map(|at| Place { at, ..place }));
        }
        let parent = &mut self.drafted[best.parent];
        parent.has_child = true;
        let depth = parent.depth + 1;
        let places = from..self.places.len();
        self.drafted.push(Drafted { node: Some(node), places, gain: best.gain, depth, has_child: false });
        if goes_on {
            self.expand(self.drafted.len() - 1);
        } else if self.options.layout == Layout::One {
            self.open.clear();
        }
    }

    /// The most probable candidate; of equals the one found first.
    fn take_best(&mut self) -> Option<Candidate> {
        let mut best: Option<usize> = None;
        for (i, candidate) in self.open.iter().enumerate() {
            if best.is_none_or(|best| candidate.gain > self.open[best].gain) {
                best = Some(i);
            }
        }
        best.map(|best| self.open.remove(best))
    }

    /// Finds what may follow a drafted node.
    fn expand(&mut self, parent: usize) {
        let Drafted { places, gain, depth, .. } = &self.drafted[parent];
        let (places, gain, depth) = (places.clone(), *gain, *depth);
        self.share_out(places, depth);
        if self.options.layout == Layout::One {
            self.open.clear();
        }
        let candidate = |&(token, share): &(Token, f32)| Candidate { parent, token, share, gain: gain * share };
        self.open.extend(self.shares.iter().map(candidate));
    }

    /// Estimates the probability of each token that may follow these places.
    fn share_out(&mut self, places: std::ops::Range<usize>, depth: usize) {
        let Self { options, places: all, shares, .. } = self;
        shares.clear();
        let backoff = options.backoff * if depth == 0 { 1.0 } else { BACKOFF_BELOW };
        let mut left = 1.0;
        for group in all[places].chunk_by(|a, b| a.prefix_len == b.prefix_len) {
            let children =
                || group.iter().flat_map(|place| place.nodes.children(place.at).map(|at| place.nodes.node(at)));
            let seen: f32 = children().map(|child| weight(options, child.counts)).sum();
            if seen <= 0.0 {
                continue;
            }
            let known = seen / (seen + backoff);
            for child in children() {
                let share = left * known * weight(options, child.counts) / seen;
                if share < options.share_min {
                    continue;
                }
                match shares.iter_mut().find(|(token, _)| *token == child.token) {
                    Some((_, sum)) => *sum += share,
                    None => shares.push((child.token, share)),
                }
            }
            left *= 1.0 - known;
            if left < options.share_min {
                break;
            }
        }
    }
}

/// What a path's occurrences count for.
fn weight(options: &TrieOptions, counts: Counts) -> f32 {
    let (prompt, output) = (counts.prompt as f32, counts.output as f32);
    match options.source {
        BranchSource::Input => prompt * options.prompt_weight,
        BranchSource::Output => output,
        BranchSource::Mix => prompt * options.prompt_weight + output,
    }
}
