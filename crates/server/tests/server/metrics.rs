//! `/metrics`: Prometheus can parse it, and its counts match the requests.

use serde_json::{Value, json};

use crate::bodies::seeded;
use crate::prometheus::{Exposition, Labels, read};
use crate::test_server::TestServer;

pub fn metrics(server: &TestServer) -> Exposition {
    let answer = server.get("/metrics");
    let kind = answer.head.header("content-type").expect("a type");
    assert!(kind.starts_with("application/openmetrics-text; version=1.0.0"), "{kind}");
    read(answer.text()).unwrap_or_else(|error| panic!("{error}\n{}", answer.text()))
}

/// All names that dashboards may use, with their types.
const NAMES: [(&str, &str); 23] = [
    ("num_requests_running", "gauge"),
    ("num_requests_waiting", "gauge"),
    ("kv_cache_usage_perc", "gauge"),
    ("prompt_tokens", "counter"),
    ("generation_tokens", "counter"),
    ("prefix_cache_queries", "counter"),
    ("prefix_cache_hits", "counter"),
    ("num_preemptions", "counter"),
    ("request_success", "counter"),
    ("time_to_first_token_seconds", "histogram"),
    ("request_time_per_output_token_seconds", "histogram"),
    ("e2e_request_latency_seconds", "histogram"),
    ("spec_decode_num_drafts", "counter"),
    ("spec_decode_num_draft_tokens", "counter"),
    ("spec_decode_num_accepted_tokens", "counter"),
    ("spec_decode_num_accepted_tokens_per_pos", "counter"),
    ("spec_decode_drafter_failures", "counter"),
    ("passes", "counter"),
    ("pass_rows", "counter"),
    ("pass_experts", "counter"),
    ("pass_experts_packed", "counter"),
    ("pass_bytes", "counter"),
    ("http_requests", "counter"),
];

#[test]
fn counts_match_the_requests() {
    let server = TestServer::open(|settings, _| settings.speculation.budget = foretoken::settings::Budget::Fixed);
    // The very first response cannot count itself.
    server.get("/health").success();
    let before = metrics(&server);
    for (name, kind) in NAMES {
        assert_eq!(before.kinds.get(&format!("foretoken:{name}")).map(String::as_str), Some(kind), "{name}");
    }
    assert_eq!(before.kinds.len(), NAMES.len());
    assert_eq!(before.sum("foretoken:generation_tokens_total"), 0.0);
    // Completions with and without streaming, a chat, and some refused requests.
    let number = |value: &Value| value.as_f64().expect("a number");
    let mut answers = Vec::new();
    for more in
        [json!({ "n": 2 }), json!({ "speculative.type": "draft", "speculative.n_min": 2 }), json!({ "max_tokens": 1 })]
    {
        answers.push(server.post("/v1/completions", &seeded(1, more)).success());
    }
    let stream = seeded(1, json!({ "stream": true, "stream_options": { "include_usage": true } }));
    let events = server.events("/v1/completions", &stream).all().expect("a stream");
    let chat = json!({ "messages": [{ "role": "user", "content": "hello" }], "temperature": 0, "max_tokens": 200 });
    let chat = server.post("/v1/chat/completions", &chat).success();
    for _ in 0..3 {
        server.post("/v1/completions", &json!({ "prompt": 5 })).error(400);
    }
    server.get("/secret/path").error(404);
    let after = metrics(&server);
    let last = events.last().expect("usage")["usage"].clone();
    let written: f64 = answers.iter().chain([&chat]).map(|answer| number(&answer["usage"]["completion_tokens"])).sum();
    assert_eq!(after.sum("foretoken:generation_tokens_total"), written + number(&last["completion_tokens"]));
    let timings: Vec<&Value> = answers
        .iter()
        .chain([&chat])
        // The last event of a stream has the totals of its choices.
        .chain(events.iter().filter(|event| event["choices"] != json!([])))
        .map(|answer| &answer["timings"])
        .filter(|t| t.is_object())
        .collect();
    let total = |name: &str| timings.iter().map(|timings| number(&timings[name])).sum::<f64>();
    assert_eq!(after.sum("foretoken:generation_tokens_total"), total("predicted_n"));
    assert_eq!(after.sum("foretoken:prompt_tokens_total"), total("prompt_n"));
    assert_eq!(after.sum("foretoken:prefix_cache_hits_total"), total("cache_n"));
    assert!(total("draft_n") > 0.0 && total("draft_n_accepted") > 0.0);
    assert_eq!(after.sum("foretoken:spec_decode_num_draft_tokens_total"), total("draft_n"));
    assert_eq!(after.sum("foretoken:spec_decode_num_accepted_tokens_total"), total("draft_n_accepted"));
    assert_eq!(after.sum("foretoken:spec_decode_num_accepted_tokens_per_pos_total"), total("draft_n_accepted"));
    assert_eq!(after.sum("foretoken:spec_decode_drafter_failures_total"), 0.0);
    let ended = |why| after.value("foretoken:request_success_total", &[("finished_reason", why)]);
    assert_eq!((ended("length"), ended("stop"), ended("cancelled")), (5.0, 1.0, 0.0));
    for (name, requests) in
        [("time_to_first_token", 6.0), ("e2e_request_latency", 6.0), ("request_time_per_output_token", 5.0)]
    {
        assert_eq!(after.sum(&format!("foretoken:{name}_seconds_count")), requests, "{name}");
        assert!(after.sum(&format!("foretoken:{name}_seconds_sum")) > 0.0, "{name}");
    }
    let http = |path, status| after.value("foretoken:http_requests_total", &[("path", path), ("status", status)]);
    assert_eq!((http("/v1/completions", "200"), http("/v1/completions", "400")), (4.0, 3.0));
    assert_eq!((http("/v1/chat/completions", "200"), http("/metrics", "200")), (1.0, 1.0));
    // Unknown paths share one series.
    assert_eq!(http("other", "404"), 1.0);
    server.shut_down();
}

/// A name is a user's, and may have anything.
#[test]
fn names_of_any_kind_are_labels() {
    for name in [
        "a \"quoted\" name",
        "two\nlines",
        "a\\b\\",
        "{x=\"y\"} 1\n# EOF",
        "\u{202e}\u{1b}[2J ü 模",
        &"x".repeat(10_000),
    ] {
        let server = TestServer::open(|_, server| {
            server.aliases = vec![name.to_string()];
            server.metrics_prefix = "vllm".to_string();
        });
        server.post("/v1/completions", &seeded(1, json!({ "max_tokens": 2, "model": name }))).success();
        let found = metrics(&server);
        let of_model = |(series, _): &(String, Labels)| !series.contains("http_requests");
        let mut series = found.series.keys().filter(|key| of_model(key));
        assert!(series.all(|(_, labels)| labels.get("model_name").is_some_and(|label| label == name)), "{name:?}");
        assert_eq!(found.value("vllm:generation_tokens_total", &[("model_name", name)]), 2.0, "{name:?}");
        server.shut_down();
    }
}

#[test]
fn running_and_cancelled_requests_are_counted() {
    let server = TestServer::open(|_, _| {});
    let mut events = server.events("/v1/completions", &seeded(1, json!({ "stream": true, "max_tokens": 480, "n": 2 })));
    events.next().expect("an event");
    let during = metrics(&server);
    let running = during.sum("foretoken:num_requests_running") + during.sum("foretoken:num_requests_waiting");
    assert!(running >= 1.0 && during.sum("foretoken:kv_cache_usage_perc") <= 1.0);
    drop(events);
    server.wait_for(0, 0);
    let after = metrics(&server);
    assert_eq!(after.value("foretoken:request_success_total", &[("finished_reason", "cancelled")]), 2.0);
    assert_eq!(after.sum("foretoken:num_requests_running"), 0.0);
    assert_eq!(after.sum("foretoken:kv_cache_usage_perc"), 0.0);
    server.shut_down();
}
