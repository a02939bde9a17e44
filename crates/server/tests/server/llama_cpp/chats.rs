//! What is expected of chats.

use serde_json::{Value, json};

use super::Met::{self, Held, Not};
use super::{PROMPT, bad_format, bad_messages, chat, events, messages, named, response_format, said};
use crate::house::shared;

pub const CHATS: [(&str, Met); 35] = [
    (
        "chat: whole",
        Held(|| {
            let answer = said(json!({ "ignore_eos": true }));
            assert!(answer["id"].as_str().is_some_and(|id| id.contains("cmpl")));
            assert_eq!(
                (&answer["usage"]["completion_tokens"], &answer["choices"][0]["finish_reason"]),
                (&json!(8), &json!("length"))
            );
            assert_eq!(answer["choices"][0]["message"]["role"], "assistant");
        }),
    ),
    (
        "chat: a fingerprint that begins with b",
        Not(
            || {
                let answer = said(json!({}));
                assert!(answer["system_fingerprint"].as_str().is_some_and(|print| print.starts_with("foretoken")));
            },
            "it names this program",
        ),
    ),
    (
        "chat: content of parts",
        Held(|| {
            let parts = json!([{ "type": "text", "text": "What is" }, { "type": "text", "text": "the best book" }]);
            drop(said(json!({ "messages": [{ "role": "user", "content": parts }] })));
        }),
    ),
    ("chat: a model that is null", Held(|| drop(said(json!({ "model": null }))))),
    (
        "chat: any name of a model, where that is allowed",
        Held(|| drop(named().post("/v1/chat/completions", &chat(json!({ "model": "gpt-3.5-turbo-instruct" }))).good())),
    ),
    (
        "chat: streamed",
        Held(|| {
            let all = events("/chat/completions", chat(json!({ "stream_options": { "include_usage": true } })));
            assert_eq!(all[0]["choices"][0]["delta"], json!({ "role": "assistant", "content": "" }));
            let last = all.last().expect("some");
            assert_eq!(last["choices"], json!([]));
            assert!(last["usage"]["completion_tokens"].is_u64());
            assert!(all.iter().all(|event| event["id"] == all[0]["id"]));
        }),
    ),
    (
        "chat: usage at the end of a stream that does not ask for it",
        Held(|| {
            let all = events("/chat/completions", chat(json!({})));
            assert!(all.last().expect("some")["usage"]["completion_tokens"].is_u64());
        }),
    ),
    (
        "chat: the prompt in the answer (__verbose)",
        Not(|| assert!(said(json!({})).get("__verbose").is_none()), "/apply-template tells it"),
    ),
    (
        "chat: an assistant's last turn goes on",
        Held(|| {
            let messages = json!([{ "role": "user", "content": "a" }, { "role": "assistant", "content": "Whill" }]);
            drop(said(json!({ "messages": messages, "continue_final_message": true })));
        }),
    ),
    (
        "chat: and does so unasked",
        Not(
            || drop(said(json!({ "messages": [messages()[1], { "role": "assistant", "content": "b" }] }))),
            "without continue_final_message a turn that is over is over, as with vLLM",
        ),
    ),
    (
        "chat: the template's text",
        Held(|| {
            let found = shared().post("/apply-template", &json!({ "messages": messages() })).good();
            let prompt = found["prompt"].as_str().expect("a text");
            assert!(prompt.contains("Book") && prompt.contains("What is the best book"), "{prompt}");
        }),
    ),
    (
        "chat: a schema beside json_object",
        Held(|| assert_eq!(response_format(json!({ "type": "json_object", "schema": { "const": "42" } })), "\"42\"")),
    ),
    (
        "chat: a schema of items",
        Held(|| {
            let schema = json!({ "items": { "type": "integer" }, "type": "array", "maxItems": 2 });
            let found = response_format(json!({ "type": "json_object", "schema": schema }));
            assert!(found.as_str().is_some_and(|text| text.starts_with('[')), "{found}");
        }),
    ),
    (
        "chat: json_schema",
        Held(|| {
            let format = json!({ "type": "json_schema", "json_schema": { "schema": { "const": "foooooo" } } });
            assert_eq!(response_format(format), "\"foooooo\"");
        }),
    ),
    (
        "chat: json_object",
        Held(|| {
            let found = response_format(json!({ "type": "json_object" }));
            assert!(found.as_str().is_some_and(|text| text.trim_start().starts_with('{')), "{found}");
        }),
    ),
    ("chat: a format of another kind", Held(|| bad_format(json!({ "type": "sound" })))),
    ("chat: a schema that is a number", Held(|| bad_format(json!({ "type": "json_object", "schema": 123 })))),
    ("chat: a type that is a number", Held(|| bad_format(json!({ "type": "json_object", "schema": { "type": 123 } })))),
    ("chat: an unknown type", Held(|| bad_format(json!({ "type": "json_object", "schema": { "type": "hiccup" } })))),
    (
        "chat: json_schema of its own",
        Held(|| {
            let answer = said(json!({ "json_schema": { "const": "42" } }));
            assert_eq!(answer["choices"][0]["message"]["content"], "\"42\"");
        }),
    ),
    (
        "chat: a grammar",
        Held(|| {
            let answer = said(json!({ "grammar": "root ::= \"a\"{5,5}" }));
            assert_eq!(answer["choices"][0]["message"]["content"], "aaaaa");
        }),
    ),
    ("chat: no messages", Held(|| bad_messages(Value::Null))),
    ("chat: messages that are a text", Held(|| bad_messages(json!("string")))),
    ("chat: a message that is a number", Held(|| bad_messages(json!([123])))),
    ("chat: an empty message", Held(|| bad_messages(json!([{}])))),
    ("chat: a role that is a number", Held(|| bad_messages(json!([{ "role": 123 }])))),
    ("chat: content that is a number", Held(|| bad_messages(json!([{ "role": "system", "content": 123 }])))),
    (
        "chat: an empty message behind another",
        Held(|| bad_messages(json!([{ "role": "system", "content": "test" }, {}]))),
    ),
    (
        "chat: two turns of the assistant are refused",
        Not(
            || {
                let turn = json!({ "role": "assistant", "content": "test" });
                drop(said(json!({ "messages": [{ "role": "user", "content": "test" }, turn, turn] })));
            },
            "agents send such histories; a template that cannot write them says so",
        ),
    ),
    (
        "chat: timings behind a stream",
        Held(|| {
            let body = json!({ "stream_options": { "include_usage": true }, "timings_per_token": true });
            let last = events("/chat/completions", chat(body)).pop().expect("some");
            assert!(
                last["timings"]["prompt_per_second"].is_number() && last["timings"]["predicted_per_second"].is_number()
            );
        }),
    ),
    (
        "chat: log-probabilities",
        Held(|| {
            let answer = said(json!({ "logprobs": true, "top_logprobs": 10, "max_tokens": 5, "temperature": 0 }));
            let all = answer["choices"][0]["logprobs"]["content"].as_array().expect("a list");
            let joined: String = all.iter().filter_map(|token| token["token"].as_str()).collect();
            assert_eq!(joined, answer["choices"][0]["message"]["content"].as_str().expect("a text"));
        }),
    ),
    (
        "chat: log-probabilities, streamed",
        Held(|| {
            let body = json!({ "logprobs": true, "top_logprobs": 10, "max_tokens": 5, "temperature": 0 });
            let all = events("/chat/completions", chat(body));
            let told = all.iter().filter_map(|event| event["choices"][0]["logprobs"]["content"].as_array());
            assert!(told.flatten().all(|token| token["top_logprobs"].as_array().map(Vec::len) == Some(10)));
        }),
    ),
    (
        "chat: the error of a long prompt says how long",
        Held(|| {
            let messages = json!([{ "role": "user", "content": PROMPT.repeat(80) }]);
            let error = shared().post("/chat/completions", &json!({ "messages": messages })).json()["error"].take();
            assert_eq!(error["n_ctx"], 512, "{error}");
            assert!(error["n_prompt_tokens"].as_u64().is_some_and(|tokens| tokens > 512), "{error}");
        }),
    ),
    (
        "chat: and so where it would be streamed",
        Held(|| {
            let messages = json!([{ "role": "user", "content": PROMPT.repeat(80) }]);
            let error = shared().post("/chat/completions", &json!({ "messages": messages, "stream": true }));
            assert_eq!((error.status(), &error.json()["error"]["n_ctx"]), (400, &json!(512)));
        }),
    ),
    (
        "chat: how much of a prompt is read",
        Held(|| {
            let messages = json!([{ "role": "user", "content": "a bird and a fish and ".repeat(20) }]);
            let all = events("/chat/completions", chat(json!({ "messages": messages, "return_progress": true })));
            let progress = all.iter().filter_map(|event| event.get("prompt_progress")).next_back().expect("some");
            assert_eq!(progress["processed"], progress["total"]);
            assert!(progress["cache"].is_u64() && progress["time_ms"].is_number());
        }),
    ),
];
