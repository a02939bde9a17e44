//! OpenAI's Responses API: the same texts as chat completions, as output items, and what that API's clients rely on.

use serde_json::{Value, json};

use crate::bodies::{named_events, texts, with};
use crate::test_server::{TestServer, shared};
use crate::tools::TEMPLATE;

const PATH: &str = "/v1/responses";
const CHAT: &str = "/v1/chat/completions";

/// A template that renders everything it is given.
const ALL: &str = "{% if tools %}{{ tools | tojson }} <tool_call>{% endif %}{% for m in messages %}\
    {{ '<|' + m['role'] + '|>' + (m | tojson) + '<|end|>' }}{% endfor %}\
    {% if reasoning_effort is defined %}{{ reasoning_effort }}{% endif %}\
    {% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}";

fn server(template: &str) -> TestServer {
    TestServer::open(|settings, _| {
        settings.model.chat_template = Some(template.to_string());
        settings.model.ctx_size = Some(1024);
    })
}

fn body(more: Value) -> Value {
    let input = "i want to find a restaurant";
    with(json!({ "input": input, "max_output_tokens": 60, "temperature": 0.8, "seed": 12 }), more)
}

/// The response that a stream ends with, whose items must match the events before it.
#[track_caller]
fn from_events(events: &[Value]) -> Value {
    for (number, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], json!(number), "{event}");
    }
    let kinds: Vec<&str> = events.iter().take(2).filter_map(|event| event["type"].as_str()).collect();
    assert_eq!(kinds, ["response.created", "response.in_progress"]);
    assert_eq!(
        (&events[0]["response"]["status"], &events[0]["response"]["output"]),
        (&json!("in_progress"), &json!([]))
    );
    let mut items: Vec<Value> = Vec::new();
    let mut streamed_text = String::new();
    let mut log_probabilities: Vec<Value> = Vec::new();
    for event in &events[2..events.len() - 1] {
        let kind = event["type"].as_str().expect("a type");
        if kind == "response.output_item.added" {
            assert_eq!(
                (&event["output_index"], &event["item"]["status"]),
                (&json!(items.len()), &json!("in_progress"))
            );
            items.push(event["item"].clone());
            streamed_text.clear();
            continue;
        }
        assert_eq!(event["output_index"], json!(items.len() - 1), "{event}");
        let item = items.last_mut().expect("an item");
        if kind == "response.output_item.done" {
            let done = &event["item"];
            assert_eq!((&done["id"], &done["type"]), (&item["id"], &item["type"]));
            let text = if done["type"] == "function_call" { &done["arguments"] } else { &done["content"][0]["text"] };
            assert_eq!(text, &json!(streamed_text), "{event}");
            *item = done.clone();
            continue;
        }
        assert_eq!(event["item_id"], item["id"]);
        match kind {
            "response.content_part.added" => assert_eq!(event["part"]["text"], ""),
            "response.reasoning_text.delta"
            | "response.output_text.delta"
            | "response.function_call_arguments.delta" => {
                streamed_text.push_str(event["delta"].as_str().expect("a text"));
                log_probabilities.extend(event["logprobs"].as_array().into_iter().flatten().cloned());
            }
            "response.reasoning_text.done" => assert_eq!(event["text"], json!(streamed_text)),
            "response.output_text.done" => {
                assert_eq!(event["text"], json!(streamed_text));
                let all = event["logprobs"].as_array().expect("a list");
                assert!(all.starts_with(&log_probabilities), "{event}");
                log_probabilities.clear();
            }
            "response.function_call_arguments.done" => assert_eq!(event["arguments"], json!(streamed_text)),
            "response.content_part.done" => assert_eq!(event["part"]["text"], json!(streamed_text)),
            other => panic!("{other}"),
        }
    }
    let last = events.last().expect("events");
    let status = last["response"]["status"].as_str().expect("a status");
    assert_eq!(last["type"], format!("response.{status}"));
    assert_eq!(last["response"]["output"], json!(items));
    last["response"].clone()
}

/// A response without what differs between identical requests: ids, times and the number of cached tokens.
fn without_ids(mut response: Value) -> Value {
    for item in response["output"].as_array_mut().into_iter().flatten() {
        for name in ["id", "call_id"] {
            assert!(item.get(name).is_none_or(|name| name.as_str().is_some_and(|name| !name.is_empty())));
            item.as_object_mut().expect("an object").remove(name);
        }
    }
    for name in ["id", "created_at", "completed_at"] {
        response.as_object_mut().expect("an object").remove(name);
    }
    response["usage"]["input_tokens_details"] = Value::Null;
    response
}

/// A response, which must be the same whether or not it is streamed.
#[track_caller]
fn response(server: &TestServer, body: &Value) -> Value {
    let whole = server.post(PATH, body).success();
    let streamed = from_events(&named_events(&server.post(PATH, &with(body.clone(), json!({ "stream": true })))));
    assert_eq!(without_ids(streamed), without_ids(whole.clone()));
    whole
}

#[track_caller]
fn text_of(response: &Value) -> String {
    let items = response["output"].as_array().expect("items");
    assert!(items.len() == 1 && items[0]["type"] == "message" && items[0]["role"] == "assistant", "{response}");
    items[0]["content"][0]["text"].as_str().expect("a text").to_string()
}

/// The request for chat completions with the same meaning.
fn chat(more: Value) -> Value {
    let messages = json!([{ "role": "user", "content": "i want to find a restaurant" }]);
    with(json!({ "messages": messages, "max_tokens": 60, "temperature": 0.8, "seed": 12 }), more)
}

#[test]
fn texts_equal_those_of_chat_completions() {
    let server = shared();
    for seed in 0..3 {
        let chat = server.post(CHAT, &chat(json!({ "seed": seed }))).success();
        let own = response(server, &body(json!({ "seed": seed })));
        assert_eq!(text_of(&own), texts(&chat)[0]);
        let (input, output) = (&chat["usage"]["prompt_tokens"], &chat["usage"]["completion_tokens"]);
        assert_eq!((&own["usage"]["input_tokens"], &own["usage"]["output_tokens"]), (input, output));
        assert_eq!(own["usage"]["total_tokens"], chat["usage"]["total_tokens"]);
        assert_eq!(own["usage"]["output_tokens_details"]["reasoning_tokens"], 0);
        let ended = chat["choices"][0]["finish_reason"] == "stop";
        assert_eq!(own["status"], if ended { "completed" } else { "incomplete" });
        let parts = json!([{ "type": "input_text", "text": "i want to find a restaurant" }]);
        let items = json!({ "seed": seed, "input": [{ "role": "user", "content": parts }] });
        assert_eq!(text_of(&server.post("/responses", &body(items)).success()), text_of(&own));
    }
}

#[test]
fn responses_repeat_the_fields_of_their_request() {
    let more = json!({ "instructions": "be brief", "metadata": { "a": "b" }, "store": true, "truncation": "disabled",
        "user": "u", "background": false, "include": ["reasoning.encrypted_content"], "stop": "zzzz",
        "reasoning": { "effort": null, "summary": "auto" }, "text": { "verbosity": "medium" } });
    let own = response(shared(), &body(more));
    assert!(own["id"].as_str().is_some_and(|id| id.starts_with("resp_")));
    let message = &own["output"][0];
    assert!(message["id"].as_str().is_some_and(|id| id.starts_with("msg_")));
    assert_eq!(message["content"][0]["annotations"], json!([]));
    for (name, value) in [
        ("object", json!("response")),
        ("model", json!("demo-target")),
        ("instructions", json!("be brief")),
        ("metadata", json!({ "a": "b" })),
        ("temperature", json!(0.8)),
        ("tools", json!([])),
        ("tool_choice", json!("auto")),
        ("parallel_tool_calls", json!(true)),
        ("max_output_tokens", json!(60)),
        ("store", json!(false)),
        ("error", Value::Null),
    ] {
        assert_eq!(own[name], value, "{name}");
    }
    let cut = response(shared(), &body(json!({ "max_output_tokens": 1 })));
    let incomplete = (&json!("incomplete"), &json!({ "reason": "max_output_tokens" }));
    assert_eq!((&cut["status"], &cut["incomplete_details"]), incomplete);
    assert_eq!((&cut["output"][0]["status"], &cut["usage"]["output_tokens"]), (&json!("incomplete"), &json!(1)));
}

#[test]
fn histories_render_like_those_of_chat_completions() {
    let server = server(ALL);
    let arguments = r#"{"days": [1, 2.5], "city": "Rome"}"#;
    let part = |kind: &str, text: &str| json!([{ "type": kind, "text": text }]);
    let own = json!({
        "instructions": "be",
        "input": [
            { "type": "message", "role": "developer", "content": part("input_text", "brief") },
            { "role": "user", "content": "a" },
            { "role": "user", "content": "b" },
            { "type": "reasoning", "id": "rs_1", "summary": part("summary_text", "x"),
                "content": part("reasoning_text", "hm") },
            { "type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
                "content": [{ "type": "output_text", "text": "I look", "annotations": [] }] },
            { "type": "function_call", "id": "fc_1", "call_id": "1", "name": "find", "arguments": arguments },
            { "type": "function_call", "call_id": "2", "name": "stop", "arguments": "{}" },
            { "type": "function_call_output", "call_id": "1", "output": part("input_text", "sunny") },
            { "type": "function_call_output", "call_id": "2", "output": "no" },
            { "type": "reasoning", "summary": part("summary_text", "well"), "encrypted_content": "x" },
            { "role": "assistant", "content": [{ "type": "refusal", "refusal": "I cannot" }] },
            { "role": "user", "content": "why" },
        ],
        "reasoning": { "effort": "low" },
    });
    let call = |id: &str, name: &str, arguments: &str| {
        let function = json!({ "name": name, "arguments": arguments });
        json!({ "id": id, "type": "function", "function": function })
    };
    let messages = json!([
        { "role": "system", "content": "be\nbrief" },
        { "role": "user", "content": "a" },
        { "role": "user", "content": "b" },
        { "role": "assistant", "content": "I look", "reasoning_content": "hm",
            "tool_calls": [call("1", "find", arguments), call("2", "stop", "{}")] },
        { "role": "tool", "content": "sunny", "tool_call_id": "1" },
        { "role": "tool", "content": "no", "tool_call_id": "2" },
        { "role": "assistant", "content": "I cannot", "reasoning_content": "well" },
        { "role": "user", "content": "why" },
    ]);
    let long = json!({ "ignore_eos": true });
    let expected = server
        .post(
            CHAT,
            &with(
                chat(json!({ "messages": messages, "reasoning_effort": "low",
        "max_tokens": 12 })),
                long.clone(),
            ),
        )
        .success();
    let found = response(&server, &with(body(own), with(json!({ "max_output_tokens": 12 }), long)));
    assert_eq!(found["usage"]["input_tokens"], expected["usage"]["prompt_tokens"]);
    assert_eq!(text_of(&found), texts(&expected)[0]);
}

fn tools() -> Value {
    let schema = json!({ "type": "object", "properties": { "city": { "type": "string", "enum": ["Rome", "Oslo"] } },
        "required": ["city"], "additionalProperties": false });
    json!([
        { "type": "function", "name": "find", "description": "finds", "parameters": schema, "strict": true },
        { "type": "function", "name": "stop", "strict": false },
    ])
}

#[test]
fn tool_calls_are_items() {
    let server = server(TEMPLATE);
    for (choice, forced_name) in
        [(json!("required"), None), (json!({ "type": "function", "name": "find" }), Some("find"))]
    {
        for seed in 0..4 {
            let own = response(
                &server,
                &body(json!({ "tools": tools(), "tool_choice": choice, "seed": seed,
                "max_output_tokens": 100, "parallel_tool_calls": false })),
            );
            let items = own["output"].as_array().expect("items");
            assert!(items.len() == 1 && items[0]["type"] == "function_call" && own["status"] == "completed", "{own}");
            assert!(items[0]["call_id"].is_string() && items[0]["id"] != items[0]["call_id"], "{own}");
            let name = items[0]["name"].as_str().expect("a name");
            assert!(forced_name.is_none_or(|forced_name| forced_name == name), "{own}");
            let arguments: Value = serde_json::from_str(items[0]["arguments"].as_str().expect("a text")).expect("JSON");
            let fits = match name {
                "find" => arguments == json!({ "city": "Rome" }) || arguments == json!({ "city": "Oslo" }),
                _ => arguments == json!({}),
            };
            assert!(fits && own["tools"] == tools() && own["tool_choice"] == choice, "{own}");
        }
    }
    let cut = response(&server, &body(json!({ "tools": tools(), "tool_choice": "required", "max_output_tokens": 4 })));
    assert_eq!((&cut["output"], &cut["status"]), (&json!([]), &json!("incomplete")));
    let free = response(&server, &body(json!({ "tools": tools() })));
    let functions: Vec<Value> = tools()
        .as_array()
        .expect("tools")
        .iter()
        .map(|tool| {
            let mut function = tool.clone();
            function.as_object_mut().expect("an object").remove("type");
            if function["strict"] == false {
                function.as_object_mut().expect("an object").remove("strict");
            }
            json!({ "type": "function", "function": function })
        })
        .collect();
    let expected = server.post(CHAT, &chat(json!({ "tools": functions }))).success();
    assert_eq!(free["usage"]["input_tokens"], expected["usage"]["prompt_tokens"]);
    assert_eq!(text_of(&free), texts(&expected)[0]);
}

#[test]
fn reasoning_is_an_item_before_the_text() {
    let template = TEMPLATE.replace("'<|assistant|>'", "'<|assistant|><think></think>'");
    let server = server(&format!("{template}{{# </think> #}}"));
    let regex = "<think>\n[a-c]{3,9}\n</think>\n\n(yes|no)";
    for seed in 0..3 {
        let own = response(&server, &body(json!({ "regex": regex, "seed": seed })));
        let items = own["output"].as_array().expect("items");
        assert_eq!((items.len(), &items[0]["type"], &items[1]["type"]), (2, &json!("reasoning"), &json!("message")));
        assert_eq!((&items[0]["summary"], &items[0]["content"][0]["type"]), (&json!([]), &json!("reasoning_text")));
        assert!(items[0]["content"][0]["text"].as_str().is_some_and(|text| text.len() >= 3), "{own}");
        let text = &items[1]["content"][0]["text"];
        assert!(text == "yes" || text == "no", "{own}");
        let usage = &own["usage"];
        let reasoning_tokens = usage["output_tokens_details"]["reasoning_tokens"].as_u64().expect("a count");
        let all = usage["output_tokens"].as_u64().expect("a count");
        assert!(reasoning_tokens >= 3 && reasoning_tokens < all, "{usage}");
    }
    let cut = response(&server, &body(json!({ "regex": regex, "max_output_tokens": 11 })));
    let usage = &cut["usage"];
    assert_eq!(usage["output_tokens_details"]["reasoning_tokens"], usage["output_tokens"]);
    assert_eq!(cut["output"][0]["status"], "incomplete");
}

#[test]
fn structured_outputs_match_their_format() {
    let schema = json!({ "type": "object", "properties": { "n": { "type": "integer", "minimum": 1, "maximum": 9 } },
        "required": ["n"], "additionalProperties": false });
    let format = json!({ "type": "json_schema", "name": "number", "strict": true, "schema": schema });
    let own = response(shared(), &body(json!({ "text": { "format": format } })));
    let found: Value = serde_json::from_str(&text_of(&own)).expect("JSON");
    assert!((1..=9).contains(&found["n"].as_u64().unwrap_or(0)), "{found}");
    assert_eq!(own["text"]["format"], format);
    let object = response(shared(), &body(json!({ "text": { "format": { "type": "json_object" } } })));
    assert!(text_of(&object).starts_with('{'));
    let plain = response(shared(), &body(json!({ "text": { "format": { "type": "text" } } })));
    assert_eq!(text_of(&plain), text_of(&shared().post(PATH, &body(json!({}))).success()));
}

#[test]
fn log_probabilities_equal_those_of_chat_completions() {
    let more = json!({ "include": ["message.output_text.logprobs"], "top_logprobs": 2 });
    let own = response(shared(), &body(more));
    let chat = shared().post(CHAT, &chat(json!({ "logprobs": true, "top_logprobs": 2 }))).success();
    let logprobs = &own["output"][0]["content"][0]["logprobs"];
    assert_eq!(*logprobs, chat["choices"][0]["logprobs"]["content"]);
    assert!(logprobs.as_array().is_some_and(|logprobs| logprobs.len() > 3));
}

#[test]
fn an_error_during_generation_is_the_last_event() {
    // The regular expression ends before min_tokens allow an end.
    let body = body(json!({ "regex": "[ab]{3}", "min_tokens": 9 }));
    let (_, message) = shared().post(PATH, &body).error(400);
    let events = named_events(&shared().post(PATH, &with(body, json!({ "stream": true }))));
    let last = events.last().expect("events");
    assert_eq!((&last["type"], &last["response"]["status"]), (&json!("response.failed"), &json!("failed")));
    assert_eq!(last["response"]["error"], json!({ "code": "invalid_prompt", "message": message }));
    assert_eq!(last["response"]["id"], events[0]["response"]["id"]);
}

#[test]
fn wrong_fields_are_named() {
    let items = |item: Value| json!({ "input": [{ "role": "user", "content": "hi" }, item] });
    let parts = |part: Value| items(json!({ "role": "user", "content": [part] }));
    let image = json!({ "type": "input_image", "image_url": "x" });
    for (more, field) in [
        (json!({ "input": null }), "input"),
        (json!({ "input": [] }), "input"),
        (json!({ "input": 5 }), "input"),
        (json!({ "input": "word ".repeat(600) }), "input"),
        (json!({ "messages": [] }), "messages"),
        (json!({ "max_tokens": 5 }), "max_tokens"),
        (json!({ "max_completion_tokens": 5 }), "max_completion_tokens"),
        (json!({ "response_format": { "type": "text" } }), "response_format"),
        (json!({ "max_output_tokens": "x" }), "max_output_tokens"),
        (items(json!(5)), "input[1]"),
        (items(json!({ "type": "item_reference", "id": "x" })), "input[1].type"),
        (items(json!({ "content": "hi" })), "input[1].role"),
        (items(json!({ "role": "tool", "content": "hi" })), "input[1].role"),
        (items(json!({ "role": "user" })), "input[1].content"),
        (parts(image.clone()), "input[1].content[0].type"),
        (parts(json!({ "type": "input_file" })), "input[1].content[0].type"),
        (parts(json!({ "type": "input_text" })), "input[1].content[0].text"),
        (items(json!({ "type": "function_call", "name": "f", "arguments": "{}" })), "input[1].call_id"),
        (
            items(json!({ "type": "function_call", "call_id": "1", "name": "f", "arguments": "[" })),
            "input[1].arguments",
        ),
        (items(json!({ "type": "function_call_output", "call_id": "1" })), "input[1].output"),
        (
            items(json!({ "type": "function_call_output", "call_id": "1", "output": [image] })),
            "input[1].output[0].type",
        ),
        (items(json!({ "type": "reasoning", "summary": [image] })), "input[1].summary[0].type"),
        (json!({ "previous_response_id": "resp_1" }), "previous_response_id"),
        (json!({ "conversation": "conv_1" }), "conversation"),
        (json!({ "background": true }), "background"),
        (json!({ "prompt": { "id": "x" } }), "prompt"),
        (json!({ "truncation": "auto" }), "truncation"),
        (json!({ "top_logprobs": 2 }), "top_logprobs"),
        (json!({ "n": 2 }), "n"),
        (json!({ "temperature": -1 }), "temperature"),
        (json!({ "tools": [{ "type": "web_search" }] }), "tools[0].type"),
        (json!({ "tools": [{ "type": "function" }] }), "tools[0].name"),
        (json!({ "tools": [{ "type": "function", "name": "f", "strict": true }] }), "tools"),
        (json!({ "tools": [{ "type": "function", "name": "f", "strict": 1 }] }), "tools[0].strict"),
        (json!({ "tools": [{ "type": "function", "name": "f", "parameters": 1 }] }), "tools[0].parameters"),
        (json!({ "tool_choice": { "type": "function", "name": "g" } }), "tool_choice.name"),
        (json!({ "tool_choice": { "type": "web_search" } }), "tool_choice"),
        (json!({ "text": { "verbosity": "low" } }), "text.verbosity"),
        (json!({ "text": { "format": { "type": "xml" } } }), "text.format.type"),
        (json!({ "text": { "format": { "type": "json_schema", "name": "x" } } }), "text.format.schema"),
        (json!({ "text": { "format": { "type": "json_schema", "schema": { "type": "no" } } } }), "text.format.schema"),
        (json!({ "include": "all" }), "include"),
    ] {
        let (param, message) = shared().post(PATH, &body(more)).error(400);
        assert_eq!(param.as_deref(), Some(field), "{message}");
        assert!(message.contains("expected") && message.contains("found"), "{message}");
    }
    let server = server(TEMPLATE);
    let unsupported = json!({ "tools": [{ "type": "function", "name": "f", "parameters": { "type": "string" } }],
        "tool_choice": "required" });
    assert_eq!(server.post(PATH, &body(unsupported)).error(400).0.as_deref(), Some("tools[0].parameters"));
}
