//! What is known of the drafters: how often each is right, at which depth, and how well it knows that itself.
//!
//! One learner for all of it. A drafter says of each guess how probably it will be accepted ([`crate::Evidence`]); what
//! it said is compared with what came. Guesses are sorted into classes by what was said of them, each with the part
//! that was right, which is the calibrated acceptance of a guess; gains are made of it (`choose`). A depth corrects it
//! by a factor, since guesses below guesses are mostly worse than they look.
//!
//! Judged is everything that drafters *offered*, verified or not: the text that was written says whether a guess was
//! right. So a drafter whose guesses get no rows can prove itself all the same. What was learned is decayed: the last
//! hundred or so guesses of a class decide.
//!
//! It also keeps what speculation was worth lately, tokens over passes' time in plain passes: the price of time in
//! every choice. Under *rejection* all this comes from earlier passes alone, so whatever is decided by it is lawful.
//!
//! Left out: seconds ([`crate::Costs`]), and what any of this is used for.

use crate::choose::{Company, Siblings};
use crate::{DraftTree, Evidence, NodeId, Offer, Proposal, Token};

/// Upper ends of the classes of guesses, by what was said of them; closer where a drafter is nearly sure.
const CLASSES: [f32; 11] = [0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.97, f32::INFINITY];
/// Depths that are told apart; what is deeper counts as the last.
const DEPTHS: usize = 16;
/// What is left of the counts of a class or depth when another guess is judged.
const DECAY: f64 = 0.99;
/// What is left of the count of passes after another.
const DECAY_PASS: f64 = 0.97;
/// Weight of the belief that a drafter or a depth is what is expected of it, in expected acceptances.
const PRIOR: f64 = 2.0;
/// Weight of the belief that a class is what its drafter is on the whole, in guesses.
const PRIOR_JUDGED: f64 = 4.0;
/// What is expected of the next token of a drafter of which nothing is known yet.
const UNKNOWN: f64 = 0.7;
/// Weight of the belief that speculation gains nothing, in passes.
const PRIOR_PASSES: f64 = 4.0;
/// Tokens of an answer, where none has ended yet, and the weight of that belief in answers.
const ANSWER: (f64, f64) = (128.0, 2.0);

/// Decayed counts of guesses.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
struct Count {
    judged: f64,
    /// Sum of what was expected of them.
    expected: f64,
    /// How many were right.
    found: f64,
}

impl Count {
    fn add(&mut self, expected: f64, found: bool) {
        self.judged = self.judged * DECAY + 1.0;
        self.expected = self.expected * DECAY + expected;
        self.found = self.found * DECAY + f64::from(u8::from(found));
    }

    /// By what to multiply what is expected.
    fn factor(&self) -> f64 {
        (self.found + PRIOR) / (self.expected + PRIOR)
    }
}

/// How right guesses were, by what was said of them and by depth.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
struct Calibration {
    all: Count,
    classes: [Count; CLASSES.len()],
    /// Here what is expected is what the classes made of it.
    depths: [Count; DEPTHS],
}

/// What is known of one drafter.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
struct Known {
    calibration: Calibration,
    /// Passes in which it was asked, and guesses of it that turned out right in them: a token written counts once.
    asked: f64,
    right: f64,
    /// Of these, those that no other drafter had.
    right_alone: f64,
    /// Tokens that it drew in them: these are offered, and verified, whatever they are worth.
    drawn: f64,
    /// Positions at which it offered something and the text went on, by depth: how many, and at how many of them it was
    /// right.
    positions: [Count; DEPTHS],
    /// The same of all depths.
    all_positions: Count,
}

/// How right each drafter was, and what speculation was worth.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Experience {
    drafters: Vec<Known>,
    /// Where several drafters say something: what is known of tokens that one of them alone says, by drafter, and of
    /// those that more say.
    alone: Vec<Calibration>,
    agreed: Calibration,
    /// Tokens written, and the time of their passes in plain passes.
    written: f64,
    spent: f64,
    /// Answers that ended, and their tokens.
    answers: f64,
    answer_tokens: f64,
}

/// A guess that was judged: what was expected of it, and whether it was right.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Judged {
    /// Who made it.
    pub source: u8,
    /// The calibrated acceptance that it had.
    pub acceptance: f32,
    /// Whether the text went on with it.
    pub right: bool,
}

impl Experience {
    fn known(&self, source: u8) -> Known {
        self.drafters.get(usize::from(source)).copied().unwrap_or_default()
    }

    /// Calibrated probability that the target goes on with a guess of this drafter once it has written what the guess
    /// stands behind. `depth`: 1 for a child of the root.
    pub fn acceptance(&self, source: u8, evidence: Evidence, depth: usize) -> f32 {
        let said = f64::from(said(evidence));
        match self.drafters.get(usize::from(source)) {
            Some(known) => known.calibration.acceptance(said, depth) as f32,
            None => said as f32,
        }
    }

    /// Calibrated probability that the target goes on with a token about which several drafters say something, by the
    /// weight that this gave it.
    pub(crate) fn together(&self, company: Company, weight: f32, depth: usize) -> f32 {
        let calibration = match company {
            Company::Agreed => Some(&self.agreed),
            Company::Alone(source) => self.alone.get(usize::from(source)),
        };
        calibration.map_or(weight, |calibration| calibration.acceptance(f64::from(weight), depth) as f32)
    }

    /// How probably the text goes on with something that this drafter will offer at a position of this depth, of which
    /// nothing else is known yet.
    pub fn mean_acceptance(&self, source: u8, depth: usize) -> f64 {
        let Some(known) = self.drafters.get(usize::from(source)) else { return UNKNOWN };
        let all = (known.all_positions.found + PRIOR * UNKNOWN) / (known.all_positions.judged + PRIOR);
        let here = &known.positions[depth.clamp(1, DEPTHS) - 1];
        (here.found + 2.0 * PRIOR * all) / (here.judged + 2.0 * PRIOR)
    }

    /// Right guesses of this drafter for each time that it is asked; one a token written.
    pub fn right_per_ask(&self, source: u8) -> f64 {
        let known = self.known(source);
        (known.right + PRIOR * UNKNOWN) / (known.asked + PRIOR)
    }

    /// Tokens that this drafter draws each time that it is asked, which are verified whatever they are worth.
    pub fn drawn_per_ask(&self, source: u8) -> f64 {
        let known = self.known(source);
        known.drawn / (known.asked + PRIOR)
    }

    /// Part of the right guesses of this drafter that no other had as well: what it is worth beside them.
    pub fn uniqueness(&self, source: u8) -> f64 {
        let known = self.known(source);
        (known.right_alone + PRIOR) / (known.right + PRIOR)
    }

    /// Whether this drafter was asked before.
    pub fn knows(&self, source: u8) -> bool {
        self.known(source).asked > 0.0
    }

    /// What speculation was worth lately: time of plain passes that would have written as much, over the time that it
    /// took; never less than 1, since plain decoding can always be had.
    pub fn speedup(&self) -> f64 {
        ((self.written + PRIOR_PASSES) / (self.spent + PRIOR_PASSES)).max(1.0)
    }

    /// Tokens of an answer, on average.
    pub fn answer_len(&self) -> f64 {
        (self.answer_tokens + ANSWER.0 * ANSWER.1) / (self.answers + ANSWER.1)
    }

    /// Learns from all that was offered for a pass: `asked` drafters, their `candidates`, and what was `written` then.
    /// `judged` hears of each guess what was expected of it before.
    pub fn learn(&mut self, asked: &[u8], candidates: &DraftTree, written: &[Token], mut judged: impl FnMut(Judged)) {
        if let Some(most) = asked.iter().max() {
            let drafters = self.drafters.len().max(usize::from(*most) + 1);
            self.drafters.resize(drafters, Known::default());
            self.alone.resize(drafters, Calibration::default());
        }
        for source in asked {
            let known = &mut self.drafters[usize::from(*source)];
            known.asked = known.asked * DECAY + 1.0;
            (known.right, known.right_alone) = (known.right * DECAY, known.right_alone * DECAY);
            let drawn = |offer: &&Offer| offer.source == *source && matches!(offer.proposal, Proposal::Drawn(_));
            known.drawn = known.drawn * DECAY + candidates.offers().iter().filter(drawn).count() as f64;
        }
        let mut parent: Option<NodeId> = None;
        let mut siblings = Siblings::default();
        for (i, token) in written.iter().enumerate() {
            siblings.weigh(candidates, parent, self);
            for weighed in &siblings.tokens {
                let right = candidates.token(weighed.node) == *token;
                let calibration = match weighed.company {
                    None => None,
                    Some(Company::Agreed) => Some(&mut self.agreed),
                    Some(Company::Alone(source)) => self.alone.get_mut(usize::from(source)),
                };
                if let Some(calibration) = calibration {
                    calibration.learn(f64::from(weighed.weight), i + 1, right);
                }
            }
            for source in asked {
                let own = || candidates.offers_under(parent).filter(|offer| offer.source == *source);
                if own().next().is_some() {
                    let right = own().any(|offer| candidates.token(offer.node) == *token);
                    let known = &mut self.drafters[usize::from(*source)];
                    let counts = [&mut known.positions[i.min(DEPTHS - 1)], &mut known.all_positions];
                    counts.into_iter().for_each(|count| count.add(0.0, right));
                }
            }
            for offer in candidates.offers_under(parent) {
                let right = candidates.token(offer.node) == *token;
                let said = f64::from(said(offer.evidence));
                let Some(Known { calibration, .. }) = self.drafters.get_mut(usize::from(offer.source)) else {
                    continue;
                };
                judged(Judged { source: offer.source, acceptance: calibration.acceptance(said, i + 1) as f32, right });
                calibration.learn(said, i + 1, right);
            }
            let Some(node) = candidates.child(parent, *token) else { break };
            let says = |source: u8| candidates.offers_of(node).any(|offer| offer.source == source);
            let supporters = asked.iter().filter(|source| says(**source)).count();
            for source in asked.iter().filter(|source| says(**source)) {
                let known = &mut self.drafters[usize::from(*source)];
                known.right += 1.0;
                known.right_alone += if supporters == 1 { 1.0 } else { 0.0 };
            }
            parent = Some(node);
        }
    }

    /// Learns what a pass was worth: tokens written, and its time with all drafting, in plain passes of the same
    /// company.
    pub fn learn_pass(&mut self, written: usize, plain_passes: f64) {
        self.written = self.written * DECAY_PASS + written as f64;
        self.spent = self.spent * DECAY_PASS + plain_passes;
    }

    /// Learns that an answer of so many tokens has ended.
    pub fn learn_answer(&mut self, tokens: usize) {
        self.answers = self.answers * 0.9 + 1.0;
        self.answer_tokens = self.answer_tokens * 0.9 + tokens as f64;
    }
}

impl Calibration {
    fn class(said: f64) -> usize {
        CLASSES.partition_point(|end| f64::from(*end) <= said).min(CLASSES.len() - 1)
    }

    /// What was said, corrected by its class.
    fn by_class(&self, said: f64) -> f64 {
        let class = &self.classes[Calibration::class(said)];
        let believed = (said * self.all.factor()).min(1.0);
        (class.found + PRIOR_JUDGED * believed) / (class.judged + PRIOR_JUDGED)
    }

    fn acceptance(&self, said: f64, depth: usize) -> f64 {
        (self.by_class(said) * self.depths[depth.clamp(1, DEPTHS) - 1].factor()).min(0.999)
    }

    fn learn(&mut self, said: f64, depth: usize, right: bool) {
        let by_class = self.by_class(said);
        self.depths[depth.clamp(1, DEPTHS) - 1].add(by_class, right);
        self.classes[Calibration::class(said)].add(said, right);
        self.all.add(said, right);
    }
}

/// How probably a guess is accepted, by what its drafter says.
///
/// A token that was drawn is accepted more often than it is drawn: under *exact* because the target races with the same
/// noise, under *rejection* because of min(1, p / q), which for equal laws is 1 whatever q is. Its square root lies
/// between.
fn said(evidence: Evidence) -> f32 {
    let acceptance = evidence.sound();
    match evidence.q {
        Some(q) if q < 1.0 => acceptance.sqrt(),
        _ => acceptance,
    }
}

#[cfg(test)]
mod tests;
