//! A drafter in simulated time: it knows the target's text, and its script decides where it is right.
//!
//! A drafter without a network offers a chain at once, as a lookup does. A drafter with a network runs a step for each
//! token, reads the tokens that it has not read before, and stops where another step does not pay, as draft models do.
//! Its confidences are informative but biased, like those of real drafters: a token that is right with probability p
//! has the square root of p, and at least 0.3; a copying drafter is the more confident the more tokens in a row were
//! right.
//!
//! Drafts are chains, and texts are greedy.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use foretoken_speculation::{
    Ask, Branch, Chance, Drafter, Evidence, NodeId, Opening, Proposal, ReadAsk, SequenceId, Token, Work,
};

use super::{Machine, Text, fraction};

/// Maximum number of tokens of a draft.
const CHAIN_MAX: usize = 16;
/// A drafter without a network proposes nothing below this gain: the default of suffix matching.
const GAIN_MIN: f32 = 0.01;
/// The least confidence of a drafter in a token.
const CONFIDENCE_MIN: f64 = 0.3;
/// Tokens of a copied passage.
const PASSAGE_TOKENS: usize = 12;
/// The most tokens in a row that a copying drafter counts.
const RUN_MAX: usize = 8;

/// Where a drafter is right.
#[derive(Clone, Debug)]
pub enum Accuracy {
    /// With a probability that varies from position to position, around this mean.
    Varied(f64),
    /// In copied passages, which are this fraction of the text, and nowhere else.
    Copied(f64),
    /// As `Varied` at these positions of the text, and nowhere else.
    Within(Range<usize>, f64),
}

/// The time of drafting, in passes of the target.
#[derive(Clone, Copy, Debug)]
pub enum DraftCost {
    /// The time of a call for each sequence; there is no network.
    Call(f64),
    /// The times of a network.
    Network {
        /// The time of a step for one sequence. Each further sequence of the batch adds `step` times
        /// [`Times::row`](super::Times::row).
        step: f64,
        /// The time of each token that the network has not read yet, except the last, which is the row of the first
        /// step.
        read: f64,
    },
}

/// The script of a drafter.
#[derive(Clone, Debug)]
pub struct DrafterScript {
    /// Where it is right.
    pub accuracy: Accuracy,
    /// What it costs.
    pub cost: DraftCost,
}

/// A drafter that follows a script.
pub(super) struct ScriptedDrafter {
    script: DrafterScript,
    number: u64,
    text: Arc<Text>,
    machine: Machine,
    /// How many tokens of each open sequence its network has read. Drafted tokens are included if they are right.
    read: BTreeMap<SequenceId, usize>,
    work: Work,
}

/// A token that is offered.
struct Guess {
    token: Token,
    is_right: bool,
    confidence: f32,
}

/// A chain of a drafter with a network while it grows.
struct Growth {
    node: Option<NodeId>,
    depth: usize,
    /// How many of its leading tokens are right.
    right: usize,
    /// Product of the confidences.
    gain: f32,
    /// Product of the calibrated acceptances.
    calibrated_gain: f64,
}

impl ScriptedDrafter {
    /// A drafter; `number` makes its choices differ from those of others.
    pub(super) fn new(script: DrafterScript, number: u64, text: Arc<Text>, machine: Machine) -> Self {
        Self { script, number, text, machine, read: BTreeMap::new(), work: Work::default() }
    }

    /// The random number from 0 to 1 for one question (`purpose`) at one position or passage (`place`) of a text.
    fn chance(&self, sequence: SequenceId, place: usize, purpose: u64) -> f64 {
        fraction(&[self.text.seed, self.number, sequence.0, place as u64, purpose])
    }

    /// The probability that the drafter is right at a position.
    fn probability(&self, sequence: SequenceId, position: usize) -> f64 {
        let varied = |mean: f64| {
            let spread = mean.min(1.0 - mean);
            mean + spread * (2.0 * self.chance(sequence, position, 0) - 1.0)
        };
        match &self.script.accuracy {
            Accuracy::Varied(mean) => varied(*mean),
            Accuracy::Copied(part) => {
                let is_copied = self.chance(sequence, position / PASSAGE_TOKENS, 1) < *part;
                f64::from(u8::from(is_copied))
            }
            Accuracy::Within(positions, mean) if positions.contains(&position) => varied(*mean),
            Accuracy::Within(..) => 0.0,
        }
    }

    fn is_right(&self, sequence: SequenceId, position: usize) -> bool {
        self.chance(sequence, position, 2) < self.probability(sequence, position)
    }

    /// The token that the drafter offers at this depth after `written` tokens, 0 for the next one.
    fn guess(&self, sequence: SequenceId, written: usize, depth: usize) -> Guess {
        let position = written + depth;
        let is_right = self.is_right(sequence, position);
        let token = match is_right {
            true => self.text.token(sequence.0, position),
            false => self.text.wrong_token(sequence.0, position, self.number),
        };
        let confidence = if let Accuracy::Copied(_) = self.script.accuracy {
            let before = (1..=RUN_MAX.min(written)).take_while(|back| self.is_right(sequence, written - back));
            let run = (before.count() + depth) as f64;
            (run + 0.5) / (run + 1.5)
        } else {
            self.probability(sequence, position).sqrt().max(CONFIDENCE_MIN)
        };
        Guess { token, is_right, confidence: confidence as f32 }
    }

    /// Offers a chain at once.
    fn offer_chain(&self, ask: &mut Ask<'_>) {
        let (gain_min, written) = (ask.gain_min(GAIN_MIN), ask.tokens.len());
        let (mut parent, mut gain) = (None, 1.0_f32);
        for depth in 0..CHAIN_MAX {
            let Guess { token, confidence, .. } = self.guess(ask.sequence, written, depth);
            gain *= confidence;
            if gain < gain_min || !ask.has_room_for(parent, token) {
                return;
            }
            let evidence = Evidence::estimate(confidence);
            parent = Some(ask.tree.suggest(parent, token, Proposal::Point, ask.source, evidence));
        }
    }

    /// Offers chains step by step, in one batch of all sequences.
    fn grow(&mut self, asks: &mut [Ask<'_>], [step, read]: [f64; 2]) {
        let growth = || Growth { node: None, depth: 0, right: 0, gain: 1.0, calibrated_gain: 1.0 };
        let with_room = (0..asks.len()).filter(|at| asks[*at].has_room());
        let mut growing: Vec<(usize, Growth)> = with_room.map(|at| (at, growth())).collect();
        let unread = |at: usize| self.unread(asks[at].sequence, asks[at].tokens.len()).max(1);
        let all: usize = growing.iter().map(|(at, _)| unread(*at)).sum();
        self.work.read += all as u64;
        // The last token of each sequence is the row of its first step.
        let mut reading = read * (all - growing.len()) as f64;
        while !growing.is_empty() {
            let others = self.machine.times.row * (growing.len() as f64 - 1.0);
            self.machine.work(step * (1.0 + others) + std::mem::take(&mut reading));
            self.work.passes += 1;
            growing.retain_mut(|(at, growth)| self.advance(&mut asks[*at], growth));
        }
    }

    /// Offers the next token of a chain, and returns whether another step follows.
    fn advance(&mut self, ask: &mut Ask<'_>, growth: &mut Growth) -> bool {
        let guess = self.guess(ask.sequence, ask.tokens.len(), growth.depth);
        let evidence = Evidence::of_law(guess.confidence, 1.0);
        growth.node = Some(ask.tree.suggest(growth.node, guess.token, Proposal::Point, ask.source, evidence));
        // The step has read the token before this one.
        self.read.insert(ask.sequence, ask.tokens.len() + growth.right);
        growth.right += usize::from(growth.right == growth.depth && guess.is_right);
        growth.depth += 1;
        growth.gain *= guess.confidence;
        let depth = growth.depth;
        growth.calibrated_gain *= ask.outlook.map_or(1.0, |outlook| outlook.acceptance(ask.source, evidence, depth));
        let room = (CHAIN_MAX - depth).min(ask.room());
        let branch = Branch { gain: growth.calibrated_gain, depth, nodes: depth, room };
        room > 0 && ask.goes_on(guess.token, (guess.confidence, growth.gain), branch)
    }
}

impl Drafter for ScriptedDrafter {
    fn name(&self) -> &str {
        "scripted"
    }

    fn work(&self) -> Option<Work> {
        matches!(self.script.cost, DraftCost::Network { .. }).then_some(self.work)
    }

    fn unread(&self, sequence: SequenceId, len: usize) -> usize {
        match self.script.cost {
            DraftCost::Call(_) => 0,
            DraftCost::Network { .. } => len.saturating_sub(self.read.get(&sequence).copied().unwrap_or(0)),
        }
    }

    fn open(&mut self, opening: &Opening<'_>) {
        self.read.insert(opening.sequence, 0);
    }

    fn read(&mut self, asks: &[ReadAsk<'_>]) {
        let DraftCost::Network { step, read } = self.script.cost else { return };
        let mut tokens = 0;
        for ask in asks {
            let done = self.read.entry(ask.sequence).or_default();
            tokens += ask.until.saturating_sub(*done);
            *done = ask.until.max(*done);
        }
        if tokens > 0 {
            self.machine.work(step + read * (tokens as f64 - 1.0));
            self.work.passes += 1;
            self.work.read += tokens as u64;
        }
    }

    fn draft(&mut self, asks: &mut [Ask<'_>], _chance: &mut dyn Chance) {
        match self.script.cost {
            DraftCost::Network { step, read } => self.grow(asks, [step, read]),
            DraftCost::Call(call) => {
                self.machine.work(call * asks.len() as f64);
                asks.iter_mut().for_each(|ask| self.offer_chain(ask));
            }
        }
    }

    fn close(&mut self, sequence: SequenceId) {
        self.read.remove(&sequence);
    }
}
