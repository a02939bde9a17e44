//! `speculative.lossy_lenience`: refused beside what it would break, and called lossy in answers and in the model's
//! object.

use foretoken::Promise;
use serde_json::{Value, json};

use crate::bodies::{named_events, seeded, texts, with};
use crate::test_server::{TestServer, drafting, shared};

fn complete(more: Value) -> Value {
    let more = with(json!({ "speculative.type": "draft", "speculative.n_min": 2 }), more);
    drafting().post("/v1/completions", &seeded(31, more)).success()
}

#[test]
fn it_is_refused_by_name() {
    for wrong in [json!(0), json!(-0.5), json!(1.5), json!("much")] {
        let body = seeded(1, json!({ "speculative.lossy_lenience": wrong, "speculative.verify": "rejection" }));
        let (param, message) = shared().post("/v1/completions", &body).error(400);
        assert_eq!(param.as_deref(), Some("speculative.lossy_lenience"), "{message}");
    }
    for verify in ["exact", "block"] {
        let body = seeded(1, json!({ "speculative": { "lossy_lenience": 0.5, "verify": verify } }));
        let (param, message) = shared().post("/v1/completions", &body).error(400);
        assert_eq!(param.as_deref(), Some("speculative.lossy_lenience"), "{message}");
        let expected = "speculative.lossy_lenience 0.5: expected speculative.verify rejection beside it, or";
        assert_eq!(message, format!("{expected} temperature 0, since it is lossy, found {verify}"));
    }
}

#[test]
fn answers_say_that_they_are_lossy() {
    for more in [json!({ "temperature": 0 }), json!({ "temperature": 1.2, "speculative.verify": "rejection" })] {
        let lossy = complete(with(more.clone(), json!({ "speculative.lossy_lenience": 0.05 })));
        assert_eq!(lossy["timings"]["lossy_lenience"], 0.05, "{lossy}");
        let plain = complete(with(more.clone(), json!({ "speculative.lossy_lenience": 1 })));
        assert!(plain["timings"].get("lossy_lenience").is_none(), "{plain}");
        let off = complete(with(
            more,
            json!({ "speculative.lossy_lenience": 0.05, "speculative.n_max": 0, "speculative.n_min": 0 }),
        ));
        assert!(off["timings"].get("lossy_lenience").is_none(), "nothing is drafted: {off}");
    }
    let greedy = json!({ "temperature": 0, "speculative.verify": "block" });
    let lossy = complete(with(greedy.clone(), json!({ "speculative.lossy_lenience": 0.02 })));
    assert_ne!(texts(&lossy), texts(&complete(greedy)));
}

/// Where each API's complete answers, and the last object of its streams with a count of tokens, say that they are
/// lossy.
const PLACES: [(&str, &str, &str); 7] = [
    ("/v1/completions", "/timings", "/timings"),
    ("/v1/chat/completions", "/timings", "/timings"),
    ("/v1/messages", "/usage", "/usage"),
    ("/v1/responses", "/usage", "/response/usage"),
    ("/completion", "/timings", "/timings"),
    ("/api/generate", "/timings", "/timings"),
    ("/api/chat", "/timings", "/timings"),
];

/// The objects of a stream: events with names, without, or lines.
fn streamed(path: &str, body: &Value) -> Vec<Value> {
    let response = drafting().post(path, &with(body.clone(), json!({ "stream": true })));
    if response.text().starts_with("event: ") {
        return named_events(&response);
    }
    let lines = response.text().lines().map(|line| line.strip_prefix("data: ").unwrap_or(line));
    lines.filter_map(|line| serde_json::from_str(line).ok()).collect()
}

#[test]
fn answers_of_every_api_say_that_they_are_lossy() {
    let common = json!({
        "model": "demo-target", "temperature": 0, "stream": false, "max_tokens": 40,
        "speculative.type": "draft", "speculative.n_min": 2,
    });
    let messages = json!({ "messages": [{ "role": "user", "content": "Once upon a time," }] });
    for (path, whole_place, stream_place) in PLACES {
        let body = |lenience: f64| {
            let mut body = with(common.clone(), json!({ "speculative.lossy_lenience": lenience }));
            let more = match path {
                "/v1/responses" => json!({ "input": "Once upon a time,", "max_output_tokens": 40 }),
                path if path.contains("chat") || path.contains("messages") => messages.clone(),
                _ => json!({ "prompt": "Once upon a time," }),
            };
            if path == "/v1/responses" {
                body.as_object_mut().expect("an object").remove("max_tokens");
            }
            if path.starts_with("/api/") {
                let options = body.clone();
                body = json!({ "model": "demo-target", "stream": false, "options": options });
                for name in ["model", "stream"] {
                    body["options"].as_object_mut().expect("an object").remove(name);
                }
            }
            with(body, more)
        };
        let said = |object: &Value, place: &str| object.pointer(&format!("{place}/lossy_lenience")).cloned();
        let (lossy, plain) = (body(0.05), body(1.0));
        let whole = |body: &Value| drafting().post(path, body).success();
        assert_eq!(said(&whole(&lossy), whole_place), Some(json!(0.05)), "{path}");
        assert_eq!(said(&whole(&plain), whole_place), None, "{path}");
        let of_stream = |body: &Value| {
            let objects = streamed(path, body);
            let last = objects.iter().rfind(|object| object.pointer(stream_place).is_some_and(Value::is_object));
            said(last.unwrap_or_else(|| panic!("{path}: {objects:?}")), stream_place)
        };
        assert_eq!((of_stream(&lossy), of_stream(&plain)), (Some(json!(0.05)), None), "{path}");
    }
}

#[test]
fn the_servers_own_lenience_is_the_default_and_requests_change_it() {
    let server = TestServer::open(|settings, _| {
        settings.speculation.verify = Promise::Rejection;
        settings.speculation.lossy_lenience = 0.25;
    });
    let meta = &server.get("/v1/models/demo-target").success()["meta"];
    assert_eq!((&meta["verify"], &meta["lossy_lenience"]), (&json!("rejection"), &json!(0.25)));
    let draft = json!({ "speculative.type": "draft" });
    let lossy = server.post("/v1/completions", &seeded(1, draft.clone())).success();
    assert_eq!(lossy["timings"]["lossy_lenience"], 0.25);
    let (_, message) = server.post("/v1/completions", &seeded(1, json!({ "speculative.verify": "exact" }))).error(400);
    assert!(message.starts_with("speculative.lossy_lenience 0.25: "), "{message}");
    let lossless = json!({ "speculative.verify": "exact", "speculative.lossy_lenience": 1 });
    let lossless = server.post("/v1/completions", &seeded(31, with(draft, lossless))).success();
    assert_eq!(texts(&lossless), texts(&complete(json!({}))));
    server.shut_down();
}
