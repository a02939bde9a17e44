//! How long a text may be before anybody looks for its tokens.
//!
//! The idea: finding the tokens of megabytes takes seconds, and a text that cannot fit is known by its bytes: no token
//! stands for more bytes than the longest of the vocabulary. Left out: how many tokens it really has, which the engine
//! checks.

use foretoken::Prompter;

use crate::error::ApiError;

/// The longest text that may fit into the context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TextLimit {
    context: usize,
    token_bytes_max: usize,
}

impl TextLimit {
    pub(crate) fn of(prompter: &Prompter) -> Self {
        let tokenizer = prompter.tokenizer.as_deref();
        let longest = tokenizer.map_or(1, |tokenizer| tokenizer.token_bytes_max());
        Self { context: prompter.context, token_bytes_max: longest }
    }

    /// Refuses a text of so many bytes that cannot fit.
    pub(crate) fn check(&self, field: &str, bytes: usize) -> Result<(), ApiError> {
        self.check_times(1, field, bytes)
    }

    /// Refuses a text that is more than so many times as long as one that may fit.
    pub(crate) fn check_times(&self, times: usize, field: &str, bytes: usize) -> Result<(), ApiError> {
        let Self { context, token_bytes_max } = *self;
        let most = times.saturating_mul(context).saturating_mul(token_bytes_max);
        if bytes <= most {
            return Ok(());
        }
        let why = format!("the context is {context} tokens, of at most {token_bytes_max} bytes each");
        let error = ApiError::field(field, format!("expected at most {most} bytes ({why}), found {bytes}"));
        Err(ApiError { code: Some("context_length_exceeded"), ..error })
    }

    /// Refuses a list of so many tokens that cannot fit.
    pub(crate) fn check_tokens(&self, field: &str, tokens: usize) -> Result<(), ApiError> {
        if tokens < self.context {
            return Ok(());
        }
        let most = self.context - 1;
        let expected = format!("expected at most {most} tokens (the context is {}), found {tokens}", self.context);
        Err(ApiError::too_long(tokens, self.context, ApiError::field(field, expected)))
    }

    /// Refuses an answer of more log-probabilities than should be in memory at a time. `answers` times `tokens` times
    /// `tops` and one.
    pub(crate) fn check_values(&self, answers: usize, tokens: Option<usize>, tops: usize) -> Result<(), ApiError> {
        let tokens = tokens.unwrap_or(self.context).min(self.context);
        let found = answers.saturating_mul(tokens).saturating_mul(tops + 1);
        if found <= VALUES_MAX {
            return Ok(());
        }
        let why = "answers times max_tokens times top_logprobs and 1; a stream has no such bound";
        Err(ApiError::field("logprobs", format!("expected at most {VALUES_MAX} of them ({why}), found {found}")))
    }
}

/// Most log-probabilities of an answer that is told at once, of about 100 bytes each.
const VALUES_MAX: usize = 1 << 20;
