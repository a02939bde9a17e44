//! Packs a block into ggml's bit layout: the inverse of `read.rs`.
//!
//! Q8_0 is packed where it is rounded (`write.rs`), and some formats are never packed.

use super::{Format, Large, Small};

/// Packs a block of 32.
///
/// # Panics
/// If the format is not one that is packed here, or `bytes` is not exactly one block.
pub(crate) fn small(format: Format, block: &Small, bytes: &mut [u8]) {
    let (scale, minimum) = (block.scale.to_le_bytes(), block.minimum.to_le_bytes());
    let packed = nibbles(&block.quants);
    match format {
        Format::Q4_0 | Format::Iq4Nl => fill(bytes, &[&scale, &packed]),
        Format::Q4_1 => fill(bytes, &[&scale, &minimum, &packed]),
        Format::Q5_0 => fill(bytes, &[&scale, &fifth_bits(&block.quants), &packed]),
        Format::Q5_1 => fill(bytes, &[&scale, &minimum, &fifth_bits(&block.quants), &packed]),
        _ => panic!("small: {} is not packed here", format.name()),
    }
}

/// Packs a block of 256.
///
/// # Panics
/// If the format's blocks are not of 256, or `bytes` is not exactly one block.
pub(crate) fn large(format: Format, block: &Large, bytes: &mut [u8]) {
    let (scale, minimum) = (block.scale.to_le_bytes(), block.minimum.to_le_bytes());
    let quants = &block.quants;
    match format {
        Format::Q2K => {
            let both: [u8; 16] = std::array::from_fn(|j| block.scales[j] as u8 | block.minimums[j] << 4);
            fill(bytes, &[&both, &two_bit_runs(quants), &scale, &minimum]);
        }
        Format::Q3K => {
            fill(bytes, &[&bits(quants, 2), &two_bit_runs(quants), &signed_six_bit_scales(&block.scales), &scale]);
        }
        Format::Q4K => fill(bytes, &[&scale, &minimum, &six_bit_scales(block), &nibble_runs::<32>(quants)]),
        Format::Q5K => {
            fill(bytes, &[&scale, &minimum, &six_bit_scales(block), &bits(quants, 4), &nibble_runs::<32>(quants)]);
        }
        Format::Q6K => {
            let scales = block.scales.map(|scale| scale as u8);
            fill(bytes, &[&nibble_runs::<64>(quants), &two_bit_runs(&quants.map(|quant| quant >> 4)), &scales, &scale]);
        }
        Format::Iq4Xs => {
            let scales: [u8; 8] = std::array::from_fn(|j| (block.scales[j] + 32) as u8);
            let high = (0..8).fold(0u16, |all, j| all | u16::from(scales[j] >> 4) << (2 * j));
            let low: [u8; 4] = std::array::from_fn(|j| scales[2 * j] & 15 | scales[2 * j + 1] << 4);
            fill(bytes, &[&scale, &high.to_le_bytes(), &low, &nibble_runs::<16>(quants)]);
        }
        _ => panic!("large: {} has blocks of {}", format.name(), format.elements()),
    }
}

/// Writes pieces one after another; they must fill the block.
#[inline(always)]
fn fill(bytes: &mut [u8], pieces: &[&[u8]]) {
    let mut rest = bytes;
    for piece in pieces {
        let (head, tail) = rest.split_at_mut(piece.len());
        head.copy_from_slice(piece);
        rest = tail;
    }
    assert!(rest.is_empty(), "{} bytes too many for a block", rest.len());
}

/// The lowest four bits of each quant: the first sixteen in the low halves, the others in the high halves.
#[inline(always)]
fn nibbles(quants: &[u8; 32]) -> [u8; 16] {
    std::array::from_fn(|l| quants[l] & 15 | quants[l + 16] << 4)
}

/// The fifth bits of all 32 quants in one word.
#[inline(always)]
fn fifth_bits(quants: &[u8; 32]) -> [u8; 4] {
    quants.iter().enumerate().fold(0u32, |all, (i, quant)| all | u32::from(quant >> 4 & 1) << i).to_le_bytes()
}

/// The lowest two bits of each quant, in the order that `two_bit_runs` of `read.rs` reads.
#[inline(always)]
fn two_bit_runs(quants: &[u8; 256]) -> [u8; 64] {
    let mut packed = [0; 64];
    for run in 0..2 {
        for l in 0..32 {
            let two = |row: usize| (quants[run * 128 + row * 32 + l] & 3) << (2 * row);
            packed[run * 32 + l] = two(0) | two(1) | two(2) | two(3);
        }
    }
    packed
}

/// The lowest four bits of each quant, in the order that `nibble_runs` of `read.rs` reads.
#[inline(always)]
fn nibble_runs<const RUN: usize>(quants: &[u8; 256]) -> [u8; 128] {
    let mut packed = [0; 128];
    for run in 0..128 / RUN {
        for l in 0..RUN {
            packed[run * RUN + l] = quants[run * 2 * RUN + l] & 15 | quants[run * 2 * RUN + RUN + l] << 4;
        }
    }
    packed
}

/// The bit `1 << place` of each quant: that of element 32 p + l is bit p of byte l.
#[inline(always)]
fn bits(quants: &[u8; 256], place: u32) -> [u8; 32] {
    let mut packed = [0; 32];
    for part in 0..8 {
        for l in 0..32 {
            packed[l] |= (quants[part * 32 + l] >> place & 1) << part;
        }
    }
    packed
}

/// Eight scales and eight minimums of six bits each, in the layout of `six_bit_scales` in `read.rs`.
#[inline(always)]
fn six_bit_scales(block: &Large) -> [u8; 12] {
    let mut packed = [0; 12];
    for j in 0..4 {
        let (scale, high_scale) = (block.scales[j] as u8, block.scales[j + 4] as u8);
        let (minimum, high_minimum) = (block.minimums[j], block.minimums[j + 4]);
        packed[j] = scale | high_scale >> 4 << 6;
        packed[4 + j] = minimum | high_minimum >> 4 << 6;
        packed[8 + j] = high_scale & 15 | high_minimum << 4;
    }
    packed
}

/// Sixteen scales from -32 to 31: four low bits each in eight bytes, two high bits each in four.
#[inline(always)]
fn signed_six_bit_scales(scales: &[i8; 16]) -> [u8; 12] {
    let mut packed = [0; 12];
    for (j, scale) in scales.iter().enumerate() {
        let scale = (scale + 32) as u8;
        packed[j % 8] |= (scale & 15) << (j / 8 * 4);
        packed[8 + j % 4] |= scale >> 4 << (j / 4 * 2);
    }
    packed
}

#[cfg(test)]
mod tests {
    use super::super::read;
    use super::*;

    /// Pseudorandom bytes.
    fn noise(len: usize) -> Vec<u8> {
        let mut state = 1u64;
        let next = |_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        };
        (0..len).map(next).collect()
    }

    #[test]
    fn what_is_read_is_packed_to_the_same_bytes() {
        for format in Format::ALL.into_iter().filter(|format| format.can_quantize() && *format != Format::Q8_0) {
            for block in noise(50 * format.bytes()).chunks_exact(format.bytes()) {
                let mut bytes = vec![0xa5; format.bytes()];
                if format.is_large() {
                    large(format, &read::large(format, block), &mut bytes);
                } else {
                    small(format, &read::small(format, block), &mut bytes);
                }
                assert_eq!(bytes, block, "{}", format.name());
            }
        }
    }
}
