//! Jacobi lookahead: settings, options and constructor of the drafter.
//!
//! Its paper calls the three values W, N and G. Each column and each n-gram costs rows in every pass, so the defaults
//! are small.

use foretoken_drafters::JacobiDrafter;
use serde::{Deserialize, Serialize};

use super::options::option;
use super::{Created, DrafterInputs, DrafterOption, Field};

/// Settings of Jacobi lookahead.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct JacobiSettings {
    /// Columns of the window, W, 1 to 64; a pass has about W (N - 1) rows for it.
    pub window: usize,
    /// Tokens of an n-gram, N, 3 to 16.
    pub level: usize,
    /// The most n-grams verified in a pass, G, 1 to 64.
    pub guesses: usize,
}

impl Default for JacobiSettings {
    fn default() -> Self {
        Self { window: 3, level: 4, guesses: 2 }
    }
}

pub(super) const OPTIONS: &[DrafterOption] = &[
    option("jacobi.window", "lookahead-window", |all| Field::Whole(&mut all.jacobi.window, 1..=64))
        .help("jacobi: columns of the window, W; a pass has about W (N - 1) rows for it"),
    // An n-gram has its first token, at least one more of the window, and the one that is found.
    option("jacobi.level", "lookahead-level", |all| Field::Whole(&mut all.jacobi.level, 3..=16))
        .help("jacobi: tokens of an n-gram, N"),
    option("jacobi.guesses", "lookahead-guesses", |all| Field::Whole(&mut all.jacobi.guesses, 1..=64))
        .help("jacobi: most n-grams verified in a pass, G"),
];

pub(super) fn make(inputs: &DrafterInputs<'_>) -> Created {
    let JacobiSettings { window, level, guesses } = inputs.settings.jacobi;
    Ok(Box::new(JacobiDrafter::new(window, level, guesses)))
}
