//! The draft head of the demo target on the command line. The text is that of the model alone. The head's probabilities
//! equal those that other programs compute from its file; a wrong layer or tokens off by one would change only them,
//! not the text. Heads that contradict themselves or the target are refused.

use std::path::Path;

use foretoken_weights::gguf;
use serde_json::Value;

use crate::{demo, run, words};

const DIALOGUE: &str = "<|system|>Services: Restaurants_1<|end|><|user|>I would like to book a table for two people \
                        tomorrow evening.<|end|><|assistant|>";

fn target() -> String {
    demo("demo-target")
}

fn head() -> String {
    demo("demo-head.gguf")
}

/// A copy of the demo head with changed bytes, in a temporary folder.
fn modified_head(change: impl FnOnce(&mut Vec<u8>)) -> (tempfile::TempDir, String) {
    let mut bytes = std::fs::read(head()).expect("the demo head is there");
    change(&mut bytes);
    let folder = tempfile::tempdir().expect("a folder can be made");
    let path = folder.path().join("head.gguf");
    std::fs::write(&path, bytes).expect("a file can be written");
    (folder, path.display().to_string())
}

/// The offset of some bytes.
fn find(bytes: &[u8], pattern: &[u8]) -> usize {
    bytes.windows(pattern.len()).position(|window| window == pattern).expect("they are there")
}

/// The offset of the list of layers: after the key, the types of the list and of its elements, and its length.
fn layers(bytes: &[u8]) -> usize {
    let key = "eagle3.extract_layers";
    find(bytes, key.as_bytes()) + key.len() + 4 + 4 + 8
}

/// The offset of a tensor's data, and its length.
fn tensor(bytes: &[u8], name: &str) -> (usize, usize) {
    let tensors = gguf::open(head()).expect("the demo head can be read").weights;
    let data = tensors.get(name).unwrap_or_else(|| panic!("{name}")).bytes.to_vec();
    (find(bytes, &data), data.len())
}

/// Adds one to each 32-bit integer.
fn add_one(numbers: &mut [u8]) {
    for number in numbers.chunks_exact_mut(4) {
        let found = i32::from_le_bytes(number.try_into().expect("four bytes"));
        number.copy_from_slice(&(found + 1).to_le_bytes());
    }
}

/// The text and probabilities that other programs compute (`bench/peers/demo_head.py`).
fn golden() -> Value {
    serde_json::from_str(include_str!("../golden/demo-head.json")).expect("the golden file is JSON")
}

fn generated(more: &[&str]) -> Value {
    let target = target();
    let line = ["generate", "-m", &target, DIALOGUE, "-n", "120", "-s", "5", "--json"];
    serde_json::from_str(&run(&[&line[..], more].concat()).ok()).expect("a line of JSON")
}

/// The mean difference of a head's probabilities from the golden ones over accepted tokens of the golden text, and the
/// number of those tokens.
fn distance(head: &str) -> (f64, usize) {
    let filters = words("--temp 1 --top-k 0 --top-p 1 --min-p 0 --budget fixed --spec-draft-n-max 1 --spec-type draft");
    let (object, golden) = (generated(&[&["-md", head], &filters[..]].concat()), golden());
    assert_eq!(object["ids"], golden["ids"]);
    let pairs = object["q"].as_array().expect("a list").iter().skip(1).zip(golden["q"].as_array().expect("a list"));
    let number = |value: &Value| value.as_f64().expect("a number");
    let differences: Vec<f64> =
        pairs.filter(|(q, _)| !q.is_null()).map(|(q, golden)| (number(q) - number(golden)).abs()).collect();
    (differences.iter().sum::<f64>() / differences.len().max(1) as f64, differences.len())
}

#[test]
fn a_head_does_not_change_the_text() {
    for temperature in ["0", "1"] {
        let plain = generated(&["--temp", temperature, "--spec-type", "none"]);
        for more in [&[][..], &["--spec-type", "draft,suffix", "--budget", "fixed"]] {
            let found = generated(&[&["--temp", temperature, "-md", &head()], more].concat());
            assert_eq!(found["ids"], plain["ids"], "{temperature} {more:?}");
        }
    }
    let fixed = words("--temp 0 --spec-type draft --budget fixed --spec-draft-n-max 3");
    let found = generated(&[&["-md", &head()], &fixed[..]].concat());
    let first = found["speculation"]["drafters"]["draft"]["acceptance_rate_by_depth"][0].as_f64();
    assert!(first.is_some_and(|rate| rate > 0.6), "{first:?}");
}

#[test]
fn probabilities_equal_those_of_other_programs_and_wrong_layers_or_tokens_are_found() {
    let (healthy, accepted) = distance(&head());
    // The head's matrices and their inputs are quantized.
    assert!(healthy < 0.002 && accepted > 40, "{healthy}, {accepted} accepted");
    let (_folder, wrong_layers) = modified_head(|bytes| {
        // The head reads layers 1, 3 and 5; the last one stays.
        let at = layers(bytes);
        add_one(&mut bytes[at..at + 8]);
    });
    let (found, _) = distance(&wrong_layers);
    assert!(found > 0.008, "wrong layers: {found}");
    let (_folder, off_by_one) = modified_head(|bytes| {
        let (at, len) = tensor(bytes, "d2t");
        for number in bytes[at..at + len].chunks_exact_mut(8) {
            let token = i64::from_le_bytes(number.try_into().expect("eight bytes"));
            number.copy_from_slice(&(token + 1).to_le_bytes());
        }
    });
    let (_, found) = distance(&off_by_one);
    assert!(found < accepted / 3, "tokens off by one: {found} accepted");
}

#[test]
fn contradictory_heads_are_refused_by_field() {
    let (_folder, layer_outside) = modified_head(|bytes| {
        let at = layers(bytes);
        bytes[at + 8..at + 12].copy_from_slice(&90i32.to_le_bytes());
    });
    let (_folder, token_outside) = modified_head(|bytes| {
        let at = tensor(bytes, "d2t").0;
        bytes[at..at + 8].copy_from_slice(&(1i64 << 40).to_le_bytes());
    });
    let (_folder, nan) = modified_head(|bytes| {
        let at = tensor(bytes, "output_norm.weight").0;
        bytes[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    });
    let (_folder, cut) = modified_head(|bytes| bytes.truncate(bytes.len() / 2));
    let demo_target = target();
    for (target, head, expected) in [
        (&demo_target, &layer_outside, "layers of the target: expected numbers up to 6"),
        (&demo_target, &token_outside, "d2t"),
        (&demo_target, &nan, "output_norm.weight"),
        (&demo_target, &cut, ""),
        (&demo("demo-draft"), &head(), "target_hidden_size"),
    ] {
        let line = format!("generate -m {target} -md {head} -n 4 x");
        let error = run(&words(&line)).error(1);
        assert!(error.contains(head) && error.contains(expected), "{expected}: {error}");
    }
    let error = run(&words(&format!("generate -m {} x", head()))).error(1);
    assert!(error.contains("draft head"), "{error}");
    assert!(Path::new(&head()).exists());
}
