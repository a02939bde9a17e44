//! N-gram models: they propose what followed the last tokens most often, in a corpus and in the sequence itself.
//!
//! These are the approximation models of negligible cost of Leviathan et al. 2023 (sections 3.6 and 4.2: with a bigram
//! table T5-XXL accepts one token in five). The draft's distribution q is the relative frequency of what followed the
//! longest known run of last tokens, up to `order` - 1 of them, with the draft's settings applied: temperature T makes
//! it proportional to count^(1 / T). It covers only the 16 most frequent followers, which is allowed since every
//! promise holds with any q, so the time of a draft does not depend on the vocabulary. Greedy takes the most frequent
//! follower, of ties the lowest token.
//!
//! There is no table of counts. The index of [`super::history`] lists the occurrences of a context, the latest first;
//! the followers of its latest occurrences (up to [`OCCURRENCES_MAX`] in each text) are counted when they are asked
//! for. Counts of the corpus (public texts and the tenant's, learned by [`Drafter::warm_up`]) and of the running
//! sequence are added up; the latter are dropped with the sequence. What an encoder reads counts as the sequence does.
//!
//! An order of 1 is the unigram model of Leviathan et al.: it proposes the most frequent tokens, whatever came before.
//! Higher orders back off to these if not even the last token is known or no follower is allowed, and only if the first
//! of them is frequent enough (`unigram_min`). In recorded answers of a 7B model the most frequent token is right 3 to
//! 6 times in a hundred, and no more often if the last token is new (docs/drafters.md). A row costs more than that, so
//! higher orders back off to single tokens only if one makes up a tenth of all.
//!
//! A draft is a chain, or a tree grown best-first: always at the node where the product of the confidences is highest.
//! A confidence is (count - 1/2) / occurrences that were counted, so a follower seen once has a confidence of 1/2.
//!
//! Orders are not smoothed, and penalties are not applied; banned tokens are respected.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::distinct::Distinct;
use crate::frontier::Frontier;
use crate::history::{END, History};
use crate::tenants::{TENANTS_MAX, Tenants};
use crate::texts::Texts;
use foretoken_speculation::Branch;
use foretoken_speculation::{Ask, DraftSettings, Drafter, Draws, Opening};
use foretoken_speculation::{
    Chance, Context, Evidence, Law, NodeId, Promise, Proposal, Sampling, Scratch, SequenceId, Tenant, Token,
};

/// Maximum length of an n-gram.
const ORDER_MAX: usize = 8;
/// Maximum number of occurrences of a context that are counted in each text: the latest ones.
const OCCURRENCES_MAX: usize = 128;
/// Maximum number of counted occurrences of the context of no tokens, which occurs everywhere.
const UNIGRAMS_MAX: usize = 512;
/// Maximum number of followers of a context that a draft is drawn from.
const FOLLOWERS_MAX: usize = 16;
/// Maximum number of tokens that are kept of the texts of all tenants together; beyond that the oldest texts are
/// forgotten.
const CAPACITY_TOKENS: usize = 4_000_000;

/// The texts in which an [`NgramDrafter`] counts.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum NgramSource {
    /// Earlier texts ([`Drafter::warm_up`]).
    Corpus,
    /// The running sequence: prompt, output, and what an encoder reads.
    Text,
    /// Both.
    #[default]
    Both,
}

/// A [`Drafter`] that proposes what followed most often.
#[derive(Debug)]
pub struct NgramDrafter {
    /// Draft length: maximum number of tokens of a branch.
    pub depth_max: usize,
    /// Maximum number of tokens proposed under one node; 1 is a chain. Besides the first, only as many are proposed as
    /// there are further followers with a confidence above `p_split` (by default 0.1, as in llama.cpp).
    pub branches_max: usize,
    /// Without a known context the most frequent tokens are proposed if the first has at least this share, 0 to 1. The
    /// default is 0.1, about the cost of a row as a fraction of a pass, or 0 if the order is 1.
    pub unigram_min: f32,
    /// The values of settings that requests leave open.
    pub settings: DraftSettings,
    source: NgramSource,
    /// The lengths of contexts: 1 to the order less 1.
    lengths: Vec<usize>,
    corpus: Tenants<Texts>,
    running: BTreeMap<SequenceId, Running>,
    frontier: Frontier<Guess>,
    buffers: Buffers,
}

/// A running sequence.
#[derive(Debug)]
struct Running {
    tenant: Tenant,
    /// Prompt and output; `None` if they are not counted.
    text: Option<History>,
    /// What an encoder reads, if that is counted.
    source: Option<History>,
}

/// Memory that is reused from node to node.
#[derive(Debug, Default)]
struct Buffers {
    path: Vec<Token>,
    context: Vec<Token>,
    /// The followers of one context and their counts, the most frequent first.
    followers: Vec<(Token, u32)>,
    /// Number of occurrences that were counted.
    total: f32,
    /// The index in `followers` of each token.
    distinct: Distinct,
    logits: Vec<f32>,
    scratch: Scratch,
    draws: Draws,
}

/// A token that is to be offered, or was offered when it was drawn, and may then be continued.
#[derive(Debug)]
struct Guess {
    parent: Option<NodeId>,
    token: Token,
    depth: usize,
    confidence: f32,
    /// The product of the confidences on its path.
    gain: f32,
    q: f64,
    /// Its node, if it was drawn and therefore offered already.
    node: Option<NodeId>,
}

impl Default for NgramDrafter {
    /// A drafter with 4-grams of corpus and sequence, and chains of up to 5 tokens.
    fn default() -> NgramDrafter {
        NgramDrafter::new(4, NgramSource::Both)
    }
}

impl NgramDrafter {
    /// A drafter that counts n-grams of 1 to `order` tokens: 1 is a unigram model, 2 a bigram model.
    ///
    /// # Panics
    ///
    /// Panics if `order` is not 1 to 8.
    pub fn new(order: usize, source: NgramSource) -> NgramDrafter {
        assert!((1..=ORDER_MAX).contains(&order), "n-grams of up to {order} tokens");
        NgramDrafter {
            depth_max: 5,
            branches_max: 1,
            unigram_min: if order == 1 { 0.0 } else { 0.1 },
            settings: DraftSettings::default(),
            source,
            lengths: (1..order).collect(),
            corpus: Tenants::new(TENANTS_MAX, Texts::default()),
            running: BTreeMap::new(),
            frontier: Frontier::default(),
            buffers: Buffers::default(),
        }
    }

    /// Number of bytes of memory of all texts and their indexes, including reserved memory.
    pub fn bytes(&self) -> usize {
        let running = self.running.values().flat_map(|running| running.text.iter().chain(&running.source));
        self.corpus.all().map(Texts::bytes).chain(running.map(History::bytes)).sum()
    }

    /// Fills one tree, with the highest gains first.
    fn fill(&mut self, ask: &mut Ask<'_>, chance: &mut dyn Chance) {
        let running = self.running.get_mut(&ask.sequence);
        let Running { tenant, text, source } = running.unwrap_or_else(|| panic!("{:?} was not opened", ask.sequence));
        text.iter_mut().for_each(|text| text.extend_to(ask.written()));
        ask.settings = ask.settings.or(self.settings);
        if ask.promise == Promise::Exact {
            // Under *exact* offers can be dropped, so the draft need not be cut by cost; under the other promises every
            // draw has a row.
            ask.outlook = None;
        }
        let texts = text.iter().chain(&*source).chain(self.corpus.seen_by(*tenant).flat_map(Texts::newest_first));
        let model = Model {
            sampling: ask.settings.sampling(ask.sampling).filters_only(),
            unigram_min: self.unigram_min,
            branches_max: self.branches_max.max(1),
            context_max: self.lengths.len(),
            texts: texts.collect(),
        };
        self.frontier.clear();
        if self.depth_max > 0 && ask.has_room() {
            model.propose(ask, None, &mut self.frontier, &mut self.buffers, chance);
        }
        while let Some(mut best) = self.frontier.pop() {
            let Some(node) = best.node.or_else(|| ask.has_room().then(|| best.offer(ask, Proposal::Point))) else {
                break;
            };
            best.node = Some(node);
            let (nodes, room) = (ask.tree.len(), ask.room());
            let branch = Branch { gain: f64::from(best.gain), depth: best.depth, nodes, room };
            if best.depth < self.depth_max && room > 0 && ask.goes_on(best.token, (best.confidence, best.gain), branch)
            {
                model.propose(ask, Some(&best), &mut self.frontier, &mut self.buffers, chance);
            }
        }
    }
}

impl Guess {
    fn offer(&self, ask: &mut Ask<'_>, proposal: Proposal) -> NodeId {
        ask.tree.suggest(self.parent, self.token, proposal, ask.source, Evidence::of_law(self.confidence, self.q))
    }
}

/// The model of one draft: settings and texts.
struct Model<'t> {
    sampling: Sampling,
    unigram_min: f32,
    branches_max: usize,
    /// Number of tokens of the longest context.
    context_max: usize,
    texts: Vec<&'t History>,
}

impl Model<'_> {
    /// Finds what may follow a token (`None`: the root), draws from it as the promise requires, and adds the drawn
    /// tokens to the frontier.
    fn propose(
        &self,
        ask: &mut Ask<'_>,
        before: Option<&Guess>,
        frontier: &mut Frontier<Guess>,
        buffers: &mut Buffers,
        chance: &mut dyn Chance,
    ) {
        let (parent, depth, gain) = before.map_or((None, 0, 1.0), |before| (before.node, before.depth, before.gain));
        ask.tree.path_into(parent, &mut buffers.path);
        buffers.context.clear();
        buffers.context.extend(&ask.tokens[ask.tokens.len().saturating_sub(self.context_max)..]);
        buffers.context.extend(&buffers.path);
        // Without contexts every token has the same followers.
        let is_counted = self.context_max == 0 && before.is_some();
        if !is_counted && !self.find_followers(&ask.sampling.banned_tokens, buffers) {
            return;
        }
        let (law, total) = (self.law(buffers), buffers.total);
        let confidence = |count: u32| (count as f32 - 0.5) / total;
        // The number of draws depends on the counts, since it must not depend on what is drawn.
        let p_split = ask.settings.p_split.unwrap_or(0.1);
        let further = buffers.followers.iter().skip(1).filter(|&&(_, count)| confidence(count) > p_split).count();
        let width = (1 + further).min(self.branches_max).min(ask.room());
        let beside: Vec<Token> = buffers.followers.iter().map(|follower| follower.0).collect();
        ask.draw(parent, law, width, &beside, chance, &mut buffers.draws);
        for &(token, q) in &buffers.draws.tokens {
            let count = buffers.followers.iter().find(|follower| follower.0 == token).map_or(1, |follower| follower.1);
            let confidence = confidence(count);
            let gain = gain * confidence;
            let mut guess = Guess { parent, token, depth: depth + 1, confidence, gain, q, node: None };
            if buffers.draws.proposal != Proposal::Point {
                guess.node = Some(guess.offer(ask, buffers.draws.proposal));
            }
            frontier.push(gain, guess);
        }
    }

    /// Finds the followers of the longest end of `buffers.context` that has any; returns whether they may be proposed.
    fn find_followers(&self, banned: &[Token], buffers: &mut Buffers) -> bool {
        for len in (0..=self.context_max.min(buffers.context.len())).rev() {
            let context = &buffers.context[buffers.context.len() - len..];
            buffers.total = count(&self.texts, context, &mut buffers.distinct, &mut buffers.followers);
            buffers.followers.retain(|(token, _)| !banned.contains(token));
            let rank = |&(token, count): &(Token, u32)| (Reverse(count), token);
            if buffers.followers.len() > FOLLOWERS_MAX {
                buffers.followers.select_nth_unstable_by_key(FOLLOWERS_MAX, rank);
                buffers.followers.truncate(FOLLOWERS_MAX);
            }
            buffers.followers.sort_unstable_by_key(rank);
            if let Some(&(_, most)) = buffers.followers.first() {
                return len > 0 || most as f32 >= self.unigram_min * buffers.total;
            }
        }
        false
    }

    /// The distribution of the counts under the settings: a row of their logarithms, in order of the tokens, is
    /// sampled.
    fn law(&self, buffers: &mut Buffers) -> Law {
        let most = buffers.followers[0].1;
        let mut tokens: Vec<(Token, u32)> = buffers.followers.clone();
        tokens.sort_unstable_by_key(|&(token, _)| token);
        buffers.logits.clear();
        buffers.logits.extend(tokens.iter().map(|&(_, count)| (f64::from(count) / f64::from(most)).ln() as f32));
        let law = self.sampling.law_with(&buffers.logits, &Context::EMPTY, &mut buffers.scratch);
        Law::from_pairs(law.iter().map(|(i, q)| (tokens[i as usize].0, q)))
    }
}

/// Counts what followed the latest occurrences of a context in each text; returns the number of these occurrences.
fn count(texts: &[&History], context: &[Token], distinct: &mut Distinct, followers: &mut Vec<(Token, u32)>) -> f32 {
    let occurrences_max = if context.is_empty() { UNIGRAMS_MAX } else { OCCURRENCES_MAX };
    distinct.clear(texts.len() * occurrences_max);
    followers.clear();
    let mut total = 0;
    let mut add = |token: Token| {
        if token != END {
            total += 1;
            let number = distinct.number(token);
            match followers.get_mut(number) {
                Some((_, count)) => *count += 1,
                None => followers.push((token, 1)),
            }
        }
    };
    for text in texts {
        let tokens = text.tokens();
        if context.is_empty() {
            tokens.iter().rev().take(occurrences_max).for_each(|&token| add(token));
        } else {
            let ends = text.ends(context).take(occurrences_max);
            ends.filter_map(|end| tokens.get(end + 1)).for_each(|&token| add(token));
        }
    }
    total as f32
}

impl Drafter for NgramDrafter {
    fn name(&self) -> &str {
        "ngram"
    }

    fn warm_up(&mut self, tokens: &[Token], _prompt_len: usize, tenant: Option<Tenant>) {
        if self.source != NgramSource::Text {
            // Public texts were chosen by the operator of the program, and are kept whole.
            let capacity_tokens = tenant.map_or(usize::MAX, |_| CAPACITY_TOKENS);
            self.corpus.learn(tokens, tenant, capacity_tokens, &self.lengths);
        }
    }

    fn open(&mut self, opening: &Opening<'_>) {
        let counted = |tokens: &[Token]| {
            let mut history = History::new(self.lengths.iter().copied());
            history.extend_to(tokens);
            history
        };
        let is_counted = self.source != NgramSource::Corpus;
        let text = is_counted.then(|| counted(opening.prompt));
        let source = (is_counted && !opening.source.is_empty()).then(|| counted(opening.source));
        let before = self.running.insert(opening.sequence, Running { tenant: opening.tenant, text, source });
        assert!(before.is_none(), "{:?} was opened twice", opening.sequence);
        self.corpus.touch(opening.tenant);
    }

    fn draft(&mut self, asks: &mut [Ask<'_>], chance: &mut dyn Chance) {
        asks.iter_mut().for_each(|ask| self.fill(ask, chance));
    }

    fn close(&mut self, sequence: SequenceId) {
        self.running.remove(&sequence);
    }
}

#[cfg(test)]
mod tests;
