//! Errors of Anthropic's Messages API: each names its field, and has that API's type.

use serde_json::{Value, json};

use super::{COUNT, PATH, body, server};
use crate::bodies::{named_events, with};
use crate::client::Response;
use crate::test_server::{TestServer, shared};
use crate::tools::TEMPLATE;

/// The message of Anthropic's error object.
#[track_caller]
fn refused(response: &Response, status: u16, kind: &str) -> String {
    assert_eq!(response.status(), status, "{}", response.text());
    let object = response.json();
    let message = object["error"]["message"].as_str().expect("a message").to_string();
    assert_eq!(object, json!({ "type": "error", "error": { "type": kind, "message": message } }));
    message
}

/// Checks that a request is refused with this field.
#[track_caller]
fn assert_refused(more: &Value, field: &str) {
    let message = refused(&shared().post(PATH, &body(more.clone())), 400, "invalid_request_error");
    assert!(message.starts_with(&format!("{field}: ")), "{more}: {message}");
    assert!(message.contains("expected") && message.contains("found"), "{message}");
}

#[test]
fn errors_in_messages_name_their_place() {
    let user = json!({ "role": "user", "content": "hi" });
    let says = |blocks: Value| json!({ "messages": [user, { "role": "assistant", "content": blocks }, user] });
    let asks = |blocks: Value| json!({ "messages": [user, { "role": "user", "content": blocks }] });
    let image = json!({ "type": "image", "source": { "type": "base64", "media_type": "image/png", "data": "" } });
    for (more, field) in [
        (json!({ "max_tokens": null }), "max_tokens"),
        (json!({ "max_tokens": "x" }), "max_tokens"),
        (json!({ "messages": null }), "messages"),
        (json!({ "messages": [] }), "messages"),
        (json!({ "messages": [user, 5] }), "messages[1]"),
        (json!({ "messages": [{ "content": "hi" }] }), "messages[0].role"),
        (json!({ "messages": [{ "role": "tool", "content": "hi" }] }), "messages[0].role"),
        (json!({ "messages": [{ "role": "user" }] }), "messages[0].content"),
        (json!({ "messages": [{ "role": "user", "content": 5 }] }), "messages[0].content"),
        (json!({ "messages": [{ "role": "user", "content": "word ".repeat(600) }] }), "messages"),
        (asks(json!([{ "type": "text" }])), "messages[1].content[0].text"),
        (asks(json!([{ "type": "text", "text": "a" }, image])), "messages[1].content[1].type"),
        (asks(json!([{ "type": "document" }])), "messages[1].content[0].type"),
        (asks(json!([{ "type": "tool_result" }])), "messages[1].content[0].tool_use_id"),
        (
            asks(json!([{ "type": "tool_result", "tool_use_id": "1", "content": [image] }])),
            "messages[1].content[0].content[0].type",
        ),
        (
            asks(json!([{ "type": "tool_result", "tool_use_id": "1", "is_error": "no" }])),
            "messages[1].content[0].is_error",
        ),
        (says(json!([{ "type": "tool_result", "tool_use_id": "1" }])), "messages[1].content[0].type"),
        (says(json!([{ "type": "tool_use", "id": "1", "name": "f" }])), "messages[1].content[0].input"),
        (says(json!([{ "type": "tool_use", "id": "1", "name": "f", "input": "x" }])), "messages[1].content[0].input"),
        (says(json!([{ "type": "thinking" }])), "messages[1].content[0].thinking"),
    ] {
        assert_refused(&more, field);
    }
}

#[test]
fn other_wrong_fields_are_named() {
    let image = json!({ "type": "image", "source": { "type": "url", "url": "x" } });
    let schema = json!({ "type": "object" });
    for (more, field) in [
        (json!({ "system": 5 }), "system"),
        (json!({ "system": [image] }), "system[0].type"),
        (json!({ "stop_sequences": [""] }), "stop_sequences"),
        (json!({ "stop_sequences": [5] }), "stop_sequences"),
        (json!({ "stop": ["a"] }), "stop"),
        (json!({ "max_completion_tokens": 5 }), "max_completion_tokens"),
        (json!({ "response_format": { "type": "text" } }), "response_format"),
        (json!({ "temperature": -1 }), "temperature"),
        (json!({ "top_k": "x" }), "top_k"),
        (json!({ "n": 2 }), "n"),
        (json!({ "logprobs": true }), "logprobs"),
        (json!({ "tools": [{ "name": "f", "input_schema": schema }], "tool_choice": { "type": "any" } }), "tools"),
        (json!({ "tools": [{ "name": "f" }] }), "tools[0].input_schema"),
        (json!({ "tools": [{ "name": "", "input_schema": schema }] }), "tools[0].name"),
        (json!({ "tools": [{ "type": "web_search_20250305", "name": "web_search" }] }), "tools[0].type"),
        (json!({ "tool_choice": { "type": "any" } }), "tool_choice"),
        (json!({ "tool_choice": { "type": "all" } }), "tool_choice.type"),
        (json!({ "tool_choice": { "type": "tool", "name": "g" } }), "tool_choice.name"),
        (json!({ "thinking": { "type": "maybe" } }), "thinking.type"),
        (json!({ "thinking": { "type": "enabled", "budget_tokens": -1 } }), "thinking.budget_tokens"),
        (
            json!({ "thinking": { "type": "enabled" }, "chat_template_kwargs": { "enable_thinking": false } }),
            "thinking",
        ),
        (json!({ "output_config": { "format": { "type": "xml" } } }), "output_config.format.type"),
        (json!({ "output_config": { "format": { "type": "json_schema" } } }), "output_config.format.schema"),
        (
            json!({ "output_config": { "format": { "type": "json_schema", "schema": { "type": "no" } } } }),
            "output_config.format.schema",
        ),
        (json!({ "mcp_servers": [{}] }), "mcp_servers"),
    ] {
        assert_refused(&more, field);
    }
    let unsupported = json!({ "tools": [{ "name": "f", "input_schema": { "type": "string" } }],
        "tool_choice": { "type": "any" } });
    let server = server(TEMPLATE);
    let message = refused(&server.post(PATH, &body(unsupported)), 400, "invalid_request_error");
    assert!(message.starts_with("tools[0].input_schema: "), "{message}");
    let message = refused(&shared().post(PATH, &body(json!({ "model": "claude" }))), 404, "not_found_error");
    assert!(message.starts_with("model: "), "{message}");
    refused(&shared().post(COUNT, &json!({})), 400, "invalid_request_error");
    refused(&shared().get(PATH), 405, "invalid_request_error");
}

#[test]
fn an_error_during_generation_is_an_event() {
    // The regular expression ends before min_tokens allow an end.
    let body = body(json!({ "regex": "[ab]{3}", "min_tokens": 9 }));
    let message = refused(&shared().post(PATH, &body), 400, "invalid_request_error");
    let events = named_events(&shared().post(PATH, &with(body, json!({ "stream": true }))));
    let last = events.last().expect("events");
    let error = json!({ "type": "invalid_request_error", "message": message });
    assert_eq!((&events[0]["type"], last), (&json!("message_start"), &json!({ "type": "error", "error": error })));
}

#[test]
fn api_keys_are_required() {
    let server = TestServer::open(|_, server_settings| server_settings.api_keys = vec!["secret".to_string()]);
    let body = body(json!({ "max_tokens": 1 })).to_string();
    let message = refused(&server.client().request("POST", PATH, &[], body.as_bytes()), 401, "authentication_error");
    assert!(message.starts_with("Authorization: "), "{message}");
    let headers = [("X-Api-Key", "secret"), ("anthropic-version", "2023-06-01"), ("anthropic-beta", "a,b")];
    server.client().request("POST", PATH, &headers, body.as_bytes()).success();
    server.shut_down();
}
