//! Configurations of every family with random edits, held to [`config_probe`](crate::config_probe); and the seeds of
//! the fuzz target that does the same with coverage:
//! `cargo test -p foretoken-model -- --ignored write_the_seeds`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use foretoken_testkit::rows::Numbers;

use crate::config_probe::{CHECKPOINTS, config};
use crate::fixture;

/// How long random edits are tried.
const LASTS: Duration = Duration::from_secs(2);

/// Every checkpoint as it is, the same without a field, and some whole texts.
fn seeds() -> Vec<(String, Vec<u8>)> {
    let edited = |first: usize| (format!("edited-{first}.bin"), vec![first as u8, 0, 0, first as u8, 0, 0, 0]);
    let text = |name: &&str| {
        let text = std::fs::read(fixture(name).join("config.json")).expect("a golden configuration");
        (format!("{name}.bin"), [&[u8::MAX][..], &text].concat())
    };
    let texts = ["llama3-rope", "gemma4-per-layer", "quantized-awq", "phi3-long-above", "falcon-11b"];
    (0..CHECKPOINTS).step_by(9).map(edited).chain(texts.iter().map(text)).collect()
}

fn folder() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "../../fuzz/corpus/config"].iter().collect()
}

#[test]
fn every_golden_configuration_is_accepted() {
    (0..CHECKPOINTS).for_each(|first| assert!(config(&[first as u8]), "checkpoint {first}"));
    assert!(!config(&[u8::MAX, b'{', b'}']) && !config(&[]));
}

#[test]
fn no_edit_of_a_configuration_breaks_its_reader() {
    let (start, mut number, mut accepted) = (Instant::now(), 0, 0);
    while start.elapsed() < LASTS {
        let mut chance = Numbers::new(number);
        let mut data = vec![(number % CHECKPOINTS as u64) as u8];
        let edits = 1 + chance.below(3);
        data.extend((0..6 * edits).map(|_| chance.bits() as u8));
        let verdict = catch_unwind(AssertUnwindSafe(|| config(&data)));
        accepted += u64::from(verdict.unwrap_or_else(|_| panic!("case {number} fails: {data:?}")));
        number += 1;
    }
    println!("{number} cases, {accepted} of them accepted");
    assert!(accepted > 0 && accepted < number, "{accepted} of {number} accepted: edits do not edit");
}

#[test]
#[ignore = "writes the seed files of the fuzz target"]
fn write_the_seeds() {
    std::fs::create_dir_all(folder()).unwrap();
    for (name, bytes) in seeds() {
        std::fs::write(folder().join(name), bytes).unwrap();
    }
}

#[test]
fn the_committed_seeds_are_these() {
    for (name, bytes) in seeds() {
        let committed = std::fs::read(folder().join(&name)).unwrap_or_default();
        assert!(committed == bytes, "fuzz/corpus/config/{name} is out of date: run write_the_seeds");
    }
}
