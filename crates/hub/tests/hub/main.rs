//! The hub's public interface, tested with a local server: what is fetched, kept, resumed, refused and removed.

mod cached;
mod downloads;
mod hostile;
mod removal;
mod server;

use std::path::{Path, PathBuf};
use std::time::Duration;

use foretoken_hub::{CachedModel, Hub, HubError, ModelRequest, Settings};

use server::Server;

/// Content that differs from position to position.
fn content(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add((i >> 8) as u8) ^ seed).collect()
}

/// Offers a repository of small and large files, some of which are not needed.
fn offer(server: &Server, name: &str) {
    let text = |text: &str| text.as_bytes().to_vec();
    server.offer(
        name,
        &[
            (".gitattributes", text("*.safetensors filter=lfs")),
            ("README.md", text("# A model")),
            ("config.json", text("{}")),
            ("generation_config.json", text("{\"top_k\": 1}")),
            ("model.safetensors", content(1, 50_000)),
            ("pytorch_model.bin", content(2, 50_000)),
            ("tokenizer.json", content(3, 20_000)),
            ("tokenizer_config.json", text("{ }")),
        ],
    );
}

/// A folder for the cache.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder can be made")
}

/// Settings for the local server.
fn settings(server: &Server, cache: &Path) -> Settings {
    Settings {
        cache: cache.to_path_buf(),
        endpoint: server.url(),
        token: None,
        offline: false,
        idle_timeout: Duration::from_secs(10),
        retry_pause: Duration::from_millis(5),
        proxy: None,
        certificates: None,
    }
}

/// A hub with a short idle timeout.
fn hub_with_short_timeout(server: &Server, cache: &Path) -> Hub {
    let settings = Settings { idle_timeout: Duration::from_millis(700), ..settings(server, cache) };
    Hub::new(settings).expect("the settings are good")
}

fn hub(server: &Server, cache: &Path) -> Hub {
    Hub::new(settings(server, cache)).expect("the settings are good")
}

/// Gets a model, from the cache or the hub.
fn get(hub: &Hub, name: &str) -> Result<CachedModel, HubError> {
    hub.get(&ModelRequest::new(name.parse().expect("a name")), &|_| {})
}

/// The paths of all files below a folder, links included and not followed.
fn files(folder: &Path) -> Vec<String> {
    fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                true => walk(&entry.path(), found),
                false => found.push(entry.path()),
            }
        }
    }
    let mut found = Vec::new();
    walk(folder, &mut found);
    let relative = |path: &PathBuf| path.strip_prefix(folder).expect("below it").display().to_string();
    let mut found: Vec<String> = found.iter().map(relative).collect();
    found.sort();
    found
}

/// The files of the cache, without locks and listings.
fn kept(cache: &Path) -> Vec<String> {
    files(cache).into_iter().filter(|path| !path.contains(".locks") && !path.contains("/trees/")).collect()
}
