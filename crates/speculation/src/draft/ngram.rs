//! N-gram tables: what followed these tokens most often, in a corpus and in the text itself.
//!
//! The models of negligible cost of Leviathan et al. 2023 (sections 3.6 and 4.2: with a bigram table T5-XXL accepts one
//! token in five). The draft's law q is the relative frequency of what followed the longest last tokens that are known,
//! up to `order` - 1 of them, put through the draft's settings: temperature T makes it proportional to count^(1 / T). It
//! is a law over the 16 most frequent followers only, which any q may be, and so a draft never costs the vocabulary.
//! Greedy takes the most frequent, of equals the lowest id. Counts of the corpus (everybody's and the tenant's, learned by
//! [`Drafter::warm_up`]) and of the running text are added up; the text's are forgotten with its sequence.
//!
//! A table of order 1 is the unigram model of the paper: it proposes the most frequent tokens of all, whatever came before.
//! With a longer order these are the last resort, where not even the last token is known or nothing may follow it, and are
//! proposed only if the first of them is frequent enough (`unigram_min`). In recorded answers of a 7 B model the most
//! frequent token is right 3 to 6 times in a hundred, and no oftener where the last token is new (docs/drafters.md). A row
//! costs more than that, so a longer table backs off to single tokens only where one makes up a tenth of all.
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
use crate::draft::{Ask, DraftSettings, Drafter};
use crate::{Address, Chance, Context, Evidence, Law, NodeId, Promise, Proposal, Sampling, Scratch};
use crate::{SequenceId, Tenant, Token};
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
    /// Most tokens of a branch.
    pub n_max: usize,
    /// Most tokens proposed at one place; 1 is a chain. Besides the first, only as many as there are further followers of
    /// a confidence above `p_split` ([`NgramDrafter::P_SPLIT`] if nobody sets it).
    pub branches_max: usize,
    /// Without a known context the most frequent tokens are proposed if the first has at least this share, 0 to 1. At first
    /// 0.1 ([`NgramDrafter::UNIGRAM_MIN`]), and 0 if the order is 1: who asks for nothing but single tokens wants them.
    pub unigram_min: f32,
    /// What requests leave open.
    pub settings: DraftSettings,
    order: usize,
    source: NgramSource,
    shared: Table,
    tenants: BTreeMap<Tenant, Table>,
    texts: BTreeMap<SequenceId, (Tenant, Option<Table>)>,
    work: Work,
}

/// Memory that is used again from place to place.
#[derive(Debug, Default)]
struct Work {
    /// Followers of one place: token, count.
    followers: Vec<(Token, u32)>,
    logits: Vec<f32>,
    scratch: Scratch,
    drawn: Vec<Token>,
}

/// What may follow at one place.
struct Followers {
    /// Occurrences of the context.
    total: f32,
    /// The draft's law.
    law: Law,
}

/// A guess that is to be offered, or was offered because it was drawn, and may be gone on from.
struct Guess {
    parent: Option<NodeId>,
    token: Token,
    depth: usize,
    confidence: f32,
    /// Product of the confidences down to it.
    gain: f32,
    q: f64,
    node: Option<NodeId>,
    /// Contexts in each table before it.
    states: [State; TABLES],
}

/// A place after which to propose.
struct Place {
    parent: Option<NodeId>,
    depth: usize,
    gain: f32,
    states: [State; TABLES],
}

/// Everybody's, the tenant's, the text's.
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
    /// How frequent a token must be to be proposed where no context is known, by tables of contexts: about what a row costs,
    /// as a part of a pass.
    pub const UNIGRAM_MIN: f32 = 0.1;

    /// A drafter that counts n-grams of 1 to `order` tokens: 1 is a unigram table, 2 a bigram table.
    ///
    /// # Panics
    ///
    /// Panics if `order` is not 1 to 8.
    pub fn new(order: usize, source: NgramSource) -> NgramDrafter {
        NgramDrafter {
            n_max: 5,
            branches_max: 1,
            unigram_min: if order == 1 { 0.0 } else { NgramDrafter::UNIGRAM_MIN },
            settings: DraftSettings::default(),
            order,
            source,
            shared: Table::new(order, false),
            tenants: BTreeMap::new(),
            texts: BTreeMap::new(),
            work: Work::default(),
        }
    }

    /// Bytes of memory of all tables, those reserved included.
    pub fn bytes(&self) -> usize {
        let texts = self.texts.values().filter_map(|(_, table)| table.as_ref());
        self.shared.bytes() + self.tenants.values().chain(texts).map(Table::bytes).sum::<usize>()
    }

    /// Learns what the sequence has become.
    fn catch_up(&mut self, sequence: SequenceId, tokens: &[Token]) {
        let text = self.texts.get_mut(&sequence);
        let (_, table) = text.unwrap_or_else(|| panic!("{sequence:?} was not opened"));
        if let Some(table) = table {
            table.learn(tokens, table.len().min(tokens.len()));
        }
    }

    /// Fills one tree, best guesses first.
    fn fill(&mut self, ask: &mut Ask<'_>, chance: &mut dyn Chance) {
        let (tenant, text) = &self.texts[&ask.sequence];
        let tables: Tables<'_> = [Some(&self.shared), self.tenants.get(tenant), text.as_ref()];
        let settings = ask.settings.or(self.settings);
        let rules = Rules {
            settings,
            sampling: plain_settings(&settings.sampling(ask.sampling)),
            unigram_min: self.unigram_min,
            branches_max: self.branches_max.max(1),
            tables,
        };
        let states = tables.map(|table| table.map_or(State::START, |table| table.state(ask.tokens)));
        let mut guesses = Vec::new();
        if self.n_max > 0 && ask.has_room() {
            rules.propose(
                ask,
                Place { parent: None, depth: 0, gain: 1.0, states },
                &mut guesses,
                &mut self.work,
                chance,
            );
        }
        while let Some(best) = take_best(&mut guesses) {
            let Some(node) = best.node.or_else(|| ask.has_room().then(|| best.offer(ask, Proposal::Point))) else {
                break;
            };
            let token_min = settings.p_min.unwrap_or(0.0).max(ask.limits.token_min);
            let confident = best.confidence >= token_min && best.gain >= ask.limits.path_min;
            let nodes = ask.tree.len();
            let room = ask.limits.nodes_max.saturating_sub(nodes);
            let branch = Branch { gain: f64::from(best.gain), depth: best.depth, nodes, room };
            // Where draws bind, each has its row whatever it is worth; elsewhere guesses cost next to nothing.
            let pays = ask.promise == Promise::Exact || ask.pays(branch);
            let confident = confident && pays;
            let goes_on = confident || best.depth < settings.n_min.unwrap_or(0);
            if goes_on && best.depth < self.n_max && ask.has_room() && !ask.sampling.end_tokens.contains(&best.token) {
                let mut states = best.states;
                for (state, table) in states.iter_mut().zip(tables) {
                    *state = table.map_or(State::START, |table| table.step(state, best.token));
                }
                let place = Place { parent: Some(node), depth: best.depth, gain: best.gain, states };
                rules.propose(ask, place, &mut guesses, &mut self.work, chance);
            }
        }
    }
}

/// The settings that mean something for a law made of counts.
fn plain_settings(sampling: &Sampling) -> Sampling {
    Sampling {
        temperature: sampling.temperature,
        top_k: sampling.top_k,
        top_p: sampling.top_p,
        min_p: sampling.min_p,
        typical_p: sampling.typical_p,
        ..Sampling::default()
    }
}

fn take_best(guesses: &mut Vec<Guess>) -> Option<Guess> {
    // Of equals the one found first: a strict comparison, in order. Offered ones have no claim to more room.
    let mut best = 0;
    for (i, guess) in guesses.iter().enumerate() {
        if guess.gain > guesses[best].gain {
            best = i;
        }
    }
    (!guesses.is_empty()).then(|| guesses.remove(best))
}

impl Guess {
    fn offer(&self, ask: &mut Ask<'_>, proposal: Proposal) -> NodeId {
        ask.tree.suggest(self.parent, self.token, proposal, ask.source, Evidence::of_law(self.confidence, self.q))
    }
}

/// How one tree is filled.
struct Rules<'t> {
    settings: DraftSettings,
    sampling: Sampling,
    unigram_min: f32,
    branches_max: usize,
    tables: Tables<'t>,
}

impl Rules<'_> {
    /// Finds what may follow at a place, draws from it as the promise wants it, and adds the guesses to the list.
    fn propose(
        &self,
        ask: &mut Ask<'_>,
        place: Place,
        guesses: &mut Vec<Guess>,
        work: &mut Work,
        chance: &mut dyn Chance,
    ) {
        let Some(Followers { total, law }) = self.followers(ask, &place.states, work) else { return };
        let confidence = |count: u32| (count as f32 - 0.5) / total;
        // By the counts and not by what is drawn: how much is drawn may not depend on it.
        let p_split = self.settings.p_split.unwrap_or(NgramDrafter::P_SPLIT);
        let further = work.followers.iter().skip(1).filter(|&&(_, count)| confidence(count) > p_split).count();
        let room = ask.limits.nodes_max.saturating_sub(ask.tree.len());
        let width = (1 + further).min(self.branches_max).min(room);
        let position = ask.position() + place.depth as u64;
        let guess = |work: &Work, token: Token, q: f64| {
            let count = work.followers.iter().find(|follower| follower.0 == token).map_or(1, |follower| follower.1);
            let confidence = confidence(count).min(1.0);
            Guess {
                parent: place.parent,
                token,
                depth: place.depth + 1,
                confidence,
                gain: place.gain * confidence,
                q,
                node: None,
                states: place.states,
            }
        };
        if law.is_point() {
            // No draw: the likeliest, and beside it the next ones by count.
            let first = law.tokens()[0];
            let others = work.followers.iter().map(|follower| follower.0).filter(|&token| token != first);
            for token in std::iter::once(first).chain(others).take(width) {
                guesses.push(guess(work, token, law.probability(token)));
            }
            ask.tree.keep_law(place.parent, law, ask.source);
        } else if ask.promise == Promise::Exact {
            chance.draw(&law, width, Address::token(ask.seed, position), &mut work.drawn);
            guesses.extend(work.drawn.iter().map(|&token| guess(work, token, law.probability(token))));
            ask.tree.keep_law(place.parent, law, ask.source);
        } else {
            let id = ask.tree.add_law(law);
            let address = Address::draft(ask.pass(), position, id);
            chance.draw(ask.tree.law(id), width, address, &mut work.drawn);
            for &token in &work.drawn {
                let mut drawn = guess(work, token, ask.tree.law(id).probability(token));
                drawn.node = Some(drawn.offer(ask, Proposal::Drawn(id)));
                guesses.push(drawn);
            }
        }
    }

    /// The followers of the longest known context, the most frequent first, in `work.followers`, and their law.
    fn followers(&self, ask: &Ask<'_>, states: &[State; TABLES], work: &mut Work) -> Option<Followers> {
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
            return Some(Followers { total, law: self.law(most, work) });
        }
        None
    }

    /// The law of the counts under the settings: a row of their logarithms, in order of the tokens, is sampled.
    fn law(&self, most: u32, work: &mut Work) -> Law {
        let mut tokens: Vec<(Token, u32)> = work.followers.clone();
        tokens.sort_unstable_by_key(|&(token, _)| token);
        work.logits.clear();
        work.logits.extend(tokens.iter().map(|&(_, count)| (f64::from(count) / f64::from(most)).ln() as f32));
        let nowhere = Context { tokens: &[], prompt_len: 0, path: &[] };
        let law = self.sampling.law_with(&work.logits, &nowhere, &mut work.scratch);
        Law::from_pairs(law.iter().map(|(place, q)| (tokens[place as usize].0, q)))
    }
}

impl Drafter for NgramDrafter {
    fn name(&self) -> &str {
        "ngram"
    }

    fn warm_up(&mut self, tokens: &[Token], _prompt_len: usize, tenant: Option<Tenant>) {
        if self.source != NgramSource::Text {
            let order = self.order;
            let table = match tenant {
                None => &mut self.shared,
                Some(tenant) => self.tenants.entry(tenant).or_insert_with(|| Table::new(order, false)),
            };
            table.learn(tokens, 0);
        }
    }

    fn open(&mut self, sequence: SequenceId, prompt: &[Token], tenant: Tenant) {
        let text = (self.source != NgramSource::Corpus).then(|| Table::new(self.order, true));
        let before = self.texts.insert(sequence, (tenant, text));
        assert!(before.is_none(), "{sequence:?} was opened twice");
        self.catch_up(sequence, prompt);
    }

    fn draft(&mut self, asks: &mut [Ask<'_>], chance: &mut dyn Chance) {
        for ask in asks {
            self.catch_up(ask.sequence, ask.tokens);
            self.fill(ask, chance);
        }
    }

    fn keep(&mut self, sequence: SequenceId, len: usize) {
        let text = self.texts.get_mut(&sequence);
        let (_, table) = text.unwrap_or_else(|| panic!("{sequence:?} was not opened"));
        if let Some(table) = table {
            table.unlearn(len);
        }
    }

    fn close(&mut self, sequence: SequenceId) {
        self.texts.remove(&sequence);
    }
}

#[cfg(test)]
mod tests;
