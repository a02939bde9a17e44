//! What a request asks for, read from its fields, before there are tokens.
//!
//! The idea: fields that both kinds of completions have are read here, each by the name that OpenAI, llama.cpp or vLLM
//! gave it; what a request does not say is as the server was started. What would change the text and is not possible is
//! refused by name (`refused.rs`), so no text is silently another than was asked for; fields of no consequence are
//! ignored, and unknown ones are logged once. Left out: prompts and messages (`ask/completion.rs`, `ask/chat.rs`).

pub(crate) mod chat;
pub(crate) mod completion;
mod guided;
mod refused;
mod sampling;
mod speculation;
mod tools;

use foretoken::settings::{DecidedSampling, GuidedSettings, SamplingSettings};
use foretoken::{Error, Prompter, Request, Tenant, Token};
use serde_json::Value;

use crate::error::{ApiError, shown};
use crate::fields::Fields;
use crate::limits::TextLimit;
use crate::settings::ServerSettings;
use guided::Guided;
pub(crate) use speculation::SpeculationAsk;

/// Most tokens that may be told beside each token of an answer; OpenAI's bound for chats.
pub(crate) const TOPS_MAX: usize = Request::TOP_LOG_PROBABILITIES_MAX;

/// Fields that change no answer here. Clients of other servers send them.
const IGNORED: [&str; 12] = [
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "cache_prompt",
    "id_slot",
    "slot_id",
    "request_id",
    "spaces_between_special_tokens",
];

/// How an answer is streamed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StreamAsk {
    /// Whether usage is told at the end.
    pub(crate) include_usage: bool,
}

/// What both kinds of completions ask for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Ask {
    /// The settings of the law, those of the server where the request does not say.
    pub(crate) sampling: SamplingSettings,
    /// The form that the answer has to have.
    guided: Option<Guided>,
    /// Further tokens that end the text.
    stop_tokens: Vec<Token>,
    pub(crate) speculation: SpeculationAsk,
    /// What the user expects to be written.
    pub(crate) prediction: Option<String>,
    /// Answers that are told, of `best_of` that are written.
    pub(crate) answers: usize,
    pub(crate) best_of: usize,
    /// How many of the most probable tokens are told with each token; `None` if not even its own probability.
    pub(crate) log_probabilities: Option<usize>,
    pub(crate) stream: Option<StreamAsk>,
    /// Whether a stream tells how much of the prompt is read.
    pub(crate) progress: bool,
    pub(crate) provenance: bool,
    pub(crate) priority: i32,
    /// What of the request is not done, though the rest is.
    pub(crate) warnings: Vec<String>,
    /// What of a key's texts may be shared only among requests with the same word, as vLLM has it.
    pub(crate) salt: Option<String>,
}

impl Ask {
    /// Reads the fields that both kinds have. `server`: what holds where the request does not say.
    pub(crate) fn read(
        fields: &mut Fields,
        server: &SamplingSettings,
        limits: &ServerSettings,
    ) -> Result<Self, ApiError> {
        refused::check(fields)?;
        let mut sampling = sampling::read(fields, server)?;
        let guided = guided::read(fields)?;
        if let Some(guided) = &guided {
            let grammar_forcing = sampling.guided.grammar_forcing;
            sampling.guided = GuidedSettings { grammar_forcing, ..guided.settings.clone() };
        }
        let stop_tokens = sampling::stop_tokens(fields)?;
        let speculation = SpeculationAsk::read(fields)?;
        let prediction = prediction(fields)?;
        let answers = fields.count("n", 1, limits.answers_max)?.unwrap_or(1);
        let best_of = fields.count("best_of", 1, limits.answers_max)?.unwrap_or(answers);
        if best_of < answers {
            return Err(ApiError::field("best_of", format!("expected at least n ({answers}), found {best_of}")));
        }
        let stream = stream(fields)?;
        if stream.is_some() && best_of > answers {
            let expected = format!("expected n ({answers}) beside stream, found {best_of}");
            return Err(ApiError::field("best_of", format!("{expected}: the best is known when all are written")));
        }
        let provenance = fields.truth("return_provenance")?.unwrap_or(false);
        let priority = fields.whole("priority", i64::from(i32::MIN), i64::from(i32::MAX))?.unwrap_or(0);
        if priority != 0 && !limits.api_keys.is_empty() {
            let why = "nobody goes before others where keys are asked for";
            return Err(ApiError::unsupported("priority", format!("expected 0, found {priority}: {why}")));
        }
        let salt = fields.text("cache_salt")?;
        IGNORED.iter().for_each(|name| drop(fields.raw(name)));
        Ok(Self {
            sampling,
            guided,
            stop_tokens,
            speculation,
            prediction,
            answers,
            best_of,
            log_probabilities: None,
            stream,
            progress: fields.truth("return_progress")?.unwrap_or(false),
            provenance,
            // vLLM's priorities: the lower goes first.
            priority: i32::try_from(-priority).unwrap_or(i32::MAX),
            warnings: Vec::new(),
            salt,
        })
    }

    /// Decides the law, and which tokens end the text. A form has to know those that are no text when it is made, to
    /// let them come where it may end; one that is text ends the answer wherever it is written ([`Ask::complete`]).
    pub(crate) fn decide(&self, prompter: &Prompter) -> Result<DecidedSampling, ApiError> {
        let mut decided = prompter.decide(&self.sampling).map_err(|error| self.named(ApiError::of(&error)))?;
        let vocabulary = prompter.target.spec.vocabulary;
        if let Some(token) = self.stop_tokens.iter().find(|token| **token as usize >= vocabulary) {
            let expected = format!("expected tokens below {vocabulary} (the vocabulary), found {token}");
            return Err(ApiError::field("stop_token_ids", expected));
        }
        decided.sampling.end_tokens.extend(self.stop_tokens.iter().filter(|token| !is_text(prompter, **token)));
        Ok(decided)
    }

    /// What was said of the form that the answer has to have, of the field that asks for it.
    pub(crate) fn named(&self, error: ApiError) -> ApiError {
        match &self.guided {
            Some(guided) => guided.named(error),
            None => error,
        }
    }

    /// Completes a request that has its prompt and its law.
    pub(crate) fn complete(
        &self,
        prompter: &Prompter,
        key: u64,
        limit: &TextLimit,
        request: &mut Request,
    ) -> Result<(), ApiError> {
        if let (Some(text), Some(tokenizer)) = (&self.prediction, &prompter.tokenizer) {
            limit.check("prediction", text.len())?;
            let tokens = tokenizer.encode_plain(text);
            request.prediction = tokens.map_err(|error| ApiError::of(&Error::from(error)))?;
            request.prediction.truncate(prompter.context);
        }
        request.sampling.end_tokens.extend(self.stop_tokens.iter().filter(|token| is_text(prompter, **token)));
        self.speculation.complete(prompter, request)?;
        request.log_probabilities = self.log_probabilities.is_some() || self.best_of > self.answers;
        request.top_log_probabilities = self.log_probabilities.unwrap_or(0);
        request.report_drafts = self.provenance;
        request.priority = self.priority;
        let salted = |salt: &String| xxhash_rust::xxh3::xxh3_64_with_seed(salt.as_bytes(), key);
        request.tenant = Tenant(self.salt.as_ref().map_or(key, salted));
        Ok(())
    }
}

/// Whether a token is ordinary text, which a form may have in it.
fn is_text(prompter: &Prompter, token: Token) -> bool {
    prompter.tokenizer.as_ref().is_some_and(|tokenizer| !tokenizer.is_special(token))
}

/// The expected text: OpenAI's object, whose content is a text or a list of parts.
fn prediction(fields: &mut Fields) -> Result<Option<String>, ApiError> {
    let Some(mut prediction) = fields.object("prediction")? else { return Ok(None) };
    match prediction.text("type")?.as_deref() {
        Some("content") => {}
        found => {
            let found = found.map_or("none".to_string(), shown);
            return Err(ApiError::field("prediction.type", format!("expected \"content\", found {found}")));
        }
    }
    let expected = "expected a string or a list of parts of type text";
    let wrong = |found: &str| Err(ApiError::field("prediction.content", format!("{expected}, found {}", shown(found))));
    let part = |part: &Value| {
        let is_text = part.get("type").is_none_or(|kind| kind == "text");
        part.get("text").and_then(Value::as_str).filter(|_| is_text).map(str::to_string)
    };
    match prediction.value("content")? {
        Some(Value::String(text)) => Ok(Some(text)),
        Some(Value::Array(parts)) => match parts.iter().map(part).collect::<Option<String>>() {
            Some(text) => Ok(Some(text)),
            None => wrong(&Value::Array(parts).to_string()),
        },
        Some(found) => wrong(&found.to_string()),
        None => wrong("none"),
    }
}

/// Whether and how the answer is streamed.
fn stream(fields: &mut Fields) -> Result<Option<StreamAsk>, ApiError> {
    let wanted = fields.truth("stream")?.unwrap_or(false);
    let Some(mut options) = fields.object("stream_options")? else { return Ok(wanted.then(StreamAsk::default)) };
    let include_usage = options.truth("include_usage")?.unwrap_or(false);
    if !wanted {
        return Err(ApiError::field("stream_options", "expected none without \"stream\": true, found some"));
    }
    Ok(Some(StreamAsk { include_usage }))
}
