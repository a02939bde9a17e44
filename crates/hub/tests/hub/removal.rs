//! What is removed, what stays, and that links are not followed.

use foretoken_hub::{Asked, Removal};

use crate::server::{Server, etag};
use crate::{content, files, folder, get, hub, kept, offer};

fn remove(cache: &std::path::Path, name: &str) -> Result<u64, String> {
    let name = name.parse().expect("a name");
    let removal = Removal::plan(cache, &name).map_err(|error| error.to_string())?;
    removal.carry_out().map_err(|error| error.to_string())
}

#[test]
fn a_revision_goes_and_what_others_share_stays() {
    let (server, cache) = (Server::start(), folder());
    offer(&server, "demo/target");
    let hub = hub(&server, cache.path());
    let before = get(&hub, "demo/target").expect("it is fetched");
    server.change("demo/target", |repository| {
        repository.commit = "f".repeat(40);
        repository.files.insert("model.safetensors".to_string(), content(7, 60_000));
    });
    let asked = Asked::new("demo/target".parse().expect("a name"));
    let after = hub.fetch(&asked, &|_| {}).expect("it is fetched");
    let freed = remove(cache.path(), &format!("demo/target@{}", before.commit));
    assert_eq!((freed, before.path.exists()), (Ok(50_000), false));
    assert_eq!(std::fs::read(after.path.join("tokenizer.json")).expect("it stays"), content(3, 20_000));
    assert_eq!(get(&hub, "demo/target").expect("it is there").fetched_bytes, 0);
    // The last revision, by its branch.
    assert_eq!(remove(cache.path(), "demo/target@main"), Ok(80_017));
    assert_eq!(kept(cache.path()), [] as [&str; 0]);
    let nothing = format!("demo/other: expected it in the cache {}, found none", cache.path().display());
    assert_eq!(remove(cache.path(), "demo/other"), Err(nothing));
}

#[test]
fn a_quant_goes_with_all_its_parts() {
    let (server, cache) = (Server::start(), folder());
    let names = ["m-Q8_0.gguf", "m-F16-00001-of-00002.gguf", "m-F16-00002-of-00002.gguf"];
    let all: Vec<(&str, Vec<u8>)> =
        names.iter().enumerate().map(|(i, name)| (*name, content(i as u8, 20_000))).collect();
    server.offer("demo/g", &all);
    let hub = hub(&server, cache.path());
    get(&hub, "demo/g:q8_0").expect("it is fetched");
    get(&hub, "demo/g:f16").expect("it is fetched");
    assert_eq!(remove(cache.path(), "demo/g:F16"), Ok(40_000));
    assert_eq!(hub.held()[0].names(), ["demo/g:Q8_0"]);
    assert!(remove(cache.path(), "demo/g:F16").is_err());
    assert_eq!(remove(cache.path(), "demo/g:q8_0"), Ok(20_000));
    assert!(hub.held().is_empty());
}

#[cfg(unix)]
#[test]
fn links_out_of_the_cache_are_taken_away_and_not_followed() {
    use std::os::unix::fs::symlink;
    let (server, cache, outside) = (Server::start(), folder(), folder());
    offer(&server, "demo/target");
    let found = get(&hub(&server, cache.path()), "demo/target").expect("it is fetched");
    let victim = outside.path().join("precious");
    std::fs::write(&victim, "mine").expect("a file can be written");
    let repo = cache.path().join("models--demo--target");
    symlink(outside.path(), found.path.join("folder")).expect("a link can be made");
    symlink(&victim, found.path.join("file")).expect("a link can be made");
    symlink(outside.path(), repo.join("blobs/folder")).expect("a link can be made");
    symlink(&victim, repo.join("blobs").join(etag(b"x"))).expect("a link can be made");
    assert_eq!(remove(cache.path(), &format!("demo/target@{}", found.commit)), Ok(70_017));
    assert!(!found.path.exists());
    assert!(remove(cache.path(), "demo/target").is_ok());
    assert_eq!((repo.exists(), files(outside.path())), (false, vec!["precious".to_string()]));
    // A repository that is a link belongs to somebody else.
    symlink(outside.path(), &repo).expect("a link can be made");
    let line = remove(cache.path(), "demo/target").expect_err("it is a link");
    assert!(line.ends_with("expected a folder, found a link or a file, which stays"), "{line}");
    assert!(victim.exists());
}
