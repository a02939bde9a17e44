//! Anthropic's Messages API: the same texts as chat completions, in content blocks, and what that API's clients rely
//! on.

mod errors;

use serde_json::{Value, json};

use crate::bodies::{named_events, texts, with};
use crate::test_server::{TestServer, shared};
use crate::tools::TEMPLATE;

const PATH: &str = "/v1/messages";
const COUNT: &str = "/v1/messages/count_tokens";
const CHAT: &str = "/v1/chat/completions";

/// A template that renders everything it is given.
const ALL: &str = "{% if tools %}{{ tools | tojson }} <tool_call>{% endif %}{% for m in messages %}\
    {{ '<|' + m['role'] + '|>' + (m | tojson) + '<|end|>' }}{% endfor %}\
    {% if enable_thinking is defined %}{{ enable_thinking }}{% endif %}\
    {% if reasoning_effort is defined %}{{ reasoning_effort }}{% endif %}\
    {% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}";

fn server(template: &str) -> TestServer {
    TestServer::open(|settings, _| {
        settings.model.chat_template = Some(template.to_string());
        settings.model.ctx_size = Some(1024);
    })
}

fn body(more: Value) -> Value {
    let messages = json!([{ "role": "user", "content": "i want to find a restaurant" }]);
    with(json!({ "messages": messages, "max_tokens": 60, "temperature": 0.8, "seed": 12 }), more)
}

/// The message that the events of a stream add up to, as clients build it. Blocks must not overlap.
#[track_caller]
fn from_events(events: &[Value]) -> Value {
    let mut message = events[0]["message"].clone();
    assert_eq!((&events[0]["type"], &message["content"]), (&json!("message_start"), &json!([])));
    let mut open = None;
    for event in &events[1..] {
        let blocks = message["content"].as_array_mut().expect("blocks");
        match event["type"].as_str().expect("a type") {
            "content_block_start" => {
                assert_eq!((open, &event["index"]), (None, &json!(blocks.len())));
                blocks.push(event["content_block"].clone());
                open = Some(blocks.len() - 1);
            }
            "content_block_delta" => {
                assert_eq!(event["index"], json!(open.expect("an open block")));
                let (block, delta) = (blocks.last_mut().expect("a block"), &event["delta"]);
                let (kind, name) = match delta["type"].as_str().expect("a type") {
                    "text_delta" => ("text", "text"),
                    "thinking_delta" => ("thinking", "thinking"),
                    "signature_delta" => ("thinking", "signature"),
                    "input_json_delta" => {
                        let input = delta["partial_json"].as_str().expect("a text");
                        block["input"] = serde_json::from_str(input).expect("an object");
                        continue;
                    }
                    other => panic!("{other}"),
                };
                assert_eq!(block["type"], kind);
                let before = block[name].as_str().expect("a text").to_string();
                block[name] = json!(before + delta[name].as_str().expect("a text"));
            }
            "content_block_stop" => assert_eq!(event["index"], json!(open.take().expect("an open block"))),
            "message_delta" => {
                message["stop_reason"] = event["delta"]["stop_reason"].clone();
                message["stop_sequence"] = event["delta"]["stop_sequence"].clone();
                message["usage"] = event["usage"].clone();
            }
            "message_stop" => assert!(open.is_none() && message["stop_reason"].is_string()),
            other => panic!("{other}"),
        }
    }
    assert_eq!(events.last().expect("events")["type"], "message_stop");
    message
}

/// A message, which must be the same whether or not it is streamed, except for its id and the number of cached tokens.
#[track_caller]
fn message(server: &TestServer, body: &Value) -> Value {
    let whole = server.post(PATH, body).success();
    let mut streamed = from_events(&named_events(&server.post(PATH, &with(body.clone(), json!({ "stream": true })))));
    let total = |message: &Value| {
        let count = |name: &str| message["usage"][name].as_u64().expect("a count");
        (count("input_tokens") + count("cache_read_input_tokens"), count("output_tokens"))
    };
    assert_eq!(total(&streamed), total(&whole));
    for name in ["id", "usage"] {
        streamed[name] = whole[name].clone();
    }
    for (streamed, whole) in
        streamed["content"].as_array_mut().into_iter().flatten().zip(whole["content"].as_array().expect("blocks"))
    {
        if whole["type"] == "tool_use" {
            streamed["id"] = whole["id"].clone();
        }
    }
    assert_eq!(streamed, whole);
    whole
}

#[track_caller]
fn text_of(server: &TestServer, body: &Value) -> String {
    let message = message(server, body);
    let blocks = message["content"].as_array().expect("blocks");
    assert!(blocks.len() == 1 && blocks[0]["type"] == "text", "{message}");
    blocks[0]["text"].as_str().expect("a text").to_string()
}

#[test]
fn texts_equal_those_of_chat_completions() {
    let server = shared();
    for seed in 0..3 {
        let body = body(json!({ "seed": seed, "system": "be brief" }));
        let mut chat = body.clone();
        chat.as_object_mut().expect("an object").remove("system");
        let user = &body["messages"][0];
        chat["messages"] = json!([{ "role": "system", "content": "be brief" }, user]);
        let chat = server.post(CHAT, &chat).success();
        assert_eq!(text_of(server, &body), texts(&chat)[0]);
        let answer = server.post("/messages?beta=true", &body).success();
        let reason = if chat["choices"][0]["finish_reason"] == "stop" { "end_turn" } else { "max_tokens" };
        assert_eq!((&answer["type"], &answer["role"]), (&json!("message"), &json!("assistant")));
        assert_eq!((&answer["stop_reason"], &answer["stop_sequence"]), (&json!(reason), &Value::Null));
        assert!(answer["id"].as_str().is_some_and(|id| id.starts_with("msg_")) && answer.get("timings").is_none());
        let usage = &answer["usage"];
        let read = usage["input_tokens"].as_u64().zip(usage["cache_read_input_tokens"].as_u64());
        assert_eq!(read.map(|(new, cached)| new + cached), chat["usage"]["prompt_tokens"].as_u64());
        assert_eq!(usage["output_tokens"], chat["usage"]["completion_tokens"]);
        let mut count = body.clone();
        count.as_object_mut().expect("an object").remove("max_tokens");
        assert_eq!(server.post(COUNT, &count).success(), json!({ "input_tokens": chat["usage"]["prompt_tokens"] }));
    }
}

#[test]
fn stop_sequences_lengths_and_regexes_end_texts() {
    let server = shared();
    let whole = text_of(server, &body(json!({})));
    let word = whole.split_whitespace().nth(3).expect("words");
    let stopped = message(server, &body(json!({ "stop_sequences": ["zzzz", word] })));
    assert_eq!((&stopped["stop_reason"], &stopped["stop_sequence"]), (&json!("stop_sequence"), &json!(word)));
    let text = stopped["content"][0]["text"].as_str().expect("a text");
    assert!(whole.starts_with(text) && !text.contains(word), "{text:?} {word:?}");
    let cut = message(server, &body(json!({ "max_tokens": 1 })));
    assert_eq!((&cut["stop_reason"], &cut["usage"]["output_tokens"]), (&json!("max_tokens"), &json!(1)));
    let forced = message(server, &body(json!({ "regex": "(yes|no)" })));
    assert_eq!(forced["stop_reason"], "end_turn");
    assert!(forced["content"][0]["text"] == "yes" || forced["content"][0]["text"] == "no", "{forced}");
}

/// Checks that a request of each API has the same number of prompt tokens and the same text.
#[track_caller]
fn assert_same(server: &TestServer, own: Value, chat: Value) {
    let [own, chat] = [own, chat].map(|more| with(body(more), json!({ "ignore_eos": true, "max_tokens": 12 })));
    let expected = server.post(CHAT, &chat).success();
    let count = server.post(COUNT, &own).success()["input_tokens"].clone();
    assert_eq!(count, expected["usage"]["prompt_tokens"], "{own}");
    assert_eq!(text_of(server, &own), texts(&expected)[0], "{own}");
}

#[test]
fn histories_render_like_those_of_chat_completions() {
    let server = server(ALL);
    let input = json!({ "city": "Rome", "days": [1, 2.5] });
    let cache = json!({ "type": "ephemeral" });
    let own = json!({
        "system": [
            { "type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=0a1b2;" },
            { "type": "text", "text": "be", "cache_control": cache },
            { "type": "text", "text": "brief" },
        ],
        "messages": [
            { "role": "user", "content": [{ "type": "text", "text": "a", "cache_control": cache }] },
            { "role": "user", "content": "b" },
            { "role": "assistant", "content": [
                { "type": "thinking", "thinking": "hm", "signature": "x" },
                { "type": "redacted_thinking", "data": "x" },
                { "type": "text", "text": "I look" },
                { "type": "tool_use", "id": "toolu_1", "name": "find", "input": input },
                { "type": "tool_use", "id": "toolu_2", "name": "stop", "input": {} },
            ] },
            { "role": "user", "content": [
                { "type": "tool_result", "tool_use_id": "toolu_1", "content": [{ "type": "text", "text": "sunny" }] },
                { "type": "tool_result", "tool_use_id": "toolu_2", "is_error": true, "content": "no" },
                { "type": "text", "text": "and" },
            ] },
            { "role": "system", "content": "be quick" },
        ],
        "thinking": { "type": "enabled", "budget_tokens": 2000 },
        "output_config": { "effort": "low" },
        "context_management": { "edits": [] },
        "metadata": { "user_id": "u" },
    });
    let call = |id: &str, name: &str, arguments: &Value| {
        let function = json!({ "name": name, "arguments": arguments.to_string() });
        json!({ "id": id, "type": "function", "function": function })
    };
    let chat = json!({
        "messages": [
            { "role": "system", "content": "be\nbrief" },
            { "role": "user", "content": "a\nb" },
            { "role": "assistant", "content": "I look", "reasoning_content": "hm",
                "tool_calls": [call("toolu_1", "find", &input), call("toolu_2", "stop", &json!({}))] },
            { "role": "tool", "content": "sunny", "tool_call_id": "toolu_1" },
            { "role": "tool", "content": "no", "tool_call_id": "toolu_2", "is_error": true },
            { "role": "user", "content": "and\nbe quick" },
        ],
        "chat_template_kwargs": { "enable_thinking": true },
        "reasoning_effort": "low",
    });
    assert_same(&server, own, chat);
    // A final assistant message is continued.
    let unfinished = json!([{ "role": "user", "content": "hi" }, { "role": "assistant", "content": "good" }]);
    assert_same(
        &server,
        json!({ "messages": unfinished }),
        json!({ "messages": unfinished, "continue_final_message": true }),
    );
}

fn tools() -> Value {
    let schema = json!({ "type": "object", "properties": { "city": { "type": "string", "enum": ["Rome", "Oslo"] } },
        "required": ["city"], "additionalProperties": false });
    json!([
        { "name": "find", "description": "finds", "input_schema": schema, "cache_control": { "type": "ephemeral" } },
        { "type": "custom", "name": "stop", "input_schema": { "type": "object", "properties": {},
            "additionalProperties": false } },
    ])
}

#[test]
fn tool_calls_are_blocks_with_an_object() {
    let server = server(TEMPLATE);
    let any = json!({ "type": "any", "disable_parallel_tool_use": true });
    for (choice, forced_name) in [(any, None), (json!({ "type": "tool", "name": "find" }), Some("find"))] {
        for seed in 0..4 {
            let body = body(json!({ "tools": tools(), "tool_choice": choice, "seed": seed, "max_tokens": 100 }));
            let message = message(&server, &body);
            let blocks = message["content"].as_array().expect("blocks");
            assert!(blocks.len() == 1 && message["stop_reason"] == "tool_use", "{message}");
            let (name, input) = (blocks[0]["name"].as_str().expect("a name"), &blocks[0]["input"]);
            assert!(forced_name.is_none_or(|forced| forced == name) && blocks[0]["type"] == "tool_use", "{message}");
            let fits = match name {
                "find" => *input == json!({ "city": "Rome" }) || *input == json!({ "city": "Oslo" }),
                _ => *input == json!({}),
            };
            assert!(fits && blocks[0]["id"].as_str().is_some_and(|id| !id.is_empty()), "{message}");
        }
    }
    // Only the stop reason is returned of an incomplete call.
    let cut = json!({ "tools": tools(), "tool_choice": { "type": "any" }, "max_tokens": 4 });
    let cut = message(&server, &body(cut));
    assert_eq!((&cut["content"], &cut["stop_reason"]), (&json!([]), &json!("max_tokens")));
    // If calls are optional the model writes its ordinary text.
    let functions: Vec<Value> = tools()
        .as_array()
        .expect("tools")
        .iter()
        .map(|tool| {
            let mut function = json!({ "name": tool["name"], "parameters": tool["input_schema"] });
            if let Some(words) = tool.get("description") {
                function["description"] = words.clone();
            }
            json!({ "type": "function", "function": function })
        })
        .collect();
    for (own, choice) in [("auto", "auto"), ("none", "none")] {
        let own = json!({ "tools": tools(), "tool_choice": { "type": own } });
        assert_same(&server, own, json!({ "tools": functions, "tool_choice": choice }));
    }
}

#[test]
fn schemas_and_arguments_keep_their_order() {
    let server = server(ALL);
    // Bodies are texts here, since `Value` may reorder objects.
    let ask = |path: &str, body: &str| server.client().request("POST", path, &[], body.as_bytes()).success();
    let count = |input: &str| {
        let blocks = format!(r#"[{{"type": "tool_use", "id": "1", "name": "f", "input": {input}}}]"#);
        let messages = format!(r#"[{{"role": "user", "content": "a"}}, {{"role": "assistant", "content": {blocks}}}]"#);
        let answer = ask(PATH, &format!(r#"{{"messages": {messages}, "max_tokens": 1}}"#));
        answer["usage"]["cache_read_input_tokens"].as_u64().expect("a count")
    };
    let long = |first: &str, second: &str| {
        let text = "word ".repeat(40);
        count(&format!(r#"{{"{first}": "{text}", "{second}": "{text}"}}"#))
    };
    long("zeta", "alpha");
    let same_order = long("zeta", "alpha");
    assert!(same_order > 60 && long("alpha", "zeta") < same_order / 2, "{same_order}");
}

#[test]
fn reasoning_is_a_block_before_the_text() {
    let template = TEMPLATE.replace("'<|assistant|>'", "'<|assistant|><think></think>'");
    let server = server(&format!("{template}{{# </think> #}}"));
    let regex = "<think>\n[a-c]{3,9}\n</think>\n\n(yes|no)";
    for seed in 0..3 {
        let message = message(&server, &body(json!({ "regex": regex, "seed": seed })));
        let blocks = message["content"].as_array().expect("blocks");
        assert_eq!((blocks.len(), &blocks[0]["type"], &blocks[1]["type"]), (2, &json!("thinking"), &json!("text")));
        assert!(blocks[0]["thinking"].as_str().is_some_and(|text| text.len() >= 3) && blocks[0]["signature"] == "");
        assert!(blocks[1]["text"] == "yes" || blocks[1]["text"] == "no", "{message}");
    }
}

#[test]
fn structured_outputs_match_their_format() {
    let schema = json!({ "type": "object", "properties": { "n": { "type": "integer", "minimum": 1, "maximum": 9 } },
        "required": ["n"], "additionalProperties": false });
    let format = json!({ "type": "json_schema", "schema": schema });
    for more in [json!({ "output_config": { "format": format } }), json!({ "output_format": format })] {
        let text = text_of(shared(), &body(more));
        let found: Value = serde_json::from_str(&text).expect("JSON");
        assert!((1..=9).contains(&found["n"].as_u64().unwrap_or(0)), "{text}");
    }
}

#[test]
fn side_requests_and_billing_headers_keep_the_conversation_cached() {
    let system = |header: &str, text: &str| {
        let line = format!("x-anthropic-billing-header: cc_version=2.1.{header}; cc_entrypoint=cli; cch={header};");
        json!([{ "type": "text", "text": line }, { "type": "text", "text": text }])
    };
    // Without drafts, the rows of an answer that are computed do not depend on measured times.
    let main = "you help with restaurants, hotels and trains, and you answer in one short sentence ".repeat(2);
    let cached = |has_sides: bool| {
        let server = TestServer::open(|_, _| {});
        let first = json!([{ "role": "user", "content": "i want to find a restaurant in san jose" }]);
        let ask = |header: &str, messages: &Value, more: Value| {
            let body = json!({ "system": system(header, &main), "messages": messages, "max_tokens": 20, "seed": 1,
                "speculative.n_max": 0,
                "metadata": { "user_id": header } });
            server.post("/v1/messages?beta=true", &with(body, more)).success()
        };
        let answer = ask("a1b2c", &first, json!({}));
        assert_eq!(answer["usage"]["cache_read_input_tokens"], 0);
        if has_sides {
            // Side requests as Anthropic clients send them: a quota check, a request for a title, and a token count.
            let quota = json!({ "messages": [{ "role": "user", "content": "quota" }], "max_tokens": 1 });
            server.post("/v1/messages?beta=true", &quota).success();
            let title = json!({ "system": system("11111", "Write a title of three words."), "messages": first,
                "max_tokens": 20, "output_config": { "effort": "low" }, "thinking": { "type": "disabled" },
                "context_management": { "edits": [{ "type": "clear_thinking_20251015", "keep": "all" }] } });
            server.post("/v1/messages?beta=true", &title).success();
            server.post(COUNT, &json!({ "system": system("22222", &main), "messages": first })).success();
        }
        let text = &answer["content"][0]["text"];
        let messages = json!([first[0], { "role": "assistant", "content": [{ "type": "text", "text": text,
            "cache_control": { "type": "ephemeral" } }] }, { "role": "user", "content": "in the west" }]);
        let next = ask("d3e4f", &messages, json!({}));
        let prompt = server.post(COUNT, &json!({ "system": system("0", &main), "messages": first })).success();
        server.shut_down();
        (next["usage"]["cache_read_input_tokens"].as_u64(), prompt["input_tokens"].as_u64())
    };
    let (without, prompt) = cached(false);
    assert_eq!(cached(true), (without, prompt));
    // All full pages of the first turn are found in the cache.
    assert!(without.zip(prompt).is_some_and(|(cached, prompt)| cached + 16 > prompt), "{without:?} of {prompt:?}");
}
