//! N-gram tables: what followed these tokens most often, in a corpus and in the text itself.
//!
//! The models of negligible cost of Leviathan et al. 2023 (sections 3.6 and 4.2: with a bigram table T5-XXL accepts one
//! token in five). The draft's law q is the relative frequency of what followed the longest last tokens that are known,
//! up to `order` - 1 of them, put through the draft's settings: temperature T makes it proportional to count^(1 / T). It
//! is a law over the 16 most frequent followers only, which any q may be, and so a draft never costs the vocabulary.
//! Greedy takes the most frequent, of equals the lowest id. Counts of the corpus (everybody's and the tenant's, learned
//! by [`Drafter::warm_up`]) and of the running text are added up; the text's are forgotten with its sequence.
//!
//! A table of order 1 is the unigram model of the paper: it proposes the most frequent tokens of all, whatever came
//! before. With a longer order these are the last resort, where not even the last token is known or nothing may follow
//! it, and are proposed only if the first of them is frequent enough (`unigram_min`). In recorded answers of a 7 B model
//! the most frequent token is right 3 to 6 times in a hundred, and no oftener where the last token is new
//! (docs/drafters.md). A row costs more than that, so a longer table backs off to single tokens only where one makes up a
//! tenth of all.
//!
//! A draft is a chain, or a tree grown best first: always where the product of the confidences is greatest. A confidence
//! is (count - 1/2) / occurrences of the context: what was seen once is as likely as not to be seen again.
//!
//! A table takes 26 to 43 bytes for each n-gram that is different: for 4-grams of 10 million tokens of an encyclopedia 47
//! bytes a token (`examples/drafting_ngram.rs`).
//!
//! Left out: smoothing between orders, and penalties (banned tokens are respected).

mod table;

use std::collections::BTreeMap;

use crate::choose::Branch;
use crate::draft::frontier::Frontier;
use crate::draft::tenants::{TENANTS_MAX, Tenants};
use crate::draft::{Ask, DraftSettings, Drafter, Draws, Opening};
use crate::{Chance, Context, Evidence, Law, NodeId, Promise, Proposal, Sampling, Scratch, SequenceId, Tenant, Token};
use table::{State, Table};

/// What an [`NgramDrafter`] counts.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum NgramSource {
    /// Texts from before and elsewhere ([`Drafter::warm_up`]).
    Corpus,
    /// The running text, prompt included.
    Text,
    /// Both.
    #[default]
    Both,
}

/// A [`Drafter`] that looks up what followed most often.
#[derive(Debug)]
pub struct NgramDrafter {
    /// Draft length: most tokens of a branch.
    pub depth_max: usize,
    /// Most tokens proposed under one node; 1 is a chain. Besides the first, only as many as there are further followers of
    /// a confidence above `p_split` ([`NgramDrafter::P_SPLIT`] if nobody sets it).
    pub branches_max: usize,
    /// Without a known context the most frequent tokens are proposed if the first has at least this share, 0 to 1. At first
    /// 0.1 ([`NgramDrafter::UNIGRAM_MIN`]), and 0 if the order is 1: who asks for nothing but single tokens wants them.
    pub unigram_min: f32,
    /// What requests leave open.
    pub settings: DraftSettings,
    /// Tokens that the tables of all tenants together have learned at most; then whole tenants are forgotten.
    pub capacity_tokens: usize,
    order: usize,
    source: NgramSource,
    corpus: Tenants<Table>,
    texts: BTreeMap<SequenceId, (Tenant, Option<Table>)>,
    frontier: Frontier<Guess>,
    work: Work,
}

/// Memory that is used again from node to node.
#[derive(Debug, Default)]
struct Work {
    /// Followers of one context: token, count.
    followers: Vec<(Token, u32)>,
    logits: Vec<f32>,
    scratch: Scratch,
    draws: Draws,
}

/// A guess that is to be offered, or was offered because it was drawn, and may be gone on from.
#[derive(Debug)]
struct Guess {
    parent: Option<NodeId>,
    token: Token,
    depth: usize,
    confidence: f32,
    /// Product of the confidences down to it.
    gain: f32,
    q: f64,
    /// Its node, if it was drawn and therefore offered already.
    node: Option<NodeId>,
    /// Contexts in each table before it.
    states: [State; TABLES],
}

/// The tenant's, everybody's, the text's.
const TABLES: usize = 3;
type Tables<'t> = [Option<&'t Table>; TABLES];

impl Default for NgramDrafter {
    /// 4-grams of corpus and text, chains of up to 5 tokens.
    fn default() -> NgramDrafter {
        NgramDrafter::new(4, NgramSource::Both)
    }
}

impl NgramDrafter {
    /// How probable a follower besides the first must be to be proposed too, as in llama.cpp.
    pub const P_SPLIT: f32 = 0.1;
    /// How frequent a token must be to be proposed where no context is known, by tables of contexts: about what a row
    /// costs, as a part of a pass.
    pub const UNIGRAM_MIN: f32 = 0.1;

    /// A drafter that counts n-grams of 1 to `order` tokens: 1 is a unigram table, 2 a bigram table.
    ///
    /// # Panics
    ///
    /// Panics if `order` is not 1 to 8.
    pub fn new(order: usize, source: NgramSource) -> NgramDrafter {
        NgramDrafter {
            depth_max: 5,
            branches_max: 1,
            unigram_min: if order == 1 { 0.0 } else { NgramDrafter::UNIGRAM_MIN },
            settings: DraftSettings::default(),
            capacity_tokens: 4_000_000,
            order,
            source,
            corpus: Tenants::new(TENANTS_MAX, Table::new(order)),
            texts: BTreeMap::new(),
            frontier: Frontier::default(),
            work: Work::default(),
        }
    }

    /// Bytes of memory of all tables, those reserved included.
    pub fn bytes(&self) -> usize {
        let texts = self.texts.values().filter_map(|(_, table)| table.as_ref());
        self.corpus.all().chain(texts).map(Table::bytes).sum()
    }

    /// Learns what the sequence has become.
    fn catch_up(&mut self, sequence: SequenceId, tokens: &[Token]) {
        let text = self.texts.get_mut(&sequence);
        let (_, table) = text.unwrap_or_else(|| panic!("{sequence:?} was not opened"));
        table.iter_mut().for_each(|table| table.learn(tokens, table.len().min(tokens.len())));
    }

    /// Fills one tree, best guesses first.
    fn fill(&mut self, ask: &mut Ask<'_>, chance: &mut dyn Chance) {
        let (tenant, text) = &self.texts[&ask.sequence];
        let mut corpus = self.corpus.seen_by(*tenant);
        let tables: Tables<'_> = [corpus.next(), corpus.next(), text.as_ref()];
        ask.settings = ask.settings.or(self.settings);
        if ask.promise == Promise::Exact {
            // Where draws bind, each has its row whatever it is worth; elsewhere guesses cost next to nothing.
            ask.outlook = None;
        }
        let rules = Rules {
            sampling: plain_settings(&ask.settings.sampling(ask.sampling)),
            unigram_min: self.unigram_min,
            branches_max: self.branches_max.max(1),
            tables,
        };
        let states = tables.map(|table| table.map_or(State::START, |table| table.state(ask.tokens)));
        self.frontier.clear();
        if self.depth_max > 0 && ask.has_room() {
            rules.propose(ask, None, states, &mut self.frontier, &mut self.work, chance);
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
                let mut states = best.states;
                for (state, table) in states.iter_mut().zip(tables) {
                    *state = table.map_or(State::START, |table| table.step(state, best.token));
                }
                rules.propose(ask, Some(&best), states, &mut self.frontier, &mut self.work, chance);
            }
        }
    }
}

/// The settings that mean something for a law made of counts.
fn plain_settings(sampling: &Sampling) -> Sampling {
    let Sampling { temperature, top_k, top_p, min_p, typical_p, .. } = *sampling;
    Sampling { temperature, top_k, top_p, min_p, typical_p, ..Sampling::default() }
}

impl Guess {
    fn offer(&self, ask: &mut Ask<'_>, proposal: Proposal) -> NodeId {
        ask.tree.suggest(self.parent, self.token, proposal, ask.source, Evidence::of_law(self.confidence, self.q))
    }
}

/// How one tree is filled.
struct Rules<'t> {
    sampling: Sampling,
    unigram_min: f32,
    branches_max: usize,
    tables: Tables<'t>,
}

impl Rules<'_> {
    /// Finds what may follow a guess (`None`: the root), draws from it as the promise wants it, and adds the guesses to
    /// the frontier.
    fn propose(
        &self,
        ask: &mut Ask<'_>,
        before: Option<&Guess>,
        states: [State; TABLES],
        frontier: &mut Frontier<Guess>,
        work: &mut Work,
        chance: &mut dyn Chance,
    ) {
        let Some((total, law)) = self.followers(ask, &states, work) else { return };
        let (parent, depth, gain) = before.map_or((None, 0, 1.0), |before| (before.node, before.depth, before.gain));
        let confidence = |count: u32| ((count as f32 - 0.5) / total).min(1.0);
        // By the counts and not by what is drawn: how much is drawn may not depend on it.
        let p_split = ask.settings.p_split.unwrap_or(NgramDrafter::P_SPLIT);
        let further = work.followers.iter().skip(1).filter(|&&(_, count)| confidence(count) > p_split).count();
        let width = (1 + further).min(self.branches_max).min(ask.room());
        let beside: Vec<Token> = work.followers.iter().map(|follower| follower.0).collect();
        ask.draw(parent, law, width, &beside, chance, &mut work.draws);
        for &(token, q) in &work.draws.tokens {
            let count = work.followers.iter().find(|follower| follower.0 == token).map_or(1, |follower| follower.1);
            let confidence = confidence(count);
            let gain = gain * confidence;
            let mut guess = Guess { parent, token, depth: depth + 1, confidence, gain, q, node: None, states };
            if work.draws.proposal != Proposal::Point {
                guess.node = Some(guess.offer(ask, work.draws.proposal));
            }
            frontier.push(gain, guess);
        }
    }

    /// The followers of the longest known context, the most frequent first, in `work.followers`; occurrences of the
    /// context, and the draft's law.
    fn followers(&self, ask: &Ask<'_>, states: &[State; TABLES], work: &mut Work) -> Option<(f32, Law)> {
        let tables = || self.tables.iter().zip(states).filter_map(|(table, state)| Some(((*table)?, state)));
        let order = tables().map(|(table, _)| table.order()).max()?;
        for len in (0..order).rev() {
            work.followers.clear();
            let mut total = 0.0;
            for (table, state) in tables().filter(|(_, state)| state.knows(len)) {
                total += table.total(state, len) as f32;
                for (token, count) in table.followers(state, len) {
                    match work.followers.iter_mut().find(|follower| follower.0 == token) {
                        Some(follower) => follower.1 = follower.1.saturating_add(count),
                        None => work.followers.push((token, count)),
                    }
                }
            }
            work.followers.retain(|(token, _)| !ask.sampling.banned_tokens.contains(token));
            work.followers.sort_unstable_by_key(|&(token, count)| (std::cmp::Reverse(count), token));
            let Some(&(_, most)) = work.followers.first() else { continue };
            if len == 0 && (most as f32) < self.unigram_min * total {
                return None;
            }
            return Some((total, self.law(most, work)));
        }
        None
    }

    /// The law of the counts under the settings: a row of their logarithms, in order of the tokens, is sampled.
    fn law(&self, most: u32, work: &mut Work) -> Law {
        let mut tokens: Vec<(Token, u32)> = work.followers.clone();
        tokens.sort_unstable_by_key(|&(token, _)| token);
        work.logits.clear();
        work.logits.extend(tokens.iter().map(|&(_, count)| (f64::from(count) / f64::from(most)).ln() as f32));
        let law = self.sampling.law_with(&work.logits, &Context::EMPTY, &mut work.scratch);
        Law::from_pairs(law.iter().map(|(i, q)| (tokens[i as usize].0, q)))
    }
}

impl Drafter for NgramDrafter {
    fn name(&self) -> &str {
        "ngram"
    }

    fn warm_up(&mut self, tokens: &[Token], _prompt_len: usize, tenant: Option<Tenant>) {
        if self.source == NgramSource::Text {
            return;
        }
        let order = self.order;
        let table = self.corpus.memory_mut(tenant, || Table::new(order));
        if let Some(tenant) = tenant {
            // Tables cannot forget parts: one that is full begins anew.
            if table.len() + tokens.len() > self.capacity_tokens {
                *table = Table::new(order);
            }
            let tokens = &tokens[tokens.len().saturating_sub(self.capacity_tokens)..];
            table.learn(tokens, 0);
            self.corpus.shrink(tenant, self.capacity_tokens, Table::len);
        } else {
            table.learn(tokens, 0);
        }
    }

    fn open(&mut self, opening: &Opening<'_>) {
        let Opening { sequence, prompt, tenant, .. } = *opening;
        let text = (self.source != NgramSource::Corpus).then(|| Table::new(self.order));
        let before = self.texts.insert(sequence, (tenant, text));
        assert!(before.is_none(), "{sequence:?} was opened twice");
        self.corpus.touch(tenant);
        self.catch_up(sequence, prompt);
    }

    fn draft(&mut self, asks: &mut [Ask<'_>], chance: &mut dyn Chance) {
        for ask in asks {
            self.catch_up(ask.sequence, ask.written());
            self.fill(ask, chance);
        }
    }

    fn close(&mut self, sequence: SequenceId) {
        self.texts.remove(&sequence);
    }
}

#[cfg(test)]
mod tests;
