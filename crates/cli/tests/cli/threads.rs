//! A system that refuses threads: the text is the same, and one line has the number of threads.
//!
//! The limit is the number of a user's processes, which does not apply to root: the program runs as a user without
//! other processes. So the test needs root, `prlimit`, and a program that other users may run; else it is skipped. The
//! thread pool is tested in `kernels`.
#![cfg(target_os = "linux")]

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// A user without other processes.
const NOBODY: u32 = 1_876_543_210;

const LINE: &str = "generate --prompt The --predict 8 --seed 1 --threads 8";

/// Standard output and error of [`LINE`] with at most this many threads; `None` if the program cannot run as another
/// user.
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
fn fewer_threads_give_the_same_text() {
    let (text, stderr) = run(None).expect("the program runs");
    assert!(!text.is_empty() && !stderr.contains("threads"), "{stderr}");
    for (given, found_threads) in [(1, 1), (3, 2), (5, 3)] {
        let Some((found, stderr)) = run(Some(given)) else {
            println!("skipped: the program cannot be run as another user");
            return;
        };
        assert_eq!(found, text, "{given} threads");
        let expected = format!("--threads: expected 8, found {found_threads}: the system gives no more");
        assert_eq!(stderr.matches(&expected).count(), 1, "{given} threads: {stderr}");
    }
}

#[test]
fn a_server_without_threads_fails_in_one_line() {
    let mut command = Command::new("prlimit");
    command.arg("--nproc=3").arg(env!("CARGO_BIN_EXE_foretoken")).args(["serve", "--port", "0", "-t", "1"]);
    command.uid(NOBODY - 1).gid(NOBODY - 1).stdin(Stdio::null()).env("HOME", "/nonexistent").current_dir("/");
    let Some(output) = command.output().ok().filter(|output| !output.stderr.ends_with(b"Permission denied\n")) else {
        println!("skipped: the program cannot be run as another user");
        return;
    };
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    let last = stderr.lines().last().unwrap_or_default();
    assert!(last.starts_with("error: threads: expected 5 for the server, found "), "{stderr}");
}
