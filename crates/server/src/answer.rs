//! Answers in OpenAI's format: what complete (`complete.rs`) and streamed answers (`stream.rs`) share.
//!
//! Answers have further fields besides OpenAI's, with other servers' names if these exist: `timings` (llama.cpp), the
//! `seed` of each answer, `cut_by` if it was cut, and, on request, `provenance` and `drafted` with the origin of each
//! token. Generation is in `run.rs`.

pub(crate) mod complete;
pub(crate) mod format;
pub(crate) mod log_probabilities;
pub(crate) mod parts;
pub(crate) mod provenance;
pub(crate) mod stream;

use std::sync::Arc;

use foretoken::{Beam, FinishReason, Prompter, Request, Stats, ToolCall, report};
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use crate::app::App;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::parse::chat::ChatRequest;
use crate::parse::completion::CompletionRequest;
use crate::parse::{RequestContext, RequestOptions, beams};
use crate::run::{CutReason, RequestRecord};
use crate::settings::ServerSettings;
use crate::shared::seconds_since_1970;
use parts::ReportedCalls;

/// A parsed request: a chat or a completion.
#[derive(Clone, Debug)]
pub(crate) enum RequestKind {
    Chat(Box<ChatRequest>),
    Completion(Box<CompletionRequest>),
}

impl RequestKind {
    /// Parses a chat or a completion, and makes the engine's requests for it.
    pub(crate) fn parse(
        is_chat: bool,
        fields: &mut Fields,
        context: &RequestContext<'_>,
    ) -> Result<(Self, Vec<Request>), ApiError> {
        let RequestContext { prompter, sampling, settings, limit, key } = *context;
        let options = RequestOptions::parse(fields, sampling, settings, &prompter.names)?;
        if is_chat {
            let mut chat = ChatRequest::parse(fields, options, settings)?;
            let requests = chat.requests(prompter, key, limit)?;
            return Ok((Self::Chat(Box::new(chat)), requests));
        }
        let mut completion = CompletionRequest::parse(fields, options, settings.answers_max)?;
        let requests = completion.requests(prompter, key, limit)?;
        Ok((Self::Completion(Box::new(completion)), requests))
    }

    pub(crate) fn options(&self) -> &RequestOptions {
        match self {
            Self::Chat(chat) => &chat.options,
            Self::Completion(completion) => &completion.options,
        }
    }

    fn is_chat(&self) -> bool {
        matches!(self, Self::Chat(_))
    }

    /// The beginning of the ids of answers in OpenAI's format.
    pub(crate) fn id_prefix(&self) -> &'static str {
        if self.is_chat() { "chatcmpl-" } else { "cmpl-" }
    }

    /// The engine's error, attributed to a field of this kind: the prompt of a chat comes from its messages.
    pub(crate) fn attribute(&self, error: ApiError) -> ApiError {
        match error.param.as_deref() {
            Some("prompt") if self.is_chat() => error.with_field("messages"),
            // The number of beams.
            Some(beams::FIELD) => {
                let RequestOptions { answers, best_of, .. } = self.options();
                error.with_field(if best_of > answers { "best_of" } else { "n" })
            }
            _ => error,
        }
    }
}

/// What all objects of a request's answers have in common.
pub(crate) struct AnswerContext {
    pub(crate) prompter: Arc<Prompter>,
    pub(crate) settings: Arc<ServerSettings>,
    /// The model's name.
    pub(crate) model: String,
    pub(crate) kind: RequestKind,
    /// The answer's id.
    pub(crate) id: String,
    pub(crate) created: u64,
}

impl AnswerContext {
    /// `prefix`: the beginning of the answer's id; `None`: OpenAI's.
    pub(crate) fn new(app: &App, kind: RequestKind, number: u64, prefix: Option<&str>) -> Self {
        let id = format!("{}{}", prefix.unwrap_or(kind.id_prefix()), app.request_id(number));
        let (prompter, settings) = (Arc::clone(&app.prompter), Arc::clone(&app.settings));
        Self { prompter, settings, model: app.model.clone(), kind, id, created: seconds_since_1970() }
    }

    pub(crate) fn prompter(&self) -> &Prompter {
        &self.prompter
    }

    /// The JSON text of an object with these choices and further fields.
    fn object(&self, is_chunk: bool, choices: &[ChoiceJson], extras: Map<String, Value>) -> String {
        #[derive(Serialize)]
        struct Object<'a> {
            id: &'a str,
            object: &'static str,
            created: u64,
            model: &'a str,
            system_fingerprint: &'static str,
            choices: &'a [ChoiceJson],
            #[serde(skip_serializing_if = "<[String]>::is_empty")]
            warnings: &'a [String],
            #[serde(flatten)]
            extras: Map<String, Value>,
        }
        let object = match (self.kind.is_chat(), is_chunk) {
            (true, true) => "chat.completion.chunk",
            (true, false) => "chat.completion",
            (false, _) => "text_completion",
        };
        let object = Object {
            id: &self.id,
            object,
            created: self.created,
            model: &self.model,
            system_fingerprint: concat!("foretoken-", env!("CARGO_PKG_VERSION")),
            choices,
            warnings: if is_chunk && !choices.is_empty() { &[] } else { &self.kind.options().warnings },
            extras,
        };
        serde_json::to_string(&object).expect("strings and numbers can be serialized")
    }

    /// The tokens of prompts and answers. The prompt of several answers counts once.
    fn usage(&self, records: &[RequestRecord], stats: &[Stats]) -> Value {
        let per_prompt = self.kind.options().requests_per_prompt().max(1);
        let each_prompt = stats.iter().step_by(per_prompt);
        let prompt: usize = records.iter().step_by(per_prompt).map(|one| one.prompt_len).sum();
        let cached: usize = each_prompt.map(|stats| stats.prompt_tokens_shared).sum();
        let generated: usize = stats.iter().map(|stats| stats.emitted).sum();
        let is_prediction = |number: &usize| self.prompter().is_prediction(u8::try_from(*number).unwrap_or(u8::MAX));
        let of_prediction = stats.iter().flat_map(|stats| stats.drafters.iter().enumerate());
        let of_prediction = of_prediction.filter(|(number, _)| is_prediction(number)).map(|(_, drafter)| drafter);
        let (accepted, drafted) = of_prediction
            .fold((0, 0), |(accepted, drafted), drafter| (accepted + drafter.accepted, drafted + drafter.drafted));
        json!({
            "prompt_tokens": prompt,
            "completion_tokens": generated,
            "total_tokens": prompt + generated,
            "prompt_tokens_details": { "cached_tokens": cached },
            "completion_tokens_details": {
                "accepted_prediction_tokens": accepted,
                "rejected_prediction_tokens": drafted - accepted,
            },
        })
    }

    /// The time of each phase, with llama.cpp's names.
    pub(crate) fn timings(&self, stats: &[Stats]) -> Value {
        let total = combined(stats);
        let mut timings = report::timings(&total);
        if timings["predicted_per_second"].is_null() {
            // One pass generated all tokens, and clients expect a number.
            let seconds = total.time.as_secs_f64();
            timings["predicted_per_second"] = json!(if seconds > 0.0 { total.emitted as f64 / seconds } else { 0.0 });
        }
        timings["passes"] = json!(total.passes);
        timings["drafts"] = json!(total.drafts);
        timings["mean_accepted_length"] = json!(total.mean_accepted_len());
        if let Some(beams) = report::beams(&total.beams) {
            timings["beams"] = beams;
        }
        timings
    }

    /// Logs the end of a request, without the text of its answers. A request that was cut before its first token got an
    /// error, in a stream whose status was sent before.
    fn log(&self, stats: &[Stats], cut: Option<CutReason>) {
        let total = combined(stats);
        if let (Some(cut), 0) = (cut, total.emitted) {
            tracing::debug!(id = self.id, answers = stats.len(), cut_by = cut.name(), "refused");
            return;
        }
        tracing::info!(
            id = self.id,
            answers = stats.len(),
            prompt_tokens = total.prompt_tokens,
            cached_tokens = total.prompt_tokens_shared,
            tokens = total.emitted,
            drafted = total.drafted,
            accepted = total.accepted,
            first_token_ms = report::milliseconds(total.time_to_first_token),
            ms = report::milliseconds(total.time),
            cut_by = cut.map(CutReason::name),
            "answered"
        );
    }
}

/// The sum of several answers' statistics. They were generated at the same time, so the times are the longest ones.
fn combined(stats: &[Stats]) -> Stats {
    let mut total = report::total(stats.iter());
    total.time = stats.iter().map(|stats| stats.time).max().unwrap_or_default();
    total.time_to_first_token = stats.iter().map(|stats| stats.time_to_first_token).max().unwrap_or_default();
    total
}

/// One of OpenAI's `choices`.
#[derive(Serialize)]
struct ChoiceJson {
    #[serde(flatten)]
    fields: Map<String, Value>,
    /// Kept as text, since it may be large.
    logprobs: Option<Box<RawValue>>,
}

/// The statistics of a request. Of a beam search the tokens of all hypotheses that are returned count.
fn with_all_beams(stats: &Stats, beams: &[Beam]) -> Stats {
    let tokens = beams.iter().map(|beam| beam.tokens.len()).sum();
    Stats { emitted: if beams.is_empty() { stats.emitted } else { tokens }, ..stats.clone() }
}

/// What a choice of a beam search has besides: its score, and the sum of its log-probabilities.
fn of_beam(beam: &Beam) -> [(&'static str, Value); 2] {
    let number = |number: f64| json!(report::digits(number));
    [("score", number(beam.score)), ("log_probability", number(beam.log_probability))]
}

/// OpenAI's finish reason. For an answer that was cut it is the one for the maximum length.
fn finish_reason(reason: &FinishReason, calls: ReportedCalls) -> &'static str {
    match report::finish_reason(Some(reason)) {
        "stop" if calls.is_cut => "length",
        "stop" if calls.count > 0 => "tool_calls",
        "stop" => "stop",
        _ => "length",
    }
}

/// The id of a call: the model's own, or nine letters and digits, which every template accepts. `number`: the index of
/// the call in the answer.
pub(crate) fn call_id(context: &AnswerContext, index: usize, number: usize, call: &ToolCall) -> String {
    let hash = xxhash_rust::xxh3::xxh3_64(format!("{} {index} {number}", context.id).as_bytes());
    call.id.clone().unwrap_or_else(|| format!("{:09x}", hash & 0xf_ffff_ffff))
}

/// A call in OpenAI's format.
pub(crate) fn call_object(context: &AnswerContext, index: usize, number: usize, call: &ToolCall) -> Value {
    json!({
        "index": number,
        "id": call_id(context, index, number, call),
        "type": "function",
        "function": { "name": call.name, "arguments": call.arguments },
    })
}
