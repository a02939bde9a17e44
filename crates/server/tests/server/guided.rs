//! Structured outputs (schemas, regular expressions, grammars, choices), by every field that requests them.

use serde_json::{Value, json};

use crate::bodies::{texts, with};
use crate::test_server::shared;

fn schema() -> Value {
    json!({
        "type": "object",
        "properties": { "sea": { "type": "boolean" }, "depth": { "enum": [10, 200] } },
        "required": ["sea", "depth"],
        "additionalProperties": false
    })
}

/// The text of a completion with these fields, which must be the same with and without drafts.
#[track_caller]
fn text(more: Value) -> String {
    let plain = json!({ "prompt": "Once upon a time", "max_tokens": 60, "temperature": 0.9, "seed": 4 });
    let body = with(plain, more);
    let drafted = texts(&shared().post("/v1/completions", &body).success()).remove(0);
    let undrafted = with(body, json!({ "speculative.n_max": 0 }));
    assert_eq!(texts(&shared().post("/v1/completions", &undrafted).success()), [drafted.as_str()]);
    drafted
}

#[track_caller]
fn assert_matches_schema(text: &str) {
    let values = ["true", "false"].into_iter().flat_map(|sea| ["10", "200"].map(|depth| (sea, depth)));
    let mut all = values.map(|(sea, depth)| format!("{{\"sea\":{sea},\"depth\":{depth}}}"));
    assert!(all.any(|value| value == text), "{text}");
}

#[test]
fn schemas_have_several_fields() {
    for field in [
        json!({ "response_format": { "type": "json_schema", "json_schema": { "name": "x", "schema": schema() } } }),
        json!({ "response_format": { "type": "json_object", "schema": schema() } }),
        json!({ "json_schema": schema() }),
        json!({ "guided_json": schema() }),
        json!({ "guided_json": schema().to_string() }),
        json!({ "structured_outputs": { "json": schema() } }),
    ] {
        assert_matches_schema(&text(field));
    }
}

#[test]
fn regexes_grammars_and_choices_have_several_fields() {
    for field in [json!({ "regex": "[ab]{3}c" }), json!({ "guided_regex": "[ab]{3}c" })] {
        let text = text(field);
        assert!(text.len() == 4 && text.ends_with('c'), "{text}");
    }
    for field in [
        json!({ "grammar": "root ::= \"sea\" | \"land\"" }),
        json!({ "guided_grammar": "start: \"sea\" | \"land\"" }),
        json!({ "ebnf": "root ::= \"sea\" | \"land\"" }),
        json!({ "choices": ["sea", "land"] }),
        json!({ "guided_choice": ["sea", "land"] }),
        json!({ "structured_outputs": { "choice": ["sea", "land"] } }),
    ] {
        let text = text(field);
        assert!(["sea", "land"].contains(&text.as_str()), "{text}");
    }
}

#[test]
fn stop_tokens_of_the_request_end_a_grammar_where_it_may_end() {
    let stop = 4; // <|call|>
    let grammar = json!({ "guided_regex": "a+", "stop_token_ids": [stop], "logit_bias": { stop.to_string(): 100 } });
    let body = json!({ "prompt": "Once upon a time", "max_tokens": 60, "temperature": 0.9, "seed": 4 });
    let answer = shared().post("/v1/completions", &with(body, grammar.clone())).success();
    // The stop token is not allowed first, and by far the most probable after the first token.
    assert_eq!(answer["usage"]["completion_tokens"], 2, "{answer}");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    assert!(texts(&answer)[0].bytes().all(|byte| byte == b'a'), "{answer}");
    let body = json!({ "messages": [{ "role": "user", "content": "hello" }], "max_tokens": 60, "seed": 4 });
    let answer = shared().post("/v1/chat/completions", &with(body, grammar)).success();
    assert_eq!(answer["usage"]["completion_tokens"], 2, "{answer}");
    // A grammar cannot continue after a token that ends the text.
    let named = json!({ "prompt": "a", "guided_grammar": "start: \"a\" <[4]> \"b\"", "stop_token_ids": [stop] });
    let (field, message) = shared().post("/v1/completions", &named).error(400);
    assert_eq!(field.as_deref(), Some("guided_grammar"), "{message}");
    // One stop token is enough if those of the model are ignored.
    let body = json!({ "prompt": "Once", "guided_regex": "a{3}", "max_tokens": 60, "ignore_eos": true });
    let answer = shared().post("/v1/completions", &with(body.clone(), json!({ "stop_token_ids": [stop] }))).success();
    assert_eq!(texts(&answer), ["aaa"]);
    let (field, message) = shared().post("/v1/completions", &body).error(400);
    assert!(field.as_deref() == Some("guided_regex") && message.contains("found none (ignore_eos"), "{message}");
    // A stop token of ordinary text is part of the grammar, and ends the text wherever it is generated.
    let braces = json!({ "prompt": "Once", "guided_regex": "a}a", "stop_token_ids": [token_of("}")] });
    let answer = shared().post("/v1/completions", &braces).success();
    assert_eq!((texts(&answer)[0].as_str(), &answer["usage"]["completion_tokens"]), ("a", &json!(2)), "{answer}");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
}

/// The demo target's token for this text.
fn token_of(text: &str) -> u32 {
    let answer = shared().post("/tokenize", &json!({ "content": text })).success();
    let tokens = answer["tokens"].as_array().expect("a list");
    assert_eq!(tokens.len(), 1, "{answer}");
    u32::try_from(tokens[0].as_u64().expect("a number")).expect("a token")
}

#[test]
fn chats_have_schemas_and_several_answers() {
    let messages = json!([{ "role": "user", "content": "i want to find a restaurant" }]);
    let format = json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": schema() } });
    let body = json!({ "messages": messages, "max_tokens": 60, "n": 3, "seed": 2, "response_format": format });
    let answer = shared().post("/v1/chat/completions", &body).success();
    let all = texts(&answer);
    assert_eq!(all.len(), 3);
    all.iter().for_each(|text| assert_matches_schema(text));
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    // A cut answer has the finish reason "length".
    let cut = shared().post("/v1/chat/completions", &with(body.clone(), json!({ "max_tokens": 2 }))).success();
    assert_eq!(cut["choices"][0]["finish_reason"], "length");
    let tool = json!({ "type": "function", "function": { "name": "f", "parameters": { "type": "object" } } });
    let (param, _) = shared().post("/v1/chat/completions", &with(body, json!({ "tools": [tool] }))).error(400);
    assert_eq!(param.as_deref(), Some("response_format.json_schema.schema"));
}

#[test]
fn errors_in_a_grammar_name_its_field() {
    for (field, value, param) in [
        ("response_format", json!({ "type": "structural_tag" }), "response_format.type"),
        ("response_format", json!({ "type": "json_schema" }), "response_format.json_schema.schema"),
        (
            "response_format",
            json!({ "type": "json_schema", "json_schema": { "schema": { "type": "no" } } }),
            "response_format.json_schema.schema",
        ),
        ("structured_outputs", json!({ "regex": "(" }), "structured_outputs.regex"),
        ("structured_outputs", json!({ "choice": [] }), "structured_outputs.choice"),
        ("structured_outputs", json!({ "structural_tag": "{}" }), "structured_outputs.structural_tag"),
        (
            "structured_outputs",
            json!({ "regex": "a", "whitespace_pattern": " " }),
            "structured_outputs.whitespace_pattern",
        ),
        ("structured_outputs", json!({ "regexp": "a" }), "structured_outputs.regexp"),
        ("structural_tag", json!("{}"), "structural_tag"),
        ("whitespace_pattern", json!(" "), "whitespace_pattern"),
        ("guided_whitespace_pattern", json!(" "), "guided_whitespace_pattern"),
        ("guided_choices", json!(["a"]), "guided_choices"),
        ("guided_choice", json!([]), "guided_choice"),
        ("choices", json!([]), "choices"),
        ("tools", json!([{ "type": "function", "function": { "name": "f" } }]), "tools"),
        ("guided_grammar", json!("start: nothing"), "guided_grammar"),
    ] {
        let body = json!({ "prompt": "Once", "max_tokens": 4, field: value });
        let (found, message) = shared().post("/v1/completions", &body).error(400);
        assert_eq!(found.as_deref(), Some(param), "{message}");
        assert!(message.contains("expected") && message.contains("found") && !message.contains('\n'), "{message}");
    }
    // Empty and default values change nothing.
    let nothing = json!({ "prompt": "Once", "max_tokens": 1, "regex": "", "guided_choice": null, "tools": [],
        "structured_outputs": { "json_object": false, "structural_tag": null, "disable_fallback": false },
        "guided_whitespace_pattern": null, "guided_decoding_backend": "auto" });
    shared().post("/v1/completions", &nothing).success();
    let two = json!({ "prompt": "Once", "regex": "a", "guided_regex": "a" });
    assert_eq!(shared().post("/v1/completions", &two).error(400).0.as_deref(), Some("regex"));
}

/// A schema of an object with this many optional properties.
fn optional_properties(properties: usize) -> Value {
    let properties: serde_json::Map<String, Value> = (0..properties).map(|i| (format!("p{i}"), json!({}))).collect();
    json!({ "type": "object", "properties": properties })
}

#[test]
fn texts_that_a_grammar_cannot_continue_name_the_field() {
    let format = |schema: Value| json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": schema } });
    let inner = json!({ "type": "object", "properties": { "a": optional_properties(2000) }, "required": ["a"] });
    let fields = [
        // Known before generation.
        (json!({ "response_format": format(optional_properties(2000)) }), "response_format.json_schema.schema"),
        (json!({ "grammar": "start: \"a\" <|endoftext|> \"b\"" }), "grammar"),
        // Known only when the text gets there.
        (json!({ "guided_json": json!({ "anyOf": [inner, inner] }) }), "guided_json"),
        (json!({ "structured_outputs": { "choice": ["a", "b"] }, "min_tokens": 9 }), "min_tokens"),
        (json!({ "regex": "[ab]{3}", "min_tokens": 9 }), "min_tokens"),
    ];
    for (more, field) in fields {
        for (path, body) in [
            ("/v1/completions", json!({ "prompt": "Once", "max_tokens": 60 })),
            ("/v1/chat/completions", json!({ "messages": [{ "role": "user", "content": "hi" }], "max_tokens": 60 })),
        ] {
            let body = with(body, more.clone());
            let (param, message) = shared().post(path, &body).error(400);
            assert_eq!(param.as_deref(), Some(field), "{message}");
            assert!(message.starts_with(&format!("{field}: expected ")), "{message}");
            assert!(message.contains(", found") && !message.contains("consider"), "{message}");
        }
    }
    // A stream has the text generated before, and ends with the error.
    let body = json!({ "prompt": "Once", "regex": "[ab]{3}", "min_tokens": 9, "stream": true });
    let events = shared().events("/v1/completions", &body).all().expect("a stream");
    let error = events.iter().find_map(|event| event.get("error")).expect("an error");
    assert_eq!((&error["param"], &error["type"]), (&json!("min_tokens"), &json!("invalid_request_error")), "{error}");
}
