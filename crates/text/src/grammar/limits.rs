//! How much of the library's work one place of a text may take.
//!
//! A parser keeps what it has worked out, for all its places at once, so what it takes depends on where else it was: on
//! guesses, above all. Therefore the limit is what a parser takes that comes from the beginning, goes to the place, and
//! is asked there once. One that has been elsewhere takes no less in all; so as long as it has not grown beyond, nobody
//! has to ask the other. It is replaced at half the limit already: by what it knows it may find a short cut that one
//! from the beginning does not see.
//!
//! So whether a limit is reached is a matter of the text alone, whatever was guessed. Left out: the items of a single
//! mask, which the library counts from zero each time.

use llguidance::earley::regexvec::LexerStats;

/// Lexer work for one place, in the library's fuel of some 70 nanoseconds.
const FUEL_MAX: usize = 2_000_000;
/// States of a lexer, 1 or 2 kB each.
const STATES_MAX: usize = 250_000;

/// What a parser has taken so far.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Taken {
    pub fuel: usize,
    pub states: usize,
}

/// What a parser may take.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    /// What it had taken at the beginning of all texts.
    pub before: Taken,
    pub most: Taken,
}

/// Told to the library: what it may use for one mask, and how many states it may make. The first is twice what a place
/// may take, so that what is left of one mask is enough for what comes before the next.
pub(super) fn of_library() -> (u64, usize) {
    (2 * FUEL_MAX as u64, STATES_MAX)
}

impl Limits {
    /// Those of texts that begin with a parser which has taken this.
    pub fn new(before: Taken) -> Limits {
        Limits { before, most: Taken { fuel: before.fuel + FUEL_MAX, states: STATES_MAX } }
    }

    /// Half of what may be taken beyond the beginning.
    pub fn half(self) -> Limits {
        let half = |before: usize, most: usize| before + most.saturating_sub(before) / 2;
        let Limits { before, most } = self;
        let (fuel, states) = (half(before.fuel, most.fuel), half(before.states, most.states));
        Limits { before, most: Taken { fuel, states } }
    }

    /// Whether no more was taken; which limit was passed, if not.
    pub fn hold(&self, taken: Taken) -> Result<(), String> {
        let most = self.most;
        let passed = |what: &str, taken: usize, most: usize| {
            Err(format!("expected at most {most} {what} of the lexer, found {taken}"))
        };
        if taken.fuel > most.fuel {
            passed("units of work", taken.fuel - self.before.fuel, most.fuel - self.before.fuel)
        } else if taken.states > most.states {
            passed("states", taken.states, most.states)
        } else {
            Ok(())
        }
    }
}

impl Taken {
    /// By the library's own count.
    pub fn of(stats: &LexerStats) -> Taken {
        Taken { fuel: stats.total_fuel_spent, states: stats.num_states }
    }
}

#[cfg(test)]
mod tests;
