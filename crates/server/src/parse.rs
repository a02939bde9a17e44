//! The options of a request, parsed from its fields before tokenization.
//!
//! The fields that chats and completions share are parsed here, with the names of OpenAI, llama.cpp and vLLM; the
//! server's settings are the defaults. Unsupported fields that would change the answer are refused by name
//! (`unsupported.rs`), so no answer silently differs from the request; fields without effect are ignored, and unknown
//! ones are logged once. Prompts and messages are in `parse/completion.rs` and `parse/chat.rs`.

pub(crate) mod beams;
pub(crate) mod chat;
pub(crate) mod completion;
mod guided;
mod sampling;
mod speculation;
mod tools;
mod unsupported;

use foretoken::settings::{DecidedSampling, GuidedSettings, SamplingSettings};
use foretoken::{Error, Prompter, Request, Tenant, Token};
use serde_json::Value;

use crate::error::{ApiError, shown};
use crate::fields::Fields;
use crate::limits::TextLimit;
use crate::settings::ServerSettings;
use guided::Guided;
pub(crate) use speculation::SpeculationOptions;

/// What the parsing of a request needs: the prompter, the server's settings and limits, and the number of its key.
pub(crate) struct RequestContext<'a> {
    pub(crate) prompter: &'a Prompter,
    pub(crate) sampling: &'a SamplingSettings,
    pub(crate) settings: &'a ServerSettings,
    pub(crate) limit: &'a TextLimit,
    pub(crate) key: u64,
}

/// Maximum number of alternative tokens that are returned for each token of an answer; OpenAI's limit for chats.
pub(crate) const TOP_LOG_PROBABILITIES_MAX: usize = Request::TOP_LOG_PROBABILITIES_MAX;

/// Fields of other servers that have no effect on answers here.
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
pub(crate) struct StreamOptions {
    /// Whether a last chunk has the usage.
    pub(crate) include_usage: bool,
}

/// The options that chats and completions share.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RequestOptions {
    /// The sampling settings; the server's are the defaults.
    pub(crate) sampling: SamplingSettings,
    /// The constraint on the answer's text.
    guided: Option<Guided>,
    /// Further tokens that end the answer.
    stop_tokens: Vec<Token>,
    pub(crate) speculation: SpeculationOptions,
    /// The predicted output.
    pub(crate) prediction: Option<String>,
    /// Answers that are returned, of `best_of` that are generated, or the beams of one search.
    pub(crate) answers: usize,
    pub(crate) best_of: usize,
    /// How many of the most probable tokens are returned with each token; `None`: no log-probabilities at all.
    pub(crate) log_probabilities: Option<usize>,
    pub(crate) stream: Option<StreamOptions>,
    /// Whether a stream reports the progress of prefill.
    pub(crate) progress: bool,
    pub(crate) provenance: bool,
    pub(crate) priority: i32,
    /// Parts of the request that are ignored.
    pub(crate) warnings: Vec<String>,
    /// Cached prefixes are shared only among requests with the same salt, as in vLLM.
    pub(crate) salt: Option<String>,
}

impl RequestOptions {
    /// Parses the fields that chats and completions share. `server`: the default settings; `drafters`: the names of the
    /// server's drafters.
    pub(crate) fn parse(
        fields: &mut Fields,
        server: &SamplingSettings,
        limits: &ServerSettings,
        drafters: &[String],
    ) -> Result<Self, ApiError> {
        unsupported::check(fields)?;
        let has_temperature = fields.has("temperature");
        let mut sampling = sampling::parse(fields, server)?;
        let guided = guided::parse(fields)?;
        if let Some(guided) = &guided {
            let grammar_forcing = sampling.guided.grammar_forcing;
            sampling.guided = GuidedSettings { grammar_forcing, ..guided.settings.clone() };
        }
        let stop_tokens = sampling::stop_tokens(fields)?;
        let speculation = SpeculationOptions::parse(fields, drafters)?;
        let prediction = prediction(fields)?;
        let answers = fields.count("n", 1, limits.answers_max)?.unwrap_or(1);
        let best_of = fields.count("best_of", 1, limits.answers_max)?.unwrap_or(answers);
        if best_of < answers {
            return Err(ApiError::field("best_of", format!("expected at least n ({answers}), found {best_of}")));
        }
        let temperature = sampling.temperature.filter(|_| has_temperature);
        beams::parse(fields, &mut sampling, temperature, (answers, best_of))?;
        let stream = stream(fields)?;
        if stream.is_some() && best_of > answers && !sampling.has_beams() {
            let expected = format!("expected n ({answers}) beside stream, found {best_of}");
            return Err(ApiError::field("best_of", format!("{expected}: the best is known when all are complete")));
        }
        let provenance = fields.boolean("return_provenance")?.unwrap_or(false);
        let priority = fields.integer("priority", i64::from(i32::MIN), i64::from(i32::MAX))?.unwrap_or(0);
        if priority != 0 && !limits.api_keys.is_empty() {
            let why = "there are no priorities where keys are required";
            return Err(ApiError::unsupported("priority", format!("expected 0, found {priority}: {why}")));
        }
        let salt = fields.string("cache_salt")?;
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
            progress: fields.boolean("return_progress")?.unwrap_or(false),
            provenance,
            // In vLLM a lower priority runs first.
            priority: i32::try_from(-priority).unwrap_or(i32::MAX),
            warnings: Vec::new(),
            salt,
        })
    }

    /// Decides the sampling settings, and which special tokens end the answer: a constraint allows these where it may
    /// end, so it has to know them when it is compiled. Stop tokens that are ordinary text are added in
    /// [`RequestOptions::complete`].
    pub(crate) fn decide(&self, prompter: &Prompter) -> Result<DecidedSampling, ApiError> {
        self.check_beams()?;
        let mut decided = prompter.decide(&self.sampling).map_err(|error| self.attribute(ApiError::of(&error)))?;
        let vocabulary = prompter.target.spec.vocabulary;
        if let Some(token) = self.stop_tokens.iter().find(|token| **token as usize >= vocabulary) {
            let expected = format!("expected tokens below {vocabulary} (the vocabulary), found {token}");
            return Err(ApiError::field("stop_token_ids", expected));
        }
        decided.sampling.end_tokens.extend(self.stop_tokens.iter().filter(|token| !is_text(prompter, **token)));
        Ok(decided)
    }

    /// The engine's requests for the answers to a prompt: one each, or one beam search for all.
    pub(crate) fn requests_per_prompt(&self) -> usize {
        if self.sampling.has_beams() { 1 } else { self.best_of }
    }

    /// Answers of one of the engine's requests that are returned.
    pub(crate) fn answers_per_request(&self) -> usize {
        if self.sampling.has_beams() { self.answers } else { 1 }
    }

    /// Refuses what is told of single tokens beside a beam search, which returns texts, and a text to draft from.
    fn check_beams(&self) -> Result<(), ApiError> {
        let others = [
            ("logprobs", self.log_probabilities.is_some()),
            ("return_provenance", self.provenance),
            ("prediction", self.prediction.is_some()),
        ];
        match others.into_iter().find(|(_, is_wanted)| *is_wanted && self.sampling.has_beams()) {
            Some((field, _)) => {
                Err(ApiError::unsupported(field, format!("expected none beside {}, found some", beams::FIELD)))
            }
            None => Ok(()),
        }
    }

    /// An error in the constraint, attributed to the field that sets it.
    pub(crate) fn attribute(&self, error: ApiError) -> ApiError {
        match &self.guided {
            Some(guided) => guided.attribute(error),
            None => error,
        }
    }

    /// Sets the remaining options of a request that has its prompt and its sampling settings.
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
        let chooses_best = self.best_of > self.answers && !self.sampling.has_beams();
        request.log_probabilities = self.log_probabilities.is_some() || chooses_best;
        request.top_log_probabilities = self.log_probabilities.unwrap_or(0);
        request.report_drafts = self.provenance;
        request.priority = self.priority;
        let salted_key = |salt: &String| xxhash_rust::xxh3::xxh3_64_with_seed(salt.as_bytes(), key);
        request.tenant = Tenant(self.salt.as_ref().map_or(key, salted_key));
        Ok(())
    }
}

/// Whether a token is ordinary text, which a constraint may require.
fn is_text(prompter: &Prompter, token: Token) -> bool {
    prompter.tokenizer.as_ref().is_some_and(|tokenizer| !tokenizer.is_special(token))
}

/// The predicted output: OpenAI's object, whose content is a string or a list of parts.
fn prediction(fields: &mut Fields) -> Result<Option<String>, ApiError> {
    let Some(mut prediction) = fields.object("prediction")? else { return Ok(None) };
    match prediction.string("type")?.as_deref() {
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
fn stream(fields: &mut Fields) -> Result<Option<StreamOptions>, ApiError> {
    let is_streamed = fields.boolean("stream")?.unwrap_or(false);
    let Some(mut options) = fields.object("stream_options")? else {
        return Ok(is_streamed.then(StreamOptions::default));
    };
    let include_usage = options.boolean("include_usage")?.unwrap_or(false);
    if !is_streamed {
        return Err(ApiError::field("stream_options", "expected none without \"stream\": true, found some"));
    }
    Ok(Some(StreamOptions { include_usage }))
}
