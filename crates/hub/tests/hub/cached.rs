//! What is fetched, where it is stored, and that a cached model needs no request.

use foretoken_hub::{CachedModel, Event, Hub, HubError, ModelFormat, ModelRequest, Proxy, Settings};

use crate::server::{Server, etag};
use crate::{content, folder, get, hub, kept, offer, settings};

#[test]
fn only_needed_files_are_fetched_to_the_cache_of_transformers() {
    let (server, cache) = (Server::start(), folder());
    offer(&server, "demo/target");
    let hub = hub(&server, cache.path());
    let found = get(&hub, "demo/target").expect("it is fetched");
    let mut commit = String::new();
    server.change("demo/target", |repository| commit.clone_from(&repository.commit));
    let place = cache.path().join("models--demo--target");
    assert_eq!(found.path, place.join("snapshots").join(&commit));
    assert_eq!((found.files, found.bytes, found.fetched_bytes), (5, 70_017, 70_017));
    let needed =
        ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"];
    let blobs: Vec<String> =
        needed.iter().map(|name| etag(&std::fs::read(found.path.join(name)).expect("a file"))).collect();
    let mut expected: Vec<String> = blobs.iter().map(|name| format!("models--demo--target/blobs/{name}")).collect();
    expected.sort();
    expected.push("models--demo--target/refs/main".to_string());
    expected.extend(needed.iter().map(|name| format!("models--demo--target/snapshots/{commit}/{name}")));
    assert_eq!(kept(cache.path()), expected);
    assert_eq!(std::fs::read_to_string(place.join("refs/main")).expect("a file"), commit);
    let link = std::fs::read_link(found.path.join("model.safetensors")).expect("a link");
    assert_eq!(link.to_str(), Some(format!("../../blobs/{}", blobs[2]).as_str()));
    let paths: Vec<String> = server.seen().into_iter().map(|seen| seen.path).collect();
    assert_eq!(paths.iter().filter(|path| path.contains("/api/")).count(), 1, "{paths:?}");
    assert!(!paths.iter().any(|path| path.contains(".bin") || path.contains("README")), "{paths:?}");

    // Once it is cached, no request is sent.
    let again = get(&hub, "demo/target").expect("it is there");
    assert_eq!((again.path, again.fetched_bytes, server.seen().len()), (found.path, 0, 0));
    assert_eq!(get(&hub, &format!("demo/target@{commit}")).expect("it is there").files, 5);
    assert_eq!(server.seen().len(), 0);
}

#[test]
fn missing_checksums_are_requested_file_by_file() {
    let (server, cache) = (Server::start(), folder());
    offer(&server, "demo/target");
    server.change("demo/target", |repository| repository.terse = true);
    let hub = hub(&server, cache.path());
    let found = get(&hub, "demo/target").expect("it is fetched");
    assert_eq!(found.bytes, 70_017);
    let heads = server.seen().into_iter().filter(|seen| seen.method == "HEAD");
    // None of them is redirected to the other host, whose etags are not checksums.
    assert_eq!(heads.map(|seen| assert!(!seen.elsewhere, "{seen:?}")).count(), 5);
    // The checksums are recorded, and not requested again.
    assert_eq!(get(&hub, "demo/target").expect("it is there"), CachedModel { fetched_bytes: 0, ..found.clone() });
    assert_eq!(server.seen().len(), 0);
    std::fs::write(found.path.join("model.safetensors"), b"half").expect("it can be written");
    assert_eq!(get(&hub, "demo/target").expect("it is fetched").fetched_bytes, 50_000);
}

#[test]
fn missing_checksums_of_each_quant_are_requested_once() {
    let (server, cache) = (Server::start(), folder());
    let files = ["m-F16.gguf", "m-Q4_K_M.gguf", "m-Q8_0.gguf"];
    let files: Vec<(&str, Vec<u8>)> =
        files.iter().enumerate().map(|(i, name)| (*name, content(i as u8, 20_000))).collect();
    server.offer("demo/g", &files);
    server.change("demo/g", |repository| repository.terse = true);
    let hub = hub(&server, cache.path());
    for name in ["demo/g:f16", "demo/g:q8_0", "demo/g"] {
        get(&hub, name).expect("it is fetched");
    }
    server.seen();
    for (name, path) in [("demo/g:f16", files[0].0), ("demo/g:q8_0", files[2].0), ("demo/g", files[1].0)] {
        assert!(get(&hub, name).expect("it is there").path.ends_with(path), "{name}");
    }
    assert_eq!(server.seen().len(), 0);
    assert!(hub.snapshots()[0].models.iter().all(|form| form.missing_file.is_none()), "{:?}", hub.snapshots());
}

#[test]
fn a_record_of_another_version_is_kept_and_not_used() {
    let (server, cache) = (Server::start(), folder());
    offer(&server, "demo/target");
    let hub = hub(&server, cache.path());
    let found = get(&hub, "demo/target").expect("it is fetched");
    // As if a newer program had written it.
    let record = cache.path().join("models--demo--target/trees").join(format!("{}.json", found.commit));
    let newer =
        std::fs::read_to_string(&record).expect("it is kept").replace("\"format_version\": 1", "\"format_version\": 2");
    assert!(newer.contains("\"format_version\": 2"), "{newer}");
    std::fs::write(&record, &newer).expect("it can be written");
    server.seen();
    get(&hub, "demo/target").expect("it is there");
    assert_eq!(std::fs::read_to_string(&record).expect("it stays"), newer);
    // One request was sent, and none later.
    assert_eq!(server.seen().len(), 1);
    get(&hub, "demo/target").expect("it is there");
    assert_eq!(server.seen().len(), 0);
}

#[test]
fn files_of_other_programs_are_used_where_they_cannot_be_completed() {
    let (server, cache) = (Server::start(), folder());
    offer(&server, "demo/target");
    let hub = hub(&server, cache.path());
    let found = get(&hub, "demo/target").expect("it is fetched");
    let (trees, locks) = (cache.path().join("models--demo--target/trees"), cache.path().join(".locks"));
    let asked = ModelRequest::new("demo/target".parse().expect("a name"));
    let notes = || {
        let notes = std::sync::Mutex::new(Vec::new());
        let watch = |event: Event<'_>| {
            if let Event::Unchecked { why } = event {
                notes.lock().expect("nobody panics").push(why.to_string());
            }
        };
        let again = hub.get(&asked, &watch).expect("it is there");
        assert_eq!((again.path, again.files), (found.path.clone(), 5));
        notes.into_inner().expect("nobody panics")
    };
    // Lock files cannot be created, as in a read-only cache.
    std::fs::remove_dir_all(&trees).expect("it is there");
    std::fs::remove_dir_all(&locks).expect("it is there");
    std::fs::write(&locks, "").expect("a file can be written");
    let line = notes().concat();
    assert!(line.contains(".lock: cannot be locked: "), "{line}");
    // The response is a login page of a network.
    let page = Some("<html>Welcome</html>".to_string());
    server.change("demo/target", |repository| repository.listing = page);
    let line = notes().concat();
    assert!(line.starts_with("listing: expected JSON"), "{line}");
    // `fetch` reports the error.
    assert!(matches!(hub.fetch(&asked, &|_| {}), Err(HubError::Content(_))));
}

#[test]
fn certificates_that_cannot_be_read_are_named() {
    let (server, cache) = (Server::start(), folder());
    let empty = cache.path().join("empty.pem");
    std::fs::write(&empty, "no certificate").expect("a file can be written");
    for (path, found) in [("/nowhere.pem".into(), "cannot be read"), (empty, "found none")] {
        let settings = Settings { certificates: Some(path), ..settings(&server, cache.path()) };
        let Err(HubError::Usage(line)) = get(&Hub::new(settings).expect("good"), "demo/target") else {
            panic!("others are trusted")
        };
        assert!(line.starts_with("demo/target: SSL_CERT_FILE: ") && line.contains(found), "{line}");
    }
}

#[test]
fn a_quant_is_one_file_or_all_parts_of_one() {
    let (server, cache) = (Server::start(), folder());
    let names = ["m-Q4_K_M.gguf", "m-Q8_0.gguf", "q/m-F16-00001-of-00002.gguf", "q/m-F16-00002-of-00002.gguf"];
    let files: Vec<(&str, Vec<u8>)> =
        names.iter().enumerate().map(|(i, name)| (*name, content(i as u8, 20_000 + i))).collect();
    server.offer("demo/target-GGUF", &files);
    let hub = hub(&server, cache.path());
    let named = |name: &str| {
        let found = get(&hub, name).expect("it is fetched");
        (found.path.file_name().expect("a file").to_string_lossy().into_owned(), found.files, found.bytes)
    };
    assert_eq!(named("demo/target-GGUF:f16"), ("m-F16-00001-of-00002.gguf".to_string(), 2, 40_005));
    assert_eq!(named("demo/target-GGUF"), ("m-Q4_K_M.gguf".to_string(), 1, 20_000));
    server.seen();
    // The listing is recorded, so the same file is chosen although another is cached too.
    assert_eq!(named("demo/target-GGUF"), ("m-Q4_K_M.gguf".to_string(), 1, 20_000));
    assert_eq!(server.seen().len(), 0);
    let Err(HubError::Refused(line)) = get(&hub, "demo/target-GGUF:Q5_K") else { panic!("there is none") };
    assert_eq!(line, "demo/target-GGUF:Q5_K: expected a GGUF file of Q5_K, found F16, Q4_K_M, Q8_0");
    let file = ModelRequest {
        file: Some(names[1].to_string()),
        ..ModelRequest::new("demo/target-GGUF".parse().expect("a name"))
    };
    assert!(hub.get(&file, &|_| {}).expect("it is fetched").path.ends_with(names[1]));
    let snapshots = hub.snapshots();
    let kinds: Vec<&ModelFormat> = snapshots[0].models.iter().map(|form| &form.kind).collect();
    let gguf = |quant: &str| ModelFormat::Gguf(quant.to_string());
    assert_eq!(kinds, [&gguf("Q4_K_M"), &gguf("Q8_0"), &gguf("F16")]);
    assert!(snapshots[0].models.iter().all(|form| form.missing_file.is_none()), "{snapshots:?}");
}

#[test]
fn with_both_formats_the_configuration_decides() {
    let (server, cache) = (Server::start(), folder());
    let files =
        [("config.json", b"{}".to_vec()), ("model.safetensors", content(1, 30_000)), ("m.gguf", content(2, 30_000))];
    server.offer("demo/both", &files);
    let hub = hub(&server, cache.path());
    let asked =
        ModelRequest { usable: &|config| config != b"{}", ..ModelRequest::new("demo/both".parse().expect("a name")) };
    assert!(hub.get(&asked, &|_| {}).expect("it is fetched").path.ends_with("m.gguf"));
    assert!(!kept(cache.path()).iter().any(|path| path.ends_with("model.safetensors")));
    server.seen();
    // The same format is chosen again, even offline.
    let settings = Settings { offline: true, ..settings(&server, cache.path()) };
    for hub in [hub, Hub::new(settings).expect("the settings are good")] {
        let found = hub.get(&asked, &|_| {}).expect("it is there");
        assert!(found.path.ends_with("m.gguf") && found.fetched_bytes == 0, "{found:?}");
    }
    assert_eq!(server.seen().len(), 0);
}

#[test]
fn shards_are_those_of_the_index() {
    let (server, cache) = (Server::start(), folder());
    let index = br#"{"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors", "c": "m-1.safetensors"}}"#.to_vec();
    let files = [
        ("config.json", b"{}".to_vec()),
        ("model.safetensors.index.json", index),
        ("m-1.safetensors", content(1, 30_000)),
        ("m-2.safetensors", content(2, 30_000)),
        ("consolidated.safetensors", content(3, 30_000)),
    ];
    server.offer("demo/shards", &files);
    let hub = hub(&server, cache.path());
    let found = get(&hub, "demo/shards").expect("it is fetched");
    assert_eq!((found.files, found.path.join("consolidated.safetensors").exists()), (4, false));
    server.seen();
    std::fs::remove_file(found.path.join("m-2.safetensors")).expect("it is there");
    assert_eq!(hub.snapshots()[0].models[0].missing_file.as_deref(), Some("m-2.safetensors"));
    assert_eq!(get(&hub, "demo/shards").expect("it is linked again").fetched_bytes, 0);
    assert_eq!(hub.snapshots()[0].models[0].missing_file, None);
}

#[test]
fn without_a_network_only_the_cache_is_used() {
    let (server, cache) = (Server::start(), folder());
    offer(&server, "demo/target");
    get(&hub(&server, cache.path()), "demo/target").expect("it is fetched");
    server.seen();
    let nobody = "http://127.0.0.1:9".to_string();
    let offline = |offline, endpoint: &str| {
        let settings = settings(&server, cache.path());
        Hub::new(Settings { offline, endpoint: endpoint.to_string(), ..settings }).expect("the settings are good")
    };
    for hub in [offline(true, &server.url()), offline(false, &nobody)] {
        assert_eq!(get(&hub, "demo/target").expect("it is there").files, 5);
        let Err(HubError::NoNetwork(line)) = get(&hub, "demo/other") else { panic!("it is not there") };
        assert!(line.starts_with("demo/other: ") && line.ends_with(" has demo/target"), "{line}");
        assert!(
            line.contains("HF_HUB_OFFLINE is set") || line.contains("no connection to http://127.0.0.1:9"),
            "{line}"
        );
        let pulled = hub.fetch(&ModelRequest::new("demo/target".parse().expect("a name")), &|_| {});
        assert!(matches!(pulled, Err(HubError::NoNetwork(line)) if line.contains("in the cache it is /")));
    }
    let empty = folder();
    let settings = Settings { offline: true, ..settings(&server, empty.path()) };
    let Err(HubError::NoNetwork(line)) = get(&Hub::new(settings).expect("good"), "a/b") else { panic!("it is empty") };
    assert!(line.ends_with("is empty"), "{line}");
    assert_eq!(server.seen().len(), 0);
}

#[test]
fn files_of_other_programs_are_completed_once_and_used_without_a_network() {
    let (server, cache) = (Server::start(), folder());
    offer(&server, "demo/target");
    let hub = hub(&server, cache.path());
    let found = get(&hub, "demo/target").expect("it is fetched");
    // As if another program had fetched it, without generation_config.json.
    std::fs::remove_dir_all(cache.path().join("models--demo--target/trees")).expect("it is there");
    std::fs::remove_file(found.path.join("generation_config.json")).expect("it is there");
    let settings = Settings { offline: true, ..settings(&server, cache.path()) };
    let offline = Hub::new(settings).expect("the settings are good");
    assert_eq!(get(&offline, "demo/target").expect("it is there").files, 4);
    server.seen();
    // The cached revision is completed, not mixed with a newer one.
    let commit = found.commit.clone();
    let again = get(&hub, "demo/target").expect("it is there");
    assert_eq!((again.commit, again.files, again.fetched_bytes), (commit.clone(), 5, 0));
    assert!(server.seen()[0].path.contains(&commit));
    get(&hub, "demo/target").expect("it is there");
    assert_eq!(server.seen().len(), 0);
}

#[test]
fn a_branch_that_moved_is_fetched_only_by_fetch_and_shares_blobs() {
    let (server, cache) = (Server::start(), folder());
    offer(&server, "demo/target");
    let hub = hub(&server, cache.path());
    let before = get(&hub, "demo/target").expect("it is fetched");
    server.change("demo/target", |repository| {
        repository.commit = "f".repeat(40);
        repository.files.insert("config.json".to_string(), b"{\"new\": 1}".to_vec());
    });
    assert_eq!(get(&hub, "demo/target").expect("it is there").commit, before.commit);
    let pulled = hub.fetch(&ModelRequest::new("demo/target".parse().expect("a name")), &|_| {}).expect("it is fetched");
    assert_eq!((pulled.commit.as_str(), pulled.fetched_bytes), ("f".repeat(40).as_str(), 10));
    assert_eq!(get(&hub, "demo/target").expect("it is there").commit, pulled.commit);
    assert_eq!(hub.snapshots().len(), 2);
    assert!(get(&hub, "demo/target@refs/pr/1").is_ok() && get(&hub, "demo/target@nowhere").is_err());
}

#[test]
fn a_proxy_is_used_unless_the_host_is_in_no_proxy() {
    let (server, cache) = (Server::start(), folder());
    offer(&server, "demo/target");
    let through = |address: &str, no_proxy: &[&str]| {
        let no_proxy = no_proxy.iter().map(ToString::to_string).collect();
        let proxy = Proxy { address: address.to_string(), source: "ALL_PROXY".to_string(), no_proxy };
        let settings = Settings { proxy: Some(proxy), ..settings(&server, cache.path()) };
        get(&Hub::new(settings).expect("good"), "demo/target").map(|found| found.files)
    };
    // There is no server.
    let nobody = "http://me:secret@127.0.0.1:9";
    let Err(HubError::NoNetwork(line)) = through(nobody, &["example.com"]) else { panic!("it is not asked") };
    assert!(!line.contains("secret"), "{line}");
    let Err(HubError::Usage(line)) = through("socks5://secret@127.0.0.1:9", &[]) else { panic!("it is taken") };
    assert_eq!(line, "demo/target: ALL_PROXY: expected http(s)://HOST:PORT, found another address");
    assert_eq!(server.seen().len(), 0);
    assert_eq!(through(nobody, &["example.com", "127.0.0.1"]), Ok(5));
}
