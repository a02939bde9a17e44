//! An assistant with a vocabulary of its own drafts text, and the text is proposed in the target's tokens (Universal
//! Assisted Generation, Intel Labs and Hugging Face 2024; string-level matching in Timor et al. 2025).
//!
//! The assistant reads the target's text in its own tokens, drafts a chain of them, and the chain is translated back. All
//! proposals are points: a target token made of assistant tokens has no simple law, and without one there is nothing to
//! weigh, so under *rejection* a guess is right only if the target would have drawn it. The best guess is then the most
//! probable one, which is why the assistant is greedy unless it is told otherwise. (Its noise could not be the target's
//! anyhow, whose race is between other tokens.) [`SharedScorer`] is the other way, with a law.
//!
//! The last token of a draft is uncertain: the next character could still become part of it. So the assistant goes on
//! until there are enough tokens without it; where the draft ends earlier it is proposed all the same, which is lawful as
//! any point, at a discount of what is thought of it.
//!
//! The assistant's cache goes by what it ran: a step of the target that merges with text before it changes the
//! assistant's last tokens, and the cache is set back to the first that differs.
//!
//! Left out: branching. Depths and unread tokens are counted in each side's own tokens, whose lengths hardly differ by more than
//! a third: what is weighed by them is an estimate anyway. Penalties, bias and bans speak of the target's tokens and are not applied to the assistant's.

mod shared;

use std::collections::BTreeMap;

use crate::choose::Branch;
use crate::draft::{Ask, DraftSettings, Drafter, Work};
use crate::translate::{Meaning, Piece, Translator};
use crate::{Address, Chance, Context, Evidence, NodeId, Proposal, Rows, Sampling, ScoreAsk, Scorer, Scratch};
use crate::{SequenceId, Tenant, Token, log_probability};

pub use shared::SharedScorer;

/// What is thought of a last token that more text could still change, as a part of what would be thought otherwise.
const OPEN_DISCOUNT: f32 = 0.8;

/// A [`Drafter`] that asks a [`Scorer`] of another vocabulary, and translates.
#[derive(Debug)]
pub struct TranslatedDrafter<S, T> {
    /// The assistant, in its own vocabulary.
    pub scorer: S,
    /// Translates between the target and the assistant.
    pub translator: T,
    /// Most tokens drafted per pass, the assistant's own counted.
    pub n_max: usize,
    /// What requests leave open. Where neither names a temperature the assistant is greedy, whatever the target's is.
    pub settings: DraftSettings,
    work: Work,
    caches: BTreeMap<SequenceId, Cached>,
    rows: Rows,
    scratch: Scratch,
    drawn: Vec<Token>,
    pieces: Vec<Piece>,
}

/// What the scorer has cached of a sequence.
#[derive(Clone, Debug, Default)]
struct Cached {
    /// All tokens that were run.
    ran: Vec<Token>,
    /// How many of them are known to be what the assistant reads.
    agreed: usize,
}

/// A chain that is still growing.
struct Chain {
    /// Place among the asks.
    ask: usize,
    /// Assistant tokens, and the raw probability of each.
    path: Vec<Token>,
    confidences: Vec<f32>,
    /// Product of the confidences along the path.
    confidence: f32,
    /// The same of what is expected when they are corrected by experience.
    worth: f64,
    /// It may grow by another token.
    goes_on: bool,
}

impl<S: Scorer, T: Translator> TranslatedDrafter<S, T> {
    /// A drafter of up to 10 assistant tokens, greedy, without a confidence rule.
    pub fn new(scorer: S, translator: T) -> TranslatedDrafter<S, T> {
        TranslatedDrafter {
            scorer,
            translator,
            n_max: 10,
            settings: DraftSettings::default(),
            work: Work::default(),
            caches: BTreeMap::new(),
            rows: Rows::new(),
            scratch: Scratch::default(),
            drawn: Vec::new(),
            pieces: Vec::new(),
        }
    }

    /// Reads what the target wrote since, and sets the cache back to what agrees, leaving at least the last token to be
    /// run. Whether there is anything to draft behind.
    fn catch_up(&mut self, ask: &Ask<'_>) -> bool {
        let cached = self.caches.get_mut(&ask.sequence);
        let cached = cached.unwrap_or_else(|| panic!("{:?} was not opened", ask.sequence));
        let unchanged = self.translator.read(ask.sequence, &ask.tokens[self.translator.read_len(ask.sequence)..]);
        cached.agreed = cached.agreed.min(unchanged);
        let assistant = self.translator.assistant_tokens(ask.sequence);
        let more = cached.ran[cached.agreed..].iter().zip(&assistant[cached.agreed..]);
        cached.agreed += more.take_while(|(a, b)| a == b).count();
        let kept = cached.agreed.min(assistant.len().saturating_sub(1));
        if kept < cached.ran.len() {
            cached.ran.truncate(kept);
            self.scorer.keep(ask.sequence, kept);
        }
        cached.agreed = kept;
        !assistant.is_empty() && assistant.len() <= self.scorer.context_max()
    }

    /// One depth: runs what every chain has not run yet, then lets each grow by one token.
    fn deepen(&mut self, asks: &mut [Ask<'_>], chains: &mut [Chain], chance: &mut dyn Chance) {
        let growing: Vec<usize> = (0..chains.len()).filter(|&i| chains[i].goes_on).collect();
        let unrun = |&i: &usize| {
            let chain: &Chain = &chains[i];
            let sequence = asks[chain.ask].sequence;
            let (start, read) = (self.caches[&sequence].ran.len(), self.translator.assistant_tokens(sequence));
            let tokens = if start < read.len() { &read[start..] } else { &chain.path[start - read.len()..] };
            (sequence, start, tokens, [tokens.len() as u32 - 1])
        };
        let unrun: Vec<_> = growing.iter().map(unrun).collect();
        let score_asks: Vec<ScoreAsk<'_>> = unrun
            .iter()
            .map(|&(sequence, start, tokens, ref wanted)| ScoreAsk {
                sequence,
                start,
                tokens,
                parents: &[],
                computed: 0,
                wanted,
            })
            .collect();
        self.rows.clear();
        self.scorer.score(&score_asks, &mut self.rows);
        self.work.passes += 1;
        assert!(self.rows.len() == growing.len(), "{} rows for {} asks", self.rows.len(), growing.len());
        for (row, &i) in growing.iter().enumerate() {
            chains[i].goes_on = self.grow(&mut asks[chains[i].ask], &mut chains[i], row, chance);
        }
    }

    /// Chooses one token after the chain; whether it goes on.
    fn grow(&mut self, ask: &mut Ask<'_>, chain: &mut Chain, row: usize, chance: &mut dyn Chance) -> bool {
        let Some(logits) = self.rows.row(row) else { return false };
        let cached = self.caches.get_mut(&ask.sequence).expect("opened, or catching up had failed");
        let read = self.translator.assistant_tokens(ask.sequence);
        match cached.ran.len() < read.len() {
            true => {
                self.work.read += (read.len() - cached.ran.len()) as u64;
                cached.ran.extend_from_slice(&read[cached.ran.len()..]);
            }
            false => cached.ran.extend_from_slice(&chain.path[cached.ran.len() - read.len()..]),
        }
        cached.agreed = read.len();

        let settings = ask.settings.or(self.settings);
        let Sampling { top_k, top_p, min_p, typical_p, .. } = *ask.sampling;
        let of_target = Sampling { temperature: 0.0, top_k, top_p, min_p, typical_p, ..Sampling::default() };
        let sampling = settings.sampling(&of_target);
        let position = (read.len() + chain.path.len()) as u64;
        let context = Context { tokens: read, prompt_len: read.len(), path: &chain.path };
        let law = sampling.law_with(logits, &context, &mut self.scratch);
        let token = if law.is_point() {
            law.tokens()[0]
        } else {
            // A law of its own, so that no draw has the address of another drafter's; nothing is offered as drawn from it.
            let id = ask.tree.add_law(law);
            let address = Address::draft(ask.pass(), position, id);
            chance.draw(ask.tree.law(id), 1, address, &mut self.drawn);
            self.drawn[0]
        };
        let meaning = self.translator.meaning(token);
        if meaning == Meaning::Nothing {
            return false;
        }
        let confidence = log_probability(logits, token).exp();
        chain.path.push(token);
        chain.confidences.push(confidence);
        chain.confidence *= confidence;
        let token_min = settings.p_min.unwrap_or(0.0).max(ask.limits.token_min);
        let depth = chain.path.len();
        if let Some(outlook) = ask.outlook {
            chain.worth *= outlook.acceptance(ask.source, Evidence::estimate(confidence), depth);
        }
        let room = ask.limits.nodes_max.saturating_sub(ask.tree.len() + depth);
        let room = room.min(self.n_max.saturating_sub(depth));
        let pays = ask.pays(Branch { gain: chain.worth, depth, nodes: depth, room });
        let confident = confidence >= token_min && chain.confidence >= ask.limits.path_min && pays;
        let is_end = matches!(meaning, Meaning::Special(token) if ask.sampling.end_tokens.contains(&token));
        (confident || chain.path.len() < settings.n_min.unwrap_or(0)) && !is_end && self.may_grow(ask, chain)
    }

    /// Whether another token may be drafted.
    fn may_grow(&mut self, ask: &Ask<'_>, chain: &Chain) -> bool {
        let (depth, room) = (chain.path.len(), ask.limits.nodes_max.saturating_sub(ask.tree.len()));
        let read = self.translator.assistant_tokens(ask.sequence).len();
        if room == 0 || depth >= self.n_max || read + depth > self.scorer.context_max() {
            return false;
        }
        // Mostly tokens are of one size, so a look at the translation is due when there could be enough. The last one is
        // not counted while it is open.
        depth < room || {
            self.translator.propose(ask.sequence, &chain.path, &mut self.pieces);
            self.pieces.iter().filter(|piece| !piece.is_open).count() < room
        }
    }

    /// Translates a chain and offers it.
    fn offer(&mut self, ask: &mut Ask<'_>, chain: &Chain) {
        self.translator.propose(ask.sequence, &chain.path, &mut self.pieces);
        let (mut parent, mut drafted): (Option<NodeId>, usize) = (None, 0);
        for piece in &self.pieces {
            let known = ask.tree.child(parent, piece.token).is_some();
            if !known && !ask.has_room() {
                break;
            }
            // A token's confidence is that of all assistant tokens that begin in it.
            let confidence: f32 = chain.confidences[drafted..piece.drafted_end.max(drafted)].iter().product();
            drafted = drafted.max(piece.drafted_end);
            let evidence = Evidence::estimate(if piece.is_open { confidence * OPEN_DISCOUNT } else { confidence });
            parent = Some(ask.tree.suggest(parent, piece.token, Proposal::Point, ask.source, evidence));
            if ask.sampling.end_tokens.contains(&piece.token) {
                break;
            }
        }
    }
}

impl<S: Scorer, T: Translator> Drafter for TranslatedDrafter<S, T> {
    fn name(&self) -> &str {
        "draft"
    }

    fn work(&self) -> Option<Work> {
        Some(self.work)
    }

    fn unread(&self, sequence: SequenceId, len: usize) -> usize {
        len - self.translator.read_len(sequence).min(len)
    }

    fn open(&mut self, sequence: SequenceId, _prompt: &[Token], _tenant: Tenant) {
        let before = self.caches.insert(sequence, Cached::default());
        assert!(before.is_none(), "{sequence:?} was opened twice");
        self.translator.open(sequence);
        self.scorer.open(sequence);
    }

    fn draft(&mut self, asks: &mut [Ask<'_>], chance: &mut dyn Chance) {
        let mut chains = Vec::with_capacity(asks.len());
        for (i, ask) in asks.iter().enumerate() {
            if self.n_max > 0 && ask.has_room() && self.catch_up(ask) {
                let (path, confidences) = (Vec::new(), Vec::new());
                chains.push(Chain { ask: i, path, confidences, confidence: 1.0, worth: 1.0, goes_on: true });
            }
        }
        while chains.iter().any(|chain| chain.goes_on) {
            self.deepen(asks, &mut chains, chance);
        }
        for chain in &chains {
            self.offer(&mut asks[chain.ask], chain);
        }
    }

    fn keep(&mut self, sequence: SequenceId, len: usize) {
        let cached = self.caches.get_mut(&sequence).unwrap_or_else(|| panic!("{sequence:?} was not opened"));
        if len < self.translator.read_len(sequence) {
            let unchanged = self.translator.keep(sequence, len);
            cached.agreed = cached.agreed.min(unchanged);
        }
    }

    fn close(&mut self, sequence: SequenceId) {
        if self.caches.remove(&sequence).is_some() {
            self.translator.close(sequence);
            self.scorer.close(sequence);
        }
    }
}
