//! Request bodies, and the texts of their responses.

use serde_json::{Value, json};

use crate::client::Response;

/// The prompt of most requests.
pub const PROMPT: &str = "Once upon a time,";

/// A seeded request with further fields.
pub fn seeded(seed: u64, more: Value) -> Value {
    with(json!({ "prompt": PROMPT, "max_tokens": 40, "temperature": 0.9, "ignore_eos": true, "seed": seed }), more)
}

/// The fields of both; those of `more` take precedence.
pub fn with(mut body: Value, more: Value) -> Value {
    let all = body.as_object_mut().expect("an object");
    all.extend(more.as_object().expect("an object").clone());
    body
}

/// The texts of a response that is not streamed, of a completion or a chat.
#[track_caller]
pub fn texts(answer: &Value) -> Vec<String> {
    let choices = answer["choices"].as_array().unwrap_or_else(|| panic!("{answer}"));
    let text = |(index, choice): (usize, &Value)| {
        assert_eq!(choice["index"], index, "{answer}");
        let text = choice.get("text").unwrap_or(&choice["message"]["content"]);
        text.as_str().unwrap_or_else(|| panic!("{answer}")).to_string()
    };
    choices.iter().enumerate().map(text).collect()
}

/// The text of each choice of a stream.
#[track_caller]
pub fn streamed_texts(events: &[Value]) -> Vec<String> {
    let mut texts: Vec<String> = Vec::new();
    for choice in events.iter().filter_map(|event| event["choices"].get(0)) {
        let index = choice["index"].as_u64().expect("an index") as usize;
        texts.resize(texts.len().max(index + 1), String::new());
        let text = choice.get("text").unwrap_or(&choice["delta"]["content"]);
        texts[index].push_str(text.as_str().unwrap_or_default());
    }
    texts
}

/// The events of a complete event stream whose events have names.
#[track_caller]
pub fn named_events(response: &Response) -> Vec<Value> {
    assert!(response.head.is_event_stream(), "{}", response.text());
    let text =
        response.text().strip_suffix("\n\n").unwrap_or_else(|| panic!("the stream is incomplete: {}", response.text()));
    let event = |event: &str| {
        let (name, data) = event.split_once('\n').unwrap_or_else(|| panic!("{event}"));
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").expect("data")).expect("JSON");
        assert_eq!(name.strip_prefix("event: "), data["type"].as_str(), "{event}");
        data
    };
    text.split("\n\n").filter(|event| !event.starts_with(':')).map(event).collect()
}
