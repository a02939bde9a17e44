//! Functions for the tests that run the fuzz targets' code on stable Rust: random changes for a while, and committed
//! seeds.
//!
//! A probe takes any bytes, panics if it finds an error in the code, and returns whether the bytes were accepted. The
//! caller changes its kind of input; `weights` has its own copy, since this crate depends on it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The time for which random changes are tried.
const DURATION: Duration = Duration::from_secs(2);

/// Runs a probe on one case after the other. A case depends on its number alone.
///
/// # Panics
/// If the probe panics, with the case; or if all cases are accepted, or none, since the test would then prove nothing.
pub fn try_changes(mut changed: impl FnMut(u64) -> Vec<u8>, probe: impl Fn(&[u8]) -> bool) {
    let (start, mut number, mut accepted) = (Instant::now(), 0, 0);
    while start.elapsed() < DURATION {
        let data = changed(number);
        let verdict = catch_unwind(AssertUnwindSafe(|| probe(&data)));
        accepted += u64::from(verdict.unwrap_or_else(|_| panic!("case {number} fails: {data:?}")));
        number += 1;
    }
    println!("{number} cases, {accepted} of them accepted");
    assert!(accepted > 0 && accepted < number, "{accepted} of {number} accepted: the changes have no effect");
}

/// The folder of the seeds of a fuzz target.
fn folder(target: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "../../fuzz/corpus", target].iter().collect()
}

/// Checks that the committed seeds of a fuzz target are up to date.
///
/// # Panics
/// If one is not, naming it.
pub fn check_committed<Name: AsRef<str>>(target: &str, seeds: impl IntoIterator<Item = (Name, Vec<u8>)>) {
    for (name, bytes) in seeds {
        let name = name.as_ref();
        let committed = std::fs::read(folder(target).join(name)).unwrap_or_default();
        assert!(committed == bytes, "fuzz/corpus/{target}/{name} is out of date: run write_the_seeds");
    }
}

/// Writes the seeds of a fuzz target.
///
/// # Panics
/// If they cannot be written.
pub fn write<Name: AsRef<str>>(target: &str, seeds: impl IntoIterator<Item = (Name, Vec<u8>)>) {
    std::fs::create_dir_all(folder(target)).expect("the folder can be made");
    for (name, bytes) in seeds {
        std::fs::write(folder(target).join(name.as_ref()), bytes).expect("a seed can be written");
    }
}
