//! Hostile servers: each response is refused in one line, and nothing is written outside the cache.

use std::path::Path;
use std::time::{Duration, Instant};

use foretoken_hub::{Hub, ModelRequest};

use crate::server::{Fault, Server, etag};
use crate::{content, files, folder, get, hub, hub_with_short_timeout, offer};

/// The error of fetching a model from a server that `harm` has changed.
#[track_caller]
fn refused(with: &str, harm: impl FnOnce(&Server)) -> String {
    refused_by(hub, with, harm)
}

#[track_caller]
fn refused_by(hub: fn(&Server, &Path) -> Hub, with: &str, harm: impl FnOnce(&Server)) -> String {
    let (server, outside) = (Server::start(), folder());
    offer(&server, "demo/target");
    harm(&server);
    let cache = outside.path().join("a/b/cache");
    let started = Instant::now();
    let result = hub(&server, &cache).get(&ModelRequest::new("demo/target".parse().expect("a name")), &|_| {});
    let error = result.expect_err(with);
    assert!(started.elapsed() < Duration::from_secs(60), "{with}: {:?}", started.elapsed());
    let line = error.to_string();
    assert!(line.starts_with("demo/target: ") && line.contains(with), "{with}: {line}");
    assert!(line.len() < 900 && !line.chars().any(char::is_control), "{line}");
    let all = files(outside.path());
    assert!(all.iter().all(|path| path.starts_with("a/b/cache/")), "{all:?}");
    assert!(!all.iter().any(|path| path.contains("snapshots")), "{all:?}");
    line
}

fn listing(server: &Server, siblings: &str) {
    let text = format!("{{\"sha\":\"{}\",\"siblings\":[{siblings}]}}", "a".repeat(40));
    server.change("demo/target", |repository| repository.listing = Some(text));
}

#[test]
fn paths_that_lead_out_of_the_snapshot() {
    for path in ["../../../x", "/tmp/x", "a/../../../x", "..\\\\x", "x\\u0000y", "x\\u001b[2Jy", "C:/x", "a//b"] {
        let file = format!("{{\"rfilename\":\"{path}\",\"size\":1,\"blobId\":\"{}\"}}", "b".repeat(40));
        refused("listing: expected paths below the repository", |server| listing(server, &file));
    }
}

#[test]
fn checksums_and_commits_that_are_paths() {
    let file = "{\"rfilename\":\"m.gguf\",\"size\":1,\"blobId\":\"../../../../x\"}";
    refused("m.gguf: etag: expected a checksum", |server| listing(server, file));
    let text = "{\"sha\":\"../../../x\",\"siblings\":[]}".to_string();
    refused("listing: sha: expected a commit", |server| {
        server.change("demo/target", |repository| repository.listing = Some(text));
    });
}

#[test]
fn listings_that_are_invalid_or_endless() {
    let say = |text: &str| {
        let text = text.to_string();
        move |server: &Server| server.change("demo/target", |repository| repository.listing = Some(text))
    };
    refused("listing: expected JSON", say("<html>Hello</html>"));
    refused("listing: expected JSON", say(&"[".repeat(100_000)));
    refused("listing: siblings: expected a list", say(&format!("{{\"sha\":\"{}\"}}", "a".repeat(40))));
    let many = vec!["{}"; 100_001].join(",");
    refused("listing: siblings: expected a list of at most 100000", |server| listing(server, &many));
    refused("listing: expected at most", |server| server.fault("/api/", Fault::Endless, 1));
    refused_by(hub_with_short_timeout, "no connection", |server| server.fault("/api/", Fault::StallAfter(5), 1));
    refused("no connection", |server| server.fault("/api/", Fault::BreakAfter(5), 1));
}

#[test]
fn bodies_of_another_length() {
    let weights = etag(&content(1, 50_000));
    let fault = |fault| {
        let weights = weights.clone();
        move |server: &Server| server.fault(&weights, fault, 100)
    };
    refused("model.safetensors: size: expected 50000 bytes, found more", fault(Fault::Endless));
    refused("model.safetensors: size: expected 50000 bytes, found 50007", fault(Fault::LongerBy(7)));
    refused("model.safetensors: size: expected 50000 bytes, found 49000", fault(Fault::LongerBy(-1000)));
    refused("model.safetensors: range: expected \"bytes 1000-49999/50000\"", |server| {
        server.fault(&weights, Fault::BreakAfter(1000), 1);
        server.fault(&weights, Fault::WrongRange, 1);
    });
}

#[test]
fn sizes_larger_than_any_disk() {
    for size in ["1152921504606846976", "18446744073709551615"] {
        let config = format!("{{\"rfilename\":\"config.json\",\"size\":2,\"blobId\":\"{}\"}}", etag(b"{}"));
        let weights = format!(
            "{{\"rfilename\":\"model.safetensors\",\"lfs\":{{\"sha256\":\"{}\",\"size\":{size}}}}}",
            etag(&content(1, 50_000))
        );
        let line = refused("of free space, found", |server| listing(server, &format!("{config},{weights}")));
        assert!(line.contains("a/b/cache: expected"), "{line}");
    }
}

#[test]
fn unsafe_redirects() {
    for to in ["file:///etc/passwd", "ftp://x/y", "http://me:secret@x/y", "http://", "http://a b/"] {
        refused("redirect: expected an address as safe as this", |server| {
            server.fault("resolve", Fault::Redirect(Box::leak(to.to_string().into_boxed_str())), 100);
        });
    }
    refused("expected at most 10 redirects, found more", |server| server.fault("/", Fault::Redirect("/again"), 1000));
}

#[cfg(unix)]
#[test]
fn folders_of_the_cache_that_are_links_out_of_it_are_not_written_to() {
    use std::os::unix::fs::symlink;
    let repository = "models--demo--target";
    for part in ["", "/blobs", "/snapshots", "/snapshots/COMMIT", "/refs", "/trees", "LOCKS", "LOCKS/"] {
        let (server, outside) = (Server::start(), folder());
        offer(&server, "demo/target");
        let mut commit = String::new();
        server.change("demo/target", |repository| commit.clone_from(&repository.commit));
        let (cache, victim) = (outside.path().join("cache"), outside.path().join("victim"));
        let place = match part {
            "LOCKS" => cache.join(".locks"),
            "LOCKS/" => cache.join(".locks").join(repository),
            part => cache.join(format!("{repository}{}", part.replace("COMMIT", &commit))),
        };
        std::fs::create_dir_all(&victim).expect("a folder can be made");
        std::fs::write(victim.join("config.json"), "mine").expect("a file can be written");
        std::fs::create_dir_all(place.parent().expect("a folder")).expect("a folder can be made");
        symlink(&victim, &place).expect("a link can be made");
        let line = get(&hub(&server, &cache), "demo/target").expect_err(part).to_string();
        let expected = format!("expected a folder of the cache, found a link out: {}", place.display());
        assert!(line.starts_with("demo/target: ") && line.ends_with(&expected), "{part}: {line}");
        assert_eq!(files(&victim), ["config.json"], "{part}");
        assert_eq!(std::fs::read_to_string(victim.join("config.json")).expect("it is there"), "mine", "{part}");
    }
    // The cache itself may be behind a link, and a folder of it elsewhere in the cache.
    let (server, outside) = (Server::start(), folder());
    offer(&server, "demo/target");
    let (cache, real) = (outside.path().join("cache"), outside.path().join("real"));
    std::fs::create_dir_all(real.join(repository)).expect("a folder can be made");
    std::fs::create_dir(real.join("all-blobs")).expect("a folder can be made");
    symlink("../all-blobs", real.join(repository).join("blobs")).expect("a link can be made");
    symlink(&real, &cache).expect("a link can be made");
    let found = get(&hub(&server, &cache), "demo/target").expect("it is fetched");
    assert_eq!(std::fs::read(found.path.join("model.safetensors")).expect("it is there"), content(1, 50_000));
}

/// A folder is exchanged for a link out of the cache after it was checked: while a file is fetched into it.
#[cfg(unix)]
#[test]
fn a_folder_that_becomes_a_link_out_of_the_cache_is_not_written_to() {
    let (server, outside) = (Server::start(), folder());
    offer(&server, "demo/target");
    let (cache, victim) = (outside.path().join("cache"), outside.path().join("victim"));
    std::fs::create_dir(&victim).expect("a folder can be made");
    let (blobs, weights) = (cache.join("models--demo--target/blobs"), etag(&content(1, 50_000)));
    std::fs::create_dir_all(&blobs).expect("a folder can be made");
    // A damaged rest of an earlier run: once its checksum is wrong, the file is begun again.
    std::fs::write(blobs.join(format!("{weights}.incomplete")), vec![0; 20_000]).expect("it can be written");
    server.fault(&weights, Fault::Slow(10), 1);
    let hub = hub(&server, &cache);
    let result = std::thread::scope(|scope| {
        let pull = scope.spawn(|| get(&hub, "demo/target"));
        while !server.seen().iter().any(|seen| seen.headers.contains_key("range")) {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::fs::rename(&blobs, outside.path().join("moved")).expect("it can be moved");
        std::os::unix::fs::symlink(&victim, &blobs).expect("a link can be made");
        pull.join().expect("it does not panic")
    });
    assert_eq!(files(&victim), [] as [&str; 0]);
    let line = result.expect_err("its files are elsewhere").to_string();
    assert!(line.starts_with("demo/target: ") && line.contains("removed while the others were fetched"), "{line}");
    assert!(!files(&cache).iter().any(|path| path.contains("snapshots")), "{:?}", files(&cache));
    // The file is whole in the folder that was checked.
    assert_eq!(std::fs::read(outside.path().join("moved").join(&weights)).expect("it is there"), content(1, 50_000));
}

#[cfg(unix)]
#[test]
fn a_link_in_place_of_an_incomplete_file_is_not_followed() {
    for is_hard in [false, true] {
        let (server, outside) = (Server::start(), folder());
        offer(&server, "demo/target");
        let (cache, victim) = (outside.path().join("cache"), outside.path().join("victim"));
        std::fs::write(&victim, "mine").expect("a file can be written");
        let blobs = cache.join("models--demo--target/blobs");
        std::fs::create_dir_all(&blobs).expect("a folder can be made");
        let place = blobs.join(format!("{}.incomplete", etag(&content(1, 50_000))));
        let made = match is_hard {
            true => std::fs::hard_link(&victim, &place),
            false => std::os::unix::fs::symlink(&victim, &place),
        };
        made.expect("a link can be made");
        let found = hub(&server, &cache).get(&ModelRequest::new("demo/target".parse().expect("a name")), &|_| {});
        assert!(matches!(&found, Ok(found) if found.files == 5), "{found:?}");
        assert_eq!(std::fs::read_to_string(victim).expect("it is there"), "mine");
    }
}
