//! Unpacks a block of a file from ggml's bit layout.
//!
//! Only this file and `pack.rs` know the bit layouts. Quants are returned in the order of the elements, one byte each;
//! scales of parts as small integers; the f16 scales as bits. Every bit pattern is a block, so nothing here can fail.
//! The layouts are those of ggml's `ggml-common.h` and of the Python package `gguf`, `quants`.
//!
//! [`super::dequantize`] makes floats of unpacked blocks.

use super::{Format, Large, Small};
use crate::dtype::f16;

/// Unpacks a block of 32.
///
/// # Panics
/// If the format's blocks are not of 32, or `bytes` is not exactly one block.
#[inline]
pub(crate) fn small(format: Format, bytes: &[u8]) -> Small {
    match format {
        Format::Q8_0 => q8_0(as_array(format, bytes)),
        Format::Q4_0 | Format::Iq4Nl => {
            let bytes: &[u8; 18] = as_array(format, bytes);
            Small { quants: nibbles(take(bytes, 2)), scale: u16_at(bytes, 0), minimum: 0 }
        }
        Format::Q4_1 => {
            let bytes: &[u8; 20] = as_array(format, bytes);
            Small { quants: nibbles(take(bytes, 4)), scale: u16_at(bytes, 0), minimum: u16_at(bytes, 2) }
        }
        Format::Int4 => {
            let bytes: &[u8; 19] = as_array(format, bytes);
            // An integer below 256 is exact in f16.
            let minimum = f16::from_f32(-f32::from(bytes[2])).to_bits();
            Small { quants: nibbles(take(bytes, 3)), scale: u16_at(bytes, 0), minimum }
        }
        Format::Mxfp4 => {
            let bytes: &[u8; 17] = as_array(format, bytes);
            Small { quants: nibbles(take(bytes, 1)), scale: half_of_power_of_two(bytes[0]), minimum: 0 }
        }
        Format::Q5_0 => {
            let bytes: &[u8; 22] = as_array(format, bytes);
            Small { quants: five_bit_quants(take(bytes, 2), take(bytes, 6)), scale: u16_at(bytes, 0), minimum: 0 }
        }
        Format::Q5_1 => {
            let bytes: &[u8; 24] = as_array(format, bytes);
            Small {
                quants: five_bit_quants(take(bytes, 4), take(bytes, 8)),
                scale: u16_at(bytes, 0),
                minimum: u16_at(bytes, 2),
            }
        }
        _ => panic!("small: {} has blocks of {}", format.name(), format.elements()),
    }
}

/// Unpacks a block of 256.
///
/// # Panics
/// If the format's blocks are not of 256, or `bytes` is not exactly one block.
#[inline]
pub(crate) fn large(format: Format, bytes: &[u8]) -> Large {
    match format {
        Format::Q2K => q2_k(as_array(format, bytes)),
        Format::Q3K => q3_k(as_array(format, bytes)),
        Format::Q4K => q4_k(as_array(format, bytes)),
        Format::Q5K => q5_k(as_array(format, bytes)),
        Format::Q6K => q6_k(as_array(format, bytes)),
        Format::Iq4Xs => iq4_xs(as_array(format, bytes)),
        _ => panic!("large: {} has blocks of {}", format.name(), format.elements()),
    }
}

/// The block as an array, so that what follows needs no checks.
#[inline(always)]
fn as_array<const N: usize>(format: Format, bytes: &[u8]) -> &[u8; N] {
    debug_assert_eq!(format.bytes(), N);
    bytes.try_into().unwrap_or_else(|_| panic!("a {} block of {N} bytes, given {}", format.name(), bytes.len()))
}

/// `N` bytes from `start`.
#[inline(always)]
fn take<const N: usize>(bytes: &[u8], start: usize) -> &[u8; N] {
    bytes[start..start + N].try_into().expect("N bytes")
}

#[inline(always)]
fn u16_at(bytes: &[u8], start: usize) -> u16 {
    u16::from_le_bytes(*take(bytes, start))
}

/// Half of 2^(exponent - 127), as the bits of a bf16, which can represent all of these powers, the smallest as
/// denormals.
#[inline(always)]
fn half_of_power_of_two(exponent: u8) -> u16 {
    match exponent {
        0 | 1 => 0x20 << exponent,
        _ => u16::from(exponent - 1) << 7,
    }
}

/// Unpacks sixteen bytes: the low halves come first, then the high halves.
#[inline(always)]
fn nibbles(packed: &[u8; 16]) -> [u8; 32] {
    let mut quants = [0; 32];
    for l in 0..16 {
        quants[l] = packed[l] & 15;
        quants[l + 16] = packed[l] >> 4;
    }
    quants
}

/// Nibbles with a fifth bit each; the fifth bits of all 32 are in one word.
#[inline(always)]
fn five_bit_quants(high: &[u8; 4], packed: &[u8; 16]) -> [u8; 32] {
    let high = u32::from_le_bytes(*high);
    let mut quants = nibbles(packed);
    for (i, quant) in quants.iter_mut().enumerate() {
        *quant |= ((high >> i & 1) as u8) << 4;
    }
    quants
}

#[inline(always)]
fn q8_0(bytes: &[u8; 34]) -> Small {
    let signed: &[u8; 32] = take(bytes, 2);
    // Flipping the highest bit of a signed byte adds 128 to it.
    Small { quants: signed.map(|quant| quant ^ 0x80), scale: u16_at(bytes, 0), minimum: 0 }
}

/// 64 bytes of four 2-bit numbers: a run of 32 bytes holds 128 elements, their lowest two bits the first 32.
#[inline(always)]
fn two_bit_runs(packed: &[u8; 64]) -> [u8; 256] {
    let mut quants = [0; 256];
    for run in 0..2 {
        for shift in 0..4 {
            for l in 0..32 {
                quants[run * 128 + shift * 32 + l] = packed[run * 32 + l] >> (2 * shift) & 3;
            }
        }
    }
    quants
}

/// 128 bytes of two 4-bit numbers: a run of `RUN` bytes holds its low halves first, then its high halves.
#[inline(always)]
fn nibble_runs<const RUN: usize>(packed: &[u8; 128]) -> [u8; 256] {
    let mut quants = [0; 256];
    for run in 0..128 / RUN {
        for l in 0..RUN {
            quants[run * 2 * RUN + l] = packed[run * RUN + l] & 15;
            quants[run * 2 * RUN + RUN + l] = packed[run * RUN + l] >> 4;
        }
    }
    quants
}

/// Adds one more bit to each of 256 quants: bit p of byte l belongs to element 32 p + l, and is its bit `1 << place`.
#[inline(always)]
fn add_bits(quants: &mut [u8; 256], packed: &[u8; 32], place: u32) {
    for part in 0..8 {
        for l in 0..32 {
            quants[part * 32 + l] |= (packed[l] >> part & 1) << place;
        }
    }
}

/// Eight scales and eight minimums of 6 bits in 12 bytes: the first four of each in the low 6 bits of bytes 0..4 and
/// 4..8, the last four as a low half in bytes 8..12 and the two bits that the former left free.
#[inline(always)]
fn six_bit_scales(packed: &[u8; 12]) -> ([i8; 16], [u8; 16]) {
    let (mut scales, mut minimums) = ([0; 16], [0; 16]);
    for j in 0..4 {
        let (s, m, both) = (packed[j], packed[j + 4], packed[j + 8]);
        scales[j] = (s & 63) as i8;
        minimums[j] = m & 63;
        scales[j + 4] = (both & 15 | s >> 6 << 4) as i8;
        minimums[j + 4] = both >> 4 | m >> 6 << 4;
    }
    (scales, minimums)
}

#[inline(always)]
fn q2_k(bytes: &[u8; 84]) -> Large {
    let both: &[u8; 16] = take(bytes, 0);
    Large {
        quants: two_bit_runs(take(bytes, 16)),
        scales: both.map(|both| (both & 15) as i8),
        minimums: both.map(|both| both >> 4),
        scale: u16_at(bytes, 80),
        minimum: u16_at(bytes, 82),
    }
}

#[inline(always)]
fn q3_k(bytes: &[u8; 110]) -> Large {
    let mut quants = two_bit_runs(take(bytes, 32));
    add_bits(&mut quants, take(bytes, 0), 2);
    let packed: &[u8; 12] = take(bytes, 96);
    let mut scales = [0; 16];
    for (j, scale) in scales.iter_mut().enumerate() {
        let low = packed[j % 8] >> (j / 8 * 4) & 15;
        let high = packed[8 + j % 4] >> (j / 4 * 2) & 3;
        *scale = (low | high << 4) as i8 - 32;
    }
    Large { quants, scales, minimums: [0; 16], scale: u16_at(bytes, 108), minimum: 0 }
}

#[inline(always)]
fn q4_k(bytes: &[u8; 144]) -> Large {
    let (scales, minimums) = six_bit_scales(take(bytes, 4));
    let quants = nibble_runs::<32>(take(bytes, 16));
    Large { quants, scales, minimums, scale: u16_at(bytes, 0), minimum: u16_at(bytes, 2) }
}

#[inline(always)]
fn q5_k(bytes: &[u8; 176]) -> Large {
    let (scales, minimums) = six_bit_scales(take(bytes, 4));
    let mut quants = nibble_runs::<32>(take(bytes, 48));
    add_bits(&mut quants, take(bytes, 16), 4);
    Large { quants, scales, minimums, scale: u16_at(bytes, 0), minimum: u16_at(bytes, 2) }
}

#[inline(always)]
fn q6_k(bytes: &[u8; 210]) -> Large {
    let mut quants = nibble_runs::<64>(take(bytes, 0));
    let high = two_bit_runs(take(bytes, 128));
    for (quant, high) in quants.iter_mut().zip(high) {
        *quant |= high << 4;
    }
    let scales: &[u8; 16] = take(bytes, 192);
    Large { quants, scales: scales.map(|scale| scale as i8), minimums: [0; 16], scale: u16_at(bytes, 208), minimum: 0 }
}

#[inline(always)]
fn iq4_xs(bytes: &[u8; 136]) -> Large {
    let high = u16_at(bytes, 2);
    let mut scales = [0; 16];
    for (j, scale) in scales.iter_mut().take(8).enumerate() {
        let low = bytes[4 + j / 2] >> (j % 2 * 4) & 15;
        *scale = (low | ((high >> (2 * j) & 3) as u8) << 4) as i8 - 32;
    }
    let quants = nibble_runs::<16>(take(bytes, 8));
    Large { quants, scales, minimums: [0; 16], scale: u16_at(bytes, 0), minimum: 0 }
}
