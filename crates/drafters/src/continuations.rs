//! Continuations: what followed earlier occurrences of the last tokens, merged into one tree, the most probable nodes
//! first.
//!
//! Every occurrence votes for the token that followed it, with a weight that grows with the length of its match, as the
//! orders of a PPM compressor do:
//!
//! ```text
//! weight(m) = share * 0.5 * m^1.5        m: tokens that match, at most 16
//! acceptance of a token = weights of the occurrences that vote for it / (1 + weights of all)
//! gain of a node = product of the acceptances from the root to it
//! ```
//!
//! A single occurrence with a match of 1 token is estimated to be right with probability 1/3, of 3 tokens with 0.72, of
//! 8 with 0.92; the weights of two that agree add up. Below a node only the occurrences that voted for it continue,
//! with matches one token longer. The node with the highest gain is offered next, so confident votes make a deep chain
//! and uncertain ones a wide tree.
//!
//! Two kinds of votes were added after replaying recorded answers. A match that continues before a gap of one or two
//! tokens, as in a copy with one word replaced, counts half of the tokens that match there. And the empty match occurs
//! everywhere: the last tokens of the sequence vote with a common weight of 1, so if nothing matches, the most frequent
//! words are proposed, each with its most probable follower, as far as there is room.
//!
//! Occurrences are found by [`super::history`]; the drafters choose the texts.

use crate::distinct::Distinct;
use crate::frontier::Frontier;
use crate::history::{END, History};
use foretoken_speculation::Ask;
use foretoken_speculation::{Evidence, NodeId, Proposal, Token};

/// Matches are not followed further back than this.
pub(super) const MATCH_MAX: usize = 16;
/// Weight of a match of one token.
const WEIGHT: f32 = 0.5;
/// Weight of the prior that some other token follows.
const PRIOR_WEIGHT: f32 = 1.0;
/// Weight of all empty matches together.
const EMPTY_WEIGHT: f32 = 1.0;
/// Maximum number of occurrences that are followed below one node, the strongest first: a text that repeats one phrase
/// has hundreds.
const FOLLOWED_MAX: usize = 64;
/// How much a token that matches before a gap counts.
const GAP_WEIGHT: f32 = 0.5;
/// Lengths of a gap in the text and in the context.
const GAPS: [(usize, usize); 6] = [(1, 1), (0, 1), (1, 0), (2, 2), (1, 2), (2, 1)];
/// Minimum number of tokens that must match before a gap.
const GAP_MATCH_MIN: usize = 2;

/// Bounds of a tree, besides the limits of the ask.
#[derive(Copy, Clone, Debug)]
pub(super) struct Bounds {
    /// Maximum number of nodes that are offered.
    pub nodes_max: usize,
    /// Maximum number of tokens of a branch.
    pub depth_max: usize,
    /// A token less probable than this is not offered, and neither is what follows it.
    pub token_min: f32,
    /// A node with a lower gain is not offered.
    pub gain_min: f32,
}

/// A text in which occurrences were found.
#[derive(Copy, Clone, Debug)]
pub(super) struct Source<'a> {
    /// Its tokens. A copy from the first source, the running sequence, may reach its end and continue into itself.
    pub tokens: &'a [Token],
    /// Factor of its weights.
    pub share: f32,
}

/// An occurrence of the last tokens, or of these and some proposed ones.
#[derive(Copy, Clone, Debug)]
struct Occurrence {
    source: u32,
    /// Position of the token that it votes for.
    next: u32,
    /// Tokens that match, those before a gap weighted by [`GAP_WEIGHT`].
    matched: f32,
    /// How many more tokens may be copied.
    left: u32,
    /// The next occurrence with the same vote.
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

/// Gathers occurrences and turns them into offers. Kept from pass to pass to reuse its memory.
#[derive(Debug, Default)]
pub(super) struct Continuations {
    occurrences: Vec<Occurrence>,
    /// Votes of the node that is being expanded.
    votes: Vec<Votes>,
    frontier: Frontier<Votes>,
    /// The index in `votes` of each token.
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
    /// latest of each first; with `first`, the earliest of the longest before all others. `source`: its number; number
    /// 0 is the running sequence itself. `depth`: maximum number of tokens copied from an occurrence, as a multiple of
    /// its match and a constant.
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
        // An occurrence with a longer match was found with a longer n-gram.
        let mut shorter_than = usize::MAX;
        let mut earliest = None;
        for n in history.lengths().filter(|n| *n <= context.len()).collect::<Vec<_>>() {
            let ngram = &context[context.len() - n..];
            if first && earliest.is_none() && most > 0 {
                earliest = history.first_end(ngram).filter(|end| !own || end + 1 < context.len());
                if let Some(end) = earliest {
                    self.add(source, history, context, end, depth);
                }
            }
            // The context's own end, the earliest end, and those found with a longer n-gram are skipped: a bounded
            // number.
            for end in history.ends(ngram).take(2 * most + 2) {
                if self.occurrences.len() >= all {
                    return;
                }
                if own && end + 1 == context.len() || Some(end) == earliest {
                    continue;
                }
                if shorter_than == usize::MAX
                    || common_end(history.tokens(), end + 1, context, 0, shorter_than) < shorter_than
                {
                    self.add(source, history, context, end, depth);
                }
            }
            shorter_than = n;
        }
    }

    fn add(&mut self, source: usize, history: &History, context: &[Token], end: usize, depth: (f32, f32)) {
        let matched = matched(history.tokens(), end + 1, context);
        let left = (depth.0 * matched + depth.1) as u32;
        self.occurrences.push(Occurrence { source: source as u32, next: end as u32 + 1, matched, left, sibling: NONE });
    }

    /// Adds the last `window` tokens of the running sequence as occurrences of the empty match.
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

    /// Continues the occurrences that voted for a token by one token.
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

    /// Counts the votes of these occurrences under a node of this gain, and adds them to the frontier.
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
        let mut sum = PRIOR_WEIGHT;
        // Iterates in reverse, so that the strongest becomes the first of its votes.
        for at in occurrences.rev() {
            let Occurrence { source, next, matched, left, .. } = self.occurrences[at as usize];
            let Source { tokens, share } = sources[source as usize];
            let token = match tokens.get(next as usize) {
                Some(&token) => token,
                // A copy that reached the end of the running sequence continues in the tokens that it just proposed.
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

/// The weight of an occurrence with a match of this many tokens: the odds that it is right.
fn weight(matched: f32, window: usize) -> f32 {
    if matched == 0.0 {
        return EMPTY_WEIGHT / window as f32;
    }
    let matched = matched.min(MATCH_MAX as f32);
    WEIGHT * matched * matched.sqrt()
}

/// How many tokens before `text[after]` equal the last of `context` without its last `skip`; at most `most`.
fn common_end(text: &[Token], after: usize, context: &[Token], skip: usize, most: usize) -> usize {
    let (text, context) = (&text[..after], &context[..context.len() - skip]);
    let pairs = text.iter().rev().zip(context.iter().rev()).take(most);
    pairs.take_while(|(a, b)| a == b).count()
}

/// How well the text before `text[after]` matches the end of `context`: the number of equal tokens, plus half of those
/// that are equal before a gap, in which either side or both have one or two other tokens.
fn matched(text: &[Token], after: usize, context: &[Token]) -> f32 {
    let exact = common_end(text, after, context, 0, MATCH_MAX);
    let mut before_gap = 0;
    if exact < MATCH_MAX {
        for (skip_text, skip_context) in GAPS {
            let (skip_text, skip_context) = (exact + skip_text, exact + skip_context);
            if skip_text < after && skip_context < context.len() {
                before_gap = before_gap.max(common_end(text, after - skip_text, context, skip_context, MATCH_MAX));
            }
        }
    }
    let before_gap = if before_gap < GAP_MATCH_MIN { 0.0 } else { GAP_WEIGHT * before_gap as f32 };
    (exact as f32 + before_gap).min(MATCH_MAX as f32)
}

#[cfg(test)]
mod tests;
