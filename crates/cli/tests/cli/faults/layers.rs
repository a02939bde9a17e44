//! The file of packed layers, which is made in the cache folder and read for every pass: whatever befalls it, a run
//! gives the same text or one error, and the next run gives the text.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Instant;

use super::{CacheBefore, Case, Sandbox};

/// A network with layers enough to have them read, and its folder.
pub const FIXTURE: &str = "ministral";
pub const MODEL: &str = "layered";

/// Where the file is made.
pub const FOLDER: &str = "foretoken/layers";

/// Runs of the network, which read the layers.
pub fn case(name: &'static str, cache: CacheBefore) -> Case {
    let line =
        "generate -m {}/layered --prompt-ids 1,2 --output-ids -n 2 -s 1 -t 2 --spec-type none --offload 50kB -c 64";
    Case { cache: Some(cache), ..super::case(name, line, &[]) }
}

/// A sandbox with the packed file, its path, and the text.
fn packed() -> (Sandbox, Case, PathBuf, Vec<u8>) {
    let (sandbox, case) = (Sandbox::new(), case("packed", CacheBefore::Filled));
    let output = sandbox.run(&case, &[], Stdio::piped());
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && stderr.contains("are read from a file for every pass"), "{stderr}");
    let mut files = std::fs::read_dir(sandbox.at(FOLDER)).expect("it is there").flatten();
    let path = files.next().expect("one file").path();
    assert!(files.next().is_none(), "more than one file");
    (sandbox, case, path, output.stdout)
}

#[test]
fn layers_of_a_killed_run_are_packed_by_the_next() {
    let (sandbox, case, path, expected) = packed();
    let whole = std::fs::read(&path).expect("it is there");
    let started = Instant::now();
    std::fs::remove_file(&path).expect("it can be removed");
    sandbox.run(&case, &[], Stdio::null());
    let duration = started.elapsed();
    for round in 0..20 {
        std::fs::remove_file(&path).expect("it can be removed");
        let mut command = sandbox.command(&case, &[]);
        let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().expect("it starts");
        std::thread::sleep(duration * round / 20);
        let _ = child.kill();
        child.wait().expect("it ends");
        let output = sandbox.run(&case, &[], Stdio::piped());
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && output.stdout == expected, "{round}: {stderr}");
        assert!(!stderr.contains("made anew"), "{round}: a file is whole or not there: {stderr}");
        assert!(std::fs::read(&path).expect("it is there") == whole, "{round}");
        assert_eq!(std::fs::read_dir(sandbox.at(FOLDER)).expect("it is there").count(), 1, "{round}");
    }
}

#[test]
fn layers_that_change_between_runs_are_packed_again() {
    let (sandbox, case, path, expected) = packed();
    let whole = std::fs::read(&path).expect("it is there");
    let flipped = |at: usize| {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        bytes
    };
    let flips = (0..whole.len()).step_by(whole.len() / 20).chain([9, 4096, whole.len() - 30, whole.len() - 1]);
    let cuts = [0, 1, 4096, whole.len() / 2, whole.len() - 1].map(|len| whole[..len].to_vec());
    for (number, bytes) in flips.map(flipped).chain(cuts).enumerate() {
        std::fs::write(&path, &bytes).expect("it can be written");
        let output = sandbox.run(&case, &[], Stdio::piped());
        let stderr = String::from_utf8_lossy(&output.stderr);
        let errors = stderr.lines().filter(|line| line.starts_with("error: ")).count();
        match output.status.code() {
            Some(0) => assert!(output.stdout == expected && errors == 0, "{number}: {stderr}"),
            // A layer that is read for every pass is compared with its checksum when the first pass needs it.
            Some(1) => {
                assert!(output.stdout.is_empty() && errors == 1 && stderr.contains(": checksum of layer "), "{stderr}");
            }
            code => panic!("{number}: {code:?}: {stderr}"),
        }
        let output = sandbox.run(&case, &[], Stdio::piped());
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && output.stdout == expected, "{number}, the next run: {stderr}");
    }
}
