//! Who is asked for a draft in a pass, and what a step of drafting must be worth.
//!
//! Everything is weighed against the rate at which decoding writes tokens: as fast as plain decoding in the same
//! company, times what speculation was worth to each sequence lately. A drafter without a network is asked while its
//! right guesses, less the rows that they need, are worth the time that it takes, and less often after a while in which
//! none of its offers got a row; one with a network while its first step pays, and, if it has much to read first, while
//! that pays within what is left of the answer. A drafter that is not worth it rests. It is tried again when a
//! hundredth of the time since is as much as the trial takes, so trials take at most a hundredth. (One that takes
//! longer than [`ACCOUNT_MAX`] is never made.)
//!
//! Left out: how many steps are made (the drafter asks [`Outlook`]) and which candidates are verified
//! ([`foretoken_speculation::choose`]).

use foretoken_speculation::{Branch, Costs, Experience, Outlook, PassSoFar};

use crate::scheduler::Scheduled;
use crate::sequence::Sequence;

/// Part of the time that may be spent on drafters that do not pay.
const TRIALS: f64 = 0.01;
/// Tokens of a text that a draft model reads in its first step without taking longer for it.
pub(crate) const READ_ALONG: usize = 4;
/// Part of the time that may be spent on asking drafters without a network whose offers lately got no rows.
const IN_VAIN: f64 = 0.005;
/// A drafter that was asked so many times in a row without getting a row for it is asked less often,
const IN_VAIN_MIN: u8 = 4;
/// but each so many passes at least: a copied passage must be noticed before it is over.
const PASSES_BETWEEN: f64 = 8.0;
/// An offer takes so many times as long as asking for it, since it is also weighed and learned from.
const OFFER: f64 = 2.0;
/// No account of trials grows beyond this, in seconds.
const ACCOUNT_MAX: f64 = 10.0;

/// In company time is dearer by up to this part. A row costs next to nothing for a text alone and nearly a token's time
/// among eight, so that only guesses that look all but certain would be worth theirs; the best of many guesses look
/// better than they are, and a text that ends earlier than the others saves only its own rows. Measured with eight
/// texts that can hardly be drafted for, five runs each: 0.91 to 0.97 of plain decoding without it, 0.95 to 1.03 with
/// it.
const COMPANY: f64 = 0.25;

/// What the decisions of one pass go by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weighing {
    /// Sequences that write in it.
    pub(crate) writers: usize,
    /// Rows that the pass has without any tree.
    rows: usize,
    /// Tokens of its sequences, on average.
    context: usize,
    /// Nodes of all trees of the last pass.
    nodes: usize,
    /// Tokens a second, all sequences together.
    rate: f64,
    /// Seconds of a plain pass of the writers alone.
    plain: f64,
    /// Least that a row costs, in tokens.
    row_min: f64,
}

impl Weighing {
    /// Weighs a pass of what is scheduled.
    pub(crate) fn new(running: &[Sequence], scheduled: &[Scheduled], costs: &Costs) -> Self {
        let writers = scheduled.iter().filter(|entry| entry.complete).count();
        let tokens: usize = scheduled.iter().map(|entry| running[entry.at].tokens.len()).sum();
        let context = tokens / scheduled.len().max(1);
        let plain = costs.pass(writers.max(1), context);
        let speedups = scheduled.iter().filter(|entry| entry.complete);
        let speedups: f64 = speedups.map(|entry| running[entry.at].experience.speedup()).sum();
        // Where nobody writes yet, one will.
        let speedups = if writers == 0 { 1.0 } else { speedups };
        let rows = scheduled.iter().map(|entry| entry.take).sum();
        let rate = speedups / plain * (1.0 + COMPANY * (1.0 - 1.0 / writers.max(1) as f64));
        // Where nobody drafts nobody asks for it.
        let drafts = running.iter().any(|sequence| !sequence.drafters.is_empty());
        let row_min = if drafts { rate * costs.row_min(rows, context) } else { 0.0 };
        let nodes = running.iter().map(|sequence| sequence.nodes_before).sum();
        Self { writers, rows, context, nodes, rate, plain, row_min }
    }

    /// The pass as [`foretoken_speculation::choose`] sees it. `probes`: rows beside the trees.
    pub(crate) fn pass_so_far(&self, probes: usize) -> PassSoFar {
        PassSoFar { rows: self.rows + probes, context: self.context, rate: self.rate }
    }

    /// Rows of a pass in which nobody drafts, and their context.
    pub(crate) fn undrafted(&self) -> (usize, usize) {
        (self.rows, self.context)
    }

    /// What a drafter goes by for a sequence that had so many nodes in the last pass: the others are taken to have
    /// theirs again.
    pub(crate) fn outlook<'a>(
        &self,
        nodes_before: usize,
        experience: &'a Experience,
        costs: &'a Costs,
        unique: f64,
    ) -> Outlook<'a> {
        let Self { rate, context, row_min, .. } = *self;
        Outlook { costs, experience, rate, rows: self.rows + self.nodes - nodes_before, context, unique, row_min }
    }

    /// What a pass took in all, in plain passes of the same writers: `nodes` of all trees and `drafting` seconds. Rows
    /// of prompts are not counted, which plain decoding would have had as well.
    pub(crate) fn plain_passes(&self, costs: &Costs, nodes: usize, drafting: f64) -> f64 {
        (costs.pass(self.writers + nodes, self.context) + drafting) / self.plain
    }

    /// What a pass with so many nodes takes, in seconds by what is known of costs.
    pub(crate) fn seconds(&self, costs: &Costs, nodes: usize) -> f64 {
        costs.pass(self.rows + nodes, self.context)
    }

    /// Whether a drafter should be asked for this sequence after those `before`.
    pub(crate) fn is_worth_asking(&self, sequence: &Sequence, costs: &Costs, who: Who, before: &[u8]) -> bool {
        let unique = unique(&sequence.experience, before, who.number);
        let outlook = self.outlook(sequence.nodes_before, &sequence.experience, costs, unique);
        let drafter = costs.drafter(who.number);
        if !who.has_network {
            let probes = self.price_of_rows(costs, who.probes);
            let right = sequence.experience.right_per_ask(who.number) * unique;
            // Every right guess needs a row at least, and so does every drawn one.
            let rows = right.max(sequence.experience.drawn_per_ask(who.number));
            return right - rows * self.row_min > self.rate * (drafter.call + probes);
        }
        let prospect = outlook.prospect(who.number, Branch::root(who.nodes_max));
        let unread = who.unread.saturating_sub(READ_ALONG) as f64;
        // A pass of its own for each token, next to a longer one for several.
        let plain = self.plain / self.writers.max(1) as f64;
        let saved = plain - (plain + prospect.seconds) / (1.0 + prospect.tokens);
        prospect.steps > 0 && sequence.left() * saved > unread * drafter.catch_up
    }

    /// Whether a drafter without a network is to be asked in this pass: always, unless it was asked in vain for a
    /// while.
    pub(crate) fn is_due(&self, sequence: &Sequence, costs: &Costs, who: Who) -> bool {
        if who.has_network || sequence.asked_in_vain(who.number) < IN_VAIN_MIN {
            return true;
        }
        let all = OFFER * costs.drafter(who.number).call * self.writers as f64;
        let between = (all / (IN_VAIN * self.plain)).ceil().clamp(1.0, PASSES_BETWEEN);
        // Not all sequences in the same pass.
        sequence.id.0.wrapping_add(sequence.stats.passes as u64).is_multiple_of(between as u64)
    }

    /// What it takes to ask a drafter that is not worth it for one token.
    pub(crate) fn trial(&self, sequence: &Sequence, costs: &Costs, who: Who) -> f64 {
        let drafter = costs.drafter(who.number);
        let network = drafter.step + who.unread as f64 * drafter.catch_up + self.price_of_rows(costs, 1);
        let drawn = sequence.experience.drawn_per_ask(who.number).ceil() as usize;
        let own = if who.has_network { network } else { self.price_of_rows(costs, drawn) };
        drafter.call + self.price_of_rows(costs, who.probes) + own
    }

    fn price_of_rows(&self, costs: &Costs, rows: usize) -> f64 {
        if rows == 0 {
            return 0.0;
        }
        costs.pass(self.rows.saturating_add(rows), self.context) - costs.pass(self.rows, self.context)
    }
}

/// Part of what a drafter adds to those that were asked before it: the square root of that of its right guesses which
/// nobody else has, between nothing and all of it, since agreeing makes a guess surer. (Of the three the root measured
/// best.)
pub(crate) fn unique(experience: &Experience, asked: &[u8], number: u8) -> f64 {
    if asked.is_empty() { 1.0 } else { experience.uniqueness(number).sqrt() }
}

/// A drafter that could be asked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Who {
    pub(crate) number: u8,
    /// Whether it runs a network.
    pub(crate) has_network: bool,
    /// Tokens of the sequence that this has not read.
    pub(crate) unread: usize,
    /// Rows that it wants beside the tree.
    pub(crate) probes: usize,
    /// Nodes that the tree may have.
    pub(crate) nodes_max: usize,
}

/// Time that may be spent on trying drafters that rest, by drafter.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trials {
    seconds: Vec<f64>,
}

impl Trials {
    /// Adds the part of a pass of so many seconds that is due to each of these drafters.
    pub(crate) fn earn(&mut self, drafters: &[u8], seconds: f64) {
        for drafter in drafters {
            let at = usize::from(*drafter);
            self.seconds.resize(self.seconds.len().max(at + 1), 0.0);
            self.seconds[at] = (self.seconds[at] + TRIALS * seconds / drafters.len() as f64).min(ACCOUNT_MAX);
        }
    }

    /// A drafter that pays for everyone is asked anyway: what counts for trials is the time since then.
    pub(crate) fn clear(&mut self, drafter: u8) {
        if let Some(account) = self.seconds.get_mut(usize::from(drafter)) {
            *account = 0.0;
        }
    }

    /// Takes what a trial took beyond its price.
    pub(crate) fn charge(&mut self, drafter: u8, seconds: f64) {
        if let Some(account) = self.seconds.get_mut(usize::from(drafter)) {
            *account -= seconds.max(0.0);
        }
    }

    /// Whether there is enough time for trying this drafter at this price; it is spent then.
    pub(crate) fn spend(&mut self, drafter: u8, price: f64) -> bool {
        match self.seconds.get_mut(usize::from(drafter)) {
            Some(account) if *account >= price => {
                *account -= price;
                true
            }
            _ => false,
        }
    }
}
