//! Answers in OpenAI's form: what both ways of telling them, whole (`whole.rs`) and streamed (`stream.rs`), share.
//!
//! Extras stand beside OpenAI's fields and have other servers' names where there are any: `timings` (llama.cpp), `seed`
//! of each answer, `cut_by` where a text was cut, `provenance` and `drafted` where a request wants to know who guessed
//! what. Left out: how answers come about (`run.rs`).

pub(crate) mod form;
pub(crate) mod log_probabilities;
pub(crate) mod pieces;
pub(crate) mod provenance;
pub(crate) mod stream;
pub(crate) mod whole;

use std::sync::Arc;

use foretoken::settings::SamplingSettings;
use foretoken::{FinishReason, Prompter, Request, Stats, ToolCall, report};
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use crate::app::App;
use crate::ask::Ask;
use crate::ask::chat::ChatAsk;
use crate::ask::completion::CompletionAsk;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::limits::TextLimit;
use crate::run::{Asked, Cut};
use crate::settings::ServerSettings;
use crate::shared::seconds_since_1970;
use pieces::CallsTold;

/// What was asked for.
#[derive(Clone, Debug)]
pub(crate) enum Kind {
    Chat(Box<ChatAsk>),
    Completion(Box<CompletionAsk>),
}

/// What a request is understood by: the prompter, the server's settings and limits, and whose it is.
pub(crate) struct Reading<'a> {
    pub(crate) prompter: &'a Prompter,
    pub(crate) sampling: &'a SamplingSettings,
    pub(crate) settings: &'a ServerSettings,
    pub(crate) limit: &'a TextLimit,
    pub(crate) key: u64,
}

impl Kind {
    /// Reads what a chat or a completion asks for, and makes the requests for it.
    pub(crate) fn read(
        is_chat: bool,
        fields: &mut Fields,
        reading: &Reading<'_>,
    ) -> Result<(Self, Vec<Request>), ApiError> {
        let Reading { prompter, sampling, settings, limit, key } = *reading;
        let ask = Ask::read(fields, sampling, settings)?;
        if is_chat {
            let mut chat = ChatAsk::read(fields, ask, settings)?;
            let requests = chat.requests(prompter, key, limit)?;
            return Ok((Self::Chat(Box::new(chat)), requests));
        }
        let mut completion = CompletionAsk::read(fields, ask, settings.answers_max)?;
        let requests = completion.requests(prompter, key, limit)?;
        Ok((Self::Completion(Box::new(completion)), requests))
    }

    pub(crate) fn ask(&self) -> &Ask {
        match self {
            Self::Chat(chat) => &chat.ask,
            Self::Completion(completion) => &completion.ask,
        }
    }

    fn is_chat(&self) -> bool {
        matches!(self, Self::Chat(_))
    }

    /// The engine's error in the names of this kind's fields: the prompt of a chat is made of its messages.
    pub(crate) fn named(&self, error: ApiError) -> ApiError {
        match error.param.as_deref() {
            Some("prompt") if self.is_chat() => error.of_field("messages"),
            _ => error,
        }
    }
}

/// One request and its answers: what stands in every object of it.
pub(crate) struct Head {
    pub(crate) app: Arc<App>,
    pub(crate) kind: Kind,
    /// The answer's own name.
    pub(crate) id: String,
    pub(crate) created: u64,
}

impl Head {
    /// `prefix`: what its name begins with; `None`: as OpenAI has it.
    pub(crate) fn new(app: Arc<App>, kind: Kind, number: u64, prefix: Option<&str>) -> Self {
        let prefix = prefix.unwrap_or(if kind.is_chat() { "chatcmpl-" } else { "cmpl-" });
        let id = format!("{prefix}{}", app.name_of_request(number));
        Self { app, kind, id, created: seconds_since_1970() }
    }

    pub(crate) fn prompter(&self) -> &Prompter {
        &self.app.prompter
    }

    /// The JSON of an object with these choices and further fields.
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
            model: &self.app.model,
            system_fingerprint: concat!("foretoken-", env!("CARGO_PKG_VERSION")),
            choices,
            warnings: if is_chunk && !choices.is_empty() { &[] } else { &self.kind.ask().warnings },
            extras,
        };
        serde_json::to_string(&object).expect("texts and numbers can be written")
    }

    /// Tokens that were read and written. The prompt of several answers counts once.
    fn usage(&self, asked: &[Asked], stats: &[Stats]) -> Value {
        let each_prompt = stats.iter().step_by(self.kind.ask().best_of.max(1));
        let prompt: usize = asked.iter().step_by(self.kind.ask().best_of.max(1)).map(|one| one.prompt_len).sum();
        let cached: usize = each_prompt.map(|stats| stats.prompt_tokens_shared).sum();
        let written: usize = stats.iter().map(|stats| stats.emitted).sum();
        let follows = |number: &usize| self.prompter().is_prediction(u8::try_from(*number).unwrap_or(u8::MAX));
        let of_prediction = stats.iter().flat_map(|stats| stats.drafters.iter().enumerate());
        let of_prediction = of_prediction.filter(|(number, _)| follows(number)).map(|(_, drafter)| drafter);
        let (accepted, drafted) = of_prediction
            .fold((0, 0), |(accepted, drafted), drafter| (accepted + drafter.accepted, drafted + drafter.drafted));
        json!({
            "prompt_tokens": prompt,
            "completion_tokens": written,
            "total_tokens": prompt + written,
            "prompt_tokens_details": { "cached_tokens": cached },
            "completion_tokens_details": {
                "accepted_prediction_tokens": accepted,
                "rejected_prediction_tokens": drafted - accepted,
            },
        })
    }

    /// How long it took, in llama.cpp's names.
    pub(crate) fn timings(&self, stats: &[Stats]) -> Value {
        let total = together(stats);
        let mut timings = report::timings(&total);
        if timings["predicted_per_second"].is_null() {
            // One pass wrote everything, and a client expects a number.
            let seconds = total.time.as_secs_f64();
            timings["predicted_per_second"] = json!(if seconds > 0.0 { total.emitted as f64 / seconds } else { 0.0 });
        }
        timings["passes"] = json!(total.passes);
        timings["drafts"] = json!(total.drafts);
        timings["mean_accepted_length"] = json!(total.mean_accepted_len());
        timings
    }

    /// Logs the end of a request, without its text.
    fn log(&self, stats: &[Stats], cut: Option<Cut>) {
        let total = together(stats);
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
            cut_by = cut.map(Cut::name),
            "answered"
        );
    }
}

/// Counts of several answers together. They were written at the same time, so of their times the longest count.
fn together(stats: &[Stats]) -> Stats {
    let mut total = report::total(stats.iter());
    total.time = stats.iter().map(|stats| stats.time).max().unwrap_or_default();
    total.time_to_first_token = stats.iter().map(|stats| stats.time_to_first_token).max().unwrap_or_default();
    total
}

/// One choice of an answer, as JSON.
#[derive(Serialize)]
struct ChoiceJson {
    #[serde(flatten)]
    fields: Map<String, Value>,
    /// There may be much of it.
    logprobs: Option<Box<RawValue>>,
}

/// Why a text ended, in OpenAI's words. A cut text ended as one that reached its length.
fn finish_reason(reason: &FinishReason, calls: CallsTold) -> &'static str {
    match report::finish_reason(Some(reason)) {
        "stop" if calls.is_cut => "length",
        "stop" if calls.count > 0 => "tool_calls",
        "stop" => "stop",
        _ => "length",
    }
}

/// The name of a call: the model's own, or nine letters and digits, which every template takes back. `number`: its
/// place among those of the answer.
pub(crate) fn call_id(head: &Head, index: usize, number: usize, call: &ToolCall) -> String {
    let hash = xxhash_rust::xxh3::xxh3_64(format!("{} {index} {number}", head.id).as_bytes());
    call.id.clone().unwrap_or_else(|| format!("{:09x}", hash & 0xf_ffff_ffff))
}

/// A call as OpenAI has it.
pub(crate) fn call_object(head: &Head, index: usize, number: usize, call: &ToolCall) -> Value {
    json!({
        "index": number,
        "id": call_id(head, index, number, call),
        "type": "function",
        "function": { "name": call.name, "arguments": call.arguments },
    })
}
