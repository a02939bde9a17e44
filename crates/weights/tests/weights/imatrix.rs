//! Tests of importance matrices: both forms as llama.cpp writes them, and malformed files.

use foretoken_weights::gguf::{Metadata, TensorInfo, Writer};
use foretoken_weights::imatrix::{self, ImportanceMatrix, Importances};
use foretoken_weights::{Bytes, Dtype};

use super::mutations::mutated;

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// A GGUF file with these tensors of floats.
fn gguf(tensors: &[(&str, &[usize], &[f32])]) -> Vec<u8> {
    let mut metadata = Metadata::new("made", []);
    metadata.set("general.type", "imatrix");
    metadata.set("imatrix.datasets", vec!["wiki.txt".to_string(), "code.txt".to_string()]);
    metadata.set("imatrix.chunk_count", 7u32);
    metadata.set("imatrix.chunk_size", 512u32);
    let info = |&(name, shape, _): &(&str, &[usize], &[f32])| TensorInfo {
        name: name.to_string(),
        dtype: Dtype::F32,
        shape: shape.to_vec(),
    };
    let infos: Vec<TensorInfo> = tensors.iter().map(info).collect();
    let mut out = Vec::new();
    let mut writer = Writer::new(&mut out, "made", &metadata, &infos).unwrap();
    tensors.iter().for_each(|(.., values)| writer.append(&bytes(values)).unwrap());
    writer.finish().unwrap();
    out
}

/// A file of the newer form with one matrix, and with two experts of which one was never chosen.
fn newer() -> Vec<u8> {
    gguf(&[
        ("blk.0.attn_q.weight.in_sum2", &[1, 3], &[2.0, 4.0, 0.0]),
        ("blk.0.attn_q.weight.counts", &[1, 1], &[2.0]),
        ("blk.0.attn_q.weight.in_sum", &[1, 3], &[-2.0, f32::NAN, 0.0]),
        ("blk.0.ffn_up_exps.weight.in_sum2", &[2, 2], &[0.0, 0.0, 9.0, 3.0]),
        ("blk.0.ffn_up_exps.weight.counts", &[2, 1], &[0.0, 3.0]),
    ])
}

/// An entry of the older form.
fn entry(name: &str, calls: i32, sums: &[f32]) -> Vec<u8> {
    let length = |len: usize| (len as i32).to_le_bytes();
    [&length(name.len())[..], name.as_bytes(), &calls.to_le_bytes(), &length(sums.len()), &bytes(sums)].concat()
}

fn older() -> Vec<u8> {
    let (first, second) = (entry("blk.0.attn_q.weight", 2, &[2.0, 4.0, 0.0]), entry("output.weight", 0, &[5.0]));
    [&2i32.to_le_bytes()[..], &first, &second, &9i32.to_le_bytes(), &8i32.to_le_bytes(), b"wiki.txt"].concat()
}

fn parsed(bytes: Vec<u8>) -> Result<ImportanceMatrix, String> {
    imatrix::parse("made", Bytes::from_vec(bytes)).map_err(|error| error.to_string())
}

fn importances(values: &[f32], matrices: Option<usize>) -> Importances {
    Importances { values: values.to_vec(), matrices }
}

#[test]
fn both_forms_are_means_of_squares() {
    let found = parsed(newer()).unwrap();
    assert_eq!(found.entries["blk.0.attn_q.weight"], importances(&[1.0, 2.0, 0.0], Some(1)));
    // All columns of an expert that was never chosen count equally.
    assert_eq!(found.entries["blk.0.ffn_up_exps.weight"], importances(&[1.0, 1.0, 3.0, 1.0], Some(2)));
    assert_eq!((found.entries.len(), found.dataset.as_deref(), found.chunks), (2, Some("wiki.txt"), Some(7)));

    let found = parsed(older()).unwrap();
    assert_eq!(found.entries["blk.0.attn_q.weight"], importances(&[1.0, 2.0, 0.0], None));
    assert_eq!(found.entries["output.weight"], importances(&[5.0], None));
    assert_eq!((found.entries.len(), found.dataset.as_deref(), found.chunks), (2, Some("wiki.txt"), Some(9)));
    let without_optional_fields = older()[..older().len() - 16].to_vec();
    let found = parsed(without_optional_fields).unwrap();
    assert_eq!((found.entries.len(), found.dataset, found.chunks), (2, None, None));
}

#[test]
fn malformed_files_are_refused_by_tensor() {
    let (sums, counts) = ("a.in_sum2", "a.counts");
    let tensor =
        |name: &'static str, values: &'static [f32]| (name, if values.len() == 2 { &[2][..] } else { &[1] }, values);
    for (file, expected) in [
        (gguf(&[tensor(sums, &[1.0])]), "made: expected tensor `a.counts`, found 1 tensors"),
        (gguf(&[tensor(counts, &[1.0])]), "made: expected tensor `a.in_sum2`, found 1 tensors"),
        (gguf(&[tensor("a.weight", &[1.0])]), "made: tensors: expected those of an importance matrix (NAME.in_sum2)"),
        (
            gguf(&[tensor(sums, &[1.0]), tensor(counts, &[1.0, 1.0])]),
            "`a.in_sum2`: sums: expected a multiple of 2, the number of counts",
        ),
        (gguf(&[tensor(sums, &[1.0, f32::NAN]), tensor(counts, &[1.0])]), "found NaN at index 1"),
        (gguf(&[tensor(sums, &[1.0]), tensor(counts, &[f32::INFINITY])]), "`a.counts`: sums: expected finite numbers"),
        (
            [&1i32.to_le_bytes()[..], &entry("a", 1, &[-1.0])].concat(),
            "tensor `a`: sums: expected finite numbers of at least",
        ),
        ([&1i32.to_le_bytes()[..], &entry("a", 1, &[])].concat(), "tensor `a`: sums: expected one per column"),
        (
            [&1i32.to_le_bytes()[..], &entry("a", -1, &[1.0])].concat(),
            "calls of a, before byte 13: expected 0 or more, found -1",
        ),
        (
            [&2i32.to_le_bytes()[..], &entry("a", 1, &[1.0; 9]), &entry("a", 1, &[1.0])].concat(),
            "`a`: name: expected each name once",
        ),
        (vec![0; 64], "number of entries of an importance matrix"),
        (i32::MAX.to_le_bytes().repeat(16), "number of entries of an importance matrix"),
        (vec![], "number of entries of an importance matrix"),
    ] {
        let error = parsed(file).unwrap_err();
        assert!(error.contains(expected) && error.lines().count() == 1, "{error}, expected {expected}");
    }
    let mut long = [&1i32.to_le_bytes()[..], &entry("a", 1, &[1.0; 9])].concat();
    long[13..17].copy_from_slice(&i32::MAX.to_le_bytes());
    assert!(parsed(long).unwrap_err().contains("sums of a, before byte 17: expected 8589934588 bytes"));
}

#[test]
fn no_file_breaks_the_reader() {
    for whole in [newer(), older()] {
        let ends = (0..whole.len()).filter(|end| parsed(whole[..*end].to_vec()).is_ok()).count();
        // The older form may end after its entries or after the number of chunks; the padding may be missing.
        assert!(ends < 32, "{ends} of {} beginnings are accepted", whole.len());
    }
    let seeds = [newer(), older()];
    for number in 0..30_000 {
        match parsed(mutated(&seeds, number)) {
            Err(error) => assert_eq!(error.lines().count(), 1, "case {number}: {error}"),
            Ok(found) => {
                let sums = || found.entries.values().flat_map(|entry| &entry.values);
                assert!(sums().count() > 0 && sums().all(|x| x.is_finite() && *x >= 0.0), "case {number}");
            }
        }
    }
}
