//! `bench trie`: its tables have the requested rows, and its numbers are plausible.

use serde_json::Value;

use crate::{demo, file, run, words};

/// Two equal answers, one in each half, and two that only their own prompts contain.
const RECORDS: &str = "\
{\"prompt\": [1, 2], \"output\": [10, 11, 12, 13, 14, 15, 16, 17, 18]}
{\"prompt\": [3, 2], \"output\": [10, 11, 12, 13, 14, 15, 16, 17, 18]}
{\"prompt\": [30, 31, 32, 33, 4], \"output\": [30, 31, 32, 33, 5]}
{\"prompt\": [40, 41, 42, 43, 6], \"output\": [40, 41, 42, 43, 7]}
";

fn bench(options: &str) -> crate::Run {
    let (_folder, path) = file("records.jsonl", RECORDS);
    run(&[&["bench", "trie", &path, "--vocab", &demo("demo-target")], words(options).as_slice()].concat())
}

#[test]
fn longer_branches_and_more_of_them_accept_more() {
    let out = bench("--json --decoding-length 2,16 --branch-length 2,8 --tables-at 8,4").ok();
    let object: Value = serde_json::from_str(&out).expect("it is an object");
    assert_eq!((object["records"].as_u64(), object["tokens"].as_u64()), (Some(4), Some(28)));
    let rows = |field: &str| object[field].as_array().expect("a list").clone();
    let number = |row: &Value, field: &str| row[field].as_f64().unwrap_or_else(|| panic!("{field}: {row}"));
    let lengths = rows("lengths");
    assert_eq!(lengths.len(), 12);
    let at = |layout: &str, decoding: u64, branch: u64| {
        let is = |row: &&Value| {
            row["layout"] == layout && row["decoding_length"] == decoding && row["branch_length"] == branch
        };
        number(lengths.iter().find(is).expect("one of each"), "tokens_per_pass")
    };
    for layout in ["hier", "par", "one"] {
        assert!(at(layout, 16, 8) > at(layout, 16, 2) && at(layout, 16, 8) > at(layout, 2, 8), "{out}");
        assert!(at(layout, 2, 2) >= 1.0, "{out}");
    }
    let procedures = rows("procedures");
    let named: Vec<&str> = procedures.iter().filter_map(|row| row["procedure"].as_str()).collect();
    let expected = ["without prompt", "without output", "without pruning", "without eliminating", "all"];
    assert_eq!(named, expected);
    let without = |i: usize| number(&procedures[i], "tokens_per_pass");
    assert!(without(0) < without(4) && without(1) < without(4), "{out}");
    assert!(number(&procedures[3], "nodes") > number(&procedures[4], "nodes"), "{out}");
    assert!(procedures.iter().all(|row| number(row, "bytes") > number(row, "nodes")), "{out}");
    let capacities: Vec<u64> = rows("capacities").iter().filter_map(|row| row["capacity"].as_u64()).collect();
    assert_eq!(capacities, [1, 2, 4, 8, 16, 32, 64, 128]);
}

#[test]
fn a_file_is_learned_before_all_records_and_parallel_branches_repeat_their_rows() {
    let answers = "{\"prompt\": [2], \"output\": [10, 11, 12, 13]}\n{\"prompt\": [2], \"output\": [10, 11, 14, 15]}\n";
    let (folder, path) = file("known.jsonl", answers);
    let report = folder.path().join("report");
    let options = "--json --decoding-length 8 --branch-length 4 --tables-at 8,4 --limit 1 --trie-retrieval frequency";
    let out = bench(&format!("{options} --warm-up {path} --report {}", report.display())).ok();
    let object: Value = serde_json::from_str(&out).expect("it is an object");
    assert_eq!((object["records"].as_u64(), object["learned"].as_u64()), (Some(1), Some(2)), "{out}");
    assert_eq!(object["retrieval"], "frequency");
    let of = |layout: &str, field: &str| {
        let rows = object["lengths"].as_array().expect("a list");
        rows.iter().find(|row| row["layout"] == layout).expect("one of each")[field].as_f64().expect("a number")
    };
    // The first draft is 10, 11 and then 12, 13 or 14, 15: six rows, or eight side by side. Three of its tokens are the
    // record's, and more rows come from what was written since.
    assert!(of("par", "rows_per_pass") > of("hier", "rows_per_pass"), "{out}");
    assert!(of("hier", "tokens_per_pass") > of("one", "tokens_per_pass") - 1e-9, "{out}");
    for name in ["index.html", "lengths.svg", "procedures.png", "memory.svg", "record.json"] {
        assert!(report.join(name).is_file(), "{name}");
    }
    let page = std::fs::read_to_string(report.join("index.html")).expect("it was written");
    assert!(page.contains("without eliminating") && !page.contains("went into measuring"), "nothing was timed");
}

#[test]
fn the_tables_are_printed_one_after_another() {
    let out = bench("--decoding-length 4 --branch-length 2,3 --tables-at 4,2 --limit 3").ok();
    for part in
        ["3 records, 23 tokens", "hier: ", "par: ", "one: ", "(Table 5)", "without output ", "(Table 6)", "\n128 "]
    {
        assert!(out.contains(part), "{part}: {out}");
    }
}

#[test]
fn invalid_lengths_are_refused() {
    for (options, expected) in [
        ("--branch-length 0", "--branch-length: expected a whole number from 1 to 256, found \"0\""),
        ("--branch-length 4,257", "--branch-length: expected a whole number from 1 to 256, found \"257\""),
        ("--decoding-length 0", "--decoding-length: expected a whole number from 1 up, found \"0\""),
        ("--tables-at 300,257", "--tables-at: expected a branch length from 1 to 256, found 257"),
        ("--tables-at 64", "--tables-at: expected two lengths, as 64,12, found 1"),
        ("--trie-retrieval newest", "--trie-retrieval: expected one of interpolated, frequency, found \"newest\""),
    ] {
        assert_eq!(bench(options).error(2), expected, "{options}");
    }
    // The decoding length has no such limit.
    let found = bench("--json --decoding-length 2 --branch-length 2 --tables-at 300,4");
    let object: Value = serde_json::from_str(&found.ok()).expect("it is an object");
    assert_eq!(object["procedures"][0]["decoding_length"], 300);
    let error = run(&["bench", "trie", "nowhere.json", "--vocab", &demo("demo-target")]).error(1);
    assert!(error.starts_with("nowhere.json: cannot be read: "), "{error}");
}
