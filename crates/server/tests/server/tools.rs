//! Tool calls, forced or optional, that must match their schemas, from the demo model under a template with tools.

use serde_json::{Value, json};

use crate::bodies::with;
use crate::test_server::TestServer;

const PATH: &str = "/v1/chat/completions";

/// The demo model's template with tools, whose calls have the format of Hermes.
pub const TEMPLATE: &str = "{% if tools %}<|system|>{{ tools | tojson }}, as <tool_call><|end|>{% endif %}\
    {% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + '<|end|>' }}{% endfor %}\
    {% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}";

fn server() -> TestServer {
    TestServer::open(|settings, _| settings.model.chat_template = Some(TEMPLATE.to_string()))
}

fn tools() -> Value {
    let city = json!({ "type": "string", "enum": ["Rome", "Oslo"] });
    let find = json!({ "type": "object", "properties": { "city": city, "days": { "type": "integer", "minimum": 1,
        "maximum": 9 } }, "required": ["city"], "additionalProperties": false });
    json!([
        { "type": "function", "function": { "name": "find", "strict": true, "parameters": find } },
        { "type": "function", "function": { "name": "stop" } }
    ])
}

fn body(more: Value) -> Value {
    let messages = json!([{ "role": "user", "content": "i want to find a restaurant" }]);
    let chat = json!({ "messages": messages, "max_tokens": 100, "temperature": 1.0, "tools": tools() });
    with(chat, more)
}

/// The calls of a message, each checked against its schema.
#[track_caller]
fn calls(message: &Value) -> Vec<(String, Value)> {
    let all = message["tool_calls"].as_array().cloned().unwrap_or_default();
    let call = |call: &Value| {
        let function = &call["function"];
        let arguments = serde_json::from_str(function["arguments"].as_str().expect("a text")).expect("JSON");
        (function["name"].as_str().expect("a name").to_string(), arguments)
    };
    let all: Vec<(String, Value)> = all.iter().map(call).collect();
    for (name, arguments) in &all {
        match name.as_str() {
            "find" => {
                assert!(arguments["city"] == "Rome" || arguments["city"] == "Oslo", "{arguments}");
                assert!(arguments.get("days").is_none_or(|days| (1..=9).contains(&days.as_u64().unwrap_or(0))));
            }
            "stop" => assert_eq!(*arguments, json!({})),
            other => panic!("{other}"),
        }
    }
    all
}

/// The calls of a stream, and its last finish reason.
fn streamed(server: &TestServer, body: &Value) -> (Vec<(String, Value)>, Value) {
    let events = server.events(PATH, &with(body.clone(), json!({ "stream": true }))).all().expect("a stream");
    let deltas = events.iter().filter_map(|event| event["choices"][0]["delta"]["tool_calls"].as_array());
    let message = json!({ "tool_calls": deltas.flatten().collect::<Vec<_>>() });
    let text = events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str());
    // There is no white space before the call, as in a response that is not streamed.
    assert_eq!(text.collect::<String>(), "");
    let last = events.iter().rev().find_map(|event| event["choices"][0]["finish_reason"].as_str());
    (calls(&message), json!(last))
}

#[test]
fn forced_calls_match_their_schemas() {
    let server = server();
    let named = json!({ "type": "function", "function": { "name": "find" } });
    for (choice, expected_name) in [(json!("required"), None), (named, Some("find"))] {
        for seed in 0..4 {
            let more = json!({ "tool_choice": choice, "seed": seed, "parallel_tool_calls": false });
            let body = body(more);
            let answer = server.post(PATH, &body).success();
            let (message, reason) = (&answer["choices"][0]["message"], &answer["choices"][0]["finish_reason"]);
            let found = calls(message);
            assert_eq!((found.len(), reason), (1, &json!("tool_calls")), "{answer}");
            assert!(expected_name.is_none_or(|name| found[0].0 == name) && message["content"].is_null(), "{answer}");
            assert_eq!(streamed(&server, &body), (found.clone(), json!("tool_calls")));
            let plain = server.post(PATH, &with(body, json!({ "speculative.n_max": 0 }))).success();
            assert_eq!(calls(&plain["choices"][0]["message"]), found, "with and without drafts");
        }
    }
}

#[test]
fn optional_calls_do_not_change_text_and_unsupported_schemas_are_named() {
    let server = server();
    // The demo model was not trained on calls: it writes ordinary text without special tokens.
    let answer = server.post(PATH, &body(json!({ "seed": 3 }))).success();
    let text = answer["choices"][0]["message"]["content"].as_str().expect("text");
    assert!(!text.is_empty() && !text.contains("<tool_call>"), "{text}");
    let bad = |parameters: Value| {
        let tool = json!({ "type": "function", "function": { "name": "g", "strict": true, "parameters": parameters } });
        json!({ "tools": [tools()[1], tool], "tool_choice": "required" })
    };
    for (more, field) in [
        (bad(json!({ "type": "string" })), "tools[1].function.parameters"),
        (bad(json!({ "properties": { "a": { "type": "no" } } })), "tools[1].function.parameters"),
        (with(json!({ "response_format": { "type": "json_object" } }), json!({})), "response_format"),
        (json!({ "tool_choice": "required", "ignore_eos": true }), "ignore_eos"),
    ] {
        let (param, message) = server.post(PATH, &body(more)).error(400);
        assert_eq!(param.as_deref(), Some(field), "{message}");
        assert!(message.contains("expected") && message.contains("found"), "{message}");
    }
    // The error names the place in the schema as it was sent.
    let deep = json!({ "type": "object", "properties": { "a": { "anyOf": [{ "$ref": "#/$defs/b" }] } },
        "$defs": { "b": { "type": "array", "items": { "type": "string", "format": "x" } } } });
    for (parameters, found) in [
        (
            json!({ "properties": { "a": { "items": { "type": "no" } } } }),
            "#/properties/a/items: expected what can be enf",
        ),
        (deep, "#/$defs/b/items: expected what can be enforced, found: Unknown format: x"),
        (
            json!({ "properties": { "a": { "not": {} } } }),
            "#/properties/a/not: expected what can be enforced, found not",
        ),
        (json!({ "properties": { "a": { "$id": "b" } } }), "#/properties/a/$id: expected it at the root alone"),
    ] {
        let named = json!({ "type": "function", "function": { "name": "g" } });
        for choice in [json!("required"), json!("auto"), named] {
            let body = body(with(bad(parameters.clone()), json!({ "tool_choice": choice })));
            let (param, message) = server.post(PATH, &body).error(400);
            assert_eq!(param.as_deref(), Some("tools[1].function.parameters"), "{message}");
            assert!(message.contains(&format!("parameters: {found}")), "{message}");
        }
    }
}

#[test]
fn an_incomplete_forced_call_is_not_returned() {
    let server = server();
    for more in [json!({ "max_tokens": 6 }), json!({ "max_tokens": 1 }), json!({ "stop": "name" })] {
        let body = body(with(json!({ "tool_choice": "required", "seed": 1 }), more));
        let answer = server.post(PATH, &body).success();
        let choice = &answer["choices"][0];
        assert!(choice["message"]["content"].is_null() && choice["message"].get("tool_calls").is_none(), "{answer}");
        assert_eq!(choice["finish_reason"], "length", "{answer}");
        assert_eq!(streamed(&server, &body), (Vec::new(), json!("length")));
    }
}
