//! Anthropic's answers: a message of content blocks, complete and as events.
//!
//! The names in a call's input keep the model's order: the client sends the input back in the next turn, and its tokens
//! must be found in the cache. Reasoning blocks have an empty signature, which clients expect. The usage is final at
//! the end of a stream; at its beginning the whole prompt counts as input, since the cached part is not yet known. It
//! has `lossy_lenience` if verification was lossy, since it alone is at the end of both complete and streamed messages.

use axum::http::StatusCode;
use foretoken::{Emitted, FinishReason, ToolCall};
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::answer::format::{AnswerFormat, CompleteAnswer, End};
use crate::answer::parts::AnswerParts;
use crate::answer::{AnswerContext, call_id};
use crate::apis::blocks::{BlockEvent, Blocks, Content, are_calls_only};
use crate::error::ApiError;
use crate::run::RequestRecord;

/// The format of Anthropic's answers.
#[derive(Default)]
pub(super) struct MessagesFormat {
    blocks: Blocks,
    /// Blocks that are complete.
    count: usize,
}

/// A block of a complete message.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Block {
    Thinking { thinking: String, signature: &'static str },
    Text { text: String },
    ToolUse { id: String, name: String, input: Box<RawValue> },
}

#[derive(Serialize)]
struct Message<'a> {
    id: &'a str,
    r#type: &'static str,
    role: &'static str,
    model: &'a str,
    content: Vec<Block>,
    stop_reason: Option<&'static str>,
    stop_sequence: Option<&'a str>,
    usage: Usage,
}

#[derive(Serialize)]
struct Usage {
    input_tokens: usize,
    cache_creation_input_tokens: usize,
    cache_read_input_tokens: usize,
    output_tokens: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    lossy_lenience: Option<f64>,
}

impl Usage {
    /// Before anything is generated.
    fn at_begin(input_tokens: usize) -> Self {
        Self {
            input_tokens,
            cache_creation_input_tokens: 0,
            cache_read_input_tokens: 0,
            output_tokens: 0,
            lossy_lenience: None,
        }
    }

    /// In this API, cached tokens do not count as input.
    fn of(end: &End) -> Self {
        let cached = end.stats.prompt_tokens_shared;
        Self {
            input_tokens: end.prompt_len.saturating_sub(cached),
            cache_creation_input_tokens: 0,
            cache_read_input_tokens: cached,
            output_tokens: end.stats.emitted,
            lossy_lenience: foretoken::report::lossy_lenience(&end.stats),
        }
    }
}

/// The error object of this API.
pub(crate) fn error_object(error: &ApiError) -> Value {
    let kind = match error.status {
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::FORBIDDEN => "permission_error",
        StatusCode::NOT_FOUND => "not_found_error",
        StatusCode::REQUEST_TIMEOUT => "timeout_error",
        StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
        status if status.is_server_error() => "api_error",
        _ => "invalid_request_error",
    };
    json!({ "type": "error", "error": { "type": kind, "message": error.message } })
}

/// Why the answer ended, and which string ended it.
fn stop_reason(end: &End) -> (&'static str, Option<&str>) {
    match &end.reason {
        _ if end.is_cut() => ("max_tokens", None),
        _ if end.calls.count > 0 => ("tool_use", None),
        FinishReason::StopString(word) => ("stop_sequence", Some(word)),
        _ => ("end_turn", None),
    }
}

/// The input of a call, as JSON text.
fn input_of(call: &ToolCall) -> Box<RawValue> {
    RawValue::from_string(call.arguments.clone()).unwrap_or_else(|_| RawValue::from_string("{}".into()).expect("JSON"))
}

fn event(kind: &str, fields: Value) -> String {
    let mut object = fields;
    object["type"] = json!(kind);
    format!("event: {kind}\ndata: {object}\n\n")
}

impl MessagesFormat {
    fn write_events(&mut self, context: &AnswerContext, events: Vec<BlockEvent>) -> String {
        events.into_iter().map(|event| self.write_event(context, event)).collect()
    }

    fn write_event(&mut self, context: &AnswerContext, block_event: BlockEvent) -> String {
        let index = self.count;
        let start = |block: Value| event("content_block_start", json!({ "index": index, "content_block": block }));
        let delta = |delta: Value| event("content_block_delta", json!({ "index": index, "delta": delta }));
        let stop = || event("content_block_stop", json!({ "index": index }));
        match block_event {
            BlockEvent::Open(Content::Reasoning) => {
                start(json!({ "type": "thinking", "thinking": "", "signature": "" }))
            }
            BlockEvent::Open(Content::Text) => start(json!({ "type": "text", "text": "" })),
            BlockEvent::Append(Content::Reasoning, text) => {
                delta(json!({ "type": "thinking_delta", "thinking": text }))
            }
            BlockEvent::Append(Content::Text, text) => delta(json!({ "type": "text_delta", "text": text })),
            BlockEvent::Close(Content::Reasoning, _) => {
                self.count += 1;
                delta(json!({ "type": "signature_delta", "signature": "" })) + &stop()
            }
            BlockEvent::Close(Content::Text, _) => {
                self.count += 1;
                stop()
            }
            BlockEvent::Call(number, call) => {
                self.count += 1;
                let id = call_id(context, 0, number, &call);
                let block = json!({ "type": "tool_use", "id": id, "name": call.name, "input": {} });
                let input = json!({ "type": "input_json_delta", "partial_json": input_of(&call).get() });
                start(block) + &delta(input) + &stop()
            }
        }
    }
}

impl AnswerFormat for MessagesFormat {
    fn prefix(&self) -> &'static str {
        "msg_"
    }

    fn begin(&mut self, context: &AnswerContext, records: &[RequestRecord]) -> String {
        let input_tokens = records.first().map_or(0, |records| records.prompt_len);
        let message = Message {
            id: &context.id,
            r#type: "message",
            role: "assistant",
            model: &context.model,
            content: Vec::new(),
            stop_reason: None,
            stop_sequence: None,
            usage: Usage::at_begin(input_tokens),
        };
        event("message_start", json!({ "message": message }))
    }

    fn keep_alive(&mut self) -> String {
        event("ping", json!({}))
    }

    fn parts(&mut self, context: &AnswerContext, _: usize, parts: &AnswerParts, _: &[Emitted]) -> String {
        let events = self.blocks.push(parts);
        self.write_events(context, events)
    }

    fn end(&mut self, context: &AnswerContext, _: usize, end: &End) -> String {
        let events = self.blocks.finish(are_calls_only(context));
        let (reason, word) = stop_reason(end);
        let delta = json!({ "stop_reason": reason, "stop_sequence": word });
        let usage = Usage::of(end);
        self.write_events(context, events)
            + &event("message_delta", json!({ "delta": delta, "usage": usage }))
            + &event("message_stop", json!({}))
    }

    fn error(&mut self, error: &ApiError) -> String {
        event("error", error_object(error))
    }

    fn complete(&mut self, context: &AnswerContext, all: &[CompleteAnswer]) -> Value {
        serde_json::from_str(&self.complete_text(context, all)).expect("it was written as JSON")
    }

    fn complete_text(&mut self, context: &AnswerContext, all: &[CompleteAnswer]) -> String {
        let Some(CompleteAnswer { parts, end, .. }) = all.first() else { return json!({}).to_string() };
        let mut events = self.blocks.push(parts);
        events.extend(self.blocks.finish(are_calls_only(context)));
        let block = |block_event: BlockEvent| match block_event {
            BlockEvent::Open(_) | BlockEvent::Append(..) => None,
            BlockEvent::Close(Content::Reasoning, thinking) => Some(Block::Thinking { thinking, signature: "" }),
            BlockEvent::Close(Content::Text, text) => Some(Block::Text { text }),
            BlockEvent::Call(number, call) => {
                let (id, input) = (call_id(context, 0, number, &call), input_of(&call));
                Some(Block::ToolUse { id, name: call.name, input })
            }
        };
        let (stop_reason, stop_sequence) = stop_reason(end);
        let message = Message {
            id: &context.id,
            r#type: "message",
            role: "assistant",
            model: &context.model,
            content: events.into_iter().filter_map(block).collect(),
            stop_reason: Some(stop_reason),
            stop_sequence,
            usage: Usage::of(end),
        };
        serde_json::to_string(&message).expect("strings and numbers can be serialized")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_the_type_of_their_status() {
        let kind = |error: ApiError| error_object(&error)["error"]["type"].as_str().map(str::to_string);
        for (error, expected) in [
            (ApiError::field("messages", "expected a list, found 5"), "invalid_request_error"),
            (ApiError::unauthorized(), "authentication_error"),
            (ApiError::forbidden("Host: expected localhost, found x"), "permission_error"),
            (ApiError::model("a", "b"), "not_found_error"),
            (ApiError::method("GET"), "invalid_request_error"),
            (ApiError::too_slow(1), "timeout_error"),
            (ApiError::too_large(1), "request_too_large"),
            (ApiError::busy("queue: expected room, found none", 1), "rate_limit_error"),
            (ApiError::ending(), "overloaded_error"),
            (ApiError::bug("engine: expected one, found none"), "api_error"),
        ] {
            assert_eq!(kind(error).as_deref(), Some(expected));
        }
    }

    #[test]
    fn a_keep_alive_message_is_a_ping() {
        assert_eq!(MessagesFormat::default().keep_alive(), "event: ping\ndata: {\"type\":\"ping\"}\n\n");
    }

    #[test]
    fn inputs_keep_their_order() {
        let call = ToolCall { name: "f".into(), arguments: r#"{"b": 1, "a": 2}"#.into(), id: None };
        let block = Block::ToolUse { id: "1".into(), name: "f".into(), input: input_of(&call) };
        let expected = r#"{"type":"tool_use","id":"1","name":"f","input":{"b": 1, "a": 2}}"#;
        assert_eq!(serde_json::to_string(&block).expect("JSON"), expected);
    }
}
