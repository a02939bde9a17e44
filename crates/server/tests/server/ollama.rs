//! Ollama's API: the same texts as from OpenAI's, streamed and not; its names of fields.

mod errors;

use serde_json::{Value, json};

use crate::bodies::{PROMPT, seeded, texts, with};
use crate::client::Response;
use crate::test_server::{TestServer, drafting, shared};
use crate::tools::TEMPLATE;

const CHAT: &str = "/api/chat";
const GENERATE: &str = "/api/generate";
const QUESTION: &str = "i want to find a restaurant";

fn options(more: Value) -> Value {
    with(json!({ "num_predict": 40, "temperature": 0.9, "seed": 7 }), more)
}

fn chat(more: Value) -> Value {
    let messages = json!([{ "role": "user", "content": QUESTION }]);
    with(json!({ "model": "demo-target", "messages": messages, "options": options(json!({})) }), more)
}

fn generate(more: Value) -> Value {
    with(json!({ "model": "demo-target", "prompt": QUESTION, "options": options(json!({})) }), more)
}

/// The message of an error, which must be the only field.
#[track_caller]
fn error(response: &Response, status: u16) -> String {
    assert_eq!(response.status(), status, "{}", response.text());
    let object = response.json();
    assert_eq!(object.as_object().map(serde_json::Map::len), Some(1), "{object}");
    object["error"].as_str().expect("a text").to_string()
}

/// The lines of a stream.
#[track_caller]
fn lines(server: &TestServer, path: &str, body: &Value) -> Vec<Value> {
    let answer = server.post(path, body);
    assert_eq!(answer.head.header("content-type"), Some("application/x-ndjson"), "{}", answer.text());
    answer.text().lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// Adds the fields of a line to an object: strings and lists are appended, other values replace.
fn add(whole: &mut Value, part: &Value) {
    for (name, value) in part.as_object().expect("an object") {
        let field = &mut whole[name];
        match (value, field.clone()) {
            (Value::String(more), Value::String(sum)) if name != "role" => *field = json!(sum + more),
            (Value::Array(more), Value::Array(sum)) => *field = [sum, more.clone()].concat().into(),
            _ => *field = value.clone(),
        }
    }
}

/// A response, which must be the same whether or not it is streamed.
#[track_caller]
fn answer(server: &TestServer, path: &str, body: &Value) -> Value {
    let mut whole = server.post(path, &with(body.clone(), json!({ "stream": false }))).success();
    let lines = lines(server, path, body);
    assert!(lines.iter().rev().skip(1).all(|line| line["done"] == false), "{lines:?}");
    assert!(lines.iter().all(|line| line["model"] == whole["model"]), "{lines:?}");
    let mut sum = json!({});
    for line in &lines {
        let mut line = line.clone();
        for name in ["model", "created_at"] {
            line.as_object_mut().expect("an object").remove(name);
        }
        match line.as_object_mut().and_then(|line| line.remove("message")) {
            Some(message) => {
                let mut all = sum["message"].take();
                add(&mut all, &message);
                add(&mut sum, &line);
                sum["message"] = all;
            }
            None => add(&mut sum, &line),
        }
    }
    for name in ["done", "done_reason", "prompt_eval_count", "eval_count", "seed", "message", "response", "thinking"] {
        // The id of a call is made from the id of the response.
        let plain = |object: &Value| {
            let mut value = object[name].clone();
            let calls = value.get_mut("tool_calls").and_then(Value::as_array_mut);
            for call in calls.into_iter().flatten() {
                assert!(call["id"].take().is_string(), "{call}");
            }
            value
        };
        let is_present = whole.get(name).is_some();
        assert_eq!((sum.get(name).is_some(), plain(&sum)), (is_present, plain(&whole)), "{name}: {lines:?}");
    }
    assert_eq!(sum.get("logprobs"), whole.get("logprobs"));
    for name in ["total_duration", "prompt_eval_duration", "eval_duration"] {
        assert!([&whole, &sum].iter().all(|object| object[name].as_u64().is_some_and(|time| time > 0)), "{whole}");
    }
    assert!(whole["created_at"].as_str().is_some_and(|time| time.len() == 30 && time.ends_with('Z')), "{whole}");
    whole["created_at"].take();
    whole
}

#[track_caller]
fn text(answer: &Value) -> &str {
    answer.get("response").unwrap_or(&answer["message"]["content"]).as_str().expect("a text")
}

#[test]
fn a_seeded_text_equals_that_of_the_other_apis() {
    let messages = json!([{ "role": "user", "content": QUESTION }]);
    let expected = json!({ "messages": messages, "max_tokens": 40, "temperature": 0.9, "seed": 7 });
    let expected = shared().post("/v1/chat/completions", &expected).success();
    let found = answer(shared(), CHAT, &chat(json!({ "model": "demo-target:latest" })));
    assert_eq!((text(&found), &found["model"]), (texts(&expected)[0].as_str(), &json!("demo-target:latest")));
    assert_eq!(found["message"]["role"], "assistant");
    assert_eq!((&found["prompt_eval_count"], &found["eval_count"]), {
        let usage = &expected["usage"];
        (&usage["prompt_tokens"], &usage["completion_tokens"])
    });
    assert_eq!(found["done_reason"], expected["choices"][0]["finish_reason"]);
    // A prompt is a user message; `system` adds a system message.
    assert_eq!(text(&answer(shared(), GENERATE, &generate(json!({})))), text(&found));
    let system = json!([{ "role": "system", "content": "be kind" }, { "role": "user", "content": QUESTION }]);
    let kind = answer(shared(), CHAT, &chat(json!({ "messages": system })));
    assert_eq!(text(&answer(shared(), GENERATE, &generate(json!({ "system": "be kind" })))), text(&kind));
    assert_ne!(text(&kind), text(&found));
    // A raw prompt is continued without the template.
    let expected = texts(&shared().post("/v1/completions", &seeded(7, json!({}))).success()).remove(0);
    let raw = json!({ "prompt": PROMPT, "raw": true, "options": options(json!({ "ignore_eos": true })) });
    let found = answer(shared(), GENERATE, &generate(raw));
    assert_eq!((text(&found), &found["done_reason"]), (expected.as_str(), &json!("length")));
}

#[test]
fn options_map_to_the_fields_of_the_other_apis() {
    let sent = json!({ "num_predict": 40, "repeat_penalty": 1.3, "repeat_last_n": 32, "presence_penalty": 0.2,
        "frequency_penalty": 0.1, "top_k": 30, "top_p": 0.8, "min_p": 0.01, "typical_p": 0.9, "temperature": 1.1,
        "stop": ["."], "seed": 5, "num_ctx": 1 << 20, "num_gpu": 1, "num_thread": 8, "use_mmap": true, "mirostat": 0,
        "draft_num_predict": 3, "num_keep": 5, "penalize_newline": true });
    let raw = json!({ "prompt": PROMPT, "raw": true, "options": sent, "keep_alive": "5m", "truncate": true });
    let found = answer(shared(), GENERATE, &generate(raw));
    let same = json!({ "prompt": PROMPT, "max_tokens": 40, "repetition_penalty": 1.3, "repeat_last_n": 32,
        "presence_penalty": 0.2, "frequency_penalty": 0.1, "top_k": 30, "top_p": 0.8, "min_p": 0.01, "typical_p": 0.9,
        "temperature": 1.1, "stop": ["."], "seed": 5, "speculative.n_max": 3 });
    assert_eq!(text(&found), texts(&shared().post("/v1/completions", &same).success())[0]);
    let drafted = |more: Value| {
        let body = generate(json!({ "stream": false, "options": options(more) }));
        drafting().post(GENERATE, &body).success()["timings"]["draft_n"].as_u64().expect("a count")
    };
    assert!(drafted(json!({})) > 0 && drafted(json!({ "draft_num_predict": 0 })) == 0);
    assert_eq!(drafted(json!({ "speculative.n_max": 0 })), 0);
    let count = |most: i32| {
        let body = generate(json!({ "options": { "num_predict": most, "seed": 1, "ignore_eos": true }, "raw": true }));
        answer(shared(), GENERATE, &body)["eval_count"].clone()
    };
    assert_eq!(count(5), 5);
    assert!(count(-2).as_u64().is_some_and(|count| count > 400), "as many as fit into the context");
}

#[test]
fn a_final_assistant_message_is_continued() {
    let turns = json!([{ "role": "user", "content": QUESTION }, { "role": "assistant", "content": "in what" }]);
    let same = json!({ "messages": turns, "max_tokens": 40, "temperature": 0.9, "seed": 7,
        "continue_final_message": true });
    let expected = shared().post("/v1/chat/completions", &same).success();
    assert_eq!(text(&answer(shared(), CHAT, &chat(json!({ "messages": turns })))), texts(&expected)[0]);
}

#[test]
fn structured_outputs_match_their_format() {
    let schema = json!({ "type": "object", "properties": { "sea": { "type": "boolean" }, "depth": { "enum": [1, 2] } },
        "required": ["sea", "depth"], "additionalProperties": false });
    for (path, body) in [(CHAT, chat(json!({}))), (GENERATE, generate(json!({})))] {
        let found = answer(shared(), path, &with(body.clone(), json!({ "format": schema })));
        assert!(text(&found).starts_with("{\"sea\":") && text(&found).ends_with('}'), "{found}");
        let any = with(body, json!({ "format": "json", "options": options(json!({ "num_predict": 12 })) }));
        assert!(text(&answer(shared(), path, &any)).starts_with('{'));
    }
}

#[test]
fn log_probabilities_are_returned() {
    let fields = json!({ "logprobs": true, "top_logprobs": 2, "options": options(json!({ "num_predict": 8 })) });
    let raw = with(fields.clone(), json!({ "raw": true }));
    for (path, body) in [(CHAT, chat(fields.clone())), (GENERATE, generate(fields)), (GENERATE, generate(raw))] {
        let found = answer(shared(), path, &body);
        let all = found["logprobs"].as_array().expect("a list");
        let joined: String = all.iter().map(|token| token["token"].as_str().expect("a text")).collect();
        // Raw texts may contain special tokens, which the text leaves out.
        assert!(joined == text(&found) || body.get("raw").is_some(), "{joined}");
        assert_eq!(found["eval_count"], all.len());
        assert!(all.iter().all(|token| token["top_logprobs"].as_array().is_some_and(|top| top.len() == 2)));
    }
    // The token that ends a text is not part of it.
    let ended = json!({ "logprobs": true, "options": options(json!({ "num_predict": 400, "temperature": 0 })) });
    let found = answer(shared(), CHAT, &chat(ended));
    assert_eq!(found["done_reason"], "stop");
    let all = found["logprobs"].as_array().expect("a list");
    assert_eq!(all.iter().map(|token| token["token"].as_str().expect("a text")).collect::<String>(), text(&found));
}

#[test]
fn an_empty_request_only_loads_the_model() {
    for (path, body) in [
        (CHAT, json!({ "model": "demo-target", "messages": [] })),
        (CHAT, json!({ "model": "demo-target", "keep_alive": 0 })),
        (GENERATE, json!({ "model": "demo-target" })),
        (GENERATE, json!({ "model": "demo-target", "prompt": "", "stream": true, "options": {} })),
    ] {
        let found = shared().post(path, &body).success();
        assert_eq!((&found["done"], &found["done_reason"]), (&json!(true), &json!("load")), "{found}");
        assert_eq!((text(&found), &found["model"]), ("", &json!("demo-target")));
    }
}

#[test]
fn models_are_described() {
    let version = shared().get("/api/version").success();
    assert!(version["version"].as_str().is_some_and(|version| version.split('.').count() == 3), "{version}");
    for path in ["/api/tags", "/api/ps"] {
        let list = shared().get(path).success();
        let model = &list["models"][0];
        assert_eq!((&model["name"], &model["model"]), (&json!("demo-target:latest"), &json!("demo-target:latest")));
        let digest = model["digest"].as_str().expect("a text");
        assert!(digest.len() == 64 && digest.bytes().all(|byte| byte.is_ascii_hexdigit()), "{digest}");
        assert_eq!(shared().get("/api/tags").success()["models"][0]["digest"], digest);
        assert_eq!(
            (&model["details"]["family"], &model["details"]["quantization_level"]),
            (&json!("llama"), &json!("BF16"))
        );
        assert!(model["size"].as_u64().is_some_and(|size| size > 1 << 20), "{model}");
    }
    for name in ["name", "model"] {
        for model in ["demo-target", "demo-target:latest"] {
            let shown = shared().post("/api/show", &json!({ name: model, "verbose": true })).success();
            assert_eq!(shown["model_info"]["llama.context_length"], 512);
            assert_eq!(shown["capabilities"], json!(["completion"]));
            assert!(shown["template"].as_str().is_some_and(|template| template.contains("messages")), "{shown}");
        }
    }
    for path in [CHAT, GENERATE, "/api/show"] {
        let why = error(&shared().post(path, &json!({ "model": "other:latest", "prompt": "x" })), 404);
        assert!(why.starts_with("model 'other:latest' not found") && why.contains("demo-target"), "{why}");
    }
    // Ollama's program checks this way whether a server runs.
    let mut client = shared().client();
    client.send("HEAD", "/", &[], &[]).expect("the server takes it");
    assert_eq!(client.head().expect("an answer").status, 200);
}

#[test]
fn arguments_of_calls_are_objects_in_both_directions() {
    // What a template sees of earlier calls and their results.
    let seen = "{% if m.tool_calls %}{{ m.tool_calls[0].type ~ m.tool_calls[0].id ~ m.tool_calls[0].function.name }}\
        {{ m.tool_calls[0].function.arguments | tojson }}{% endif %}{{ m.name ~ m.tool_call_id }}\
        {{ m.reasoning_content }}";
    let server = TestServer::open(|settings, _| {
        settings.model.chat_template = Some(TEMPLATE.replace("{{ '<|' + m", &format!("{seen}{{{{ '<|' + m")));
    });
    assert_eq!(server.post("/api/show", &json!({})).success()["capabilities"], json!(["completion", "tools"]));
    let city = json!({ "type": "string", "enum": ["Rome", "Oslo"] });
    let find = json!({ "type": "object", "properties": { "days": { "type": "integer", "minimum": 1, "maximum": 9 },
        "city": city }, "required": ["days", "city"], "additionalProperties": false });
    let tools = json!([{ "type": "function", "function": { "name": "find", "parameters": find } }]);
    let forced = json!({ "tools": tools, "tool_choice": "required", "parallel_tool_calls": false,
        "options": options(json!({ "num_predict": 100 })) });
    let found = answer(&server, CHAT, &chat(forced.clone()));
    let call = &found["message"]["tool_calls"][0]["function"];
    assert_eq!((&call["name"], &found["done_reason"]), (&json!("find"), &json!("stop")), "{found}");
    let names: Vec<&String> = call["arguments"].as_object().expect("an object").keys().collect();
    assert_eq!(names, ["days", "city"], "arguments keep the order in which the model wrote them");
    let cut = with(forced, json!({ "options": options(json!({ "num_predict": 6 })) }));
    let cut = answer(&server, CHAT, &chat(cut));
    assert_eq!((&cut["done_reason"], text(&cut).trim()), (&json!("length"), ""), "{cut}");
    // Ollama's clients send no ids of calls, and results have the name of the function.
    let user = json!({ "role": "user", "content": QUESTION });
    let call =
        json!({ "role": "assistant", "content": "", "thinking": "where?", "tool_calls": [call_of("find", None)] });
    let result = json!({ "role": "tool", "content": "one", "tool_name": "find" });
    let found = answer(&server, CHAT, &chat(json!({ "messages": [user, call, result], "tools": tools })));
    let call = json!({ "role": "assistant", "content": "", "reasoning_content": "where?",
        "tool_calls": [call_of("find", Some("call00001"))] });
    let result = json!({ "role": "tool", "content": "one", "name": "find", "tool_call_id": "call00001" });
    let same =
        json!({ "messages": [user, call, result], "tools": tools, "max_tokens": 40, "temperature": 0.9, "seed": 7 });
    let same = server.post("/v1/chat/completions", &same).success();
    assert_eq!(
        (text(&found), &found["prompt_eval_count"]),
        (texts(&same)[0].as_str(), &same["usage"]["prompt_tokens"])
    );
    server.shut_down();
}

fn call_of(name: &str, id: Option<&str>) -> Value {
    let function = json!({ "name": name, "arguments": { "days": 2, "city": "Rome" } });
    match id {
        Some(id) => json!({ "id": id, "type": "function", "function": function }),
        None => json!({ "function": function }),
    }
}

#[test]
fn reasoning_is_separated() {
    let server =
        TestServer::open(|settings, _| settings.model.chat_template = Some(format!("{TEMPLATE}{{# </think> #}}")));
    assert_eq!(
        server.post("/api/show", &json!({})).success()["capabilities"],
        json!(["completion", "tools", "thinking"])
    );
    let regex = json!({ "regex": "<think>\n[a-c]{3,9}\n</think>\n\n(yes|no)", "think": false });
    let found = answer(&server, CHAT, &chat(regex.clone()));
    let thinking = found["message"]["thinking"].as_str().expect("a text");
    assert!((3..=9).contains(&thinking.len()) && ["yes", "no"].contains(&text(&found)), "{found}");
    let same = answer(&server, GENERATE, &generate(regex));
    assert_eq!((&same["thinking"], text(&same)), (&json!(thinking), text(&found)));
    // A model that may think does not have to.
    for think in [json!(true), json!("high")] {
        let found = answer(&server, CHAT, &chat(json!({ "regex": "(yes|no)", "think": think })));
        assert!(found["message"].get("thinking").is_none() && ["yes", "no"].contains(&text(&found)), "{found}");
    }
    server.shut_down();
}
