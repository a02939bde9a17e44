//! Sampling settings out of range, reported in a form that can be shown to users.
//!
//! Values come from command lines and requests, so a wrong one is bad input and not a bug; but computing a law returns
//! no `Result`. So the settings are checked once where they enter, and laws assert that they were.

use std::fmt;

use super::Sampling;

/// A setting that is out of range: which, what it should be, what it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SamplingProblem {
    /// The field of [`Sampling`]. The command line and the server replace it by their option's name.
    pub field: &'static str,
    /// The values that are allowed, to be read after "expected".
    pub expected: &'static str,
    /// What was found.
    pub found: String,
}

impl fmt::Display for SamplingProblem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: expected {}, found {}", self.field, self.expected, self.found)
    }
}

impl std::error::Error for SamplingProblem {}

impl Sampling {
    /// The first setting that is out of range, if any. NaN is out of every range.
    pub fn problem(&self) -> Option<SamplingProblem> {
        let &Sampling { temperature, top_p, min_p, typical_p, repetition_penalty, .. } = self;
        let checks = [
            ("temperature", "a number from 0 up", temperature, temperature >= 0.0),
            ("top_p", "a number from 0 to 1", top_p, (0.0..=1.0).contains(&top_p)),
            ("min_p", "a number from 0 to 1", min_p, (0.0..=1.0).contains(&min_p)),
            ("typical_p", "a number above 0 and up to 1", typical_p, typical_p > 0.0 && typical_p <= 1.0),
            ("repetition_penalty", "a number above 0", repetition_penalty, repetition_penalty > 0.0),
            ("presence_penalty", "a finite number", self.presence_penalty, true),
            ("frequency_penalty", "a finite number", self.frequency_penalty, true),
        ];
        let wrong = checks.into_iter().find(|&(.., value, in_range)| !in_range || !value.is_finite());
        if let Some((field, expected, found, _)) = wrong {
            return Some(SamplingProblem { field, expected, found: found.to_string() });
        }
        // Minus infinity is allowed, as a ban; plus infinity would make "minus infinity plus bias" meaningless.
        let bias = self.logit_bias.iter().find(|(_, bias)| bias.is_nan() || *bias == f32::INFINITY);
        bias.map(|(token, bias)| SamplingProblem {
            field: "logit_bias",
            expected: "finite numbers or minus infinity",
            found: format!("{bias} for token {token}"),
        })
    }
}
