//! Errors of Ollama's API, in its format; and mutated requests, each of which is answered.

use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};

use super::{CHAT, GENERATE, call_of, chat, error, generate, lines};
use crate::bodies::with;
use crate::mutations::{mutated, mutation, small_context_server};
use crate::test_server::shared;

#[test]
fn unsupported_paths_are_refused_in_its_format() {
    for (method, path) in [
        ("POST", "/api/embed"),
        ("POST", "/api/embeddings"),
        ("POST", "/api/pull"),
        ("POST", "/api/push"),
        ("POST", "/api/create"),
        ("POST", "/api/copy"),
        ("DELETE", "/api/delete"),
        ("POST", "/api/blobs/sha256:1"),
    ] {
        let answer = shared().client().request(method, path, &[], b"{}");
        let why = error(&answer, 400);
        assert!(why.starts_with("path: expected /api/chat") && why.contains(path), "{why}");
    }
    assert!(error(&shared().get("/api/nothing"), 404).contains("/api/nothing"));
    error(&shared().get(CHAT), 405);
    let broken = shared().client().request("POST", CHAT, &[], b"{");
    assert!(error(&broken, 400).starts_with("body: expected a JSON object"));
}

#[test]
fn errors_name_the_field_as_it_was_sent() {
    let with_option = |option: &str, value: Value| json!({ "options": { option: value } });
    for (more, begins) in [
        (with_option("temperature", json!(-1)), "options.temperature: expected a number from 0 up, found -1"),
        (with_option("num_predict", json!("x")), "options.num_predict: expected a whole number from -2"),
        (with_option("num_ctx", json!("x")), "options.num_ctx: expected a whole number"),
        (with_option("repeat_penalty", json!("x")), "options.repeat_penalty: expected a number"),
        (with_option("stop", json!([1])), "options.stop: expected a string or a list of strings"),
        (with_option("stop", json!([""])), "options.stop: expected strings of at least one letter"),
        (with_option("seed", json!("x")), "options.seed: expected a whole number of 64 bits"),
        (with_option("mirostat", json!(1)), "options.mirostat: expected none, found 1"),
        (with_option("tfs_z", json!(0.5)), "options.tfs_z: expected none, found 0.5"),
        (with_option("n", json!(2)), "options.n: expected one answer under this path, found 2"),
        (json!({ "options": [] }), "options: expected an object, found []"),
        (json!({ "max_tokens": 4 }), "options.num_predict: expected it or max_tokens, found both"),
        (
            with(with_option("n_predict", json!(3)), json!({ "max_tokens": 4 })),
            "options.n_predict: expected it or max_tokens, found both",
        ),
        (json!({ "stream": 1 }), "stream: expected true or false, found 1"),
        (json!({ "format": "xml" }), "format: expected \"json\" or a JSON Schema, found \"xml\""),
        (json!({ "format": { "type": "no" } }), "format: #: expected what can be enforced"),
        (json!({ "format": "json", "response_format": { "type": "text" } }), "format: expected it or response_format"),
        (json!({ "think": "very" }), "think: expected true, false, low"),
        (json!({ "think": true }), "think: expected false, found another: this model does not support thinking"),
        (json!({ "top_logprobs": 3 }), "top_logprobs: expected \"logprobs\": true"),
    ] {
        for (path, body) in [(CHAT, chat(more.clone())), (GENERATE, generate(more.clone()))] {
            let why = error(&shared().post(path, &body), 400);
            assert!(why.starts_with(begins), "{path} {more}: {why}");
        }
    }
}

#[test]
fn errors_of_chat_and_of_generate_name_the_field() {
    let image = json!([{ "role": "user", "content": "x", "images": ["aGk="] }]);
    for (more, begins) in [
        (json!({ "messages": "x" }), "messages: expected a list of messages, found \"x\""),
        (json!({ "messages": [{ "content": "x" }] }), "messages[0]: expected a role"),
        (json!({ "messages": image }), "messages[0].images: expected none"),
        (
            json!({ "messages": [{ "role": "assistant", "content": "", "thinking": "a", "reasoning_content": "b" }] }),
            "messages[0].thinking: expected it or messages[0].reasoning_content, found both",
        ),
        (
            json!({ "tools": [{ "type": "function", "function": { "name": "f", "strict": true } }] }),
            "tools: expected none",
        ),
    ] {
        let why = error(&shared().post(CHAT, &chat(more)), 400);
        assert!(why.starts_with(begins), "{why}");
    }
    for (more, begins) in [
        (json!({ "prompt": 5 }), "prompt: expected a string, found 5"),
        (json!({ "prompt": "word ".repeat(2000) }), "prompt: expected at most"),
        (json!({ "prompt": "word ".repeat(2000), "raw": true }), "prompt: expected at most"),
        (json!({ "messages": [] }), "prompt: expected it or messages, found both"),
        (json!({ "suffix": "x" }), "suffix: expected a model that supports fill-in-middle"),
        (json!({ "template": "x" }), "template: expected none"),
        (json!({ "context": [1] }), "context: expected none"),
        (json!({ "images": ["aGk="] }), "images: expected none"),
        (json!({ "system": "x", "raw": true }), "system: expected none beside \"raw\": true"),
        (json!({ "think": true, "raw": true }), "think: expected false"),
        (
            json!({ "logprobs": true, "top_logprobs": 21, "raw": true }),
            "top_logprobs: expected a whole number from 0 to 20",
        ),
        (json!({ "top_logprobs": 1, "raw": true }), "top_logprobs: expected \"logprobs\": true"),
    ] {
        let why = error(&shared().post(GENERATE, &generate(more)), 400);
        assert!(why.starts_with(begins), "{why}");
    }
    // Empty and default values change nothing.
    let nothing = json!({ "suffix": "", "template": "", "context": [], "images": null, "system": "", "format": "",
        "think": false, "stream": null, "options": { "num_predict": 1, "stop": null } });
    assert_eq!(lines(shared(), GENERATE, &generate(nothing)).len(), 2);
}

#[test]
fn an_error_in_a_stream_is_a_line() {
    let body = json!({ "prompt": "Once", "raw": true, "regex": "[ab]{3}", "min_tokens": 9, "seed": 1 });
    let lines = lines(shared(), GENERATE, &body);
    let last = lines.last().expect("a line");
    assert!(last["error"].as_str().is_some_and(|why| why.starts_with("min_tokens: expected")), "{lines:?}");
    let whole = shared().post(GENERATE, &with(body, json!({ "stream": false })));
    assert_eq!(error(&whole, 400), last["error"].as_str().expect("a text"));
}

fn valid_bodies() -> Vec<(&'static str, Value)> {
    let options = json!({ "num_predict": 3, "seed": 1, "stop": ["x"], "num_ctx": 64, "repeat_penalty": 1.1 });
    let turns = json!([{ "role": "system", "content": "s" }, { "role": "user", "content": "hi", "images": [] },
        { "role": "assistant", "content": "", "thinking": "t", "tool_calls": [call_of("f", None)] },
        { "role": "tool", "content": "1", "tool_name": "f" }]);
    let chat = json!({ "model": "demo-target", "messages": turns, "options": options, "think": false, "format": "" });
    let format = json!({ "stream": false, "format": { "type": "object" }, "logprobs": true, "top_logprobs": 2 });
    let generate = json!({ "model": "demo-target:latest", "prompt": "Once", "options": options, "raw": true });
    vec![
        (CHAT, chat.clone()),
        (CHAT, with(chat, format.clone())),
        (GENERATE, with(generate.clone(), format)),
        (GENERATE, with(generate, json!({ "system": "s", "raw": false, "keep_alive": "5m", "suffix": "" }))),
        ("/api/show", json!({ "name": "demo-target", "verbose": true, "options": {} })),
    ]
}

#[test]
fn valid_bodies_are_accepted() {
    for (path, body) in valid_bodies() {
        assert_eq!(small_context_server().post(path, &body).status(), 200, "{path} {body}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn mutated_requests_are_answered(
        (path, body) in select(valid_bodies()),
        mutations in proptest::collection::vec(mutation(), 1..4),
    ) {
        let body = mutated(body, &mutations);
        let answer = small_context_server().client().request("POST", path, &[("Connection", "close")], &body);
        match answer.status() {
            200 => {
                let last = answer.text().lines().last().expect("a line");
                let last: Value = serde_json::from_str(last).expect("JSON");
                let is_end = last["done"] == true || last["error"].is_string() || last["details"].is_object();
                prop_assert!(is_end, "{}", answer.text());
            }
            404 => prop_assert!(error(&answer, 404).contains("not found")),
            status => {
                prop_assert!([400, 413].contains(&status), "{} {}", status, answer.text());
                let message = error(&answer, status);
                prop_assert!(message.contains(": expected "), "{}", message);
            }
        }
    }
}
