//! Retrieval: the branches that continue the last tokens, from several tries at once, into a draft tree.
//!
//! The authors match a long prefix first and a shorter one again where that gives too few tokens. Here all lengths are
//! matched at once and merged by what they are worth: what a longer prefix was followed by gets its share of the
//! probability, what it does not know is left to the next shorter one, down to the shortest. A prefix seen n times
//! (prompts weighing more) keeps n / (n + backoff) and leaves the rest, as interpolated language models do. So a node's
//! estimate is honest. The prefix of no tokens has all tries below it: where nothing longer is known, the commonest
//! tokens are tried, each with what follows it. What is shared counts for a bounded number of occurrences next to the
//! sequence's own, as the authors weigh prompts up by orders of magnitude, however large a store has grown.
//!
//! The best nodes are taken in order, the most probable path first, until the rows are spent: where more match than fit
//! these are the most frequent ones, and where a long prefix gives few, shorter ones follow.
//!
//! Each node keeps its places in all matched tries, one per prefix and store; its children are the children there.

use crate::draft::Ask;
use crate::draft::trie::live::Live;
use crate::draft::trie::nodes::{Common, Counts, Nodes};
use crate::draft::trie::options::{BranchSource, Layout, TrieOptions};
use crate::draft::trie::store::Store;
use crate::{Evidence, NodeId, Proposal, Token};

/// What is left of the backoff below the root: if a branch was right so far, its prefix is longer than it was, and what a
/// longer prefix says comes true more often.
const BACKOFF_BELOW: f32 = 0.5;

/// The tries of one owner.
#[derive(Copy, Clone)]
enum Owner<'a> {
    Live(&'a Live),
    Shared(&'a Store),
}

impl<'a> Owner<'a> {
    fn find(self, run: &[Token]) -> Option<(&'a Nodes, u32)> {
        match self {
            Owner::Live(live) => live.find_in(run),
            Owner::Shared(store) => store.find(run),
        }
    }

    fn common(self) -> &'a Common {
        match self {
            Owner::Live(live) => live.common(),
            Owner::Shared(store) => store.common(),
        }
    }

    /// What a path's occurrences count for.
    fn weight(self, options: &TrieOptions, counts: Counts) -> f32 {
        let prompt = counts.prompt as f32 * options.prompt_weight;
        let output = counts.output as f32 * if self.is_live() { options.own_weight } else { 1.0 };
        match options.source {
            BranchSource::Input => prompt,
            BranchSource::Output => output,
            BranchSource::Mix => prompt + output,
        }
    }

    fn is_live(self) -> bool {
        matches!(self, Owner::Live(_))
    }
}

/// A place in the tries of an owner.
#[derive(Copy, Clone)]
struct Place<'a> {
    owner: Owner<'a>,
    /// Tokens of the prefix that led here.
    prefix_len: usize,
    /// Where; `None` is above all tries, the place of the empty prefix.
    node: Option<(&'a Nodes, u32)>,
}

impl<'a> Place<'a> {
    fn child(self, token: Token) -> Option<Place<'a>> {
        let node = match self.node {
            None => self.owner.find(&[token]),
            Some((nodes, at)) => nodes.child(at, token).map(|child| (nodes, child)),
        };
        node.map(|node| Place { node: Some(node), ..self })
    }

    /// The tokens that follow, and what their occurrences count for.
    fn children(self, options: &TrieOptions) -> impl Iterator<Item = (Token, f32)> {
        let common: &'a [(Token, Counts)] = if self.node.is_none() { self.owner.common().top() } else { &[] };
        let below =
            self.node.into_iter().flat_map(|(nodes, at)| nodes.children(at).map(move |child| nodes.node(child)));
        let children = common.iter().copied().chain(below.map(|node| (node.token, node.counts)));
        children.map(move |(token, counts)| (token, self.owner.weight(options, counts)))
    }

    /// What the occurrences of all tokens that follow count for together.
    fn seen(self, options: &TrieOptions) -> f32 {
        match self.node {
            None => self.owner.weight(options, self.owner.common().total()),
            Some(_) => self.children(options).map(|(_, weight)| weight).sum(),
        }
    }
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
        let [first, second] = stores.map(|store| store.map(Owner::Shared));
        let owners = [Some(Owner::Live(live)), first, second];
        for prefix_len in (self.options.prefix_min..=self.options.prefix_max.min(tokens.len())).rev() {
            let run = &tokens[tokens.len() - prefix_len..];
            for owner in owners.into_iter().flatten() {
                let node = if run.is_empty() { None } else { owner.find(run) };
                if run.is_empty() || node.is_some() {
                    self.places.push(Place { owner, prefix_len, node });
                }
            }
        }
    }

    /// Offers the best continuations.
    pub fn offer(&mut self, ask: &mut Ask<'_>) {
        let places = 0..self.places.len();
        self.drafted.push(Drafted { node: None, places, gain: 1.0, depth: 0, has_child: false });
        self.expand(0);
        let mut rows_left = self.options.decoding_length;
        while let Some(best) = self.take_best() {
            if best.gain < ask.gain_min(self.options.gain_min) {
                break; // the others are no better, and what follows them neither
            }
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
            let goes_on = best.share >= ask.token_min() && best.gain >= ask.limits.path_min;
            self.draft(best, node, goes_on && rows_left > 0);
        }
    }

    /// Adds an offered node, and what may follow it.
    fn draft(&mut self, best: Candidate, node: NodeId, goes_on: bool) {
        let from = self.places.len();
        for at in self.drafted[best.parent].places.clone() {
            let child = self.places[at].child(best.token);
            self.places.extend(child);
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
            // What is shared may be ever so large: it must not drown what this text says.
            let seen_by = |is_live: bool| -> f32 {
                group.iter().filter(|place| place.owner.is_live() == is_live).map(|place| place.seen(options)).sum()
            };
            let (own, shared) = (seen_by(true), seen_by(false));
            let scale = if shared > options.shared_max { options.shared_max / shared } else { 1.0 };
            let seen = own + scale * shared;
            if seen <= 0.0 {
                continue;
            }
            let known = seen / (seen + backoff);
            let children = |place: &Place<'a>| {
                let scale = if place.owner.is_live() { 1.0 } else { scale };
                place.children(options).map(move |(token, weight)| (token, scale * weight))
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
