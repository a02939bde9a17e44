//! A prefix survives writing and reading; every invalid file is refused with the name of the field.

use foretoken_engine::{SavedPrefix, SavedRows};
use foretoken_model::{CacheType, SavedBytes};
use xxhash_rust::xxh3::xxh3_64;

use super::format::{self, Expected};
use super::key::Part;
use super::*;
use crate::models::Opened;

const SIZES: [SavedBytes; 2] = [SavedBytes { state: 0, row: 6 }, SavedBytes { state: 3, row: 4 }];
const VOCABULARY: usize = 100;

fn parts(len: usize) -> Vec<Part> {
    vec![("model", "00ff".to_string()), ("cache_type_k", "f16".to_string()), ("rope", format!("{len:016x}"))]
}

fn small() -> SavedPrefix {
    let rows = |first: usize, size: SavedBytes| {
        let bytes = (0..size.of(5 - first)).map(|i| i as u8).collect();
        SavedRows { first, bytes }
    };
    SavedPrefix { tokens: vec![7, 0, 99, 3, 3], groups: vec![rows(0, SIZES[0]), rows(2, SIZES[1])] }
}

fn bytes_of(saved: &SavedPrefix) -> Vec<u8> {
    let mut bytes = Vec::new();
    format::write(&mut bytes, &parts(saved.tokens.len()), &SIZES, saved).expect("memory takes everything");
    bytes
}

fn read_as(bytes: &[u8], key: &dyn Fn(usize) -> Vec<Part>) -> Result<SavedPrefix, String> {
    let expected = Expected { key, vocabulary: VOCABULARY, sizes: &SIZES };
    format::read("x", bytes, bytes.len() as u64, &expected).map_err(|error| error.to_string())
}

fn read(bytes: &[u8]) -> Result<SavedPrefix, String> {
    read_as(bytes, &parts)
}

/// Bytes before the first checksum, which is that of all before the rows.
fn head_len() -> usize {
    let key: usize = parts(5).iter().map(|(name, value)| name.len() + value.len() + 3).sum();
    32 + key + 5 * 4 + 2 * 16
}

/// The bytes with some of them replaced, and correct checksums.
fn forged(at: usize, with: &[u8]) -> Vec<u8> {
    let mut bytes = bytes_of(&small());
    bytes[at..at + with.len()].copy_from_slice(with);
    for end in [head_len(), bytes.len() - 8] {
        let checksum = xxh3_64(&bytes[..end]);
        bytes[end..end + 8].copy_from_slice(&checksum.to_le_bytes());
    }
    bytes
}

#[test]
fn rows_survive_a_round_trip() {
    assert_eq!(read(&bytes_of(&small())), Ok(small()));
    assert_eq!(read(&forged(0, b"")), Ok(small()));
    // A group without rows has the state alone.
    let none = SavedRows { first: 5, bytes: vec![1; 3] };
    let without = SavedPrefix { groups: vec![small().groups[0].clone(), none], ..small() };
    assert_eq!(read(&bytes_of(&without)), Ok(without));
}

#[test]
fn a_file_that_is_too_short_or_too_long_is_refused() {
    let whole = bytes_of(&small());
    for len in 0..whole.len() {
        let error = read(&whole[..len]).expect_err("it is cut");
        let named = ["the end of the file", "length: expected"].iter().any(|words| error.contains(words));
        assert!(error.starts_with("x: ") && named, "{len} bytes: {error}");
    }
    for more in [1, 8, 1000] {
        let error = read(&[whole.as_slice(), &vec![0; more]].concat()).expect_err("it goes on");
        assert!(error.starts_with("x: length: expected "), "{error}");
    }
}

#[test]
fn every_flipped_bit_is_detected() {
    let whole = bytes_of(&small());
    for bit in 0..8 * whole.len() {
        let mut damaged = whole.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        let error = read(&damaged).expect_err("a bit is flipped");
        assert!(error.starts_with("x: ") && error.contains("expected"), "bit {bit}: {error}");
        // Damage is never reported as another model's file.
        assert!(!parts(5).iter().any(|(name, _)| error.starts_with(&format!("x: {name}:"))), "bit {bit}: {error}");
    }
}

#[test]
fn a_part_of_the_key_that_differs_is_named() {
    let whole = bytes_of(&small());
    let changed = |name: &'static str, value: &'static str| {
        let other = move |len| {
            let change = |(part, old)| (part, if part == name { value.to_string() } else { old });
            parts(len).into_iter().map(change).collect()
        };
        read_as(&whole, &other).expect_err("it differs")
    };
    assert_eq!(changed("model", "00fe"), "x: model: expected 00fe, found 00ff");
    assert_eq!(changed("cache_type_k", "q8_0"), "x: cache_type_k: expected q8_0, found f16");
    assert_eq!(changed("rope", "1"), "x: rope: expected 1, found 0000000000000005");
    let more = |len| [parts(len), vec![("new", "1".to_string())]].concat();
    assert_eq!(read_as(&whole, &more).expect_err("it lacks one"), "x: new: expected 1, found none");
    let fewer = |len| parts(len)[1..].to_vec();
    assert_eq!(
        read_as(&whole, &fewer).expect_err("it has one more"),
        "x: key: expected cache_type_k, rope, found model"
    );
}

#[test]
fn wrong_headers_are_refused() {
    let error = |at: usize, with: &[u8]| read(&forged(at, with)).expect_err("it is wrong");
    assert_eq!(error(0, b"ftktexts"), r#"x: magic: expected "ftkprefx", found "ftktexts""#);
    assert_eq!(error(8, &[2]), "x: version: expected 1, found 2");
    assert_eq!(error(12, &[0xff; 4]), "x: length of the key: expected at most 4096, found 4294967295");
    assert_eq!(error(16, &[0; 8]), "x: tokens: expected 1 to 16777216, found 0");
    assert_eq!(error(16, &[0xff; 8]), format!("x: tokens: expected 1 to 16777216, found {}", u64::MAX));
    assert_eq!(error(24, &[0xff; 8]), format!("x: cache groups: expected 1 to 64, found {}", u64::MAX));
    let len = bytes_of(&small()).len();
    let many = error(16, &(1u64 << 24).to_le_bytes());
    assert!(many.starts_with("x: length: expected at least 671") && many.ends_with(&format!("found {len}")), "{many}");
    let groups = head_len() - 32;
    assert_eq!(error(groups, &[6]), "x: group 1: first row: expected at most 5, found 6");
    assert_eq!(error(groups + 8, &[0xff; 8]), format!("x: group 1: bytes of a row: expected 6, found {}", u64::MAX));
    assert_eq!(error(groups - 20, &[100]), "x: token 1: expected a number below 100 (the vocabulary), found 100");
    assert!(error(groups, &[1]).starts_with("x: length: expected "));
    let ugly = error(32, b"model: \x1b[2J\n");
    assert!(!ugly.contains('\x1b'), "{ugly}");
    assert!(error(33, &[0xff]).starts_with("x: key: expected UTF-8, found "));
    let one = Expected { key: &parts, vocabulary: VOCABULARY, sizes: &SIZES[..1] };
    let whole = bytes_of(&small());
    let error = format::read("x", whole.as_slice(), whole.len() as u64, &one).expect_err("there is one group");
    assert_eq!(error.to_string(), "x: cache groups: expected 1, found 2");
}

#[test]
fn any_head_is_read_or_refused() {
    let whole = bytes_of(&small());
    let mut state = 1u64;
    let mut random = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        state >> 33
    };
    for _ in 0..20_000 {
        let mut bytes = whole.clone();
        for _ in 0..=random() % 4 {
            let at = random() as usize % (head_len() + 8);
            bytes[at] = [0, 1, 0x7f, 0xff, random() as u8][random() as usize % 5];
        }
        for end in [head_len(), bytes.len() - 8] {
            let checksum = xxh3_64(&bytes[..end]);
            bytes[end..end + 8].copy_from_slice(&checksum.to_le_bytes());
        }
        let keep = bytes.len() - if random() % 4 == 0 { random() as usize % bytes.len() } else { 0 };
        if let Ok(found) = read(&bytes[..keep]) {
            // Tokens and first rows may be any valid ones.
            assert_eq!(found.tokens.len(), 5);
            assert!(found.tokens.iter().all(|token| (*token as usize) < VOCABULARY));
        }
    }
}

/// The key of a model of the tests.
fn key_of(folder: &std::path::Path, settings: &ModelSettings, context: Option<usize>) -> Vec<Part> {
    let opened = Opened::at(folder).expect("it can be read");
    let options = foretoken_model::Options { context, ..settings.run_with(32) };
    let loaded = opened.load(&foretoken_model::Cpu, options, &mut |_, _| {}).expect("it can be loaded");
    Key::of(&opened.checkpoint, &loaded.spec, settings).parts(20)
}

fn golden(name: &str) -> PathBuf {
    PathBuf::from(format!("{}/../model/tests/golden/{name}", env!("CARGO_MANIFEST_DIR")))
}

/// Names of the parts that differ.
fn differing(one: &[Part], other: &[Part]) -> Vec<&'static str> {
    one.iter().zip(other).filter(|(one, other)| one != other).map(|((name, _), _)| *name).collect()
}

#[test]
fn a_key_depends_on_model_types_and_rotations() {
    let settings = ModelSettings { threads: Some(2), ..ModelSettings::default() };
    let llama = key_of(&golden("llama"), &settings, None);
    let none: [&str; 0] = [];
    let one_thread = ModelSettings { threads: Some(1), ctx_size: Some(9), ..settings.clone() };
    assert_eq!(differing(&llama, &key_of(&golden("llama"), &one_thread, Some(9))), none);
    let narrow = ModelSettings { cache_type_k: CacheType::F32, cache_type_v: CacheType::BF16, ..settings.clone() };
    assert_eq!(differing(&llama, &key_of(&golden("llama"), &narrow, None)), ["cache_type_k", "cache_type_v"]);
    let rounded = ModelSettings { dtype: Some(foretoken_model::WeightType::BF16), ..settings.clone() };
    assert_eq!(differing(&llama, &key_of(&golden("llama"), &rounded, None)), ["dtype"]);
    assert!(differing(&llama, &key_of(&golden("llama-biased"), &settings, None)).contains(&"model"));
    // The longer context has other frequencies, and nothing else is different.
    let longrope = |context| key_of(&golden("longrope"), &settings, Some(context));
    assert_eq!(differing(&longrope(16), &longrope(4096)), ["rope"]);

    // A model whose last weight differs.
    let folder = tempfile::tempdir().expect("a folder can be made");
    for file in std::fs::read_dir(golden("llama")).expect("it is there") {
        let file = file.expect("it can be listed").path();
        let mut bytes = std::fs::read(&file).expect("it can be read");
        if file.extension().is_some_and(|extension| extension == "safetensors") {
            *bytes.last_mut().expect("it is not empty") ^= 1;
        }
        std::fs::write(folder.path().join(file.file_name().expect("it has a name")), bytes).expect("it can be written");
    }
    assert_eq!(differing(&llama, &key_of(folder.path(), &settings, None)), ["model"]);
}
