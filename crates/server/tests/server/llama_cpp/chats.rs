//! Expectations of chats.

use serde_json::{Value, json};

use super::Expectation::{self, Differs, Met};
use super::{
    PROMPT, bad_format, bad_messages, chat, chat_completion, events, messages, response_format, server_with_aliases,
};
use crate::test_server::shared;

pub const CHATS: [(&str, Expectation); 35] = [
    (
        "chat: not streamed",
        Met(|| {
            let answer = chat_completion(json!({ "ignore_eos": true }));
            assert!(answer["id"].as_str().is_some_and(|id| id.contains("cmpl")));
            assert_eq!(
                (&answer["usage"]["completion_tokens"], &answer["choices"][0]["finish_reason"]),
                (&json!(8), &json!("length"))
            );
            assert_eq!(answer["choices"][0]["message"]["role"], "assistant");
        }),
    ),
    (
        "chat: a fingerprint with the prefix b",
        Differs(
            || {
                let answer = chat_completion(json!({}));
                assert!(answer["system_fingerprint"].as_str().is_some_and(|print| print.starts_with("foretoken")));
            },
            "the fingerprint names this program",
        ),
    ),
    (
        "chat: content as parts",
        Met(|| {
            let parts = json!([{ "type": "text", "text": "What is" }, { "type": "text", "text": "the best book" }]);
            drop(chat_completion(json!({ "messages": [{ "role": "user", "content": parts }] })));
        }),
    ),
    ("chat: a null model", Met(|| drop(chat_completion(json!({ "model": null }))))),
    (
        "chat: any name of a model, if that is allowed",
        Met(|| {
            drop(
                server_with_aliases()
                    .post("/v1/chat/completions", &chat(json!({ "model": "gpt-3.5-turbo-instruct" })))
                    .success(),
            );
        }),
    ),
    (
        "chat: streamed",
        Met(|| {
            let all = events("/chat/completions", chat(json!({ "stream_options": { "include_usage": true } })));
            assert_eq!(all[0]["choices"][0]["delta"], json!({ "role": "assistant", "content": "" }));
            let last = all.last().expect("some");
            assert_eq!(last["choices"], json!([]));
            assert!(last["usage"]["completion_tokens"].is_u64());
            assert!(all.iter().all(|event| event["id"] == all[0]["id"]));
        }),
    ),
    (
        "chat: usage at the end of a stream that does not request it",
        Met(|| {
            let all = events("/chat/completions", chat(json!({})));
            assert!(all.last().expect("some")["usage"]["completion_tokens"].is_u64());
        }),
    ),
    (
        "chat: the prompt in the answer (__verbose)",
        Differs(|| assert!(chat_completion(json!({})).get("__verbose").is_none()), "/apply-template returns it"),
    ),
    (
        "chat: a final assistant message is continued",
        Met(|| {
            let messages = json!([{ "role": "user", "content": "a" }, { "role": "assistant", "content": "Whill" }]);
            drop(chat_completion(json!({ "messages": messages, "continue_final_message": true })));
        }),
    ),
    (
        "chat: a final assistant message is continued by default",
        Differs(
            || drop(chat_completion(json!({ "messages": [messages()[1], { "role": "assistant", "content": "b" }] }))),
            "only continue_final_message continues a message, as in vLLM",
        ),
    ),
    (
        "chat: the rendered template",
        Met(|| {
            let found = shared().post("/apply-template", &json!({ "messages": messages() })).success();
            let prompt = found["prompt"].as_str().expect("a text");
            assert!(prompt.contains("Book") && prompt.contains("What is the best book"), "{prompt}");
        }),
    ),
    (
        "chat: a schema beside json_object",
        Met(|| assert_eq!(response_format(json!({ "type": "json_object", "schema": { "const": "42" } })), "\"42\"")),
    ),
    (
        "chat: a schema of an array",
        Met(|| {
            let schema = json!({ "items": { "type": "integer" }, "type": "array", "maxItems": 2 });
            let found = response_format(json!({ "type": "json_object", "schema": schema }));
            assert!(found.as_str().is_some_and(|text| text.starts_with('[')), "{found}");
        }),
    ),
    (
        "chat: json_schema",
        Met(|| {
            let format = json!({ "type": "json_schema", "json_schema": { "schema": { "const": "foooooo" } } });
            assert_eq!(response_format(format), "\"foooooo\"");
        }),
    ),
    (
        "chat: json_object",
        Met(|| {
            let found = response_format(json!({ "type": "json_object" }));
            assert!(found.as_str().is_some_and(|text| text.trim_start().starts_with('{')), "{found}");
        }),
    ),
    ("chat: an unknown format", Met(|| bad_format(json!({ "type": "sound" })))),
    ("chat: a schema that is a number", Met(|| bad_format(json!({ "type": "json_object", "schema": 123 })))),
    ("chat: a type that is a number", Met(|| bad_format(json!({ "type": "json_object", "schema": { "type": 123 } })))),
    ("chat: an unknown type", Met(|| bad_format(json!({ "type": "json_object", "schema": { "type": "hiccup" } })))),
    (
        "chat: json_schema as a field",
        Met(|| {
            let answer = chat_completion(json!({ "json_schema": { "const": "42" } }));
            assert_eq!(answer["choices"][0]["message"]["content"], "\"42\"");
        }),
    ),
    (
        "chat: a grammar",
        Met(|| {
            let answer = chat_completion(json!({ "grammar": "root ::= \"a\"{5,5}" }));
            assert_eq!(answer["choices"][0]["message"]["content"], "aaaaa");
        }),
    ),
    ("chat: no messages", Met(|| bad_messages(Value::Null))),
    ("chat: messages as a text", Met(|| bad_messages(json!("string")))),
    ("chat: a message that is a number", Met(|| bad_messages(json!([123])))),
    ("chat: an empty message", Met(|| bad_messages(json!([{}])))),
    ("chat: a role that is a number", Met(|| bad_messages(json!([{ "role": 123 }])))),
    ("chat: content that is a number", Met(|| bad_messages(json!([{ "role": "system", "content": 123 }])))),
    (
        "chat: an empty message after another",
        Met(|| bad_messages(json!([{ "role": "system", "content": "test" }, {}]))),
    ),
    (
        "chat: two consecutive assistant messages are refused",
        Differs(
            || {
                let turn = json!({ "role": "assistant", "content": "test" });
                drop(chat_completion(json!({ "messages": [{ "role": "user", "content": "test" }, turn, turn] })));
            },
            "agents send such histories; a template that cannot render them refuses them",
        ),
    ),
    (
        "chat: timings at the end of a stream",
        Met(|| {
            let body = json!({ "stream_options": { "include_usage": true }, "timings_per_token": true });
            let last = events("/chat/completions", chat(body)).pop().expect("some");
            assert!(
                last["timings"]["prompt_per_second"].is_number() && last["timings"]["predicted_per_second"].is_number()
            );
        }),
    ),
    (
        "chat: log-probabilities",
        Met(|| {
            let answer =
                chat_completion(json!({ "logprobs": true, "top_logprobs": 10, "max_tokens": 5, "temperature": 0 }));
            let all = answer["choices"][0]["logprobs"]["content"].as_array().expect("a list");
            let joined: String = all.iter().filter_map(|token| token["token"].as_str()).collect();
            assert_eq!(joined, answer["choices"][0]["message"]["content"].as_str().expect("a text"));
        }),
    ),
    (
        "chat: log-probabilities, streamed",
        Met(|| {
            let body = json!({ "logprobs": true, "top_logprobs": 10, "max_tokens": 5, "temperature": 0 });
            let all = events("/chat/completions", chat(body));
            let logprobs = all.iter().filter_map(|event| event["choices"][0]["logprobs"]["content"].as_array());
            assert!(logprobs.flatten().all(|token| token["top_logprobs"].as_array().map(Vec::len) == Some(10)));
        }),
    ),
    (
        "chat: the error for a long prompt gives its length",
        Met(|| {
            let messages = json!([{ "role": "user", "content": PROMPT.repeat(80) }]);
            let error = shared().post("/chat/completions", &json!({ "messages": messages })).json()["error"].take();
            assert_eq!(error["n_ctx"], 512, "{error}");
            assert!(error["n_prompt_tokens"].as_u64().is_some_and(|tokens| tokens > 512), "{error}");
        }),
    ),
    (
        "chat: the same error for a stream",
        Met(|| {
            let messages = json!([{ "role": "user", "content": PROMPT.repeat(80) }]);
            let error = shared().post("/chat/completions", &json!({ "messages": messages, "stream": true }));
            assert_eq!((error.status(), &error.json()["error"]["n_ctx"]), (400, &json!(512)));
        }),
    ),
    (
        "chat: progress of prompt processing",
        Met(|| {
            let messages = json!([{ "role": "user", "content": "a bird and a fish and ".repeat(20) }]);
            let all = events("/chat/completions", chat(json!({ "messages": messages, "return_progress": true })));
            let progress = all.iter().filter_map(|event| event.get("prompt_progress")).next_back().expect("some");
            assert_eq!(progress["processed"], progress["total"]);
            assert!(progress["cache"].is_u64() && progress["time_ms"].is_number());
        }),
    ),
];
