//! `/v1/completions`: continuations of prompts.
//!
//! A prompt is a string, a list of tokens, or a list of either; each has its own answers. The suffix of a request (text
//! to fill in before it) has been made part of the prompt before (`apis/infill.rs`).

use foretoken::{Error, Prompt, Prompter, Request, Token, n_best};
use serde::Deserialize;

use super::{RequestOptions, TOP_LOG_PROBABILITIES_MAX};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::limits::TextLimit;

/// A completion request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CompletionRequest {
    pub(crate) options: RequestOptions,
    /// Prompts of mixed parts are filled in once the tokenizer is known.
    pub(crate) prompts: Vec<Prompt>,
    /// These prompts, by their index in `prompts`.
    mixed: Vec<(usize, Vec<Part>)>,
    /// Whether the answer begins with the prompt.
    pub(crate) echo: bool,
}

/// A part of a prompt.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
enum Part {
    Token(Token),
    Text(String),
}

/// The forms of one prompt of several.
#[derive(Deserialize)]
#[serde(untagged)]
enum SinglePrompt {
    Text(String),
    Ids(Vec<Token>),
    Mixed(Vec<Part>),
}

/// The forms of the field `prompt`. A list that contains a token is one prompt.
#[derive(Deserialize)]
#[serde(untagged)]
enum Prompts {
    Text(String),
    Ids(Vec<Token>),
    Several(Vec<SinglePrompt>),
    Mixed(Vec<Part>),
}

impl CompletionRequest {
    /// Parses the fields that only completions have.
    pub(crate) fn parse(
        fields: &mut Fields,
        mut options: RequestOptions,
        answers_max: usize,
    ) -> Result<Self, ApiError> {
        let expected = "a string, a list of tokens and strings, or a list of either";
        let several = match fields.take("prompt", expected)? {
            // As with OpenAI: an empty prompt.
            None => vec![SinglePrompt::Text(String::new())],
            Some(Prompts::Text(text)) => vec![SinglePrompt::Text(text)],
            Some(Prompts::Ids(ids)) => vec![SinglePrompt::Ids(ids)],
            Some(Prompts::Several(several)) => several,
            Some(Prompts::Mixed(parts)) => vec![SinglePrompt::Mixed(parts)],
        };
        let (mut prompts, mut mixed) = (Vec::new(), Vec::new());
        for (number, one) in several.into_iter().enumerate() {
            prompts.push(match one {
                SinglePrompt::Text(text) => Prompt::Text(text),
                SinglePrompt::Ids(ids) => Prompt::Ids(ids),
                SinglePrompt::Mixed(parts) => {
                    mixed.push((number, parts));
                    Prompt::Ids(Vec::new())
                }
            });
        }
        if prompts.is_empty() || mixed.is_empty() && prompts == [Prompt::Ids(Vec::new())] {
            return Err(ApiError::field("prompt", "expected at least one token, found none"));
        }
        let found = prompts.len().saturating_mul(options.best_of);
        if found > answers_max {
            let expected = format!("expected at most {answers_max} prompts times answers, found {found}");
            return Err(ApiError::field("prompt", expected));
        }
        if fields.value("tools")?.is_some_and(|tools| tools.as_array().is_none_or(|tools| !tools.is_empty())) {
            let expected = "expected none beside prompt, found some: calls are made in /v1/chat/completions";
            return Err(ApiError::unsupported("tools", expected));
        }
        let echo = fields.boolean("echo")?.unwrap_or(false);
        fields.rename("n_probs", "logprobs")?;
        // 0 means none for llama.cpp, and only those of the generated tokens for OpenAI.
        let least = usize::from(fields.name("logprobs") == "n_probs");
        options.log_probabilities =
            fields.count("logprobs", 0, TOP_LOG_PROBABILITIES_MAX)?.filter(|tops| *tops >= least);
        if fields.has("top_logprobs") {
            return Err(ApiError::field("top_logprobs", "expected none (logprobs is their number here), found some"));
        }
        Ok(Self { options, prompts, mixed, echo })
    }

    /// The requests: all answers to the first prompt, then to the next. Their sampling settings are decided once.
    pub(crate) fn requests(
        &mut self,
        prompter: &Prompter,
        key: u64,
        limit: &TextLimit,
    ) -> Result<Vec<Request>, ApiError> {
        for (number, parts) in std::mem::take(&mut self.mixed) {
            self.prompts[number] = Prompt::Ids(encode_parts(&parts, prompter, limit)?);
        }
        let api_error = |error: Error| match &error {
            Error::Setting(_) => self.options.attribute(ApiError::of(&error)),
            _ => ApiError::of(&error),
        };
        let decided = self.options.decide(prompter)?;
        if let (Some(tops), None) = (self.options.log_probabilities, self.options.stream) {
            let answers = self.prompts.len().saturating_mul(self.options.best_of);
            limit.check_log_probabilities(answers, self.options.sampling.tokens_max.0, tops)?;
        }
        let mut requests = Vec::new();
        for prompt in &self.prompts {
            limit.check("prompt", prompt.text().map_or(0, str::len))?;
            // An encoder-decoder reads the prompt as its source.
            let mut request = prompter.request_of_input(prompt, &decided).map_err(api_error)?;
            // How long a source may be, the engine says.
            limit.check_tokens("prompt", request.prompt.len())?;
            if self.echo && request.source.is_some() {
                let expected = "expected false (the prompt is what the encoder reads), found true";
                return Err(ApiError::field("echo", expected));
            }
            self.options.complete(prompter, key, limit, &mut request)?;
            request.prompt_log_probabilities = self.echo && self.options.log_probabilities.is_some();
            requests.extend(n_best(&request, self.options.best_of));
        }
        Ok(requests)
    }
}

/// The tokens of a prompt of tokens and strings. The tokens that the model expects before a text are added only if the
/// prompt begins with a string.
fn encode_parts(parts: &[Part], prompter: &Prompter, limit: &TextLimit) -> Result<Vec<Token>, ApiError> {
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
