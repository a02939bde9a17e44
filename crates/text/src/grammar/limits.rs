//! Limits on the library's work for one position of a text, independent of drafts.
//!
//! A parser's lexer keeps its tables for all positions it has visited, so its resource usage also depends on the drafts
//! that were tried. Therefore the limit is defined by a fresh parser that starts at the beginning, accepts the text,
//! and is queried once. A parser that has also visited other positions has used no less in total, so while it is within
//! the limit, the fresh one would be, too. It is replaced by a fresh one at half the limit already, since its tables
//! may let it take a shortcut that the fresh one does not have.
//!
//! So whether a limit is reached depends on the text alone, whatever was drafted. The items of a single mask are
//! limited by the library, which counts them from zero each time.

use llguidance::earley::regexvec::LexerStats;

/// Lexer work for one position, in the library's fuel of some 70 nanoseconds.
const FUEL_MAX: usize = 2_000_000;
/// Maximum number of states of a lexer, of 1 or 2 kB each.
const STATES_MAX: usize = 250_000;

/// What a parser has used so far.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct LexerUsage {
    pub fuel: usize,
    pub states: usize,
}

/// What a parser may use.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    /// The usage at the beginning of every text.
    pub baseline: LexerUsage,
    pub max: LexerUsage,
}

/// The library's own limits: fuel of one mask, and states. The fuel is twice that of a position, so that what one mask
/// leaves is enough for the queries before the next.
pub(super) fn library_limits() -> (u64, usize) {
    (2 * FUEL_MAX as u64, STATES_MAX)
}

impl Limits {
    /// The limits of texts whose initial parser has this usage.
    pub fn new(baseline: LexerUsage) -> Limits {
        Limits { baseline, max: LexerUsage { fuel: baseline.fuel + FUEL_MAX, states: STATES_MAX } }
    }

    /// Half of the allowance beyond the beginning.
    pub fn half(self) -> Limits {
        let half = |baseline: usize, max: usize| baseline + max.saturating_sub(baseline) / 2;
        let Limits { baseline, max } = self;
        let (fuel, states) = (half(baseline.fuel, max.fuel), half(baseline.states, max.states));
        Limits { baseline, max: LexerUsage { fuel, states } }
    }

    /// Checks a usage; the error names the limit that was exceeded.
    pub fn check(&self, usage: LexerUsage) -> Result<(), String> {
        let max = self.max;
        let exceeded = |what: &str, usage: usize, max: usize| {
            Err(format!("expected at most {max} {what} of the lexer, found {usage}"))
        };
        if usage.fuel > max.fuel {
            exceeded("units of work", usage.fuel - self.baseline.fuel, max.fuel - self.baseline.fuel)
        } else if usage.states > max.states {
            exceeded("states", usage.states, max.states)
        } else {
            Ok(())
        }
    }
}

impl LexerUsage {
    /// The usage by the library's count.
    pub fn of(stats: &LexerStats) -> LexerUsage {
        LexerUsage { fuel: stats.total_fuel_spent, states: stats.num_states }
    }
}

#[cfg(test)]
mod tests;
