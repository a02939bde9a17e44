//! `/v1/completions`: texts that go on behind prompts.
//!
//! A prompt is a text, a list of tokens, or a list of either; each has its own answers. Left out: a suffix.

use foretoken::{Error, Prompt, Prompter, Request, Token, n_best};
use serde::Deserialize;

use super::{Ask, TOPS_MAX};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::limits::TextLimit;

/// A request for completions.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CompletionAsk {
    pub(crate) ask: Ask,
    pub(crate) prompts: Vec<Prompt>,
    /// Whether the text begins with the prompt.
    pub(crate) echo: bool,
}

/// What a prompt may be written as.
#[derive(Deserialize)]
#[serde(untagged)]
enum Prompts {
    Text(String),
    Ids(Vec<Token>),
    Texts(Vec<String>),
    Lists(Vec<Vec<Token>>),
}

impl CompletionAsk {
    /// Reads what is only of completions.
    pub(crate) fn read(fields: &mut Fields, mut ask: Ask, answers_max: usize) -> Result<Self, ApiError> {
        let expected = "a string, a list of tokens, or a list of either";
        let prompts: Vec<Prompt> = match fields.take("prompt", expected)? {
            // As OpenAI has it: a text from nothing.
            None => vec![Prompt::Text(String::new())],
            Some(Prompts::Text(text)) => vec![Prompt::Text(text)],
            Some(Prompts::Ids(ids)) => vec![Prompt::Ids(ids)],
            Some(Prompts::Texts(texts)) => texts.into_iter().map(Prompt::Text).collect(),
            Some(Prompts::Lists(lists)) => lists.into_iter().map(Prompt::Ids).collect(),
        };
        if prompts.is_empty() || prompts == [Prompt::Ids(Vec::new())] {
            return Err(ApiError::field("prompt", "expected at least one token, found none"));
        }
        let found = prompts.len().saturating_mul(ask.best_of);
        if found > answers_max {
            let expected = format!("expected at most {answers_max} prompts times answers, found {found}");
            return Err(ApiError::field("prompt", expected));
        }
        if fields.value("tools")?.is_some_and(|tools| tools.as_array().is_none_or(|tools| !tools.is_empty())) {
            let expected = "expected none beside prompt, found some: calls are made in /v1/chat/completions";
            return Err(ApiError::unsupported("tools", expected));
        }
        let echo = fields.truth("echo")?.unwrap_or(false);
        fields.rename("n_probs", "logprobs")?;
        ask.log_probabilities = fields.count("logprobs", 0, TOPS_MAX)?;
        if fields.has("top_logprobs") {
            return Err(ApiError::field("top_logprobs", "expected none (logprobs is their number here), found some"));
        }
        Ok(Self { ask, prompts, echo })
    }

    /// The requests: all answers to the first prompt, then to the next. Their laws are decided once.
    pub(crate) fn requests(&self, prompter: &Prompter, key: u64, limit: &TextLimit) -> Result<Vec<Request>, ApiError> {
        let of = |error: Error| match &error {
            Error::Setting(_) => self.ask.named(ApiError::of(&error)),
            _ => ApiError::of(&error),
        };
        let decided = self.ask.decide(prompter)?;
        if let (Some(tops), None) = (self.ask.log_probabilities, self.ask.stream) {
            let answers = self.prompts.len().saturating_mul(self.ask.best_of);
            limit.check_values(answers, self.ask.sampling.tokens_max.0, tops)?;
        }
        let mut requests = Vec::new();
        for prompt in &self.prompts {
            limit.check("prompt", prompt.text().map_or(0, str::len))?;
            let mut request = prompter.request_by(prompt, &decided).map_err(of)?;
            limit.check_tokens("prompt", request.prompt.len())?;
            self.ask.complete(prompter, key, limit, &mut request)?;
            request.prompt_log_probabilities = self.echo && self.ask.log_probabilities.is_some();
            requests.extend(n_best(&request, self.ask.best_of));
        }
        Ok(requests)
    }
}
