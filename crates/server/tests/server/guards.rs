//! Access control and HTTP: keys, hosts, origins, methods, and connections that are kept alive.

use std::io::Read;

use serde_json::{Value, json};

use crate::bodies::{seeded, texts, with};
use crate::test_server::{TestServer, shared};

const CHAT: &str = "/v1/chat/completions";

#[test]
fn the_model_is_listed_and_checked_by_name() {
    for path in ["/v1/models", "/models"] {
        let list = shared().get(path).success();
        assert_eq!((&list["object"], &list["data"][0]["id"]), (&json!("list"), &json!("demo-target")));
    }
    let model = shared().get("/v1/models/demo-target").success();
    assert_eq!((&model["object"], &model["max_model_len"]), (&json!("model"), &json!(512)));
    assert_eq!((&model["meta"]["n_vocab"], &model["meta"]["parallel"]), (&json!(8192), &json!(8)));
    let (param, _) = shared().get("/v1/models/gpt-9").error(404);
    assert_eq!(param.as_deref(), Some("model"));
    for path in ["/v1/completions", CHAT, "/tokenize", "/detokenize"] {
        let answer = shared().post(path, &json!({ "model": "gpt-9", "prompt": "a", "content": "a", "tokens": [1] }));
        assert_eq!(answer.error(404).0.as_deref(), Some("model"), "{path}");
        assert_eq!(answer.json()["error"]["code"], "model_not_found");
    }
    assert_eq!(
        shared().post("/v1/completions", &seeded(1, json!({ "model": 5 }))).error(400).0.as_deref(),
        Some("model")
    );
    shared().post("/v1/completions", &seeded(1, json!({ "model": "demo-target" }))).success();
    let server = TestServer::open(|_, server_settings| server_settings.aliases = vec!["house/of \u{e9}".into()]);
    assert_eq!(server.get("/v1/models/house/of%20%C3%A9").success()["id"], "house/of \u{e9}");
    assert_eq!(server.post("/v1/completions", &seeded(1, json!({ "model": "demo-target" }))).status(), 404);
    server.shut_down();
}

#[test]
fn unknown_paths_and_methods_are_refused() {
    for path in [
        "/nothing",
        "/v1",
        "/v1/",
        "/v2/models",
        "//",
        "/v1/models/",
        "/page/../secret",
        "/page/%2e%2e/secret",
        "/etc/passwd",
    ] {
        shared().get(path).error(404);
    }
    for (method, path) in [
        ("GET", CHAT),
        ("PUT", CHAT),
        ("DELETE", "/v1/models"),
        ("POST", "/metrics"),
        ("POST", "/health"),
        ("POST", "/"),
    ] {
        let answer = shared().client().request(method, path, &[], &[]);
        answer.error(405);
        assert!(answer.head.header("allow").is_some(), "{method} {path}");
    }
    for path in ["/v1/embeddings", "/embeddings", "/v1/rerank", "/v1/images/generations"] {
        let answer = shared().post(path, &json!({ "input": "a" }));
        let (_, message) = answer.error(400);
        assert!(message.contains("/v1/chat/completions"), "{message}");
        assert_eq!(answer.json()["error"]["code"], "unsupported");
    }
}

#[test]
fn a_key_is_required_if_some_are_set() {
    let server = TestServer::open(|_, server_settings| {
        server_settings.api_keys = vec!["secret-one".into(), "secret-two".into()];
    });
    let with_key = |method: &str, path: &str, key: &str| {
        let body = if method == "POST" { seeded(1, json!({ "max_tokens": 1 })).to_string() } else { String::new() };
        let headers: &[(&str, &str)] = if key.is_empty() { &[] } else { &[("Authorization", key)] };
        server.client().request(method, path, headers, body.as_bytes())
    };
    for (method, path) in
        [("POST", "/v1/completions"), ("GET", "/v1/models"), ("GET", "/metrics"), ("POST", "/tokenize")]
    {
        for wrong in ["", "Bearer", "Bearer ", "Bearer wrong", "Basic secret-one", "secret-one", "Bearer secret-onex"] {
            let answer = with_key(method, path, wrong);
            answer.error(401);
            assert_eq!(answer.head.header("www-authenticate"), Some("Bearer"));
            assert_eq!(answer.json()["error"]["type"], "authentication_error");
            assert!(!answer.text().contains("secret"), "the response contains a key");
        }
    }
    for key in ["Bearer secret-one", "bearer secret-two"] {
        assert_eq!(with_key("POST", "/v1/completions", key).status(), 200);
        assert_eq!(with_key("GET", "/v1/models", key).status(), 200);
    }
    // Health and the page are public.
    assert_eq!(with_key("GET", "/health", "").status(), 200);
    assert_eq!(with_key("GET", "/", "").status(), 200);
    assert_eq!(with_key("GET", "/nothing", "").status(), 404);
    server.shut_down();
}

#[test]
fn requests_with_different_keys_share_no_cache() {
    let server = TestServer::open(|_, server_settings| server_settings.api_keys = vec!["a".into(), "b".into()]);
    let ask = |key: &str, salt: Value| {
        let body = seeded(1, json!({ "prompt": "word ".repeat(100), "max_tokens": 1, "cache_salt": salt }));
        let key = format!("Bearer {key}");
        let answer =
            server.client().request("POST", "/v1/completions", &[("Authorization", &key)], body.to_string().as_bytes());
        answer.success()["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().expect("a count")
    };
    assert_eq!(ask("a", json!(null)), 0);
    assert!(ask("a", json!(null)) > 50);
    assert_eq!(ask("b", json!(null)), 0);
    assert_eq!(ask("a", json!("pepper")), 0);
    assert!(ask("a", json!("pepper")) > 50);
    server.shut_down();
}

#[test]
fn on_the_loopback_interface_only_its_host_names_are_allowed() {
    for (host, status) in [
        ("localhost", 200),
        ("localhost:1234", 200),
        ("[::1]:80", 200),
        ("127.0.0.1", 200),
        ("evil.example", 403),
        ("localhost.evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("192.168.1.7", 403),
        ("", 403),
    ] {
        for path in ["/health", "/", "/v1/models", "/nothing"] {
            let found = shared().client().request("GET", path, &[("Host", host)], &[]).status();
            let expected = if path == "/nothing" && status == 200 { 404 } else { status };
            assert_eq!(found, expected, "{host} {path}");
        }
    }
}

#[test]
fn other_origins_need_permission() {
    let own = format!("http://{}", shared().address);
    let ask = |server: &TestServer, method: &str, origin: &str| {
        server.client().request(method, "/v1/models", &[("Origin", origin)], &[])
    };
    let same = ask(shared(), "GET", &own);
    assert_eq!((same.status(), same.head.header("access-control-allow-origin")), (200, None));
    for origin in ["http://evil.example", "null", "file://"] {
        let answer = ask(shared(), "GET", origin);
        answer.error(403);
        assert_eq!(answer.head.header("access-control-allow-origin"), None);
        assert_eq!(ask(shared(), "OPTIONS", origin).status(), 403);
    }
    // A picture or a link of another page has no origin; a browser says from where it is.
    for (site, path, status) in [
        ("cross-site", "/v1/models", 403),
        ("same-site", "/props", 403),
        ("same-origin", "/v1/models", 200),
        ("none", "/v1/models", 200),
        ("cross-site", "/", 200),
    ] {
        let answer = shared().client().request("GET", path, &[("Sec-Fetch-Site", site)], &[]);
        assert_eq!(answer.status(), status, "{site} {path}");
    }
    let server = TestServer::open(|_, server_settings| {
        server_settings.cors_origins = vec!["http://good.example".into()];
        server_settings.api_keys = vec!["key".into()];
    });
    let allowed = ask(&server, "OPTIONS", "http://good.example");
    assert_eq!(allowed.status(), 204);
    assert_eq!(allowed.head.header("access-control-allow-origin"), Some("http://good.example"));
    for name in ["access-control-allow-methods", "access-control-allow-headers", "access-control-max-age", "vary"] {
        assert!(allowed.head.header(name).is_some(), "{name}: {allowed:?}");
    }
    // A page must be able to read errors, too.
    let refused = ask(&server, "GET", "http://good.example");
    refused.error(401);
    assert_eq!(refused.head.header("access-control-allow-origin"), Some("http://good.example"));
    assert_eq!(ask(&server, "OPTIONS", "http://evil.example").status(), 403);
    server.shut_down();
}

#[test]
fn the_page_is_served_and_loads_nothing_from_elsewhere() {
    let page = shared().get("/");
    assert_eq!(page.status(), 200);
    assert!(page.head.header("content-type").is_some_and(|kind| kind.starts_with("text/html")));
    let policy = page.head.header("content-security-policy").expect("a policy");
    assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
    for link in page.text().split(['"', '\'']).filter(|link| link.starts_with("/page/")) {
        assert_eq!(shared().get(link).status(), 200, "{link}");
    }
    assert_eq!(page.head.header("x-content-type-options"), Some("nosniff"));
    let server = TestServer::open(|_, server_settings| server_settings.page = false);
    server.get("/").error(404);
    server.shut_down();
}

#[test]
fn head_responses_have_no_body_and_connections_are_kept_alive() {
    let mut client = shared().client();
    for path in ["/health", "/v1/models", "/", "/metrics"] {
        client.send("HEAD", path, &[], &[]).expect("the server takes it");
        let head = client.head().expect("a head");
        assert!(head.status == 200 && head.header("content-length").is_some(), "{path}: {head:?}");
    }
    for seed in 0..3 {
        let body = seeded(seed, json!({ "max_tokens": 3 }));
        assert_eq!(texts(&client.post("/v1/completions", &body).success()).len(), 1);
        client.post("/v1/completions", &json!({ "prompt": 5 })).error(400);
        client.get("/nothing").error(404);
    }
    client.send("GET", "/health", &[("Connection", "close")], &[]).expect("the server takes it");
    assert_eq!(client.receive().expect("an answer").status(), 200);
    assert!(client.is_closed());
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let mut client = shared().client();
    let bodies: Vec<Value> = (0..6)
        .map(|seed| match seed % 3 {
            2 => seeded(seed, json!({ "n": 0 })),
            0 => seeded(seed, json!({ "max_tokens": 20 })),
            _ => seeded(seed, json!({ "max_tokens": 2, "stream": true })),
        })
        .collect();
    for body in &bodies {
        client.send("POST", "/v1/completions", &[], body.to_string().as_bytes()).expect("the server takes it");
    }
    client.send("GET", "/health", &[], &[]).expect("the server takes it");
    for (seed, body) in bodies.iter().enumerate() {
        let answer = client.receive().expect("an answer");
        match seed % 3 {
            0 => assert_eq!(answer.success(), with(answer.success(), json!({})), "{body}"),
            1 => assert!(answer.head.is_event_stream() && answer.text().ends_with("data: [DONE]\n\n"), "{body}"),
            _ => drop(answer.error(400)),
        }
        if seed % 3 == 0 {
            assert_eq!(answer.success()["choices"][0]["seed"], seed);
        }
    }
    assert_eq!(client.receive().expect("an answer").success()["status"], "ok");
}

#[test]
fn malformed_http_is_refused_or_disconnected() {
    for bytes in [
        &b"\r\n\r\n\r\n"[..],
        b"GET / HTTP/3.0\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\nConnection: close\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: a b\r\n\r\n",
    ] {
        let mut client = shared().client();
        client.send_raw(bytes).expect("the server takes it");
        client.stream().shutdown(std::net::Shutdown::Write).expect("it is open");
        if let Ok(answer) = client.receive() {
            assert!((400..500).contains(&answer.status()), "{bytes:?}: {answer:?}");
        }
    }
    // Chunked bodies are accepted.
    let mut client = shared().client();
    let body = seeded(2, json!({ "max_tokens": 2 })).to_string();
    let (first, second) = body.split_at(10);
    let head =
        format!("POST /v1/completions HTTP/1.1\r\nHost: {}\r\nTransfer-Encoding: chunked\r\n\r\n", client.address);
    client
        .send_raw(
            format!("{head}{:x}\r\n{first}\r\n{:x}\r\n{second}\r\n0\r\n\r\n", first.len(), second.len()).as_bytes(),
        )
        .expect("the server takes it");
    client.receive().expect("an answer").success();
    // HTTP/1.0 has no Host header.
    let mut client = shared().client();
    client.send_raw(b"GET /health HTTP/1.0\r\n\r\n").expect("the server takes it");
    let mut answer = String::new();
    client.stream().read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.0 200 OK\r\n"), "{answer}");
    let (param, _) = shared().get("/v1/models/%FF").error(404);
    assert_eq!(param.as_deref(), Some("model"));
    // `Expect: 100-continue` is answered, unless the body would be too large.
    let mut client = shared().client();
    let head = format!("POST /v1/completions HTTP/1.1\r\nHost: {}\r\nExpect: 100-continue\r\n", client.address);
    client.send_raw(format!("{head}Content-Length: 99999999999\r\n\r\n").as_bytes()).expect("the server takes it");
    client.receive().expect("an answer").error(413);
    let mut client = shared().client();
    let head = format!("POST /v1/completions HTTP/1.1\r\nHost: {}\r\nExpect: 100-continue\r\n", client.address);
    client.send_raw(format!("{head}Content-Length: {}\r\n\r\n", body.len()).as_bytes()).expect("the server takes it");
    assert_eq!(client.head().expect("a head").status, 100);
    client.send_raw(body.as_bytes()).expect("the server takes it");
    client.receive().expect("an answer").success();
}

#[test]
fn requests_that_a_proxy_may_interpret_differently_are_refused() {
    for (status, request) in [
        (400, "GET /health HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n"),
        (400, "GET /health HTTP/1.1\r\nHost: 127.0.0.1:18500@evil.com\r\n\r\n"),
        (400, "GET /health HTTP/1.1\r\nHost: localhost:65536\r\n\r\n"),
        (400, "GET http://localhost@evil.com/health HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        (403, "GET http://evil.example/health HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        (
            400,
            "GET /health HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\nOrigin: http://a.example\r\n\r\n",
        ),
        (
            400,
            "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n\
             12\r\n{\"content\": \"abc\"}\r\n0\r\n\r\n",
        ),
        (
            400,
            "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nContent-Length: 28\r\n\r\n\
             12\r\n{\"content\": \"abc\"}\r\n0\r\n\r\n",
        ),
    ] {
        let mut client = shared().client();
        client.send_raw(request.as_bytes()).expect("the server takes it");
        assert_eq!(client.receive().expect("an answer").status(), status, "{request}");
    }
    // Also on a connection that had other requests before.
    let mut client = shared().client();
    client.post("/tokenize", &json!({ "content": "abc" })).success();
    for (more, status) in [("", 200), ("Content-Length: 28\r\n", 400)] {
        let head = format!("POST /tokenize HTTP/1.1\r\nHost: localhost\r\n{more}Transfer-Encoding: chunked\r\n\r\n");
        let body = "12\r\n{\"content\": \"abc\"}\r\n0\r\n\r\n";
        client.send_raw(format!("{head}{body}").as_bytes()).expect("the server takes it");
        assert_eq!(client.receive().expect("an answer").status(), status, "{more}");
    }
}
