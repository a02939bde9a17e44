//! Tests with random files: what is written is read back, and no mutation of a valid file makes a reader panic or read
//! beyond the file.
//!
//! [`probe`] checks the properties that must hold. Proptest shrinks the failures that it finds; the smoke runs go
//! through many more cases, from the same seeds as the fuzz targets. No coverage guides the smoke runs, but they run
//! everywhere.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use foretoken_weights::{Bytes, gguf, safetensors};
use proptest::prelude::*;

use super::gguf_writer::GgufWriter;
use super::safetensors::file;
use super::{probe, seeds};

/// The duration of each smoke run.
const SMOKE: Duration = Duration::from_secs(10);

/// Numbers that readers tend to get wrong.
const EDGES: [u64; 12] = [0, 1, 2, 31, 32, 255, 1 << 16, 1 << 31, 1 << 32, 1 << 60, i64::MAX as u64, u64::MAX];

/// A counter-based generator (splitmix64): case `n` is the same on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// A number below `end`, or 0.
    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }
}

/// Case `number`: a seed with one to eight changes.
pub(super) fn mutated(seeds: &[Vec<u8>], number: u64) -> Vec<u8> {
    let random = &mut Random(number.wrapping_mul(0x5851_f42d_4c95_7f2d));
    let mut data = seeds[random.below(seeds.len())].clone();
    for _ in 0..1 + random.below(8) {
        let offset = random.below(data.len());
        let len = random.below(16).min(data.len() - offset);
        let edge = EDGES[random.below(EDGES.len())].to_le_bytes();
        match random.below(9) {
            0 if offset < data.len() => data[offset] ^= 1 << random.below(8),
            1 if offset < data.len() => data[offset] = random.next() as u8,
            2 if offset + 8 <= data.len() => data[offset..offset + 8].copy_from_slice(&edge),
            3 if offset + 4 <= data.len() => data[offset..offset + 4].copy_from_slice(&edge[..4]),
            4 => data.truncate(offset),
            5 => drop(data.drain(offset..offset + len)),
            6 => data.extend_from_within(offset..offset + len),
            7 => {
                let copy = data[offset..offset + len].to_vec();
                let to = random.below(data.len());
                data.splice(to..to, copy);
            }
            _ => {
                // Replacing a digit by a digit keeps JSON headers parseable and changes what they claim.
                let digits: Vec<usize> = (0..data.len()).filter(|&at| data[at].is_ascii_digit()).collect();
                if let Some(&at) = digits.get(random.below(digits.len())) {
                    data[at] = b'0' + random.below(10) as u8;
                }
            }
        }
    }
    data
}

fn smoke(target: &str, probe: fn(&[u8]) -> bool) {
    let mut paths: Vec<_> =
        std::fs::read_dir(seeds::folder(target)).unwrap().map(|entry| entry.unwrap().path()).collect();
    // Files that a fuzzer adds to the folder have no extension, and need not be valid.
    paths.retain(|path| path.extension().is_some());
    paths.sort();
    let seeds: Vec<Vec<u8>> = paths.iter().map(|path| std::fs::read(path).unwrap()).collect();
    assert!(seeds.len() >= 3, "seeds of {target}: {}", seeds.len());
    assert!(seeds.iter().all(|seed| probe(seed)), "every seed of {target} is valid");

    let (start, mut number, mut accepted) = (Instant::now(), 0, 0_u64);
    while start.elapsed() < SMOKE {
        let data = mutated(&seeds, number);
        let verdict = catch_unwind(AssertUnwindSafe(|| probe(&data)));
        accepted += u64::from(verdict.unwrap_or_else(|_| panic!("{target}: case {number} fails: {data:?}")));
        number += 1;
    }
    println!("{target}: {number} cases, {accepted} of them accepted");
    assert!(accepted > 0 && accepted < number, "{target}: {accepted} of {number} accepted: mutations change nothing");
}

#[test]
fn smoke_safetensors() {
    smoke("safetensors", probe::safetensors);
}

#[test]
fn smoke_gguf() {
    smoke("gguf", probe::gguf);
}

/// Tensors, each with its name, its shape (outermost first), and whether its elements are floats (else bytes).
fn tensors() -> impl Strategy<Value = Vec<(String, Vec<usize>, bool)>> {
    let tensor = (prop::collection::vec(0..5_usize, 1..=4), any::<bool>());
    prop::collection::btree_map("[a-zé.0-9]{0,6}", tensor, 0..6)
        .prop_map(|map| map.into_iter().map(|(name, (shape, wide))| (name, shape, wide)).collect())
}

/// Changes to a file, each with a position, as a fraction of the file, and the new byte.
fn changes() -> impl Strategy<Value = Vec<(f64, u8)>> {
    prop::collection::vec((0.0..1.0, any::<u8>()), 0..6)
}

fn change(mut data: Vec<u8>, changes: &[(f64, u8)], cut: f64) -> Vec<u8> {
    let len = data.len() as f64;
    for &(fraction, byte) in changes {
        data[(fraction * len) as usize] = byte;
    }
    data.truncate((cut * len) as usize);
    data
}

/// The data of a tensor, which differs between offsets.
fn data(shape: &[usize], wide: bool, first: usize) -> Vec<u8> {
    let len = shape.iter().product::<usize>() * if wide { 4 } else { 1 };
    (0..len).map(|at| (first + at) as u8).collect()
}

fn safetensors_file(tensors: &[(String, Vec<usize>, bool)]) -> Vec<u8> {
    let (mut header, mut body) = (Vec::new(), Vec::new());
    for (name, shape, wide) in tensors {
        let from = body.len();
        body.extend(data(shape, *wide, from));
        let (dtype, to) = (if *wide { "F32" } else { "I8" }, body.len());
        header.push(format!(r#""{name}":{{"data_offsets":[{from},{to}],"dtype":"{dtype}","shape":{shape:?}}}"#));
    }
    file(&format!("{{{}}}", header.join(",")), &body)
}

fn gguf_file(tensors: &[(String, Vec<usize>, bool)]) -> Vec<u8> {
    let mut writer = GgufWriter::new().str("general.name", "random").alignment(8);
    for (name, shape, wide) in tensors {
        let dimensions: Vec<u64> = shape.iter().rev().map(|&dimension| dimension as u64).collect();
        let first = writer.tensors.len();
        writer = writer.tensor(name, &dimensions, if *wide { 0 } else { 24 }, &data(shape, *wide, first));
    }
    writer.bytes()
}

proptest! {
    #[test]
    fn any_safetensors_file_is_read_back(tensors in tensors()) {
        let bytes = safetensors_file(&tensors);
        let weights = safetensors::parse("any", Bytes::from_vec(bytes.clone())).unwrap();
        prop_assert_eq!(weights.len(), tensors.len());
        let mut from = 0;
        for (name, shape, wide) in &tensors {
            let tensor = weights.get(name).unwrap();
            let expected = data(shape, *wide, from);
            from += expected.len();
            prop_assert_eq!((&tensor.shape, &tensor.bytes[..]), (shape, &expected[..]));
        }
        prop_assert!(probe::safetensors(&bytes));
    }

    #[test]
    fn any_gguf_file_is_read_back(tensors in tensors()) {
        let file = gguf::parse("any", Bytes::from_vec(gguf_file(&tensors))).unwrap();
        prop_assert_eq!(file.weights.len(), tensors.len());
        for (index, (name, shape, wide)) in tensors.iter().enumerate() {
            let tensor = file.weights.get(name).unwrap();
            prop_assert_eq!((&tensor.shape, &tensor.bytes[..]), (shape, &data(shape, *wide, index)[..]));
        }
    }

    #[test]
    fn no_change_to_a_safetensors_file_breaks_the_reader(
        tensors in tensors(), changes in changes(), cut in prop_oneof![Just(1.0), 0.0..1.0]
    ) {
        probe::safetensors(&change(safetensors_file(&tensors), &changes, cut));
    }

    #[test]
    fn no_change_to_a_gguf_file_breaks_the_reader(
        tensors in tensors(), changes in changes(), cut in prop_oneof![Just(1.0), 0.0..1.0]
    ) {
        probe::gguf(&change(gguf_file(&tensors), &changes, cut));
    }

    #[test]
    fn random_bytes_do_not_break_a_reader(data in prop::collection::vec(any::<u8>(), 0..200)) {
        probe::safetensors(&data);
        probe::gguf(&data);
        probe::safetensors(&[&(data.len() as u64).to_le_bytes()[..], &data].concat());
        probe::gguf(&[&b"GGUF\x03\0\0\0"[..], &data].concat());
    }
}
