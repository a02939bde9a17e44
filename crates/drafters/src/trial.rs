//! For unit tests of drafters: one ask of one sequence, with a chance that draws the most probable tokens or panics.

use foretoken_speculation::budget::Limits;
use foretoken_speculation::{Address, Chance, DraftTree, Law, Promise, Sampling, SequenceId, Token};
use foretoken_speculation::{Ask, DraftSettings, Drafter, Probes};

/// Draws the most probable tokens in order, of ties the lowest first, and records the addresses.
#[derive(Default)]
pub(super) struct Likeliest {
    pub(super) asked: Vec<Address>,
}

impl Chance for Likeliest {
    fn draw(&mut self, law: &Law, count: usize, address: Address, out: &mut Vec<Token>) {
        self.asked.push(address);
        let mut tokens: Vec<(Token, f64)> = law.iter().collect();
        tokens.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        out.clear();
        out.extend(tokens.iter().take(count).map(|(token, _)| *token));
    }

    fn coin(&mut self, _probability: f64, address: Address) -> bool {
        panic!("a drafter tosses no coin, at {address:?}");
    }
}

/// For drafters that must not draw: panics when it is asked.
pub(super) struct NoChance;

impl Chance for NoChance {
    fn draw(&mut self, _law: &Law, _count: usize, address: Address, _out: &mut Vec<Token>) {
        panic!("a draw at {address:?}");
    }
    fn coin(&mut self, _probability: f64, address: Address) -> bool {
        panic!("a coin at {address:?}");
    }
}

/// The values of an [`Ask`].
#[derive(Clone)]
pub(super) struct Trial {
    pub(super) sequence: SequenceId,
    pub(super) promise: Promise,
    pub(super) sampling: Sampling,
    pub(super) settings: DraftSettings,
    pub(super) limits: Limits,
    pub(super) seed: u64,
    /// How many of the last tokens are drafted ones.
    pub(super) drafted: usize,
    /// How many leading tokens are the prompt.
    pub(super) prompt_len: usize,
}

impl Trial {
    /// Greedy, *exact*, up to `nodes_max` nodes.
    pub(super) fn greedy(nodes_max: usize) -> Trial {
        Trial {
            sequence: SequenceId(1),
            promise: Promise::Exact,
            sampling: Sampling { temperature: 0.0, ..Sampling::default() },
            settings: DraftSettings::default(),
            limits: Limits::nodes(nodes_max),
            seed: 3,
            drafted: 0,
            prompt_len: 1,
        }
    }

    /// This trial after a prompt of `prompt_len` tokens.
    pub(super) fn after(self, prompt_len: usize) -> Trial {
        Trial { prompt_len, ..self }
    }

    /// The tree that the drafter proposes after these tokens.
    pub(super) fn draft(&self, drafter: &mut dyn Drafter, tokens: &[Token]) -> DraftTree {
        self.draft_with(drafter, tokens, &mut Probes::default())
    }

    /// The tree that the drafter proposes after these tokens, with room for probes.
    pub(super) fn draft_with(&self, drafter: &mut dyn Drafter, tokens: &[Token], probes: &mut Probes) -> DraftTree {
        let mut tree = DraftTree::new();
        let ask = Ask {
            prompt_len: self.prompt_len,
            written_len: tokens.len() - self.drafted,
            settings: self.settings,
            promise: self.promise,
            seed: self.seed,
            source: 2,
            ..Ask::new(self.sequence, tokens, &self.sampling, self.limits, &mut tree, probes)
        };
        drafter.draft(&mut [ask], &mut Likeliest::default());
        assert!(tree.len() <= self.limits.nodes_max, "{} nodes of {}", tree.len(), self.limits.nodes_max);
        tree
    }
}
