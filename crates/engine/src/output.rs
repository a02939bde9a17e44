//! What the engine reports: tokens as they are emitted, and how each sequence ended.

use foretoken_speculation::{SequenceId, Token};

use crate::stats::Stats;

/// Who produced a token of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The target itself: a correction, or the token after an accepted draft.
    Target,
    /// A drafter's guess that the target agreed with; the drafter's number.
    Drafted(u8),
    /// Nobody: settings and constraint left this token alone ([`foretoken_speculation::Sampling::forced`]). It may have
    /// been a part of a draft all the same.
    Forced,
}

/// One token of the output.
#[derive(Clone, Debug, PartialEq)]
pub struct Emitted {
    /// The token.
    pub token: Token,
    /// Who produced it.
    pub origin: Origin,
    /// How deep in the draft tree it was, 1 for a child of the pending token; 0 for the target's own.
    pub depth: usize,
    /// The emitting pass that it came from, counted from 1: of forced tokens the one before, 0 for those before the
    /// first.
    pub pass: usize,
    /// Its probability under the target's law, after sampling settings.
    pub p: f64,
    /// Its probability under the law of the drafter, if it was drafted by one that has a law.
    pub q: Option<f32>,
    /// Its log-probability under the model's raw law, if asked for.
    pub log_probability: Option<f32>,
    /// The most probable tokens at its place with their log-probabilities under the model's raw law, as many as were
    /// asked for: the best first, the lowest of equals, no impossible ones.
    pub top: Vec<(Token, f32)>,
    /// Text that it completes; may be empty while a character or a stop string is incomplete.
    pub text: String,
}

/// One token of a draft tree that was verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drafted {
    /// The token.
    pub token: Token,
    /// Who was the first to offer it there; the drafter's number.
    pub drafter: u8,
    /// How deep in the draft tree it was, 1 for a child of the pending token.
    pub depth: usize,
    /// Whether it became a part of the text.
    pub accepted: bool,
}

/// One token of a prompt, and what the model says of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Scored {
    /// The token.
    pub token: Token,
    /// Its log-probability under the model's raw law, given the tokens before it; `None` for the first, which has none.
    pub log_probability: Option<f32>,
    /// The most probable tokens at its place, as [`Emitted::top`]; empty for the first.
    pub top: Vec<(Token, f32)>,
}

/// Why a sequence ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model wrote an end token (the last one emitted; it has no text).
    EndToken(Token),
    /// A stop string appeared; the text ends before it.
    StopString(String),
    /// As many tokens as were asked for.
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
    /// A part of the prompt was computed.
    Prompt {
        /// Whose.
        sequence: SequenceId,
        /// Tokens of the prompt that are cached now, adopted ones included. It is less than before where a text's pages
        /// were needed by others and its rows are computed again.
        done: usize,
        /// Tokens of the prompt.
        total: usize,
        /// Of these, rows that were computed for an earlier text and adopted.
        shared: usize,
    },
    /// A draft tree was verified, of a request that [wants to know](crate::Request::report_drafts). The tokens that it
    /// led to come next.
    Drafts {
        /// Whose.
        sequence: SequenceId,
        /// The nodes of the tree, parents before their children; at least one.
        drafted: Vec<Drafted>,
    },
    /// Tokens of a prompt were scored, in order, where that was asked for: each once, the first as soon as the sequence
    /// runs.
    PromptScored {
        /// Whose.
        sequence: SequenceId,
        /// The tokens, at least one: those behind the ones that were told before.
        scored: Vec<Scored>,
    },
    /// Tokens were emitted, in order.
    Tokens {
        /// Whose.
        sequence: SequenceId,
        /// The tokens, at least one.
        emitted: Vec<Emitted>,
    },
    /// A drafter failed for this sequence, which goes on without it.
    DrafterFailed {
        /// Whose.
        sequence: SequenceId,
        /// The drafter's number.
        drafter: u8,
        /// What it said.
        message: String,
    },
    /// The sequence ended; it is gone after this.
    Finished {
        /// Whose.
        sequence: SequenceId,
        /// Why.
        reason: FinishReason,
        /// Text that was held back and belongs to the output.
        text: String,
        /// What it took.
        stats: Box<Stats>,
    },
}

impl Event {
    /// Whose it is.
    pub fn sequence(&self) -> SequenceId {
        let (Self::Prompt { sequence, .. }
        | Self::PromptScored { sequence, .. }
        | Self::Drafts { sequence, .. }
        | Self::Tokens { sequence, .. }
        | Self::DrafterFailed { sequence, .. }
        | Self::Finished { sequence, .. }) = self;
        *sequence
    }

    /// The text that came with it; empty where there is none.
    pub fn text(&self) -> String {
        match self {
            Self::Prompt { .. } | Self::PromptScored { .. } | Self::Drafts { .. } | Self::DrafterFailed { .. } => {
                String::new()
            }
            Self::Tokens { emitted, .. } => emitted.iter().map(|emitted| emitted.text.as_str()).collect(),
            Self::Finished { text, .. } => text.clone(),
        }
    }
}
