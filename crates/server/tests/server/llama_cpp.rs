//! llama.cpp's own paths, and what the tests of its server expect, one by one: each is held here, or it is not, for a
//! reason that is written beside it. Expectations of texts of a model that is not ours are those of the demo pair.

mod chats;
mod completions;

use std::sync::LazyLock;

use serde_json::{Value, json};

use crate::bodies::with;
use crate::house::{House, shared};

/// Whether an expectation is met.
enum Met {
    /// It is.
    Held(fn()),
    /// It is not: this is checked to be so, and why.
    Not(fn(), &'static str),
}

use Met::{Held, Not};

const PROMPT: &str = "once upon a time, there was a little";

fn completion(body: Value) -> Value {
    shared().post("/completion", &with_prompt(body)).good()
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

fn said(body: Value) -> Value {
    shared().post("/chat/completions", &chat(body)).good()
}

fn refused(path: &str, body: Value, field: &str) {
    let (found, message) = shared().post(path, &body).error(400);
    assert_eq!(found.as_deref(), Some(field), "{message}");
}

fn text(answer: &Value) -> &str {
    answer["content"].as_str().expect("a text")
}

fn tokens_of(text: &str) -> Value {
    shared().post("/tokenize", &json!({ "content": text, "add_special": true })).good()["tokens"].take()
}

/// One whose first model has several names, one of which is any, and no page.
fn named() -> &'static House {
    static HOUSE: LazyLock<House> = LazyLock::new(|| {
        House::open(|_, server| {
            server.aliases = ["tiny", "fim", "*"].map(str::to_string).to_vec();
            server.page = false;
        })
    });
    &HOUSE
}

fn keyed() -> &'static House {
    static HOUSE: LazyLock<House> =
        LazyLock::new(|| House::open(|_, server| server.api_keys = vec!["sk-this-is-it".to_string()]));
    &HOUSE
}

fn is_whole(answer: &Value) {
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
    said(json!({ "response_format": format, "max_tokens": 24, "temperature": 0 }))["choices"][0]["message"]["content"]
        .take()
}

fn bad_messages(messages: Value) {
    let body = json!({ "messages": messages });
    let answer = shared().post("/chat/completions", &body);
    assert_eq!(answer.status(), 400);
    assert!(answer.json()["error"].is_object());
}

fn status(house: &House, key: Option<&str>, path: &str) -> u16 {
    let mut client = house.client();
    let bearer = key.map(|key| format!("Bearer {key}"));
    let headers: Vec<(&str, &str)> = bearer.iter().map(|value| ("Authorization", value.as_str())).collect();
    client.send("GET", path, &headers, b"").expect("it is open");
    client.receive().expect("an answer").status()
}

const SERVER: [(&str, Met); 9] = [
    ("health", Held(|| drop(shared().get("/health").good()))),
    (
        "props: total_slots, model_path, defaults",
        Held(|| {
            let found = shared().get("/props").good();
            assert_eq!((&found["total_slots"], &found["model_path"]), (&json!(8), &json!("demo-target")));
            let defaults = &found["default_generation_settings"];
            assert_eq!((&defaults["n_ctx"], &defaults["params"]["seed"]), (&json!(512), &json!(-1)));
            assert!(found["chat_template"].as_str().is_some_and(|template| !template.is_empty()));
        }),
    ),
    ("models: one", Held(|| assert_eq!(shared().get("/models").good()["data"].as_array().map(Vec::len), Some(1)))),
    (
        "models: all aliases",
        Held(|| {
            let model = named().get("/models").good()["data"][0].take();
            assert_eq!((&model["id"], &model["aliases"]), (&json!("tiny"), &json!(["fim", "*"])));
        }),
    ),
    (
        "models: tags",
        Not(
            || assert!(named().get("/models").good()["data"][0]["tags"].is_null()),
            "a model has names, and no tags beside them",
        ),
    ),
    (
        "slots: one a text, with n_ctx and without parameters",
        Held(|| {
            let found = shared().get("/slots").good();
            assert_eq!(found.as_array().map(Vec::len), Some(8));
            assert_eq!((&found[0]["n_ctx"], &found[0]["params"]), (&json!(512), &Value::Null));
        }),
    ),
    (
        "slots: 501 where they are switched off",
        Not(|| drop(shared().get("/slots").good()), "they tell nothing that /health does not"),
    ),
    ("page: there", Held(|| assert!(shared().get("/").text().contains("<!doctype html>")))),
    ("page: not there where it is not served", Held(|| assert_eq!(named().get("/").status(), 404))),
];

fn bad_format(format: Value) {
    let answer = shared().post("/chat/completions", &chat(json!({ "response_format": format })));
    assert_eq!(answer.status(), 400, "{}", answer.text());
}

const OTHERS: [(&str, Met); 14] = [
    (
        "tokens: there and back",
        Held(|| {
            let tokens = shared().post("/tokenize", &json!({ "content": PROMPT })).good()["tokens"].take();
            let back = shared().post("/detokenize", &json!({ "tokens": tokens })).good();
            assert_eq!(back["content"].as_str().map(str::trim_start), Some(PROMPT));
        }),
    ),
    (
        "tokens: with their texts",
        Held(|| {
            let found = shared().post("/tokenize", &json!({ "content": PROMPT, "with_pieces": true })).good();
            assert!(found["tokens"][0]["id"].is_u64() && found["tokens"][0]["piece"].is_string());
        }),
    ),
    (
        "tokens: what the tokenizer is",
        Held(|| {
            let found = shared().get("/tokenizer_info").good();
            assert!(found["eos_token"].is_string() && found["chat_template"].is_string(), "{found}");
        }),
    ),
    (
        "infill: refused for a model without marks",
        Held(|| refused("/infill", json!({ "input_prefix": "a", "input_suffix": "b" }), "path")),
    ),
    ("key: the right one", Held(|| assert_eq!(status(keyed(), Some("sk-this-is-it"), "/v1/models"), 200))),
    ("key: none", Held(|| assert_eq!(status(keyed(), None, "/props"), 401))),
    ("key: a wrong one", Held(|| assert_eq!(status(keyed(), Some("sk-other"), "/slots"), 401))),
    ("key: not for /health", Held(|| assert_eq!(status(keyed(), None, "/health"), 200))),
    (
        "key: not for /models",
        Not(|| assert_eq!(status(keyed(), None, "/models"), 401), "who has no key is told nothing of models"),
    ),
    ("embeddings", Not(|| refused("/v1/embeddings", json!({ "input": "a" }), "path"), "models of text write text")),
    ("rerank", Not(|| refused("/v1/rerank", json!({ "query": "a" }), "path"), "models of text write text")),
    (
        "adapters",
        Not(|| refused("/completion", with_prompt(json!({ "lora": [{ "id": 0 }] })), "lora"), "there are none"),
    ),
    (
        "slots: saved and restored",
        Not(
            || assert_eq!(shared().post("/slots/0?action=save", &json!({})).status(), 404),
            "prompts that begin alike share what was computed, and --prompt-cache keeps it",
        ),
    ),
    (
        "drafts: the same text with and without",
        Held(|| {
            let of = |most: usize| completion(json!({ "temperature": 0, "n_predict": 32, "speculative.n_max": most }));
            assert_eq!(text(&of(0)), text(&of(8)));
        }),
    ),
];

#[test]
fn what_its_tests_expect_is_held_or_is_not_for_a_reason() {
    let all = SERVER.iter().chain(&completions::COMPLETIONS).chain(&chats::CHATS).chain(&OTHERS);
    let (mut held, mut not, mut wrong) = (0, 0, Vec::new());
    for (what, met) in all {
        let check = match met {
            Held(check) => {
                held += 1;
                check
            }
            Not(check, why) => {
                assert!(!why.is_empty());
                not += 1;
                check
            }
        };
        if std::panic::catch_unwind(check).is_err() {
            wrong.push(what);
        }
    }
    assert_eq!(wrong, [&""; 0]);
    println!("{held} of {} are held", held + not);
    assert_eq!((held, not), (69, 15));
}

#[test]
fn fields_of_two_doors_are_named_both() {
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
fn tools_are_left_out_with_a_warning_where_no_template_knows_them() {
    let tool = |strict: bool| json!([{ "type": "function", "function": { "name": "f", "strict": strict } }]);
    let house = House::open(|settings, _| settings.model.chat_template = Some("{{ messages[0].content }}".into()));
    let ask = |tools: Value, stream: bool| {
        let body = chat(json!({ "tools": tools, "stream": stream }));
        house.post("/v1/chat/completions", &body)
    };
    let warning = "tools: left out, the model's chat template says nothing of tools";
    assert_eq!(ask(tool(false), false).good()["warnings"], json!([warning]));
    let (field, message) = ask(tool(true), false).error(400);
    assert_eq!(field.as_deref(), Some("tools"), "{message}");
    let mut body = chat(json!({ "tools": tool(false), "tool_choice": "required" }));
    house.post("/v1/chat/completions", &body).error(400);
    let tools = json!([{ "name": "f", "input_schema": { "type": "object" } }]);
    let of_messages = json!({ "messages": [{ "role": "user", "content": "a" }], "max_tokens": 4, "tools": tools });
    assert_eq!(house.post("/v1/messages", &of_messages).good()["warnings"], json!([warning]));
    body["tool_choice"] = json!("auto");
    body["stream_options"] = json!({ "include_usage": true });
    body["stream"] = json!(true);
    let all = house.events("/v1/chat/completions", &body).all().expect("it is told to its end");
    assert_eq!(all.last().expect("some")["warnings"], json!([warning]));
    // In streams of other forms the last object has them.
    let function = json!({ "name": "f", "parameters": { "type": "object" } });
    let turns = json!([{ "role": "user", "content": "a" }]);
    let of_ollama = json!({ "messages": turns, "tools": [{ "type": "function", "function": function }],
        "options": { "num_predict": 4 } });
    let tool = with(json!({ "type": "function" }), function);
    let of_responses = json!({ "input": "a", "max_output_tokens": 4, "tools": [tool] });
    for (path, body) in [("/v1/messages", of_messages), ("/v1/responses", of_responses), ("/api/chat", of_ollama)] {
        let told = house.post(path, &with(body, json!({ "stream": true })));
        let lines: Vec<&str> = told.text().lines().filter(|line| line.contains('{')).collect();
        let objects = lines.iter().map(|line| line.strip_prefix("data: ").unwrap_or(line));
        let objects: Vec<Value> = objects.map(|line| serde_json::from_str(line).expect("an object")).collect();
        let (last, before) = objects.split_last().expect("some");
        assert_eq!(last["warnings"], json!([warning]), "{path}");
        assert!(!before.is_empty() && before.iter().all(|object| object.get("warnings").is_none()), "{path}");
    }
    house.end();
}

#[test]
fn content_that_is_null_is_an_empty_text() {
    let of = |content: Value| {
        let user = |text: &str| json!({ "role": "user", "content": text });
        let messages = json!([user("a"), { "role": "assistant", "content": content }, user("b")]);
        shared().post("/apply-template", &json!({ "messages": messages })).good()
    };
    assert_eq!(of(Value::Null), of(json!("")));
}
