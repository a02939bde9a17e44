//! Forced bytes as drafts: where a grammar leaves one string, its usual tokens are all but certain.
//!
//! A schema says that an object goes on with `"name":`, and of the thirty ways to spell that in tokens the model nearly
//! always takes the one that encoding the text would give. Which one is the model's to choose, so it is asked: the
//! tokens are a draft like any other. (Where a single token is possible nobody is asked: that is the engine's business,
//! see [`foretoken_speculation::Sampling::forced`].)
//!
//! It is asked behind the other drafters and continues the likeliest of their guesses too: behind the guess that a value
//! ends here the grammar knows what comes next. Left out: what a grammar is, and how its strings are spelt
//! ([`foretoken_speculation::Constraint::foreseen`]).

use foretoken_speculation::{Ask, Chance, Drafter, Evidence, Needs, NodeId, Proposal, Token};

/// What is expected of a token that usually spells what has to come; of the last one too, which what follows might be
/// merged with.
const USUAL: f32 = 0.97;
const LAST: f32 = 0.85;
/// Guesses of others that are continued: the likeliest, of at least this gain.
const CONTINUED_MAX: usize = 4;
const CONTINUED_MIN: f32 = 0.3;

/// A [`Drafter`] of what the request's constraint foresees. Proposes point masses; needs no model and no chance, keeps
/// nothing of a sequence, and says nothing where there is no constraint.
#[derive(Debug, Default)]
pub struct GrammarDrafter {
    /// The guesses of others, by node, with their gains.
    gains: Vec<f32>,
}

impl GrammarDrafter {
    fn propose(&mut self, ask: &mut Ask<'_>) {
        let Some(constraint) = ask.constraint else { return };
        let mut path = Vec::new();
        for (gain, node) in self.places(ask) {
            ask.tree.path_into(node, &mut path);
            // Nothing is foreseen behind what may not be written.
            let tokens = constraint.foreseen(&path);
            extend(ask, node, gain, &tokens);
        }
    }

    /// The places to go on from: the pending token, then the likeliest guesses, each with its gain.
    fn places(&mut self, ask: &Ask<'_>) -> Vec<(f32, Option<NodeId>)> {
        self.gains.clear();
        for node in ask.tree.nodes() {
            let above = ask.tree.parent(node).map_or(1.0, |parent| self.gains[parent.index()]);
            let acceptance = ask.tree.offers_of(node).map(|offer| offer.evidence.acceptance).fold(0.0, f32::max);
            self.gains.push(above * acceptance.min(1.0));
        }
        let mut nodes: Vec<NodeId> =
            ask.tree.nodes().filter(|node| self.gains[node.index()] >= CONTINUED_MIN).collect();
        nodes.sort_by(|a, b| self.gains[b.index()].total_cmp(&self.gains[a.index()]));
        let guesses = nodes.into_iter().take(CONTINUED_MAX).map(|node| (self.gains[node.index()], Some(node)));
        std::iter::once((1.0, None)).chain(guesses).collect()
    }
}

/// Offers a chain below a node.
fn extend(ask: &mut Ask<'_>, mut node: Option<NodeId>, mut gain: f32, tokens: &[Token]) {
    let gain_min = ask.gain_min(0.0);
    for (i, token) in tokens.iter().enumerate() {
        let acceptance = if i + 1 == tokens.len() { LAST } else { USUAL };
        gain *= acceptance;
        if gain < gain_min || !ask.has_room_for(node, *token) {
            return;
        }
        node = Some(ask.tree.suggest(node, *token, Proposal::Point, ask.source, Evidence::estimate(acceptance)));
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

    fn draft(&mut self, asks: &mut [Ask<'_>], _chance: &mut dyn Chance) {
        asks.iter_mut().for_each(|ask| self.propose(ask));
    }
}
