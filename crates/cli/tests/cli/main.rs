//! Tests of the program as its users see it: command lines in, standard output, standard error and exit code out.
//!
//! They run the built binary on the demo models and on the small fixtures of `model`. Tests that need other models look
//! for them below `FORETOKEN_TEST_DATA` and print when they are skipped. Output for a terminal is tested on a
//! pseudo-terminal (`terminal`).

mod analyze;
mod arguments;
mod bad_input;
mod batch;
mod beams;
mod bench;
mod bench_generate;
mod bench_report;
mod chat;
mod check;
mod config;
mod documentation;
mod encoder_decoder;
mod endurance;
mod faults;
mod generate;
mod guided;
mod heads;
mod help;
mod hidden;
mod hub;
mod inspect;
mod lenience;
mod logits;
mod lookup;
mod machine;
mod n_best;
mod outputs;
mod pasted;
mod prompt_cache;
mod prompt_files;
mod quantize;
mod records;
mod replay;
mod replay_on;
mod resumed;
mod serve;
mod speculation;
mod stores;
mod terminal;
mod threads;
mod trie;
mod verbosity;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The result of a command line.
struct Run {
    code: i32,
    out: String,
    err: String,
}

impl Run {
    /// Standard output of a run that succeeded.
    #[track_caller]
    fn ok(self) -> String {
        assert_eq!(self.code, 0, "standard error: {}", self.err);
        self.out
    }

    /// The one error line of a run that failed, without `error: `.
    #[track_caller]
    fn error(self, code: i32) -> String {
        assert_eq!((self.code, self.out.as_str()), (code, ""), "standard error: {}", self.err);
        let lines: Vec<&str> = self.err.lines().collect();
        assert!(matches!(lines.as_slice(), [line] if line.starts_with("error: ")), "{}", self.err);
        lines[0]["error: ".len()..].to_string()
    }
}

/// The program without the user's settings: no variables of its own, of the hub or of a proxy, and caches and settings
/// below this folder. The hub is offline, so that no test sends requests to it by mistake.
fn program(home: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_foretoken"));
    at_home(&mut command, home);
    command
}

/// Sets the same environment for another command, which runs the program.
fn at_home(command: &mut Command, home: &Path) {
    for (name, _) in std::env::vars_os() {
        let upper = name.to_string_lossy().to_uppercase();
        let ours = ["FORETOKEN_", "HF_", "HUGGING", "TRANSFORMERS_", "NO_COLOR", "SSL_CERT_FILE"];
        if ours.iter().any(|start| upper.starts_with(start)) || upper.ends_with("_PROXY") {
            command.env_remove(name);
        }
    }
    command.env("HF_HUB_OFFLINE", "1");
    for name in ["XDG_CACHE_HOME", "XDG_CONFIG_HOME"] {
        command.env(name, home);
    }
}

/// Runs the program with these words and this standard input.
fn run_with(words: &[&str], variables: &[(&str, &str)], input: impl AsRef<[u8]>) -> Run {
    // Measured costs of a test build are not kept.
    let home = tempfile::tempdir().expect("a folder can be made");
    let mut command = program(home.path());
    command.args(words);
    command.envs(variables.iter().copied());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program starts");
    // A program that fails early closes its input, which is no error here.
    let _ = child.stdin.take().expect("standard input is piped").write_all(input.as_ref());
    let output = child.wait_with_output().expect("the program ends");
    let text = |bytes| String::from_utf8(bytes).expect("output is UTF-8");
    Run { code: output.status.code().unwrap_or(-1), out: text(output.stdout), err: text(output.stderr) }
}

/// Runs the program with these words.
fn run(words: &[&str]) -> Run {
    run_with(words, &[], "")
}

/// The words of a command line without spaces inside words.
fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

/// A fixture of `model`: a small random network without a tokenizer.
fn golden(name: &str) -> String {
    format!("{}/../model/tests/golden/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// A demo model as a directory.
fn demo(name: &str) -> String {
    format!("{}/../../models/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// A path in the folder of other models and data, if there is one.
fn test_data(path: &str) -> Option<String> {
    let folder = std::env::var_os("FORETOKEN_TEST_DATA")?;
    Some(PathBuf::from(folder).join(path).display().to_string())
}

/// A file with this text in a new folder, which is deleted when the first value is dropped.
fn file(name: &str, text: &str) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let path = folder.path().join(name);
    std::fs::write(&path, text).expect("a file can be written");
    (folder, path.display().to_string())
}
