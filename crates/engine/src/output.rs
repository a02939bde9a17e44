//! What the engine reports: tokens as they are emitted, and how each sequence ended.

use foretoken_speculation::{SequenceId, Token};

use crate::stats::Stats;

/// Where a token of the output comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The target itself: a correction, or the token after an accepted draft.
    Target,
    /// A drafted token that the target accepted; the drafter's number.
    Drafted(u8),
    /// The only token that settings and constraint allow ([`foretoken_speculation::Sampling::forced`]). Such a token
    /// may have been drafted as well.
    Forced,
}

/// One token of the output.
#[derive(Clone, Debug, PartialEq)]
pub struct Emitted {
    /// The token.
    pub token: Token,
    /// Where it comes from.
    pub origin: Origin,
    /// Its depth in the draft tree, 1 for a child of the pending token; 0 for the target's own.
    pub depth: usize,
    /// The emitting pass that it came from, counted from 1; for forced tokens the pass before them, 0 before the first
    /// pass.
    pub pass: usize,
    /// Its probability under the target's law, which includes the sampling settings; under the greedy form of lenience
    /// that law is of temperature 1 without filters.
    pub p: f64,
    /// Its probability under the drafter's law, if it was drafted by a drafter that has a law.
    pub q: Option<f32>,
    /// Its log-probability under the model's raw law, if asked for.
    pub log_probability: Option<f32>,
    /// The most probable tokens at its position with their log-probabilities under the model's raw law, as many as were
    /// asked for: the most probable first, of ties the lowest token, and none of probability 0.
    pub top: Vec<(Token, f32)>,
    /// The text that it completes; empty while a character or a possible stop string is incomplete.
    pub text: String,
}

/// One token of a draft tree that was verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drafted {
    /// The token.
    pub token: Token,
    /// The number of the first drafter that offered it there.
    pub drafter: u8,
    /// Its depth in the draft tree, 1 for a child of the pending token.
    pub depth: usize,
    /// Whether it became a part of the output.
    pub accepted: bool,
}

/// One token of a prompt with its log-probability.
#[derive(Clone, Debug, PartialEq)]
pub struct Scored {
    /// The token.
    pub token: Token,
    /// Its log-probability under the model's raw law, given the tokens before it; `None` for the first token.
    pub log_probability: Option<f32>,
    /// The most probable tokens at its position, as [`Emitted::top`]; empty for the first.
    pub top: Vec<(Token, f32)>,
}

/// One hypothesis of a beam search.
#[derive(Clone, Debug, PartialEq)]
pub struct Beam {
    /// The generated tokens, the end token included.
    pub tokens: Vec<Token>,
    /// Their text, up to a stop string; empty without a tokenizer.
    pub text: String,
    /// The log-probability divided by the number of tokens to the power of the length penalty.
    pub score: f64,
    /// The sum of the tokens' log-probabilities, each after penalties, bias and bans, which are applied to the
    /// logarithm of the model's law and not normalized again.
    pub log_probability: f64,
    /// Why it ended.
    pub reason: FinishReason,
}

/// Why a sequence ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model wrote an end token (the last one emitted; it has no text).
    EndToken(Token),
    /// A stop string appeared; the output ends before it.
    StopString(String),
    /// The output has as many tokens as were asked for.
    Length,
    /// The context is full.
    Context,
    /// The caller cancelled it.
    Cancelled,
    /// The executor could not run it.
    Failed(String),
}

/// Something that happened in a step.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A chunk of the prompt was computed.
    Prompt {
        /// The sequence.
        sequence: SequenceId,
        /// Tokens of the prompt that are cached now, adopted ones included. It falls when the sequence is preempted and
        /// its rows have to be computed again.
        done: usize,
        /// Tokens of the prompt.
        total: usize,
        /// Of these, tokens whose rows were computed for an earlier sequence and adopted.
        shared: usize,
    },
    /// A draft tree was verified; only for requests that [ask for it](crate::Request::report_drafts). The event of the
    /// tokens that it led to follows.
    Drafts {
        /// The sequence.
        sequence: SequenceId,
        /// The nodes of the tree, parents before their children; at least one.
        drafted: Vec<Drafted>,
    },
    /// Tokens of a prompt were scored, for requests that ask for it: each token once, in order, the first as soon as
    /// the sequence runs.
    PromptScored {
        /// The sequence.
        sequence: SequenceId,
        /// The tokens after those of earlier events, at least one.
        scored: Vec<Scored>,
    },
    /// Tokens were emitted, in order.
    Tokens {
        /// The sequence.
        sequence: SequenceId,
        /// The tokens, at least one.
        emitted: Vec<Emitted>,
    },
    /// A beam search has ended, for requests that [ask for it](crate::Request::beams) and instead of events of tokens.
    /// The event of its end follows.
    Beams {
        /// The sequence.
        sequence: SequenceId,
        /// The hypotheses, the best first: as many as were asked for, or fewer if no more were possible.
        beams: Vec<Beam>,
    },
    /// A drafter failed for this sequence, which continues without it.
    DrafterFailed {
        /// The sequence.
        sequence: SequenceId,
        /// The drafter's number.
        drafter: u8,
        /// The drafter's error.
        message: String,
    },
    /// The sequence ended; no event of it follows.
    Finished {
        /// The sequence.
        sequence: SequenceId,
        /// Why it ended.
        reason: FinishReason,
        /// The rest of the output's text, which was held back as a possible stop string.
        text: String,
        /// Its statistics.
        stats: Box<Stats>,
    },
}

impl Event {
    /// The sequence that it belongs to.
    pub fn sequence(&self) -> SequenceId {
        let (Self::Prompt { sequence, .. }
        | Self::PromptScored { sequence, .. }
        | Self::Drafts { sequence, .. }
        | Self::Tokens { sequence, .. }
        | Self::Beams { sequence, .. }
        | Self::DrafterFailed { sequence, .. }
        | Self::Finished { sequence, .. }) = self;
        *sequence
    }

    /// The text that it carries; may be empty.
    pub fn text(&self) -> String {
        match self {
            Self::Prompt { .. }
            | Self::PromptScored { .. }
            | Self::Drafts { .. }
            | Self::Beams { .. }
            | Self::DrafterFailed { .. } => String::new(),
            Self::Tokens { emitted, .. } => emitted.iter().map(|emitted| emitted.text.as_str()).collect(),
            Self::Finished { text, .. } => text.clone(),
        }
    }
}
