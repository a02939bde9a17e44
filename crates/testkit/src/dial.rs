//! The enumerator: a [`Chance`] that walks every outcome and adds up exact probabilities.
//!
//! A program that takes all its chance from one [`Dial`] is run again and again. Each run follows a trail of decisions;
//! after it, the last decision that has another outcome is turned by one, and what came after is forgotten (after the
//! *exhaustigen* idea). The result is not an estimate: it is the law of the program, up to rounding, and a difference
//! of 1e-9 from the expected law means a bug.
//!
//! A dial takes every question as independent of every other. That is what addresses promise, so a question asked twice
//! at one address would make the enumeration lie, and panics instead, with the address. The exception is the race under
//! *exact*, which drafter and target run with the same noise on purpose: [`enumerate_coupled`] lets it be asked again
//! and treats the answers as independent, which is one of the couplings for which *exact* must hold.
//!
//! [`enumerate_by_address`] is for programs that ask again where they should not. There an address has one noise, as in
//! production: a number between 0 and 1 that no one knows, of which every answer tells a little. So the same question
//! gets the same answer, another question at that address an answer that fits, and the law is that of the program as it
//! would run. It shows what a shared address does to a law.

use std::collections::BTreeMap;

use foretoken_speculation::{Address, Chance, Law, Purpose, Token};

/// A source of chance that has been set to one outcome.
#[derive(Debug, Default)]
pub struct Dial {
    trail: Vec<Turn>,
    /// Decisions taken in this run.
    taken: usize,
    /// Probability of this run so far.
    weight: f64,
    asked: Vec<Address>,
    again: Again,
    /// By address and place in a draw: the bounds between which the noise is known to lie. Only where noise is shared.
    noise: BTreeMap<(Address, usize), (f64, f64)>,
}

/// What is done when an address is asked a second time.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
enum Again {
    /// It panics.
    #[default]
    Refused,
    /// The race is answered independently, all others panic.
    IndependentRace,
    /// It is answered with the same noise.
    SameNoise,
}

/// A part of the noise that is smaller than this is a rounding error of two bounds that are equal.
const SLIVER: f64 = 1e-12;

/// One decision: the outcomes of positive probability, and which of them the current run takes.
#[derive(Debug)]
struct Turn {
    outcome: usize,
    outcomes: Vec<(usize, f64)>,
}

/// The law of what `f` returns, over every outcome of its chance.
///
/// ```
/// use foretoken_speculation::{Address, Chance};
/// let law = foretoken_testkit::dial::enumerate(|dial| dial.coin(0.25, Address::token(0, 0)));
/// assert_eq!((law[&true], law[&false]), (0.25, 0.75));
/// ```
///
/// # Panics
///
/// Panics if one run asks twice at one address, or if `f` depends on anything but its dial.
pub fn enumerate<R: Ord>(f: impl FnMut(&mut Dial) -> R) -> BTreeMap<R, f64> {
    Dial::default().walk(f)
}

/// The same, where [`Purpose::Token`] may be asked again at one address, with independent answers.
///
/// # Panics
///
/// As [`enumerate`], for the other purposes.
pub fn enumerate_coupled<R: Ord>(f: impl FnMut(&mut Dial) -> R) -> BTreeMap<R, f64> {
    Dial { again: Again::IndependentRace, ..Dial::default() }.walk(f)
}

/// The same, where everything may be asked again: an address has one noise, of which its answers are a function.
///
/// ```
/// use foretoken_speculation::{Address, Chance};
/// let at = Address::token(0, 0);
/// let law = foretoken_testkit::dial::enumerate_by_address(|dial| (dial.coin(0.25, at), dial.coin(0.75, at)));
/// // The lesser probability is that of heads in both: such coins never fall as (true, false).
/// assert_eq!((law[&(true, true)], law[&(false, true)], law[&(false, false)]), (0.25, 0.5, 0.25));
/// ```
///
/// # Panics
///
/// Panics if `f` depends on anything but its dial.
pub fn enumerate_by_address<R: Ord>(f: impl FnMut(&mut Dial) -> R) -> BTreeMap<R, f64> {
    Dial { again: Again::SameNoise, ..Dial::default() }.walk(f)
}

impl Dial {
    fn walk<R: Ord>(mut self, mut f: impl FnMut(&mut Dial) -> R) -> BTreeMap<R, f64> {
        let mut law = BTreeMap::new();
        loop {
            self.taken = 0;
            self.weight = 1.0;
            self.asked.clear();
            self.noise.clear();
            let result = f(&mut self);
            assert!(self.taken == self.trail.len(), "the run took {} of {} turns", self.taken, self.trail.len());
            *law.entry(result).or_insert(0.0) += self.weight;
            if !self.turn() {
                break;
            }
        }
        let total: f64 = law.values().sum();
        assert!((total - 1.0).abs() < 1e-9, "the outcomes have probability {total}");
        law
    }

    /// Sets the next outcome; whether there is one.
    fn turn(&mut self) -> bool {
        while let Some(last) = self.trail.last_mut() {
            last.outcome += 1;
            if last.outcome < last.outcomes.len() {
                return true;
            }
            self.trail.pop();
        }
        false
    }

    /// Takes the next decision among outcomes of these weights.
    fn choose(&mut self, weights: &[f64]) -> usize {
        if self.taken == self.trail.len() {
            let total: f64 = weights.iter().sum();
            let possible = weights.iter().enumerate().filter(|&(_, &weight)| weight > 0.0);
            let outcomes: Vec<_> = possible.map(|(i, weight)| (i, weight / total)).collect();
            assert!(!outcomes.is_empty(), "nothing can happen: {weights:?}");
            self.trail.push(Turn { outcome: 0, outcomes });
        }
        let turn = &self.trail[self.taken];
        let (choice, probability) = turn.outcomes[turn.outcome];
        assert!(weights[choice] > 0.0, "the program changed between runs: {weights:?} at turn {}", self.taken);
        self.taken += 1;
        self.weight *= probability;
        choice
    }

    fn note(&mut self, address: Address) {
        let again = self.asked.contains(&address);
        let allowed = match self.again {
            Again::Refused => false,
            Again::IndependentRace => address.purpose == Purpose::Token,
            Again::SameNoise => true,
        };
        assert!(!again || allowed, "asked twice at {address:?}");
        self.asked.push(address);
    }

    /// Takes the decision of one place of a draw at an address.
    fn decide(&mut self, address: Address, place: usize, weights: &[f64]) -> usize {
        if self.again != Again::SameNoise {
            return self.choose(weights);
        }
        // Each outcome has a stretch of the noise, in the order of the outcomes and as long as it is probable. Of these
        // stretches only what lies within the bounds of what is known can still be.
        let (low, high) = self.noise.get(&(address, place)).copied().unwrap_or((0.0, 1.0));
        let total: f64 = weights.iter().sum();
        let mut end = 0.0;
        let stretches: Vec<(f64, f64)> = weights
            .iter()
            .map(|weight| {
                let start = end;
                end += weight;
                ((start / total).max(low), (end / total).min(high))
            })
            .collect();
        let left = |(from, to): &(f64, f64)| if to - from > SLIVER * (high - low) { to - from } else { 0.0 };
        let choice = self.choose(&stretches.iter().map(left).collect::<Vec<f64>>());
        self.noise.insert((address, place), stretches[choice]);
        choice
    }
}

impl Chance for Dial {
    fn draw(&mut self, law: &Law, count: usize, address: Address, out: &mut Vec<Token>) {
        self.note(address);
        out.clear();
        let mut weights = law.probabilities().to_vec();
        for place in 0..count.min(law.support_len()) {
            let choice = self.decide(address, place, &weights);
            weights[choice] = 0.0;
            out.push(law.tokens()[choice]);
        }
    }

    fn coin(&mut self, probability: f64, address: Address) -> bool {
        assert!((0.0..=1.0).contains(&probability), "a coin of probability {probability} at {address:?}");
        self.note(address);
        self.decide(address, 0, &[probability, 1.0 - probability]) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn successive_draws_are_without_replacement() {
        let law = Law::from_pairs([(3, 0.5), (5, 0.3), (9, 0.2)]);
        let drawn = enumerate(|dial| {
            let mut out = Vec::new();
            dial.draw(&law, 2, Address::token(0, 0), &mut out);
            out
        });
        assert_eq!(drawn.len(), 6);
        assert!((drawn[&vec![5, 9]] - 0.3 * 0.2 / 0.7).abs() < 1e-15);
        let all = enumerate(|dial| {
            let mut out = Vec::new();
            dial.draw(&law, 7, Address::token(0, 0), &mut out);
            out.len()
        });
        assert_eq!(all.into_keys().collect::<Vec<_>>(), [3]);
    }

    #[test]
    fn what_is_asked_next_may_depend_on_what_was_answered() {
        // Coins until heads, at most four.
        let law = enumerate(|dial| (0..4).take_while(|&i| !dial.coin(0.5, Address::token(0, i))).count());
        assert_eq!(law.into_values().collect::<Vec<_>>(), [0.5, 0.25, 0.125, 0.0625, 0.0625]);
    }

    #[test]
    #[should_panic(expected = "asked twice")]
    fn one_address_is_asked_once() {
        enumerate(|dial| dial.coin(0.5, Address::token(0, 0)) & dial.coin(0.5, Address::token(0, 0)));
    }

    #[test]
    fn the_race_may_be_run_again_when_coupled() {
        let law = Law::from_pairs([(0, 0.5), (1, 0.5)]);
        let race = |dial: &mut Dial| dial.pick(&law, Address::token(0, 0));
        assert_eq!(enumerate_coupled(|dial| (race(dial), race(dial))).len(), 4);
        assert_eq!(enumerate_by_address(|dial| (race(dial), race(dial))).len(), 2);
    }

    #[test]
    fn one_noise_answers_every_question_at_its_address_by_the_law_of_that_question() {
        let (p, q) = (Law::from_pairs([(0, 0.5), (1, 0.3), (2, 0.2)]), Law::from_pairs([(0, 0.1), (2, 0.9)]));
        let found = enumerate_by_address(|dial| {
            let mut drawn = [Vec::new(), Vec::new(), Vec::new()];
            let at = Address::token(0, 0);
            dial.draw(&p, 2, at, &mut drawn[0]);
            dial.draw(&q, 1, at, &mut drawn[1]);
            dial.draw(&p, 2, at, &mut drawn[2]);
            drawn
        });
        assert!(found.keys().all(|[first, _, again]| first == again));
        for (law, which) in [(&p, 0), (&q, 1)] {
            for (token, probability) in law.iter() {
                let sum: f64 = found.iter().filter(|(drawn, _)| drawn[which][0] == token).map(|(_, p)| p).sum();
                assert!((sum - probability).abs() < 1e-12, "{which}: {sum} for {probability} of {token}");
            }
        }
    }
}
