//! Quantized blocks: read as the Python package `gguf` reads them, made as it makes them, and how much is lost.
//!
//! `fixtures/blocks.bin` was made by `fixtures/make_blocks.py`, which says how it is laid out.

use foretoken_kernels::block::{Format, dequantize};

use crate::same_float;

static FIXTURE: &[u8] = include_bytes!("../fixtures/blocks.bin");

/// Blocks and floats that belong together.
struct Record {
    made: bool,
    format: Format,
    blocks: &'static [u8],
    floats: Vec<f32>,
}

fn take(bytes: &mut &'static [u8], len: usize) -> &'static [u8] {
    let (head, tail) = bytes.split_at(len);
    *bytes = tail;
    head
}

fn take_length(bytes: &mut &'static [u8]) -> usize {
    u32::from_le_bytes(take(bytes, 4).try_into().unwrap()) as usize
}

fn records() -> Vec<Record> {
    let (mut bytes, mut records) = (FIXTURE, Vec::new());
    while !bytes.is_empty() {
        let head = take(&mut bytes, 2);
        let name = str::from_utf8(take(&mut bytes, usize::from(head[1]))).unwrap();
        let format = *Format::ALL.iter().find(|format| format.name() == name).expect(name);
        let len = take_length(&mut bytes);
        let blocks = take(&mut bytes, len);
        let len = take_length(&mut bytes);
        let floats = take(&mut bytes, 4 * len).chunks_exact(4);
        let floats = floats.map(|float| f32::from_le_bytes(float.try_into().unwrap())).collect();
        records.push(Record { made: head[0] == 1, format, blocks, floats });
    }
    records
}

#[test]
fn floats_have_the_bits_that_gguf_gives() {
    let read: Vec<Record> = records().into_iter().filter(|record| !record.made).collect();
    let formats: Vec<Format> = read.iter().map(|record| record.format).collect();
    assert_eq!(formats, Format::ALL, "the formats of the fixture");
    for Record { format, blocks, floats, .. } in read {
        let mut found = vec![f32::NAN; floats.len()];
        dequantize(format, blocks, &mut found);
        for (i, (found, expected)) in found.iter().zip(&floats).enumerate() {
            let (block, element, name) = (i / format.elements(), i % format.elements(), format.name());
            assert!(same_float(*found, *expected), "{name} block {block} element {element}: {found:e}, {expected:e}");
        }
        assert!(floats.iter().any(|value| value.is_infinite()) && floats.iter().any(|value| value.is_nan()));
    }
}
