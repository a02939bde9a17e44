//! Drafters of a request: its fields choose them, responses count their drafts and give the origin of each token.

use std::path::Path;

use serde_json::{Value, json};

use crate::bodies::{seeded, texts, with};
use crate::test_server::{TestServer, drafting, shared};

#[track_caller]
fn complete(more: Value) -> Value {
    drafting().post("/v1/completions", &seeded(31, more)).success()
}

fn drafters() -> Vec<String> {
    let model = shared().get("/v1/models/demo-target").success();
    serde_json::from_value(model["meta"]["drafters"].clone()).expect("names")
}

fn count(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("no count: {value}"))
}

#[test]
fn nothing_is_drafted_when_drafting_is_off() {
    for more in [
        json!({ "speculative.n_max": 0 }),
        json!({ "speculative": { "n_max": 0, "type": "draft" } }),
        json!({ "speculative.type": "none" }),
        json!({ "speculative.type": "none", "prediction": { "type": "content", "content": "there was a girl" } }),
    ] {
        let answer = complete(more);
        let timings = &answer["timings"];
        assert_eq!((count(&timings["draft_n"]), count(&timings["draft_n_accepted"])), (0, 0));
        assert_eq!(count(&timings["drafts"]), 0);
        // One token per pass; the first comes with the prompt's pass.
        assert!(count(&timings["passes"]).abs_diff(40) <= 1, "{timings}");
    }
}

#[test]
fn each_drafter_can_be_chosen_alone_and_is_named_in_the_response() {
    let names = drafters();
    for name in ["draft", "lookup", "llma", "trie", "suffix", "ngram", "prediction", "jacobi"] {
        assert!(names.iter().any(|found| found == name), "no {name} among {names:?}");
    }
    let plain = complete(json!({ "speculative.n_max": 0 }));
    for name in names {
        let expected = json!({ "type": "content", "content": " a b a b a b" });
        let expected = if name == "prediction" { expected } else { Value::Null };
        let more = json!({ "speculative.type": name, "return_provenance": true, "prompt": "a b a b a b a b",
            "prediction": expected });
        let answer = complete(more);
        let drafted_tokens = answer["choices"][0]["drafted"].as_array().expect("a list");
        assert!(drafted_tokens.iter().all(|drafted| drafted["drafter"] == name.as_str()), "{name}: {drafted_tokens:?}");
        let origins = answer["choices"][0]["provenance"].as_array().expect("a list");
        let known = |origin: &Value| origin == "target" || origin == name.as_str();
        assert!(origins.iter().all(|token| known(&token["origin"])), "{name}");
        assert_eq!(texts(&complete(json!({ "speculative.type": name }))), texts(&plain), "{name}");
    }
    let draft = complete(json!({ "speculative.type": "draft", "speculative.n_min": 2, "speculative.n_max": 4 }));
    assert!(count(&draft["timings"]["draft_n"]) > 0 && count(&draft["timings"]["draft_n_accepted"]) > 0, "{draft}");
}

/// Of drafters that are alike, each is chosen by the name that the list of models and the answers give it.
#[test]
fn drafters_that_are_alike_are_chosen_by_their_listed_names() {
    let draft = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo-draft");
    let server = TestServer::open(|settings, _| {
        settings.speculation.spec_type = "draft,draft".parse().expect("a method");
        settings.speculation.model_draft = vec![draft.clone(), draft];
    });
    let names = server.get("/v1/models/demo-target").success()["meta"]["drafters"].clone();
    assert!(names.as_array().is_some_and(|names| names.contains(&json!("draft-2"))), "{names}");
    let more = json!({ "return_provenance": true, "speculative.n_min": 2 });
    for name in names.as_array().expect("a list") {
        let body = seeded(1, with(more.clone(), json!({ "speculative.type": name })));
        let answer = server.post("/v1/completions", &body).success();
        let drafted = answer["choices"][0]["drafted"].as_array().expect("a list").clone();
        assert!(drafted.iter().all(|drafted| drafted["drafter"] == *name), "{name}: {drafted:?}");
    }
    server.post("/v1/completions", &seeded(1, json!({ "speculative.type": "draft+draft-2" }))).success();
    for wrong in ["draft-2,draft-2", "draft-3", "draft-2,magic", "draft-2,auto"] {
        let refused = server.post("/v1/completions", &seeded(1, json!({ "speculative.type": wrong }))).error(400);
        assert_eq!(refused.0.as_deref(), Some("speculative.type"), "{wrong}");
    }
    server.shut_down();
}

#[test]
fn unavailable_drafters_and_wrong_fields_are_refused_by_name() {
    for (more, field) in [
        (json!({ "speculative.type": "phrases" }), "speculative.type"),
        (json!({ "speculative.type": "magic" }), "speculative.type"),
        (json!({ "speculative.type": "" }), "speculative.type"),
        (json!({ "speculative.type": "draft:draft" }), "speculative.type"),
        (json!({ "speculative.type": "suffix,suffix" }), "speculative.type"),
        (json!({ "speculative.type": 5 }), "speculative.type"),
        (json!({ "speculative": "draft" }), "speculative"),
        (json!({ "speculative": { "n_max": -1 } }), "speculative.n_max"),
        (json!({ "speculative": { "n_max": 2 }, "speculative.n_max": 2 }), "speculative.n_max"),
        (json!({ "speculative.n_max": 2, "speculative.n_min": 3 }), "speculative.n_min"),
        (json!({ "speculative.n_min": 1000 }), "speculative.n_min"),
        (json!({ "speculative.p_min": 1.5 }), "speculative.p_min"),
        (json!({ "speculative.verify": "hope" }), "speculative.verify"),
        (json!({ "prediction": "text" }), "prediction"),
        (json!({ "prediction": { "content": "text" } }), "prediction.type"),
        (json!({ "prediction": { "type": "content" } }), "prediction.content"),
        (json!({ "prediction": { "type": "content", "content": [{ "type": "image" }] } }), "prediction.content"),
        (json!({ "return_provenance": "yes" }), "return_provenance"),
    ] {
        let (param, message) = shared().post("/v1/completions", &seeded(1, more)).error(400);
        assert_eq!(param.as_deref(), Some(field), "{message}");
    }
    let (_, message) =
        shared().post("/v1/completions", &seeded(1, json!({ "speculative.type": "phrases" }))).error(400);
    assert!(
        message.contains("draft") && message.contains("suffix"),
        "the message does not list the drafters that there are: {message}"
    );
}

#[test]
fn predictions_are_counted() {
    let expected = texts(&complete(json!({}))).remove(0);
    let details = |answer: &Value| {
        let details = &answer["usage"]["completion_tokens_details"];
        (count(&details["accepted_prediction_tokens"]), count(&details["rejected_prediction_tokens"]))
    };
    assert_eq!(details(&complete(json!({}))), (0, 0));
    for content in [json!(expected), json!([{ "type": "text", "text": expected }])] {
        let body = seeded(31, json!({ "prediction": { "type": "content", "content": content } }));
        let answer = drafting().post("/v1/completions", &body).success();
        assert_eq!(texts(&answer)[0], expected);
        let (accepted, _) = details(&answer);
        assert!(accepted >= 30, "{accepted} of 40 predicted tokens are accepted");
        assert!(count(&answer["timings"]["passes"]) < 20, "{}", answer["timings"]);
        let streamed = with(body, json!({ "stream": true, "stream_options": { "include_usage": true } }));
        let events = drafting().events("/v1/completions", &streamed).all().expect("a stream");
        assert!(details(events.last().expect("usage")).0 >= 30);
    }
    let wrong = json!({ "type": "content", "content": "Once upon a time, nothing like it ever was, a, a, the" });
    let answer = complete(json!({ "prediction": wrong, "prompt": "Once upon a time, nothing" }));
    let (accepted, rejected) = details(&answer);
    assert!(accepted + rejected > 0 && accepted < 10, "{accepted} {rejected}");
}

#[test]
fn provenance_adds_up_to_the_text_and_to_the_counts() {
    for more in [
        json!({ "speculative.type": "draft", "speculative.n_min": 2 }),
        json!({ "speculative.type": "draft,suffix", "n": 2, "speculative.n_max": 6 }),
        json!({ "speculative.n_max": 0 }),
        json!({ "temperature": 0 }),
    ] {
        let body = seeded(31, with(more, json!({ "return_provenance": true })));
        let answer = drafting().post("/v1/completions", &body).success();
        let choices = answer["choices"].as_array().expect("a list");
        let all = |name: &'static str| choices.iter().flat_map(move |choice| choice[name].as_array().expect("a list"));
        for choice in choices {
            let provenance = choice["provenance"].as_array().expect("a list");
            let text: String = provenance.iter().map(|token| token["text"].as_str().expect("a text")).collect();
            assert_eq!(choice["text"], text);
            let passes: Vec<u64> = provenance.iter().map(|token| count(&token["pass"])).collect();
            assert!(passes.is_sorted(), "{passes:?}");
            for token in provenance {
                let p = token["p"].as_f64().expect("a probability");
                assert!(p > 0.0 && p <= 1.0, "{token}");
                assert_eq!(token["origin"] != "target", count(&token["depth"]) > 0, "{token}");
            }
        }
        let timings = &answer["timings"];
        let by_drafters = all("provenance").filter(|token| token["origin"] != "target").count() as u64;
        assert_eq!(by_drafters, count(&timings["draft_n_accepted"]), "{body}");
        assert_eq!(all("drafted").count() as u64, count(&timings["draft_n"]), "{body}");
        let accepted = all("drafted").filter(|drafted| drafted["accepted"] == true).count() as u64;
        assert_eq!(accepted, by_drafters, "{body}");
        assert_eq!(all("provenance").count() as u64, count(&answer["usage"]["completion_tokens"]), "{body}");
        // The events of a stream add up to the same.
        let events =
            drafting().events("/v1/completions", &with(body, json!({ "stream": true }))).all().expect("a stream");
        let mut tokens = 0;
        for choice in events.iter().filter_map(|event| event["choices"].get(0)) {
            tokens += choice["provenance"].as_array().map_or(0, Vec::len);
        }
        assert_eq!(tokens, all("provenance").count());
    }
}
