//! Span copying (LLMA): settings, options and constructor of the drafter.
//!
//! Yang et al. 2023 call the two values n and k.

use foretoken_drafters::LlmaDrafter;
use serde::{Deserialize, Serialize};

use super::options::{RUN, option};
use super::{Created, DrafterInputs, DrafterOption, Field};

/// Settings of span copying (LLMA).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LlmaSettings {
    /// How many of the answer's last tokens must occur in the prompt, 1 to 64; n of the paper.
    pub run_min: usize,
    /// The most tokens copied in a pass; k of the paper.
    pub nodes_max: usize,
}

impl Default for LlmaSettings {
    fn default() -> Self {
        Self { run_min: 1, nodes_max: 7 }
    }
}

pub(super) const OPTIONS: &[DrafterOption] = &[
    option("llma.run_min", "llma-match", |all| Field::Whole(&mut all.llma.run_min, RUN))
        .help("llma: how many of the answer's last tokens must occur in the prompt, n of the paper"),
    option("llma.nodes_max", "llma-copy", |all| Field::Nodes(&mut all.llma.nodes_max))
        .help("llma: most tokens copied in a pass, k of the paper"),
];

pub(super) fn make(inputs: &DrafterInputs<'_>) -> Created {
    let LlmaSettings { run_min, nodes_max } = inputs.settings.llma;
    Ok(Box::new(LlmaDrafter::new(run_min, nodes_max)))
}
