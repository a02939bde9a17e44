//! Forced bytes as drafts: where a grammar leaves one string, its usual tokens are all but certain.
//!
//! A schema says that an object goes on with `"name":`, and of the thirty ways to spell that in tokens the model
//! nearly always takes the one that encoding the text would give. Which one is the model's to choose, so it is asked:
//! the tokens are a draft like any other. (Where a single token is possible nobody is asked: that is the engine's
//! business, see [`foretoken_speculation::Sampling::forced`].) Models have habits of their own, `":` and `"` where
//! encoding has `":"`; what was written instead of a usual token is offered instead of it from then on.
//!
//! Where the text is free, it may be at the end of a value, behind which much is forced again: that it ends here is
//! guessed too, with what follows. It is asked behind the other drafters and goes on from the likeliest of their
//! guesses as from the pending token. Left out: what a grammar is, and how its strings are spelt
//! ([`foretoken_speculation::Constraint`]).

use std::collections::BTreeMap;

use foretoken_speculation::{
    Ask, Chance, Constrained, Drafter, Ending, Evidence, Needs, News, NodeId, Opening, Proposal, SequenceId, Tenant,
    Token,
};

/// What is expected of a token that usually spells what has to come; of the last one too, which what follows might be
/// merged with; and of an end of a value.
const USUAL: f32 = 0.97;
const LAST: f32 = 0.85;
const ENDS: f32 = 0.25;
/// Guesses of others that are gone on from: the likeliest, of at least this gain.
const CONTINUED_MAX: usize = 3;
const CONTINUED_MIN: f32 = 0.3;
/// Of a string so many tokens are drafted, and so many habits are looked for: behind each the rest is spelt anew.
const STRING_MAX: usize = 64;
const HABITS_IN_STRING_MAX: usize = 4;
/// Habits that are remembered; then all are forgotten.
const HABITS_MAX: usize = 4096;

/// A [`Drafter`] of what the request's constraint foresees. Proposes point masses; needs no model and no chance, and
/// says nothing where there is no constraint.
#[derive(Debug, Default)]
pub struct GrammarDrafter {
    running: BTreeMap<SequenceId, Running>,
    /// What a tenant's texts have instead of a usual token.
    habits: BTreeMap<(Tenant, Token), Token>,
    /// The guesses of others, by node, with their gains.
    gains: Vec<f32>,
}

/// What is kept of a sequence: what it was expected to go on with, in the last pass.
#[derive(Debug)]
struct Running {
    tenant: Tenant,
    /// What it has to go on with.
    foreseen: Vec<Spelt>,
    /// Each way in which it may end a value.
    endings: Vec<Ending>,
}

/// A token of a string that is foreseen.
#[derive(Copy, Clone, Debug)]
struct Spelt {
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
        for (gain, node) in self.places(ask) {
            ask.tree.path_into(node, &mut path);
            // Nothing is foreseen behind what may not be written.
            let tokens = constraint.foreseen(&path);
            if !tokens.is_empty() {
                let spelt = self.spell(tenant, constraint, &mut path, tokens);
                extend(ask, node, gain, &spelt, USUAL);
                if node.is_none() {
                    // All guesses have to go this way.
                    at_root = spelt;
                    break;
                }
                continue;
            }
            let found = constraint.endings(&path);
            for ending in &found {
                ask.tree.path_into(node, &mut path);
                let spelt = self.spell(tenant, constraint, &mut path, ending.tokens.clone());
                extend(ask, node, gain, &spelt, ENDS);
            }
            endings = if node.is_none() { found } else { endings };
        }
        // What a draft model has guessed itself is no text yet.
        if let Some(running) = self.running.get_mut(&ask.sequence).filter(|_| ask.written_len == ask.tokens.len()) {
            (running.foreseen, running.endings) = (at_root, endings);
        }
    }

    /// A string behind a path, given in its usual tokens, as the model is used to write it.
    fn spell(
        &self,
        tenant: Tenant,
        constraint: &Constrained,
        path: &mut Vec<Token>,
        mut usual: Vec<Token>,
    ) -> Vec<Spelt> {
        let (mut spelt, mut at, mut found) = (Vec::new(), 0, 0);
        while let Some(&token) = usual.get(at).filter(|_| spelt.len() < STRING_MAX) {
            let habit = self.habits.get(&(tenant, token)).copied().filter(|_| found < HABITS_IN_STRING_MAX);
            path.push(habit.unwrap_or(token));
            if let Some(habit) = habit
                && constraint.allows(path)
            {
                spelt.push(Spelt { usual: token, offered: habit });
                found += 1;
                (usual, at) = (constraint.foreseen(path), 0);
                continue;
            }
            *path.last_mut().expect("pushed above") = token;
            spelt.push(Spelt { usual: token, offered: token });
            at += 1;
        }
        spelt
    }

    /// The places to go on from: the pending token, then the likeliest guesses, each with its gain.
    fn places(&mut self, ask: &Ask<'_>) -> Vec<(f32, Option<NodeId>)> {
        self.gains.clear();
        for node in ask.tree.nodes() {
            let above = ask.tree.parent(node).map_or(1.0, |parent| self.gains[parent.index()]);
            self.gains.push(above * ask.tree.acceptance(node));
        }
        let likely = ask.tree.nodes().filter(|node| self.gains[node.index()] >= CONTINUED_MIN);
        let mut nodes: Vec<NodeId> = likely.collect();
        nodes.sort_by(|a, b| self.gains[b.index()].total_cmp(&self.gains[a.index()]));
        let guesses = nodes.into_iter().take(CONTINUED_MAX).map(|node| (self.gains[node.index()], Some(node)));
        std::iter::once((1.0, None)).chain(guesses).collect()
    }

    /// Learns how the model spells, from what it wrote where something was foreseen.
    fn learn(&mut self, news: &News<'_>) {
        let Some(Running { tenant, foreseen, endings }) = self.running.get_mut(&news.sequence) else { return };
        let differs = foreseen.iter().zip(news.emitted).find(|(spelt, written)| spelt.offered != **written);
        let spelt = differs.map(|(spelt, written)| (spelt.usual, *written));
        let ended = news.emitted.first().and_then(|first| {
            let begins = |ending: &&Ending| ending.tokens[0] == *first || ending.others.contains(first);
            endings.iter().find(begins).map(|ending| (ending.tokens[0], *first))
        });
        if self.habits.len() >= HABITS_MAX {
            self.habits.clear();
        }
        for (usual, written) in spelt.into_iter().chain(ended) {
            if usual == written {
                self.habits.remove(&(*tenant, usual));
            } else {
                self.habits.insert((*tenant, usual), written);
            }
        }
        foreseen.clear();
        endings.clear();
    }
}

/// Offers a chain below a node, whose first token is expected with this probability.
fn extend(ask: &mut Ask<'_>, mut node: Option<NodeId>, mut gain: f32, spelt: &[Spelt], first: f32) {
    let gain_min = ask.gain_min(0.0);
    for (i, Spelt { offered, .. }) in spelt.iter().enumerate() {
        let usual = if i + 1 == spelt.len() { LAST } else { USUAL };
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

    fn observe(&mut self, news: &[News<'_>]) {
        news.iter().for_each(|news| self.learn(news));
    }

    fn close(&mut self, sequence: SequenceId) {
        self.running.remove(&sequence);
    }
}

#[cfg(test)]
mod tests;
