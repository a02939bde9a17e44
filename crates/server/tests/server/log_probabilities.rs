//! Log-probabilities of completions and chats: they are the model's own, and the same with and without streams and
//! drafts.

use serde_json::{Value, json};

use crate::bodies::{seeded, with};
use crate::test_server::shared;

fn chat(more: Value) -> Value {
    let messages = json!([{ "role": "user", "content": "book a table" }]);
    let body = json!({ "messages": messages, "max_tokens": 20, "seed": 4, "ignore_eos": true, "logprobs": true });
    with(body, more)
}

fn numbers(value: &Value) -> Vec<f64> {
    serde_json::from_value(value.clone()).unwrap_or_else(|error| panic!("{error}: {value}"))
}

/// The entries of all tokens of a stream, in order.
fn joined(events: &[Value], name: &str) -> Vec<Value> {
    let logprobs = events.iter().filter_map(|event| event["choices"][0]["logprobs"][name].as_array());
    logprobs.flatten().cloned().collect()
}

#[test]
fn completions_have_the_older_format() {
    let body = seeded(9, json!({ "logprobs": 3 }));
    let answer = shared().post("/v1/completions", &body).success();
    let (text, logprobs) = (answer["choices"][0]["text"].as_str().expect("a text"), &answer["choices"][0]["logprobs"]);
    let tokens: Vec<String> = serde_json::from_value(logprobs["tokens"].clone()).expect("texts");
    assert_eq!(tokens.concat(), text);
    let values = numbers(&logprobs["token_logprobs"]);
    assert!(values.len() == 40 && values.iter().all(|value| *value <= 0.0));
    let mut offset = 0;
    for (at, token) in tokens.iter().enumerate() {
        assert_eq!(logprobs["text_offset"][at], offset);
        offset += token.chars().count();
        let tops = logprobs["top_logprobs"][at].as_object().expect("an object");
        // Tokens with the same text are one entry.
        assert!(!tops.is_empty() && tops.len() <= 3, "{tops:?}");
        let best = tops.values().filter_map(Value::as_f64).fold(f64::MIN, f64::max);
        assert!(best >= values[at] - 1e-6, "{best} {}", values[at]);
        assert!(tops.get(token).is_none_or(|found| found.as_f64() == Some(values[at])), "{tops:?} {token}");
    }
    let events = shared().events("/v1/completions", &with(body, json!({ "stream": true }))).all().expect("a stream");
    for name in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(&Value::Array(joined(&events, name)), &logprobs[name], "{name}");
    }
}

#[test]
fn chats_have_the_newer_format() {
    let body = chat(json!({ "top_logprobs": 4 }));
    let answer = shared().post("/v1/chat/completions", &body).success();
    let logprobs = answer["choices"][0]["logprobs"]["content"].as_array().expect("a list").clone();
    assert_eq!(logprobs.len(), 20);
    for token in &logprobs {
        let tops = token["top_logprobs"].as_array().expect("a list");
        let values: Vec<f64> = tops.iter().map(|top| top["logprob"].as_f64().expect("a number")).collect();
        assert!(tops.len() == 4 && values.is_sorted_by(|a, b| a >= b), "{token}");
        let own = tops.iter().find(|top| top["id"] == token["id"]);
        assert!(own.is_none_or(|own| own["logprob"] == token["logprob"]), "{token}");
        let bytes: Vec<u8> = serde_json::from_value(token["bytes"].clone()).expect("bytes");
        assert_eq!(String::from_utf8_lossy(&bytes), token["token"].as_str().expect("a text"));
        assert!(values.iter().map(|value| value.exp()).sum::<f64>() <= 1.0 + 1e-4);
    }
    let events = shared().events("/v1/chat/completions", &with(body, json!({ "stream": true })));
    assert_eq!(joined(&events.all().expect("a stream"), "content"), logprobs);
    let none = shared().post("/v1/chat/completions", &chat(json!({ "logprobs": false }))).success();
    assert_eq!(none["choices"][0]["logprobs"], Value::Null);
    let wrong = shared().post("/v1/chat/completions", &chat(json!({ "logprobs": false, "top_logprobs": 2 })));
    assert_eq!(wrong.error(400).0.as_deref(), Some("top_logprobs"));
}

#[test]
fn drafts_change_no_log_probability() {
    let ask = |n_max: Value| {
        let body = seeded(9, json!({ "logprobs": 5, "speculative.n_max": n_max }));
        shared().post("/v1/completions", &body).success()["choices"][0]["logprobs"].clone()
    };
    assert_eq!(ask(json!(0)), ask(json!(8)));
    // They are the model's own, independent of the sampling settings.
    let greedy = |more: Value| {
        let body = seeded(9, with(json!({ "logprobs": 0, "top_k": 1, "max_tokens": 8 }), more));
        numbers(&shared().post("/v1/completions", &body).success()["choices"][0]["logprobs"]["token_logprobs"])
    };
    assert_eq!(greedy(json!({ "temperature": 0.3 })), greedy(json!({ "temperature": 1.7 })));
}

#[test]
fn stopped_texts_have_those_of_their_tokens() {
    // The token that ends a text is not returned.
    let body = chat(json!({ "ignore_eos": false, "max_tokens": 300, "temperature": 0 }));
    let answer = shared().post("/v1/chat/completions", &body).success();
    let logprobs = answer["choices"][0]["logprobs"]["content"].as_array().expect("a list").clone();
    let text: String = logprobs.iter().map(|token| token["token"].as_str().expect("a text")).collect();
    assert_eq!(answer["choices"][0]["message"]["content"], text);
    assert_eq!(answer["usage"]["completion_tokens"], logprobs.len() + 1);
    let events = shared().events("/v1/chat/completions", &with(body, json!({ "stream": true })));
    assert_eq!(joined(&events.all().expect("a stream"), "content"), logprobs);
}

#[test]
fn an_echoed_prompt_is_scored_as_generated_text_is() {
    // Generated text has the same log-probabilities when it is sent as a prompt.
    let body = seeded(9, json!({ "logprobs": 2, "echo": true }));
    let answer = shared().post("/v1/completions", &body).success();
    let (text, logprobs) = (answer["choices"][0]["text"].as_str().expect("a text"), &answer["choices"][0]["logprobs"]);
    let tokens: Vec<String> = serde_json::from_value(logprobs["tokens"].clone()).expect("texts");
    assert_eq!(tokens.concat(), text);
    assert_eq!((&logprobs["token_logprobs"][0], &logprobs["top_logprobs"][0]), (&Value::Null, &Value::Null));
    let written = logprobs["token_logprobs"].as_array().expect("a list").len();
    let ids = shared().post("/tokenize", &json!({ "content": text })).success()["tokens"].clone();
    assert_eq!(ids.as_array().map(Vec::len), Some(written), "the text is tokenized differently");
    let again = with(body.clone(), json!({ "prompt": ids, "max_tokens": 0 }));
    let scored = shared().post("/v1/completions", &again).success();
    assert_eq!(scored["choices"][0]["text"], text);
    assert_eq!(&scored["choices"][0]["logprobs"]["tokens"], &logprobs["tokens"]);
    let close = |a: &Value, b: &Value| a.as_f64().zip(b.as_f64()).is_none_or(|(a, b)| (a - b).abs() < 1e-3);
    let values =
        |answer: &Value| answer["choices"][0]["logprobs"]["token_logprobs"].as_array().expect("a list").clone();
    let (left, right) = (values(&answer), values(&scored));
    assert!(left.len() == right.len() && left.iter().zip(&right).all(|(a, b)| close(a, b)), "{left:?} {right:?}");
    // A stream has the same entries.
    let events = shared().events("/v1/completions", &with(body, json!({ "stream": true }))).all().expect("a stream");
    for name in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(&Value::Array(joined(&events, name)), &logprobs[name], "{name}");
    }
}
