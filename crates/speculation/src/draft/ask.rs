//! What a drafter is asked, and what all drafters do alike: draw lawfully, and know where a branch ends.
//!
//! Left out: what they guess.

use crate::budget::Limits;
use crate::choose::{Branch, Outlook};
use crate::sampling::Constrained;
use crate::{Address, Chance, Context, DraftSettings, DraftTree, Law, NodeId, Pass, Probes, Promise, Proposal};
use crate::{Sampling, SequenceId, Token};

/// Guesses below this are not worth the time of weighing them.
const GAIN_MIN_WEIGHED: f32 = 0.01;
/// Nor are those below this part of what a row of the pass costs. A drafter's own estimates are rough, so the bound
/// stays well below the whole price.
const ROW_PART: f64 = 0.25;

/// "Propose something for this sequence."
#[derive(Debug)]
pub struct Ask<'a> {
    /// The sequence, opened before.
    pub sequence: SequenceId,
    /// All its tokens, prompt and output; the last one is pending (the root of the tree). Never empty.
    pub tokens: &'a [Token],
    /// How many of `tokens` are written for good. All of them, unless this is the drafter of a draft model, which is
    /// asked what comes after tokens that are drafted themselves. Drafters learn from [`Ask::written`] alone.
    pub written_len: usize,
    /// How many of `tokens` are the prompt.
    pub prompt_len: usize,
    /// The settings that the target's logits will go through.
    pub sampling: &'a Sampling,
    /// What may be written at all, if not everything. Laws of the target respect it, and those of draft models in the
    /// target's tokens; other drafters may offer what is refused then.
    pub constraint: Option<&'a Constrained>,
    /// What the request says about drafting.
    pub settings: DraftSettings,
    /// How the tree will be verified.
    pub promise: Promise,
    /// The request's seed.
    pub seed: u64,
    /// The request's number, which keeps the draws of requests of one seed apart ([`Pass::request`]).
    pub request: u64,
    /// What a step of drafting must be worth to be made; `None` if only the limits count.
    pub outlook: Option<Outlook<'a>>,
    /// How far to go. The tree may hold `limits.nodes_max` nodes in all, those of earlier drafters counted.
    pub limits: Limits,
    /// Where to propose; earlier drafters' offers are there already.
    pub tree: &'a mut DraftTree,
    /// Where to ask for rows beside the tree; there is room for what [`crate::draft::Needs`] says or less.
    pub probes: &'a mut Probes,
    /// The drafter's number, to put on its offers and probes.
    pub source: u8,
}

/// What was drawn at one node.
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
    /// The tokens that are written for good: what may be learned.
    pub fn written(&self) -> &'a [Token] {
        &self.tokens[..self.written_len]
    }

    /// The first position that this pass chooses: the number of tokens so far.
    pub fn position(&self) -> u64 {
        self.tokens.len() as u64
    }

    /// Where the noise of this pass is.
    pub fn pass(&self) -> Pass {
        Pass { seed: self.seed, request: self.request, start: self.position() }
    }

    /// What comes before the token behind this path, for a law of the target's vocabulary.
    pub fn context<'c>(&self, path: &'c [Token]) -> Context<'c>
    where
        'a: 'c,
    {
        Context { tokens: self.tokens, prompt_len: self.prompt_len, path, constraint: self.constraint }
    }

    /// Draws up to `count` tokens to follow `parent` as the promise wants it, into `draws`. All of them are to be
    /// offered under `draws.proposal`, whatever they are, unless it is [`Proposal::Point`].
    ///
    /// - *exact*: the first places of the race with the target's own noise, as point masses. The next places are the
    ///   tokens that win where the target's law differs a little, which the next most probable ones are not.
    /// - *rejection* and *block*: draws without replacement, each to be offered with the law.
    /// - A law that is a point mass, as under greedy, needs no draw and has no second place. Its siblings are the first
    ///   of `beside`; a tree of greedy guesses is then verified without any coin but 0 or 1.
    pub fn draw(
        &mut self,
        parent: Option<NodeId>,
        law: Law,
        count: usize,
        beside: &[Token],
        chance: &mut dyn Chance,
        draws: &mut Draws,
    ) {
        let position = self.position() + parent.map_or(0, |parent| self.tree.depth(parent)) as u64;
        let Draws { tokens, proposal, drawn } = draws;
        tokens.clear();
        *proposal = Proposal::Point;
        if law.is_point() {
            let first = law.tokens()[0];
            let others = beside.iter().filter(|token| **token != first).take(count.saturating_sub(1));
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

    /// Whether a branch may go on behind a guess of this acceptance, the product of all acceptances down to it being
    /// `gain`: what request and budget say.
    pub fn is_confident(&self, acceptance: f32, gain: f32) -> bool {
        let token_min = self.settings.p_min.unwrap_or(0.0).max(self.limits.token_min);
        acceptance >= token_min && gain >= self.limits.path_min
    }

    /// Whether a branch should go on behind this token, the last of `branch`: it is sure enough and the next step is
    /// worth its time, or it is shorter than drafts are to be at least; and the text does not end there.
    pub fn goes_on(&self, token: Token, (acceptance, gain): (f32, f32), branch: Branch) -> bool {
        let pays = || self.outlook.is_none_or(|outlook| outlook.pays(self.source, branch));
        let is_short = branch.depth < self.settings.n_min.unwrap_or(0);
        (is_short || self.is_confident(acceptance, gain) && pays()) && !self.sampling.end_tokens.contains(&token)
    }

    /// A guess that is accepted more rarely than this, by a drafter's own estimate, is not proposed: what the request
    /// says; or else the drafter's `own` bound, which stands in for costs where these are not weighed.
    pub fn gain_min(&self, own: f32) -> f32 {
        let weighed = |outlook: Outlook<'_>| own.min(GAIN_MIN_WEIGHED).max((ROW_PART * outlook.row_min) as f32);
        self.settings.gain_min.unwrap_or(self.outlook.map_or(own, weighed))
    }

    /// Nodes that still fit.
    pub fn room(&self) -> usize {
        self.limits.nodes_max.saturating_sub(self.tree.len())
    }

    /// Whether another node fits.
    pub fn has_room(&self) -> bool {
        self.room() > 0
    }

    /// Whether this token can be proposed: another node fits, or somebody has proposed it already.
    pub fn has_room_for(&self, parent: Option<NodeId>, token: Token) -> bool {
        self.has_room() || self.tree.child(parent, token).is_some()
    }
}
