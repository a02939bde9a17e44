//! A system that refuses threads: the text is the same, and one line says how many compute.
//!
//! The limit is one of a user's processes, which root has none of: the program is run as a user that nobody is, and so
//! the test needs root, `prlimit`, and a program that others may run. Elsewhere it says that it was skipped; the pool
//! itself is tested in `kernels`.
#![cfg(target_os = "linux")]

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// A user without processes.
const NOBODY: u32 = 1_876_543_210;

const LINE: &str = "generate --prompt The --predict 8 --seed 1 --threads 8";

/// Standard output and error of [`LINE`], with so many threads at most, if the program can be run so.
fn run(threads: Option<usize>) -> Option<(String, String)> {
    let program = env!("CARGO_BIN_EXE_foretoken");
    let mut command = match threads {
        Some(threads) => {
            let mut command = Command::new("prlimit");
            command.arg(format!("--nproc={threads}")).arg(program).uid(NOBODY).gid(NOBODY);
            command
        }
        None => Command::new(program),
    };
    command.args(LINE.split(' ')).stdin(Stdio::null()).env("HOME", "/nonexistent").current_dir("/");
    let output = command.output().ok()?;
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let (out, err) = (text(output.stdout), text(output.stderr));
    if threads.is_some() && err.contains("Permission denied") {
        return None;
    }
    assert!(output.status.success(), "{threads:?} threads: {err}");
    Some((out, err))
}

#[test]
fn a_text_is_the_same_with_the_threads_that_there_are() {
    let (text, said) = run(None).expect("the program runs");
    assert!(!text.is_empty() && !said.contains("threads"), "{said}");
    for (given, had) in [(1, 1), (3, 2), (5, 3)] {
        let Some((found, said)) = run(Some(given)) else {
            println!("skipped: the program cannot be run as another user");
            return;
        };
        assert_eq!(found, text, "{given} threads");
        let expected = format!("--threads: expected 8, found {had}: the system gives no more");
        assert_eq!(said.matches(&expected).count(), 1, "{given} threads: {said}");
    }
}

#[test]
fn a_server_that_has_no_threads_says_so() {
    let mut command = Command::new("prlimit");
    command.arg("--nproc=3").arg(env!("CARGO_BIN_EXE_foretoken")).args(["serve", "--port", "0", "-t", "1"]);
    command.uid(NOBODY - 1).gid(NOBODY - 1).stdin(Stdio::null()).env("HOME", "/nonexistent").current_dir("/");
    let Some(output) = command.output().ok().filter(|output| !output.stderr.ends_with(b"Permission denied\n")) else {
        println!("skipped: the program cannot be run as another user");
        return;
    };
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    let last = said.lines().last().unwrap_or_default();
    assert!(last.starts_with("error: threads: expected 5 for the server, found "), "{said}");
}
