//! Files of earlier runs with random changes, checked by [`file_probe`](crate::file_probe); and the seeds of the fuzz
//! target `store`, which does the same guided by coverage: `cargo test -p foretoken -- --ignored write_the_seeds`.

use foretoken::store::{Document, Store};
use foretoken::{Tenant, fuzzing};
use foretoken_testkit::fuzzing::{check_committed, try_changes, write};
use foretoken_testkit::rows::Numbers;

use crate::file_probe::{VOCABULARY, file};

fn store() -> Vec<u8> {
    let mut store = Store::new(VOCABULARY, 100);
    for (tokens, prompt_len, tenant) in [(&[1, 2, 99][..], 2, None), (&[7], 0, Some(u64::MAX)), (&[0, 5], 2, Some(0))] {
        assert!(store.add(Document { tokens: tokens.to_vec(), prompt_len, tenant: tenant.map(Tenant) }));
    }
    store.set_next_request(7);
    fuzzing::store_file(&store)
}

/// That store in the format of version 1.
fn store_of_version_1() -> Vec<u8> {
    let mut bytes = store();
    bytes[8..12].copy_from_slice(&1_u32.to_le_bytes());
    bytes.drain(40..48);
    bytes
}

/// Five tokens in two groups of rows, the second of which has a state of three bytes and the last three rows.
fn prefix() -> Vec<u8> {
    let key = b"model: 00ff\nrope: 0005\n";
    let numbers = |all: &[u64]| all.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>();
    let mut bytes = b"ftkprefx\x01\0\0\0".to_vec();
    bytes.extend((key.len() as u32).to_le_bytes());
    bytes.extend(numbers(&[5, 2]));
    bytes.extend(key);
    bytes.extend([7_u32, 0, 99, 3, 3].iter().flat_map(|token| token.to_le_bytes()));
    bytes.extend(numbers(&[0, 6, 2, 4]));
    bytes.extend([0; 8 + 30 + 3 + 12 + 8]);
    bytes
}

const COSTS: &str = r#"{"foretoken_costs": 2, "of": "a key", "passes": [
    {"context_min": 0, "rows_seconds_times_age": [[1, 0.01, 3, 7], [8, 0.0125, 3, 7]]},
    {"context_min": 512, "rows_seconds_times_age": [[1, 0.015, 3, 7]]}],
    "drafters": {"draft": {"call": 1e-6, "step": 0.0002, "catch_up": 0, "age": 5}}}"#;

fn seeds() -> [(&'static str, Vec<u8>); 5] {
    let seed = |kind: u8, bytes: &[u8]| [&[kind][..], bytes].concat();
    [
        ("store.bin", seed(6, &store())),
        ("store-as-it-is.bin", seed(0, &store())),
        ("store-1.bin", seed(6, &store_of_version_1())),
        ("prefix.bin", seed(4, &prefix())),
        ("costs.bin", seed(2, COSTS.as_bytes())),
    ]
}

#[test]
fn the_seeds_are_accepted_and_committed() {
    seeds().iter().for_each(|(name, bytes)| assert!(file(bytes), "{name}"));
    check_committed("store", seeds());
}

/// A seed with one to three changes: another number or byte, or another length.
fn changed(number: u64) -> Vec<u8> {
    let mut chance = Numbers::new(number);
    let all = seeds();
    let mut data = all[chance.below(all.len())].1.clone();
    for _ in 0..1 + chance.below(3) {
        let at = 1 + chance.below(data.len().max(2) - 1);
        let edge = [0, 1, 2, 255, 1 << 24, 1 << 31, 1 << 62, u64::MAX][chance.below(8)].to_le_bytes();
        match chance.below(5) {
            0 if at + 8 <= data.len() => data[at..at + 8].copy_from_slice(&edge),
            1 if at + 4 <= data.len() => data[at..at + 4].copy_from_slice(&edge[..4]),
            2 => data.truncate(at),
            3 => data.extend_from_within(at.min(data.len())..),
            _ if at < data.len() => data[at] = chance.bits() as u8,
            _ => {}
        }
    }
    data
}

#[test]
fn damaged_files_of_earlier_runs_never_cause_a_panic() {
    try_changes(changed, file);
}

#[test]
#[ignore = "writes the seed files of the fuzz target"]
fn write_the_seeds() {
    write("store", seeds());
}
