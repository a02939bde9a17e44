//! llama.cpp's own paths, and the expectations of the tests of its server, one by one. Each is met here, or the
//! difference is checked and its reason given. Those tests compare texts of their model; here texts of the demo pair
//! are compared.

mod chats;
mod completions;

use std::sync::LazyLock;

use serde_json::{Value, json};

use crate::bodies::with;
use crate::test_server::{TestServer, shared};

/// An expectation of llama.cpp's tests.
enum Expectation {
    /// It is met, as this checks.
    Met(fn()),
    /// It is not met: a check of the difference, and the reason.
    Differs(fn(), &'static str),
}

use Expectation::{Differs, Met};

const PROMPT: &str = "once upon a time, there was a little";

fn completion(body: Value) -> Value {
    shared().post("/completion", &with_prompt(body)).success()
}

fn with_prompt(mut body: Value) -> Value {
    if body.get("prompt").is_none() {
        body["prompt"] = json!(PROMPT);
    }
    if body.get("n_predict").is_none() {
        body["n_predict"] = json!(8);
    }
    body
}

/// The events of a stream; `/completion` has no `[DONE]`.
fn events(path: &str, mut body: Value) -> Vec<Value> {
    body["stream"] = json!(true);
    let answer = shared().post(path, &body);
    assert!(answer.head.is_event_stream(), "{}", answer.text());
    let lines = answer.text().lines().filter_map(|line| line.strip_prefix("data: "));
    let events = lines.filter(|line| *line != "[DONE]");
    events.map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn messages() -> Value {
    json!([{ "role": "system", "content": "Book" }, { "role": "user", "content": "What is the best book" }])
}

fn chat(mut body: Value) -> Value {
    if body.get("messages").is_none() {
        body["messages"] = messages();
    }
    if body.get("max_tokens").is_none() {
        body["max_tokens"] = json!(8);
    }
    body
}

fn chat_completion(body: Value) -> Value {
    shared().post("/chat/completions", &chat(body)).success()
}

fn refused(path: &str, body: Value, field: &str) {
    let (found, message) = shared().post(path, &body).error(400);
    assert_eq!(found.as_deref(), Some(field), "{message}");
}

fn text(answer: &Value) -> &str {
    answer["content"].as_str().expect("a text")
}

fn tokens_of(text: &str) -> Value {
    shared().post("/tokenize", &json!({ "content": text, "add_special": true })).success()["tokens"].take()
}

/// A server without a page, whose model has several names, one of which is `*`.
fn server_with_aliases() -> &'static TestServer {
    static SERVER: LazyLock<TestServer> = LazyLock::new(|| {
        TestServer::open(|_, server_settings| {
            server_settings.aliases = ["tiny", "fim", "*"].map(str::to_string).to_vec();
            server_settings.page = false;
        })
    });
    &SERVER
}

fn server_with_key() -> &'static TestServer {
    static SERVER: LazyLock<TestServer> = LazyLock::new(|| {
        TestServer::open(|_, server_settings| server_settings.api_keys = vec!["sk-this-is-it".to_string()])
    });
    &SERVER
}

fn is_complete(answer: &Value) {
    assert_eq!(answer["timings"]["predicted_n"], 8, "{answer}");
    assert_eq!((&answer["truncated"], &answer["stop"]), (&json!(false), &json!(true)));
    assert!(answer["has_new_line"].is_boolean() && answer["timings"]["prompt_n"].is_number());
    assert_eq!((&answer["stop_type"], &answer["stopping_word"]), (&json!("limit"), &json!("")));
    assert_eq!(answer["generation_settings"]["n_predict"], 8);
}

fn probabilities(all: &Value, count: usize) {
    let all = all.as_array().expect("a list");
    assert_eq!(all.len(), count);
    for token in all {
        assert!(token["id"].is_number() && token["token"].is_string() && token["bytes"].is_array(), "{token}");
        assert!(token["logprob"].as_f64().expect("a number") <= 0.0);
        assert_eq!(token["top_logprobs"].as_array().map(Vec::len), Some(10));
    }
}

fn response_format(format: Value) -> Value {
    let body = json!({ "response_format": format, "max_tokens": 24, "temperature": 0 });
    chat_completion(body)["choices"][0]["message"]["content"].take()
}

fn bad_messages(messages: Value) {
    let body = json!({ "messages": messages });
    let answer = shared().post("/chat/completions", &body);
    assert_eq!(answer.status(), 400);
    assert!(answer.json()["error"].is_object());
}

fn status(server: &TestServer, key: Option<&str>, path: &str) -> u16 {
    let mut client = server.client();
    let bearer = key.map(|key| format!("Bearer {key}"));
    let headers: Vec<(&str, &str)> = bearer.iter().map(|value| ("Authorization", value.as_str())).collect();
    client.send("GET", path, &headers, b"").expect("it is open");
    client.receive().expect("an answer").status()
}

const SERVER_PATHS: [(&str, Expectation); 9] = [
    ("health", Met(|| drop(shared().get("/health").success()))),
    (
        "props: total_slots, model_path, defaults",
        Met(|| {
            let found = shared().get("/props").success();
            assert_eq!((&found["total_slots"], &found["model_path"]), (&json!(8), &json!("demo-target")));
            let defaults = &found["default_generation_settings"];
            assert_eq!((&defaults["n_ctx"], &defaults["params"]["seed"]), (&json!(512), &json!(-1)));
            assert!(found["chat_template"].as_str().is_some_and(|template| !template.is_empty()));
        }),
    ),
    ("models: one", Met(|| assert_eq!(shared().get("/models").success()["data"].as_array().map(Vec::len), Some(1)))),
    (
        "models: all aliases",
        Met(|| {
            let model = server_with_aliases().get("/models").success()["data"][0].take();
            assert_eq!((&model["id"], &model["aliases"]), (&json!("tiny"), &json!(["fim", "*"])));
        }),
    ),
    (
        "models: tags",
        Differs(
            || assert!(server_with_aliases().get("/models").success()["data"][0]["tags"].is_null()),
            "a model has names, and no tags beside them",
        ),
    ),
    (
        "slots: one per sequence, with n_ctx and without parameters",
        Met(|| {
            let found = shared().get("/slots").success();
            assert_eq!(found.as_array().map(Vec::len), Some(8));
            assert_eq!((&found[0]["n_ctx"], &found[0]["params"]), (&json!(512), &Value::Null));
        }),
    ),
    (
        "slots: 501 if they are switched off",
        Differs(|| drop(shared().get("/slots").success()), "they show nothing that /health does not"),
    ),
    ("page: served", Met(|| assert!(shared().get("/").text().contains("<!doctype html>")))),
    ("page: 404 if it is switched off", Met(|| assert_eq!(server_with_aliases().get("/").status(), 404))),
];

fn bad_format(format: Value) {
    let answer = shared().post("/chat/completions", &chat(json!({ "response_format": format })));
    assert_eq!(answer.status(), 400, "{}", answer.text());
}

const OTHER_PATHS: [(&str, Expectation); 14] = [
    (
        "tokens: round trip",
        Met(|| {
            let tokens = shared().post("/tokenize", &json!({ "content": PROMPT })).success()["tokens"].take();
            let back = shared().post("/detokenize", &json!({ "tokens": tokens })).success();
            assert_eq!(back["content"].as_str().map(str::trim_start), Some(PROMPT));
        }),
    ),
    (
        "tokens: with their pieces",
        Met(|| {
            let found = shared().post("/tokenize", &json!({ "content": PROMPT, "with_pieces": true })).success();
            assert!(found["tokens"][0]["id"].is_u64() && found["tokens"][0]["piece"].is_string());
        }),
    ),
    (
        "tokens: properties of the tokenizer",
        Met(|| {
            let found = shared().get("/tokenizer_info").success();
            assert!(found["eos_token"].is_string() && found["chat_template"].is_string(), "{found}");
        }),
    ),
    (
        "infill: refused for a model without FIM tokens",
        Met(|| refused("/infill", json!({ "input_prefix": "a", "input_suffix": "b" }), "path")),
    ),
    ("key: the right one", Met(|| assert_eq!(status(server_with_key(), Some("sk-this-is-it"), "/v1/models"), 200))),
    ("key: none", Met(|| assert_eq!(status(server_with_key(), None, "/props"), 401))),
    ("key: a wrong one", Met(|| assert_eq!(status(server_with_key(), Some("sk-other"), "/slots"), 401))),
    ("key: not for /health", Met(|| assert_eq!(status(server_with_key(), None, "/health"), 200))),
    (
        "key: not for /models",
        Differs(
            || assert_eq!(status(server_with_key(), None, "/models"), 401),
            "without a key nothing is returned about models",
        ),
    ),
    (
        "embeddings",
        Differs(|| refused("/v1/embeddings", json!({ "input": "a" }), "path"), "models here only generate text"),
    ),
    ("rerank", Differs(|| refused("/v1/rerank", json!({ "query": "a" }), "path"), "models here only generate text")),
    (
        "adapters",
        Differs(
            || refused("/completion", with_prompt(json!({ "lora": [{ "id": 0 }] })), "lora"),
            "LoRA adapters are not supported",
        ),
    ),
    (
        "slots: saved and restored",
        Differs(
            || assert_eq!(shared().post("/slots/0?action=save", &json!({})).status(), 404),
            "prompts with a common prefix share its KV cache, and --prompt-cache stores it",
        ),
    ),
    (
        "drafts: the same text with and without",
        Met(|| {
            let with_draft_max =
                |most: usize| completion(json!({ "temperature": 0, "n_predict": 32, "speculative.n_max": most }));
            assert_eq!(text(&with_draft_max(0)), text(&with_draft_max(8)));
        }),
    ),
];

#[test]
fn expectations_of_its_tests_are_met_or_differ_for_a_reason() {
    let all = SERVER_PATHS.iter().chain(&completions::COMPLETIONS).chain(&chats::CHATS).chain(&OTHER_PATHS);
    let (mut met_count, mut differs_count, mut failed) = (0, 0, Vec::new());
    for (what, expectation) in all {
        let check = match expectation {
            Met(check) => {
                met_count += 1;
                check
            }
            Differs(check, why) => {
                assert!(!why.is_empty());
                differs_count += 1;
                check
            }
        };
        if std::panic::catch_unwind(check).is_err() {
            failed.push(what);
        }
    }
    assert_eq!(failed, [&""; 0]);
    println!("{met_count} of {} are met", met_count + differs_count);
    assert_eq!((met_count, differs_count), (69, 15));
}

#[test]
fn fields_of_two_apis_are_both_named() {
    for (fields, expected) in [
        (json!({ "n_predict": 4, "max_tokens": 5 }), "n_predict: expected it or max_tokens, found both"),
        (json!({ "n_cmpl": 2, "n": 3 }), "n_cmpl: expected it or n, found both"),
        (json!({ "n_probs": 2, "logprobs": 3 }), "n_probs: expected it or logprobs, found both"),
    ] {
        let mut body = fields;
        body["prompt"] = json!("a");
        let (_, message) = shared().post("/completion", &body).error(400);
        assert_eq!(message, expected);
    }
}

#[test]
fn tools_are_left_out_with_a_warning_if_the_template_does_not_support_them() {
    let tool = |strict: bool| json!([{ "type": "function", "function": { "name": "f", "strict": strict } }]);
    let server =
        TestServer::open(|settings, _| settings.model.chat_template = Some("{{ messages[0].content }}".into()));
    let ask = |tools: Value, stream: bool| {
        let body = chat(json!({ "tools": tools, "stream": stream }));
        server.post("/v1/chat/completions", &body)
    };
    let warning = "tools: left out, the model's chat template does not support tools";
    assert_eq!(ask(tool(false), false).success()["warnings"], json!([warning]));
    let (field, message) = ask(tool(true), false).error(400);
    assert_eq!(field.as_deref(), Some("tools"), "{message}");
    let mut body = chat(json!({ "tools": tool(false), "tool_choice": "required" }));
    server.post("/v1/chat/completions", &body).error(400);
    let tools = json!([{ "name": "f", "input_schema": { "type": "object" } }]);
    let of_messages = json!({ "messages": [{ "role": "user", "content": "a" }], "max_tokens": 4, "tools": tools });
    assert_eq!(server.post("/v1/messages", &of_messages).success()["warnings"], json!([warning]));
    body["tool_choice"] = json!("auto");
    body["stream_options"] = json!({ "include_usage": true });
    body["stream"] = json!(true);
    let all = server.events("/v1/chat/completions", &body).all().expect("a complete stream");
    assert_eq!(all.last().expect("some")["warnings"], json!([warning]));
    // In streams of other formats the last object has them.
    let function = json!({ "name": "f", "parameters": { "type": "object" } });
    let turns = json!([{ "role": "user", "content": "a" }]);
    let of_ollama = json!({ "messages": turns, "tools": [{ "type": "function", "function": function }],
        "options": { "num_predict": 4 } });
    let tool = with(json!({ "type": "function" }), function);
    let of_responses = json!({ "input": "a", "max_output_tokens": 4, "tools": [tool] });
    for (path, body) in [("/v1/messages", of_messages), ("/v1/responses", of_responses), ("/api/chat", of_ollama)] {
        let response = server.post(path, &with(body, json!({ "stream": true })));
        let lines: Vec<&str> = response.text().lines().filter(|line| line.contains('{')).collect();
        let objects = lines.iter().map(|line| line.strip_prefix("data: ").unwrap_or(line));
        let objects: Vec<Value> = objects.map(|line| serde_json::from_str(line).expect("an object")).collect();
        let (last, before) = objects.split_last().expect("some");
        assert_eq!(last["warnings"], json!([warning]), "{path}");
        assert!(!before.is_empty() && before.iter().all(|object| object.get("warnings").is_none()), "{path}");
    }
    server.shut_down();
}

#[test]
fn null_content_is_an_empty_text() {
    let with_content = |content: Value| {
        let user = |text: &str| json!({ "role": "user", "content": text });
        let messages = json!([user("a"), { "role": "assistant", "content": content }, user("b")]);
        shared().post("/apply-template", &json!({ "messages": messages })).success()
    };
    assert_eq!(with_content(Value::Null), with_content(json!("")));
}
