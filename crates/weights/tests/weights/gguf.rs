//! Tests of the GGUF reader: what is read back, and what is refused.

use foretoken_weights::gguf::{Array, Gguf, Value, parse};
use foretoken_weights::{Bytes, Dtype, WeightsError};

use super::gguf_writer::{ARRAY, F32, GgufWriter, STRING, U32, array, string};
use super::seeds;

const NAME: &str = "attack.gguf";

fn read(writer: &GgufWriter) -> Gguf {
    parse(NAME, Bytes::from_vec(writer.bytes())).unwrap_or_else(|error| panic!("{error}"))
}

/// Asserts that the file is refused, in one line that names it and has all these words.
#[track_caller]
fn refused(writer: &GgufWriter, words: &[&str]) {
    refused_bytes(writer.bytes(), words);
}

#[track_caller]
fn refused_bytes(bytes: Vec<u8>, words: &[&str]) {
    let message = match parse(NAME, Bytes::from_vec(bytes)) {
        Ok(file) => panic!("accepted: {file:?}"),
        Err(error) => error.to_string(),
    };
    assert!(message.starts_with("attack.gguf: ") && message.lines().count() == 1, "{message}");
    assert!(words.iter().all(|word| message.contains(word)), "{message}\nlacks one of {words:?}");
}

fn one_tensor() -> GgufWriter {
    GgufWriter::new().tensor("t", &[4, 2], 0, &[7; 32])
}

#[test]
fn everything_is_read_back() {
    let file = read(&seeds::gguf_everything());
    assert_eq!(file.version, 3);

    let metadata = &file.metadata;
    assert_eq!(metadata.source(), NAME);
    assert_eq!(metadata.str("general.architecture").unwrap(), "llama");
    assert_eq!(metadata.u32("llama.block_count").unwrap(), 2);
    assert_eq!(metadata.usize("llama.block_count").unwrap(), 2);
    assert_eq!(metadata.f32("epsilon").unwrap(), 1e-5);
    assert!(metadata.bool("yes").unwrap());
    assert_eq!(metadata.strings("tokenizer.ggml.tokens").unwrap(), ["<unk>", "", "é", "a\nb"]);
    assert_eq!(metadata.f32s("tokenizer.ggml.scores").unwrap(), [0.0, -1.5]);
    assert_eq!(metadata.i32s("tokenizer.ggml.token_type").unwrap(), [1, -3]);
    assert_eq!(metadata.get("i8"), Some(&Value::I8(-8)));
    assert_eq!(metadata.get("i16"), Some(&Value::I16(-16)));
    assert_eq!(metadata.get("u16"), Some(&Value::U16(16)));
    assert_eq!(metadata.get("u64"), Some(&Value::U64(1 << 40)));
    assert_eq!(metadata.get("i64"), Some(&Value::I64(-64)));
    assert_eq!(metadata.get("f64"), Some(&Value::F64(0.5)));
    let nested = Array::Array(vec![Array::U8(vec![1, 2]), Array::Bool(vec![])]);
    assert_eq!(metadata.get("nested"), Some(&Value::Array(nested)));

    let weights = &file.weights;
    assert_eq!(weights.names().collect::<Vec<_>>(), ["bf16", "f16", "iq1_s", "matrix", "q8"]);
    let matrix = weights.require("matrix").unwrap();
    assert_eq!((matrix.dtype, &matrix.shape[..]), (Dtype::F32, &[2, 3][..]), "two rows of three, outermost first");
    assert_eq!(matrix.bytes[4..8], 1.0_f32.to_le_bytes());
    assert_eq!(weights.require("f16").unwrap().dtype, Dtype::F16);
    assert_eq!(weights.require("bf16").unwrap().dtype, Dtype::BF16);
    assert_eq!((weights.require("q8").unwrap().dtype, weights.get("q8").unwrap().bytes.len()), (Dtype::Q8_0, 68));
}

#[test]
fn a_type_that_cannot_be_computed_with_is_refused_only_when_required() {
    let file = read(&seeds::gguf_everything());
    let tensor = file.weights.get("iq1_s").unwrap();
    assert_eq!((tensor.dtype.name(), tensor.bytes.len()), ("IQ1_S", 50));
    let message = file.weights.require("iq1_s").unwrap_err().to_string();
    let known = "F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K to Q6_K, IQ4_NL, IQ4_XS or MXFP4";
    assert_eq!(message, format!("attack.gguf: tensor `iq1_s`: type: expected {known}, found IQ1_S"));
}

#[test]
fn a_missing_tensor_is_named() {
    let message = read(&one_tensor()).weights.require("u").unwrap_err().to_string();
    assert_eq!(message, "attack.gguf: expected tensor `u`, found 1 tensors without it");
}

#[test]
fn version_2_is_read() {
    assert_eq!(read(&GgufWriter { version: 2, ..one_tensor() }).version, 2);
}

#[test]
fn a_vocabulary_has_no_tensors() {
    let file = read(&GgufWriter::new().strings("tokenizer.ggml.tokens", &["a"]));
    assert!(file.weights.is_empty());
    assert_eq!(file.metadata.len(), 1);
}

#[test]
fn other_alignments_are_kept() {
    for alignment in [1, 8, 64, 4096] {
        let writer = GgufWriter::new().alignment(alignment).tensor("a", &[3], 24, b"abc").tensor("b", &[1], 24, b"d");
        assert_eq!(read(&writer).weights.get("b").unwrap().bytes[..], *b"d", "alignment {alignment}");
    }
}

#[test]
fn gaps_and_empty_tensors_are_accepted() {
    let writer = one_tensor().tensor("empty", &[0, 5], 0, &[]).tensor("after", &[1], 0, &[1; 4]);
    assert_eq!(read(&writer).weights.get("empty").unwrap().shape, [5, 0]);
    let mut gap = GgufWriter::new().tensor("a", &[64], 24, &[1; 64]);
    gap.tensors[0].dimensions = vec![1];
    let gap = gap.tensor("b", &[1], 24, &[2]);
    assert_eq!(read(&gap).weights.get("b").unwrap().bytes[..], [2]);
}

#[test]
fn integers_of_any_width_are_taken_if_they_fit() {
    let file = read(&seeds::gguf_everything());
    assert_eq!(file.metadata.u32("u16").unwrap(), 16);
    assert_eq!(file.metadata.usize("u64").unwrap(), 1 << 40);
    let message = file.metadata.u32("u64").unwrap_err().to_string();
    assert_eq!(message, "attack.gguf: key `u64`: expected u32, found u64 1099511627776");
    let message = file.metadata.usize("i8").unwrap_err().to_string();
    assert_eq!(message, "attack.gguf: key `i8`: expected an unsigned integer, found i8 -8");
    assert_eq!(file.metadata.usizes("nested").unwrap_err().to_string().matches("array of 2 array").count(), 1);
}

#[test]
fn getters_report_the_expected_and_the_found_type() {
    let metadata = read(&seeds::gguf_everything()).metadata;
    let text = |error: WeightsError| error.to_string();
    assert_eq!(text(metadata.u32("no").unwrap_err()), "attack.gguf: key `no`: expected u32, found no such key");
    assert_eq!(metadata.optional_u32("no").unwrap(), None);
    assert_eq!(metadata.optional_u32("llama.block_count").unwrap(), Some(2));
    let wrong = "attack.gguf: key `yes`: expected string, found bool true";
    assert_eq!(text(metadata.str("yes").unwrap_err()), wrong);
    assert_eq!(text(metadata.optional_str("yes").unwrap_err()), wrong, "optional does not mean of any type");
    let wrong = "attack.gguf: key `tokenizer.ggml.scores`: expected array of string, found array of 2 f32";
    assert_eq!(text(metadata.strings("tokenizer.ggml.scores").unwrap_err()), wrong);
}

#[test]
fn attack_truncated_at_every_length() {
    let whole = seeds::gguf_everything().bytes();
    for len in 0..whole.len() {
        refused_bytes(whole[..len].to_vec(), &["expected", "found"]);
    }
}

#[test]
fn attack_wrong_magic() {
    refused(&GgufWriter { magic: *b"GGML", ..one_tensor() }, &["magic", "expected GGUF", "found GGML"]);
    refused(&GgufWriter { magic: *b"\n\x00\xff\x1b", ..one_tensor() }, &["magic", r"found \n\x00\xff\x1b"]);
}

#[test]
fn attack_wrong_version() {
    refused(&GgufWriter { version: 1, ..one_tensor() }, &["version", "expected 2 or 3", "found 1"]);
    refused(&GgufWriter { version: 4, ..one_tensor() }, &["version", "found 4"]);
    refused(&GgufWriter { version: 3 << 24, ..one_tensor() }, &["found version 3 in big-endian byte order"]);
}

#[test]
fn attack_absurd_counts() {
    for count in [6, 1 << 31, 1 << 60, u64::MAX] {
        let words = [&count.to_string(), "at most"];
        refused(&GgufWriter { tensor_count: Some(count), ..GgufWriter::new().u32("k", 1) }, &words);
        refused(&GgufWriter { entry_count: Some(count), ..GgufWriter::new().u32("k", 1) }, &words);
    }
    let short = GgufWriter { entry_count: Some(2), ..GgufWriter::new().raw("k", ARRAY, &array(0, 16, &[0; 16])) };
    refused(&short, &["length of key 1", "8 bytes", "0 bytes left"]);
}

#[test]
fn attack_absurd_string_lengths() {
    for len in [1_u64 << 20, 1 << 60, u64::MAX] {
        refused(&GgufWriter::new().raw("k", STRING, &len.to_le_bytes()), &["key `k`", &len.to_string(), "left"]);
        let mut bytes = one_tensor().bytes();
        bytes[24..32].copy_from_slice(&len.to_le_bytes());
        refused_bytes(bytes, &["name of tensor 0", &len.to_string()]);
    }
}

#[test]
fn attack_absurd_array_lengths() {
    for kind in 0..=12 {
        for len in [1 << 20, 1 << 60, (1 << 61) + 1, u64::MAX] {
            let writer = GgufWriter::new().raw("k", ARRAY, &array(kind, len, &[0; 64]));
            refused(&writer, &["key `k`", "expected at most", &len.to_string()]);
        }
    }
    // The length fits into the bytes left if elements have one byte each, but they have eight.
    refused(&GgufWriter::new().raw("k", ARRAY, &array(12, 9, &[0; 64])), &["72 bytes", "64 bytes left"]);
}

#[test]
fn attack_arrays_nested_without_end() {
    let mut value = array(U32, 0, &[]);
    for _ in 0..5000 {
        // The value is built from the innermost array outwards, of headers alone: every level holds one array.
        value.splice(0..0, array(ARRAY, 1, &[]));
    }
    refused(&GgufWriter::new().raw("k", ARRAY, &value), &["key `k`", "nested"]);
    let wide = array(U32, 0, &[]).repeat(1000);
    let file = read(&GgufWriter::new().raw("k", ARRAY, &array(ARRAY, 1000, &wide)));
    assert!(matches!(file.metadata.get("k"), Some(Value::Array(Array::Array(arrays))) if arrays.len() == 1000));
}

#[test]
fn attack_unknown_value_types() {
    refused(&GgufWriter::new().raw("k", 13, &[0; 8]), &["type of key `k`", "found 13"]);
    refused(&GgufWriter::new().raw("k", u32::MAX, &[0; 8]), &["type of key `k`", "found 4294967295"]);
    refused(&GgufWriter::new().raw("k", ARRAY, &array(99, 0, &[])), &["type of key `k`", "found 99"]);
}

#[test]
fn attack_unknown_tensor_types() {
    for kind in [43, 1000, u32::MAX] {
        refused(&one_tensor().change_last(|t| t.kind = kind), &["tensor `t`: type", &format!("found {kind}")]);
    }
    refused(&one_tensor().change_last(|t| t.kind = 31), &["tensor `t`: type", "31 (Q4_0_4_4)"]);
}

#[test]
fn attack_bad_alignment() {
    for alignment in [0, 3, 48, 1 << 22, u32::MAX] {
        let words = ["general.alignment", "a power of two", &alignment.to_string()];
        refused(&one_tensor().u32("general.alignment", alignment), &words);
    }
    refused(&one_tensor().str("general.alignment", "32"), &["general.alignment", "expected u32", "found string"]);
    refused(&GgufWriter::new().raw("general.alignment", F32, &32.0_f32.to_le_bytes()), &["f32 32"]);
}

#[test]
fn attack_bad_offsets() {
    refused(&one_tensor().change_last(|t| t.offset = 4), &["tensor `t`: offset", "a multiple of 32", "found 4"]);
    for offset in [32, 1 << 20, 1 << 63, u64::MAX - 31] {
        let words = ["tensor `t`: offset", "inside the 32 bytes", &offset.to_string()];
        refused(&one_tensor().change_last(|t| t.offset = offset), &words);
    }
    let long = one_tensor().change_last(|t| t.dimensions = vec![4, 3]);
    refused(&long, &["tensor `t`: offset", "48 bytes inside the 32 bytes"]);
}

#[test]
fn attack_overlapping_tensors() {
    let writer = one_tensor().tensor("u", &[1], 0, &[0; 4]);
    refused(&writer.change_last(|t| t.offset = 0), &["offset", "expected", "where the tensor before it ends"]);
    let inside = GgufWriter::new().tensor("a", &[64], 24, &[0; 64]).tensor("b", &[1], 24, &[0]);
    refused(&inside.change_last(|t| t.offset = 32), &["tensor `b`: offset", "64 or more", "found 32"]);
}

#[test]
fn attack_bad_shapes() {
    refused(&one_tensor().change_last(|t| t.dimensions = vec![]), &["tensor `t`", "1 to 4", "found 0"]);
    refused(&one_tensor().change_last(|t| t.dimensions = vec![1; 5]), &["tensor `t`", "1 to 4", "found 5"]);
    let overflow = one_tensor().change_last(|t| t.dimensions = vec![1 << 32, 1 << 32]);
    refused(&overflow, &["tensor `t`: shape", "4294967296"]);
    let overflow = one_tensor().change_last(|t| t.dimensions = vec![1 << 62]);
    refused(&overflow, &["tensor `t`: shape"]);
    let partial = GgufWriter::new().tensor("q", &[16, 2], 8, &[0; 34]);
    refused(&partial, &["tensor `q`: shape", "a multiple of 32 Q8_0", "[2, 16]"]);
}

#[test]
fn attack_duplicate_names() {
    refused(&GgufWriter::new().u32("k", 1).u32("k", 2), &["key `k`", "once", "twice"]);
    refused(&one_tensor().tensor("t", &[1], 0, &[0; 4]), &["tensor `t`: name", "once", "twice"]);
}

#[test]
fn attack_strings_that_are_not_utf8() {
    refused(&GgufWriter::new().raw("k", STRING, &string(b"a\xff")), &["key `k`", "expected UTF-8", "index 1"]);
    refused(&GgufWriter::new().raw(b"\xc3", U32, &[0; 4]), &["key 0", "expected UTF-8"]);
    refused(&one_tensor().change_last(|t| t.name = b"\xed\xa0\x80".to_vec()), &["name of tensor 0", "expected UTF-8"]);
    let tokens = [string("a"), string(b"\xff")].concat();
    let writer = GgufWriter::new().raw("tokenizer.ggml.tokens", ARRAY, &array(STRING, 2, &tokens));
    refused(&writer, &["string 1 of key `tokenizer.ggml.tokens`", "expected UTF-8"]);
}

#[test]
fn attack_bool_of_two() {
    refused(&GgufWriter::new().raw("k", 7, &[2]), &["key `k`", "0 or 1", "found 2"]);
}

#[test]
fn attack_names_that_forge_a_log() {
    let forged = "t\nerror: all is well\u{1b}[2K\u{202e}";
    refused(
        &one_tensor().change_last(|t| (t.name, t.kind) = (forged.as_bytes().to_vec(), 99)),
        &[r"t\nerror", r"\u{202e}"],
    );
    let long = one_tensor().change_last(|t| (t.name, t.kind) = (vec![b'x'; 100_000], 99));
    let message = parse(NAME, Bytes::from_vec(long.bytes())).unwrap_err().to_string();
    assert!(message.len() < 400 && message.contains("xxx..."), "{message}");
}
