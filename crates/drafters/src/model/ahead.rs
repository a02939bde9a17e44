//! The inner drafter of a draft model: rows of the tokens that it proposes are run ahead, in passes that are due
//! anyway.
//!
//! It is asked for a tree whenever the draft model has a pass to make: after the pending token, and later after the
//! best leaf that is not computed, if its last proposal was wrong or ended. It proposes what the draft model will draw,
//! with the draft model's noise if that is known. Under *exact* that is the target's noise at each position, so an
//! inner draft model races with the same noise, and agrees often. Under the other promises the draft's own draws are at
//! addresses that only the draft model uses, so the inner drafter is asked for the most probable tokens. An inner
//! drafter that draws nevertheless is given another seed, so none of its draws shares an address with the draft or the
//! verification.
//!
//! Its proposals are only rows to be computed, so no law depends on them. Proposals that the draft cannot reach (deeper
//! than it may grow) are not run. Whether an inner drafter pays is not measured here: it is always asked.

use crate::Scorer;
use foretoken_speculation::{Ask, DraftSettings, Drafter, Probes};
use foretoken_speculation::{Chance, DraftTree, Promise, Sampling, Token};

use super::ModelDrafter;
use super::grow::Growth;
use foretoken_speculation::budget::Limits;

/// An inner drafter, the name of both drafters together, and reused memory.
pub(super) struct Inner {
    pub drafter: Box<dyn Drafter>,
    pub name: String,
    /// By draft: the tokens that it is asked to continue.
    texts: Vec<Vec<Token>>,
}

/// Bits that are flipped in the seed of a drafter that must not race with the target, so that its seed is another one.
pub(crate) const SEED_FLIP: u64 = 0x6a09_e667_f3bc_c909;

/// Maximum number of tokens of the inner drafter that are run ahead, per sequence and pass of the draft model.
const AHEAD_MAX: usize = 7;

impl Inner {
    pub(super) fn new(drafter: Box<dyn Drafter>) -> Inner {
        let name = format!("draft:{}", drafter.name());
        Inner { drafter, name, texts: Vec::new() }
    }
}

impl<S: Scorer> ModelDrafter<S> {
    /// Asks the inner drafter what to run ahead, and adds it to the rows of the next pass.
    pub(super) fn look_ahead(&mut self, asks: &[Ask<'_>], growths: &[Growth], chance: &mut dyn Chance) {
        let Some(inner) = self.inner.as_mut() else { return };
        inner.texts.resize_with(inner.texts.len().max(growths.len()), Vec::new);
        // For each ask: its growth, the row to continue, and the depth of the last row that the draft can use.
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
                // The constraint's state is before the drafted tokens: forbidden proposals are dropped below.
                constraint: None,
                settings: DraftSettings::default(),
                promise: Promise::Exact,
                seed: *seed,
                outlook: None,
                limits: Limits::nodes(AHEAD_MAX),
                tree,
                probes,
                source: 0,
                ..asks[growth.ask]
            })
            .collect();
        inner.drafter.draft(&mut inner_asks, chance);
        for (((growth, leaf_row, depth_max), (tree, _)), text) in wanted.into_iter().zip(&trees).zip(&inner.texts) {
            let ask = &asks[growth.ask];
            let is_allowed = |node| {
                let path = || [&text[ask.tokens.len()..], &tree.path(node)].concat();
                ask.constraint.is_none_or(|constraint| constraint.allows(&path()))
            };
            let cached = self.caches.get_mut(&asks[growth.ask].sequence).expect("opened, or catching up had failed");
            let mut rows: Vec<Option<u32>> = Vec::with_capacity(tree.len());
            for node in tree.nodes() {
                let parent = tree.parent(node).map_or(leaf_row, |parent| rows[parent.index()]);
                let fits = tree.depth(node) <= depth_max && is_allowed(node);
                rows.push(fits.then(|| cached.row_of(parent, tree.token(node))));
            }
        }
    }
}
