//! The drafter of the draft model: what it guesses is run ahead, in the pass that the draft begins with.
//!
//! It is asked as the draft model is asked, for a tree after the pending token, under a promise of its own: what the
//! draft model will say, and with which noise. Under *exact* that is the target's noise at each position, so an inner
//! draft model races with the same, and agrees often. Under the other promises the draft's own draws are at addresses
//! that only it knows; the inner drafter then guesses its likeliest tokens, and no address is asked twice.
//!
//! Its guesses are rows to be computed and nothing more, so no law can suffer. Guesses that the draft cannot reach
//! (deeper than it may grow) are not run. Left out: asking again where the inner drafter went wrong.

use std::borrow::Cow;

use crate::budget::Limits;
use crate::draft::model::ModelDrafter;
use crate::draft::model::grow::Growth;
use crate::draft::{Ask, DraftSettings, Drafter, Probes};
use crate::{Chance, DraftTree, NodeId, Promise, Sampling, Scorer, Token};

/// An inner drafter and the name of the whole.
pub(super) struct Inner {
    pub drafter: Box<dyn Drafter>,
    name: String,
}

impl Inner {
    pub(super) fn new(drafter: Box<dyn Drafter>) -> Inner {
        let name = format!("draft:{}", drafter.name());
        Inner { drafter, name }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }
}

impl<S: Scorer> ModelDrafter<S> {
    /// Asks the inner drafter what to run ahead.
    pub(super) fn look_ahead(&mut self, asks: &[Ask<'_>], growths: &mut [Growth], chance: &mut dyn Chance) {
        let (n_max, context_max) = (self.n_max, self.scorer.context_max());
        let Some(inner) = self.inner.as_mut().filter(|_| self.ahead_max > 0) else { return };
        // A row at this depth is the last whose logits the draft can use.
        let depth_max = |ask: &Ask<'_>| {
            let depth = n_max.min(ask.limits.nodes_max - ask.tree.len()) - 1;
            depth.min(context_max - ask.tokens.len())
        };
        let mut asked: Vec<&mut Growth> =
            growths.iter_mut().filter(|growth| depth_max(&asks[growth.ask]) > 0).collect();
        let samplings: Vec<Cow<'_, Sampling>> =
            asked.iter().map(|growth| sampling(&asks[growth.ask], self.settings)).collect();
        let mut trees = vec![DraftTree::new(); asked.len()];
        let mut probes = vec![Probes::default(); asked.len()];
        let inner_asks = asked.iter().zip(&samplings).zip(trees.iter_mut().zip(&mut probes));
        let mut inner_asks: Vec<Ask<'_>> = inner_asks
            .map(|((growth, sampling), (tree, probes))| {
                let outer = &asks[growth.ask];
                Ask {
                    sequence: outer.sequence,
                    tokens: outer.tokens,
                    prompt_len: outer.prompt_len,
                    sampling,
                    settings: DraftSettings::default(),
                    promise: Promise::Exact,
                    seed: outer.seed,
                    limits: Limits::nodes(self.ahead_max),
                    tree,
                    probes,
                    source: 0,
                }
            })
            .collect();
        if !inner_asks.is_empty() {
            inner.drafter.draft(&mut inner_asks, chance);
        }
        for (growth, tree) in asked.iter_mut().zip(&trees) {
            growth.ahead = down_to(tree, depth_max(&asks[growth.ask]));
        }
    }
}

/// The settings under which the inner drafter is right if it says what the draft model says.
fn sampling<'a>(ask: &Ask<'a>, settings: DraftSettings) -> Cow<'a, Sampling> {
    let settings = ask.settings.or(settings);
    match (ask.promise, settings.has_filters()) {
        (Promise::Exact, false) => Cow::Borrowed(ask.sampling),
        (Promise::Exact, true) => Cow::Owned(settings.sampling(ask.sampling)),
        (Promise::Rejection | Promise::Block, _) => Cow::Owned(Sampling { temperature: 0.0, ..ask.sampling.clone() }),
    }
}

/// The nodes of a tree down to a depth, as rows: tokens, and for each the row of its parent.
fn down_to(tree: &DraftTree, depth_max: usize) -> (Vec<Token>, Vec<Option<u32>>) {
    let mut rows: Vec<Option<u32>> = Vec::with_capacity(tree.len());
    let (mut tokens, mut parents) = (Vec::new(), Vec::new());
    for node in tree.nodes() {
        let fits = tree.depth(node) <= depth_max;
        rows.push(fits.then_some(tokens.len() as u32));
        if fits {
            tokens.push(tree.token(node));
            parents.push(tree.parent(node).and_then(|parent: NodeId| rows[parent.index()]));
        }
    }
    (tokens, parents)
}
