//! A trained draft head on the command line, that of the demo target: the text is that of the model alone, the head
//! says what other programs compute of its file, and mistakes that leave every law in order are seen by that: a head
//! that reads the layer beside, and one whose tokens are off by one. Heads that contradict themselves or the target are
//! refused.

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

/// The demo head with its bytes changed, in a folder that goes away.
fn changed(change: impl FnOnce(&mut Vec<u8>)) -> (tempfile::TempDir, String) {
    let mut bytes = std::fs::read(head()).expect("the demo head is there");
    change(&mut bytes);
    let folder = tempfile::tempdir().expect("a folder can be made");
    let path = folder.path().join("head.gguf");
    std::fs::write(&path, bytes).expect("a file can be written");
    (folder, path.display().to_string())
}

/// Where some bytes begin.
fn find(bytes: &[u8], wanted: &[u8]) -> usize {
    bytes.windows(wanted.len()).position(|window| window == wanted).expect("they are there")
}

/// Where the elements of the list of layers begin: behind the key, the types of a list and of its elements, and its
/// length.
fn layers(bytes: &[u8]) -> usize {
    let key = "eagle3.extract_layers";
    find(bytes, key.as_bytes()) + key.len() + 4 + 4 + 8
}

/// Where the data of a tensor begins, and its length.
fn tensor(bytes: &[u8], name: &str) -> (usize, usize) {
    let tensors = gguf::open(head()).expect("the demo head can be read").weights;
    let data = tensors.get(name).unwrap_or_else(|| panic!("{name}")).bytes.to_vec();
    (find(bytes, &data), data.len())
}

/// Adds one to each of some whole numbers.
fn add_one(numbers: &mut [u8]) {
    for number in numbers.chunks_exact_mut(4) {
        let found = i32::from_le_bytes(number.try_into().expect("four bytes"));
        number.copy_from_slice(&(found + 1).to_le_bytes());
    }
}

/// What the target and the head say by programs that are not ours (`bench/peers/demo_head.py`).
fn golden() -> Value {
    serde_json::from_str(include_str!("../golden/demo-head.json")).expect("the golden file is JSON")
}

fn written(more: &[&str]) -> Value {
    let target = target();
    let line = ["generate", "-m", &target, DIALOGUE, "-n", "120", "-s", "5", "--json"];
    serde_json::from_str(&run(&[&line[..], more].concat()).ok()).expect("a line of JSON")
}

/// How far a head's probabilities of the golden text's tokens are from the golden ones in the mean, where its guess was
/// accepted, and how often that was.
fn distance(head: &str) -> (f64, usize) {
    let filters = words("--temp 1 --top-k 0 --top-p 1 --min-p 0 --budget fixed --spec-draft-n-max 1 --spec-type draft");
    let (object, golden) = (written(&[&["-md", head], &filters[..]].concat()), golden());
    assert_eq!(object["ids"], golden["ids"]);
    let said = object["q"].as_array().expect("a list").iter().skip(1).zip(golden["q"].as_array().expect("a list"));
    let number = |value: &Value| value.as_f64().expect("a number");
    let apart: Vec<f64> =
        said.filter(|(q, _)| !q.is_null()).map(|(q, golden)| (number(q) - number(golden)).abs()).collect();
    (apart.iter().sum::<f64>() / apart.len().max(1) as f64, apart.len())
}

#[test]
fn a_head_writes_the_text_of_the_model_alone() {
    for temperature in ["0", "1"] {
        let plain = written(&["--temp", temperature, "--spec-type", "none"]);
        for more in [&[][..], &["--spec-type", "draft,suffix", "--budget", "fixed"]] {
            let found = written(&[&["--temp", temperature, "-md", &head()], more].concat());
            assert_eq!(found["ids"], plain["ids"], "{temperature} {more:?}");
        }
    }
    let fixed = words("--temp 0 --spec-type draft --budget fixed --spec-draft-n-max 3");
    let found = written(&[&["-md", &head()], &fixed[..]].concat());
    let first = found["speculation"]["drafters"]["draft"]["acceptance_rate_by_depth"][0].as_f64();
    assert!(first.is_some_and(|rate| rate > 0.6), "{first:?}");
}

#[test]
fn a_head_says_what_other_programs_say_of_it_and_the_layer_or_token_beside_is_seen() {
    let (healthy, accepted) = distance(&head());
    // The head's matrices are rounded to blocks of integers, and so is what they are multiplied with.
    assert!(healthy < 0.002 && accepted > 40, "{healthy}, {accepted} accepted");
    let (_folder, beside) = changed(|bytes| {
        // The layers that it enters are 1, 3 and 5; the last stays.
        let at = layers(bytes);
        add_one(&mut bytes[at..at + 8]);
    });
    let (found, _) = distance(&beside);
    assert!(found > 0.008, "the layer beside: {found}");
    let (_folder, off_by_one) = changed(|bytes| {
        let (at, len) = tensor(bytes, "d2t");
        for number in bytes[at..at + len].chunks_exact_mut(8) {
            let token = i64::from_le_bytes(number.try_into().expect("eight bytes"));
            number.copy_from_slice(&(token + 1).to_le_bytes());
        }
    });
    let (_, found) = distance(&off_by_one);
    assert!(found < accepted / 3, "the token beside: {found} accepted");
}

#[test]
fn heads_that_contradict_themselves_or_the_target_are_refused_by_field() {
    let (_folder, layer_outside) = changed(|bytes| {
        let at = layers(bytes);
        bytes[at + 8..at + 12].copy_from_slice(&90i32.to_le_bytes());
    });
    let (_folder, token_outside) = changed(|bytes| {
        let at = tensor(bytes, "d2t").0;
        bytes[at..at + 8].copy_from_slice(&(1i64 << 40).to_le_bytes());
    });
    let (_folder, nan) = changed(|bytes| {
        let at = tensor(bytes, "output_norm.weight").0;
        bytes[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    });
    let (_folder, cut) = changed(|bytes| bytes.truncate(bytes.len() / 2));
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
