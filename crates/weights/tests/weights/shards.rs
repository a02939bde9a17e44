//! Tests of models in a directory, in one file or in shards with an index.

use std::path::Path;

use foretoken_weights::safetensors::{Elements, open_dir, write};
use tempfile::TempDir;

const INDEX: &str = "model.safetensors.index.json";

fn shard(dir: &Path, name: &str, tensors: &[(&str, f32)]) {
    let entries: Vec<[f32; 1]> = tensors.iter().map(|&(_, value)| [value]).collect();
    let tensors: Vec<(&str, &[usize], Elements<'_>)> =
        tensors.iter().zip(&entries).map(|(&(name, _), value)| (name, &[1][..], Elements::F32(value))).collect();
    write(&mut std::fs::File::create(dir.join(name)).unwrap(), name, &tensors).unwrap();
}

/// A directory with two shards, and an index with these entries.
fn model(index: &str) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    shard(dir.path(), "one.safetensors", &[("a", 1.0), ("b", 2.0)]);
    shard(dir.path(), "two.safetensors", &[("c", 3.0), ("b", 20.0)]);
    std::fs::write(dir.path().join(INDEX), format!(r#"{{"metadata":{{}},"weight_map":{{{index}}}}}"#)).unwrap();
    dir
}

#[track_caller]
fn refused(dir: &TempDir, words: &[&str]) {
    let message = match open_dir(dir.path()) {
        Ok(weights) => panic!("accepted: {weights:?}"),
        Err(error) => error.to_string(),
    };
    assert!(message.lines().count() == 1, "{message}");
    assert!(words.iter().all(|word| message.contains(word)), "{message}\nlacks one of {words:?}");
}

#[test]
fn the_index_says_which_file_holds_a_tensor() {
    let dir = model(r#""a":"one.safetensors","b":"two.safetensors","c":"two.safetensors""#);
    let weights = open_dir(dir.path()).unwrap();
    assert_eq!(weights.names().collect::<Vec<_>>(), ["a", "b", "c"]);
    assert_eq!(weights.require("b").unwrap().bytes[..], 20.0_f32.to_le_bytes());
    assert!(weights.source().ends_with(INDEX));
}

#[test]
fn one_file_comes_before_an_index() {
    let dir = model(r#""a":"absent.safetensors""#);
    shard(dir.path(), "model.safetensors", &[("single", 1.0)]);
    assert_eq!(open_dir(dir.path()).unwrap().names().collect::<Vec<_>>(), ["single"]);
}

#[test]
fn an_index_of_another_name_is_found_if_it_is_alone() {
    let dir = model(r#""a":"one.safetensors""#);
    let other = dir.path().join("other.safetensors.index.json");
    std::fs::rename(dir.path().join(INDEX), &other).unwrap();
    assert_eq!(open_dir(dir.path()).unwrap().len(), 1);
    std::fs::copy(&other, dir.path().join("third.safetensors.index.json")).unwrap();
    refused(&dir, &["model: expected model.safetensors or one *.safetensors.index.json", "found 2 indices"]);
}

#[test]
fn a_directory_without_a_model_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    refused(&dir, &["expected model.safetensors or one", "found 0 indices"]);
    let message = open_dir(dir.path().join("absent")).unwrap_err().to_string();
    assert!(message.contains("absent: cannot list: "), "{message}");
}

#[test]
fn attack_path_escape() {
    let elsewhere = tempfile::tempdir().unwrap();
    shard(elsewhere.path(), "one.safetensors", &[("a", 1.0)]);
    let absolute = elsewhere.path().join("one.safetensors").display().to_string();
    let relative = format!("../{}/one.safetensors", elsewhere.path().file_name().unwrap().to_str().unwrap());
    let names = [
        absolute.as_str(),
        relative.as_str(),
        "sub/one.safetensors",
        "./one.safetensors",
        "one.safetensors/",
        r"..\\one.safetensors",
        "c:one.safetensors",
        "..",
        "",
        "one.safetensors\\u0000",
        "/etc/passwd",
    ];
    for name in names {
        refused(&model(&format!(r#""a":"{name}""#)), &[INDEX, "tensor `a`: shard", "beside the index"]);
    }
}

#[test]
fn attack_missing_shard() {
    refused(&model(r#""a":"absent.safetensors""#), &["absent.safetensors: cannot open"]);
}

#[test]
fn attack_tensor_missing_from_its_shard() {
    let dir = model(r#""a":"one.safetensors","c":"one.safetensors""#);
    refused(&dir, &["one.safetensors: expected tensor `c`, found 2 tensors without it"]);
}

#[test]
fn attack_invalid_index() {
    let dir = model("");
    for text in ["", "[]", "{}", r#"{"weight_map":[]}"#, r#"{"weight_map":{"a":1}}"#, "\u{0}"] {
        std::fs::write(dir.path().join(INDEX), text).unwrap();
        refused(&dir, &["index: expected a JSON object with a `weight_map`"]);
    }
}

#[test]
fn attack_broken_shard() {
    let dir = model(r#""a":"one.safetensors","c":"two.safetensors""#);
    std::fs::write(dir.path().join("two.safetensors"), [0; 7]).unwrap();
    refused(&dir, &["two.safetensors: header length: expected 8 bytes, found 7 bytes"]);
}

/// The command in the message is not run here; it was tried by hand.
#[test]
fn pickled_tensors_are_refused_with_the_command_that_converts_them() {
    for name in ["pytorch_model.bin", "pytorch_model.bin.index.json"] {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(name), "").unwrap();
        let command = format!("M.from_pretrained('{}', dtype='auto')", dir.path().display());
        refused(&dir, &[name, "expected model.safetensors", "python3 -c", &command]);
        shard(dir.path(), "model.safetensors", &[("single", 1.0)]);
        assert_eq!(open_dir(dir.path()).unwrap().len(), 1);
    }
}
