//! Models by hub names: the same text as by path, offline, after damage and interruption; `pull`, `list` and `rm`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::{Run, demo, program, run, run_with};

#[path = "../../../hub/tests/hub/server.rs"]
pub mod server;

use server::{Fault, Server, etag};

/// A local hub with the demo models, and a cache.
struct TestHub {
    server: Server,
    folder: tempfile::TempDir,
}

impl TestHub {
    fn new() -> Self {
        let (server, folder) = (Server::start(), tempfile::tempdir().expect("a folder can be made"));
        for (name, of) in [("demo/target", "demo-target"), ("demo/draft", "demo-draft")] {
            server.offer_folder(name, Path::new(&demo(of)));
        }
        Self { server, folder }
    }

    fn cache(&self) -> PathBuf {
        self.folder.path().join("hub")
    }

    fn run(&self, words: &[&str]) -> Run {
        self.run_with(words, &[("HF_HUB_OFFLINE", "0")])
    }

    fn run_with(&self, words: &[&str], variables: &[(&str, &str)]) -> Run {
        let (url, home) = (self.server.url(), self.folder.path().display().to_string());
        let own = [("HF_ENDPOINT", url.as_str()), ("HF_HOME", home.as_str())];
        run_with(words, &[&own, variables].concat(), "")
    }

    /// The blob of a demo model's weights in the cache.
    fn weights(&self, name: &str) -> PathBuf {
        let bytes = std::fs::read(Path::new(&demo(&name.replace('/', "-"))).join("model.safetensors")).expect("a file");
        self.cache().join(format!("models--{}/blobs/{}", name.replace('/', "--"), etag(&bytes)))
    }
}

const TEXT: [&str; 9] = ["generate", "Once upon a time", "--temp", "0", "-s", "1", "-n", "20", "--ignore-eos"];

#[test]
fn a_hub_name_gives_the_same_text_as_a_path() {
    let test_hub = TestHub::new();
    let by_path = run(&[&TEXT[..], &["-m", &demo("demo-target"), "-md", &demo("demo-draft")]].concat()).ok();
    for words in [
        ["-m", "demo/target", "-md", "demo/draft"],
        ["-hf", "demo/target", "-hfd", "demo/draft"],
        ["-hfr", "demo/target@main", "--hf-repo-draft", "demo/draft"],
    ] {
        assert_eq!(test_hub.run(&[&TEXT[..], &words].concat()).ok(), by_path, "{words:?}");
    }
    // Each model is fetched once; offline, no request is sent.
    let api_requests = test_hub.server.seen().into_iter().filter(|seen| seen.path.contains("/api/")).count();
    assert_eq!(api_requests, 2);
    let offline = test_hub.run_with(&[&TEXT[..], &["-m", "demo/target", "-md", "demo/draft"]].concat(), &[]);
    assert_eq!(offline.ok(), by_path);
    assert!(test_hub.server.seen().is_empty());
    // A record names the exact revision.
    let json = test_hub.run(&[&TEXT[..], &["-m", "demo/target", "--json"]].concat()).ok();
    let record: Value = serde_json::from_str(&json).expect("an object");
    let path = record["record"]["settings"]["model"]["path"].as_str().unwrap_or_default().to_string();
    assert!(
        path.contains("/models--demo--target/snapshots/") && Path::new(&path).join("config.json").exists(),
        "{path}"
    );
}

#[test]
fn every_command_with_a_model_accepts_a_hub_name() {
    let test_hub = TestHub::new();
    let (out, prompts) = (test_hub.folder.path().join("out"), test_hub.folder.path().join("prompts.txt"));
    std::fs::write(&prompts, "Once upon a time\n").expect("a file can be written");
    let (out, prompts) = (out.display().to_string(), prompts.display().to_string());
    let page = test_hub.run(&["inspect", "demo/target"]).ok();
    assert!(page.contains("Llama") || page.contains("llama"), "{page}");
    assert_eq!(test_hub.run(&["inspect", "-hf", "demo/target"]).ok(), page);
    test_hub.run(&["logits", "-m", "demo/target", "--tokens", "1,2", "-o", &out]).ok();
    let checked = test_hub
        .run(&["check", "-m", "demo/target", "-hfd", "demo/draft", "--prompts", &prompts, "-n", "8", "-s", "1"])
        .ok();
    assert!(checked.contains("tokens: speculative equals plain"), "{checked}");
    test_hub.run(&["quantize", "demo/target", &format!("{out}.gguf"), "--type", "q8_0"]).ok();
    test_hub.run(&["bench", "pass", "-m", "demo/target", "--rows", "1", "--repeat", "1"]).ok();
    test_hub.run(&["lookup", "build", &prompts, "-m", "demo/target", "-o", &format!("{out}.store")]).ok();
}

#[test]
fn paths_and_invalid_names_are_never_looked_up() {
    let test_hub = TestHub::new();
    let line = |word: &str| test_hub.run(&["generate", "x", "-m", word]).error(1);
    for word in ["nowhere", "./demo/target", "/demo/target", "demo/target/x", "demo/target.gguf", "../target"] {
        assert!(line(word).starts_with(word), "{word}");
    }
    assert!(test_hub.server.seen().is_empty());
    let expected = "--hf-repo: expected org/name, org/name:QUANT or org/name@REVISION, found \"target\"";
    assert_eq!(test_hub.run(&["generate", "x", "-hf", "target"]).error(2), expected);
    let both = test_hub.run(&["generate", "x", "-m", "demo/target", "-hf", "demo/target"]).error(2);
    assert!(both.contains("--hf-repo"), "{both}");
}

#[test]
fn unavailable_models_are_reported_in_one_line() {
    let test_hub = TestHub::new();
    let line = test_hub.run(&["generate", "x", "-m", "demo/nothing"]).error(1);
    assert!(line.starts_with("demo/nothing: not found at http://127.0.0.1:"), "{line}");
    assert!(line.ends_with("(Invalid username or password.); nor is there such a path"), "{line}");
    let offline = test_hub.run_with(&["generate", "x", "-hf", "demo/target"], &[]).error(1);
    assert!(offline.contains("HF_HUB_OFFLINE is set; the cache ") && offline.ends_with(" is empty"), "{offline}");
    test_hub.run(&["pull", "demo/target"]).ok();
    let unreachable_hub = [("HF_HUB_OFFLINE", "0"), ("HF_ENDPOINT", "http://127.0.0.1:9")];
    let line = test_hub.run_with(&["generate", "x", "-hf", "demo/draft"], &unreachable_hub).error(1);
    assert!(line.contains("no connection to http://127.0.0.1:9") && line.ends_with(" has demo/target"), "{line}");
    for variables in [&unreachable_hub[..], &[]] {
        let line = test_hub.run_with(&["pull", "demo/draft"], variables).error(1);
        assert!(line.ends_with("; a model that lies on this machine needs no network: -m FILE.gguf"), "{line}");
    }
    test_hub.server.change("demo/draft", |repository| repository.token = Some("hf_secret".to_string()));
    let line = test_hub.run(&["generate", "x", "-hf", "demo/draft"]).error(1);
    assert!(line.contains("gated: access is asked for at") && line.contains("HF_TOKEN is not set"), "{line}");
    let variables = [("HF_HUB_OFFLINE", "0"), ("HF_TOKEN", "hf_secret")];
    test_hub.run_with(&["pull", "demo/draft"], &variables).ok();
    let leaked = |seen: &server::Seen| seen.elsewhere && format!("{seen:?}").contains("hf_secret");
    assert!(!test_hub.server.seen().iter().any(leaked));
}

#[test]
fn a_damaged_blob_is_fetched_again() {
    let test_hub = TestHub::new();
    let words = [&TEXT[..], &["-m", "demo/target"]].concat();
    let text = test_hub.run(&words).ok();
    let blob = test_hub.weights("demo/target");
    std::fs::write(&blob, "half").expect("it can be written");
    assert_eq!(test_hub.run(&words).ok(), text);
    // Damage of the same length is only found by pull, which verifies every byte.
    let mut bytes = std::fs::read(&blob).expect("it is there");
    bytes[1000] ^= 1;
    std::fs::write(&blob, &bytes).expect("it can be written");
    let pulled = test_hub.run(&["pull", "demo/target"]).ok();
    assert!(!pulled.contains("(0 bytes of them fetched just now)"), "{pulled}");
    assert_eq!(test_hub.run(&words).ok(), text);
}

#[cfg(unix)]
#[test]
fn an_interrupted_download_is_resumed() {
    let test_hub = TestHub::new();
    let blob = test_hub.weights("demo/target");
    let name = blob.file_name().expect("a name").to_string_lossy().into_owned();
    let partial = blob.with_file_name(format!("{name}.incomplete"));
    test_hub.server.fault(&name, Fault::Slow(1), 1);
    let mut command = program(test_hub.folder.path());
    command.args(["pull", "demo/target"]).env("HF_HUB_OFFLINE", "0").env("HF_ENDPOINT", test_hub.server.url());
    command.env("HF_HOME", test_hub.folder.path()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().expect("the program starts");
    let started = Instant::now();
    while std::fs::metadata(&partial).map_or(0, |found| found.len()) < 50_000 {
        assert!(started.elapsed() < Duration::from_secs(60), "nothing is fetched");
        std::thread::sleep(Duration::from_millis(5));
    }
    // Ctrl-C.
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("there is a kill");
    assert!(killed.success() && !child.wait().expect("it ends").success());
    let kept = std::fs::metadata(&partial).expect("it is kept").len();
    assert!(kept >= 50_000 && !blob.exists(), "{kept}");
    let listed = test_hub.run(&["list"]).ok();
    assert!(listed.contains("incomplete: pull goes on with it"), "{listed}");
    test_hub.server.seen();
    test_hub.run(&["pull", "demo/target"]).ok();
    let range = test_hub.server.seen().into_iter().find_map(|seen| seen.headers.get("range").cloned());
    assert_eq!(range, Some(format!("bytes={kept}-")));
}

#[test]
fn models_in_the_cache_are_listed_and_removed() {
    let test_hub = TestHub::new();
    let pulled = test_hub.run(&["pull", "demo/target"]).ok();
    let path = pulled.lines().next().unwrap_or_default();
    assert!(Path::new(path).join("model.safetensors").exists(), "{pulled}");
    assert!(pulled.contains("6 files, ") && pulled.contains("family: llama"), "{pulled}");
    assert!(
        pulled.contains("draft model: none is known for it\ndraft head: one can be trained for it (how long"),
        "{pulled}"
    );
    assert!(pulled.contains(&format!(" train --hidden rows --target {path} --out run\n")), "{pulled}");
    let gguf = test_hub.folder.path().join("x.gguf").display().to_string();
    run(&["quantize", path, &gguf, "--type", "q8_0"]).ok();
    let bytes = std::fs::read(gguf).expect("it was made");
    test_hub.server.offer("demo/target-GGUF", &[("m-Q8_0.gguf", bytes.clone()), ("m-F16.gguf", b"no model".to_vec())]);
    test_hub.run(&["pull", "demo/target-GGUF:q8_0"]).ok();
    test_hub.run(&["pull", "demo/target-GGUF", "--hf-file", "m-F16.gguf"]).ok();
    let listed = test_hub.run_with(&["list", "--json"], &[]).ok();
    let listed: Vec<Value> = serde_json::from_str(&listed).expect("a list");
    let names: Vec<&str> = listed.iter().filter_map(|object| object["name"].as_str()).collect();
    assert_eq!(names, ["demo/target", "demo/target-GGUF:F16", "demo/target-GGUF:Q8_0"]);
    let families: Vec<&Value> = listed.iter().map(|object| &object["family"]).collect();
    assert_eq!(families, [&Value::from("llama"), &Value::Null, &Value::from("llama")]);
    assert!(listed.iter().all(|object| object["complete"] == true), "{listed:?}");
    assert_eq!(
        (&listed[2]["kind"], &listed[2]["quant"], &listed[2]["bytes"]),
        (&Value::from("gguf"), &Value::from("Q8_0"), &Value::from(bytes.len()),)
    );
    let page = test_hub.run_with(&["list"], &[]).ok();
    assert!(
        page.lines().any(|line| line.starts_with("demo/target-GGUF:Q8_0  ") && line.ends_with("gguf Q8_0    llama"))
    );
    // There is no terminal to confirm on.
    let line = test_hub.run(&["rm", "demo/target"]).error(2);
    assert!(line.starts_with("--yes: expected it where nobody can be asked, found none (demo/target: "), "{line}");
    let freed = test_hub.run(&["rm", "demo/target-GGUF:q8_0", "--yes"]).ok();
    assert!(freed.starts_with("demo/target-GGUF:q8_0: ") && freed.ends_with(" freed\n"), "{freed}");
    test_hub.run(&["rm", "demo/target", "-y"]).ok();
    assert!(!test_hub.cache().join("models--demo--target").exists());
    let line = test_hub.run(&["rm", "demo/target", "-y"]).error(1);
    assert!(line.starts_with("demo/target: expected it in the cache"), "{line}");
    let remaining: Value = serde_json::from_str(&test_hub.run(&["list", "--json"]).ok()).expect("a list");
    assert_eq!(remaining[0]["name"], "demo/target-GGUF:F16");
    assert_eq!(remaining.as_array().map(Vec::len), Some(1));
}

#[cfg(unix)]
#[test]
fn file_names_with_escape_sequences_are_escaped() {
    let test_hub = TestHub::new();
    let snapshot = test_hub.cache().join("models--demo--odd/snapshots").join("a".repeat(40));
    std::fs::create_dir_all(&snapshot).expect("a folder can be made");
    std::fs::write(snapshot.join("x\u{1b}[2J\u{202e}y-00001-of-00002.gguf"), "x").expect("a file can be written");
    let page = test_hub.run_with(&["list"], &[]).ok();
    assert!(
        page.contains("demo/odd:x\\u{1b}[2J\\u{202e}y@aaaaaaaa") && !page.contains(['\u{1b}', '\u{202e}']),
        "{page}"
    );
    let line = test_hub.run_with(&["generate", "x", "-hf", "demo/target"], &[]).error(1);
    assert!(!line.contains(['\u{1b}', '\u{202e}']), "{line}");
}

#[test]
fn config_reads_the_cache_and_fetches_nothing() {
    let test_hub = TestHub::new();
    let mut files: Vec<(String, Vec<u8>)> = Vec::new();
    for entry in std::fs::read_dir(demo("demo-target")).expect("the folder is there").flatten() {
        files.push((entry.file_name().into_string().expect("a name"), std::fs::read(entry.path()).expect("a file")));
    }
    files.retain(|(name, _)| name != "generation_config.json");
    files.push(("generation_config.json".to_string(), b"{\"do_sample\": true, \"top_k\": 17}".to_vec()));
    let files: Vec<(&str, Vec<u8>)> = files.iter().map(|(name, bytes)| (name.as_str(), bytes.clone())).collect();
    test_hub.server.offer("demo/odd", &files);
    for option in ["-hf", "-m"] {
        let before_pull = test_hub.run(&["config", "generate", option, "demo/odd"]);
        assert!(
            before_pull.err.contains("left out: demo/odd: expected the whole model in the cache "),
            "{}",
            before_pull.err
        );
        assert!(before_pull.ok().lines().any(|line| line.starts_with("top-k ") && line.ends_with("program")));
    }
    assert!(test_hub.server.seen().is_empty());
    test_hub.run(&["pull", "demo/odd"]).ok();
    for option in ["-hf", "-m"] {
        let page = test_hub.run(&["config", "generate", option, "demo/odd"]).ok();
        let line = page.lines().find(|line| line.starts_with("top-k ")).unwrap_or_default();
        assert!(line.contains(" 17 ") && line.ends_with("generation_config.json"), "{page}");
    }
}

#[test]
fn pull_proposes_a_draft_model_and_prints_its_assumptions() {
    let test_hub = TestHub::new();
    let server = &test_hub.server;
    server.offer_folder("somebody/Qwen3-8B", Path::new(&demo("demo-target")));
    server.offer_folder("Qwen/Qwen3-0.6B", Path::new(&demo("demo-draft")));
    let pulled = test_hub.run(&["pull", "somebody/Qwen3-8B"]).ok();
    let line = pulled.lines().find(|line| line.starts_with("draft model: Qwen/Qwen3-0.6B (")).unwrap_or_default();
    assert!(line.contains("if 70 % of its tokens are accepted, which is assumed (a step costs 0."), "{pulled}");
    assert!(pulled.ends_with("  foretoken chat -m somebody/Qwen3-8B -md Qwen/Qwen3-0.6B\n"), "{pulled}");
    assert!(!test_hub.cache().join("models--Qwen--Qwen3-0.6B").exists());
    let with_draft = test_hub.run(&["pull", "--draft", "somebody/Qwen3-8B"]).ok();
    assert!(with_draft.contains("models--Qwen--Qwen3-0.6B/snapshots/"), "{with_draft}");
    // Where the family's own is too big, a model of another vocabulary, or a head.
    server.offer_folder("google/gemma-2-9b", Path::new(&demo("demo-target")));
    let pulled = test_hub.run(&["pull", "google/gemma-2-9b"]).ok();
    assert!(pulled.contains("draft model: HuggingFaceTB/SmolLM2-360M-Instruct ("), "{pulled}");
    assert!(pulled.contains(", another vocabulary, drafts are translated): about "), "{pulled}");
    assert!(pulled.contains("\ndraft head: one can be trained for it ("), "{pulled}");
    // Measured costs are preferred to sizes.
    let costs = test_hub.folder.path().join("kept").display().to_string();
    let variables = [("HF_HUB_OFFLINE", "0"), ("XDG_CACHE_HOME", costs.as_str())];
    let run = [&TEXT[..], &["-m", "somebody/Qwen3-8B", "-md", "Qwen/Qwen3-0.6B"]].concat();
    test_hub.run_with(&run, &variables).ok();
    let measured = test_hub.run_with(&["pull", "--draft", "somebody/Qwen3-8B"], &variables).ok();
    assert!(measured.contains(" passes as measured here)"), "{measured}");
}

#[cfg(unix)]
#[test]
fn a_server_uses_the_requested_name_of_its_model() {
    use std::io::{BufRead, BufReader};
    let test_hub = TestHub::new();
    let mut command = program(test_hub.folder.path());
    command.args(["serve", "--port", "0", "-c", "64", "-m", "demo/target"]).env("HF_HUB_OFFLINE", "0");
    command.env("HF_ENDPOINT", test_hub.server.url()).env("HF_HOME", test_hub.folder.path());
    command.stdin(Stdio::null()).stderr(Stdio::piped());
    let mut server = command.spawn().expect("the program starts");
    let stderr = BufReader::new(server.stderr.take().expect("it is piped"));
    let line = stderr.lines().map_while(Result::ok).find(|line| line.contains(" at http://"));
    Command::new("kill").args(["-TERM", &server.id().to_string()]).status().expect("it can be asked to end");
    server.wait().expect("it ends");
    assert!(line.as_deref().is_some_and(|line| line.starts_with("demo/target at http://127.0.0.1:")), "{line:?}");
}

#[test]
fn invalid_names_get_a_hint_and_addresses_are_names() {
    let test_hub = TestHub::new();
    let error = test_hub.run(&["generate", "-m", "llama3", "x"]).error(1);
    assert_eq!(
        error,
        "llama3: expected a directory, a .gguf file or a name of the hub (org/name), found nothing of this name"
    );
    let by_name = test_hub.run(&["inspect", "demo/target"]).ok();
    for address in ["https://huggingface.co/demo/target", "hf.co/demo/target"] {
        assert_eq!(test_hub.run(&["inspect", address]).ok(), by_name, "{address}");
    }
}
