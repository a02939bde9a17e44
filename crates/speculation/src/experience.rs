//! Statistics of the drafters: how often each is right, at which depth, and how well its estimates are calibrated.
//!
//! A drafter estimates for each token that it offers how probably it will be accepted ([`crate::Evidence`]); the
//! estimate is compared with the outcome. Offers are sorted into classes by their estimates, and the fraction of a
//! class that was right is the calibrated acceptance, of which gains are made (`choose`). A factor per depth corrects
//! it, since tokens below drafted tokens are usually accepted less often than estimated.
//!
//! Everything that drafters *offered* is judged, verified or not: the written tokens decide whether an offer was right.
//! So a drafter is judged even while none of its offers gets a row. Counts decay, so that about the last hundred offers
//! of a class decide.
//!
//! The recent speedup of speculation is kept here as well: tokens divided by the time of their passes, counted in plain
//! passes. It gives the cost of time in every choice. All this comes from earlier passes alone, so no decision that is
//! made by it changes the law under *rejection*. Times are not here ([`crate::Costs`]).

mod siblings;

use crate::{DraftTree, Evidence, NodeId, Offer, Proposal, Token};
pub(crate) use siblings::{Agreement, Siblings};

/// Upper ends of the classes of offers, by their estimates; they are closer near 1, where the drafter is nearly sure.
const CLASSES: [f32; 11] = [0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.97, f32::INFINITY];
/// Number of depths that are counted separately; deeper tokens count as the last.
const DEPTHS: usize = 16;
/// The counts of a class or depth are multiplied by this when another offer is judged.
const DECAY: f64 = 0.99;
/// The counts of passes are multiplied by this after another pass.
const DECAY_PASS: f64 = 0.97;
/// Weight of the prior that a drafter or a depth is right as often as expected, in expected acceptances.
const PRIOR: f64 = 2.0;
/// Weight of the prior that a class is right as often as its drafter on the whole, in offers.
const PRIOR_JUDGED: f64 = 4.0;
/// Expected acceptance of the next token of a drafter without statistics.
const UNKNOWN: f64 = 0.7;
/// Weight of the prior that speculation gains nothing, in passes.
const PRIOR_PASSES: f64 = 4.0;
/// Prior of the length of an answer, in tokens, and its weight in answers.
const ANSWER: (f64, f64) = (128.0, 2.0);

/// Decayed counts of some offers.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
struct Count {
    judged: f64,
    /// Sum of their expected acceptances.
    expected: f64,
    /// How many were right.
    right: f64,
}

impl Count {
    fn add(&mut self, expected: f64, right: bool) {
        self.judged = self.judged * DECAY + 1.0;
        self.expected = self.expected * DECAY + expected;
        self.right = self.right * DECAY + f64::from(u8::from(right));
    }

    /// The factor that corrects an expected acceptance.
    fn factor(&self) -> f64 {
        (self.right + PRIOR) / (self.expected + PRIOR)
    }
}

/// How often offers were right, for each class of estimates and for each depth.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
struct Calibration {
    all: Count,
    classes: [Count; CLASSES.len()],
    /// The counts of each depth; their expected acceptances are corrected by the classes already.
    depths: [Count; DEPTHS],
}

/// The statistics of one drafter.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
struct DrafterRecord {
    calibration: Calibration,
    /// Number of passes in which it was asked.
    asked: f64,
    /// Number of written tokens that it had offered in these passes.
    right: f64,
    /// Number of right offers that no other drafter made.
    right_alone: f64,
    /// Number of tokens that it drew in these passes: they are offered, and verified, whatever they are worth.
    drawn: f64,
    /// For each depth the number of positions at which it offered something and a token was written (`judged`), and the
    /// number of these at which it was right.
    positions: [Count; DEPTHS],
    /// The sums of `positions` over all depths.
    all_positions: Count,
}

/// How often each drafter was right, and the speedup of speculation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Experience {
    drafters: Vec<DrafterRecord>,
    /// For each drafter the calibration of tokens that it alone offers while others offer other tokens.
    alone: Vec<Calibration>,
    /// The calibration of tokens that several drafters offer.
    agreed: Calibration,
    /// Number of tokens written.
    written: f64,
    /// The time of their passes, in plain passes.
    spent: f64,
    /// Number of answers that ended.
    answers: f64,
    /// Number of tokens of these answers.
    answer_tokens: f64,
}

/// An offer that was judged: its expected acceptance, and whether it was right.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Judged {
    /// The drafter that made it.
    pub source: u8,
    /// The calibrated acceptance that the offer had.
    pub acceptance: f32,
    /// Whether the target wrote the offered token.
    pub right: bool,
}

impl Experience {
    fn record(&self, source: u8) -> DrafterRecord {
        self.drafters.get(usize::from(source)).copied().unwrap_or_default()
    }

    /// Calibrated probability that the target writes a token offered by this drafter once it has written the token's
    /// parent. `depth`: 1 for a child of the root.
    pub fn acceptance(&self, source: u8, evidence: Evidence, depth: usize) -> f32 {
        let estimate = f64::from(estimate(evidence));
        match self.drafters.get(usize::from(source)) {
            Some(record) => record.calibration.acceptance(estimate, depth) as f32,
            None => estimate as f32,
        }
    }

    /// Calibrated probability that the target writes a token among the offers of several drafters, by the weight that
    /// their estimates gave it.
    pub(crate) fn combined_acceptance(&self, agreement: Agreement, weight: f32, depth: usize) -> f32 {
        let calibration = match agreement {
            Agreement::Several => Some(&self.agreed),
            Agreement::Alone(source) => self.alone.get(usize::from(source)),
        };
        calibration.map_or(weight, |calibration| calibration.acceptance(f64::from(weight), depth) as f32)
    }

    /// Probability that this drafter's next offer at this depth is right, before anything else is known of the offer.
    pub(crate) fn mean_acceptance(&self, source: u8, depth: usize) -> f64 {
        let Some(record) = self.drafters.get(usize::from(source)) else { return UNKNOWN };
        let all = (record.all_positions.right + PRIOR * UNKNOWN) / (record.all_positions.judged + PRIOR);
        let here = &record.positions[depth.clamp(1, DEPTHS) - 1];
        (here.right + 2.0 * PRIOR * all) / (here.judged + 2.0 * PRIOR)
    }

    /// Mean number of written tokens that this drafter had offered, for each time that it was asked.
    pub fn right_per_ask(&self, source: u8) -> f64 {
        let record = self.record(source);
        (record.right + PRIOR * UNKNOWN) / (record.asked + PRIOR)
    }

    /// Mean number of tokens that this drafter draws each time that it is asked; they are verified, whatever they are
    /// worth.
    pub fn drawn_per_ask(&self, source: u8) -> f64 {
        let record = self.record(source);
        record.drawn / (record.asked + PRIOR)
    }

    /// Fraction of this drafter's right offers that no other drafter made as well.
    pub fn uniqueness(&self, source: u8) -> f64 {
        let record = self.record(source);
        (record.right_alone + PRIOR) / (record.right + PRIOR)
    }

    /// Whether this drafter was asked before.
    pub fn knows(&self, source: u8) -> bool {
        self.record(source).asked > 0.0
    }

    /// The recent speedup of speculation: the time of plain passes that would have written as many tokens, divided by
    /// the time that it took. It is never less than 1, since plain decoding is always possible.
    pub fn speedup(&self) -> f64 {
        ((self.written + PRIOR_PASSES) / (self.spent + PRIOR_PASSES)).max(1.0)
    }

    /// Mean number of tokens of an answer.
    pub fn answer_len(&self) -> f64 {
        (self.answer_tokens + ANSWER.0 * ANSWER.1) / (self.answers + ANSWER.1)
    }

    /// Learns from all that was offered for a pass: the `asked` drafters, their `candidates`, and the tokens `written`.
    /// `judged` is called for each offer that can be judged, with the acceptance that was expected before.
    pub fn learn(&mut self, asked: &[u8], candidates: &DraftTree, written: &[Token], mut judged: impl FnMut(Judged)) {
        if let Some(highest) = asked.iter().max() {
            let drafters = self.drafters.len().max(usize::from(*highest) + 1);
            self.drafters.resize(drafters, DrafterRecord::default());
            self.alone.resize(drafters, Calibration::default());
        }
        for source in asked {
            let record = &mut self.drafters[usize::from(*source)];
            record.asked = record.asked * DECAY + 1.0;
            (record.right, record.right_alone) = (record.right * DECAY, record.right_alone * DECAY);
            let drawn = |offer: &&Offer| offer.source == *source && matches!(offer.proposal, Proposal::Drawn(_));
            record.drawn = record.drawn * DECAY + candidates.offers().iter().filter(drawn).count() as f64;
        }
        let mut parent: Option<NodeId> = None;
        let mut siblings = Siblings::default();
        for (i, token) in written.iter().enumerate() {
            siblings.weigh(candidates, parent, self);
            for weighed in &siblings.tokens {
                let right = candidates.token(weighed.node) == *token;
                let calibration = match weighed.agreement {
                    None => None,
                    Some(Agreement::Several) => Some(&mut self.agreed),
                    Some(Agreement::Alone(source)) => self.alone.get_mut(usize::from(source)),
                };
                if let Some(calibration) = calibration {
                    calibration.learn(f64::from(weighed.weight), i + 1, right);
                }
            }
            for source in asked {
                let own = || candidates.offers_under(parent).filter(|offer| offer.source == *source);
                if own().next().is_some() {
                    let right = own().any(|offer| candidates.token(offer.node) == *token);
                    let record = &mut self.drafters[usize::from(*source)];
                    let counts = [&mut record.positions[i.min(DEPTHS - 1)], &mut record.all_positions];
                    counts.into_iter().for_each(|count| count.add(0.0, right));
                }
            }
            for offer in candidates.offers_under(parent) {
                let right = candidates.token(offer.node) == *token;
                let estimate = f64::from(estimate(offer.evidence));
                let Some(DrafterRecord { calibration, .. }) = self.drafters.get_mut(usize::from(offer.source)) else {
                    continue;
                };
                let acceptance = calibration.acceptance(estimate, i + 1) as f32;
                judged(Judged { source: offer.source, acceptance, right });
                calibration.learn(estimate, i + 1, right);
            }
            let Some(node) = candidates.child(parent, *token) else { break };
            let offered_by = |source: u8| candidates.offers_of(node).any(|offer| offer.source == source);
            let supporters = asked.iter().filter(|source| offered_by(**source)).count();
            for source in asked.iter().filter(|source| offered_by(**source)) {
                let record = &mut self.drafters[usize::from(*source)];
                record.right += 1.0;
                record.right_alone += if supporters == 1 { 1.0 } else { 0.0 };
            }
            parent = Some(node);
        }
    }

    /// Learns the speed of a pass: the number of tokens written, and its time with all drafting, in plain passes of the
    /// same batch.
    pub fn learn_pass(&mut self, written: usize, plain_passes: f64) {
        self.written = self.written * DECAY_PASS + written as f64;
        self.spent = self.spent * DECAY_PASS + plain_passes;
    }

    /// Learns that an answer of this many tokens has ended.
    pub fn learn_answer(&mut self, tokens: usize) {
        self.answers = self.answers * 0.9 + 1.0;
        self.answer_tokens = self.answer_tokens * 0.9 + tokens as f64;
    }
}

impl Calibration {
    fn class(estimate: f64) -> usize {
        CLASSES.partition_point(|end| f64::from(*end) <= estimate).min(CLASSES.len() - 1)
    }

    /// The estimate, corrected by its class.
    fn by_class(&self, estimate: f64) -> f64 {
        let class = &self.classes[Calibration::class(estimate)];
        let prior = (estimate * self.all.factor()).min(1.0);
        (class.right + PRIOR_JUDGED * prior) / (class.judged + PRIOR_JUDGED)
    }

    fn acceptance(&self, estimate: f64, depth: usize) -> f64 {
        (self.by_class(estimate) * self.depths[depth.clamp(1, DEPTHS) - 1].factor()).min(0.999)
    }

    fn learn(&mut self, estimate: f64, depth: usize, right: bool) {
        let by_class = self.by_class(estimate);
        self.depths[depth.clamp(1, DEPTHS) - 1].add(by_class, right);
        self.classes[Calibration::class(estimate)].add(estimate, right);
        self.all.add(estimate, right);
    }
}

/// The acceptance of an offer as its drafter's evidence gives it, before calibration.
///
/// The probability that a drawn token is accepted is higher than q: under *exact* because the target races with the
/// same noise, under *rejection* because of min(1, p / q), which for equal laws is 1 whatever q is. The square root is
/// a value between q and 1.
fn estimate(evidence: Evidence) -> f32 {
    let acceptance = evidence.clamped_acceptance();
    match evidence.q {
        Some(q) if q < 1.0 => acceptance.sqrt(),
        _ => acceptance,
    }
}

#[cfg(test)]
mod tests;
