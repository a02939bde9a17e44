//! `/v1/completions`: texts that go on behind prompts.
//!
//! A prompt is a text, a list of tokens, or a list of either; each has its own answers. Left out: a suffix, which is a
//! part of the prompt by then (`doors/infill.rs`).

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
    /// Those of mixed parts become tokens when there is a tokenizer at hand.
    pub(crate) prompts: Vec<Prompt>,
    mixed: Vec<(usize, Vec<Part>)>,
    /// Whether the text begins with the prompt.
    pub(crate) echo: bool,
}

/// A part of a prompt.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
enum Part {
    Token(Token),
    Text(String),
}

/// What one prompt of several may be written as.
#[derive(Deserialize)]
#[serde(untagged)]
enum One {
    Text(String),
    Ids(Vec<Token>),
    Mixed(Vec<Part>),
}

/// What prompts may be written as. A list with a token in it is one prompt.
#[derive(Deserialize)]
#[serde(untagged)]
enum Prompts {
    Text(String),
    Ids(Vec<Token>),
    Several(Vec<One>),
    Mixed(Vec<Part>),
}

impl CompletionAsk {
    /// Reads what is only of completions.
    pub(crate) fn read(fields: &mut Fields, mut ask: Ask, answers_max: usize) -> Result<Self, ApiError> {
        let expected = "a string, a list of tokens and strings, or a list of either";
        let several = match fields.take("prompt", expected)? {
            // As OpenAI has it: a text from nothing.
            None => vec![One::Text(String::new())],
            Some(Prompts::Text(text)) => vec![One::Text(text)],
            Some(Prompts::Ids(ids)) => vec![One::Ids(ids)],
            Some(Prompts::Several(several)) => several,
            Some(Prompts::Mixed(parts)) => vec![One::Mixed(parts)],
        };
        let (mut prompts, mut mixed) = (Vec::new(), Vec::new());
        for (number, one) in several.into_iter().enumerate() {
            prompts.push(match one {
                One::Text(text) => Prompt::Text(text),
                One::Ids(ids) => Prompt::Ids(ids),
                One::Mixed(parts) => {
                    mixed.push((number, parts));
                    Prompt::Ids(Vec::new())
                }
            });
        }
        if prompts.is_empty() || mixed.is_empty() && prompts == [Prompt::Ids(Vec::new())] {
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
        // llama.cpp's 0 asks for none, and OpenAI's for those of the tokens themselves.
        let least = usize::from(fields.name("logprobs") == "n_probs");
        ask.log_probabilities = fields.count("logprobs", 0, TOPS_MAX)?.filter(|tops| *tops >= least);
        if fields.has("top_logprobs") {
            return Err(ApiError::field("top_logprobs", "expected none (logprobs is their number here), found some"));
        }
        Ok(Self { ask, prompts, mixed, echo })
    }

    /// The requests: all answers to the first prompt, then to the next. Their laws are decided once.
    pub(crate) fn requests(
        &mut self,
        prompter: &Prompter,
        key: u64,
        limit: &TextLimit,
    ) -> Result<Vec<Request>, ApiError> {
        for (number, parts) in std::mem::take(&mut self.mixed) {
            self.prompts[number] = Prompt::Ids(joined(&parts, prompter, limit)?);
        }
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

/// The tokens of a prompt of tokens and texts. What the model expects before a text comes before one that begins the
/// prompt.
fn joined(parts: &[Part], prompter: &Prompter, limit: &TextLimit) -> Result<Vec<Token>, ApiError> {
    let text = |part: &Part| if let Part::Text(text) = part { text.len() } else { 0 };
    limit.check("prompt", parts.iter().map(text).sum())?;
    let tokenizer = prompter.tokenizer.as_deref();
    let tokenizer = tokenizer.ok_or_else(|| ApiError::field("prompt", prompter.target.missing_tokenizer()))?;
    let mut tokens = Vec::new();
    for (number, part) in parts.iter().enumerate() {
        match part {
            Part::Token(token) => tokens.push(*token),
            Part::Text(text) => {
                tokens.extend(tokenizer.encode(text, number == 0).map_err(|error| ApiError::of(&error.into()))?);
            }
        }
    }
    Ok(tokens)
}
