//! `use_beam_search`: choices are the hypotheses of one search, best first, whole, streamed and in batch files, and
//! what contradicts a search is refused by name.

use serde_json::{Value, json};

use crate::bodies::{PROMPT, streamed_texts, texts, with};
use crate::test_server::{TestServer, shared};

const CHATS: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

/// A completion of four beams with further fields.
fn search(more: Value) -> Value {
    with(json!({ "prompt": PROMPT, "max_tokens": 12, "use_beam_search": true, "n": 4 }), more)
}

fn chat(more: Value) -> Value {
    let messages = json!([{ "role": "user", "content": "i want to find a restaurant" }]);
    with(json!({ "messages": messages, "max_tokens": 12, "use_beam_search": true, "n": 3 }), more)
}

fn scores(answer: &Value) -> Vec<f64> {
    let choices = answer["choices"].as_array().expect("a list");
    choices.iter().map(|choice| choice["score"].as_f64().unwrap_or_else(|| panic!("{choice}"))).collect()
}

#[test]
fn choices_are_the_hypotheses_best_first() {
    let all = shared().post(COMPLETIONS, &search(json!({}))).success();
    assert_eq!(texts(&all).len(), 4);
    assert!(scores(&all).is_sorted_by(|a, b| a >= b), "{all}");
    assert!(all["timings"]["beams"]["steps"].as_u64().is_some_and(|steps| (1..=12).contains(&steps)), "{all}");
    let prompt = shared().post("/tokenize", &json!({ "content": PROMPT })).success()["count"].clone();
    assert_eq!(all["usage"]["prompt_tokens"], prompt);
    // Of so many beams the best n are returned.
    let best = shared().post(COMPLETIONS, &search(json!({ "n": 2, "best_of": 4 }))).success();
    assert_eq!(texts(&best), texts(&all)[..2]);
    // The prompt is echoed before each; drafts and a seed change nothing.
    let echoed = search(json!({ "echo": true, "speculative.n_max": 0, "seed": 5 }));
    let echoed = texts(&shared().post(COMPLETIONS, &echoed).success());
    assert_eq!(echoed, texts(&all).iter().map(|text| format!("{PROMPT}{text}")).collect::<Vec<_>>());
    // Each prompt has a search of its own.
    let two = shared().post(COMPLETIONS, &search(json!({ "prompt": ["a little dog", PROMPT] }))).success();
    assert_eq!(texts(&two)[4..], texts(&all));
    // One beam is a greedy answer.
    let one = shared().post(COMPLETIONS, &search(json!({ "n": 1, "logprobs": 0 }))).success();
    let greedy = json!({ "prompt": PROMPT, "max_tokens": 12, "temperature": 0 });
    assert_eq!(texts(&one), texts(&shared().post(COMPLETIONS, &greedy).success()));
    let penalties = [json!({ "length_penalty": -3 }), json!({ "length_penalty": 2, "early_stopping": "never" })];
    for more in penalties {
        assert_eq!(texts(&shared().post(COMPLETIONS, &search(more)).success()).len(), 4);
    }
}

#[test]
fn a_stream_has_each_choice_whole_at_its_end() {
    for (url, body) in [(COMPLETIONS, search(json!({}))), (CHATS, chat(json!({})))] {
        let whole = shared().post(url, &body).success();
        let options = json!({ "stream": true, "stream_options": { "include_usage": true } });
        let events = shared().events(url, &with(body, options)).all().expect("a stream");
        assert_eq!(streamed_texts(&events), texts(&whole));
        let choices = events.iter().filter_map(|event| event["choices"].get(0));
        let with_text = choices.clone().filter(|choice| {
            let text = choice.get("text").unwrap_or(&choice["delta"]["content"]);
            text.as_str().is_some_and(|text| !text.is_empty())
        });
        assert!(with_text.count() <= texts(&whole).len());
        let ends: Vec<Value> = choices.filter(|choice| !choice["finish_reason"].is_null()).cloned().collect();
        assert_eq!(scores(&json!({ "choices": ends })), scores(&whole));
        let count = |usage: &Value| [usage["prompt_tokens"].clone(), usage["completion_tokens"].clone()];
        assert_eq!(events.last().map(|event| count(&event["usage"])), Some(count(&whole["usage"])));
    }
}

#[test]
fn contradictions_are_refused_by_field() {
    let function = json!({ "type": "function", "function": { "name": "f", "parameters": { "type": "object" } } });
    for (url, body, field) in [
        (COMPLETIONS, search(json!({ "temperature": 0.5 })), "temperature"),
        (COMPLETIONS, search(json!({ "logprobs": 1 })), "logprobs"),
        (COMPLETIONS, search(json!({ "echo": true, "logprobs": 0 })), "logprobs"),
        (COMPLETIONS, search(json!({ "return_provenance": true })), "return_provenance"),
        (COMPLETIONS, search(json!({ "best_of": 2 })), "best_of"),
        (COMPLETIONS, search(json!({ "early_stopping": "soon" })), "early_stopping"),
        (COMPLETIONS, search(json!({ "length_penalty": "long" })), "length_penalty"),
        (COMPLETIONS, search(json!({ "use_beam_search": false, "length_penalty": 2 })), "length_penalty"),
        (COMPLETIONS, search(json!({ "use_beam_search": false, "early_stopping": true })), "early_stopping"),
        (CHATS, chat(json!({ "logprobs": true })), "logprobs"),
        (CHATS, chat(json!({ "tools": [function], "tool_choice": "required" })), "tools"),
        ("/completion", search(json!({ "n": 2 })), "use_beam_search"),
        ("/v1/responses", json!({ "input": "a", "use_beam_search": true, "n": 1, "best_of": 2 }), "use_beam_search"),
        (COMPLETIONS, search(json!({ "prediction": { "type": "content", "content": "a" } })), "prediction"),
        (COMPLETIONS, search(json!({ "n": 129 })), "n"),
        // More than the cache has room for.
        (COMPLETIONS, search(json!({ "n": 100, "max_tokens": 400 })), "max_tokens"),
    ] {
        let (param, message) = shared().post(url, &body).error(400);
        assert_eq!(param.as_deref(), Some(field), "{message}");
        assert!(message.contains("expected") && message.contains("found"), "{message}");
    }
    // A form holds for each hypothesis.
    let guided = shared().post(COMPLETIONS, &search(json!({ "guided_choice": ["red", "blue"] }))).success();
    assert!(texts(&guided).iter().all(|text| ["red", "blue"].contains(&text.as_str())), "{guided}");
    // A temperature of 0, and values that mean no search, are no contradiction.
    let body = search(json!({ "temperature": 0, "max_tokens": 2 }));
    assert_eq!(texts(&shared().post(COMPLETIONS, &body).success()).len(), 4);
    let off = json!({ "use_beam_search": false, "length_penalty": 1, "early_stopping": false, "max_tokens": 2 });
    assert!(shared().post(COMPLETIONS, &search(off)).success()["choices"][0].get("score").is_none());
}

#[test]
fn a_temperature_of_the_server_gives_way() {
    let server = TestServer::open(|settings, _| settings.sampling.temperature = Some(0.9));
    let found = server.post(COMPLETIONS, &search(json!({}))).success();
    assert_eq!(texts(&found), texts(&shared().post(COMPLETIONS, &search(json!({}))).success()));
    server.shut_down();
}
