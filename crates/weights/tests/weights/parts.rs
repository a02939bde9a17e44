//! Tests of models split into several GGUF files: all parts are opened, whichever is opened first, and wrong parts are
//! refused.

use std::fs::File;
use std::path::{Path, PathBuf};

use foretoken_weights::Dtype;
use foretoken_weights::gguf::{self, Metadata, TensorInfo, Value, Writer};
use tempfile::TempDir;

/// The path of part `number`, counted from 1, of `count`.
fn path_of(dir: &Path, number: usize, count: usize) -> PathBuf {
    dir.join(format!("tiny-{number:05}-of-{count:05}.gguf"))
}

/// Writes a file with these keys and with tensors of one float each, all of this value.
fn write(path: &Path, keys: &[(&str, Value)], names: &[&str], value: f32) {
    let keys = keys.iter().map(|(key, value)| (key.to_string(), value.clone()));
    let info = |name: &&str| TensorInfo { name: name.to_string(), dtype: Dtype::F32, shape: vec![1] };
    let infos: Vec<TensorInfo> = names.iter().map(info).collect();
    let mut writer = Writer::new(File::create(path).unwrap(), "part", &Metadata::new("none", keys), &infos).unwrap();
    names.iter().for_each(|_| writer.append(&value.to_le_bytes()).unwrap());
    writer.finish().unwrap();
}

fn split_keys(number: u16, count: u16, tensors: i32) -> [(&'static str, Value); 3] {
    [("split.no", Value::U16(number)), ("split.count", Value::U16(count)), ("split.tensors.count", Value::I32(tensors))]
}

/// A model of three parts, the first of which has a vocabulary and no tensor.
fn model() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (number, names) in [(0, &[][..]), (1, &["a", "c"]), (2, &["b"])] {
        let mut keys = split_keys(number, 3, 3).to_vec();
        if number == 0 {
            keys.push(("general.name", "tiny".into()));
        }
        write(&path_of(dir.path(), usize::from(number) + 1, 3), &keys, names, f32::from(number));
    }
    dir
}

#[track_caller]
fn refused(path: &Path, words: &[&str]) {
    let message = match gguf::open(path) {
        Ok(file) => panic!("accepted: {file:?}"),
        Err(error) => error.to_string(),
    };
    assert!(message.lines().count() == 1, "{message}");
    assert!(words.iter().all(|word| message.contains(word)), "{message}\nlacks one of {words:?}");
}

#[test]
fn opening_any_part_opens_all() {
    let dir = model();
    for number in 1..=3 {
        let file = gguf::open(path_of(dir.path(), number, 3)).unwrap();
        assert_eq!(file.metadata.str("general.name").unwrap(), "tiny");
        assert_eq!(file.weights.names().collect::<Vec<_>>(), ["a", "b", "c"]);
        let value = |name: &str| file.weights.require(name).unwrap().bytes.to_vec();
        assert_eq!([value("a"), value("b")], [1f32, 2.0].map(|value| value.to_le_bytes().to_vec()));
        assert!(file.weights.source().ends_with("tiny-00001-of-00003.gguf"));
    }
    // A file that says it is the only one needs no name.
    let alone = dir.path().join("alone.gguf");
    write(&alone, &split_keys(0, 1, 1), &["a"], 1.0);
    assert_eq!(gguf::open(alone).unwrap().weights.len(), 1);
}

#[test]
fn a_missing_part_is_named() {
    let dir = model();
    std::fs::remove_file(path_of(dir.path(), 2, 3)).unwrap();
    refused(
        &path_of(dir.path(), 3, 3),
        &["00003-of-00003.gguf: part 2 of 3", "tiny-00002-of-00003.gguf, found no such file"],
    );
}

#[test]
fn contradicting_numbers_are_refused() {
    let dir = model();
    let (first, second) = (path_of(dir.path(), 1, 3), path_of(dir.path(), 2, 3));
    let found = "key `split.no`: expected 1, as the file's name says, found 2";
    write(&second, &split_keys(2, 3, 3), &["a", "c"], 1.0);
    refused(&first, &["00002-of-00003.gguf", found]);
    write(&second, &split_keys(1, 4, 3), &["a", "c"], 1.0);
    refused(&first, &["00002-of-00003.gguf", "key `split.count`: expected 3", "found 4"]);
    refused(&second, &["name: expected a name that ends with -00002-of-00004.gguf", "found tiny-00002-of-00003.gguf"]);
    write(&second, &split_keys(3, 3, 3), &["a", "c"], 1.0);
    refused(&second, &["key `split.no`: expected below split.count = 3, found 3"]);
    write(&second, &[], &["a", "c"], 1.0);
    refused(&first, &["00002-of-00003.gguf", "key `split.no`", "found no such key"]);
    write(&second, &split_keys(1, 3, 3), &["a"], 1.0);
    refused(&first, &["00001-of-00003.gguf", "expected 3 tensors, as the key `split.tensors.count`", "found 2"]);
    write(&second, &split_keys(1, 3, 3), &["a", "b"], 1.0);
    let found = "found it also in";
    refused(&second, &["00003-of-00003.gguf: tensor `b`: name", found, "00002-of-00003.gguf"]);
}
