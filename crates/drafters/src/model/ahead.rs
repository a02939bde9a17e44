//! The drafter of the draft model: what it guesses is run ahead, in passes that are due anyway.
//!
//! It is asked as the draft model is asked, for a tree, whenever the draft model has a pass to make: after the pending
//! token, and later after the best leaf that is not computed, which is where it went wrong or came to its end. It is
//! asked under a promise of its own: what the draft model will say, and with which noise. Under *exact* that is the
//! target's noise at each position, so an inner draft model races with the same, and agrees often. Under the other
//! promises the draft's own draws are at addresses that only it knows; the inner drafter then guesses its likeliest
//! tokens. One that draws all the same is given another seed, so none of its questions is one that the draft or the
//! verification asks.
//!
//! Its guesses are rows to be computed and nothing more, so no law can suffer. Guesses that the draft cannot reach
//! (deeper than it may grow) are not run. Left out: whether asking pays, which is for whoever chose the inner drafter.

use crate::Scorer;
use foretoken_speculation::{Ask, DraftSettings, Drafter, Probes};
use foretoken_speculation::{Chance, DraftTree, Promise, Sampling, Token};

use super::ModelDrafter;
use super::grow::Growth;
use foretoken_speculation::budget::Limits;

/// An inner drafter, the name of the whole, and memory that is used again.
pub(super) struct Inner {
    pub drafter: Box<dyn Drafter>,
    pub name: String,
    /// By growth: the text that it is asked to continue.
    texts: Vec<Vec<Token>>,
}

/// Flipped in the seed of a drafter that shall not race with the target: any bits but none, so that the seed is another
/// one whatever it was.
pub(crate) const SEED_FLIP: u64 = 0x6a09_e667_f3bc_c909;

impl Inner {
    pub(super) fn new(drafter: Box<dyn Drafter>) -> Inner {
        let name = format!("draft:{}", drafter.name());
        Inner { drafter, name, texts: Vec::new() }
    }
}

impl<S: Scorer> ModelDrafter<S> {
    /// Asks the inner drafter what to run ahead, and adds it to the rows of the next pass.
    pub(super) fn look_ahead(&mut self, asks: &[Ask<'_>], growths: &[Growth], chance: &mut dyn Chance) {
        let Some(inner) = self.inner.as_mut().filter(|_| self.ahead_max > 0) else { return };
        inner.texts.resize_with(inner.texts.len().max(growths.len()), Vec::new);
        // For each the growth, the row to guess behind, and the depth of the last row that the draft can use.
        let mut wanted: Vec<(&Growth, Option<u32>, usize)> = Vec::new();
        let mut samplings: Vec<(Sampling, u64)> = Vec::new();
        for growth in growths {
            let (ask, leaf) = (&asks[growth.ask], growth.missing().expect("a pass is due"));
            let depth = (self.depth_max - leaf.depth).min(ask.room()).saturating_sub(1);
            let depth = depth.min(self.scorer.context_max() - ask.tokens.len() - leaf.depth);
            if depth == 0 {
                continue;
            }
            let text = &mut inner.texts[wanted.len()];
            text.clear();
            text.extend_from_slice(ask.tokens);
            text.extend(leaf.node.iter().flat_map(|node| ask.tree.path(*node)));
            wanted.push((growth, leaf.row, depth));
            let sampling = ask.settings.sampling(ask.sampling);
            samplings.push(match ask.promise {
                Promise::Exact => (sampling, ask.seed),
                _ => (Sampling { temperature: 0.0, ..ask.sampling.clone() }, ask.seed ^ SEED_FLIP),
            });
        }
        let mut trees = vec![(DraftTree::new(), Probes::default()); wanted.len()];
        let each = wanted.iter().zip(&samplings).zip(&inner.texts).zip(&mut trees);
        let mut inner_asks: Vec<Ask<'_>> = each
            .map(|((((growth, ..), (sampling, seed)), text), (tree, probes))| Ask {
                tokens: text,
                sampling,
                // It stands at the text, and these tokens lie beyond: what may not be written is left out behind.
                constraint: None,
                settings: DraftSettings::default(),
                promise: Promise::Exact,
                seed: *seed,
                outlook: None,
                limits: Limits::nodes(self.ahead_max),
                tree,
                probes,
                source: 0,
                ..asks[growth.ask]
            })
            .collect();
        inner.drafter.draft(&mut inner_asks, chance);
        for (((growth, behind, depth_max), (tree, _)), text) in wanted.into_iter().zip(&trees).zip(&inner.texts) {
            let ask = &asks[growth.ask];
            let is_allowed = |node| {
                let path = || [&text[ask.tokens.len()..], &tree.path(node)].concat();
                ask.constraint.is_none_or(|constraint| constraint.allows(&path()))
            };
            let cached = self.caches.get_mut(&asks[growth.ask].sequence).expect("opened, or catching up had failed");
            let mut rows: Vec<Option<u32>> = Vec::with_capacity(tree.len());
            for node in tree.nodes() {
                let parent = tree.parent(node).map_or(behind, |parent| rows[parent.index()]);
                let fits = tree.depth(node) <= depth_max && is_allowed(node);
                rows.push(fits.then(|| cached.enter(parent, tree.token(node))));
            }
        }
    }
}
