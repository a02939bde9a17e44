//! The parameters of a law: fields, defaults, and a table of those that are one number.
//!
//! Code that checks, reads or reports such a number goes through [`Sampling::PARAMETERS`], so a new parameter needs a
//! field, its default and a row here. Its effect on a law is in `filter.rs` or in `edit.rs`.
//!
//! Values come from command lines and requests, so a wrong one is bad input and not a bug, but computing a law returns
//! no `Result`. Therefore values are checked once, as they enter ([`Sampling::problem`]), and computing a law asserts
//! that they were.

use std::fmt;

use self::ParameterKind::{Filter, Penalty, Temperature};
use crate::Token;

/// How the next token is chosen from the model's logits. The default changes nothing: temperature 1, all else off.
///
/// ```
/// use foretoken_speculation::{Context, Sampling};
/// let sampling = Sampling { temperature: 0.5, top_k: 2, ..Sampling::default() };
/// let law = sampling.law(&[0.0, 1.0, 2.0], &Context::EMPTY);
/// assert_eq!(law.tokens(), [1, 2]);
/// assert!((law.probability(2) / law.probability(1) - f64::exp(2.0)).abs() < 1e-12);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// Logits are divided by this; at 0 the most probable token is taken (greedy decoding).
    pub temperature: f32,
    /// Keeps only the k most probable tokens; 0 is off.
    pub top_k: usize,
    /// Keeps only the smallest set of most probable tokens that has this mass; 1 is off.
    pub top_p: f32,
    /// Keeps only tokens at least this fraction as probable as the most probable one; 0 is off.
    pub min_p: f32,
    /// Keeps only the tokens nearest to the entropy that together have this mass (Meister et al. 2022); 1 is off.
    pub typical_p: f32,
    /// Logits of tokens written before are divided by this if positive, multiplied if negative; 1 is off.
    pub repetition_penalty: f32,
    /// Subtracted from the logits of tokens written before; 0 is off.
    pub presence_penalty: f32,
    /// Subtracted from logits once for each time that the token was written before; 0 is off.
    pub frequency_penalty: f32,
    /// The number of last tokens, prompt included, that the three penalties count (llama.cpp's `--repeat-last-n`; 0
    /// switches them off); `None` is all of them.
    pub penalty_window: Option<usize>,
    /// Added to the logits of tokens; minus infinity bans.
    pub logit_bias: Vec<(Token, f32)>,
    /// Tokens that are never written.
    pub banned_tokens: Vec<Token>,
    /// End tokens are banned until this many tokens were generated.
    pub tokens_min: usize,
    /// The tokens that end a sequence.
    pub end_tokens: Vec<Token>,
}

impl Default for Sampling {
    fn default() -> Sampling {
        Sampling {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            typical_p: 1.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            penalty_window: None,
            logit_bias: Vec::new(),
            banned_tokens: Vec::new(),
            tokens_min: 0,
            end_tokens: Vec::new(),
        }
    }
}

/// A sampling parameter that is one number.
#[derive(Copy, Clone, Debug)]
pub struct SamplingParameter {
    /// The field of [`Sampling`].
    pub name: &'static str,
    /// What it does.
    pub kind: ParameterKind,
    /// The numbers that it may be.
    pub range: NumberRange,
    /// Reads it.
    pub get: fn(&Sampling) -> f32,
    /// Returns the field, to set it.
    pub get_mut: fn(&mut Sampling) -> &mut f32,
}

/// What a parameter does to a law.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum ParameterKind {
    /// It divides all logits.
    Temperature,
    /// It leaves out tokens, by their probabilities alone.
    Filter,
    /// It changes the logits of tokens that were written before.
    Penalty,
}

/// The numbers that a parameter may be. NaN and infinity are in no range.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct NumberRange {
    /// The range in words, to be read after "expected".
    words: &'static str,
    /// The minimum and the maximum.
    pub bounds: (f32, f32),
    /// Whether the minimum itself is excluded.
    begins_above: bool,
}

const FINITE: NumberRange = range("a finite number", (f32::MIN, f32::MAX), false);
const FROM_ZERO: NumberRange = range("a number from 0 up", (0.0, f32::MAX), false);
const ABOVE_ZERO: NumberRange = range("a number above 0", (0.0, f32::MAX), true);
pub(crate) const FRACTION: NumberRange = range("a number from 0 to 1", (0.0, 1.0), false);
const POSITIVE_FRACTION: NumberRange = range("a number above 0 and up to 1", (0.0, 1.0), true);

const fn range(words: &'static str, bounds: (f32, f32), begins_above: bool) -> NumberRange {
    NumberRange { words, bounds, begins_above }
}

impl NumberRange {
    /// Describes the value of this field if it is not in the range.
    pub(crate) fn problem(&self, field: &'static str, found: f32) -> Option<SamplingProblem> {
        let (min, max) = self.bounds;
        let is_in_range = (min..=max).contains(&found) && !(self.begins_above && found == min);
        (!is_in_range).then(|| SamplingProblem { field, expected: self.words, found: found.to_string() })
    }
}

/// A parameter that is out of range: its name, the expected values, and the value that was found.
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

/// Makes a row of the table.
const fn row(
    name: &'static str,
    kind: ParameterKind,
    range: NumberRange,
    get: fn(&Sampling) -> f32,
    get_mut: fn(&mut Sampling) -> &mut f32,
) -> SamplingParameter {
    SamplingParameter { name, kind, range, get, get_mut }
}

impl Sampling {
    /// The parameters that are one number, in the order in which they are checked and reported.
    pub const PARAMETERS: &'static [SamplingParameter] = &[
        row("temperature", Temperature, FROM_ZERO, |law| law.temperature, |law| &mut law.temperature),
        row("top_p", Filter, FRACTION, |law| law.top_p, |law| &mut law.top_p),
        row("min_p", Filter, FRACTION, |law| law.min_p, |law| &mut law.min_p),
        row("typical_p", Filter, POSITIVE_FRACTION, |law| law.typical_p, |law| &mut law.typical_p),
        row("repetition_penalty", Penalty, ABOVE_ZERO, |law| law.repetition_penalty, |law| &mut law.repetition_penalty),
        row("presence_penalty", Penalty, FINITE, |law| law.presence_penalty, |law| &mut law.presence_penalty),
        row("frequency_penalty", Penalty, FINITE, |law| law.frequency_penalty, |law| &mut law.frequency_penalty),
    ];

    /// The first parameter that is out of range, if any. NaN is out of every range.
    pub fn problem(&self) -> Option<SamplingProblem> {
        let problem = |parameter: &SamplingParameter| parameter.range.problem(parameter.name, (parameter.get)(self));
        if let Some(problem) = Sampling::PARAMETERS.iter().find_map(problem) {
            return Some(problem);
        }
        // Minus infinity is allowed: it bans a token. Plus infinity would make the sum with a logit of minus infinity
        // undefined.
        let bias = self.logit_bias.iter().find(|(_, bias)| bias.is_nan() || *bias == f32::INFINITY);
        bias.map(|(token, bias)| SamplingProblem {
            field: "logit_bias",
            expected: "finite numbers or minus infinity",
            found: format!("{bias} for token {token}"),
        })
    }

    /// Temperature, top-k and the other filters alone, without the settings that depend on tokens: for a row that is
    /// not the model's.
    pub fn filters_only(&self) -> Sampling {
        let mut filters = Sampling { temperature: self.temperature, top_k: self.top_k, ..Sampling::default() };
        for parameter in Sampling::PARAMETERS.iter().filter(|parameter| parameter.kind == Filter) {
            *(parameter.get_mut)(&mut filters) = (parameter.get)(self);
        }
        filters
    }

    /// The settings of the law before greedy decoding takes its most probable token: temperature 1 without filters, and
    /// everything that changes single logits.
    pub fn before_greedy(&self) -> Sampling {
        let (mut before, open) = (self.clone(), Sampling::default());
        (before.temperature, before.top_k) = (open.temperature, open.top_k);
        for parameter in Sampling::PARAMETERS.iter().filter(|parameter| parameter.kind == Filter) {
            *(parameter.get_mut)(&mut before) = (parameter.get)(&open);
        }
        before
    }

    /// Whether tokens that were written before are penalized.
    pub fn has_penalties(&self) -> bool {
        (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)
    }
}
