//! Anthropic's answers: a message of blocks, whole and as events.
//!
//! Each call's input is an object whose names keep the order in which the model wrote them: a client sends it back in
//! the next turn, and the text that was computed for it has to be found again. Thoughts have an empty signature, which
//! clients expect. What a request has cost is told at the end of a stream; at its beginning all of the prompt counts as
//! input, since it is not known yet what the cache has.

use axum::http::StatusCode;
use foretoken::{Emitted, FinishReason, ToolCall};
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::answer::form::{End, Form, Whole};
use crate::answer::pieces::Pieces;
use crate::answer::{Head, call_id};
use crate::doors::blocks::{Blocks, Content, Step, are_calls_alone};
use crate::error::ApiError;
use crate::run::Asked;

/// See the head of this file.
#[derive(Default)]
pub(super) struct MessageForm {
    blocks: Blocks,
    /// Blocks that were told.
    count: usize,
}

/// A block of a whole message.
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
}

impl Usage {
    /// What the cache had is no input, as this API counts.
    fn of(end: &End) -> Self {
        let cached = end.stats.prompt_tokens_shared;
        Self {
            input_tokens: end.prompt_len.saturating_sub(cached),
            cache_creation_input_tokens: 0,
            cache_read_input_tokens: cached,
            output_tokens: end.stats.emitted,
        }
    }
}

/// An error as this API tells it.
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

/// The input of a call, which is the text of an object.
fn input_of(call: &ToolCall) -> Box<RawValue> {
    RawValue::from_string(call.arguments.clone()).unwrap_or_else(|_| RawValue::from_string("{}".into()).expect("JSON"))
}

fn event(kind: &str, fields: Value) -> String {
    let mut object = fields;
    object["type"] = json!(kind);
    format!("event: {kind}\ndata: {object}\n\n")
}

impl MessageForm {
    fn tell(&mut self, head: &Head, steps: Vec<Step>) -> String {
        steps.into_iter().map(|step| self.step(head, step)).collect()
    }

    fn step(&mut self, head: &Head, step: Step) -> String {
        let index = self.count;
        let start = |block: Value| event("content_block_start", json!({ "index": index, "content_block": block }));
        let delta = |delta: Value| event("content_block_delta", json!({ "index": index, "delta": delta }));
        let stop = || event("content_block_stop", json!({ "index": index }));
        match step {
            Step::Open(Content::Thoughts) => start(json!({ "type": "thinking", "thinking": "", "signature": "" })),
            Step::Open(Content::Text) => start(json!({ "type": "text", "text": "" })),
            Step::More(Content::Thoughts, text) => delta(json!({ "type": "thinking_delta", "thinking": text })),
            Step::More(Content::Text, text) => delta(json!({ "type": "text_delta", "text": text })),
            Step::Close(Content::Thoughts, _) => {
                self.count += 1;
                delta(json!({ "type": "signature_delta", "signature": "" })) + &stop()
            }
            Step::Close(Content::Text, _) => {
                self.count += 1;
                stop()
            }
            Step::Call(number, call) => {
                self.count += 1;
                let id = call_id(head, 0, number, &call);
                let block = json!({ "type": "tool_use", "id": id, "name": call.name, "input": {} });
                let input = json!({ "type": "input_json_delta", "partial_json": input_of(&call).get() });
                start(block) + &delta(input) + &stop()
            }
        }
    }
}

impl Form for MessageForm {
    fn prefix(&self) -> &'static str {
        "msg_"
    }

    fn begin(&mut self, head: &Head, asked: &[Asked]) -> String {
        let input_tokens = asked.first().map_or(0, |asked| asked.prompt_len);
        let message = Message {
            id: &head.id,
            r#type: "message",
            role: "assistant",
            model: &head.app.model,
            content: Vec::new(),
            stop_reason: None,
            stop_sequence: None,
            usage: Usage { input_tokens, cache_creation_input_tokens: 0, cache_read_input_tokens: 0, output_tokens: 0 },
        };
        event("message_start", json!({ "message": message }))
    }

    fn quiet(&mut self) -> String {
        event("ping", json!({}))
    }

    fn pieces(&mut self, head: &Head, _: usize, pieces: &Pieces, _: &[Emitted]) -> String {
        let steps = self.blocks.push(pieces);
        self.tell(head, steps)
    }

    fn end(&mut self, head: &Head, _: usize, end: &End) -> String {
        let steps = self.blocks.finish(are_calls_alone(head));
        let (reason, word) = stop_reason(end);
        let delta = json!({ "stop_reason": reason, "stop_sequence": word });
        let usage = Usage::of(end);
        self.tell(head, steps)
            + &event("message_delta", json!({ "delta": delta, "usage": usage }))
            + &event("message_stop", json!({}))
    }

    fn error(&mut self, error: &ApiError) -> String {
        event("error", error_object(error))
    }

    fn whole(&mut self, head: &Head, all: &[Whole]) -> Value {
        serde_json::from_str(&self.whole_text(head, all)).expect("it was written as JSON")
    }

    fn whole_text(&mut self, head: &Head, all: &[Whole]) -> String {
        let Some(Whole { pieces, end, .. }) = all.first() else { return json!({}).to_string() };
        let mut steps = self.blocks.push(pieces);
        steps.extend(self.blocks.finish(are_calls_alone(head)));
        let block = |step: Step| match step {
            Step::Open(_) | Step::More(..) => None,
            Step::Close(Content::Thoughts, thinking) => Some(Block::Thinking { thinking, signature: "" }),
            Step::Close(Content::Text, text) => Some(Block::Text { text }),
            Step::Call(number, call) => {
                let (id, input) = (call_id(head, 0, number, &call), input_of(&call));
                Some(Block::ToolUse { id, name: call.name, input })
            }
        };
        let (stop_reason, stop_sequence) = stop_reason(end);
        let message = Message {
            id: &head.id,
            r#type: "message",
            role: "assistant",
            model: &head.app.model,
            content: steps.into_iter().filter_map(block).collect(),
            stop_reason: Some(stop_reason),
            stop_sequence,
            usage: Usage::of(end),
        };
        serde_json::to_string(&message).expect("texts and numbers can be written")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_the_kind_of_their_status() {
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
    fn a_quiet_stream_is_told_that_it_lives() {
        assert_eq!(MessageForm::default().quiet(), "event: ping\ndata: {\"type\":\"ping\"}\n\n");
    }

    #[test]
    fn inputs_keep_their_order() {
        let call = ToolCall { name: "f".into(), arguments: r#"{"b": 1, "a": 2}"#.into(), id: None };
        let block = Block::ToolUse { id: "1".into(), name: "f".into(), input: input_of(&call) };
        let expected = r#"{"type":"tool_use","id":"1","name":"f","input":{"b": 1, "a": 2}}"#;
        assert_eq!(serde_json::to_string(&block).expect("JSON"), expected);
    }
}
