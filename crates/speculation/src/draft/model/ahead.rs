//! The drafter of the draft model: what it guesses is run ahead, in passes that are due anyway.
//!
//! It is asked as the draft model is asked, for a tree, whenever the draft model has a pass to make: after the pending
//! token, and later after the best leaf that is not computed, which is where it went wrong or came to its end. It is
//! asked under a promise of its own: what the draft model will say, and with which noise. Under *exact* that is the
//! target's noise at each position, so an inner draft model races with the same, and agrees often. Under the other
//! promises the draft's own draws are at addresses that only it knows; the inner drafter then guesses its likeliest
//! tokens. One that draws all the same (it has a temperature of its own, or guesses at random) is given another seed,
//! so none of its questions is one that the draft or the verification asks.
//!
//! Its guesses are rows to be computed and nothing more, so no law can suffer. Guesses that the draft cannot reach
//! (deeper than it may grow) are not run. Left out: whether asking pays, which is for whoever chose the inner drafter.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::budget::Limits;
use crate::draft::model::ModelDrafter;
use crate::draft::model::cache::Cached;
use crate::draft::model::grow::Growth;
use crate::draft::{Ask, DraftSettings, Drafter, Probes};
use crate::{Chance, DraftTree, Promise, Sampling, Scorer, SequenceId, Tenant, Token};

/// An inner drafter and what it was told.
pub(super) struct Inner {
    pub drafter: Box<dyn Drafter>,
    /// The name of the whole.
    name: String,
    texts: BTreeMap<SequenceId, Text>,
}

/// What an inner drafter takes a sequence to be.
struct Text {
    /// Its tokens, and during a draft also those on the way to a leaf.
    tokens: Vec<Token>,
    /// So many of them are the sequence's.
    own: usize,
}

/// Flipped in the seed of an inner drafter that shall not race with the target: any bits but none, so that the seed is
/// another one whatever it was.
const SEED_FLIP: u64 = 0x6a09_e667_f3bc_c909;

impl Inner {
    pub(super) fn new(drafter: Box<dyn Drafter>) -> Inner {
        let name = format!("draft:{}", drafter.name());
        Inner { drafter, name, texts: BTreeMap::new() }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn open(&mut self, sequence: SequenceId, prompt: &[Token], tenant: Tenant) {
        self.texts.insert(sequence, Text { tokens: prompt.to_vec(), own: prompt.len() });
        self.drafter.open(sequence, prompt, tenant);
    }

    pub(super) fn close(&mut self, sequence: SequenceId) {
        self.texts.remove(&sequence);
        self.drafter.close(sequence);
    }

    /// Lets it forget what it knows beyond the first `len` tokens.
    pub(super) fn keep(&mut self, sequence: SequenceId, len: usize) {
        self.forget_guesses(sequence);
        self.cut(sequence, len);
    }

    /// Lets it forget the tokens on the way to a leaf, which are left over if a draft did not come to its end.
    pub(super) fn forget_guesses(&mut self, sequence: SequenceId) {
        let text = self.texts.get(&sequence).unwrap_or_else(|| panic!("{sequence:?} was not opened"));
        if text.own < text.tokens.len() {
            self.cut(sequence, text.own);
        }
    }

    fn cut(&mut self, sequence: SequenceId, len: usize) {
        let text = self.texts.get_mut(&sequence).unwrap_or_else(|| panic!("{sequence:?} was not opened"));
        text.tokens.truncate(len);
        text.own = text.own.min(len);
        self.drafter.keep(sequence, len);
    }

    /// Brings a text up to date: the sequence's tokens, whose known ones are taken to be the same, then those to a leaf.
    fn tell(&mut self, sequence: SequenceId, tokens: &[Token], path: &[Token]) {
        let text = self.texts.get_mut(&sequence).unwrap_or_else(|| panic!("{sequence:?} was not opened"));
        text.tokens.extend(&tokens[text.tokens.len().min(tokens.len())..]);
        text.own = tokens.len();
        let same = text.tokens[tokens.len()..].iter().zip(path).take_while(|(a, b)| a == b).count();
        if tokens.len() + same < text.tokens.len() {
            self.cut(sequence, tokens.len() + same);
        }
        let text = self.texts.get_mut(&sequence).expect("cut and not closed");
        text.tokens.extend(&path[same..]);
    }
}

impl<S: Scorer> ModelDrafter<S> {
    /// Asks the inner drafter what to run ahead, and adds it to the rows of the next pass.
    pub(super) fn look_ahead(&mut self, asks: &[Ask<'_>], growths: &mut [Growth], chance: &mut dyn Chance) {
        let (n_max, context_max) = (self.n_max, self.scorer.context_max());
        let Some(inner) = self.inner.as_mut().filter(|_| self.ahead_max > 0) else { return };
        // For each the place of its ask, the row to guess behind, and the depth of the last row that the draft can use.
        let mut places: Vec<(usize, Option<u32>, usize)> = Vec::new();
        for growth in growths.iter() {
            let (ask, at) = (&asks[growth.ask], growth.missing().expect("a pass is due"));
            let depth = (n_max - at.leaf.depth).min(ask.limits.nodes_max - ask.tree.len()) - 1;
            let depth = depth.min(context_max - ask.tokens.len() - at.leaf.depth);
            if depth > 0 {
                let path = at.leaf.node.map_or(Vec::new(), |node| ask.tree.path(node));
                inner.tell(ask.sequence, ask.tokens, &path);
                places.push((growth.ask, at.row, depth));
            }
        }
        if places.is_empty() {
            return;
        }
        let trees = ask_inner(inner, asks, &places, self.settings, self.ahead_max, chance);
        for ((ask, row, depth_max), tree) in places.into_iter().zip(trees) {
            let cached = self.caches.get_mut(&asks[ask].sequence).expect("opened, or catching up had failed");
            add_rows(cached, row, &tree, depth_max);
        }
    }
}

/// What the inner drafter guesses at each place, of all sequences together.
fn ask_inner(
    inner: &mut Inner,
    asks: &[Ask<'_>],
    places: &[(usize, Option<u32>, usize)],
    settings: DraftSettings,
    nodes_max: usize,
    chance: &mut dyn Chance,
) -> Vec<DraftTree> {
    let samplings: Vec<Cow<'_, Sampling>> = places.iter().map(|place| sampling(&asks[place.0], settings)).collect();
    let mut trees = vec![DraftTree::new(); places.len()];
    let mut probes = vec![Probes::default(); places.len()];
    let Inner { drafter, texts, .. } = inner;
    let mut inner_asks: Vec<Ask<'_>> = places
        .iter()
        .zip(&samplings)
        .zip(trees.iter_mut().zip(&mut probes))
        .map(|(((ask, ..), sampling), (tree, probes))| Ask {
            sequence: asks[*ask].sequence,
            tokens: &texts[&asks[*ask].sequence].tokens,
            prompt_len: asks[*ask].prompt_len,
            sampling,
            settings: DraftSettings::default(),
            promise: Promise::Exact,
            seed: seed(&asks[*ask]),
            outlook: None,
            request: asks[*ask].request,
            limits: Limits::nodes(nodes_max),
            tree,
            probes,
            source: 0,
        })
        .collect();
    drafter.draft(&mut inner_asks, chance);
    trees
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

/// The seed under which the inner drafter may ask: the request's only where drafter and target are to race alike.
fn seed(ask: &Ask<'_>) -> u64 {
    match ask.promise {
        Promise::Exact => ask.seed,
        Promise::Rejection | Promise::Block => ask.seed ^ SEED_FLIP,
    }
}

/// Adds the nodes of a tree, down to a depth, behind a row.
fn add_rows(cached: &mut Cached, behind: Option<u32>, tree: &DraftTree, depth_max: usize) {
    let mut rows: Vec<Option<u32>> = Vec::with_capacity(tree.len());
    for node in tree.nodes() {
        let parent = tree.parent(node).map_or(behind, |parent| rows[parent.index()]);
        let fits = tree.depth(node) <= depth_max;
        rows.push(fits.then(|| cached.push(parent, tree.token(node))));
    }
}
