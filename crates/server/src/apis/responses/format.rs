//! OpenAI's responses: items, complete and as numbered events.
//!
//! A complete response is built like a streamed one, and its events are dropped. Reasoning is the content of a
//! `reasoning` item, not its summary, since it is the model's own text. Log-probabilities of all generated tokens are
//! attached to the text. The usage has `lossy_lenience` if verification was lossy. How a request becomes a chat is in
//! `../responses.rs`.

use axum::http::StatusCode;
use foretoken::{Emitted, ThinkingReader, Token};
use serde_json::{Map, Value, json};

use crate::answer::format::{AnswerFormat, CompleteAnswer, End};
use crate::answer::log_probabilities::{TokenLogProbability, chat_log_probabilities};
use crate::answer::parts::AnswerParts;
use crate::answer::{AnswerContext, RequestKind, call_id};
use crate::apis::blocks::{BlockEvent, Blocks, Content, are_calls_only};
use crate::error::ApiError;
use crate::run::RequestRecord;
use crate::shared::seconds_since_1970;

/// The format of responses.
#[derive(Default)]
pub(super) struct ResponsesFormat {
    /// The fields of all objects: those of the request, and the response's id.
    base: Map<String, Value>,
    /// The suffix of the ids of items.
    id_suffix: String,
    blocks: Blocks,
    /// Events so far.
    count: usize,
    /// Items that are complete.
    output: Vec<Value>,
    end_tokens: Vec<Token>,
    /// Log-probabilities that were not yet sent.
    unsent_logprobs: Vec<Value>,
    /// Log-probabilities of the open text that were sent.
    text_logprobs: Vec<Value>,
    thinking: ThinkingTokens,
    has_reasoning: bool,
}

/// Counts the tokens of the reasoning before the answer.
#[derive(Default)]
struct ThinkingTokens {
    reader: Option<ThinkingReader>,
    count: usize,
    is_over: bool,
}

impl ThinkingTokens {
    fn count_tokens(&mut self, emitted: &[Emitted]) {
        let Some(reader) = &mut self.reader else { return };
        for token in emitted {
            let parts = reader.push(&token.text);
            self.is_over |= !parts.answer.is_empty();
            self.count += usize::from(!self.is_over);
        }
    }
}

impl ResponsesFormat {
    /// `echo`: the request's fields that responses repeat.
    pub(super) fn new(echo: Map<String, Value>, end_tokens: Vec<Token>) -> Self {
        Self { base: echo, end_tokens, ..Self::default() }
    }

    /// Sets the fields of all objects; called before the first part.
    fn prepare(&mut self, context: &AnswerContext) {
        self.id_suffix = context.id.strip_prefix(self.prefix()).unwrap_or(&context.id).to_string();
        let own = [
            ("id", json!(context.id)),
            ("object", json!("response")),
            ("created_at", json!(context.created)),
            ("model", json!(context.model)),
        ];
        self.base.extend(own.map(|(name, value)| (name.to_string(), value)));
        if let RequestKind::Chat(chat) = &context.kind {
            self.thinking.reader.clone_from(&chat.thinking);
        }
    }

    fn event(&mut self, kind: &str, fields: Value) -> String {
        let mut object = fields;
        object["type"] = json!(kind);
        object["sequence_number"] = json!(self.count);
        self.count += 1;
        format!("event: {kind}\ndata: {object}\n\n")
    }

    /// The response in its current state.
    fn response(&self, status: &str, further: Value) -> Value {
        let mut response = self.base.clone();
        let own = [
            ("status", json!(status)),
            ("output", json!(self.output)),
            ("error", Value::Null),
            ("incomplete_details", Value::Null),
            ("usage", Value::Null),
        ];
        response.extend(own.map(|(name, value)| (name.to_string(), value)));
        if let Value::Object(further) = further {
            response.extend(further);
        }
        Value::Object(response)
    }

    /// The response at its end, with its status.
    fn ended_response(&self, end: &End) -> (&'static str, Value) {
        let (input, output) = (end.prompt_len, end.stats.emitted);
        let reasoning_tokens = if self.has_reasoning { self.thinking.count } else { 0 };
        let usage = json!({
            "input_tokens": input,
            "input_tokens_details": { "cached_tokens": end.stats.prompt_tokens_shared, "cache_write_tokens": 0 },
            "output_tokens": output,
            "output_tokens_details": { "reasoning_tokens": reasoning_tokens },
            "total_tokens": input + output,
        });
        let usage = foretoken::report::tell_lossy(usage, &end.stats);
        let (status, details) = match end.is_cut() {
            true => ("incomplete", json!({ "reason": "max_output_tokens" })),
            false => ("completed", Value::Null),
        };
        let completed_at = (!end.is_cut()).then(seconds_since_1970);
        let further = json!({ "usage": usage, "incomplete_details": details, "completed_at": completed_at });
        (status, self.response(status, further))
    }

    /// The next item, with these parts.
    fn item(&self, content: Content, parts: Value, status: &str) -> Value {
        let number = self.output.len();
        match content {
            Content::Reasoning => json!({
                "id": format!("rs_{}_{number}", self.id_suffix),
                "type": "reasoning",
                "summary": [],
                "content": parts,
                "status": status,
            }),
            Content::Text => json!({
                "id": format!("msg_{}_{number}", self.id_suffix),
                "type": "message",
                "role": "assistant",
                "content": parts,
                "status": status,
            }),
        }
    }

    /// The part of a block's item.
    fn part(content: Content, text: &str, log_probabilities: &[Value]) -> Value {
        match content {
            Content::Reasoning => json!({ "type": "reasoning_text", "text": text }),
            Content::Text => {
                json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": log_probabilities })
            }
        }
    }

    /// The events of these changes. `status`: that of items that end.
    fn write_events(&mut self, context: &AnswerContext, events: Vec<BlockEvent>, status: &str) -> String {
        events.into_iter().map(|event| self.write_event(context, event, status)).collect()
    }

    fn write_event(&mut self, context: &AnswerContext, block_event: BlockEvent, status: &str) -> String {
        let at = self.output.len();
        let event_names = |content| match content {
            Content::Reasoning => ("response.reasoning_text.delta", "response.reasoning_text.done"),
            Content::Text => ("response.output_text.delta", "response.output_text.done"),
        };
        match block_event {
            BlockEvent::Open(content) => {
                self.has_reasoning |= content == Content::Reasoning;
                let item = self.item(content, json!([]), "in_progress");
                let id = item["id"].clone();
                let added = self.event("response.output_item.added", json!({ "output_index": at, "item": item }));
                let part = Self::part(content, "", &[]);
                let begun = json!({ "item_id": id, "output_index": at, "content_index": 0, "part": part });
                added + &self.event("response.content_part.added", begun)
            }
            BlockEvent::Append(content, text) => {
                let id = self.item(content, json!([]), status)["id"].take();
                let mut more = json!({ "item_id": id, "output_index": at, "content_index": 0, "delta": text });
                if content == Content::Text {
                    more["logprobs"] = json!(self.unsent_logprobs);
                    self.text_logprobs.append(&mut self.unsent_logprobs);
                }
                self.event(event_names(content).0, more)
            }
            BlockEvent::Close(content, text) => self.close(content, &text, event_names(content).1, status),
            BlockEvent::Call(number, call) => {
                let id = format!("fc_{}_{at}", self.id_suffix);
                let mut item = json!({
                    "id": id,
                    "type": "function_call",
                    "call_id": call_id(context, 0, number, &call),
                    "name": call.name,
                    "arguments": "",
                    "status": "in_progress",
                });
                let mut output = self.event("response.output_item.added", json!({ "output_index": at, "item": item }));
                let more = json!({ "item_id": id, "output_index": at, "delta": call.arguments });
                output.push_str(&self.event("response.function_call_arguments.delta", more));
                let done = json!({ "item_id": id, "output_index": at, "name": call.name, "arguments": call.arguments });
                output.push_str(&self.event("response.function_call_arguments.done", done));
                item["arguments"] = json!(call.arguments);
                item["status"] = json!("completed");
                output + &self.done(item)
            }
        }
    }

    /// The events at the end of a block that was filled incrementally.
    fn close(&mut self, content: Content, text: &str, event_name: &str, status: &str) -> String {
        let mut logprobs = Vec::new();
        if content == Content::Text {
            logprobs.append(&mut self.text_logprobs);
            logprobs.append(&mut self.unsent_logprobs);
        }
        let part = Self::part(content, text, &logprobs);
        let item = self.item(content, json!([part]), status);
        let position = json!({ "item_id": item["id"], "output_index": self.output.len(), "content_index": 0 });
        let (mut done, mut ended) = (position.clone(), position);
        done["text"] = json!(text);
        if content == Content::Text {
            done["logprobs"] = json!(logprobs);
        }
        ended["part"] = part;
        let output = self.event(event_name, done) + &self.event("response.content_part.done", ended);
        output + &self.done(item)
    }

    /// The event of a complete item.
    fn done(&mut self, item: Value) -> String {
        let done = json!({ "output_index": self.output.len(), "item": item });
        self.output.push(item);
        self.event("response.output_item.done", done)
    }

    /// Records generated tokens.
    fn record_tokens(&mut self, context: &AnswerContext, emitted: &[Emitted]) {
        self.thinking.count_tokens(emitted);
        if context.kind.options().log_probabilities.is_some() {
            let tokens = TokenLogProbability::without_end_tokens(emitted, &self.end_tokens);
            let logprobs = chat_log_probabilities(tokens, context.prompter());
            let mut logprobs: Value = serde_json::from_str(logprobs.get()).expect("it was written as JSON");
            if let Value::Array(tokens) = logprobs["content"].take() {
                self.unsent_logprobs.extend(tokens);
            }
        }
    }
}

impl AnswerFormat for ResponsesFormat {
    fn prefix(&self) -> &'static str {
        "resp_"
    }

    fn begin(&mut self, context: &AnswerContext, _: &[RequestRecord]) -> String {
        self.prepare(context);
        let created = self.response("in_progress", Value::Null);
        let output = self.event("response.created", json!({ "response": created }));
        output + &self.event("response.in_progress", json!({ "response": created }))
    }

    fn parts(&mut self, context: &AnswerContext, _: usize, parts: &AnswerParts, emitted: &[Emitted]) -> String {
        self.record_tokens(context, emitted);
        let events = self.blocks.push(parts);
        self.write_events(context, events, "completed")
    }

    fn end(&mut self, context: &AnswerContext, _: usize, end: &End) -> String {
        let events = self.blocks.finish(are_calls_only(context));
        let output = self.write_events(context, events, if end.is_cut() { "incomplete" } else { "completed" });
        let (status, response) = self.ended_response(end);
        output + &self.event(&format!("response.{status}"), json!({ "response": response }))
    }

    fn error(&mut self, error: &ApiError) -> String {
        let code = match error.status {
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_exceeded",
            status if status.is_server_error() => "server_error",
            _ => "invalid_prompt",
        };
        let error = json!({ "error": { "code": code, "message": error.message } });
        let response = self.response("failed", error);
        self.event("response.failed", json!({ "response": response }))
    }

    fn complete(&mut self, context: &AnswerContext, all: &[CompleteAnswer]) -> Value {
        let Some(CompleteAnswer { parts, end, answer }) = all.first() else { return json!({}) };
        self.prepare(context);
        self.record_tokens(context, &answer.emitted);
        let events = self.blocks.push(parts);
        self.write_events(context, events, "completed");
        let events = self.blocks.finish(are_calls_only(context));
        self.write_events(context, events, if end.is_cut() { "incomplete" } else { "completed" });
        self.ended_response(end).1
    }
}
