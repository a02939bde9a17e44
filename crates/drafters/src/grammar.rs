//! Forced strings as drafts: if a grammar allows only one string, its usual tokens are almost certain.
//!
//! A schema may require an object to continue with `"name":`, and of the thirty ways to split that into tokens the
//! model nearly always takes the one that the tokenizer's encoding gives. The model may still choose another, so the
//! tokens are a draft like any other. (If a single token is possible the engine emits it without running the model, see
//! [`foretoken_speculation::Sampling::forced`].) A model may prefer other tokens, such as `":` and `"` where encoding
//! has `":"`; a token that was written instead of a usual one is offered instead of it from then on.
//!
//! If the grammar leaves the next tokens free but a value may end here, a string is often forced again after that end:
//! so the end of the value is proposed as well, with what follows. This drafter is asked after the others and continues
//! the most probable of their branches as well as the pending token. Strings and their usual tokens come from
//! [`foretoken_speculation::Constraint`].

use std::collections::BTreeMap;

use foretoken_speculation::{
    Ask, Chance, Constrained, Drafter, Ending, Evidence, Needs, NodeId, Opening, Proposal, SequenceId, StepOutput,
    Tenant, Token,
};

/// Expected acceptance of a usual token of a forced string.
const USUAL_ACCEPTANCE: f32 = 0.97;
/// Expected acceptance of the string's last token, which the model may merge with what follows.
const LAST_ACCEPTANCE: f32 = 0.85;
/// Expected acceptance of the end of a value.
const ENDING_ACCEPTANCE: f32 = 0.25;
/// Maximum number of nodes of other drafters that are continued, the most probable ones.
const CONTINUED_MAX: usize = 3;
/// Minimum gain of a node of another drafter that is continued.
const CONTINUED_GAIN_MIN: f32 = 0.3;
/// Maximum number of tokens of a string that are drafted.
const STRING_TOKENS_MAX: usize = 64;
/// Maximum number of preferred tokens in a string: after each of them the rest of the string is split into tokens
/// again.
const PREFERRED_IN_STRING_MAX: usize = 4;
/// Maximum number of preferred tokens that are remembered; beyond that all are forgotten.
const PREFERRED_MAX: usize = 4096;

/// A [`Drafter`] of the strings that the request's constraint forces. Proposes point masses; needs no model and no
/// chance, and proposes nothing without a constraint.
#[derive(Debug, Default)]
pub struct GrammarDrafter {
    running: BTreeMap<SequenceId, Running>,
    /// For each tenant and usual token: the token that the tenant's outputs have instead of it.
    preferred: BTreeMap<(Tenant, Token), Token>,
    /// Gains of the other drafters' nodes.
    gains: Vec<f32>,
}

/// The proposals for a sequence in the last pass.
#[derive(Debug)]
struct Running {
    tenant: Tenant,
    /// The forced string.
    foreseen: Vec<SpelledToken>,
    /// The proposed ends of a value.
    endings: Vec<Ending>,
}

/// A token of a forced string: the usual one and the one that was offered.
#[derive(Copy, Clone, Debug)]
struct SpelledToken {
    usual: Token,
    offered: Token,
}

impl GrammarDrafter {
    fn propose(&mut self, ask: &mut Ask<'_>) {
        let (Some(constraint), Some(tenant)) = (ask.constraint, self.running.get(&ask.sequence).map(|it| it.tenant))
        else {
            return;
        };
        let (mut at_root, mut path) = (Vec::new(), Vec::new());
        let mut endings = Vec::new();
        for (gain, node) in self.starts(ask) {
            ask.tree.path_into(node, &mut path);
            // No string is forced after a path that the constraint forbids.
            let tokens = constraint.foreseen(&path);
            if !tokens.is_empty() {
                let spelled = self.spell(tenant, constraint, &mut path, tokens);
                extend(ask, node, gain, &spelled, USUAL_ACCEPTANCE);
                if node.is_none() {
                    // The string is forced at the root, so no other branch can be right.
                    at_root = spelled;
                    break;
                }
                continue;
            }
            let found = constraint.endings(&path);
            for ending in &found {
                ask.tree.path_into(node, &mut path);
                let spelled = self.spell(tenant, constraint, &mut path, ending.tokens.clone());
                extend(ask, node, gain, &spelled, ENDING_ACCEPTANCE);
            }
            endings = if node.is_none() { found } else { endings };
        }
        // Nothing is learned from tokens that a draft model has drafted.
        if let Some(running) = self.running.get_mut(&ask.sequence).filter(|_| ask.written_len == ask.tokens.len()) {
            (running.foreseen, running.endings) = (at_root, endings);
        }
    }

    /// The tokens of a string after a path, given its usual tokens, with the model's preferred tokens instead of them.
    fn spell(
        &self,
        tenant: Tenant,
        constraint: &Constrained,
        path: &mut Vec<Token>,
        mut usual: Vec<Token>,
    ) -> Vec<SpelledToken> {
        let (mut spelled, mut at, mut found) = (Vec::new(), 0, 0);
        while let Some(&token) = usual.get(at).filter(|_| spelled.len() < STRING_TOKENS_MAX) {
            let preferred = self.preferred.get(&(tenant, token)).copied();
            let preferred = preferred.filter(|_| found < PREFERRED_IN_STRING_MAX);
            path.push(preferred.unwrap_or(token));
            if let Some(preferred) = preferred
                && constraint.allows(path)
            {
                spelled.push(SpelledToken { usual: token, offered: preferred });
                found += 1;
                (usual, at) = (constraint.foreseen(path), 0);
                continue;
            }
            *path.last_mut().expect("pushed above") = token;
            spelled.push(SpelledToken { usual: token, offered: token });
            at += 1;
        }
        spelled
    }

    /// The nodes to continue, each with its gain: the pending token, then the most probable nodes.
    fn starts(&mut self, ask: &Ask<'_>) -> Vec<(f32, Option<NodeId>)> {
        self.gains.clear();
        for node in ask.tree.nodes() {
            let above = ask.tree.parent(node).map_or(1.0, |parent| self.gains[parent.index()]);
            self.gains.push(above * ask.tree.acceptance(node));
        }
        let likely = ask.tree.nodes().filter(|node| self.gains[node.index()] >= CONTINUED_GAIN_MIN);
        let mut nodes: Vec<NodeId> = likely.collect();
        nodes.sort_by(|a, b| self.gains[b.index()].total_cmp(&self.gains[a.index()]));
        let nodes = nodes.into_iter().take(CONTINUED_MAX).map(|node| (self.gains[node.index()], Some(node)));
        std::iter::once((1.0, None)).chain(nodes).collect()
    }

    /// Learns which tokens the model prefers, from what it wrote after a string or an ending was proposed.
    fn learn(&mut self, output: &StepOutput<'_>) {
        let Some(Running { tenant, foreseen, endings }) = self.running.get_mut(&output.sequence) else { return };
        let differs = foreseen.iter().zip(output.emitted).find(|(spelled, written)| spelled.offered != **written);
        let differs = differs.map(|(spelled, written)| (spelled.usual, *written));
        let ended = output.emitted.first().and_then(|first| {
            let begins = |ending: &&Ending| ending.tokens[0] == *first || ending.others.contains(first);
            endings.iter().find(begins).map(|ending| (ending.tokens[0], *first))
        });
        if self.preferred.len() >= PREFERRED_MAX {
            self.preferred.clear();
        }
        for (usual, written) in differs.into_iter().chain(ended) {
            if usual == written {
                self.preferred.remove(&(*tenant, usual));
            } else {
                self.preferred.insert((*tenant, usual), written);
            }
        }
        foreseen.clear();
        endings.clear();
    }
}

/// Offers a chain below a node; `first` is an upper bound of its first token's expected acceptance.
fn extend(ask: &mut Ask<'_>, mut node: Option<NodeId>, mut gain: f32, spelled: &[SpelledToken], first: f32) {
    let gain_min = ask.gain_min(0.0);
    for (i, SpelledToken { offered, .. }) in spelled.iter().enumerate() {
        let usual = if i + 1 == spelled.len() { LAST_ACCEPTANCE } else { USUAL_ACCEPTANCE };
        let acceptance = if i == 0 { usual.min(first) } else { usual };
        gain *= acceptance;
        if gain < gain_min || !ask.has_room_for(node, *offered) {
            return;
        }
        node = Some(ask.tree.suggest(node, *offered, Proposal::Point, ask.source, Evidence::estimate(acceptance)));
        if !ask.is_confident(acceptance, gain) {
            return;
        }
    }
}

impl Drafter for GrammarDrafter {
    fn name(&self) -> &str {
        "grammar"
    }

    fn needs(&self) -> Needs {
        Needs { constraint: true, ..Needs::default() }
    }

    fn open(&mut self, opening: &Opening<'_>) {
        let running = Running { tenant: opening.tenant, foreseen: Vec::new(), endings: Vec::new() };
        let before = self.running.insert(opening.sequence, running);
        assert!(before.is_none(), "{:?} was opened twice", opening.sequence);
    }

    fn draft(&mut self, asks: &mut [Ask<'_>], _chance: &mut dyn Chance) {
        asks.iter_mut().for_each(|ask| self.propose(ask));
    }

    fn observe(&mut self, outputs: &[StepOutput<'_>]) {
        outputs.iter().for_each(|output| self.learn(output));
    }

    fn close(&mut self, sequence: SequenceId) {
        self.running.remove(&sequence);
    }
}

#[cfg(test)]
mod tests;
