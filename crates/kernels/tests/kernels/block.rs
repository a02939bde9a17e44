//! Tests that blocks are dequantized and quantized as the Python package `gguf` does it, and that the search keeps the
//! error bounds of each block. Total errors are tested in `quantization_error.rs`.
//!
//! `fixtures/blocks.bin` was made by `fixtures/make_blocks.py`, which describes its layout.

use foretoken_kernels::block::{Format, dequantize, first_unrepresentable, quantize, quantize_by_importance};
use foretoken_testkit::rows::Numbers;
use proptest::prelude::*;

use crate::{assert_same_bits, same_float};

static FIXTURE: &[u8] = include_bytes!("../fixtures/blocks.bin");

/// Blocks of a format and the floats that belong to them.
struct Record {
    quantized_records: bool,
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
        records.push(Record { quantized_records: head[0] == 1, format, blocks, floats });
    }
    records
}

#[test]
fn floats_have_the_bits_that_gguf_gives() {
    let read: Vec<Record> = records().into_iter().filter(|record| !record.quantized_records).collect();
    let formats: Vec<Format> = read.iter().map(|record| record.format).collect();
    let ggml_formats: Vec<Format> = Format::ALL.into_iter().filter(|format| *format != Format::Int4).collect();
    assert_eq!(formats, ggml_formats, "the formats of the fixture");
    for Record { format, blocks, floats, .. } in read {
        let mut found = vec![f32::NAN; floats.len()];
        dequantize(format, blocks, &mut found);
        for (i, (found, expected)) in found.iter().zip(&floats).enumerate() {
            let (block, element, name) = (i / format.elements(), i % format.elements(), format.name());
            assert!(same_float(*found, *expected), "{name} block {block} element {element}: {found:e}, {expected:e}");
        }
        // The highest exponent of MXFP4 is a power of two, not NaN.
        let nan = format != Format::Mxfp4;
        assert!(floats.iter().any(|value| value.is_infinite()) && floats.iter().any(|value| value.is_nan()) == nan);
    }
}

/// INT4, which `gguf` does not have, is scale times (quant minus zero point), equal to the bit to the result in f64.
#[test]
fn integers_with_a_zero_point_are_exact() {
    let format = Format::Int4;
    let mut numbers = Numbers::new(5);
    let mut bytes: Vec<u8> = (0..100 * format.bytes()).map(|_| numbers.bits() as u8).collect();
    for block in bytes.chunks_exact_mut(format.bytes()) {
        block[1] &= 0xbf; // below 2, and finite
    }
    let mut found = vec![f32::NAN; 100 * 32];
    dequantize(format, &bytes, &mut found);
    for (block, found) in bytes.chunks_exact(format.bytes()).zip(found.chunks_exact(32)) {
        let scale = half::f16::from_le_bytes([block[0], block[1]]).to_f64();
        for (i, found) in found.iter().enumerate() {
            let quant = if i < 16 { block[3 + i] & 15 } else { block[3 + i - 16] >> 4 };
            let expected = scale * (f64::from(quant) - f64::from(block[2]));
            assert!(f64::from(*found) == expected, "element {i}: {found}, expected {expected}");
        }
    }
}

#[test]
fn blocks_have_the_bytes_that_gguf_makes() {
    let quantized_records: Vec<Record> = records().into_iter().filter(|record| record.quantized_records).collect();
    let formats = [Format::Q8_0, Format::Q4_0, Format::Q4_1, Format::Q5_0, Format::Q5_1];
    assert_eq!(quantized_records.iter().map(|record| record.format).collect::<Vec<_>>(), formats);
    for Record { format, blocks, floats, .. } in quantized_records {
        let found = quantized(format, &floats);
        for (block, (found, expected)) in found.chunks(format.bytes()).zip(blocks.chunks(format.bytes())).enumerate() {
            assert_eq!(found, expected, "{} block {block}", format.name());
        }
    }
}

/// The formats that can be quantized to.
pub(crate) fn quantizable_formats() -> impl Iterator<Item = Format> {
    Format::ALL.into_iter().filter(|format| format.can_quantize())
}

fn quantized(format: Format, values: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0xA5; values.len() / format.elements() * format.bytes()];
    quantize(format, values, &mut bytes);
    bytes
}

/// Quantizes and dequantizes values.
pub(crate) fn round_trip(format: Format, values: &[f32]) -> Vec<f32> {
    let mut found = vec![f32::NAN; values.len()];
    dequantize(format, &quantized(format, values), &mut found);
    found
}

/// Quantizes values by importance and dequantizes them.
pub(crate) fn round_trip_by(format: Format, values: &[f32], importance: &[f32]) -> Vec<f32> {
    let (mut bytes, mut found) = (vec![0xA5; values.len() / format.elements() * format.bytes()], values.to_vec());
    quantize_by_importance(format, values, importance, &mut bytes);
    dequantize(format, &bytes, &mut found);
    found
}

/// Normally distributed numbers, by Box and Muller.
pub(crate) fn normal(numbers: &mut Numbers, len: usize) -> Vec<f32> {
    let mut values = Vec::with_capacity(len + 1);
    while values.len() < len {
        let (u, v) = ((numbers.unit() + 1.0) / 2.0, numbers.unit() * std::f32::consts::PI);
        let radius = (-2.0 * (u + f32::MIN_POSITIVE).ln()).sqrt();
        values.extend([radius * v.cos(), radius * v.sin()]);
    }
    values.truncate(len);
    values
}

/// The maximum error of an element of this block, by the steps that the format has between its extremes.
fn error_bound(format: Format, block: &[f32]) -> f32 {
    let greatest = |values: &[f32]| values.iter().fold(0f32, |highest, value| highest.max(value.abs()));
    // An f16 is off by half of its last bit or, near 0, by half of the smallest step.
    let half = |scale: f32| (scale / 2048.0).max(f32::powi(2.0, -25));
    let around_zero = |steps: f32| {
        // There is no level for the opposite of the extreme element, so that is a whole step off.
        let step = greatest(block) / steps;
        step + steps * half(step)
    };
    let with_minimum = |top: f32| {
        let (low, high) = block.iter().fold((f32::MAX, f32::MIN), |(low, high), x| (low.min(*x), high.max(*x)));
        let step = (high - low) / top;
        step * 0.50001 + top * half(step) + half(low.abs()) + 1e-6 * greatest(block)
    };
    match format {
        Format::Q8_0 => {
            let step = greatest(block) / 127.0;
            step * 0.50001 + 127.0 * half(step)
        }
        Format::Q4_0 => around_zero(8.0),
        Format::Q5_0 => around_zero(16.0),
        Format::Q4_1 => with_minimum(15.0),
        Format::Q5_1 => with_minimum(31.0),
        _ => unreachable!("{}: the parts of searched blocks are judged by `check_parts`", format.name()),
    }
}

/// A format whose scales are searched for.
struct Searched {
    /// Where the quants of a block lie.
    quants: std::ops::Range<usize>,
    /// Where the f16 scale (and minimum) of the whole block lie.
    halves: &'static [usize],
    /// Elements of a part.
    len: usize,
    /// The largest distance of two neighbouring levels, as a fraction of the distance of the outermost.
    gap: f32,
}

fn searched(format: Format) -> Option<Searched> {
    let (quants, halves, len, gap): (_, &[usize], _, _) = match format {
        Format::Q2K => (16..80, &[80, 82], 16, 1.0 / 3.0),
        Format::Q3K => (0..96, &[108], 16, 1.0 / 7.0),
        Format::Q4K => (16..144, &[0, 2], 32, 1.0 / 15.0),
        Format::Q5K => (16..176, &[0, 2], 32, 1.0 / 31.0),
        Format::Q6K => (0..192, &[208], 16, 1.0 / 63.0),
        Format::Iq4Xs => (8..136, &[0], 32, 24.0 / 240.0),
        Format::Iq4Nl => (2..18, &[0], 32, 24.0 / 240.0),
        _ => return None,
    };
    Some(Searched { quants, halves, len, gap })
}

/// The maximum error of an element if a part is rounded plainly between its extremes.
fn plain_bound(format: Format, (low, high): (f32, f32), units: &[f32]) -> f32 {
    let extreme = high.max(-low);
    match format {
        // Scale and minimum are off by half a unit each.
        Format::Q2K | Format::Q4K | Format::Q5K => {
            let top = if format == Format::Q2K { 3.0 } else { [15.0, 31.0][usize::from(format == Format::Q5K)] };
            (high - low) / top / 2.0 + (top * units[0] + units[1]) / 2.0
        }
        // The opposite of an extreme has no level, and a scale of 128 units (32) has to become 127 (31) of them.
        Format::Q6K => extreme / 32.0 + 32.0 * units[0],
        Format::Q3K => extreme / 4.0 + 4.0 * units[0],
        Format::Iq4Xs => extreme * 14.0 / 127.0 + 127.0 * units[0],
        // The scale is an f16 itself.
        _ => extreme * 14.0 / 127.0 + 127.0 * (units[0] / 2048.0).max(f32::powi(2.0, -25)),
    }
}

/// Checks what the search guarantees for a block, given the scales that it wrote.
///
/// Each element is at its nearest level. The weighted squared errors of each part are no more than those of plain
/// rounding between the part's extremes, with scale and minimum then moved to a whole number of units of the block. A
/// single element may be off by more than half a step: the search may clip an extreme if the others gain more.
fn check_parts(format: Format, values: &[f32], blocks: &[u8]) -> Result<(), String> {
    let Searched { quants, halves, len, gap } = searched(format).expect("a format that is searched for");
    let levels = |fill: Option<u8>| {
        let (mut blocks, mut found) = (blocks.to_vec(), vec![f32::NAN; values.len()]);
        fill.into_iter().for_each(|fill| blocks[quants.clone()].fill(fill));
        dequantize(format, &blocks, &mut found);
        found
    };
    let (found, first, last) = (levels(None), levels(Some(0)), levels(Some(0xff)));
    for (i, value) in values.iter().enumerate() {
        let (low, high) = (first[i].min(last[i]), first[i].max(last[i]));
        let outside = (value - high).max(low - value).max(0.0);
        let bound = outside.max((high - low) * gap / 2.0) + 1e-5 * (value.abs() + low.abs() + high.abs());
        let off = (value - found[i]).abs();
        if off > bound {
            return Err(format!("{}: element {i}: {:e} for {value:e}, bound {bound:e}", format.name(), found[i]));
        }
    }
    let half = |place: &usize| half::f16::from_le_bytes([blocks[*place], blocks[place + 1]]).to_f32().abs();
    let units: Vec<f32> = halves.iter().map(half).collect();
    for (j, (part, found)) in values.chunks(len).zip(found.chunks(len)).enumerate() {
        let typical = (part.iter().map(|x| x * x).sum::<f32>() / len as f32).sqrt();
        let extremes = part.iter().fold((0f32, f32::MIN), |(low, high), x| (low.min(*x), high.max(*x)));
        let plain = plain_bound(format, extremes, &units);
        let (mut weight, mut lost) = (0.0, 0.0);
        for (value, found) in part.iter().zip(found) {
            weight += typical + value.abs();
            lost += (typical + value.abs()) * (value - found) * (value - found);
        }
        if lost > 1.001 * weight * plain * plain {
            return Err(format!("{}: part {j}: lost {lost:e} of weight {weight:e}, plainly {plain:e}", format.name()));
        }
    }
    Ok(())
}

/// Random values from one of several distributions, some of which do not occur in weights.
fn shaped(numbers: &mut Numbers, len: usize, shape: usize, size: f32) -> Vec<f32> {
    let mut values = normal(numbers, len);
    for (i, value) in values.iter_mut().enumerate() {
        *value = size
            * match shape {
                0 => *value,
                1 => value.abs(),
                2 => -value.abs() - 3.0,
                3 => value.powi(3),
                4 => value.signum(),
                5 => *value * f32::powi(2.0, -((i / 16) as i32 % 12)),
                6 => {
                    if i % 61 == 7 {
                        *value * 50.0
                    } else {
                        *value
                    }
                }
                _ => {
                    if i % 17 == 3 {
                        *value
                    } else {
                        0.0
                    }
                }
            };
    }
    values
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// No element, and no part of a large block, has a larger error than the steps of its block imply.
    #[test]
    fn elements_lie_within_a_step(seed: u64, shape in 0..8usize, exponent in -12..12i32) {
        for format in quantizable_formats() {
            let values = shaped(&mut Numbers::new(seed), 256, shape, f32::powi(2.0, exponent));
            if first_unrepresentable(format, &values).is_some() {
                continue;
            }
            if searched(format).is_some() {
                for values in values.chunks(format.elements()) {
                    prop_assert_eq!(check_parts(format, values, &quantized(format, values)), Ok(()));
                }
                continue;
            }
            let found = round_trip(format, &values);
            for (values, found) in values.chunks(format.elements()).zip(found.chunks(format.elements())) {
                let bound = error_bound(format, values);
                for (value, found) in values.iter().zip(found) {
                    let off = (value - found).abs();
                    prop_assert!(off <= bound, "{}: {found:e} for {value:e}, bound {bound:e}", format.name());
                }
            }
        }
    }

    /// Floats of any bits give blocks of finite numbers.
    #[test]
    fn any_floats_become_finite_blocks(seed: u64, shape in 0..4usize) {
        let mut numbers = Numbers::new(seed);
        let float = |numbers: &mut Numbers| match (shape, numbers.below(16)) {
            (0, _) => f32::from_bits(numbers.bits() as u32),
            (1, 0) => [f32::NAN, f32::INFINITY, f32::NEG_INFINITY][numbers.below(3)],
            (2, _) => f32::from_bits(numbers.bits() as u32 & 0x80ff_ffff),
            (3, _) => numbers.unit() * f32::MAX,
            _ => numbers.unit(),
        };
        let values: Vec<f32> = (0..512).map(|_| float(&mut numbers)).collect();
        for format in quantizable_formats() {
            let importance: Vec<f32> = values.iter().rev().copied().collect();
            for found in [round_trip(format, &values), round_trip_by(format, &values, &importance)] {
                prop_assert!(found.iter().all(|value| value.is_finite()), "{}: {values:?}: {found:?}", format.name());
            }
        }
    }

    /// Any bytes can be dequantized.
    #[test]
    fn any_bytes_can_be_read(bytes in proptest::collection::vec(any::<u8>(), 4 * 210)) {
        for format in Format::ALL {
            let blocks = bytes.len() / format.bytes();
            let mut whole = vec![0.0; blocks * format.elements()];
            dequantize(format, &bytes[..blocks * format.bytes()], &mut whole);
            let mut alone = vec![0.0; format.elements()];
            for (block, expected) in bytes.chunks_exact(format.bytes()).zip(whole.chunks(format.elements())) {
                dequantize(format, block, &mut alone);
                prop_assert!(alone.iter().zip(expected).all(|(a, b)| same_float(*a, *b)), "{}", format.name());
            }
        }
    }

    /// A block does not depend on other blocks.
    #[test]
    fn blocks_are_independent(seed: u64, shape in 0..8usize) {
        for format in quantizable_formats() {
            let values = shaped(&mut Numbers::new(seed), 1024, shape, 1.0);
            let separately = values.chunks(format.elements()).flat_map(|block| quantized(format, block));
            prop_assert_eq!(quantized(format, &values), separately.collect::<Vec<u8>>());
        }
    }
}

/// In this block one element, an extreme of its part, is off by most of a step, since the others gain from a finer
/// step.
#[test]
fn an_extreme_is_clipped_where_the_others_gain() {
    let values = shaped(&mut Numbers::new(18_414_469_101_989_466_743), 256, 1, 1.0);
    assert_eq!(check_parts(Format::Q4K, &values, &quantized(Format::Q4K, &values)), Ok(()));
    let found = round_trip(Format::Q4K, &values);
    let off = |i: &usize| (values[*i] - found[*i]).abs();
    let worst = (0..256).max_by(|a, b| off(a).total_cmp(&off(b))).expect("elements");
    let highest = values[worst / 32 * 32..][..32].iter().fold(0f32, |highest, value| highest.max(*value));
    assert!(values[worst] == highest && off(&worst) > 0.8 * highest / 15.0, "{} of {highest}", values[worst]);
    // The check itself detects a quant that is not the nearest level, and a unit of the block that is too coarse.
    let mut blocks = quantized(Format::Q4K, &values);
    blocks[40] ^= 1;
    assert!(check_parts(Format::Q4K, &values, &blocks).is_err());
    let (mut coarse, far) = (quantized(Format::Q6K, &values), values.iter().map(|x| x * 3.0).collect::<Vec<f32>>());
    assert!(check_parts(Format::Q6K, &far, &coarse).is_err());
    coarse[209] ^= 0x04;
    assert!(check_parts(Format::Q6K, &values, &coarse).is_err());
}

#[test]
fn the_ends_of_the_range() {
    for format in quantizable_formats() {
        let name = format.name();
        let constant = |value: f32| round_trip(format, &[value; 256]);
        for zero in [0.0, f32::MIN_POSITIVE, 1e-40, -1e-40, 1e-12] {
            let found = constant(zero);
            assert!(found.iter().all(|value| *value == 0.0), "{name} of {zero:e}: {found:?}");
        }
        for one in [1.0, -1.0, 0.3, -0.3, 1e-3, -1e-3, 60000.0, -60000.0] {
            let found = constant(one);
            // If the f16 is denormal and has few bits, its step is more than that.
            let tolerance = 4e-3 * one.abs() + 2e-5;
            assert!(found.iter().all(|value| (value - one).abs() < tolerance), "{name} of {one:e}: {found:?}");
        }
        // Huge values become what the largest f16 gives, as scale or as minimum, and keep their sign.
        let bound = if matches!(format, Format::Q4_1 | Format::Q5_1) { 65504.0 } else { 65504.0 * 3.0 };
        for huge in [f32::MAX, -f32::MAX, 1e30, -1e10] {
            let found = constant(huge);
            let reached = |value: &f32| value.is_finite() && value / huge.signum() >= bound;
            assert!(found.iter().all(reached), "{name} of {huge:e}: {found:?}");
        }
        // A NaN counts as 0 and an infinity as the largest float, to the bit.
        let mut strange = normal(&mut Numbers::new(3), 256);
        let mut plain = strange.clone();
        for (place, (odd, even)) in [(f32::NAN, 0.0), (f32::INFINITY, f32::MAX), (-f32::NAN, 0.0)].iter().enumerate() {
            (strange[100 * place], plain[100 * place]) = (*odd, *even);
        }
        assert_eq!(quantized(format, &strange), quantized(format, &plain), "{name}");
        assert_same_bits(&constant(f32::NAN), &constant(0.0), name);
        assert_same_bits(&constant(f32::NEG_INFINITY), &constant(-f32::MAX), name);
    }
}

/// Even if the f16 is denormal and has few bits, the scales of the parts keep the errors small.
#[test]
fn small_numbers_lose_precision_gradually() {
    for (format, levels) in [(Format::Q4K, 7.0), (Format::Q5K, 14.0), (Format::Q6K, 7.0), (Format::Q3K, 3.0)] {
        for exponent in -24..-10 {
            let size = f32::powi(2.0, exponent);
            let values: Vec<f32> = Numbers::new(5).units(256).iter().map(|value| value * size).collect();
            let off = values.iter().zip(round_trip(format, &values)).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            // The bound is half of the smallest step, or the error that the format has in any case.
            let bound = f32::powi(2.0, -24).max(size / levels);
            assert!(off <= bound, "{} at 2^{exponent}: {off:e}, bound {bound:e}", format.name());
        }
    }
}

#[test]
#[should_panic(expected = "MXFP4 is only read")]
fn quantizing_to_a_read_only_format_is_a_bug() {
    quantize(Format::Mxfp4, &[0.0; 32], &mut [0; 17]);
}

#[test]
#[should_panic(expected = "35 bytes are not whole Q8_0 blocks of 34")]
fn half_a_block_is_a_bug() {
    dequantize(Format::Q8_0, &[0; 35], &mut [0.0; 32]);
}

#[test]
#[should_panic(expected = "2 Q4_0 blocks do not fit 32 elements")]
fn too_few_elements_are_a_bug() {
    dequantize(Format::Q4_0, &[0; 36], &mut [0.0; 32]);
}
