//! Removal: what is removed, what is kept, and that links are not followed.

use foretoken_hub::{ModelRequest, Removal};

use crate::server::{Fault, Server, etag};
use crate::{content, files, folder, get, hub, kept, offer};

fn remove(cache: &std::path::Path, name: &str) -> Result<u64, String> {
    let name = name.parse().expect("a name");
    let removal = Removal::plan(cache, &name).map_err(|error| error.to_string())?;
    removal.carry_out().map_err(|error| error.to_string())
}

#[test]
fn a_revision_is_removed_and_shared_blobs_are_kept() {
    let (server, cache) = (Server::start(), folder());
    offer(&server, "demo/target");
    let hub = hub(&server, cache.path());
    let before = get(&hub, "demo/target").expect("it is fetched");
    server.change("demo/target", |repository| {
        repository.commit = "f".repeat(40);
        repository.files.insert("model.safetensors".to_string(), content(7, 60_000));
    });
    let asked = ModelRequest::new("demo/target".parse().expect("a name"));
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
fn a_quant_is_removed_with_all_its_parts() {
    let (server, cache) = (Server::start(), folder());
    let names = ["m-Q8_0.gguf", "m-F16-00001-of-00002.gguf", "m-F16-00002-of-00002.gguf"];
    let all: Vec<(&str, Vec<u8>)> =
        names.iter().enumerate().map(|(i, name)| (*name, content(i as u8, 20_000))).collect();
    server.offer("demo/g", &all);
    let hub = hub(&server, cache.path());
    get(&hub, "demo/g:q8_0").expect("it is fetched");
    get(&hub, "demo/g:f16").expect("it is fetched");
    assert_eq!(remove(cache.path(), "demo/g:F16"), Ok(40_000));
    assert_eq!(hub.snapshots()[0].names(), ["demo/g:Q8_0"]);
    assert!(remove(cache.path(), "demo/g:F16").is_err());
    assert_eq!(remove(cache.path(), "demo/g:q8_0"), Ok(20_000));
    assert!(hub.snapshots().is_empty());
}

/// A run that was killed has linked a file, but not yet under its name.
#[cfg(unix)]
#[test]
fn what_a_killed_run_left_behind_keeps_no_file() {
    let (server, cache) = (Server::start(), folder());
    server.offer("demo/g", &[("m-Q8_0.gguf", content(1, 20_000))]);
    let hub = hub(&server, cache.path());
    for name in ["demo/g:Q8_0", "demo/g@main"] {
        let found = get(&hub, "demo/g:Q8_0").expect("it is fetched");
        let link = std::fs::read_link(&found.path).expect("it is a link");
        std::os::unix::fs::symlink(link, found.path.with_file_name(".m-Q8_0.gguf.1-0.new")).expect("it can be made");
        assert_eq!(remove(cache.path(), name), Ok(20_000), "{name}");
        assert_eq!(kept(cache.path()), [] as [&str; 0], "{name}");
    }
}

#[test]
fn a_name_removes_what_it_fetches() {
    let (server, cache) = (Server::start(), folder());
    let names = [
        "m-UD-Q2_K_XL-00001-of-00002.gguf",
        "m-UD-Q2_K_XL-00002-of-00002.gguf",
        "Q4_K_M/model-00001-of-00002.gguf",
        "Q4_K_M/model-00002-of-00002.gguf",
        "m-Q8_0.gguf",
        "mmproj-m-Q8_0.gguf",
    ];
    let all: Vec<(&str, Vec<u8>)> =
        names.iter().enumerate().map(|(i, name)| (*name, content(i as u8, 20_000))).collect();
    server.offer("demo/g", &all);
    let hub = hub(&server, cache.path());
    for (name, bytes) in [("demo/g:UD-Q2_K_XL", 40_000), ("demo/g:q4_k_m", 40_000), ("demo/g:Q8_0", 20_000)] {
        let found = get(&hub, name).expect("it is fetched");
        assert_eq!(found.bytes, bytes, "{name}");
        // A projector is not a part of the quantization.
        let snapshot = cache.path().join("models--demo--g/snapshots").join(&found.commit);
        std::fs::write(snapshot.join(names[5]), "mine").expect("a file can be written");
        assert_eq!(remove(cache.path(), name), Ok(bytes), "{name}");
        assert!(snapshot.join(names[5]).exists(), "{name}");
        assert!(hub.snapshots().iter().all(|snapshot| snapshot.models.is_empty()), "{name}");
    }
}

#[test]
fn files_that_are_being_fetched_are_not_removed() {
    let (server, cache) = (Server::start(), folder());
    offer(&server, "demo/target");
    let hub = hub(&server, cache.path());
    get(&hub, "demo/target").expect("it is fetched");
    let weights = etag(&content(1, 50_000));
    let lock = cache.path().join(".locks/models--demo--target").join(format!("{weights}.lock"));
    let before = kept(cache.path());
    // As if another process were fetching it.
    let file = std::fs::File::open(&lock).expect("it is kept");
    file.lock().expect("no other process has the lock");
    for name in ["demo/target", "demo/target@main"] {
        let line = remove(cache.path(), name).expect_err("it is locked");
        assert!(
            line.ends_with(&format!("{weights}: another process fetches it; nothing is removed while it does")),
            "{line}"
        );
        assert_eq!(kept(cache.path()), before);
    }
    drop(file);
    assert!(remove(cache.path(), "demo/target").is_ok_and(|freed| freed > 70_017));
    // The lock file is kept, so that all processes lock the same one.
    assert_eq!((kept(cache.path()), lock.exists()), (Vec::new(), true));
}

/// Links of snapshots whose files are missing.
fn dangling(cache: &std::path::Path) -> Vec<String> {
    let links = kept(cache).into_iter().filter(|path| path.contains("/snapshots/"));
    links.filter(|path| !cache.join(path).exists()).collect()
}

/// The next commit of the repository, with other weights.
fn next_commit(server: &Server) {
    server.change("demo/target", |repository| {
        repository.commit = "f".repeat(40);
        repository.files.insert("model.safetensors".to_string(), content(7, 60_000));
    });
}

#[test]
fn nothing_is_removed_from_a_repository_while_another_revision_is_fetched() {
    let (server, cache) = (Server::start(), folder());
    offer(&server, "demo/target");
    let hub = hub(&server, cache.path());
    let before = get(&hub, "demo/target").expect("it is fetched");
    next_commit(&server);
    server.seen();
    let weights = etag(&content(7, 60_000));
    server.fault(&weights, Fault::Slow(20), 1);
    let asked = ModelRequest::new("demo/target".parse().expect("a name"));
    let (line, after) = std::thread::scope(|scope| {
        let pull = scope.spawn(|| hub.fetch(&asked, &|_| {}).expect("it is fetched"));
        // The small files are there already, and belong to the other revision alone until the weights are there.
        while !server.seen().iter().any(|seen| seen.path.contains(&weights)) {
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        let line = remove(cache.path(), &format!("demo/target@{}", before.commit)).expect_err("it is locked");
        (line, pull.join().expect("it does not panic"))
    });
    let place = cache.path().join("models--demo--target");
    let expected = "another process fetches or removes files of it; nothing is removed while it does";
    assert_eq!(line, format!("{}: {expected}", place.display()));
    assert_eq!((dangling(cache.path()), files(&before.path).len()), (Vec::new(), 5));
    assert_eq!(std::fs::read(after.path.join("tokenizer.json")).expect("it stays"), content(3, 20_000));
    assert_eq!(remove(cache.path(), &format!("demo/target@{}", before.commit)), Ok(50_000));
    assert_eq!(dangling(cache.path()), [] as [&str; 0]);
}

#[test]
fn what_was_fetched_while_somebody_was_asked_is_not_removed() {
    let (server, cache) = (Server::start(), folder());
    offer(&server, "demo/target");
    let hub = hub(&server, cache.path());
    let before = get(&hub, "demo/target").expect("it is fetched");
    for name in [format!("demo/target@{}", before.commit), "demo/target".to_string()] {
        let removal = Removal::plan(cache.path(), &name.parse().expect("a name")).expect("there is something");
        next_commit(&server);
        let asked = ModelRequest::new("demo/target".parse().expect("a name"));
        let after = hub.fetch(&asked, &|_| {}).expect("it is fetched");
        let line = removal.carry_out().expect_err("it has changed").to_string();
        assert_eq!(line, format!("{name}: it has changed since it was looked up; nothing is removed"));
        assert_eq!((dangling(cache.path()), files(&after.path).len()), (Vec::new(), 5));
        assert!(remove(cache.path(), &format!("demo/target@{}", after.commit)).is_ok());
    }
    // Another removal of the same.
    let removal = Removal::plan(cache.path(), &"demo/target".parse().expect("a name")).expect("there is something");
    assert!(remove(cache.path(), "demo/target").is_ok());
    assert!(removal.carry_out().expect_err("it is gone").to_string().contains("expected it in the cache"));
}

#[cfg(unix)]
#[test]
fn links_out_of_the_cache_are_removed_and_not_followed() {
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
    // Nor are files removed from folders behind links.
    for part in ["blobs", "refs", "snapshots", "trees"] {
        let found = get(&hub(&server, cache.path()), "demo/target").expect("it is fetched");
        let moved = outside.path().join(part);
        std::fs::rename(repo.join(part), &moved).expect("it can be moved");
        symlink(&moved, repo.join(part)).expect("a link can be made");
        let before = files(outside.path());
        for name in [format!("demo/target@{}", found.commit), "demo/target@main".to_string()] {
            let line = remove(cache.path(), &name).expect_err("it is a link");
            assert!(line.ends_with("expected a folder, found a link or a file, which stays"), "{part}: {line}");
        }
        // All of a repository is removed with the links in it.
        assert!(remove(cache.path(), "demo/target").is_ok());
        assert_eq!((repo.exists(), files(outside.path())), (false, before), "{part}");
        std::fs::remove_dir_all(&moved).expect("it is there");
    }
    // A repository that is a link is not removed.
    symlink(outside.path(), &repo).expect("a link can be made");
    let line = remove(cache.path(), "demo/target").expect_err("it is a link");
    assert!(line.ends_with("expected a folder, found a link or a file, which stays"), "{line}");
    assert!(victim.exists());
}
