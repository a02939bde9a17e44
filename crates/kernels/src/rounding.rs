//! Rows of activations as the bytes to which products with quantized weights would round them anyway, for sending them
//! to where the product is computed: a quarter of the floats.
//!
//! A block of elements becomes its largest magnitude and a signed byte per element, as `quantized_rows.rs` would make
//! them. Rows that are restored from these bytes are rounded to the same bytes and the same scales again: the largest
//! magnitude is restored as it was, where a byte is 127 in magnitude, and every other element lies so near to a whole
//! multiple of the scale that it is rounded to it. So a product has the bits that it has for the rows themselves.

use crate::isa::quantize_row::{largest_magnitude, quantize_block};

/// Bytes of the largest magnitude of a block.
const LARGEST_BYTES: usize = size_of::<f32>();

/// Number of bytes of this many elements in blocks of `block`.
pub fn rounded_bytes(elements: usize, block: usize) -> usize {
    elements / block * (LARGEST_BYTES + block)
}

/// Rounds elements in blocks of `block`, a multiple of 16.
///
/// # Panics
/// If they are not whole blocks, or `out` has not [`rounded_bytes`].
pub fn round(x: &[f32], block: usize, out: &mut [u8]) {
    assert!(x.len().is_multiple_of(block) && block.is_multiple_of(16), "rounding: {} elements of {block}", x.len());
    assert_eq!(out.len(), rounded_bytes(x.len(), block), "rounding: bytes of {} elements", x.len());
    let mut quants = vec![0; block];
    for (x, out) in x.chunks_exact(block).zip(out.chunks_exact_mut(LARGEST_BYTES + block)) {
        let (largest, bytes) = out.split_at_mut(LARGEST_BYTES);
        largest.copy_from_slice(&largest_magnitude(x).to_le_bytes());
        quantize_block(x, &mut quants);
        bytes.iter_mut().zip(&quants).for_each(|(byte, quant)| *byte = *quant as u8);
    }
}

/// Restores elements from their [rounded](round) bytes: not the same elements, but ones that are rounded to the same
/// bytes and scales.
///
/// # Panics
/// As [`round`].
pub fn restore(bytes: &[u8], block: usize, out: &mut [f32]) {
    assert_eq!(bytes.len(), rounded_bytes(out.len(), block), "rounding: bytes of {} elements", out.len());
    for (bytes, out) in bytes.chunks_exact(LARGEST_BYTES + block).zip(out.chunks_exact_mut(block)) {
        let (largest, quants) = bytes.split_at(LARGEST_BYTES);
        let largest = f32::from_le_bytes(largest.try_into().expect("four bytes"));
        if !largest.is_finite() {
            out.fill(f32::NAN);
            continue;
        }
        let scale = largest / 127.0;
        for (out, quant) in out.iter_mut().zip(quants) {
            let quant = f32::from(*quant as i8);
            *out = if quant.abs() == 127.0 { largest.copysign(quant) } else { quant * scale };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounded(x: &[f32], block: usize) -> Vec<u8> {
        let mut bytes = vec![0; rounded_bytes(x.len(), block)];
        round(x, block, &mut bytes);
        bytes
    }

    fn scales(x: &[f32], block: usize) -> Vec<u32> {
        let mut quants = vec![0; block];
        x.chunks_exact(block).map(|x| quantize_block(x, &mut quants).to_bits()).collect()
    }

    #[test]
    fn restored_rows_are_rounded_as_the_rows_themselves() {
        let mut state = 7_u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        };
        for block in [32, 256] {
            for magnitude in [0.0, 1e-45, 1e-38, 3e-37, 4e-37, 1e-30, 1e-3, 1.0, 77.0, 6e4, 1e30, f32::MAX] {
                for _ in 0..200 {
                    let x: Vec<f32> = (0..2 * block).map(|_| next() * magnitude).collect();
                    let bytes = rounded(&x, block);
                    let mut restored = vec![0.0; x.len()];
                    restore(&bytes, block, &mut restored);
                    assert_eq!(scales(&restored, block), scales(&x, block), "{magnitude}");
                    let quants = |bytes: &[u8]| -> Vec<Vec<u8>> {
                        bytes.chunks_exact(4 + block).map(|block| block[4..].to_vec()).collect()
                    };
                    assert_eq!(quants(&rounded(&restored, block)), quants(&bytes), "{magnitude}");
                }
            }
        }
    }

    #[test]
    fn what_is_not_finite_stays_so() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = [0.5; 64];
            x[40] = bad;
            let mut restored = [0.0; 64];
            restore(&rounded(&x, 32), 32, &mut restored);
            assert!(restored[..32].iter().all(|x| *x == 0.5) && restored[32..].iter().all(|x| x.is_nan()));
        }
    }
}
