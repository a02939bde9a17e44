//! Responses as OpenAI has them: items, whole and as events that are numbered.
//!
//! A whole response is told by the same steps as a streamed one, whose events nobody sends then. Thoughts are the
//! content of a `reasoning` item, not its summary: they are the model's own. Log-probabilities are of all tokens that
//! were written, and stand with the text. Left out: how a request becomes a chat (`../responses.rs`).

use axum::http::StatusCode;
use foretoken::{Emitted, ThinkingReader, Token};
use serde_json::{Map, Value, json};

use crate::answer::form::{End, Form, Whole};
use crate::answer::log_probabilities::{Told, of_chat};
use crate::answer::pieces::Pieces;
use crate::answer::{Head, Kind, call_id};
use crate::doors::blocks::{Blocks, Content, Step, are_calls_alone};
use crate::error::ApiError;
use crate::run::Asked;
use crate::shared::seconds_since_1970;

/// See the head of this file.
#[derive(Default)]
pub(super) struct ResponseForm {
    /// What is the same in all objects: what the request said, and the response's name.
    base: Map<String, Value>,
    /// What the names of items end with.
    name: String,
    blocks: Blocks,
    /// Events that were told.
    count: usize,
    /// Items that are complete.
    output: Vec<Value>,
    end_tokens: Vec<Token>,
    /// Log-probabilities that no event has told, and those of the open text.
    untold: Vec<Value>,
    of_text: Vec<Value>,
    thinking: ThinkingTokens,
    has_thoughts: bool,
}

/// Counts the tokens that were written before the answer.
#[derive(Default)]
struct ThinkingTokens {
    reader: Option<ThinkingReader>,
    count: usize,
    is_over: bool,
}

impl ThinkingTokens {
    fn read(&mut self, emitted: &[Emitted]) {
        let Some(reader) = &mut self.reader else { return };
        for token in emitted {
            let pieces = reader.push(&token.text);
            self.is_over |= !pieces.answer.is_empty();
            self.count += usize::from(!self.is_over);
        }
    }
}

impl ResponseForm {
    /// `echo`: what responses say of their request.
    pub(super) fn new(echo: Map<String, Value>, end_tokens: Vec<Token>) -> Self {
        Self { base: echo, end_tokens, ..Self::default() }
    }

    /// Before the first piece.
    fn prepare(&mut self, head: &Head) {
        self.name = head.id.strip_prefix(self.prefix()).unwrap_or(&head.id).to_string();
        let own = [
            ("id", json!(head.id)),
            ("object", json!("response")),
            ("created_at", json!(head.created)),
            ("model", json!(head.app.model)),
        ];
        self.base.extend(own.map(|(name, value)| (name.to_string(), value)));
        if let Kind::Chat(chat) = &head.kind {
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

    /// The response as it is now.
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

    /// The response at its end, and the word for it.
    fn ended(&self, end: &End) -> (&'static str, Value) {
        let (input, output) = (end.prompt_len, end.stats.emitted);
        let thought = if self.has_thoughts { self.thinking.count } else { 0 };
        let usage = json!({
            "input_tokens": input,
            "input_tokens_details": { "cached_tokens": end.stats.prompt_tokens_shared, "cache_write_tokens": 0 },
            "output_tokens": output,
            "output_tokens_details": { "reasoning_tokens": thought },
            "total_tokens": input + output,
        });
        let (status, details) = match end.is_cut() {
            true => ("incomplete", json!({ "reason": "max_output_tokens" })),
            false => ("completed", Value::Null),
        };
        let completed_at = (!end.is_cut()).then(seconds_since_1970);
        let further = json!({ "usage": usage, "incomplete_details": details, "completed_at": completed_at });
        (status, self.response(status, further))
    }

    /// The item that comes next, with what is in it.
    fn item(&self, content: Content, parts: Value, status: &str) -> Value {
        let number = self.output.len();
        match content {
            Content::Thoughts => json!({
                "id": format!("rs_{}_{number}", self.name),
                "type": "reasoning",
                "summary": [],
                "content": parts,
                "status": status,
            }),
            Content::Text => json!({
                "id": format!("msg_{}_{number}", self.name),
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
            Content::Thoughts => json!({ "type": "reasoning_text", "text": text }),
            Content::Text => {
                json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": log_probabilities })
            }
        }
    }

    /// `status`: that of the items that end.
    fn tell(&mut self, head: &Head, steps: Vec<Step>, status: &str) -> String {
        steps.into_iter().map(|step| self.step(head, step, status)).collect()
    }

    fn step(&mut self, head: &Head, step: Step, status: &str) -> String {
        let at = self.output.len();
        let words = |content| match content {
            Content::Thoughts => ("response.reasoning_text.delta", "response.reasoning_text.done"),
            Content::Text => ("response.output_text.delta", "response.output_text.done"),
        };
        match step {
            Step::Open(content) => {
                self.has_thoughts |= content == Content::Thoughts;
                let item = self.item(content, json!([]), "in_progress");
                let id = item["id"].clone();
                let added = self.event("response.output_item.added", json!({ "output_index": at, "item": item }));
                let part = Self::part(content, "", &[]);
                let begun = json!({ "item_id": id, "output_index": at, "content_index": 0, "part": part });
                added + &self.event("response.content_part.added", begun)
            }
            Step::More(content, text) => {
                let id = self.item(content, json!([]), status)["id"].take();
                let mut more = json!({ "item_id": id, "output_index": at, "content_index": 0, "delta": text });
                if content == Content::Text {
                    more["logprobs"] = json!(self.untold);
                    self.of_text.append(&mut self.untold);
                }
                self.event(words(content).0, more)
            }
            Step::Close(content, text) => self.close(content, &text, words(content).1, status),
            Step::Call(number, call) => {
                let id = format!("fc_{}_{at}", self.name);
                let mut item = json!({
                    "id": id,
                    "type": "function_call",
                    "call_id": call_id(head, 0, number, &call),
                    "name": call.name,
                    "arguments": "",
                    "status": "in_progress",
                });
                let mut told = self.event("response.output_item.added", json!({ "output_index": at, "item": item }));
                let more = json!({ "item_id": id, "output_index": at, "delta": call.arguments });
                told.push_str(&self.event("response.function_call_arguments.delta", more));
                let done = json!({ "item_id": id, "output_index": at, "name": call.name, "arguments": call.arguments });
                told.push_str(&self.event("response.function_call_arguments.done", done));
                item["arguments"] = json!(call.arguments);
                item["status"] = json!("completed");
                told + &self.done(item)
            }
        }
    }

    /// Tells the end of a block that was filled.
    fn close(&mut self, content: Content, text: &str, word: &str, status: &str) -> String {
        let mut of_text = Vec::new();
        if content == Content::Text {
            of_text.append(&mut self.of_text);
            of_text.append(&mut self.untold);
        }
        let part = Self::part(content, text, &of_text);
        let item = self.item(content, json!([part]), status);
        let place = json!({ "item_id": item["id"], "output_index": self.output.len(), "content_index": 0 });
        let (mut done, mut ended) = (place.clone(), place);
        done["text"] = json!(text);
        if content == Content::Text {
            done["logprobs"] = json!(of_text);
        }
        ended["part"] = part;
        let told = self.event(word, done) + &self.event("response.content_part.done", ended);
        told + &self.done(item)
    }

    /// Tells that an item is complete.
    fn done(&mut self, item: Value) -> String {
        let done = json!({ "output_index": self.output.len(), "item": item });
        self.output.push(item);
        self.event("response.output_item.done", done)
    }

    /// Takes note of tokens that were written.
    fn written(&mut self, head: &Head, emitted: &[Emitted]) {
        self.thinking.read(emitted);
        if head.kind.ask().log_probabilities.is_some() {
            let told = of_chat(Told::all(emitted, &self.end_tokens), head.prompter());
            let mut told: Value = serde_json::from_str(told.get()).expect("it was written as JSON");
            if let Value::Array(tokens) = told["content"].take() {
                self.untold.extend(tokens);
            }
        }
    }
}

impl Form for ResponseForm {
    fn prefix(&self) -> &'static str {
        "resp_"
    }

    fn begin(&mut self, head: &Head, _: &[Asked]) -> String {
        self.prepare(head);
        let created = self.response("in_progress", Value::Null);
        let told = self.event("response.created", json!({ "response": created }));
        told + &self.event("response.in_progress", json!({ "response": created }))
    }

    fn pieces(&mut self, head: &Head, _: usize, pieces: &Pieces, emitted: &[Emitted]) -> String {
        self.written(head, emitted);
        let steps = self.blocks.push(pieces);
        self.tell(head, steps, "completed")
    }

    fn end(&mut self, head: &Head, _: usize, end: &End) -> String {
        let steps = self.blocks.finish(are_calls_alone(head));
        let told = self.tell(head, steps, if end.is_cut() { "incomplete" } else { "completed" });
        let (status, response) = self.ended(end);
        told + &self.event(&format!("response.{status}"), json!({ "response": response }))
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

    fn whole(&mut self, head: &Head, all: &[Whole]) -> Value {
        let Some(Whole { pieces, end, answer }) = all.first() else { return json!({}) };
        self.prepare(head);
        self.written(head, &answer.emitted);
        let steps = self.blocks.push(pieces);
        self.tell(head, steps, "completed");
        let steps = self.blocks.finish(are_calls_alone(head));
        self.tell(head, steps, if end.is_cut() { "incomplete" } else { "completed" });
        self.ended(end).1
    }
}
