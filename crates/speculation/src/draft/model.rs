//! A draft model: a small network guesses a chain, one token per depth, for all sequences together.
//!
//! Under *exact* the drafter races with the noise that the target will race with at the same position, and offers the
//! winner as a point mass; the closer its law to the target's, the oftener they agree. Under *rejection* it draws with
//! noise of its own and offers the draw with its law. Greedy needs no case: its laws are point masses.
//!
//! The chain ends after the token whose probability fell below `p_min` (llama.cpp's `p-min`, transformers'
//! `assistant_confidence_threshold`, there stopping likewise after the token) and after an end token. Confidence is the
//! network's raw probability, before temperature and filters: under greedy the law itself would always say 1.
//!
//! Its cache goes by what it ran, not by what was accepted: tokens run ahead are remembered, compared with what the
//! sequence became, and set back at the first difference. So another drafter's branch may win without confusing it.
//!
//! Left out: branching (a chain only), and vocabularies other than the target's.

use std::collections::BTreeMap;

use crate::draft::{Ask, DraftSettings, Drafter};
use crate::{Address, Chance, Context, Evidence, Law, NodeId, Promise, Proposal, Rows, ScoreAsk, Scorer, Scratch};
use crate::{SequenceId, Tenant, Token, log_probability};

/// A [`Drafter`] that asks a [`Scorer`].
#[derive(Debug)]
pub struct ModelDrafter<S> {
    /// The small network.
    pub scorer: S,
    /// Most tokens drafted per pass.
    pub n_max: usize,
    /// What requests leave open. (`n_min`: llama.cpp throws shorter drafts away instead of going on, which looks at what
    /// was drawn and so is not lawful under *rejection*.)
    pub settings: DraftSettings,
    caches: BTreeMap<SequenceId, Cached>,
    rows: Rows,
    scratch: Scratch,
    drawn: Vec<Token>,
}

/// What the scorer has cached of a sequence: its first `agreed` tokens, then these guesses.
#[derive(Clone, Debug, Default)]
struct Cached {
    agreed: usize,
    ahead: Vec<Token>,
}

impl Cached {
    fn len(&self) -> usize {
        self.agreed + self.ahead.len()
    }

    fn truncate(&mut self, len: usize) {
        self.ahead.truncate(len.saturating_sub(self.agreed));
        self.agreed = self.agreed.min(len);
    }
}

/// A chain that is still growing.
struct Chain {
    /// Place among the asks.
    ask: usize,
    node: Option<NodeId>,
    path: Vec<Token>,
    /// Product of the confidences along the path.
    confidence: f32,
}

impl<S: Scorer> ModelDrafter<S> {
    /// A drafter of chains of up to 5 tokens, without a confidence rule, at the target's temperature.
    pub fn new(scorer: S) -> ModelDrafter<S> {
        ModelDrafter {
            scorer,
            n_max: 5,
            settings: DraftSettings::default(),
            caches: BTreeMap::new(),
            rows: Rows::new(),
            scratch: Scratch::default(),
            drawn: Vec::new(),
        }
    }

    /// Sets the cache back to what agrees with the sequence, leaving at least its last token to be run.
    fn catch_up(&mut self, ask: &Ask<'_>) {
        let cached = self.caches.get_mut(&ask.sequence);
        let cached = cached.unwrap_or_else(|| panic!("{:?} was not opened", ask.sequence));
        let before = cached.len();
        let tokens = &ask.tokens[cached.agreed.min(ask.tokens.len())..];
        let agreed = cached.agreed + cached.ahead.iter().zip(tokens).take_while(|(a, b)| a == b).count();
        cached.agreed = agreed.min(ask.tokens.len() - 1);
        cached.ahead.clear();
        if cached.agreed < before {
            self.scorer.keep(ask.sequence, cached.agreed);
        }
    }

    /// One depth: runs what every chain has not run yet, then lets each grow by one token.
    fn deepen(&mut self, asks: &mut [Ask<'_>], mut chains: Vec<Chain>, chance: &mut dyn Chance) -> Vec<Chain> {
        let score_asks: Vec<ScoreAsk<'_>> = chains
            .iter()
            .map(|chain| {
                let ask = &asks[chain.ask];
                let start = self.caches[&ask.sequence].len();
                let unrun = &ask.tokens[start.min(ask.tokens.len())..];
                let tokens = if unrun.is_empty() { &chain.path[start - ask.tokens.len()..] } else { unrun };
                ScoreAsk { sequence: ask.sequence, start, tokens }
            })
            .collect();
        self.rows.clear();
        self.scorer.score(&score_asks, &mut self.rows);
        assert!(self.rows.len() == chains.len(), "{} rows for {} asks", self.rows.len(), chains.len());
        let mut row = 0;
        chains.retain_mut(|chain| {
            row += 1;
            self.grow(&mut asks[chain.ask], chain, row - 1, chance)
        });
        chains
    }

    /// Draws and offers one token after the chain; whether it goes on.
    fn grow(&mut self, ask: &mut Ask<'_>, chain: &mut Chain, row: usize, chance: &mut dyn Chance) -> bool {
        let Some(logits) = self.rows.row(row) else { return false };
        let cached = self.caches.get_mut(&ask.sequence).expect("opened, or catching up had failed");
        cached.agreed = ask.tokens.len();
        cached.ahead.clone_from(&chain.path);

        let context = Context { tokens: ask.tokens, prompt_len: ask.prompt_len, path: &chain.path };
        let settings = ask.settings.or(self.settings);
        let law = match settings.has_filters() {
            false => ask.sampling.law_with(logits, &context, &mut self.scratch),
            true => settings.sampling(ask.sampling).law_with(logits, &context, &mut self.scratch),
        };
        let position = ask.position() + chain.path.len() as u64;
        let confidence = |token| log_probability(logits, token).exp();
        let (node, token, confidence) = propose(ask, chain.node, law, position, confidence, chance, &mut self.drawn);
        chain.node = Some(node);
        chain.path.push(token);
        chain.confidence *= confidence;
        let token_min = settings.p_min.unwrap_or(0.0).max(ask.limits.token_min);
        let confident = confidence >= token_min && chain.confidence >= ask.limits.path_min;
        let goes_on = confident || chain.path.len() < settings.n_min.unwrap_or(0);
        goes_on && !ask.sampling.end_tokens.contains(&token) && self.may_grow(ask, chain)
    }

    /// Whether another token may be drawn. Looks at nothing but what was drawn before.
    fn may_grow(&self, ask: &Ask<'_>, chain: &Chain) -> bool {
        let depth = chain.path.len();
        depth < self.n_max && ask.has_room() && ask.tokens.len() + depth <= self.scorer.context_max()
    }
}

/// Draws a token from the drafter's law as the promise wants it, and offers it. `confidence`: the raw probability.
fn propose(
    ask: &mut Ask<'_>,
    parent: Option<NodeId>,
    law: Law,
    position: u64,
    confidence: impl Fn(Token) -> f32,
    chance: &mut dyn Chance,
    drawn: &mut Vec<Token>,
) -> (NodeId, Token, f32) {
    let (token, proposal, q) = match ask.promise {
        Promise::Exact => {
            let token = chance.pick(&law, Address::token(ask.seed, position));
            let q = law.probability(token);
            ask.tree.keep_law(parent, law, ask.source);
            (token, Proposal::Point, q)
        }
        // A point mass is no draw, and saying so lets a tree of greedy guesses be verified without any coin but 0 or 1.
        Promise::Rejection | Promise::Block if law.is_point() => (law.tokens()[0], Proposal::Point, 1.0),
        Promise::Rejection | Promise::Block => {
            let id = ask.tree.add_law(law);
            let address = Address::draft(ask.seed, ask.position(), position, id);
            let law = ask.tree.law(id);
            chance.draw(law, 1, address, drawn);
            (drawn[0], Proposal::Drawn(id), law.probability(drawn[0]))
        }
    };
    let confidence = confidence(token);
    let node = ask.tree.suggest(parent, token, proposal, ask.source, Evidence::of_law(confidence, q));
    (node, token, confidence)
}

impl<S: Scorer> Drafter for ModelDrafter<S> {
    fn name(&self) -> &str {
        "draft"
    }

    fn open(&mut self, sequence: SequenceId, _prompt: &[Token], _tenant: Tenant) {
        let before = self.caches.insert(sequence, Cached::default());
        assert!(before.is_none(), "{sequence:?} was opened twice");
        self.scorer.open(sequence);
    }

    fn draft(&mut self, asks: &mut [Ask<'_>], chance: &mut dyn Chance) {
        let mut chains = Vec::with_capacity(asks.len());
        for (i, ask) in asks.iter().enumerate() {
            let chain = Chain { ask: i, node: None, path: Vec::new(), confidence: 1.0 };
            if self.may_grow(ask, &chain) {
                self.catch_up(ask);
                chains.push(chain);
            }
        }
        while !chains.is_empty() {
            chains = self.deepen(asks, chains, chance);
        }
    }

    fn keep(&mut self, sequence: SequenceId, len: usize) {
        let cached = self.caches.get_mut(&sequence).unwrap_or_else(|| panic!("{sequence:?} was not opened"));
        if len < cached.len() {
            cached.truncate(len);
            self.scorer.keep(sequence, len);
        }
    }

    fn close(&mut self, sequence: SequenceId) {
        if self.caches.remove(&sequence).is_some() {
            self.scorer.close(sequence);
        }
    }
}

#[cfg(test)]
mod tests;
