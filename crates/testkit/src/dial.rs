//! The enumerator: a [`Chance`] that walks every outcome and adds up exact probabilities.
//!
//! A program that takes all its chance from one [`Dial`] is run again and again. Each run follows a trail of decisions;
//! after it, the last decision that has another outcome is turned by one, and what came after is forgotten (after the
//! *exhaustigen* idea). The result is not an estimate: it is the law of the program, up to rounding, and a difference of
//! 1e-9 from the expected law means a bug.
//!
//! A dial takes every question as independent of every other. That is what addresses promise, so a question asked twice
//! at one address would make the enumeration lie, and panics instead, with the address. The exception is the race under
//! *exact*, which drafter and target run with the same noise on purpose: [`enumerate_coupled`] lets it be asked again
//! and treats the answers as independent, which is one of the couplings for which *exact* must hold.

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
    coupled: bool,
}

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
    Dial { coupled: true, ..Dial::default() }.walk(f)
}

impl Dial {
    fn walk<R: Ord>(mut self, mut f: impl FnMut(&mut Dial) -> R) -> BTreeMap<R, f64> {
        let mut law = BTreeMap::new();
        loop {
            self.taken = 0;
            self.weight = 1.0;
            self.asked.clear();
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
        let allowed = self.coupled && address.purpose == Purpose::Token;
        assert!(!again || allowed, "asked twice at {address:?}");
        self.asked.push(address);
    }
}

impl Chance for Dial {
    fn draw(&mut self, law: &Law, count: usize, address: Address, out: &mut Vec<Token>) {
        self.note(address);
        out.clear();
        let mut weights = law.probabilities().to_vec();
        for _ in 0..count.min(law.support_len()) {
            let choice = self.choose(&weights);
            weights[choice] = 0.0;
            out.push(law.tokens()[choice]);
        }
    }

    fn coin(&mut self, probability: f64, address: Address) -> bool {
        assert!((0.0..=1.0).contains(&probability), "a coin of probability {probability} at {address:?}");
        self.note(address);
        self.choose(&[probability, 1.0 - probability]) == 0
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
    }
}
