//! Ollama's answers: an object, or a line of JSON for what each pass wrote.
//!
//! The last line has counts, times in nanoseconds, and why the text ended; beside these stand the answer's seed and
//! llama.cpp's timings, which say what was drafted. Where an answer is not streamed, it is that line with all of the
//! text. Left out: `context`, which Ollama itself is about to drop.

use std::time::{Duration, Instant, SystemTime};

use foretoken::{Emitted, FinishReason, Token};
use serde_json::{Map, Value, json};

use super::written;
use crate::answer::form::{End, Form, Whole};
use crate::answer::log_probabilities::{Told, of_chat};
use crate::answer::pieces::Pieces;
use crate::answer::{Head, call_object};
use crate::error::ApiError;
use crate::run::Asked;

/// See the head of this file.
pub(super) struct Ollama {
    /// The name that was asked for.
    model: String,
    /// Whether an answer is a message (`/api/chat`), or fields of the object itself (`/api/generate`).
    is_message: bool,
    begun: Instant,
    end_tokens: Vec<Token>,
}

/// A time in nanoseconds.
fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Ollama {
    /// Told from now on.
    pub(super) fn new(model: String, is_message: bool) -> Self {
        Self { model, is_message, begun: Instant::now(), end_tokens: Vec::new() }
    }

    /// The answer to a request for nothing.
    pub(super) fn loaded(&self) -> Value {
        let mut object = self.object(&Pieces::default(), Vec::new());
        object.insert("done".into(), json!(true));
        object.insert("done_reason".into(), json!("load"));
        Value::Object(object)
    }

    /// What is new of an answer.
    fn object(&self, pieces: &Pieces, calls: Vec<Value>) -> Map<String, Value> {
        let text = if self.is_message { "content" } else { "response" };
        let mut said = Map::new();
        if self.is_message {
            said.insert("role".into(), json!("assistant"));
        }
        said.insert(text.into(), json!(pieces.text));
        if !pieces.thoughts.is_empty() {
            said.insert("thinking".into(), json!(pieces.thoughts));
        }
        if !calls.is_empty() {
            said.insert("tool_calls".into(), Value::Array(calls));
        }
        let mut object = Map::new();
        object.insert("model".into(), json!(self.model));
        object.insert("created_at".into(), json!(written(SystemTime::now())));
        match self.is_message {
            true => drop(object.insert("message".into(), Value::Object(said))),
            false => object.extend(said),
        }
        object
    }

    /// The same, with log-probabilities where they are asked for.
    fn told(&self, head: &Head, pieces: &Pieces, emitted: &[Emitted]) -> Map<String, Value> {
        let calls = pieces.calls.iter().map(|(number, call)| {
            let id = call_object(head, 0, *number, call)["id"].take();
            // They are the text of an object.
            let arguments: Value = serde_json::from_str(&call.arguments).unwrap_or_else(|_| json!({}));
            json!({ "id": id, "function": { "index": number, "name": call.name, "arguments": arguments } })
        });
        let mut object = self.object(pieces, calls.collect());
        if head.kind.ask().log_probabilities.is_some() {
            let told = of_chat(Told::all(emitted, &self.end_tokens), head.prompter());
            let mut told: Value = serde_json::from_str(told.get()).expect("it was written as JSON");
            if told["content"].as_array().is_some_and(|tokens| !tokens.is_empty()) {
                object.insert("logprobs".into(), told["content"].take());
            }
        }
        object
    }

    /// What is said at the end.
    fn ended(&self, head: &Head, end: &End) -> Map<String, Value> {
        let stats = &end.stats;
        let reason = match end.reason {
            FinishReason::EndToken(_) | FinishReason::StopString(_) if !end.calls.is_cut => "stop",
            _ => "length",
        };
        // One pass may have written everything, and clients divide by this.
        let behind_first = stats.time.saturating_sub(stats.time_to_first_token);
        let writing = if behind_first.is_zero() { stats.time } else { behind_first };
        let reading = stats.time_to_first_token.saturating_sub(stats.time_waiting);
        let mut object = Map::new();
        let fields = [
            ("done", json!(true)),
            ("done_reason", json!(reason)),
            ("total_duration", json!(nanoseconds(self.begun.elapsed()))),
            // The model was there before.
            ("load_duration", json!(0)),
            ("prompt_eval_count", json!(end.prompt_len)),
            ("prompt_eval_duration", json!(nanoseconds(reading))),
            ("eval_count", json!(stats.emitted)),
            ("eval_duration", json!(nanoseconds(writing))),
            ("seed", json!(end.seed)),
            ("timings", head.timings(std::slice::from_ref(stats))),
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

/// One that is not the last.
fn further(mut object: Map<String, Value>) -> String {
    object.insert("done".into(), json!(false));
    line(object)
}

impl Form for Ollama {
    fn prefix(&self) -> &'static str {
        "ollama-"
    }

    fn stream_type(&self) -> &'static str {
        "application/x-ndjson"
    }

    fn begin(&mut self, _: &Head, asked: &[Asked]) -> String {
        self.end_tokens = asked.first().map(|asked| asked.end_tokens.clone()).unwrap_or_default();
        String::new()
    }

    fn quiet(&mut self) -> String {
        // Lines have no comments.
        further(self.object(&Pieces::default(), Vec::new()))
    }

    fn pieces(&mut self, head: &Head, _: usize, pieces: &Pieces, emitted: &[Emitted]) -> String {
        let object = self.told(head, pieces, emitted);
        let says_nothing = pieces.is_empty() && !object.contains_key("logprobs");
        if says_nothing { String::new() } else { further(object) }
    }

    fn end(&mut self, head: &Head, _: usize, end: &End) -> String {
        let mut object = self.object(&Pieces::default(), Vec::new());
        object.extend(self.ended(head, end));
        line(object)
    }

    fn error(&mut self, error: &ApiError) -> String {
        format!("{}\n", super::error_object(error))
    }

    fn whole(&mut self, head: &Head, all: &[Whole]) -> Value {
        let Some(Whole { answer, pieces, end }) = all.first() else { return Value::Null };
        let mut object = self.told(head, pieces, &answer.emitted);
        object.extend(self.ended(head, end));
        Value::Object(object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sign_of_life_is_a_line_that_says_nothing() {
        for (is_message, place) in [(true, "/message/content"), (false, "/response")] {
            let said = Ollama::new("m".to_string(), is_message).quiet();
            let object: Value = serde_json::from_str(&said).expect("JSON");
            assert!(
                said.ends_with("}\n") && object["done"] == false && object.pointer(place) == Some(&json!("")),
                "{said}"
            );
        }
    }
}
