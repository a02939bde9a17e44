//! One place of the draft: the tokens that are drawn there, and how they are offered.
//!
//! How many siblings there are is a function of the law alone: one for each token whose raw probability is above
//! `p_split`, and at least one. It never looks at what was drawn, so all of them are lawful under every promise.
//!
//! - *exact*: the first places of the race with the target's own noise, as point masses. The next places are the tokens
//!   that win where the target's law differs a little, which the next most probable ones are not.
//! - *rejection* and *block*: draws without replacement, each offered with the law.
//! - A law that is a point mass, as under greedy, has no second place. Its siblings are the next likeliest tokens after
//!   penalties and bans, before temperature and filters: what the target says if the two models' orders differ.

use crate::draft::{Ask, DraftSettings};
use crate::sampling::RawLaw;
use crate::{Address, Chance, Context, Evidence, NodeId, Promise, Proposal, Scratch, Token};

/// A token that was offered.
#[derive(Copy, Clone, Debug)]
pub(super) struct Child {
    pub node: NodeId,
    pub token: Token,
    /// Its raw probability, before sampling settings.
    pub confidence: f32,
    /// Its probability under the law that it was drawn from.
    pub q: f64,
}

impl Child {
    /// What the drafter says of it.
    pub(super) fn evidence(&self) -> Evidence {
        Evidence::of_law(self.confidence, self.q)
    }
}

/// Where a token is to be found.
#[derive(Copy, Clone, Debug)]
pub(super) struct Place<'a> {
    /// The node that is continued.
    pub parent: Option<NodeId>,
    /// The draft's logits after it.
    pub logits: &'a [f32],
    /// What request and drafter say.
    pub settings: DraftSettings,
}

/// Memory of [`Pen::write`], used again from call to call. Carries nothing from one to the next.
#[derive(Debug, Default)]
pub(super) struct Pen {
    scratch: Scratch,
    path: Vec<Token>,
    drawn: Vec<Token>,
    /// What the last call offered, in this order.
    pub children: Vec<Child>,
}

impl Pen {
    /// Draws tokens after a place as the promise wants it, and offers them all.
    pub(super) fn write(&mut self, ask: &mut Ask<'_>, place: Place<'_>, chance: &mut dyn Chance) {
        let Place { parent, logits, settings } = place;
        ask.tree.path_into(parent, &mut self.path);
        let context = Context { tokens: ask.tokens, prompt_len: ask.prompt_len, path: &self.path };
        let law = match settings.has_filters() {
            false => ask.sampling.law_with(logits, &context, &mut self.scratch),
            true => settings.sampling(ask.sampling).law_with(logits, &context, &mut self.scratch),
        };
        let (raw, room) = (RawLaw::new(logits), ask.limits.nodes_max - ask.tree.len());
        let count = match settings.p_split.unwrap_or(1.0) {
            p_split if p_split < 1.0 && room > 1 => raw.count_above(p_split).clamp(1, room),
            _ => 1,
        };
        let position = ask.position() + self.path.len() as u64;
        self.children.clear();
        let mut offer = |ask: &mut Ask<'_>, token, proposal, q| {
            let confidence = raw.log_probability(token).exp();
            let node = ask.tree.suggest(parent, token, proposal, ask.source, Evidence::of_law(confidence, q));
            self.children.push(Child { node, token, confidence, q });
        };
        let drawn = &mut self.drawn;
        // A point mass is no draw, and saying so lets a tree of greedy guesses be verified without any coin but 0 or 1.
        if law.is_point() {
            drawn.clear();
            drawn.push(law.tokens()[0]);
            if count > 1 {
                self.scratch.likeliest(count, drawn);
                bring_first(drawn, law.tokens()[0], count);
            }
            drawn.iter().for_each(|&token| offer(ask, token, Proposal::Point, law.probability(token)));
        } else if ask.promise == Promise::Exact {
            chance.draw(&law, count, Address::token(ask.seed, position), drawn);
            drawn.iter().for_each(|&token| offer(ask, token, Proposal::Point, law.probability(token)));
        } else {
            let id = ask.tree.add_law(law);
            let address = Address::draft(ask.pass(), position, id);
            chance.draw(ask.tree.law(id), count, address, drawn);
            for &token in drawn.iter() {
                let q = ask.tree.law(id).probability(token);
                offer(ask, token, Proposal::Drawn(id), q);
            }
            return;
        }
        ask.tree.keep_law(parent, law, ask.source);
    }
}

/// Puts `token` at the head of at most `count` tokens; the others keep their order.
fn bring_first(tokens: &mut Vec<Token>, token: Token, count: usize) {
    tokens.retain(|&other| other != token);
    tokens.insert(0, token);
    tokens.truncate(count);
}
