//! Draft models (assistants) with another vocabulary: the assistant drafts text, which is proposed in the target's
//! tokens (Universal Assisted Generation, Intel Labs and Hugging Face 2024; string-level matching in Timor et al.
//! 2025).
//!
//! The assistant reads the target's text in its own tokens and drafts a chain of them like any draft model
//! ([`ModelDrafter`]), into a temporary tree; the chain is translated back. All proposals are points: a target token
//! made of assistant tokens has no simple law, so under *rejection* it is accepted with the probability that the target
//! has for it. The best proposal is then the most probable one, so the assistant is greedy unless a temperature is set.
//! (It could not use the target's noise, which is for other tokens.) [`SharedScorer`] is the alternative with a law.
//!
//! The last token of a draft is uncertain: the next character could still become part of it. So the assistant drafts a
//! few tokens more than there is room for; if the draft ends with an uncertain token, that token is proposed
//! nevertheless, with a lower confidence; like any point it may always be offered.
//!
//! Drafts are chains. Depths and unread tokens are counted in each side's own tokens, whose lengths hardly differ by
//! more than a third; they are only used in estimates. Penalties, bias, bans and constraints apply to the target's
//! tokens and not to the assistant's; a draft ends where a constraint forbids it.

mod shared;

use std::collections::BTreeMap;

use crate::Scorer;
use crate::model::{ModelDrafter, SEED_FLIP};
use crate::translate::{Meaning, Piece, Reading, Translator};
use foretoken_speculation::budget::Limits;
use foretoken_speculation::{Ask, DraftSettings, Drafter, Opening, Probes, ReadAsk, Work};
use foretoken_speculation::{Chance, DraftTree, Evidence, NodeId, Promise, Proposal, Sampling, SequenceId, Token};

pub use shared::SharedScorer;

/// The factor of the confidence of a last token that further text could still change.
const OPEN_DISCOUNT: f32 = 0.8;

/// A [`Drafter`] that asks a [`Scorer`] with another vocabulary, and translates its draft.
#[derive(Debug)]
pub struct TranslatedDrafter<S, T> {
    /// The assistant, in its own vocabulary. If neither a request nor its settings name a temperature, it is greedy,
    /// whatever the target's temperature is.
    pub assistant: ModelDrafter<S>,
    /// Translates between the target and the assistant.
    pub translator: T,
    readings: BTreeMap<SequenceId, Reading>,
    pieces: Vec<Piece>,
}

/// The assistant's draft for one ask.
struct Draft {
    /// The index of the ask.
    ask: usize,
    sampling: Sampling,
    nodes_max: usize,
    tree: DraftTree,
    probes: Probes,
}

impl<S: Scorer, T: Translator> TranslatedDrafter<S, T> {
    /// A drafter of up to 10 assistant tokens, greedy, without a confidence rule.
    pub fn new(scorer: S, translator: T) -> TranslatedDrafter<S, T> {
        let mut assistant = ModelDrafter::new(scorer);
        assistant.depth_max = 10;
        TranslatedDrafter { assistant, translator, readings: BTreeMap::new(), pieces: Vec::new() }
    }

    /// Lets the translator read the sequence and prepares the assistant's draft; `None` if the assistant has no token
    /// to draft after.
    fn prepare(&mut self, i: usize, ask: &Ask<'_>) -> Option<Draft> {
        let reading = self.readings.get_mut(&ask.sequence);
        let reading = reading.unwrap_or_else(|| panic!("{:?} was not opened", ask.sequence));
        reading.read(&mut self.translator, ask.sequence, [ask.tokens, &[]]);
        if !ask.has_room() || self.translator.assistant_tokens(ask.sequence).is_empty() {
            return None;
        }
        let mut sampling = Sampling { temperature: 0.0, ..ask.sampling.filters_only() };
        for token in &ask.sampling.end_tokens {
            self.translator.specials(*token, &mut sampling.end_tokens);
        }
        // The limit is half more than fit, in case the assistant's tokens are shorter, and two more for the uncertain
        // last token.
        let nodes_max = ask.room() + ask.room() / 2 + 2;
        Some(Draft { ask: i, sampling, nodes_max, tree: DraftTree::new(), probes: Probes::default() })
    }

    /// Translates a chain and offers it.
    fn offer(&mut self, ask: &mut Ask<'_>, tree: &DraftTree) {
        let has_meaning = |token: &&Token| self.translator.meaning(**token) != Meaning::Nothing;
        let path: Vec<Token> = tree.tokens().iter().take_while(has_meaning).copied().collect();
        self.translator.propose(ask.sequence, &path, &mut self.pieces);
        let (mut parent, mut drafted): (Option<NodeId>, usize) = (None, 0);
        let mut path: Vec<Token> = Vec::new();
        for piece in &self.pieces {
            path.push(piece.token);
            // The assistant drafts without the constraint on the target's tokens: the draft ends at the first token
            // that it forbids.
            let is_allowed = ask.constraint.is_none_or(|constraint| constraint.allows(&path));
            if !is_allowed || !ask.has_room_for(parent, piece.token) {
                break;
            }
            // A token's confidence is that of all assistant tokens that begin in it.
            let begin = drafted..piece.drafted_end.max(drafted);
            let confidence: f32 = begin.map(|at| tree.acceptance(NodeId::new(at))).product();
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
        self.assistant.work()
    }

    fn unread(&self, sequence: SequenceId, len: usize) -> usize {
        len - self.readings.get(&sequence).map_or(0, |reading| reading.len().min(len))
    }

    fn open(&mut self, opening: &Opening<'_>) {
        let before = self.readings.insert(opening.sequence, Reading::default());
        assert!(before.is_none(), "{:?} was opened twice", opening.sequence);
        self.translator.open(opening.sequence);
        self.assistant.open(&Opening { prompt: &[], prediction: &[], source: &[], ..*opening });
    }

    fn read(&mut self, asks: &[ReadAsk<'_>]) {
        for ask in asks {
            let reading = self.readings.get_mut(&ask.sequence);
            let reading = reading.unwrap_or_else(|| panic!("{:?} was not opened", ask.sequence));
            if reading.len() < ask.until {
                reading.read(&mut self.translator, ask.sequence, [&ask.tokens[..ask.until], &[]]);
            }
        }
        let mut assistant_asks: Vec<ReadAsk<'_>> = Vec::with_capacity(asks.len());
        for ask in asks {
            let tokens = self.translator.assistant_tokens(ask.sequence);
            // The last of them may still change with the target's next tokens.
            let until = tokens.len().saturating_sub(1);
            if until > 0 {
                assistant_asks.push(ReadAsk { tokens, prompt_len: tokens.len(), until, ..*ask });
            }
        }
        self.assistant.read(&assistant_asks);
    }

    fn draft(&mut self, asks: &mut [Ask<'_>], chance: &mut dyn Chance) {
        let mut drafts: Vec<Draft> = asks.iter().enumerate().filter_map(|(i, ask)| self.prepare(i, ask)).collect();
        let mut assistant_asks: Vec<Ask<'_>> = Vec::with_capacity(drafts.len());
        for Draft { ask, sampling, nodes_max, tree, probes } in &mut drafts {
            let ask = &asks[*ask];
            let tokens = self.translator.assistant_tokens(ask.sequence);
            assistant_asks.push(Ask {
                tokens,
                // The last of them may still change with the target's next tokens.
                written_len: tokens.len() - 1,
                prompt_len: tokens.len(),
                sampling,
                constraint: None,
                settings: DraftSettings { p_split: Some(1.0), ..ask.settings },
                // The assistant's draws are not offered as drawn. Each of the target's passes has noise of its own,
                // since two passes may have the same assistant tokens.
                promise: Promise::Rejection,
                seed: ask.seed ^ SEED_FLIP.rotate_left(u32::from(ask.source)) ^ ask.position() << 32,
                limits: Limits { nodes_max: *nodes_max, ..ask.limits },
                tree,
                probes,
                ..*ask
            });
        }
        self.assistant.draft(&mut assistant_asks, chance);
        drop(assistant_asks);
        for draft in &drafts {
            self.offer(&mut asks[draft.ask], &draft.tree);
        }
    }

    fn close(&mut self, sequence: SequenceId) {
        if self.readings.remove(&sequence).is_some() {
            self.translator.close(sequence);
            self.assistant.close(sequence);
        }
    }
}
