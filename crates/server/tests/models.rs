//! Several models behind one server: each is opened when a request names it, and closed if memory is short. These tests
//! are a program of their own, since the memory limit holds for the whole process.

#[allow(dead_code)]
#[path = "server/client.rs"]
mod client;
#[allow(dead_code)]
#[path = "server/probe.rs"]
mod probe;
#[allow(dead_code)]
#[path = "server/test_server.rs"]
mod test_server;

/// Nothing is logged.
mod log {
    pub fn install() {}
}

use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use foretoken::{Error, MemoryLimit, Settings};
use foretoken_server::{ModelOffer, ServerError};
use serde_json::{Value, json};

use crate::client::Client;
use crate::test_server::TestServer;

/// The memory limit is global, so these tests run one after another.
static MEMORY_LIMIT_LOCK: Mutex<()> = Mutex::new(());

/// The demo draft as a further model, under two names.
fn offers(folder: &tempfile::TempDir) -> Vec<ModelOffer> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo-draft");
    let offer = |name: &str| {
        let mut settings = test_server::settings(folder);
        settings.model.path = Some(path.clone());
        settings.speculation.costs = Some(folder.path().join(name));
        ModelOffer { name: name.to_string(), settings }
    };
    ["small", "again"].map(offer).to_vec()
}

fn complete(client: &mut Client, model: Option<&str>) -> (String, String) {
    let mut body = json!({ "prompt": "once upon a time", "max_tokens": 12, "temperature": 0 });
    if let Some(model) = model {
        body["model"] = json!(model);
    }
    let answer = client.post("/v1/completions", &body).success();
    let text = |value: &Value| value.as_str().expect("a text").to_string();
    (text(&answer["model"]), text(&answer["choices"][0]["text"]))
}

/// Makes the KV cache about half a gigabyte, which no test fills.
fn use_large_cache(settings: &mut Settings) {
    settings.parallel = if settings.model.path.is_none() { 64 } else { 256 };
    settings.model.ctx_size = Some(4096);
}

/// The names of the open models, in the order of the list.
fn open_models(server: &TestServer) -> Vec<String> {
    let list = server.get("/v1/models").success();
    let all = list["data"].as_array().expect("a list").iter();
    let open = all.filter(|model| model["status"]["value"] == "loaded");
    open.map(|model| model["id"].as_str().expect("a name").to_string()).collect()
}

#[test]
fn a_model_is_opened_when_a_request_names_it() {
    let _lock = MEMORY_LIMIT_LOCK.lock();
    let folder = tempfile::tempdir().expect("a folder");
    let server = TestServer::open_several(
        |_, server_settings| server_settings.aliases = vec!["large".to_string()],
        offers(&folder),
    );
    assert_eq!(open_models(&server), ["large"]);
    let mut client = server.client();
    let large = complete(&mut client, None);
    assert_eq!(large.0, "large");
    assert_eq!(open_models(&server), ["large"], "no request named another model");
    let small = complete(&mut client, Some("small"));
    assert_eq!((small.0.as_str(), open_models(&server)), ("small", vec!["large".to_string(), "small".to_string()]));
    assert_ne!(large.1, small.1);
    // The page opens a chosen model with this request.
    let nothing = client.post("/tokenize", &json!({ "model": "again", "content": "" })).success();
    assert_eq!((&nothing["tokens"], open_models(&server).len()), (&json!([]), 3));
    // Ollama's clients append a tag to the name.
    assert_eq!(complete(&mut client, Some("again:latest")), ("again".to_string(), small.1));
    assert_eq!(complete(&mut client, Some("large")), large);
    let one = server.get("/v1/models/small").success();
    assert!(one["meta"]["n_ctx"].is_number(), "{one}");
    assert_eq!(server.get("/props?model=small").success()["model_alias"], "small");
    assert_eq!(server.get("/slots?model=small").success().as_array().map(Vec::len), Some(8));
    let metrics = server.get("/metrics?model=small");
    assert!(metrics.text().contains("foretoken:generation_tokens_total 12"), "{}", metrics.text());
    let body = json!({ "prompt": "a", "model": "other" });
    let (field, message) = server.post("/v1/completions", &body).error(404);
    assert_eq!(field.as_deref(), Some("model"));
    assert!(message.contains("expected large, small, again, found other"), "{message}");
    server.shut_down();
}

#[test]
fn an_unknown_name_means_the_first_model_if_it_has_the_alias_star() {
    let _lock = MEMORY_LIMIT_LOCK.lock();
    let folder = tempfile::tempdir().expect("a folder");
    let any = |_: &mut Settings, server_settings: &mut foretoken_server::ServerSettings| {
        server_settings.aliases = vec!["*".to_string()];
    };
    let server = TestServer::open_several(any, offers(&folder));
    let mut client = server.client();
    let names = [None, Some("gpt-4o"), Some("small")].map(|name| complete(&mut client, name).0);
    assert_eq!([names[0] == names[1], names[2] == "small"], [true; 2], "{names:?}");
    server.shut_down();
}

/// With memory for one large model, each is closed for the other, and running requests finish first.
#[test]
fn the_least_recently_used_model_is_closed_if_memory_is_short() {
    let _lock = MEMORY_LIMIT_LOCK.lock();
    let folder = tempfile::tempdir().expect("a folder");
    let mut others = offers(&folder);
    others.iter_mut().for_each(|offer| use_large_cache(&mut offer.settings));
    let server = TestServer::open_several(|settings, _| use_large_cache(settings), others);
    let first = open_models(&server).remove(0);
    let mut client = server.client();
    let expected = [None, Some("small"), Some("again")].map(|name| complete(&mut client, name));
    assert_eq!(open_models(&server), [first.as_str(), "small", "again"], "all fit into memory");
    // A long request runs while its model has to be closed.
    let long = json!({ "model": "small", "prompt": "once upon a time", "max_tokens": 400, "ignore_eos": true });
    let server_address = server.address;
    let expected_response = Client::connect(server_address).post("/v1/completions", &with_seed(&long)).success();
    server.shut_down();
    let most = limit_for_the_first(&folder, use_large_cache);
    MemoryLimit::Bytes(most).choose();
    let mut others = offers(&folder);
    others.iter_mut().for_each(|offer| use_large_cache(&mut offer.settings));
    let server = TestServer::open_several(|settings, _| use_large_cache(settings), others);
    let mut client = server.client();
    for _ in 0..2 {
        for (name, expected) in [None, Some("small"), Some("again")].into_iter().zip(&expected) {
            assert_eq!(complete(&mut client, name), *expected);
            assert!(
                open_models(&server).contains(&expected.0) && open_models(&server).len() < 3,
                "{:?}",
                open_models(&server)
            );
        }
    }
    complete(&mut client, Some("small"));
    let running = {
        let address = server.address;
        std::thread::spawn(move || Client::connect(address).post("/v1/completions", &with_seed(&long)).success())
    };
    server.wait_for(1, 0);
    assert_eq!(complete(&mut client, None), expected[0]);
    assert_eq!(complete(&mut client, Some("again")), expected[2]);
    let response = running.join().expect("it is answered");
    assert_eq!(response["choices"][0]["text"], expected_response["choices"][0]["text"]);
    MemoryLimit::Free.choose();
    server.shut_down();
}

fn with_seed(body: &Value) -> Value {
    let mut body = body.clone();
    body["seed"] = json!(7);
    body
}

/// A memory limit that the first model fits into, with some margin.
fn limit_for_the_first(folder: &tempfile::TempDir, use_large_cache: impl Fn(&mut Settings)) -> usize {
    let mut settings = test_server::settings(folder);
    use_large_cache(&mut settings);
    let fits = |bytes: usize| {
        MemoryLimit::Bytes(bytes).choose();
        match foretoken_server::Server::open(&settings, &mut |_| {}) {
            Ok(_) => true,
            Err(Error::Memory(..)) => false,
            Err(error) => panic!("{error}"),
        }
    };
    let smallest = (1..).map(|step| step << 26).find(|bytes| fits(*bytes)).expect("some limit suffices");
    MemoryLimit::Free.choose();
    smallest + (1 << 27)
}

/// A client that disconnects while a model waits for another to be closed leaves both in a valid state.
#[test]
fn a_client_that_disconnects_while_a_model_is_opened_does_no_harm() {
    let _lock = MEMORY_LIMIT_LOCK.lock();
    let folder = tempfile::tempdir().expect("a folder");
    MemoryLimit::Bytes(limit_for_the_first(&folder, use_large_cache)).choose();
    let mut others = offers(&folder);
    others.iter_mut().for_each(|offer| use_large_cache(&mut offer.settings));
    // A model that never fits closes no other.
    others[1].settings.model.path = Some(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo-target"));
    let server = TestServer::open_several(|settings, _| use_large_cache(settings), others);
    let first = open_models(&server);
    server.post("/v1/completions", &json!({ "prompt": "a", "model": "again" })).error(503);
    assert_eq!(open_models(&server), first);
    let long = json!({ "prompt": "once upon a time", "max_tokens": 1500, "ignore_eos": true });
    let running = {
        let address = server.address;
        std::thread::spawn(move || Client::connect(address).post("/v1/completions", &with_seed(&long)).success())
    };
    server.wait_for(1, 0);
    for _ in 0..3 {
        let mut client = server.client();
        let body = json!({ "model": "small", "prompt": "a", "max_tokens": 4 }).to_string();
        client.send("POST", "/v1/completions", &[], body.as_bytes()).expect("it is open");
        std::thread::sleep(Duration::from_millis(100));
    }
    let mut client = server.client();
    assert_eq!([None, Some("small"), None].map(|name| complete(&mut client, name).0)[1], "small");
    running.join().expect("it is answered");
    assert_eq!(server.get("/slots?model=small").status(), 503, "observing a model does not open it");
    MemoryLimit::Free.choose();
    server.shut_down();
}

#[test]
fn two_models_with_the_same_name_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut others = offers(&folder);
    others[1].name = "small".to_string();
    let found = TestServer::try_open_several(|_, _| {}, others).err();
    let Some(ServerError::Setting(message)) = found else { panic!("{found:?}") };
    assert_eq!(message, "models: expected names of which each is another, found small twice");
}
