//! The effect of each field of completions.

use serde_json::{Value, json};

use crate::bodies::{seeded, streamed_texts, texts, with};
use crate::determinism::text_of;
use crate::test_server::shared;

#[track_caller]
fn complete(more: Value) -> Value {
    shared().post("/v1/completions", &seeded(21, more)).success()
}

fn tokens(text: &str) -> Vec<u32> {
    let found = shared().post("/tokenize", &json!({ "content": text })).success();
    assert_eq!(found["count"], found["tokens"].as_array().expect("a list").len());
    serde_json::from_value(found["tokens"].clone()).expect("tokens")
}

/// The generated tokens of a completion.
fn generated_tokens(more: Value) -> Vec<u64> {
    let answer = complete(with(more, json!({ "return_provenance": true })));
    let provenance = answer["choices"][0]["provenance"].as_array().expect("a list");
    provenance.iter().map(|token| token["token"].as_u64().expect("a token")).collect()
}

#[test]
fn objects_have_the_fields_of_openai() {
    let answer = complete(json!({ "max_tokens": 5, "speculative.n_max": 0 }));
    let names: Vec<&String> = answer.as_object().expect("an object").keys().collect();
    let expected = ["id", "object", "created", "model", "system_fingerprint", "choices", "usage", "timings"];
    assert_eq!(names, expected);
    assert_eq!((&answer["object"], &answer["model"]), (&json!("text_completion"), &json!("demo-target")));
    assert!(answer["id"].as_str().is_some_and(|id| id.starts_with("cmpl-")));
    let choice = &answer["choices"][0];
    assert_eq!((&choice["finish_reason"], &choice["logprobs"]), (&json!("length"), &Value::Null));
    let usage = &answer["usage"];
    let prompt = tokens("Once upon a time,").len();
    assert_eq!(usage["prompt_tokens"], prompt);
    assert_eq!((&usage["completion_tokens"], &usage["total_tokens"]), (&json!(5), &json!(prompt + 5)));
    let timings = &answer["timings"];
    assert_eq!((&timings["prompt_n"], &timings["predicted_n"]), (&json!(prompt), &json!(5)));
    for name in ["predicted_ms", "predicted_per_second", "time_to_first_token_ms"] {
        assert!(timings[name].as_f64().is_some_and(|time| time > 0.0 && time < 6e4), "{name}: {timings}");
    }
}

#[test]
fn streams_end_with_usage_in_an_event_of_its_own_if_it_is_requested() {
    let whole = complete(json!({ "n": 2 }));
    for (include, options) in
        [(false, json!(null)), (false, json!({ "include_usage": false })), (true, json!({ "include_usage": true }))]
    {
        let body = seeded(21, json!({ "n": 2, "stream": true, "stream_options": options }));
        let events = shared().events("/v1/completions", &body).all().expect("a stream");
        assert_eq!(streamed_texts(&events), texts(&whole));
        let (last, before) = events.split_last().expect("events");
        assert_eq!(last["choices"] == json!([]), include, "{last}");
        let count = |usage: &Value| [usage["prompt_tokens"].clone(), usage["completion_tokens"].clone()];
        assert_eq!(count(&last["usage"]), count(&whole["usage"]));
        assert!(before.iter().all(|event| event.get("usage").is_none()));
        let ends = events.iter().filter(|event| !event["choices"][0]["finish_reason"].is_null());
        assert_eq!(ends.filter(|event| event["timings"].is_object()).count(), 2);
        let ids: std::collections::BTreeSet<_> = events.iter().map(|event| event["id"].to_string()).collect();
        assert_eq!(ids.len(), 1);
    }
    let wrong = seeded(21, json!({ "stream_options": { "include_usage": true } }));
    assert_eq!(shared().post("/v1/completions", &wrong).error(400).0.as_deref(), Some("stream_options"));
}

#[test]
fn stop_strings_end_a_text_and_are_not_part_of_it() {
    let whole = text_of(&seeded(21, json!({})));
    let at = whole.char_indices().nth(30).expect("the text is longer").0;
    let stop: String = whole[at..].chars().take(6).collect();
    let cut = whole.find(&stop).expect("the text contains it");
    for stops in [json!(stop), json!(["never seen in this text", stop])] {
        let more = json!({ "stop": stops });
        let answer = complete(more.clone());
        assert_eq!(texts(&answer), [&whole[..cut]]);
        assert_eq!(answer["choices"][0]["finish_reason"], "stop");
        let events = shared().events("/v1/completions", &seeded(21, with(more, json!({ "stream": true }))));
        assert_eq!(streamed_texts(&events.all().expect("a stream")), [&whole[..cut]]);
    }
}

#[test]
fn tokens_can_end_a_text_or_be_banned() {
    let all = generated_tokens(json!({}));
    let stop = all[12];
    let first = all.iter().position(|token| *token == stop).expect("the text contains it");
    let answer = complete(json!({ "stop_token_ids": [stop] }));
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    assert_eq!(answer["usage"]["completion_tokens"], first + 1);
    for ban in [json!({ stop.to_string(): -100 }), json!([[stop, false]]), json!([[stop, -100.0]])] {
        let without = generated_tokens(json!({ "logit_bias": ban }));
        assert!(!without.contains(&stop) && without.len() == all.len());
        assert_eq!(without[..first], all[..first]);
    }
    let wanted = generated_tokens(json!({ "logit_bias": { "300": 100 }, "max_tokens": 4 }));
    assert_eq!(wanted, [300; 4]);
}

#[test]
fn a_text_ends_at_eos_unless_that_is_ignored() {
    let chat = json!({ "messages": [{ "role": "user", "content": "hello" }], "temperature": 0, "max_tokens": 400 });
    let ends = shared().post("/v1/chat/completions", &chat).success();
    assert_eq!(ends["choices"][0]["finish_reason"], "stop");
    let short = ends["usage"]["completion_tokens"].as_u64().expect("a count");
    let goes_on = shared().post("/v1/chat/completions", &with(chat, json!({ "ignore_eos": true }))).success();
    assert_eq!(goes_on["choices"][0]["finish_reason"], "length");
    assert!(goes_on["usage"]["completion_tokens"] == 400 && short < 400);
    // Without a limit a text ends when the context is full.
    let all = complete(json!({ "max_tokens": -1, "prompt": vec![5; 480] }));
    assert_eq!(all["choices"][0]["finish_reason"], "length");
    let used = all["usage"]["total_tokens"].as_u64().expect("a count");
    assert!((512..=513).contains(&used), "{used}");
}

#[test]
fn sampling_settings_change_the_text() {
    let plain = generated_tokens(json!({}));
    let greedy = generated_tokens(json!({ "temperature": 0 }));
    assert_eq!(generated_tokens(json!({ "top_k": 1 })), greedy);
    assert_eq!(generated_tokens(json!({ "temperature": 0, "seed": 99 })), greedy);
    assert_eq!(generated_tokens(json!({ "top_p": 1e-6 })), greedy);
    assert_eq!(generated_tokens(json!({ "min_p": 1 })), greedy);
    assert_ne!(plain, greedy);
    let model = shared().get("/v1/models/demo-target").success();
    let defaults = with(model["meta"]["defaults"].clone(), json!({ "temperature": 0.9 }));
    assert_eq!(generated_tokens(defaults), plain);
    let distinct = |tokens: &[u64]| tokens.iter().collect::<std::collections::BTreeSet<_>>().len();
    for penalty in [json!({ "presence_penalty": 2 }), json!({ "frequency_penalty": 2 }), json!({ "repeat_penalty": 3 })]
    {
        let penalized = generated_tokens(with(json!({ "temperature": 0, "max_tokens": 120 }), penalty.clone()));
        let without = generated_tokens(json!({ "temperature": 0, "max_tokens": 120 }));
        assert!(distinct(&penalized) > distinct(&without), "{penalty}");
    }
    let other = generated_tokens(json!({ "typical_p": 0.2 }));
    assert_ne!(other, plain);
}

#[test]
fn lengths_have_several_fields() {
    for name in ["max_tokens", "max_completion_tokens", "n_predict"] {
        let body = json!({ "prompt": "a", "ignore_eos": true, name: 3 });
        assert_eq!(shared().post("/v1/completions", &body).success()["usage"]["completion_tokens"], 3);
    }
    let none = complete(json!({ "max_tokens": 0 }));
    assert_eq!((texts(&none), &none["usage"]["completion_tokens"]), (vec![String::new()], &json!(0)));
    assert_eq!(none["choices"][0]["finish_reason"], "length");
    let long = complete(json!({ "ignore_eos": false, "min_tokens": 30, "max_tokens": 40, "logit_bias": { "0": 100 } }));
    assert_eq!(long["usage"]["completion_tokens"], 31);
}

#[test]
fn the_best_of_several_answers_are_returned() {
    let all = complete(json!({ "n": 4, "logprobs": 0 }));
    let mean = |choice: &Value| {
        let all: Vec<f64> = serde_json::from_value(choice["logprobs"]["token_logprobs"].clone()).expect("numbers");
        all.iter().sum::<f64>() / all.len() as f64
    };
    let choices = all["choices"].as_array().expect("a list");
    let mut order: Vec<&Value> = choices.iter().collect();
    order.sort_by(|a, b| mean(b).total_cmp(&mean(a)));
    let best = complete(json!({ "n": 2, "best_of": 4 }));
    assert_eq!(texts(&best), [order[0], order[1]].map(|choice| choice["text"].as_str().expect("a text")));
    assert_eq!(best["usage"]["completion_tokens"], 160);
    for (more, field) in
        [(json!({ "n": 3, "best_of": 2 }), "best_of"), (json!({ "best_of": 2, "stream": true }), "best_of")]
    {
        assert_eq!(shared().post("/v1/completions", &seeded(1, more)).error(400).0.as_deref(), Some(field));
    }
}

#[test]
fn a_prompt_is_echoed() {
    let text = text_of(&seeded(21, json!({})));
    let echoed = format!("Once upon a time,{text}");
    assert_eq!(text_of(&seeded(21, json!({ "echo": true }))), echoed);
    let events = shared().events("/v1/completions", &seeded(21, json!({ "echo": true, "stream": true, "n": 2 })));
    assert_eq!(streamed_texts(&events.all().expect("a stream"))[0], echoed);
    let prompt = tokens("Once upon a time,");
    assert_eq!(text_of(&seeded(21, json!({ "echo": true, "prompt": prompt }))), echoed);
}

#[test]
fn tokenize_and_detokenize_are_inverse() {
    let text = "Hello, w\u{f6}rld \u{1f600} <|end|>";
    let ids = tokens(text);
    for body in [json!({ "prompt": text }), json!({ "content": text, "add_special": false, "parse_special": true })] {
        assert_eq!(shared().post("/v1/tokenize", &body).success()["tokens"], json!(ids));
    }
    let back = shared().post("/detokenize", &json!({ "tokens": ids })).success();
    assert_eq!((&back["content"], &back["prompt"]), (&json!(text), &json!(text)));
    let pieces = shared().post("/tokenize", &json!({ "content": "Hello there", "with_pieces": true })).success();
    let pieces = pieces["tokens"].as_array().expect("a list").clone();
    assert_eq!(pieces.iter().map(|piece| piece["piece"].as_str().expect("a text")).collect::<String>(), "Hello there");
    let plain = shared().post("/tokenize", &json!({ "content": "<|end|>", "parse_special": false })).success();
    assert!(plain["count"].as_u64() > Some(1), "a user's text has a special token: {plain}");
    for (path, body, field) in [
        ("/tokenize", json!({}), "content"),
        ("/tokenize", json!({ "content": 5 }), "content"),
        ("/detokenize", json!({}), "tokens"),
        ("/detokenize", json!({ "tokens": [8192] }), "tokens"),
        ("/detokenize", json!({ "tokens": [-1] }), "tokens"),
        ("/detokenize", json!({ "tokens": "a" }), "tokens"),
    ] {
        assert_eq!(shared().post(path, &body).error(400).0.as_deref(), Some(field), "{path} {body}");
    }
}

#[test]
fn unsupported_values_are_refused_by_name() {
    for (field, value) in [
        ("suffix", json!("the end")),
        ("response_format", json!("json_object")),
        ("grammar", json!("root ::= x")),
        ("guided_json", json!({ "type": "objects" })),
        ("regex", json!("(a")),
        ("ebnf", json!("root = 5")),
        ("guided_choice", json!([""])),
        ("mirostat", json!(2)),
        ("length_penalty", json!(2)),
        ("logit_bias", json!({ "9000": 1 })),
        ("stop_token_ids", json!([9000])),
        ("n", json!(1000)),
        ("temperature", json!(-1)),
        ("logprobs", json!(21)),
        ("prompt", json!([9000])),
        ("prompt", json!("x ".repeat(600))),
        ("prompt", json!([])),
        ("stop", json!(vec!["a"; 65])),
    ] {
        let answer = shared().post("/v1/completions", &seeded(1, json!({ field: value })));
        let (param, message) = answer.error(400);
        assert_eq!(param.as_deref(), Some(field), "{message}");
        assert!(message.contains("expected") && message.contains("found"), "{message}");
    }
    // Empty and default values are accepted.
    let nothing = json!({ "suffix": "", "response_format": { "type": "text" }, "mirostat": 0, "grammar": null });
    assert_eq!(text_of(&seeded(1, nothing)), text_of(&seeded(1, json!({}))));
}
