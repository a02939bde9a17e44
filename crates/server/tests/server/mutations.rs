//! Mutated valid bodies: every response is a text or an error that names the problem.
//!
//! A mutation changes a body's structure (a value of another type or size; a field added, removed or duplicated) or its
//! bytes. Many mutated bodies are only parsed, some are sent to a server.

use std::sync::LazyLock;

use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::{Value, json};

use crate::bodies::named_events;
use crate::probe::{Route, bytes, request};
use crate::test_server::TestServer;

/// Values of wrong types and at the limits of ranges, as JSON text.
const EDGE_VALUES: [&str; 32] = [
    "null",
    "true",
    "false",
    "0",
    "1",
    "-1",
    "0.5",
    "-0.0",
    "1e308",
    "-1e308",
    "1e999",
    "1e-320",
    "255",
    "4294967296",
    "-9223372036854775808",
    "9223372036854775807",
    "18446744073709551616",
    "\"\"",
    "\"a\"",
    "\"\\u0000\"",
    "\"\\ud83d\\ude00\"",
    "\"\\ud800\"",
    "\"auto\"",
    "\"7\"",
    "[]",
    "[null]",
    "[[]]",
    "[1,\"a\"]",
    "{}",
    "{\"\":{}}",
    "{\"type\":\"text\"}",
    "[{\"type\":\"text\",\"text\":\"a\"}]",
];

/// Fields that the server reads, and some that it does not.
const NAMES: [&str; 75] = [
    "system",
    "input",
    "instructions",
    "thinking",
    "stop_sequences",
    "include",
    "text",
    "reasoning",
    "output_config",
    "max_output_tokens",
    "prompt",
    "messages",
    "model",
    "max_tokens",
    "max_completion_tokens",
    "n_predict",
    "min_tokens",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "repetition_penalty",
    "repeat_penalty",
    "repeat_last_n",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "seed",
    "n",
    "best_of",
    "stream",
    "stream_options",
    "logprobs",
    "top_logprobs",
    "echo",
    "suffix",
    "prediction",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "response_format",
    "json_schema",
    "regex",
    "guided_json",
    "guided_choice",
    "structured_outputs",
    "speculative",
    "speculative.type",
    "speculative.n_max",
    "speculative.n_min",
    "speculative.p_min",
    "speculative.verify",
    "return_provenance",
    "priority",
    "cache_salt",
    "skip_special_tokens",
    "continue_final_message",
    "add_generation_prompt",
    "documents",
    "reasoning_effort",
    "chat_template_kwargs",
    "chat_template",
    "user",
    "mirostat",
    "grammar",
    "content",
    "tokens",
    "add_special",
    "parse_special",
    "with_pieces",
    "unheard_of",
];

fn valid_bodies() -> Vec<(Route, Value)> {
    let user = json!({ "role": "user", "content": [{ "type": "text", "text": "hi" }] });
    let call = json!({ "id": "a", "type": "function", "function": { "name": "f", "arguments": "{\"x\": 1}" } });
    let tool = json!({ "type": "function", "function": { "name": "f", "parameters": { "type": "object" } } });
    vec![
        (Route::Completions, json!({ "prompt": "Once", "max_tokens": 4, "seed": 1, "logprobs": 2, "n": 2 })),
        (
            Route::Completions,
            json!({ "prompt": ["a", "b"], "max_tokens": 3, "stop": ["x"], "logit_bias": { "5": -100 }, "echo": true,
                "stream": true, "stream_options": { "include_usage": true }, "temperature": 0.7, "top_p": 0.9 }),
        ),
        (
            Route::Completions,
            json!({ "prompt": [5, 6, 7], "max_tokens": 3, "speculative": { "type": "draft", "n_max": 3, "p_min": 0.1 },
                "prediction": { "type": "content", "content": "girl" }, "return_provenance": true }),
        ),
        (Route::Chat, json!({ "messages": [{ "role": "system", "content": "s" }, user], "max_tokens": 4, "seed": 2 })),
        (
            Route::Chat,
            json!({ "messages": [user, { "role": "assistant", "content": "", "tool_calls": [call] },
                { "role": "tool", "tool_call_id": "a", "content": "1" }], "tools": [tool], "tool_choice": "none",
                "max_tokens": 3, "logprobs": true, "top_logprobs": 2, "stream": true }),
        ),
        (
            Route::Chat,
            json!({ "messages": [user, { "role": "assistant", "content": "go" }], "max_tokens": 2,
                "continue_final_message": true, "chat_template_kwargs": { "a": [1] }, "min_p": 0.1, "top_k": 3 }),
        ),
        (Route::Tokenize, json!({ "content": "some <|end|> text", "with_pieces": true, "add_special": true })),
        (Route::Detokenize, json!({ "tokens": [1, 2, 300] })),
    ]
}

/// A change of a body.
#[derive(Clone, Debug)]
pub enum Mutation {
    /// Replaces any value.
    Replace(Index, &'static str),
    /// Removes any field or item.
    Remove(Index),
    /// Adds or replaces a field.
    Set(&'static str, &'static str),
    /// Renames any field.
    Rename(Index, &'static str),
    /// Makes any value very long, or deeply nested if true.
    Grow(Index, bool),
    /// Writes the field once more, at the end.
    Duplicate(&'static str, &'static str),
    /// Truncates the text.
    Cut(Index),
    /// Replaces a byte.
    Byte(Index, u8),
}

/// Any mutation.
pub fn mutation() -> impl Strategy<Value = Mutation> {
    let (index, edge_value, name) = (any::<Index>, || select(&EDGE_VALUES[..]), || select(&NAMES[..]));
    prop_oneof![
        4 => (index(), edge_value()).prop_map(|(at, to)| Mutation::Replace(at, to)),
        1 => index().prop_map(Mutation::Remove),
        4 => (name(), edge_value()).prop_map(|(name, to)| Mutation::Set(name, to)),
        1 => (index(), name()).prop_map(|(at, to)| Mutation::Rename(at, to)),
        1 => (index(), any::<bool>()).prop_map(|(at, deep)| Mutation::Grow(at, deep)),
        1 => (name(), edge_value()).prop_map(|(name, to)| Mutation::Duplicate(name, to)),
        1 => index().prop_map(Mutation::Cut),
        1 => (index(), any::<u8>()).prop_map(|(at, to)| Mutation::Byte(at, to)),
    ]
}

/// JSON pointers to all values inside a value.
fn pointers(value: &Value, pointer: &str, found: &mut Vec<String>) {
    let mut go = |name: &str, inner: &Value| {
        let pointer = format!("{pointer}/{}", name.replace('~', "~0").replace('/', "~1"));
        found.push(pointer.clone());
        pointers(inner, &pointer, found);
    };
    match value {
        Value::Object(fields) => fields.iter().for_each(|(name, inner)| go(name, inner)),
        Value::Array(items) => items.iter().enumerate().for_each(|(at, inner)| go(&at.to_string(), inner)),
        _ => {}
    }
}

/// One of the JSON pointers of a body, if it has any.
fn pointer(body: &Value, at: &Index) -> Option<String> {
    let mut found = Vec::new();
    pointers(body, "", &mut found);
    (!found.is_empty()).then(|| at.get(&found).clone())
}

/// The value, or a marked string in its place if `serde_json` cannot represent it. The body's text gets the real value.
fn placeholder(written: &str) -> Value {
    serde_json::from_str(written).unwrap_or_else(|_| json!(format!("@@{written}@@")))
}

/// Applies a mutation of the structure.
fn change(body: &mut Value, mutation: &Mutation) {
    let at = match mutation {
        Mutation::Replace(at, _) | Mutation::Remove(at) | Mutation::Rename(at, _) | Mutation::Grow(at, _) => at,
        Mutation::Set(name, to) => return body[*name] = placeholder(to),
        _ => return,
    };
    let Some(pointer) = pointer(body, at) else { return };
    let (parent, name) = pointer.rsplit_once('/').expect("a JSON pointer begins with a slash");
    match mutation {
        Mutation::Replace(_, to) => *body.pointer_mut(&pointer).expect("the pointer is valid") = placeholder(to),
        Mutation::Grow(_, true) => {
            *body.pointer_mut(&pointer).expect("the pointer is valid") =
                json!(format!("@@{}{}@@", "[".repeat(20_000), "]".repeat(20_000)));
        }
        Mutation::Grow(_, false) => {
            *body.pointer_mut(&pointer).expect("the pointer is valid") = json!("long ".repeat(20_000));
        }
        _ => match body.pointer_mut(parent).expect("the pointer is valid") {
            Value::Array(items) => drop(items.pop()),
            Value::Object(fields) => {
                let value = fields.remove(name).unwrap_or_default();
                if let Mutation::Rename(_, to) = mutation {
                    fields.insert(to.to_string(), value);
                }
            }
            _ => {}
        },
    }
}

/// The bytes of a body after these mutations.
pub fn mutated(mut body: Value, mutations: &[Mutation]) -> Vec<u8> {
    mutations.iter().for_each(|mutation| change(&mut body, mutation));
    let mut text = body.to_string();
    for written in EDGE_VALUES.iter().filter(|written| serde_json::from_str::<Value>(written).is_err()) {
        text = text.replace(&json!(format!("@@{written}@@")).to_string(), written);
    }
    text = text.replace("\"@@[", "[").replace("]@@\"", "]");
    for mutation in mutations {
        if let (Mutation::Duplicate(name, to), true) = (mutation, text.ends_with('}')) {
            text.truncate(text.len() - 1);
            text.push_str(&format!(",\"{name}\":{to}}}"));
        }
    }
    let mut bytes = text.into_bytes();
    for mutation in mutations {
        let len = bytes.len();
        match mutation {
            Mutation::Cut(at) => bytes.truncate(at.index(len).max(2)),
            Mutation::Byte(at, to) => bytes[at.index(len)] = *to,
            _ => {}
        }
    }
    bytes
}

fn bodies() -> impl Strategy<Value = (Route, Vec<u8>)> {
    let mutations = proptest::collection::vec(mutation(), 1..4);
    (select(valid_bodies()), mutations).prop_map(|((route, body), mutations)| (route, mutated(body, &mutations)))
}

#[test]
fn valid_bodies_are_accepted() {
    for (route, body) in valid_bodies() {
        assert!(request(route, body.to_string().as_bytes()), "{route:?} {body}");
    }
}

/// Writes the seed corpus of the fuzzer: `cargo test -p foretoken-server -- --ignored write_the_seeds`.
#[test]
#[ignore = "changes files of the repository"]
fn write_the_seeds() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/requests");
    std::fs::create_dir_all(folder).expect("a folder");
    for (number, (route, body)) in valid_bodies().into_iter().enumerate() {
        let bytes = [&[route as u8][..], body.to_string().as_bytes()].concat();
        std::fs::write(format!("{folder}/{number}.json"), bytes).expect("a file");
    }
}

/// Paths of other APIs with valid bodies.
fn other_apis() -> Vec<(&'static str, Value)> {
    let schema = json!({ "type": "object", "properties": { "city": { "type": "string" } }, "required": ["city"] });
    let cache = json!({ "type": "ephemeral" });
    let messages = json!({ "max_tokens": 4, "temperature": 0.5, "top_p": 0.9, "top_k": 5, "stop_sequences": ["xyz"],
        "stream": true, "metadata": { "user_id": "u" }, "thinking": { "type": "enabled", "budget_tokens": 1024 },
        "system": [{ "type": "text", "text": "be brief", "cache_control": cache }],
        "output_config": { "effort": "low" }, "context_management": { "edits": [] },
        "tools": [{ "name": "find", "description": "finds", "input_schema": schema, "strict": false }],
        "tool_choice": { "type": "any", "disable_parallel_tool_use": true },
        "messages": [
            { "role": "user", "content": "hi" },
            { "role": "assistant", "content": [
                { "type": "thinking", "thinking": "hm", "signature": "" }, { "type": "text", "text": "I look" },
                { "type": "tool_use", "id": "1", "name": "find", "input": { "city": "Rome" } } ] },
            { "role": "user", "content": [
                { "type": "tool_result", "tool_use_id": "1", "is_error": true, "content": [
                    { "type": "text", "text": "no" } ] },
                { "type": "text", "text": "and" } ] } ] });
    let part = |kind: &str| json!([{ "type": kind, "text": "a" }]);
    let responses = json!({ "max_output_tokens": 4, "temperature": 0.5, "top_p": 0.9, "instructions": "be brief",
        "stream": true, "metadata": { "a": "b" }, "reasoning": { "effort": "low", "summary": "auto" },
        "include": ["message.output_text.logprobs"], "top_logprobs": 1, "truncation": "disabled", "store": false,
        "tools": [{ "type": "function", "name": "find", "parameters": schema, "strict": true }],
        "tool_choice": { "type": "function", "name": "find" }, "parallel_tool_calls": false,
        "input": [
            { "role": "user", "content": part("input_text") },
            { "type": "reasoning", "summary": part("summary_text"), "content": part("reasoning_text") },
            { "type": "message", "role": "assistant", "content": part("output_text") },
            { "type": "function_call", "call_id": "1", "name": "find", "arguments": "{\"city\": \"Rome\"}" },
            { "type": "function_call_output", "call_id": "1", "output": part("input_text") } ] });
    let format = json!({ "type": "json_schema", "name": "x", "schema": schema });
    let whole = json!({ "max_output_tokens": 4, "input": "hi", "text": { "format": format } });
    let forms = json!({ "max_tokens": 4, "system": "be brief", "output_config": { "format": format },
        "messages": [{ "role": "user", "content": "hi" }, { "role": "assistant", "content": "{" }] });
    vec![
        ("/v1/messages", messages.clone()),
        ("/v1/messages/count_tokens", messages),
        ("/v1/messages", forms),
        ("/v1/responses", responses),
        ("/v1/responses", whole),
    ]
}

/// A server whose template supports tools.
fn server_with_tools() -> &'static TestServer {
    static SERVER: LazyLock<TestServer> = LazyLock::new(|| {
        TestServer::open(|settings, server_settings| {
            settings.model.chat_template = Some(crate::tools::TEMPLATE.to_string());
            settings.model.ctx_size = Some(256);
            server_settings.body_bytes_max = 90_000;
        })
    });
    &SERVER
}

#[test]
fn valid_bodies_of_other_apis_are_accepted() {
    for (path, body) in other_apis() {
        let answer = server_with_tools().post(path, &body);
        assert_eq!(answer.status(), 200, "{path}: {}", answer.text());
    }
}

/// A server whose texts are always short.
pub fn small_context_server() -> &'static TestServer {
    static SERVER: LazyLock<TestServer> = LazyLock::new(|| {
        TestServer::open(|settings, server_settings| {
            settings.model.ctx_size = Some(96);
            server_settings.answers_max = 4;
            server_settings.body_bytes_max = 90_000;
        })
    });
    &SERVER
}

fn path(route: Route) -> &'static str {
    match route {
        Route::Completions => "/v1/completions",
        Route::Chat => "/v1/chat/completions",
        Route::Tokenize => "/tokenize",
        Route::Detokenize => "/detokenize",
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn mutated_bodies_are_parsed_or_refused((route, body) in bodies()) {
        request(route, &body);
    }

    #[test]
    fn random_bytes_are_refused(data in proptest::collection::vec(any::<u8>(), 0..40)) {
        bytes(&data);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn mutated_requests_are_answered((route, body) in bodies()) {
        let answer = small_context_server().client().request("POST", path(route), &[("Connection", "close")], &body);
        match answer.status() {
            200 if answer.head.is_event_stream() => prop_assert!(answer.text().ends_with("data: [DONE]\n\n")),
            200 => prop_assert!(answer.json().is_object()),
            status => {
                prop_assert!([400, 404, 413].contains(&status), "{} {}", status, answer.text());
                let (_, message) = answer.error(status);
                prop_assert!(message.contains(": expected "), "{}", message);
            }
        }
    }

    #[test]
    fn mutated_requests_of_other_apis_are_answered(
        (path, body) in select(other_apis()),
        mutations in proptest::collection::vec(mutation(), 1..4),
    ) {
        let body = mutated(body, &mutations);
        let answer = server_with_tools().client().request("POST", path, &[("Connection", "close")], &body);
        match answer.status() {
            200 if answer.head.is_event_stream() => {
                let all = named_events(&answer);
                let last = all.last().and_then(|event| event["type"].as_str()).unwrap_or_default();
                let ends = ["message_stop", "error", "response.completed", "response.incomplete", "response.failed"];
                prop_assert!(ends.contains(&last), "{}", last);
            }
            200 => prop_assert!(answer.json().is_object()),
            status if path == "/v1/responses" => {
                prop_assert!([400, 404, 413].contains(&status), "{} {}", status, answer.text());
                let (_, message) = answer.error(status);
                prop_assert!(message.contains(": expected "), "{}", message);
            }
            status => {
                prop_assert!([400, 404, 413].contains(&status), "{} {}", status, answer.text());
                let message = answer.json()["error"]["message"].as_str().unwrap_or_default().to_string();
                prop_assert!(answer.json()["type"] == "error" && message.contains(": expected "), "{}", message);
            }
        }
    }
}
