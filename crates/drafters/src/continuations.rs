//! Continuations: what followed earlier occurrences of the last tokens, merged into one tree, the likeliest nodes
//! first.
//!
//! Every occurrence votes for the token that followed it, with a weight that grows with the length of its match, as the
//! orders of a PPM compressor do:
//!
//! ```text
//! weight(m) = share * 0.5 * m^1.5        m: tokens that match, at most 16
//! acceptance of a token = weights of the occurrences that say it / (1 + weights of all)
//! gain of a node = product of the acceptances from the root to it
//! ```
//!
//! An occurrence alone with a match of 1 token is right with 1/3, of 3 tokens with 0.72, of 8 with 0.92; two that
//! agree add their odds. Below a node only the occurrences that said it go on, their matches one token longer. Of all
//! nodes the one of the highest gain is offered next, so a sure chain goes deep and doubt makes a tree wide.
//!
//! Two more votes that were found by replaying recorded answers. A match that goes on behind a gap of one or two
//! tokens, as a copy with one word exchanged, counts as longer by half of what follows the gap. And the empty match is
//! an occurrence too, everywhere: the last tokens of the text vote with a common weight of 1, so that where nothing
//! matches the commonest words are tried, each with its likeliest follower, as far as there is room.
//!
//! Left out: where occurrences are found ([`super::history`]) and which texts are looked at.

use crate::distinct::Distinct;
use crate::frontier::Frontier;
use crate::history::{END, History};
use foretoken_speculation::Ask;
use foretoken_speculation::{Evidence, NodeId, Proposal, Token};

/// Matches are not followed further back than this.
pub(super) const MATCH_MAX: usize = 16;
/// Weight of a match of one token.
const WEIGHT: f32 = 0.5;
/// Weight of the belief that something else follows.
const DOUBT: f32 = 1.0;
/// Weight of all empty matches together.
const WEIGHT_EMPTY: f32 = 1.0;
/// Most occurrences that are followed below one node, the strongest first: a text of one phrase has hundreds.
const FOLLOWED_MAX: usize = 64;
/// What a token that matches behind a gap counts.
const BEHIND_GAP: f32 = 0.5;
/// Tokens of their own that the text and the context may have in a gap.
const GAPS: [(usize, usize); 6] = [(1, 1), (0, 1), (1, 0), (2, 2), (1, 2), (2, 1)];
/// Fewest tokens that must match behind a gap.
const BEHIND_GAP_MIN: usize = 2;

/// What bounds a tree, next to the limits of the ask.
#[derive(Copy, Clone, Debug)]
pub(super) struct Bounds {
    /// Most nodes offered.
    pub nodes_max: usize,
    /// Most nodes below each other.
    pub depth_max: usize,
    /// A token less probable than this is not offered, nor what follows it.
    pub token_min: f32,
    /// A node of less gain is not offered.
    pub gain_min: f32,
}

/// A text in which occurrences were found.
#[derive(Copy, Clone, Debug)]
pub(super) struct Source<'a> {
    /// Its tokens. Of the first source, the running sequence, copies run on into themselves.
    pub tokens: &'a [Token],
    /// Factor of its weights.
    pub share: f32,
}

/// An occurrence, or the way on from it.
#[derive(Copy, Clone, Debug)]
struct Occurrence {
    source: u32,
    /// Position of the token that it votes for.
    next: u32,
    /// Tokens that match, those behind a gap at their own rate.
    matched: f32,
    /// How many more tokens may be copied.
    left: u32,
    /// Another one with the same vote.
    sibling: u32,
}

/// The votes for one token under one node.
#[derive(Copy, Clone, Debug)]
struct Votes {
    token: Token,
    parent: Option<NodeId>,
    weight: f32,
    acceptance: f32,
    gain: f32,
    /// The first of its occurrences.
    occurrence: u32,
}

const NONE: u32 = u32::MAX;

/// Gathers occurrences and turns them into offers. Kept from pass to pass for its memory.
#[derive(Debug, Default)]
pub(super) struct Continuations {
    occurrences: Vec<Occurrence>,
    /// Votes of the node at hand.
    votes: Vec<Votes>,
    frontier: Frontier<Votes>,
    /// Which of `votes` a token's are.
    distinct: Distinct,
    path: Vec<Token>,
}

impl Continuations {
    /// Forgets all occurrences.
    pub(super) fn clear(&mut self) {
        self.occurrences.clear();
    }

    /// How many occurrences were gathered and followed.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.occurrences.len()
    }

    /// Finds up to `most` occurrences of the end of `context` in a history, those of the longest n-gram first and the
    /// latest of each first; with `first`, the very first of the longest before all others. `source`: its number;
    /// number 0 is the context's own. `depth`: most tokens copied from an occurrence, a multiple of its match and a
    /// constant.
    pub(super) fn gather(
        &mut self,
        source: usize,
        history: &History,
        context: &[Token],
        depth: (f32, f32),
        most: usize,
        first: bool,
    ) {
        let own = source == 0;
        let all = self.occurrences.len() + most;
        // An occurrence that matches further was found with a longer n-gram.
        let mut shorter_than = usize::MAX;
        let mut leader = None;
        for n in history.lengths().filter(|n| *n <= context.len()).collect::<Vec<_>>() {
            let ngram = &context[context.len() - n..];
            if first && leader.is_none() && most > 0 {
                leader = history.first_end(ngram).filter(|end| !own || end + 1 < context.len());
                if let Some(end) = leader {
                    self.found(source, history, context, end, depth);
                }
            }
            // Those passed over were found before, themselves, or first: bounded, whatever the text.
            for end in history.ends(ngram).take(2 * most + 2) {
                if self.occurrences.len() >= all {
                    return;
                }
                if own && end + 1 == context.len() || Some(end) == leader {
                    continue;
                }
                if shorter_than == usize::MAX
                    || common_end(history.tokens(), end + 1, context, 0, shorter_than) < shorter_than
                {
                    self.found(source, history, context, end, depth);
                }
            }
            shorter_than = n;
        }
    }

    fn found(&mut self, source: usize, history: &History, context: &[Token], end: usize, depth: (f32, f32)) {
        let matched = matched(history.tokens(), end + 1, context);
        let left = (depth.0 * matched + depth.1) as u32;
        self.occurrences.push(Occurrence { source: source as u32, next: end as u32 + 1, matched, left, sibling: NONE });
    }

    /// Lets the last `window` tokens of the running sequence be occurrences of nothing.
    pub(super) fn gather_empty(&mut self, context: &[Token], window: usize, depth: (f32, f32)) {
        let left = depth.1 as u32;
        for next in (context.len().saturating_sub(window).max(1)..context.len()).rev() {
            self.occurrences.push(Occurrence { source: 0, next: next as u32, matched: 0.0, left, sibling: NONE });
        }
    }

    /// Offers what followed the occurrences, the highest gain first.
    pub(super) fn offer(&mut self, ask: &mut Ask<'_>, sources: &[Source<'_>], window: usize, bounds: Bounds) {
        self.frontier.clear();
        self.path.clear();
        self.expand(0..self.occurrences.len() as u32, sources, window, bounds, (None, 1.0));
        for _ in 0..bounds.nodes_max {
            let Some(votes) = self.frontier.pop() else { break };
            if !ask.has_room_for(votes.parent, votes.token) {
                break;
            }
            let evidence = Evidence::estimate(votes.acceptance);
            let node = ask.tree.suggest(votes.parent, votes.token, Proposal::Point, ask.source, evidence);
            if ask.tree.depth(node) < bounds.depth_max && ask.is_confident(votes.acceptance, votes.gain) {
                ask.tree.path_into(Some(node), &mut self.path);
                let from = self.occurrences.len() as u32;
                self.follow(votes.occurrence);
                let below = (Some(node), votes.gain);
                self.expand(from..self.occurrences.len() as u32, sources, window, bounds, below);
            }
        }
    }

    /// Lets the occurrences that said a token go on behind it.
    fn follow(&mut self, mut at: u32) {
        let most = self.occurrences.len() + FOLLOWED_MAX;
        while at != NONE && self.occurrences.len() < most {
            let occurrence = self.occurrences[at as usize];
            let Occurrence { next, matched, left, .. } = occurrence;
            if left > 0 {
                self.occurrences.push(Occurrence { next: next + 1, matched: matched + 1.0, ..occurrence });
            }
            at = occurrence.sibling;
        }
    }

    /// Counts the votes of these occurrences under a node of this gain, and puts them to the frontier.
    fn expand(
        &mut self,
        occurrences: std::ops::Range<u32>,
        sources: &[Source<'_>],
        window: usize,
        bounds: Bounds,
        (parent, gain): (Option<NodeId>, f32),
    ) {
        self.votes.clear();
        self.distinct.clear(occurrences.len());
        let mut sum = DOUBT;
        // The strongest last, so that it is the first of its votes.
        for at in occurrences.rev() {
            let Occurrence { source, next, matched, left, .. } = self.occurrences[at as usize];
            let Source { tokens, share } = sources[source as usize];
            let token = match tokens.get(next as usize) {
                Some(&token) => token,
                // A copy at the end of the running text reads on in what it just proposed.
                None if source == 0 => self.path[next as usize - tokens.len()],
                None => END,
            };
            if token == END || left == 0 {
                continue;
            }
            let weight = share * weight(matched, window);
            sum += weight;
            let number = self.distinct.number(token);
            if number == self.votes.len() {
                let none = Votes { token, parent, weight: 0.0, acceptance: 0.0, gain: 0.0, occurrence: NONE };
                self.votes.push(none);
            }
            let votes = &mut self.votes[number];
            votes.weight += weight;
            let sibling = std::mem::replace(&mut votes.occurrence, at);
            let occurrence = &mut self.occurrences[at as usize];
            (occurrence.sibling, occurrence.left) = (sibling, left - 1);
        }
        for mut votes in self.votes.drain(..).rev() {
            votes.acceptance = votes.weight / sum;
            votes.gain = gain * votes.acceptance;
            if votes.acceptance >= bounds.token_min && votes.gain >= bounds.gain_min {
                self.frontier.push(votes.gain, votes);
            }
        }
    }
}

/// The odds that an occurrence is right, of a match of so many tokens.
fn weight(matched: f32, window: usize) -> f32 {
    if matched == 0.0 {
        return WEIGHT_EMPTY / window as f32;
    }
    let matched = matched.min(MATCH_MAX as f32);
    WEIGHT * matched * matched.sqrt()
}

/// How many tokens before `text[after]` are the last of `context` without its last `skip`; at most `most`.
fn common_end(text: &[Token], after: usize, context: &[Token], skip: usize, most: usize) -> usize {
    let (text, context) = (&text[..after], &context[..context.len() - skip]);
    let pairs = text.iter().rev().zip(context.iter().rev()).take(most);
    pairs.take_while(|(a, b)| a == b).count()
}

/// How well the text before `text[after]` matches the end of `context`: tokens that are equal, and half of those that
/// are equal behind a gap, where either side or both have one or two tokens of their own.
fn matched(text: &[Token], after: usize, context: &[Token]) -> f32 {
    let exact = common_end(text, after, context, 0, MATCH_MAX);
    let mut behind = 0;
    if exact < MATCH_MAX {
        for (skip_text, skip_context) in GAPS {
            let (skip_text, skip_context) = (exact + skip_text, exact + skip_context);
            if skip_text < after && skip_context < context.len() {
                behind = behind.max(common_end(text, after - skip_text, context, skip_context, MATCH_MAX));
            }
        }
    }
    let behind = if behind < BEHIND_GAP_MIN { 0.0 } else { BEHIND_GAP * behind as f32 };
    (exact as f32 + behind).min(MATCH_MAX as f32)
}

#[cfg(test)]
mod tests;
