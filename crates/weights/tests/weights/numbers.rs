//! Q8_0 blocks as floats, exactly.

use foretoken_weights::dequantize_q8_0;
use half::f16;

fn block(scale: f16, quants: [i8; 32]) -> Vec<u8> {
    let mut bytes = scale.to_le_bytes().to_vec();
    bytes.extend(quants.map(|quant| quant as u8));
    bytes
}

#[test]
fn blocks_follow_one_another() {
    let mut quants = [0_i8; 32];
    (quants[0], quants[1], quants[31]) = (-128, 127, 3);
    let bytes = [block(f16::from_f32(0.5), quants), block(f16::from_f32(-2.0), quants)].concat();
    let mut out = [9.0; 64];
    dequantize_q8_0(&bytes, &mut out);
    assert_eq!((out[0], out[1], out[2], out[31]), (-64.0, 63.5, 0.0, 1.5));
    assert_eq!((out[32], out[33], out[34], out[63]), (256.0, -254.0, 0.0, -6.0));
}

/// Every scale that there is, subnormal ones among them, times every byte: the product in f64 is exact, and equal.
#[test]
fn every_product_is_exact() {
    for bits in 0..=u16::MAX {
        let scale = f16::from_bits(bits);
        if !scale.is_finite() {
            continue;
        }
        // Four of the eight blocks that would hold all bytes, in turn: all bytes are met every other scale.
        for first in (0..4).map(|step| -128 + 32 * (2 * step + i32::from(bits & 1))) {
            let quants: [i8; 32] = std::array::from_fn(|place| (first + place as i32) as i8);
            let mut out = [f32::NAN; 32];
            dequantize_q8_0(&block(scale, quants), &mut out);
            for (value, quant) in out.iter().zip(quants) {
                assert_eq!(f64::from(*value), scale.to_f64() * f64::from(quant), "{scale} * {quant}");
            }
        }
    }
}

#[test]
#[should_panic(expected = "33 bytes are not whole Q8_0 blocks of 34")]
fn part_of_a_block_is_a_bug() {
    dequantize_q8_0(&[0; 33], &mut [0.0; 32]);
}

#[test]
#[should_panic(expected = "1 Q8_0 blocks do not fill 31 floats")]
fn too_few_places_are_a_bug() {
    dequantize_q8_0(&[0; 34], &mut [0.0; 31]);
}
