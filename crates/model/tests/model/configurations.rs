//! Tests of configurations of every family with random edits, checked by [`config_probe`](crate::config_probe); and the
//! seeds of the fuzz target that does the same with coverage: `cargo test -p foretoken-model -- --ignored
//! write_the_seeds`.

use foretoken_testkit::fuzzing::{check_committed, try_changes, write};
use foretoken_testkit::rows::Numbers;

use crate::config_probe::{CHECKPOINTS, config};
use crate::fixture;

/// Edits of every ninth checkpoint, and some whole configurations.
fn seeds() -> Vec<(String, Vec<u8>)> {
    let edited = |first: usize| (format!("edited-{first}.bin"), vec![first as u8, 0, 0, first as u8, 0, 0, 0]);
    let text = |name: &&str| {
        let text = std::fs::read(fixture(name).join("config.json")).expect("a golden configuration");
        (format!("{name}.bin"), [&[u8::MAX][..], &text].concat())
    };
    let texts = ["llama3-rope", "gemma4-per-layer", "quantized-awq", "phi3-long-above", "falcon-11b"];
    (0..CHECKPOINTS).step_by(9).map(edited).chain(texts.iter().map(text)).collect()
}

#[test]
fn every_golden_configuration_is_accepted() {
    (0..CHECKPOINTS).for_each(|first| assert!(config(&[first as u8]), "checkpoint {first}"));
    assert!(!config(&[u8::MAX, b'{', b'}']) && !config(&[]));
}

/// One to three edits of a checkpoint.
fn edited(number: u64) -> Vec<u8> {
    let mut chance = Numbers::new(number);
    let mut data = vec![(number % CHECKPOINTS as u64) as u8];
    let edits = 1 + chance.below(3);
    data.extend((0..6 * edits).map(|_| chance.bits() as u8));
    data
}

#[test]
fn no_edit_of_a_configuration_breaks_its_reader() {
    try_changes(edited, config);
}

#[test]
#[ignore = "writes the seed files of the fuzz target"]
fn write_the_seeds() {
    write("config", seeds());
}

#[test]
fn the_committed_seeds_are_these() {
    check_committed("config", seeds());
}
