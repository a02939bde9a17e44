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
        let longest = tokenizer.map_or(0, |tokenizer| {
            let bytes = (0..tokenizer.vocabulary_len()).map(|token| tokenizer.token_bytes(token as u32).len());
            bytes.max().unwrap_or(0)
        });
        Self { context: prompter.context, token_bytes_max: longest.max(1) }
    }

    /// Refuses a text of so many bytes that cannot fit.
    pub(crate) fn check(&self, field: &str, bytes: usize) -> Result<(), ApiError> {
        let Self { context, token_bytes_max } = *self;
        let most = context.saturating_mul(token_bytes_max);
        if bytes <= most {
            return Ok(());
        }
        let why = format!("the context is {context} tokens, of at most {token_bytes_max} bytes each");
        Err(ApiError::field(field, format!("expected at most {most} bytes ({why}), found {bytes}")))
    }
}
