//! Encoder-decoders: the prompt of a completion is what the encoder reads, whole, streamed, drafted and of several
//! choices at once; what such a model cannot do is refused with its reason.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::bodies::{streamed_texts, texts, with};
use crate::test_server::TestServer;

const COMPLETIONS: &str = "/v1/completions";

/// A golden network in a new folder, with a tokenizer of 64 characters that adds `</s>`.
fn folder(name: &str) -> tempfile::TempDir {
    let (folder, crates) = (tempfile::tempdir().expect("a folder"), Path::new(env!("CARGO_MANIFEST_DIR")).join(".."));
    let network = crates.join("model/tests/golden").join(name);
    let tokenizer = crates.join("text/tests/unigram/tokenizer.json");
    for file in [network.join("config.json"), network.join("model.safetensors"), tokenizer] {
        let to = folder.path().join(file.file_name().expect("a file's name"));
        std::fs::copy(file, to).expect("it can be copied");
    }
    folder
}

/// A server of a golden network with these drafters, and with this draft model if there is one.
fn server(target: &Path, spec_type: &str, draft: Option<PathBuf>) -> TestServer {
    TestServer::open(|settings, _| {
        settings.model.path = Some(target.to_owned());
        settings.speculation.spec_type = spec_type.parse().expect("drafters");
        settings.speculation.model_draft = draft.into_iter().collect();
    })
}

fn completion(more: Value) -> Value {
    with(json!({ "prompt": "ba c", "max_tokens": 24, "temperature": 0.8, "seed": 5 }), more)
}

#[test]
fn the_prompt_is_the_source_whole_streamed_and_drafted() {
    let (target, draft) = (folder("t5-v1_1"), folder("mt5"));
    let plain = server(target.path(), "none", None);
    let whole = plain.post(COMPLETIONS, &completion(json!({}))).success();
    // A space, "b", "a", a space, "c" and the end.
    let usage = &whole["usage"];
    assert_eq!([&usage["prompt_tokens"], &usage["completion_tokens"]], [&json!(6), &json!(24)], "{usage}");
    let by_ids = completion(json!({ "prompt": [3, 5, 4, 3, 6, 1] }));
    assert_eq!(texts(&plain.post(COMPLETIONS, &by_ids).success()), texts(&whole));
    let other = completion(json!({ "prompt": "ab c" }));
    assert_ne!(texts(&plain.post(COMPLETIONS, &other).success()), texts(&whole));
    let search = json!({ "temperature": 0, "use_beam_search": true, "n": 3 });
    let hypotheses = texts(&plain.post(COMPLETIONS, &completion(search.clone())).success());
    assert_eq!(hypotheses.len(), 3);
    for spec_type in ["none", "draft", "draft,suffix,ngram,trie"] {
        let draft = spec_type.starts_with("draft").then(|| draft.path().to_owned());
        let server = server(target.path(), spec_type, draft);
        assert_eq!(texts(&server.post(COMPLETIONS, &completion(json!({}))).success()), texts(&whole), "{spec_type}");
        let streamed = completion(json!({ "stream": true, "stream_options": { "include_usage": true } }));
        let events = server.events(COMPLETIONS, &streamed).all().expect("a stream");
        assert_eq!(streamed_texts(&events), texts(&whole), "{spec_type}");
        assert_eq!(events.last().map(|event| &event["usage"]["prompt_tokens"]), Some(&json!(6)), "{spec_type}");
        assert_eq!(texts(&server.post(COMPLETIONS, &completion(search.clone())).success()), hypotheses, "{spec_type}");
        server.shut_down();
    }
    plain.shut_down();
}

#[test]
fn choices_share_a_source_and_each_prompt_has_its_own() {
    let (target, draft) = (folder("t5-v1_1"), folder("mt5"));
    let server = server(target.path(), "draft,suffix", Some(draft.path().to_owned()));
    let one = |prompt: &str, seed: u64| {
        let body = completion(json!({ "prompt": prompt, "seed": seed }));
        texts(&server.post(COMPLETIONS, &body).success()).remove(0)
    };
    let expected = [one("ba c", 5), one("ba c", 5), one("Hi!", 5)];
    assert_ne!(expected[0], expected[2]);
    // Two sequences of one source, beside one of another.
    let together = completion(json!({ "prompt": ["ba c", "ba c", "Hi!"] }));
    assert_eq!(texts(&server.post(COMPLETIONS, &together).success()), expected);
    // Several answers to one source.
    let answers = texts(&server.post(COMPLETIONS, &completion(json!({ "n": 3 }))).success());
    assert_eq!(answers[0], expected[0]);
    assert!(answers[1] != answers[0] && answers[2] != answers[1], "{answers:?}");
    // At the same time from clients of their own.
    let both = std::thread::scope(|scope| {
        let threads = ["ba c", "ba c"].map(|prompt| scope.spawn(move || one(prompt, 5)));
        threads.map(|thread| thread.join().expect("an answer"))
    });
    assert_eq!(both, [&expected[0], &expected[0]].map(String::clone));
    server.shut_down();
}

#[test]
fn what_an_encoder_decoder_cannot_do_is_refused_with_its_reason() {
    let target = folder("t5");
    let server = server(target.path(), "suffix", None);
    let refused = |url: &str, body: Value| server.post(url, &body).error(400);
    let (param, message) = refused(COMPLETIONS, completion(json!({ "prompt": vec![5; 513] })));
    assert_eq!(param.as_deref(), Some("prompt"), "{message}");
    assert!(message.contains("expected 1 to 512 tokens, found 513"), "{message}");
    let (param, message) = refused(COMPLETIONS, completion(json!({ "prompt": [5, 64] })));
    assert_eq!(param.as_deref(), Some("prompt"), "{message}");
    assert!(message.contains("token 1: expected a number below 64"), "{message}");
    let (param, message) = refused(COMPLETIONS, completion(json!({ "echo": true })));
    assert_eq!(param.as_deref(), Some("echo"), "{message}");
    let (param, message) = refused(COMPLETIONS, completion(json!({ "prompt": "" })));
    assert_eq!(param.as_deref(), Some("prompt"), "{message}");
    let messages = json!([{ "role": "user", "content": "ba c" }]);
    for (url, body) in [
        ("/v1/chat/completions", json!({ "messages": messages })),
        ("/v1/responses", json!({ "input": "ba c" })),
        ("/v1/messages", json!({ "messages": messages, "max_tokens": 4 })),
        ("/api/chat", json!({ "messages": messages })),
    ] {
        let response = server.post(url, &body);
        let text = response.text();
        assert!(text.contains("an encoder-decoder, which reads a source and has no turns"), "{url}: {text}");
    }
    // A source as long as the room for it, after all that was refused.
    let longest = completion(json!({ "prompt": vec![5; 512] }));
    assert_eq!(server.post(COMPLETIONS, &longest).success()["usage"]["prompt_tokens"], 512);
    server.shut_down();
}
