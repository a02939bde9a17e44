//! Several models behind one server: opened when they are named, closed where memory is short, none mistaken for
//! another. It is a program of its own, since what may be taken of memory holds for the whole process.

#[allow(dead_code)]
#[path = "server/client.rs"]
mod client;
#[allow(dead_code)]
#[path = "server/house.rs"]
mod house;
#[allow(dead_code)]
#[path = "server/probe.rs"]
mod probe;

/// Nothing is logged.
mod log {
    pub fn begin() {}
}

use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use foretoken::{Error, MemoryLimit, Settings};
use foretoken_server::{ModelOffer, ServerError};
use serde_json::{Value, json};

use crate::client::Client;
use crate::house::House;

/// What may be taken of memory is one for all, so these tests go one after another.
static ALONE: Mutex<()> = Mutex::new(());

/// The demo draft as a model of its own, and once more under another name.
fn offers(folder: &tempfile::TempDir) -> Vec<ModelOffer> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo-draft");
    let offer = |name: &str| {
        let mut settings = house::settings(folder);
        settings.model.path = Some(path.clone());
        settings.speculation.costs = Some(folder.path().join(name));
        ModelOffer { name: name.to_string(), settings }
    };
    ["small", "again"].map(offer).to_vec()
}

fn text(client: &mut Client, model: Option<&str>) -> (String, String) {
    let mut body = json!({ "prompt": "once upon a time", "max_tokens": 12, "temperature": 0 });
    if let Some(model) = model {
        body["model"] = json!(model);
    }
    let answer = client.post("/v1/completions", &body).good();
    let of = |value: &Value| value.as_str().expect("a text").to_string();
    (of(&answer["model"]), of(&answer["choices"][0]["text"]))
}

/// Caches of about half a gigabyte, which nothing fills.
fn much(settings: &mut Settings) {
    settings.parallel = if settings.model.path.is_none() { 64 } else { 256 };
    settings.model.ctx_size = Some(4096);
}

/// Which models are open, in the order of the list.
fn opened(house: &House) -> Vec<String> {
    let list = house.get("/v1/models").good();
    let all = list["data"].as_array().expect("a list").iter();
    let open = all.filter(|model| model["status"]["value"] == "loaded");
    open.map(|model| model["id"].as_str().expect("a name").to_string()).collect()
}

#[test]
fn a_model_is_opened_when_it_is_named_and_writes_its_own_text() {
    let _alone = ALONE.lock();
    let folder = tempfile::tempdir().expect("a folder");
    let house = House::open_several(|_, server| server.aliases = vec!["large".to_string()], offers(&folder));
    assert_eq!(opened(&house), ["large"]);
    let mut client = house.client();
    let large = text(&mut client, None);
    assert_eq!(large.0, "large");
    assert_eq!(opened(&house), ["large"], "nobody asked for another");
    let small = text(&mut client, Some("small"));
    assert_eq!((small.0.as_str(), opened(&house)), ("small", vec!["large".to_string(), "small".to_string()]));
    assert_ne!(large.1, small.1);
    // As the page opens one that was chosen.
    let nothing = client.post("/tokenize", &json!({ "model": "again", "content": "" })).good();
    assert_eq!((&nothing["tokens"], opened(&house).len()), (&json!([]), 3));
    // As Ollama's clients name them.
    assert_eq!(text(&mut client, Some("again:latest")), ("again".to_string(), small.1));
    assert_eq!(text(&mut client, Some("large")), large);
    let one = house.get("/v1/models/small").good();
    assert!(one["meta"]["n_ctx"].is_number(), "{one}");
    assert_eq!(house.get("/props?model=small").good()["model_alias"], "small");
    assert_eq!(house.get("/slots?model=small").good().as_array().map(Vec::len), Some(8));
    let metrics = house.get("/metrics?model=small");
    assert!(metrics.text().contains("foretoken:generation_tokens_total 12"), "{}", metrics.text());
    let body = json!({ "prompt": "a", "model": "other" });
    let (field, message) = house.post("/v1/completions", &body).error(404);
    assert_eq!(field.as_deref(), Some("model"));
    assert!(message.contains("expected large, small, again, found other"), "{message}");
    house.end();
}

#[test]
fn a_name_that_nobody_has_is_the_first_models_where_it_has_any_name() {
    let _alone = ALONE.lock();
    let folder = tempfile::tempdir().expect("a folder");
    let any = |_: &mut Settings, server: &mut foretoken_server::ServerSettings| server.aliases = vec!["*".to_string()];
    let house = House::open_several(any, offers(&folder));
    let mut client = house.client();
    let names = [None, Some("gpt-4o"), Some("small")].map(|name| text(&mut client, name).0);
    assert_eq!([names[0] == names[1], names[2] == "small"], [true; 2], "{names:?}");
    house.end();
}

/// With room for one of them, each is closed for the other, and what runs in it is written to its end.
#[test]
fn the_model_that_was_asked_longest_ago_is_closed_for_want_of_memory() {
    let _alone = ALONE.lock();
    let folder = tempfile::tempdir().expect("a folder");
    let mut others = offers(&folder);
    others.iter_mut().for_each(|offer| much(&mut offer.settings));
    let house = House::open_several(|settings, _| much(settings), others);
    let first = opened(&house).remove(0);
    let mut client = house.client();
    let expected = [None, Some("small"), Some("again")].map(|name| text(&mut client, name));
    assert_eq!(opened(&house), [first.as_str(), "small", "again"], "there is memory enough for all");
    // One that is large is under way while it would have to go.
    let long = json!({ "model": "small", "prompt": "once upon a time", "max_tokens": 400, "ignore_eos": true });
    let house_address = house.address;
    let alone = Client::to(house_address).post("/v1/completions", &with_seed(&long)).good();
    house.end();
    let most = promised_by_the_first(&folder, much);
    MemoryLimit::Bytes(most).choose();
    let mut others = offers(&folder);
    others.iter_mut().for_each(|offer| much(&mut offer.settings));
    let house = House::open_several(|settings, _| much(settings), others);
    let mut client = house.client();
    for _ in 0..2 {
        for (name, expected) in [None, Some("small"), Some("again")].into_iter().zip(&expected) {
            assert_eq!(text(&mut client, name), *expected);
            assert!(opened(&house).contains(&expected.0) && opened(&house).len() < 3, "{:?}", opened(&house));
        }
    }
    text(&mut client, Some("small"));
    let running = {
        let address = house.address;
        std::thread::spawn(move || Client::to(address).post("/v1/completions", &with_seed(&long)).good())
    };
    house.wait_for(1, 0);
    assert_eq!(text(&mut client, None), expected[0]);
    assert_eq!(text(&mut client, Some("again")), expected[2]);
    let written = running.join().expect("it is answered");
    assert_eq!(written["choices"][0]["text"], alone["choices"][0]["text"]);
    MemoryLimit::Free.choose();
    house.end();
}

fn with_seed(body: &Value) -> Value {
    let mut body = body.clone();
    body["seed"] = json!(7);
    body
}

/// What a limit must be for the first model to fit, and a little more.
fn promised_by_the_first(folder: &tempfile::TempDir, much: impl Fn(&mut Settings)) -> usize {
    let mut settings = house::settings(folder);
    much(&mut settings);
    let fits = |bytes: usize| {
        MemoryLimit::Bytes(bytes).choose();
        match foretoken_server::Server::open(&settings, &mut |_| {}) {
            Ok(_) => true,
            Err(Error::Memory(..)) => false,
            Err(error) => panic!("{error}"),
        }
    };
    let least = (1..).map(|step| step << 26).find(|bytes| fits(*bytes)).expect("some limit is enough");
    MemoryLimit::Free.choose();
    least + (1 << 27)
}

/// Whoever goes away while a model waits for another one to be closed leaves neither half done.
#[test]
fn a_client_that_goes_away_while_a_model_is_opened_harms_nobody() {
    let _alone = ALONE.lock();
    let folder = tempfile::tempdir().expect("a folder");
    MemoryLimit::Bytes(promised_by_the_first(&folder, much)).choose();
    let mut others = offers(&folder);
    others.iter_mut().for_each(|offer| much(&mut offer.settings));
    // One that never fits closes nobody.
    others[1].settings.model.path = Some(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo-target"));
    let house = House::open_several(|settings, _| much(settings), others);
    let first = opened(&house);
    house.post("/v1/completions", &json!({ "prompt": "a", "model": "again" })).error(503);
    assert_eq!(opened(&house), first);
    let long = json!({ "prompt": "once upon a time", "max_tokens": 1500, "ignore_eos": true });
    let running = {
        let address = house.address;
        std::thread::spawn(move || Client::to(address).post("/v1/completions", &with_seed(&long)).good())
    };
    house.wait_for(1, 0);
    for _ in 0..3 {
        let mut client = house.client();
        let body = json!({ "model": "small", "prompt": "a", "max_tokens": 4 }).to_string();
        client.send("POST", "/v1/completions", &[], body.as_bytes()).expect("it is open");
        std::thread::sleep(Duration::from_millis(100));
    }
    let mut client = house.client();
    assert_eq!([None, Some("small"), None].map(|name| text(&mut client, name).0)[1], "small");
    running.join().expect("it is answered");
    assert_eq!(house.get("/slots?model=small").status(), 503, "whoever watches opens nothing");
    MemoryLimit::Free.choose();
    house.end();
}

#[test]
fn two_models_of_one_name_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut others = offers(&folder);
    others[1].name = "small".to_string();
    let found = House::try_open_several(|_, _| {}, others).err();
    let Some(ServerError::Setting(message)) = found else { panic!("{found:?}") };
    assert_eq!(message, "models: expected names of which each is another, found small twice");
}
