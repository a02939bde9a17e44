//! Tests of safetensors in one file: what is read back, what is refused, and that the `safetensors` crate agrees.

use foretoken_weights::safetensors::{Elements, open, parse, write, write_with};
use foretoken_weights::{Bytes, Dtype};

const NAME: &str = "attack.safetensors";

/// A file with this header, valid or not.
pub fn file(header: &str, body: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), body].concat()
}

/// Asserts that the file is refused, in one line that names it and has all these words.
#[track_caller]
fn refused(bytes: Vec<u8>, words: &[&str]) {
    let message = match parse(NAME, Bytes::from_vec(bytes)) {
        Ok(weights) => panic!("accepted: {weights:?}"),
        Err(error) => error.to_string(),
    };
    assert!(message.starts_with("attack.safetensors: ") && message.lines().count() == 1, "{message}");
    assert!(words.iter().all(|word| message.contains(word)), "{message}\nlacks one of {words:?}");
}

/// A header of F32 vectors: name, length, offsets.
fn vectors(entries: &[(&str, u64, u64, u64)]) -> String {
    let entry = |(name, len, from, to): &(&str, u64, u64, u64)| {
        format!(r#""{name}":{{"dtype":"F32","shape":[{len}],"data_offsets":[{from},{to}]}}"#)
    };
    format!("{{{}}}", entries.iter().map(entry).collect::<Vec<_>>().join(","))
}

#[test]
fn what_is_written_is_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.safetensors");
    let tensors: [(&str, &[usize], _); 3] = [
        ("logits", &[2, 2], Elements::F32(&[1.0, -0.0, f32::INFINITY, 1e-40])),
        ("tokens", &[3], Elements::I32(&[1, -2, i32::MAX])),
        ("empty", &[0, 7], Elements::F32(&[])),
    ];
    write(&mut std::fs::File::create(&path).unwrap(), "out", &tensors).unwrap();
    let weights = open(&path).unwrap();
    assert_eq!(weights.source(), path.display().to_string());
    assert_eq!(weights.names().collect::<Vec<_>>(), ["empty", "logits", "tokens"]);
    let logits = weights.require("logits").unwrap();
    assert_eq!((logits.dtype, &logits.shape[..]), (Dtype::F32, &[2, 2][..]));
    assert_eq!(logits.bytes[..], *bytemuck::cast_slice::<f32, u8>(&[1.0, -0.0, f32::INFINITY, 1e-40]));
    let tokens = weights.get("tokens").unwrap();
    assert_eq!((tokens.dtype.name(), tokens.bytes.len()), ("I32", 12));
    let message = weights.require("tokens").unwrap_err().to_string();
    let known = "F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K to Q6_K, IQ4_NL, IQ4_XS or MXFP4";
    assert!(message.ends_with(&format!("out.safetensors: tensor `tokens`: type: expected {known}, found I32")));
}

#[test]
fn metadata_and_bytes_are_read_back() {
    let tensors: [(&str, &[usize], _); 3] = [
        ("hidden", &[1, 2], Elements::Bytes(Dtype::BF16, &[0x80, 0x3f, 0, 0xc0])),
        ("exact", &[1], Elements::Bytes(Dtype::F32, &[0, 0, 0x80, 0x3f])),
        ("starts", &[2], Elements::I64(&[-1, 1 << 40])),
    ];
    let metadata = [("layers", "2,15"), ("model", "a \"name\"")].map(|(name, value)| (name.into(), value.into()));
    let mut file = Vec::new();
    write_with(&mut file, "memory", &tensors, Some(metadata.into())).unwrap();
    let theirs = ::safetensors::SafeTensors::deserialize(&file).unwrap();
    assert_eq!(theirs.tensor("hidden").unwrap().dtype(), ::safetensors::Dtype::BF16);
    let weights = parse("memory", Bytes::from_vec(file)).unwrap();
    assert_eq!([weights.metadata("layers"), weights.metadata("model")], [Some("2,15"), Some("a \"name\"")]);
    assert_eq!(weights.metadata("format"), None);
    let hidden = weights.require("hidden").unwrap();
    assert_eq!(
        (hidden.dtype, &hidden.shape[..], &hidden.bytes[..]),
        (Dtype::BF16, &[1, 2][..], &[0x80, 0x3f, 0, 0xc0][..])
    );
    assert_eq!(weights.get("starts").unwrap().bytes[..], [-1_i64, 1 << 40].map(i64::to_le_bytes).concat());
    assert_eq!(weights.require("exact").unwrap().dtype, Dtype::F32);
}

#[test]
#[should_panic(expected = "tensor `x`: shape [2] asks for 2 elements, there are 1")]
fn writing_bytes_that_do_not_fit_the_shape_is_a_bug() {
    let _ = write(&mut Vec::new(), "never-written", &[("x", &[2], Elements::Bytes(Dtype::F16, &[0; 3]))]);
}

#[test]
#[should_panic(expected = "tensor `x`: shape [2, 2] asks for 4 elements, there are 3")]
fn writing_a_shape_that_does_not_fit_is_a_bug() {
    let _ = write(&mut Vec::new(), "never-written", &[("x", &[2, 2], Elements::F32(&[0.0; 3]))]);
}

#[test]
fn static_bytes_are_read_in_place() {
    static FILE: &[u8] =
        b"\x3d\0\0\0\0\0\0\0{\"t\":{\"dtype\":\"BF16\",\"shape\":[1,1],\"data_offsets\":[0,2]}}    \x80\x3f";
    let weights = parse("embedded", Bytes::from_static(FILE)).unwrap();
    let tensor = weights.require("t").unwrap();
    assert_eq!((tensor.dtype, tensor.bytes.as_ptr_range().end), (Dtype::BF16, FILE.as_ptr_range().end));
}

#[test]
fn a_view_outlives_the_set() {
    let bytes = Bytes::from_vec(file(&vectors(&[("t", 1, 0, 4)]), &[9; 4]));
    let view = parse(NAME, bytes).unwrap().require("t").unwrap().bytes.clone();
    assert_eq!(view[..], [9; 4]);
}

#[test]
fn opening_absent_and_empty_files_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let message = open(folder.path().join("absent")).unwrap_err().to_string();
    assert!(message.contains("absent: cannot open: "), "{message}");
    let message = open(folder.path()).unwrap_err().to_string();
    assert!(message.contains("expected a regular file"), "{message}");
    let empty = folder.path().join("empty.safetensors");
    std::fs::write(&empty, []).unwrap();
    let message = open(empty).unwrap_err().to_string();
    assert!(message.ends_with("header length: expected 8 bytes, found 0 bytes"), "{message}");
}

#[test]
fn attack_truncated_at_every_length() {
    let whole = file(&vectors(&[("a", 2, 0, 8), ("b", 1, 8, 12)]), &[1; 12]);
    for len in 0..whole.len() {
        refused(whole[..len].to_vec(), &["expected", "found"]);
    }
}

#[test]
fn attack_bytes_after_the_end() {
    refused(file(&vectors(&[("t", 1, 0, 4)]), &[0; 5]), &["length", "expected 4 bytes", "found 5 bytes"]);
    refused(file("{}", &[0]), &["length", "expected 0 bytes"]);
}

#[test]
fn attack_header_too_large() {
    for len in [100_000_001, 1 << 40, u64::MAX - 7, u64::MAX] {
        let bytes = [&len.to_le_bytes()[..], b"{}"].concat();
        refused(bytes, &["header length", "at most 100000000", &len.to_string()]);
    }
    refused([&3_u64.to_le_bytes()[..], b"{}"].concat(), &["header", "expected 3 bytes", "found 2 bytes"]);
}

#[test]
fn attack_invalid_headers() {
    refused(file("", &[]), &["header", "expected `{`", "found nothing"]);
    refused(file("[]", &[]), &["header", "expected `{`"]);
    refused(file(" {}", &[]), &["header", "expected `{`"]);
    refused(file("{}x", &[]), &["header", "JSON"]);
    refused(file(r#"{"t":7}"#, &[]), &["header", "tensor `t`"]);
    refused(file(r#"{"t":{"dtype":"F32","shape":[1]}}"#, &[]), &["tensor `t`", "data_offsets"]);
    refused(file(r#"{"t":{"dtype":"F32","shape":[-1],"data_offsets":[0,0]}}"#, &[]), &["tensor `t`", "-1"]);
    refused(file(r#"{"t":{"dtype":"F32","shape":[1.5],"data_offsets":[0,0]}}"#, &[]), &["tensor `t`", "1.5"]);
    refused(file(&"[".repeat(100_000).replacen('[', "{\"a\":", 1), &[]), &["header", "tensor `a`"]);
    let mut bytes = file(r#"{"t":7}"#, &[]);
    bytes[10] = 0xff;
    refused(bytes, &["header", "JSON"]);
}

#[test]
fn attack_unknown_type() {
    let header = r#"{"t":{"dtype":"F99","shape":[1],"data_offsets":[0,4]}}"#;
    refused(file(header, &[0; 4]), &["tensor `t`: dtype", "found `F99`"]);
    let header = r#"{"t":{"dtype":"Q8_0","shape":[32],"data_offsets":[0,34]}}"#;
    refused(file(header, &[0; 34]), &["tensor `t`: dtype", "found `Q8_0`"]);
}

#[test]
fn attack_offset_past_the_end() {
    refused(file(&vectors(&[("t", 2, 0, 8)]), &[0; 4]), &["tensor `t`: data_offsets", "up to 4", "0..8"]);
}

#[test]
fn attack_offsets_that_do_not_fit_the_shape() {
    refused(file(&vectors(&[("t", 2, 0, 4)]), &[0; 4]), &["tensor `t`: data_offsets", "8 bytes from 0", "0..4"]);
    refused(file(&vectors(&[("t", 1, 4, 0)]), &[0; 4]), &["tensor `t`: data_offsets", "4..0"]);
    refused(file(&vectors(&[("t", 1, u64::MAX, 3)]), &[0; 4]), &["tensor `t`: data_offsets"]);
}

#[test]
fn attack_overlapping_tensors() {
    let header = vectors(&[("a", 2, 0, 8), ("b", 2, 4, 12)]);
    refused(file(&header, &[0; 12]), &["tensor `b`: data_offsets", "8 bytes from 8", "4..12"]);
    refused(file(&vectors(&[("a", 1, 0, 4), ("b", 1, 0, 4)]), &[0; 4]), &["data_offsets", "from 4", "0..4"]);
}

#[test]
fn attack_hole_between_tensors() {
    let header = vectors(&[("a", 1, 0, 4), ("b", 1, 8, 12)]);
    refused(file(&header, &[0; 12]), &["tensor `b`: data_offsets", "4 bytes from 4", "8..12"]);
    refused(file(&vectors(&[("a", 1, 4, 8)]), &[0; 8]), &["tensor `a`: data_offsets", "from 0", "4..8"]);
}

#[test]
fn attack_absurd_shapes() {
    let header = r#"{"t":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}}"#;
    refused(file(header, &[]), &["tensor `t`: shape", "2^64"]);
    let header = r#"{"t":{"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0]}}"#;
    refused(file(header, &[]), &["tensor `t`: shape"]);
    let header = r#"{"t":{"dtype":"F4","shape":[3],"data_offsets":[0,1]}}"#;
    refused(file(header, &[0]), &["tensor `t`: shape", "a multiple of 2 F4"]);
    let header = r#"{"t":{"dtype":"F32","shape":[18446744073709551616],"data_offsets":[0,0]}}"#;
    refused(file(header, &[]), &["tensor `t`"]);
}

#[test]
fn attack_duplicate_names() {
    refused(file(&vectors(&[("t", 1, 0, 4), ("t", 1, 4, 8)]), &[0; 8]), &["tensor `t`: name", "once", "twice"]);
    refused(file(&vectors(&[("t", 0, 0, 0), ("t", 0, 0, 0)]), &[]), &["tensor `t`: name", "once", "twice"]);
    // The duplicate name is reported, whatever else is wrong: a reader that drops one of the two might find nothing
    // else.
    refused(file(&vectors(&[("t", 1, 0, 8), ("t", 1, 0, 4)]), &[0; 4]), &["tensor `t`: name", "once", "twice"]);
    refused(file(r#"{"__metadata__":{},"__metadata__":{}}"#, &[]), &["`__metadata__` comes twice"]);
}

#[test]
fn attack_names_that_forge_a_log() {
    let header = vectors(&[(r"t\nerror: all is well", 1, 0, 8)]);
    refused(file(&header, &[0; 8]), &[r"tensor `t\nerror: all is well`"]);
}

/// Ignored fields must be valid JSON, too, since the `safetensors` crate parses the whole header.
#[test]
fn ignored_fields_must_be_valid_json() {
    let header =
        |field: &[u8]| [&br#"{"a":{"dtype":"I8","shape":[1],"data_offsets":[0,1],"more":"#[..], field, b"}}"].concat();
    let whole = |field: &[u8]| {
        let header = header(field);
        [&(header.len() as u64).to_le_bytes()[..], &header, &[7]].concat()
    };
    assert!(super::probe::safetensors(&whole(b"[1, {\"x\": null}]")));
    for field in [&b"1e999"[..], b"\"\\ud800\"", b"\"\xff\"", &[b"[".repeat(200), b"]".repeat(200)].concat()] {
        assert!(!super::probe::safetensors(&whole(field)), "{}", field.escape_ascii());
    }
}
