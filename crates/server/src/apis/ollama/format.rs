//! Ollama's answers: an object, or a line of JSON for the tokens of each pass.
//!
//! The last line has counts, times in nanoseconds, and the reason of the end; further fields are the answer's seed and
//! llama.cpp's timings, which count drafted tokens. A complete answer is that line with the whole text. The field
//! `context`, which Ollama has deprecated, is omitted.

use std::time::{Duration, Instant, SystemTime};

use foretoken::{Emitted, FinishReason, Token};
use serde_json::{Map, Value, json};

use super::rfc3339;
use crate::answer::format::{AnswerFormat, CompleteAnswer, End};
use crate::answer::log_probabilities::{TokenLogProbability, chat_log_probabilities};
use crate::answer::parts::AnswerParts;
use crate::answer::{AnswerContext, call_object};
use crate::error::ApiError;
use crate::run::RequestRecord;

/// The format of Ollama's answers.
pub(super) struct OllamaFormat {
    /// The model's name as it was requested.
    model: String,
    /// Whether an answer is a message (`/api/chat`), or fields of the object itself (`/api/generate`).
    is_message: bool,
    started: Instant,
    end_tokens: Vec<Token>,
}

/// A time in nanoseconds.
fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl OllamaFormat {
    /// The format of an answer whose time starts now.
    pub(super) fn new(model: String, is_message: bool) -> Self {
        Self { model, is_message, started: Instant::now(), end_tokens: Vec::new() }
    }

    /// The answer to a request without a prompt, which only loads the model.
    pub(super) fn loaded(&self) -> Value {
        let mut object = self.object(&AnswerParts::default(), Vec::new());
        object.insert("done".into(), json!(true));
        object.insert("done_reason".into(), json!("load"));
        Value::Object(object)
    }

    /// The object with the text and the reasoning of parts of an answer, and with `calls`.
    fn object(&self, parts: &AnswerParts, calls: Vec<Value>) -> Map<String, Value> {
        let text = if self.is_message { "content" } else { "response" };
        let mut fields = Map::new();
        if self.is_message {
            fields.insert("role".into(), json!("assistant"));
        }
        fields.insert(text.into(), json!(parts.text));
        if !parts.reasoning.is_empty() {
            fields.insert("thinking".into(), json!(parts.reasoning));
        }
        if !calls.is_empty() {
            fields.insert("tool_calls".into(), Value::Array(calls));
        }
        let mut object = Map::new();
        object.insert("model".into(), json!(self.model));
        object.insert("created_at".into(), json!(rfc3339(SystemTime::now())));
        match self.is_message {
            true => drop(object.insert("message".into(), Value::Object(fields))),
            false => object.extend(fields),
        }
        object
    }

    /// The object with parts of an answer, calls included, and with log-probabilities if they are requested.
    fn answer_object(&self, context: &AnswerContext, parts: &AnswerParts, emitted: &[Emitted]) -> Map<String, Value> {
        let calls = parts.calls.iter().map(|(number, call)| {
            let id = call_object(context, 0, *number, call)["id"].take();
            // The arguments are the JSON text of an object.
            let arguments: Value = serde_json::from_str(&call.arguments).unwrap_or_else(|_| json!({}));
            json!({ "id": id, "function": { "index": number, "name": call.name, "arguments": arguments } })
        });
        let mut object = self.object(parts, calls.collect());
        if context.kind.options().log_probabilities.is_some() {
            let tokens = TokenLogProbability::without_end_tokens(emitted, &self.end_tokens);
            let logprobs = chat_log_probabilities(tokens, context.prompter());
            let mut logprobs: Value = serde_json::from_str(logprobs.get()).expect("it was written as JSON");
            if logprobs["content"].as_array().is_some_and(|tokens| !tokens.is_empty()) {
                object.insert("logprobs".into(), logprobs["content"].take());
            }
        }
        object
    }

    /// The fields at the end of an answer.
    fn end_fields(&self, context: &AnswerContext, end: &End) -> Map<String, Value> {
        let stats = &end.stats;
        let reason = match end.reason {
            FinishReason::EndToken(_) | FinishReason::StopString(_) if !end.calls.is_cut => "stop",
            _ => "length",
        };
        // One pass may have generated all tokens, and clients divide by this time.
        let after_first = stats.time.saturating_sub(stats.time_to_first_token);
        let generation_time = if after_first.is_zero() { stats.time } else { after_first };
        let prefill_time = stats.time_to_first_token.saturating_sub(stats.time_waiting);
        let mut object = Map::new();
        let fields = [
            ("done", json!(true)),
            ("done_reason", json!(reason)),
            ("total_duration", json!(nanoseconds(self.started.elapsed()))),
            // The model was loaded before.
            ("load_duration", json!(0)),
            ("prompt_eval_count", json!(end.prompt_len)),
            ("prompt_eval_duration", json!(nanoseconds(prefill_time))),
            ("eval_count", json!(stats.emitted)),
            ("eval_duration", json!(nanoseconds(generation_time))),
            ("seed", json!(end.seed)),
            ("timings", context.timings(std::slice::from_ref(stats))),
        ];
        object.extend(fields.map(|(name, value)| (name.to_string(), value)));
        if let (Some(cut), FinishReason::Cancelled) = (end.cut, &end.reason) {
            object.insert("cut_by".into(), json!(cut.name()));
        }
        object
    }
}

/// One line of a stream.
fn line(object: Map<String, Value>) -> String {
    format!("{}\n", Value::Object(object))
}

/// A line that is not the last.
fn unfinished_line(mut object: Map<String, Value>) -> String {
    object.insert("done".into(), json!(false));
    line(object)
}

impl AnswerFormat for OllamaFormat {
    fn prefix(&self) -> &'static str {
        "ollama-"
    }

    fn stream_type(&self) -> &'static str {
        "application/x-ndjson"
    }

    fn begin(&mut self, _: &AnswerContext, records: &[RequestRecord]) -> String {
        self.end_tokens = records.first().map(|record| record.end_tokens.clone()).unwrap_or_default();
        String::new()
    }

    fn keep_alive(&mut self) -> String {
        // JSON lines have no comments, so this is a line without text.
        unfinished_line(self.object(&AnswerParts::default(), Vec::new()))
    }

    fn parts(&mut self, context: &AnswerContext, _: usize, parts: &AnswerParts, emitted: &[Emitted]) -> String {
        let object = self.answer_object(context, parts, emitted);
        let is_empty = parts.is_empty() && !object.contains_key("logprobs");
        if is_empty { String::new() } else { unfinished_line(object) }
    }

    fn end(&mut self, context: &AnswerContext, _: usize, end: &End) -> String {
        let mut object = self.object(&AnswerParts::default(), Vec::new());
        object.extend(self.end_fields(context, end));
        line(object)
    }

    fn error(&mut self, error: &ApiError) -> String {
        format!("{}\n", super::error_object(error))
    }

    fn complete(&mut self, context: &AnswerContext, all: &[CompleteAnswer]) -> Value {
        let Some(CompleteAnswer { answer, parts, end }) = all.first() else { return Value::Null };
        let mut object = self.answer_object(context, parts, &answer.emitted);
        object.extend(self.end_fields(context, end));
        Value::Object(object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_keep_alive_message_is_a_line_without_text() {
        for (is_message, pointer) in [(true, "/message/content"), (false, "/response")] {
            let line = OllamaFormat::new("m".to_string(), is_message).keep_alive();
            let object: Value = serde_json::from_str(&line).expect("JSON");
            assert!(
                line.ends_with("}\n") && object["done"] == false && object.pointer(pointer) == Some(&json!("")),
                "{line}"
            );
        }
    }
}
