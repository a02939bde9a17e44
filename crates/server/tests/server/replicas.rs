//! What routers need of a server: to know that it ends before it refuses requests, errors that can be repeated
//! elsewhere, nothing of an answer before it begins, and metrics by vLLM's names.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::bodies::seeded;
use crate::client::Client;
use crate::metrics::metrics;
use crate::test_server::{TestServer, wait_until};

#[test]
fn a_server_that_drains_is_not_ready_but_answers() {
    let mut server = TestServer::open(|_, server_settings| server_settings.drain_delay_s = 3);
    assert_eq!(server.get("/ready").success(), json!({ "status": "ready", "running": 0, "waiting": 0 }));
    let mut kept = server.client();
    assert_eq!(kept.get("/ready").head.header("connection"), None);
    let start = Instant::now();
    server.begin_shutdown();
    wait_until(|| server.get("/ready").status() == 503);
    let answer = server.get("/ready");
    let (_, message) = answer.error(503);
    assert_eq!(message, "server: expected one that accepts requests, found it shutting down");
    assert_eq!(answer.head.header("retry-after"), Some("5"));
    // Its health is another question, and new connections are answered.
    server.get("/health").success();
    let answer = server.post("/v1/completions", &seeded(1, json!({ "max_tokens": 4 })));
    answer.success();
    // A router's connections end with their next answer, so that it opens others elsewhere.
    let answer = kept.post("/v1/completions", &seeded(1, json!({ "max_tokens": 4 })));
    answer.success();
    assert_eq!(answer.head.header("connection"), Some("close"));
    assert!(kept.is_closed());
    let address = server.address;
    assert!(start.elapsed() < Duration::from_secs(3), "the delay is over already, so this tests nothing");
    wait_until(|| Client::try_connect(address).is_err());
    assert!(start.elapsed() > Duration::from_secs(2), "{:?}", start.elapsed());
    server.shut_down();
}

#[test]
fn a_request_with_the_key_ends_a_server() {
    let server = TestServer::open(|_, _| {});
    let (_, message) = server.post("/drain", &json!({})).error(403);
    assert!(message.starts_with("drain: expected a server with API keys"), "{message}");
    server.get("/ready").success();
    server.shut_down();
    let server = TestServer::open(|_, server_settings| server_settings.api_keys = vec!["key".into()]);
    server.post("/drain", &json!({})).error(401);
    server.get("/ready").success();
    let answer = server.client().request("POST", "/drain", &[("Authorization", "Bearer key")], &[]);
    assert_eq!(answer.status(), 202);
    assert_eq!(answer.json(), json!({ "status": "draining", "drain_delay": 0, "shutdown_timeout": 10 }));
    let address = server.address;
    wait_until(|| Client::try_connect(address).is_err());
    server.shut_down();
}

#[test]
fn nothing_of_a_stream_is_sent_before_it_begins() {
    let server = TestServer::open(|settings, _| {
        settings.model.ctx_size = Some(2048);
        settings.parallel = 1;
    });
    let long = json!({ "stream": true, "max_tokens": 1900, "speculative.n_max": 0 });
    let mut first = server.events("/v1/completions", &seeded(1, long.clone()));
    first.next().expect("an event");
    // Formats of all APIs wait alike.
    let bodies = [
        ("/v1/completions", seeded(2, json!({ "stream": true, "echo": true, "max_tokens": 2 }))),
        ("/v1/messages", json!({ "messages": [{ "role": "user", "content": "hi" }], "max_tokens": 2, "stream": true })),
        ("/api/generate", json!({ "prompt": "hi", "options": { "num_predict": 2 }, "stream": true })),
    ];
    let mut queued: Vec<Client> = bodies
        .iter()
        .map(|(path, body)| {
            let mut client = server.client();
            client.send("POST", path, &[], body.to_string().as_bytes()).expect("the server takes it");
            client.stream().set_read_timeout(Some(Duration::from_millis(200))).expect("it can be set");
            client
        })
        .collect();
    wait_until(|| server.load() == (1, 3));
    for client in &mut queued {
        let found = client.head().expect_err("nothing is sent while others run");
        assert!(matches!(found.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut), "{found}");
    }
    drop(first);
    for client in &mut queued {
        client.stream().set_read_timeout(Some(Duration::from_secs(60))).expect("it can be set");
        let answer = client.receive().expect("a stream");
        assert_eq!(answer.status(), 200, "{}", answer.text());
        assert!(!answer.body.is_empty());
    }
    server.shut_down();
}

#[test]
fn with_the_prefix_vllm_its_older_names_are_there_too() {
    let server = TestServer::open(|_, server_settings| server_settings.metrics_prefix = "vllm".into());
    let labels = [("model_name", "demo-target")];
    assert_eq!(metrics(&server).value("vllm:gpu_prefix_cache_hit_rate", &labels), 0.0);
    let prompt = "word ".repeat(100);
    for _ in 0..2 {
        server.post("/v1/completions", &json!({ "prompt": prompt, "max_tokens": 2, "temperature": 0 })).success();
    }
    let found = metrics(&server);
    let (queries, hits) = (
        found.value("vllm:gpu_prefix_cache_queries_total", &labels),
        found.value("vllm:gpu_prefix_cache_hits_total", &labels),
    );
    assert!(hits > 50.0 && hits < queries, "{hits} of {queries}");
    assert_eq!(found.value("vllm:gpu_prefix_cache_hit_rate", &labels), hits / queries);
    assert_eq!(found.value("vllm:prefix_cache_hits_total", &labels), hits);
    assert_eq!(found.value("vllm:generation_tokens_total", &labels), 4.0);
    assert_eq!(found.kinds.get("vllm:gpu_cache_usage_perc").map(String::as_str), Some("gauge"));
    let (_, cache) = found
        .series
        .keys()
        .find(|(name, _)| name == "vllm:cache_config_info")
        .unwrap_or_else(|| panic!("the cache's settings are missing: {found:?}"));
    let number = |name: &str| cache[name].parse::<usize>().expect("a number");
    assert!(number("block_size") >= 8 && number("num_gpu_blocks") >= 8, "{cache:?}");
    assert!(found.series.keys().all(|(name, _)| name.starts_with("vllm:")));
    server.shut_down();
}
