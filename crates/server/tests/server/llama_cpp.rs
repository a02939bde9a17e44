//! llama.cpp's own paths, and what the tests of its server expect, one by one: each is held here, or it is not, for a
//! reason that is written beside it. Expectations of texts of a model that is not ours are those of the demo pair.

use std::sync::LazyLock;

use serde_json::{Value, json};

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

const COMPLETIONS: [(&str, Met); 26] = [
    (
        "completion: whole, without tokens",
        Held(|| {
            let answer = completion(json!({}));
            is_whole(&answer);
            assert_eq!(answer["tokens"], json!([]));
        }),
    ),
    (
        "completion: whole, with tokens",
        Held(|| {
            let answer = completion(json!({ "return_tokens": true }));
            let tokens = answer["tokens"].as_array().expect("a list");
            assert!(tokens.len() == 8 && tokens.iter().all(Value::is_u64));
        }),
    ),
    (
        "completion: streamed, a token an event, and the end",
        Held(|| {
            let all = events("/completion", with_prompt(json!({})));
            let (last, written) = all.split_last().expect("some");
            is_whole(last);
            assert_eq!(last["generation_settings"]["stream"], true);
            for event in written {
                assert_eq!(event["stop"], false);
                assert!(event["tokens"].as_array().is_some_and(|tokens| tokens.len() == 1), "{event}");
            }
        }),
    ),
    (
        "completion: streamed as whole",
        Held(|| {
            let body = json!({ "seed": 3, "temperature": 1.0 });
            let all = events("/completion", with_prompt(body.clone()));
            let joined: String = all.iter().map(text).collect();
            assert_eq!(joined, text(&completion(body)));
        }),
    ),
    (
        "completion: one seed, one text",
        Held(|| {
            let body = json!({ "seed": 42, "temperature": 1.0, "cache_prompt": false });
            assert_eq!(text(&completion(body.clone())), text(&completion(body)));
        }),
    ),
    (
        "completion: another seed, another text",
        Held(|| {
            let of = |seed: u64| completion(json!({ "seed": seed, "temperature": 1.5, "n_predict": 24 }));
            assert_ne!(text(&of(1)), text(&of(2)));
        }),
    ),
    (
        "completion: whoever else is asked, one text",
        Held(|| {
            let one = || text(&completion(json!({ "seed": 42, "temperature": 1.0 }))).to_string();
            let alone = one();
            std::thread::scope(|scope| {
                let all: Vec<_> = (0..4).map(|_| scope.spawn(one)).collect();
                all.into_iter().for_each(|other| assert_eq!(other.join().expect("an answer"), alone));
            });
        }),
    ),
    (
        "completion: too long a prompt",
        Held(|| refused("/completion", json!({ "prompt": PROMPT.repeat(90) }), "prompt")),
    ),
    ("completion: of tokens", Held(|| assert!(!text(&completion(json!({ "prompt": tokens_of(PROMPT) }))).is_empty()))),
    (
        "completion: of lists of tokens",
        Held(|| {
            let tokens = tokens_of(PROMPT);
            let both = completion(json!({ "prompt": [tokens, tokens], "temperature": 0 }));
            assert_eq!(both.as_array().map(Vec::len), Some(2));
            assert_eq!(both[0]["content"], both[1]["content"]);
        }),
    ),
    (
        "completion: of tokens and of texts",
        Held(|| {
            let both = completion(json!({ "prompt": [tokens_of(PROMPT), PROMPT], "temperature": 0 }));
            assert_eq!(both[0]["content"], both[1]["content"]);
        }),
    ),
    (
        "completion: of tokens and texts in one prompt",
        Held(|| {
            let answer = completion(json!({ "prompt": [1, 2, 3, PROMPT, 7, 8, PROMPT] }));
            assert!(!text(&answer).is_empty());
            // One that begins with a text is that text, whatever it is cut into.
            let tokens = |prompt: Value| completion(json!({ "prompt": prompt }))["tokens_evaluated"].take();
            assert_eq!(tokens(json!([PROMPT, 7])).as_u64(), tokens(json!(PROMPT)).as_u64().map(|count| count + 1));
        }),
    ),
    (
        "completion: many at a time",
        Held(|| {
            std::thread::scope(|scope| {
                let ask = || completion(json!({ "n_predict": 32 }));
                let all: Vec<_> = (0..6).map(|_| scope.spawn(ask)).collect();
                all.into_iter().for_each(|one| assert!(!text(&one.join().expect("an answer")).is_empty()));
            });
        }),
    ),
    (
        "completion: all fields of the answer",
        Held(|| assert!(completion(json!({ "response_fields": [] }))["generation_settings"].is_object())),
    ),
    (
        "completion: some fields of the answer",
        Held(|| {
            let fields = ["content", "generation_settings/n_predict", "prompt"];
            let answer = completion(json!({ "response_fields": fields }));
            assert_eq!(answer.as_object().map(serde_json::Map::len), Some(3));
            assert_eq!(answer["generation_settings/n_predict"], 8);
            assert!(answer["prompt"].as_str().is_some_and(|prompt| prompt.ends_with(PROMPT)));
        }),
    ),
    (
        "completion: probabilities",
        Held(|| {
            let answer = completion(json!({ "n_probs": 10, "n_predict": 5, "temperature": 0, "ignore_eos": true }));
            probabilities(&answer["completion_probabilities"], 5);
        }),
    ),
    (
        "completion: probabilities, streamed",
        Held(|| {
            let body = json!({ "n_probs": 10, "n_predict": 5, "temperature": 0, "ignore_eos": true });
            let all = events("/completion", with_prompt(body));
            let (_, written) = all.split_last().expect("some");
            written.iter().for_each(|event| probabilities(&event["completion_probabilities"], 1));
        }),
    ),
    (
        "completion: n_probs 0 asks for none",
        Held(|| assert!(completion(json!({ "n_probs": 0 })).get("completion_probabilities").is_none())),
    ),
    (
        "completion: probabilities behind the samplers",
        Not(
            || refused("/completion", with_prompt(json!({ "post_sampling_probs": true })), "post_sampling_probs"),
            "probabilities are those of the model's own law, which drafts are measured by, too",
        ),
    ),
    (
        "completion: a bias of tokens",
        Held(|| {
            let first = completion(json!({ "return_tokens": true, "temperature": 0 }))["tokens"][0].take();
            let other = json!({ "return_tokens": true, "temperature": 0, "logit_bias": [[first, false]] });
            assert_ne!(completion(other)["tokens"][0], first);
        }),
    ),
    (
        "completion: a bias of texts",
        Not(
            || refused("/completion", with_prompt(json!({ "logit_bias": [["little", -0.5]] })), "logit_bias"),
            "a text is several tokens, and a bias of each is another law than one of the text",
        ),
    ),
    (
        "completion: a stop string is told",
        Held(|| {
            let body = json!({ "n_predict": 64, "temperature": 0 });
            let whole = text(&completion(body)).to_string();
            let word = whole.split_whitespace().nth(2).expect("some words").to_string();
            let answer = completion(json!({ "n_predict": 64, "temperature": 0, "stop": [word] }));
            assert_eq!((&answer["stop_type"], &answer["stopping_word"]), (&json!("word"), &json!(word)));
        }),
    ),
    (
        "completion: several answers to a prompt",
        Held(|| assert_eq!(completion(json!({ "n_cmpl": 3 })).as_array().map(Vec::len), Some(3))),
    ),
    (
        "completion: how much of a prompt is read",
        Held(|| {
            let prompt = format!("{PROMPT} bird and {}", "a dog and a cat and ".repeat(20));
            let all = events("/completion", with_prompt(json!({ "prompt": prompt, "return_progress": true })));
            let progress = all.iter().filter_map(|event| event.get("prompt_progress")).last().expect("some");
            assert_eq!(progress["processed"], progress["total"]);
        }),
    ),
    (
        "completion: a time limit",
        Not(
            || refused("/completion", with_prompt(json!({ "t_max_predict_ms": 5 })), "t_max_predict_ms"),
            "a text that depends on the clock cannot be repeated; --timeout cuts what takes too long",
        ),
    ),
    (
        "completion: a context that shifts",
        Not(
            || {
                let answer = completion(json!({ "n_predict": 600, "ignore_eos": true }));
                assert_eq!((&answer["stop_type"], &answer["truncated"]), (&json!("limit"), &json!(true)));
            },
            "a text ends where the context is full: what would follow is no text of the model",
        ),
    ),
];

const CHATS: [(&str, Met); 35] = [
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
                assert!(
                    said(json!({}))["system_fingerprint"].as_str().is_some_and(|print| print.starts_with("foretoken"))
                )
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
            || {
                drop(said(
                    json!({ "messages": [{ "role": "user", "content": "a" }, { "role": "assistant", "content": "b" }] }),
                ))
            },
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
            let progress = all.iter().filter_map(|event| event.get("prompt_progress")).last().expect("some");
            assert_eq!(progress["processed"], progress["total"]);
            assert!(progress["cache"].is_u64() && progress["time_ms"].is_number());
        }),
    ),
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
    let all = SERVER.iter().chain(&COMPLETIONS).chain(&CHATS).chain(&OTHERS);
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
    house.end();
}

#[test]
fn content_that_is_null_is_an_empty_text() {
    let of = |content: Value| {
        let messages = json!([{ "role": "user", "content": "a" }, { "role": "assistant", "content": content }, { "role": "user", "content": "b" }]);
        shared().post("/apply-template", &json!({ "messages": messages })).good()
    };
    assert_eq!(of(Value::Null), of(json!("")));
}
