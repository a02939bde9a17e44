//! Downloads that break, stall, are wrong or run twice: they continue or are refused, and no partial file is used.

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use foretoken_hub::{CachedModel, Event, Hub, HubError, ModelRequest, Settings, Token};

use crate::server::{Fault, Server, etag};
use crate::{content, files, folder, get, hub, hub_with_short_timeout, kept, offer, settings};

/// The weights' blob of the repository that `offer` makes.
fn blob(cache: &Path, ending: &str) -> PathBuf {
    cache.join("models--demo--target/blobs").join(format!("{}{ending}", etag(&content(1, 50_000))))
}

#[track_caller]
fn is_whole(found: &CachedModel) {
    assert_eq!(std::fs::read(found.path.join("model.safetensors")).expect("a file"), content(1, 50_000));
}

#[track_caller]
fn refused(result: Result<CachedModel, HubError>, with: &str) -> String {
    let error = result.expect_err(with).to_string();
    assert!(error.starts_with("demo/target: ") && error.contains(with) && !error.contains('\n'), "{error}");
    error
}

/// The ranges of the requests for the weights, at the host of large files.
fn ranges(server: &Server) -> Vec<Option<String>> {
    let large = |path: &str| path.contains(&etag(&content(1, 50_000)));
    let seen = server.seen().into_iter().filter(|seen| seen.elsewhere && large(&seen.path));
    seen.map(|seen| seen.headers.get("range").cloned()).collect()
}

#[test]
fn a_broken_connection_is_resumed() {
    let (server, cache) = (Server::start(), folder());
    offer(&server, "demo/target");
    let weights = etag(&content(1, 50_000));
    server.fault(&weights, Fault::BreakAfter(12_345), 1);
    server.fault(&weights, Fault::BreakAfter(10_000), 1);
    let retries = Mutex::new(Vec::new());
    let watch = |event: Event<'_>| {
        if let Event::Retry { file, why } = event {
            retries.lock().expect("nobody panics").push(format!("{file}: {why}"));
        }
    };
    let found = hub(&server, cache.path()).get(&ModelRequest::new("demo/target".parse().expect("a name")), &watch);
    let found = found.expect("it is fetched");
    is_whole(&found);
    assert_eq!(found.fetched_bytes, 70_017);
    let range = |from: usize| Some(format!("bytes={from}-"));
    assert_eq!(ranges(&server), [None, range(12_345), range(22_345)]);
    assert_eq!(retries.lock().expect("nobody panics").len(), 2);
}

#[test]
fn an_idle_connection_is_closed_and_resumed() {
    let (server, cache) = (Server::start(), folder());
    offer(&server, "demo/target");
    server.fault(&etag(&content(1, 50_000)), Fault::StallAfter(10_000), 1);
    is_whole(&get(&hub_with_short_timeout(&server, cache.path()), "demo/target").expect("it is fetched"));
    // On a busy machine other connections may be idle, too.
    assert!(ranges(&server).contains(&Some("bytes=10000-".to_string())));
}

#[test]
fn an_interrupted_run_is_resumed_by_the_next() {
    let (server, cache) = (Server::start(), folder());
    offer(&server, "demo/target");
    let weights = etag(&content(1, 50_000));
    server.fault(&weights, Fault::BreakAfter(30_000), 1);
    server.fault(&weights, Fault::BreakAfter(0), 10);
    let hub = hub(&server, cache.path());
    let error = refused(get(&hub, "demo/target"), "30000 of 50000 bytes are kept");
    assert!(error.starts_with("demo/target: model.safetensors: "), "{error}");
    // There is no snapshot yet.
    assert!(
        blob(cache.path(), ".incomplete").exists() && !kept(cache.path()).iter().any(|path| path.contains("snapshots"))
    );
    assert!(hub.snapshots()[0].models.is_empty() && hub.snapshots()[0].partial_bytes == 30_000);
    // Another server, which has none of these faults.
    let server = Server::start();
    offer(&server, "demo/target");
    let found = get(&crate::hub(&server, cache.path()), "demo/target").expect("it is fetched");
    is_whole(&found);
    assert_eq!((ranges(&server), found.fetched_bytes), (vec![Some("bytes=30000-".to_string())], 20_000));
    assert!(!files(cache.path()).iter().any(|path| path.ends_with(".incomplete")));
}

#[test]
fn an_incomplete_file_is_checked_and_fetched_again_if_it_is_wrong() {
    for (left, requests) in [
        (content(1, 50_000)[..20_000].to_vec(), vec![Some("bytes=20000-".to_string())]),
        (vec![0; 20_000], vec![Some("bytes=20000-".to_string()), None]),
        (content(1, 50_000), vec![]),
        (vec![7; 50_000], vec![None]),
        (vec![7; 60_000], vec![None]),
    ] {
        let (server, cache) = (Server::start(), folder());
        offer(&server, "demo/target");
        let place = blob(cache.path(), ".incomplete");
        std::fs::create_dir_all(place.parent().expect("a folder")).expect("a folder can be made");
        std::fs::write(&place, &left).expect("a file can be written");
        is_whole(&get(&hub(&server, cache.path()), "demo/target").expect("it is fetched"));
        assert_eq!(ranges(&server), requests, "{} bytes", left.len());
    }
}

#[test]
fn without_ranges_a_download_starts_again() {
    let (server, cache) = (Server::start(), folder());
    offer(&server, "demo/target");
    let weights = etag(&content(1, 50_000));
    server.fault(&weights, Fault::BreakAfter(20_000), 1);
    server.fault(&weights, Fault::NoRange, 5);
    is_whole(&get(&hub(&server, cache.path()), "demo/target").expect("it is fetched"));
    assert_eq!(ranges(&server).len(), 2);
}

#[test]
fn a_file_with_a_wrong_checksum_is_refused_and_removed() {
    let (server, cache) = (Server::start(), folder());
    offer(&server, "demo/target");
    server.fault(&etag(&content(1, 50_000)), Fault::Flip, 5);
    let hub = hub(&server, cache.path());
    let line = refused(get(&hub, "demo/target"), "model.safetensors: checksum: expected ");
    assert!(line.contains(&etag(&content(1, 50_000))), "{line}");
    assert!(!blob(cache.path(), "").exists() && !blob(cache.path(), ".incomplete").exists());
    assert!(hub.snapshots().iter().all(|snapshot| snapshot.models.is_empty()));
    // A small file, whose checksum is git's.
    let (server, cache) = (Server::start(), folder());
    offer(&server, "demo/target");
    server.fault("config.json", Fault::Flip, 5);
    refused(get(&crate::hub(&server, cache.path()), "demo/target"), "config.json: checksum: expected ");
}

#[test]
fn damaged_files_in_the_cache_are_fetched_again() {
    let (server, cache) = (Server::start(), folder());
    offer(&server, "demo/target");
    let hub = hub(&server, cache.path());
    let found = get(&hub, "demo/target").expect("it is fetched");
    // A wrong size is detected at once.
    std::fs::write(blob(cache.path(), ""), b"half").expect("it can be written");
    assert_eq!(hub.snapshots()[0].models[0].missing_file.as_deref(), Some("model.safetensors"));
    let offline =
        Hub::new(Settings { offline: true, ..settings(&server, cache.path()) }).expect("the settings are good");
    refused(get(&offline, "demo/target"), "model.safetensors: expected 50000 bytes in the cache, found 4");
    let again = get(&hub, "demo/target").expect("it is fetched");
    is_whole(&again);
    assert_eq!(again.fetched_bytes, 50_000);
    // So is a dangling link.
    std::fs::remove_file(blob(cache.path(), "")).expect("it is there");
    is_whole(&get(&hub, "demo/target").expect("it is fetched"));
    // Other bytes of the same length are detected if checksums are verified.
    std::fs::write(blob(cache.path(), ""), content(9, 50_000)).expect("it can be written");
    let asked = |verify| ModelRequest { verify, ..ModelRequest::new("demo/target".parse().expect("a name")) };
    assert_eq!(hub.fetch(&asked(false), &|_| {}).expect("it is there").fetched_bytes, 0);
    assert_eq!(hub.fetch(&asked(true), &|_| {}).expect("it is fetched").fetched_bytes, 50_000);
    is_whole(&found);
}

#[test]
fn concurrent_downloads_fetch_each_file_once() {
    let (server, cache) = (Server::start(), folder());
    offer(&server, "demo/target");
    let weights = etag(&content(1, 50_000));
    server.fault(&weights, Fault::Slow(10), 1);
    std::thread::scope(|scope| {
        let pull =
            || scope.spawn(|| is_whole(&get(&hub(&server, cache.path()), "demo/target").expect("it is fetched")));
        for thread in [pull(), pull(), pull()] {
            thread.join().expect("it does not panic");
        }
    });
    // The second waited for the first, which is slow, and found the work done.
    assert_eq!(ranges(&server), [None]);
}

#[test]
fn two_pulls_at_once_fetch_a_damaged_file_once() {
    let (server, cache) = (Server::start(), folder());
    offer(&server, "demo/target");
    let hub = hub(&server, cache.path());
    let found = get(&hub, "demo/target").expect("it is fetched");
    std::fs::write(blob(cache.path(), ""), content(9, 50_000)).expect("it can be written");
    std::fs::remove_dir_all(&found.path).expect("it is there");
    server.seen();
    server.fault(&etag(&content(1, 50_000)), Fault::Slow(10), 1);
    std::thread::scope(|scope| {
        let pull = || {
            let request = ModelRequest { verify: true, ..ModelRequest::new("demo/target".parse().expect("a name")) };
            is_whole(&hub.fetch(&request, &|_| {}).expect("it is fetched"));
        };
        for thread in [scope.spawn(pull), scope.spawn(pull)] {
            thread.join().expect("it does not panic");
        }
    });
    assert_eq!(ranges(&server), [None]);
    assert_eq!(files(&found.path).len(), 5);
    assert!(!files(cache.path()).iter().any(|path| path.ends_with(".incomplete") || path.ends_with(".new")));
}

#[test]
fn busy_and_failing_servers_are_retried() {
    let (server, cache) = (Server::start(), folder());
    offer(&server, "demo/target");
    server.fault(&etag(&content(1, 50_000)), Fault::Status(503), 1);
    server.fault("resolve", Fault::Status(429), 1);
    server.fault("tokenizer.json", Fault::Slow(2), 1);
    is_whole(&get(&hub(&server, cache.path()), "demo/target").expect("it is fetched"));
    server.fault("/api/", Fault::Status(500), 1);
    refused(get(&hub(&server, folder().path()), "demo/target"), "expected an answer, found status 500");
}

#[test]
fn the_token_is_sent_only_to_the_hub() {
    let (server, cache) = (Server::start(), folder());
    offer(&server, "demo/target");
    server.change("demo/target", |repository| repository.token = Some("hf_secret".to_string()));
    let with = |token: Option<&str>| {
        let token = token.map(|text| Token { text: text.to_string(), source: "/home/me/token".to_string() });
        Hub::new(Settings { token, ..settings(&server, cache.path()) }).expect("the settings are good")
    };
    let line = refused(get(&with(None), "demo/target"), "gated: access is asked for at http://127.0.0.1:");
    assert!(line.contains("HF_TOKEN is not set: status 403") && line.ends_with("(Access is restricted.)"), "{line}");
    let line = refused(get(&with(Some("hf_other")), "demo/target"), "the token of /home/me/token does not open it");
    assert!(!line.contains("hf_other"), "{line}");
    server.seen();
    is_whole(&get(&with(Some("hf_secret")), "demo/target").expect("it is fetched"));
    let seen = server.seen();
    let (elsewhere, here): (Vec<_>, Vec<_>) = seen.into_iter().partition(|seen| seen.elsewhere);
    assert!(here.len() > 3 && here.iter().all(|seen| seen.headers["authorization"] == "Bearer hf_secret"));
    assert!(elsewhere.len() == 2 && elsewhere.iter().all(|seen| !format!("{:?}", seen.headers).contains("hf_secret")));
}

#[test]
fn a_missing_model_is_an_error_of_one_line() {
    let (server, cache) = (Server::start(), folder());
    offer(&server, "demo/target");
    let hub = hub(&server, cache.path());
    let line = |name| get(&hub, name).expect_err(name).to_string();
    let server = server.url();
    let (unknown, said) =
        ("private or gated, and HF_TOKEN is not set", "status 401 Unauthorized (Invalid username or password.)");
    assert_eq!(line("demo/nothing"), format!("demo/nothing: not found at {server}, {unknown}: {said}"));
    assert_eq!(line("demo/target@v9"), format!("demo/target@v9: no revision v9 at {server}"));
    assert_eq!(kept(cache.path()), [] as [&str; 0]);
}
