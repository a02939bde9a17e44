//! How a draft continues from the logits of a pass: tokens are drawn after a leaf and offered, and may become leaves.
//!
//! This is the same for every drafter with a network. `grow` chooses the leaves that are continued.

use super::cache::Cached;
use super::grow::{Growth, Leaf};
use crate::LogitRows;
use foretoken_speculation::{Ask, Branch, Chance, Draws, Evidence, NodeId, Outlook, RawLaw, Scratch, Token};

/// How far a draft may go.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Bounds {
    /// Draft length: maximum number of tokens of a branch.
    pub depth_max: usize,
    /// Maximum number of tokens, drafted ones included, after which the network can compute logits.
    pub tokens_max: usize,
    /// The least gain of a further branch, if the request leaves it open ([`Ask::split_min`]).
    pub branch_gain_min: Option<f64>,
}

/// Buffers that are reused from node to node.
#[derive(Default)]
pub(crate) struct Buffers {
    scratch: Scratch,
    path: Vec<Token>,
    /// The most probable tokens of a greedy law.
    most_probable: Vec<Token>,
    draws: Draws,
    /// The nodes that were offered under one node, with the drafter's confidence.
    children: Vec<(NodeId, f32, Evidence)>,
}

impl Buffers {
    /// Continues the picked leaves, and picks the next, until one of their rows has to be computed; returns whether
    /// there is such a row. A leaf whose row has no logits, or was refused, ends its branch; the others continue.
    pub(crate) fn advance(
        &mut self,
        cached: &mut Cached,
        growth: &mut Growth,
        rows: &LogitRows,
        bounds: Bounds,
        ask: &mut Ask<'_>,
        chance: &mut dyn Chance,
    ) -> bool {
        if growth.missing().is_some() {
            cached.truncate(growth.rows.len());
            growth.drop_missing();
        }
        while growth.missing().is_none() {
            for leaf in std::mem::take(&mut growth.picked) {
                if ask.has_room() {
                    self.expand(ask, growth, leaf, rows, bounds, chance);
                }
            }
            growth.picked = growth.take(ask.room(), bounds.depth_max);
            for leaf in &mut growth.picked {
                leaf.row = Some(cached.row_of(leaf.parent_row, leaf.token));
            }
            growth.needed = cached.tokens.len();
            if growth.picked.is_empty() {
                return false;
            }
        }
        true
    }

    /// Draws and offers the tokens after a leaf. The number of siblings is a function of the law alone, one for each
    /// token whose raw probability is above `p_split`, and at least one: it never depends on what was drawn.
    fn expand(
        &mut self,
        ask: &mut Ask<'_>,
        growth: &mut Growth,
        leaf: Leaf,
        rows: &LogitRows,
        bounds: Bounds,
        chance: &mut dyn Chance,
    ) {
        let row =
            growth.logits(&leaf).unwrap_or_else(|| panic!("row {:?} of {:?} was not run", leaf.row, ask.sequence));
        let Some(logits) = rows.row(row) else { return };
        let Self { scratch, path, most_probable, draws, children } = self;
        ask.tree.path_into(leaf.node, path);
        let context = ask.context(path);
        let (row_tokens, sampling) = (rows.row_tokens(), growth.sampling.as_ref().unwrap_or(ask.sampling));
        let law = match row_tokens {
            Some(row_tokens) => sampling.law_of_reduced((row_tokens, logits), &context, scratch),
            None => sampling.law_with(logits, &context, scratch),
        };
        let raw = RawLaw::new(logits);
        let count = match ask.split_min(leaf.calibrated_gain, bounds.branch_gain_min) {
            p_split if p_split < 1.0 && ask.room() > 1 => raw.count_above(p_split).clamp(1, ask.room()),
            _ => 1,
        };
        most_probable.clear();
        if law.is_point() && count > 1 {
            scratch.most_probable(count, row_tokens, most_probable);
        }
        ask.draw(leaf.node, law, count, most_probable, chance, draws);
        children.clear();
        for &(token, q) in &draws.tokens {
            // A token that the settings allow and of which the row has no logit gets an index beyond the row: its
            // confidence is 0.
            let index_in = |tokens: &[Token]| tokens.binary_search(&token).unwrap_or(tokens.len()) as Token;
            let confidence = raw.log_probability(row_tokens.map_or(token, index_in)).exp();
            let evidence = Evidence::of_law(confidence, q);
            let node = ask.tree.suggest(leaf.node, token, draws.proposal, ask.source, evidence);
            children.push((node, confidence, evidence));
        }
        growth.nodes += children.len();
        growth.choices.0 += children.first().map_or(0.0, |child| child.1);
        growth.choices.1 += 1;
        let depth = leaf.depth + 1;
        if depth >= bounds.depth_max || ask.tokens.len() + depth > bounds.tokens_max {
            return;
        }
        for &(node, confidence, evidence) in children.iter() {
            let (token, gain) = (ask.tree.token(node), leaf.gain * confidence);
            let acceptance = |outlook: Outlook<'_>| outlook.acceptance(ask.source, evidence, depth);
            let calibrated_gain = leaf.calibrated_gain * ask.outlook.map_or(1.0, acceptance);
            let room = (bounds.depth_max - depth).min(ask.room());
            let branch = Branch { gain: calibrated_gain, depth, nodes: growth.nodes, room };
            if ask.goes_on(token, (confidence, gain), branch) {
                let (node, parent_row) = (Some(node), leaf.row);
                growth.leaves.push(Leaf { node, token, parent_row, row: None, depth, gain, calibrated_gain });
            }
        }
    }
}
