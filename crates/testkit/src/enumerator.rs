//! The enumerator: a [`Chance`] that walks every outcome and adds up exact probabilities.
//!
//! A program that takes all its chance from one [`Enumerator`] is run many times. Each run follows a list of decisions;
//! after it, the last decision that has another outcome takes its next one, and later decisions are dropped (after the
//! *exhaustigen* idea). The result is not an estimate: it is the law of the program, up to rounding, and a difference
//! of 1e-9 from the expected law is a bug.
//!
//! All draws are treated as independent, which is right if their addresses differ. A second draw at one address would
//! make the result wrong, so it panics with the address. The exception is the race under *exact*, which drafter and
//! target run with the same noise on purpose: [`enumerate_coupled`] allows it to be repeated and treats the answers as
//! independent, which is one of the couplings for which *exact* must hold.
//!
//! [`enumerate_by_address`] is for programs that use an address twice although they must not. There an address has one
//! noise, as in the engine: an unknown number between 0 and 1, which every answer narrows down. So the same draw gets
//! the same answer, another draw at that address gets a consistent one, and the law is that of the program as it would
//! run. This shows what a shared address does to a law.

use std::collections::BTreeMap;

use foretoken_speculation::{Address, Chance, Law, Purpose, Token};

/// A source of chance that gives the outcomes of one run after the other.
#[derive(Debug, Default)]
pub struct Enumerator {
    decisions: Vec<Decision>,
    /// Number of decisions taken in this run.
    taken: usize,
    /// Probability of this run so far.
    weight: f64,
    /// The addresses of this run's draws.
    used: Vec<Address>,
    on_repeat: OnRepeat,
    /// The bounds of the noise that are known so far, for each address and index in a draw. Only with
    /// [`OnRepeat::SameNoise`].
    noise: BTreeMap<(Address, usize), (f64, f64)>,
}

/// What happens when an address is used a second time.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
enum OnRepeat {
    /// It panics.
    #[default]
    Refused,
    /// The race is answered independently, all other draws panic.
    IndependentRace,
    /// The answer has the same noise.
    SameNoise,
}

/// An interval of the noise below this length, relative to its bounds, is a rounding error of equal bounds.
const NOISE_MIN: f64 = 1e-12;

/// One decision: the outcomes of positive probability, and the index of the one that the current run takes.
#[derive(Debug)]
struct Decision {
    outcome: usize,
    outcomes: Vec<(usize, f64)>,
}

/// The law of what `f` returns, over all outcomes of its chance.
///
/// ```
/// use foretoken_speculation::{Address, Chance};
/// let law = foretoken_testkit::enumerator::enumerate(|chance| chance.coin(0.25, Address::token(0, 0)));
/// assert_eq!((law[&true], law[&false]), (0.25, 0.75));
/// ```
///
/// # Panics
///
/// Panics if one run draws twice at one address, or if `f` depends on anything but its chance.
pub fn enumerate<R: Ord>(f: impl FnMut(&mut Enumerator) -> R) -> BTreeMap<R, f64> {
    Enumerator::default().walk(f)
}

/// Like [`enumerate`], but draws of [`Purpose::Token`] may repeat an address, with independent answers.
///
/// # Panics
///
/// As [`enumerate`], for the other purposes.
pub fn enumerate_coupled<R: Ord>(f: impl FnMut(&mut Enumerator) -> R) -> BTreeMap<R, f64> {
    Enumerator { on_repeat: OnRepeat::IndependentRace, ..Enumerator::default() }.walk(f)
}

/// Like [`enumerate`], but all draws may repeat an address: an address has one noise, of which its answers are
/// functions.
///
/// ```
/// use foretoken_speculation::{Address, Chance};
/// let at = Address::token(0, 0);
/// let coins = |chance: &mut dyn Chance| (chance.coin(0.25, at), chance.coin(0.75, at));
/// let law = foretoken_testkit::enumerator::enumerate_by_address(|chance| coins(chance));
/// // If the coin of probability 0.25 is true, so is that of 0.75: (true, false) never happens.
/// assert_eq!((law[&(true, true)], law[&(false, true)], law[&(false, false)]), (0.25, 0.5, 0.25));
/// ```
///
/// # Panics
///
/// Panics if `f` depends on anything but its chance.
pub fn enumerate_by_address<R: Ord>(f: impl FnMut(&mut Enumerator) -> R) -> BTreeMap<R, f64> {
    Enumerator { on_repeat: OnRepeat::SameNoise, ..Enumerator::default() }.walk(f)
}

impl Enumerator {
    fn walk<R: Ord>(mut self, mut f: impl FnMut(&mut Enumerator) -> R) -> BTreeMap<R, f64> {
        let mut law = BTreeMap::new();
        loop {
            self.taken = 0;
            self.weight = 1.0;
            self.used.clear();
            self.noise.clear();
            let result = f(&mut self);
            let decisions = self.decisions.len();
            assert!(self.taken == decisions, "the run took {} of {decisions} decisions", self.taken);
            *law.entry(result).or_insert(0.0) += self.weight;
            if !self.next_outcome() {
                break;
            }
        }
        let total: f64 = law.values().sum();
        assert!((total - 1.0).abs() < 1e-9, "the outcomes have probability {total}");
        law
    }

    /// Goes to the next outcome; returns whether there is one.
    fn next_outcome(&mut self) -> bool {
        while let Some(last) = self.decisions.last_mut() {
            last.outcome += 1;
            if last.outcome < last.outcomes.len() {
                return true;
            }
            self.decisions.pop();
        }
        false
    }

    /// Takes the next decision among outcomes with these weights.
    fn choose(&mut self, weights: &[f64]) -> usize {
        if self.taken == self.decisions.len() {
            let total: f64 = weights.iter().sum();
            let possible = weights.iter().enumerate().filter(|&(_, &weight)| weight > 0.0);
            let outcomes: Vec<_> = possible.map(|(i, weight)| (i, weight / total)).collect();
            assert!(!outcomes.is_empty(), "no outcome is possible: {weights:?}");
            self.decisions.push(Decision { outcome: 0, outcomes });
        }
        let decision = &self.decisions[self.taken];
        let (choice, probability) = decision.outcomes[decision.outcome];
        assert!(weights[choice] > 0.0, "the program changed between runs: {weights:?} at decision {}", self.taken);
        self.taken += 1;
        self.weight *= probability;
        choice
    }

    fn record(&mut self, address: Address) {
        let is_repeated = self.used.contains(&address);
        let allowed = match self.on_repeat {
            OnRepeat::Refused => false,
            OnRepeat::IndependentRace => address.purpose == Purpose::Token,
            OnRepeat::SameNoise => true,
        };
        assert!(!is_repeated || allowed, "used twice at {address:?}");
        self.used.push(address);
    }

    /// Takes the decision of the `index`th token of a draw at an address.
    fn decide(&mut self, address: Address, index: usize, weights: &[f64]) -> usize {
        if self.on_repeat != OnRepeat::SameNoise {
            return self.choose(weights);
        }
        // Each outcome has an interval of the noise, in the order of the outcomes and with its probability as length.
        // Only the parts within the bounds that are known so far are possible.
        let (low, high) = self.noise.get(&(address, index)).copied().unwrap_or((0.0, 1.0));
        let total: f64 = weights.iter().sum();
        let mut end = 0.0;
        let intervals: Vec<(f64, f64)> = weights
            .iter()
            .map(|weight| {
                let start = end;
                end += weight;
                ((start / total).max(low), (end / total).min(high))
            })
            .collect();
        let left = |(from, to): &(f64, f64)| if to - from > NOISE_MIN * (high - low) { to - from } else { 0.0 };
        let choice = self.choose(&intervals.iter().map(left).collect::<Vec<f64>>());
        self.noise.insert((address, index), intervals[choice]);
        choice
    }
}

impl Chance for Enumerator {
    fn draw(&mut self, law: &Law, count: usize, address: Address, out: &mut Vec<Token>) {
        self.record(address);
        out.clear();
        let mut weights = law.probabilities().to_vec();
        for index in 0..count.min(law.support_len()) {
            let choice = self.decide(address, index, &weights);
            weights[choice] = 0.0;
            out.push(law.tokens()[choice]);
        }
    }

    fn coin(&mut self, probability: f64, address: Address) -> bool {
        assert!((0.0..=1.0).contains(&probability), "a coin of probability {probability} at {address:?}");
        self.record(address);
        self.decide(address, 0, &[probability, 1.0 - probability]) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn successive_draws_are_without_replacement() {
        let law = Law::from_pairs([(3, 0.5), (5, 0.3), (9, 0.2)]);
        let drawn = enumerate(|chance| {
            let mut out = Vec::new();
            chance.draw(&law, 2, Address::token(0, 0), &mut out);
            out
        });
        assert_eq!(drawn.len(), 6);
        assert!((drawn[&vec![5, 9]] - 0.3 * 0.2 / 0.7).abs() < 1e-15);
        let all = enumerate(|chance| {
            let mut out = Vec::new();
            chance.draw(&law, 7, Address::token(0, 0), &mut out);
            out.len()
        });
        assert_eq!(all.into_keys().collect::<Vec<_>>(), [3]);
    }

    #[test]
    fn later_draws_may_depend_on_earlier_answers() {
        // The program tosses coins until one is true, at most four.
        let law = enumerate(|chance| (0..4).take_while(|&i| !chance.coin(0.5, Address::token(0, i))).count());
        assert_eq!(law.into_values().collect::<Vec<_>>(), [0.5, 0.25, 0.125, 0.0625, 0.0625]);
    }

    #[test]
    #[should_panic(expected = "used twice")]
    fn a_second_draw_at_an_address_panics() {
        enumerate(|chance| chance.coin(0.5, Address::token(0, 0)) & chance.coin(0.5, Address::token(0, 0)));
    }

    #[test]
    fn a_coupled_race_may_be_repeated() {
        let law = Law::from_pairs([(0, 0.5), (1, 0.5)]);
        let race = |chance: &mut Enumerator| chance.pick(&law, Address::token(0, 0));
        assert_eq!(enumerate_coupled(|chance| (race(chance), race(chance))).len(), 4);
        assert_eq!(enumerate_by_address(|chance| (race(chance), race(chance))).len(), 2);
    }

    #[test]
    fn draws_that_share_a_noise_have_their_own_laws() {
        let (p, q) = (Law::from_pairs([(0, 0.5), (1, 0.3), (2, 0.2)]), Law::from_pairs([(0, 0.1), (2, 0.9)]));
        let found = enumerate_by_address(|chance| {
            let mut drawn = [Vec::new(), Vec::new(), Vec::new()];
            let at = Address::token(0, 0);
            chance.draw(&p, 2, at, &mut drawn[0]);
            chance.draw(&q, 1, at, &mut drawn[1]);
            chance.draw(&p, 2, at, &mut drawn[2]);
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
