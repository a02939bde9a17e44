//! Too little memory or other resources, and files that other processes truncate or replace while they are used.
//!
//! The program succeeds, or ends with one line and exit code 1. Overcommitted memory, for which the system kills
//! processes, is not tested.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{at_home, demo, golden, program, run, words};

/// A copy of a demo model, which a test may change.
fn model_copy(name: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder can be made");
    for entry in fs::read_dir(demo(name)).expect("the demo model is there") {
        let path = entry.expect("it can be listed").path();
        fs::copy(&path, folder.path().join(path.file_name().expect("a file"))).expect("it can be copied");
    }
    folder
}

#[test]
fn a_model_that_is_truncated_while_it_runs_ends_with_one_line() {
    let (home, model) = (tempfile::tempdir().expect("a folder can be made"), model_copy("demo-target"));
    let path = model.path().join("model.safetensors");
    let mut command = program(home.path());
    command.args(["generate", "-m"]).arg(model.path());
    command.args(words("-p Once --spec-type none --ignore-eos -n 4000 -c 4096 --color never -q"));
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
    let mut out = child.stdout.take().expect("it is piped");
    out.read_exact(&mut [0; 20]).expect("some words come");
    File::options().write(true).open(&path).expect("it can be opened").set_len(5000).expect("it can be shortened");
    out.read_to_end(&mut Vec::new()).expect("the rest comes");
    let output = child.wait_with_output().expect("it ends");
    let stderr = String::from_utf8(output.stderr).expect("text");
    let name = path.display();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    let expected = format!(
        "error: {name}: expected 4727096 bytes, found fewer: it was shortened while it was used, or cannot be read\n"
    );
    let len = fs::metadata(format!("{}/model.safetensors", demo("demo-target"))).expect("it is there").len();
    assert_eq!(stderr, expected.replace("4727096", &len.to_string()));
}

#[test]
fn a_model_that_is_replaced_while_it_runs_does_no_harm() {
    let (home, model) = (tempfile::tempdir().expect("a folder can be made"), model_copy("demo-target"));
    let line = "-p Once -s 1 --spec-type none --ignore-eos -n 300 -q";
    let undisturbed = run(&[vec!["generate", "-m", &demo("demo-target")], words(line)].concat()).ok();
    let mut command = program(home.path());
    command.args(["generate", "-m"]).arg(model.path()).args(words(line));
    let mut child = command.stdout(Stdio::piped()).spawn().expect("the program starts");
    let mut out = child.stdout.take().expect("it is piped");
    let mut text = vec![0; 20];
    out.read_exact(&mut text).expect("some words come");
    fs::write(model.path().join("new"), b"something else").expect("it can be written");
    fs::rename(model.path().join("new"), model.path().join("model.safetensors")).expect("it can be renamed");
    out.read_to_end(&mut text).expect("the rest comes");
    assert!(child.wait().expect("it ends").success());
    assert_eq!(String::from_utf8(text).expect("text"), undisturbed);
}

/// Runs a command line under a limit of the shell. Returns exit code and standard error.
fn limited(limit: &str, line: &str) -> (Option<i32>, String) {
    let home = tempfile::tempdir().expect("a folder can be made");
    let mut command = Command::new("sh");
    at_home(&mut command, home.path());
    let program = env!("CARGO_BIN_EXE_foretoken");
    command.current_dir(home.path()).args(["-c", &format!("{limit}; exec {program} {line}")]);
    command.env_remove("RUST_BACKTRACE"); // which CI sets
    let output = command.stdin(Stdio::null()).output().expect("the shell runs");
    let paths: Vec<_> = fs::read_dir(home.path()).expect("it is there").flatten().map(|entry| entry.path()).collect();
    let is_part = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "part");
    assert!(!paths.iter().any(is_part), "{line}: {paths:?}");
    (output.status.code(), String::from_utf8(output.stderr).expect("text"))
}

#[test]
fn a_limit_on_file_size_is_reported() {
    let (code, stderr) = limited("ulimit -f 10", &format!("quantize {} q.gguf --type f16", demo("demo-draft")));
    let error = stderr.lines().find(|line| line.starts_with("error: ")).unwrap_or_default();
    assert!(code == Some(1) && error.contains("q.gguf: ") && error.contains("File too large"), "{code:?} {stderr}");
    // Measured costs are kept unasked, so a failure to write them must not end the run.
    let (code, stderr) = limited("ulimit -f 0", "generate -s 1 -n 4 once > /dev/null");
    assert!(code == Some(0) && !stderr.contains("error: "), "{code:?} {stderr}");
}

#[test]
fn a_limit_on_open_files_is_reported() {
    // The shell ends a server that starts.
    let serves = "serve --port 0 -c 64 --shutdown-timeout 1 & sleep 1; kill $! 2> /dev/null; wait $!";
    for files in 4..12 {
        for line in ["generate -q -s 1 -n 4 once", serves] {
            let (code, stderr) = limited(&format!("ulimit -n {files}"), line);
            assert!(!stderr.contains("panicked") && !stderr.contains("a defect"), "{files}: {line}: {code:?} {stderr}");
            assert!(
                stderr.lines().filter(|line| line.starts_with("error: ")).count() <= 1,
                "{files}: {line}: {stderr}"
            );
        }
    }
}

#[test]
fn models_beyond_the_memory_limit_are_refused_with_their_parts() {
    let refused = run(&words("generate -p Once -n 5 --memory-limit 1MB")).error(1);
    let (parts, found) = refused.split_once("), found ").expect("both are said");
    assert!(parts.starts_with("memory: expected ") && parts.contains("(weights "), "{refused}");
    let rest = "0 MB, which is what --memory-limit 1 MB leaves; less is needed with a smaller --ctx-size, --dtype q8_0 \
                or q4_k, --cache-type-k and --cache-type-v q8_0; --memory-limit none goes on all the same";
    assert_eq!(found, rest);
    // Draft models count.
    let drafts = run(&words("generate -p Once -n 5 --memory-limit 1MB --spec-type draft")).error(1);
    assert!(drafts.contains(", draft models "), "{drafts}");
    let text = run(&words("generate -p Once -s 1 -n 5 -q")).ok();
    for enough in ["none", "4GB", "4GiB"] {
        assert_eq!(run(&["generate", "-p", "Once", "-s", "1", "-n", "5", "-q", "--memory-limit", enough]).ok(), text);
    }
    // All commands that load a model check the limit.
    for line in ["bench pass --memory-limit 1MB", "logits --tokens 1,2 -o /dev/null --memory-limit 1MB"] {
        let refused = run(&[words(line), vec!["-m", &demo("demo-target")]].concat()).error(1);
        assert!(refused.starts_with("memory: expected "), "{line}: {refused}");
    }
    for wrong in ["6XB", "0", "-1"] {
        let expected = "--memory-limit: expected a size as 6GB or 512MiB, or free or none";
        assert_eq!(run(&["generate", "--memory-limit", wrong]).error(2), format!("{expected}, found {wrong:?}"));
    }
    for option in ["--checkpoints", "--expert-memory"] {
        for wrong in ["6XB", "-1"] {
            let expected = format!("{option}: expected a size as 6GB or 512MiB, or 0");
            assert_eq!(run(&["generate", option, wrong]).error(2), format!("{expected}, found {wrong:?}"));
        }
    }
}

#[test]
fn experts_packed_on_demand_compute_the_same() {
    let (model, folder) = (golden("mixtral"), tempfile::tempdir().expect("a folder can be made"));
    let facts: serde_json::Value = serde_json::from_str(&run(&["inspect", &model, "--json"]).ok()).expect("it is JSON");
    let bytes = |field: &str| facts["memory"][field].as_u64().unwrap_or_else(|| panic!("{field}: {facts}"));
    let (all, minimum) = (bytes("experts_bytes"), bytes("experts_bytes_least"));
    assert!(minimum > 0 && minimum < all && all < bytes("weights_bytes"), "{facts}");
    assert!(run(&["inspect", &model]).ok().contains("; experts 0."));
    let logits = |room: &str| {
        let file = folder.path().join(room);
        let out = file.to_str().expect("a name");
        run(&["logits", "--tokens", "3,1,4,1,5", "-m", &model, "-o", out, "--expert-memory", room]).ok();
        fs::read(&file).expect("it was written")
    };
    assert!(
        logits(&minimum.to_string()) == logits(&all.to_string()) && logits("1GB") == logits(&(all / 2).to_string())
    );
    let room = (minimum - 1).to_string();
    let refused = run(&["bench", "pass", "-m", &model, "--expert-memory", &room]).error(1);
    let expected =
        format!("--expert-memory {room}: expected at least {minimum} bytes, room for an expert of each shape");
    assert!(refused.contains(&expected), "{refused}");
    let line = format!("bench pass -m {model} --rows 1,2 --context 4 --repeat 1 --json --expert-memory {minimum}");
    let pass: serde_json::Value = serde_json::from_str(&run(&words(&line)).ok()).expect("it is JSON");
    assert_eq!(pass[0]["experts_packed_per_pass"], pass[0]["experts_per_pass"], "with room for one");
    // Room for experts is said, and room for layers is of no use.
    let line = format!("generate -m {model} --prompt-ids 1,2 --output-ids -n 1 --spec-type none --offload 1kB");
    let said = run(&words(&format!("{line} --expert-memory {minimum}")));
    let of_layers = format!(
        "--offload: the layers of {model} stay in memory, and room for its experts is set by --expert-memory\n"
    );
    for note in ["note: --expert-memory: of 0 MB of experts 0 MB are in memory at a time;", &of_layers] {
        assert!(said.err.contains(note), "{}", said.err);
    }
}

/// The file of packed layers is made once, made anew if the model or the file changes, and texts are the same.
#[test]
fn layers_read_for_every_pass_compute_the_same() {
    let (home, model) = (tempfile::tempdir().expect("a folder can be made"), model_copy("demo-target"));
    let name = model.path().to_str().expect("a name");
    let generate = |options: &str| {
        let line = format!("generate -p Once -s 1 -n 24 --spec-type draft -md {} -m {name}", demo("demo-draft"));
        let mut command = program(home.path());
        let output = command.args(words(&line)).args(words(options)).output().expect("it starts");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let (code, expected, stderr) = generate("");
    assert!(code == Some(0) && !stderr.contains("--offload"), "{stderr}");
    let layers = home.path().join("foretoken/layers");
    let read = |options: &str, is_made_anew: bool| {
        let (code, found, stderr) = generate(options);
        assert_eq!((code, &found), (Some(0), &expected), "{options}: {stderr}");
        assert!(stderr.contains("note: --offload: 19 MB of layers are read from a file"), "{options}: {stderr}");
        assert_eq!(stderr.contains(": made anew"), is_made_anew, "{options}: {stderr}");
        let files: Vec<_> = fs::read_dir(&layers).expect("it is there").flatten().map(|entry| entry.path()).collect();
        assert_eq!(files.len(), 1, "{files:?}");
        files.into_iter().next().expect("one file")
    };
    let file = read("--offload 9MB", false);
    assert_eq!(read("--offload 14MB", false), file);
    let (code, found, stderr) = generate("--offload 1GB");
    assert!(code == Some(0) && found == expected && !stderr.contains("--offload"), "{stderr}");
    // A byte of the index, of the first layer (which is in memory, or read), and another model of the same shape.
    let mut bytes = fs::read(&file).expect("it is there");
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&file, &bytes).expect("it can be written");
    read("--offload 14MB", true);
    bytes[last] ^= 1;
    bytes[5000] ^= 1;
    fs::write(&file, &bytes).expect("it can be written");
    let (code, found, stderr) = generate("--offload 9MB");
    let damaged = stderr.contains("checksum of layer 0: expected ");
    assert!(code == Some(1) && damaged && found.is_empty() || found == expected, "{code:?}: {found}: {stderr}");
    read("--offload 9MB", false);
    let weights = model.path().join("model.safetensors");
    let mut bytes = fs::read(&weights).expect("it is there");
    let last = bytes.len() - 100_000;
    bytes[last] ^= 1;
    fs::write(&weights, &bytes).expect("it can be written");
    let (_, found, stderr) = generate("--offload 9MB");
    assert!(stderr.contains("identity: expected ") && stderr.contains(": made anew"), "{found}: {stderr}");
    for wrong in ["6XB", "-1", "always"] {
        let expected = format!("--offload: expected auto, never, or a size as 6GB, found {wrong:?}");
        assert_eq!(run(&["generate", "--offload", wrong]).error(2), expected);
    }
    // It is chosen where the model does not fit, and refused where two layers do not.
    let little = generate("--offload 1MB");
    assert!(little.0 == Some(1) && little.2.contains("--offload 1000000: expected at least "), "{little:?}");
}

/// Runs the demo with layers that are read for every pass, and does something to their file once words have come.
/// Returns the file, exit code, standard output and error.
fn with_layers_file(tokens: usize, disturb: impl Fn(&Path)) -> (PathBuf, Option<i32>, String, String) {
    let home = tempfile::tempdir().expect("a folder can be made");
    let mut command = program(home.path());
    command.args(["generate", "-m", &demo("demo-target"), "--offload", "9MB", "-n", &tokens.to_string()]);
    command.args(words("-p Once -s 1 --spec-type none --ignore-eos -c 4096 --color never -q"));
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
    let mut out = child.stdout.take().expect("it is piped");
    let mut text = vec![0; 20];
    out.read_exact(&mut text).expect("some words come");
    let file = fs::read_dir(home.path().join("foretoken/layers")).expect("it is there").flatten().next();
    let file = file.expect("one file").path();
    disturb(&file);
    out.read_to_end(&mut text).expect("the rest comes");
    let output = child.wait_with_output().expect("it ends");
    let of = |bytes| String::from_utf8(bytes).expect("text");
    (file, output.status.code(), of(text), of(output.stderr))
}

#[test]
fn a_file_of_layers_that_changes_while_it_is_read_ends_with_one_line_or_does_no_harm() {
    let (_, code, expected, stderr) = with_layers_file(60, |_| ());
    assert_eq!(code, Some(0), "{stderr}");
    #[cfg(unix)] // elsewhere an open file cannot be removed
    {
        let removed = with_layers_file(60, |file| fs::remove_file(file).expect("it can be removed"));
        assert_eq!((removed.1, &removed.2, removed.3.as_str()), (Some(0), &expected, ""));
    }
    let shorten = |len: u64| {
        move |file: &Path| File::options().write(true).open(file).and_then(|file| file.set_len(len)).expect("shortened")
    };
    for len in [0, 5000, 10_000_000] {
        let (file, code, text, stderr) = with_layers_file(2000, shorten(len));
        assert_eq!((code, stderr.lines().count()), (Some(1), 1), "{len}: {stderr}");
        assert!(text.starts_with(&expected[..20]), "{text}");
        let (begins, ends) = (format!("{}: layer ", file.display()), " bytes, found fewer: the file was shortened");
        assert!(stderr.starts_with("error: ") && stderr.contains(&begins) && stderr.contains(ends), "{len}: {stderr}");
        assert!(!file.exists(), "{len}: the next run makes it anew");
    }
}

/// Runs a command line under `ulimit -v`, in kB; the exit code, standard output and standard error.
#[cfg(target_os = "linux")]
fn with_address_space(limit_kb: usize, line: &str, folder: &Path) -> (Option<i32>, String, String) {
    let mut command = Command::new("sh");
    at_home(&mut command, folder);
    let program = env!("CARGO_BIN_EXE_foretoken");
    command.current_dir(folder).args(["-c", &format!("ulimit -v {limit_kb}; exec {program} {line}")]);
    let output = command.stdin(Stdio::null()).output().expect("a shell starts");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// With any limit on address space a command succeeds, or prints one line.
#[test]
#[cfg(target_os = "linux")]
fn too_little_memory_is_an_error_and_no_abort() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    fs::write(folder.path().join("text.txt"), "one two three one two three\n".repeat(100)).expect("it can be written");
    let target = demo("demo-target");
    let lines = [
        "generate -p Once -s 1 -n 8 -q -t 4".to_string(),
        "generate -p Once -s 1 -n 8 -q -np 3 --spec-type draft+suffix -t 2".to_string(),
        format!("generate -m {target} -p Once -s 1 -n 8 -q --dtype q8_0 -lcd kept"),
        format!("logits -m {target} --tokens 1,2,3 -o out --force"),
        format!("quantize {target} out.gguf --type q8_0 --force"),
        format!("lookup build text.txt -m {target} -o out.cache --force"),
        format!("inspect -m {target}"),
        "bench replay --help".to_string(),
    ];
    // Below this limit the system cannot even load the program.
    let loads = |limit_kb: &usize| with_address_space(*limit_kb, "--version", folder.path()).0 == Some(0);
    let least_kb = (20_000..400_000).step_by(1000).find(loads).expect("the program starts");
    // Ordinary tests run every tenth limit, other ones for each line.
    let all = std::env::var_os("FORETOKEN_ALL_LIMITS").is_some();
    let mut wrong = Vec::new();
    for (number, line) in lines.iter().enumerate() {
        let (mut succeeded, step) = (None, if all { 4000 } else { 40_000 });
        for limit_kb in (least_kb + 3700 * number..least_kb + 600_000).step_by(step) {
            let (code, out, err) = with_address_space(limit_kb, line, folder.path());
            let fits = match code {
                Some(0) => out == *succeeded.get_or_insert(out.clone()),
                Some(1) => err.lines().count() == 1 && err.starts_with("error: "),
                // The system's loader refused before the program began.
                Some(127) => err.contains("error while loading shared libraries") || err.contains("cannot"),
                _ => false,
            };
            if !fits {
                wrong.push(format!("{line} at {limit_kb} kB: {code:?}: {err}"));
            }
        }
        assert!(succeeded.is_some() || !wrong.is_empty(), "{line}: never enough");
    }
    assert!(wrong.is_empty(), "{} runs:\n{}", wrong.len(), wrong.join("\n"));
}
