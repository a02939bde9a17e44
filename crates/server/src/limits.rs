//! Limits on texts that are checked before tokenization.
//!
//! Tokenizing megabytes takes seconds. A text that cannot fit into the context is refused by its bytes: no token has
//! more bytes than the longest one of the vocabulary. The engine checks the exact number of tokens.

use foretoken::Prompter;

use crate::error::ApiError;

/// Bounds the length of texts that may fit into the context.
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

    /// Refuses a text that has too many bytes to fit.
    pub(crate) fn check(&self, field: &str, bytes: usize) -> Result<(), ApiError> {
        self.check_times(1, field, bytes)
    }

    /// Refuses a text that is longer than `times` times the longest one that may fit.
    pub(crate) fn check_times(&self, times: usize, field: &str, bytes: usize) -> Result<(), ApiError> {
        let Self { context, token_bytes_max } = *self;
        let limit = times.saturating_mul(context).saturating_mul(token_bytes_max);
        if bytes <= limit {
            return Ok(());
        }
        let why = format!("the context is {context} tokens, of at most {token_bytes_max} bytes each");
        let error = ApiError::field(field, format!("expected at most {limit} bytes ({why}), found {bytes}"));
        Err(ApiError { code: Some("context_length_exceeded"), ..error })
    }

    /// Refuses a list of tokens that cannot fit.
    pub(crate) fn check_tokens(&self, field: &str, tokens: usize) -> Result<(), ApiError> {
        if tokens < self.context {
            return Ok(());
        }
        let limit = self.context - 1;
        let expected = format!("expected at most {limit} tokens (the context is {}), found {tokens}", self.context);
        Err(ApiError::too_long(tokens, self.context, ApiError::field(field, expected)))
    }

    /// Refuses an answer whose log-probabilities would take too much memory: `answers` times `tokens` times `tops` + 1.
    pub(crate) fn check_log_probabilities(
        &self,
        answers: usize,
        tokens: Option<usize>,
        tops: usize,
    ) -> Result<(), ApiError> {
        let tokens = tokens.unwrap_or(self.context).min(self.context);
        let found = answers.saturating_mul(tokens).saturating_mul(tops + 1);
        if found <= LOG_PROBABILITIES_MAX {
            return Ok(());
        }
        let why = "answers times max_tokens times top_logprobs and 1; a stream has no such bound";
        Err(ApiError::field(
            "logprobs",
            format!("expected at most {LOG_PROBABILITIES_MAX} of them ({why}), found {found}"),
        ))
    }
}

/// Maximum number of log-probabilities of an answer that is not streamed, of about 100 bytes each.
const LOG_PROBABILITIES_MAX: usize = 1 << 20;
