//! What a drafter is asked, and what drafters have in common: drawing as the promise requires, and deciding where a
//! branch ends.

use crate::budget::Limits;
use crate::choose::{Branch, Outlook};
use crate::sampling::Constrained;
use crate::{Address, Chance, Context, DraftSettings, DraftTree, Law, NodeId, Pass, Probes, Promise, Proposal};
use crate::{Sampling, SequenceId, Token};

/// If costs decide, tokens with a gain below this are not proposed.
const GAIN_MIN_WEIGHED: f32 = 0.01;
/// If costs decide, tokens are not proposed either whose gain is below this fraction of the cost of a row of the pass.
/// A drafter's own estimates are rough, so the bound stays well below the whole cost.
const ROW_FRACTION: f64 = 0.25;
/// If costs decide, a drafter with a network branches where the branch is worth this many further rows of the pass: the
/// row, its part of the draft model's next pass, and that the estimate is rough.
const SIBLING_ROWS: f64 = 4.0;

/// The request to a drafter to propose tokens for one sequence.
#[derive(Debug)]
pub struct Ask<'a> {
    /// The sequence, which was opened before.
    pub sequence: SequenceId,
    /// All tokens of the sequence, prompt and output; never empty. The last one is pending (the root of the tree).
    pub tokens: &'a [Token],
    /// How many of `tokens` are written and not drafted. These are all of them, unless the inner drafter of a draft
    /// model is asked to continue tokens that are drafted themselves. Drafters learn from [`Ask::written`] alone.
    pub written_len: usize,
    /// How many of `tokens` are the prompt.
    pub prompt_len: usize,
    /// The settings that the target's logits will go through.
    pub sampling: &'a Sampling,
    /// The constraint on the output, if there is one. Laws of the target respect it, and so do those of draft models of
    /// the target's vocabulary; other drafters may offer tokens that it forbids, which are dropped before verification.
    pub constraint: Option<&'a Constrained>,
    /// What the request says about drafting.
    pub settings: DraftSettings,
    /// How the tree will be verified.
    pub promise: Promise,
    /// The request's seed.
    pub seed: u64,
    /// The request's number, which keeps the draws of requests of one seed apart ([`Pass::request`]).
    pub request: u64,
    /// By what it is decided whether a further step of drafting pays; `None` if only the limits count.
    pub outlook: Option<Outlook<'a>>,
    /// The limits of the draft. The tree may hold `limits.nodes_max` nodes in all, those of earlier drafters counted.
    pub limits: Limits,
    /// The tree to add offers to; it has those of earlier drafters already.
    pub tree: &'a mut DraftTree,
    /// Where to ask for rows besides the tree; there is room for at most what [`crate::draft::Needs`] declares.
    pub probes: &'a mut Probes,
    /// The drafter's number, to put on its offers and probes.
    pub source: u8,
}

impl<'a> Ask<'a> {
    /// An ask for tokens after these, the first of which is the prompt: under *exact*, with seed 0 and without a
    /// constraint, of drafter 0.
    pub fn new(
        sequence: SequenceId,
        tokens: &'a [Token],
        sampling: &'a Sampling,
        limits: Limits,
        tree: &'a mut DraftTree,
        probes: &'a mut Probes,
    ) -> Self {
        Ask {
            sequence,
            tokens,
            written_len: tokens.len(),
            prompt_len: 1,
            sampling,
            constraint: None,
            settings: DraftSettings::default(),
            promise: Promise::Exact,
            seed: 0,
            request: 0,
            outlook: None,
            limits,
            tree,
            probes,
            source: 0,
        }
    }
}

/// The tokens that were drawn at one node.
#[derive(Debug)]
pub struct Draws {
    /// The tokens in the order of drawing, each with its probability under the law.
    pub tokens: Vec<(Token, f64)>,
    /// How they are to be offered.
    pub proposal: Proposal,
    drawn: Vec<Token>,
}

impl Default for Draws {
    fn default() -> Draws {
        Draws { tokens: Vec::new(), proposal: Proposal::Point, drawn: Vec::new() }
    }
}

impl<'a> Ask<'a> {
    /// The tokens that are written and not drafted: what may be learned.
    pub fn written(&self) -> &'a [Token] {
        &self.tokens[..self.written_len]
    }

    /// The first position that this pass chooses: the number of tokens so far.
    pub fn position(&self) -> u64 {
        self.tokens.len() as u64
    }

    /// The pass that addresses the noise of this ask.
    pub fn pass(&self) -> Pass {
        Pass { seed: self.seed, request: self.request, start: self.position() }
    }

    /// The context of the token after this path, for a law over the target's vocabulary.
    pub fn context<'c>(&self, path: &'c [Token]) -> Context<'c>
    where
        'a: 'c,
    {
        Context { tokens: self.tokens, prompt_len: self.prompt_len, path, constraint: self.constraint }
    }

    /// Draws up to `count` tokens to follow `parent` as the promise requires, into `draws`. All of them are to be
    /// offered under `draws.proposal`, whatever they are, unless it is [`Proposal::Point`].
    ///
    /// - *exact*: the first tokens of the exponential race with the target's own noise, as point masses. The runners-up
    ///   of the race win if the target's law differs a little; the next most probable tokens need not.
    /// - *rejection* and *block*: draws without replacement, each to be offered with the law.
    /// - A law that is a point mass, as under greedy, needs no draw and has no runner-up. Its siblings are the first of
    ///   `alternatives`; a tree of greedy proposals is then verified with coins of probability 0 or 1 alone.
    pub fn draw(
        &mut self,
        parent: Option<NodeId>,
        law: Law,
        count: usize,
        alternatives: &[Token],
        chance: &mut dyn Chance,
        draws: &mut Draws,
    ) {
        let position = self.position() + parent.map_or(0, |parent| self.tree.depth(parent)) as u64;
        let Draws { tokens, proposal, drawn } = draws;
        tokens.clear();
        *proposal = Proposal::Point;
        if law.is_point() {
            let first = law.tokens()[0];
            let others = alternatives.iter().filter(|token| **token != first).take(count.saturating_sub(1));
            tokens.push((first, 1.0));
            tokens.extend(others.map(|token| (*token, 0.0)));
            self.tree.keep_law(parent, law, self.source);
        } else if self.promise == Promise::Exact {
            chance.draw(&law, count, Address::token(self.seed, position), drawn);
            tokens.extend(drawn.iter().map(|token| (*token, law.probability(*token))));
            self.tree.keep_law(parent, law, self.source);
        } else {
            let id = self.tree.add_law(law);
            let law = self.tree.law(id);
            chance.draw(law, count, Address::draft(self.pass(), position, id), drawn);
            tokens.extend(drawn.iter().map(|token| (*token, law.probability(*token))));
            *proposal = Proposal::Drawn(id);
        }
    }

    /// Whether request and budget let a branch continue after a token with this acceptance; `gain` is the product of
    /// all acceptances of the branch, this one included.
    pub fn is_confident(&self, acceptance: f32, gain: f32) -> bool {
        let token_min = self.settings.p_min.unwrap_or(0.0).max(self.limits.token_min);
        acceptance >= token_min && gain >= self.limits.path_min
    }

    /// Whether a branch should continue after this token, the last of `branch`: the token does not end the sequence,
    /// and either the branch is shorter than the request's minimum, or it is confident and the next step is worth its
    /// time.
    pub fn goes_on(&self, token: Token, (acceptance, gain): (f32, f32), branch: Branch) -> bool {
        let pays = || self.outlook.is_none_or(|outlook| outlook.pays(self.source, branch));
        let is_short = branch.depth < self.settings.n_min.unwrap_or(0);
        (is_short || self.is_confident(acceptance, gain) && pays()) && !self.sampling.end_tokens.contains(&token)
    }

    /// The minimum gain, by the drafter's own estimate, of a token that it proposes: what the request says, or else the
    /// drafter's `own` bound, which is lowered if costs decide.
    pub fn gain_min(&self, own: f32) -> f32 {
        let by_cost = |outlook: Outlook<'_>| own.min(GAIN_MIN_WEIGHED).max((ROW_FRACTION * outlook.row_min) as f32);
        self.settings.gain_min.unwrap_or(self.outlook.map_or(own, by_cost))
    }

    /// The raw probability above which further tokens are proposed beside the most probable one, after a branch of this
    /// gain: what the request says, or else what pays for a branch of at least the drafter's `own` gain. Without such a
    /// gain, or without costs, a draft never branches.
    pub fn split_min(&self, gain: f64, own: Option<f64>) -> f32 {
        let by_cost = |(outlook, own): (Outlook<'_>, f64)| own.max(SIBLING_ROWS * outlook.row_min) / gain;
        let by_cost = || self.outlook.zip(own).map_or(1.0, by_cost).min(1.0) as f32;
        self.settings.p_split.unwrap_or_else(by_cost)
    }

    /// Number of nodes that still fit.
    pub fn room(&self) -> usize {
        self.limits.nodes_max.saturating_sub(self.tree.len())
    }

    /// Whether another node fits.
    pub fn has_room(&self) -> bool {
        self.room() > 0
    }

    /// Whether this token can be proposed: another node fits, or the tree has this one already.
    pub fn has_room_for(&self, parent: Option<NodeId>, token: Token) -> bool {
        self.has_room() || self.tree.child(parent, token).is_some()
    }
}
