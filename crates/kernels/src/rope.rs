//! Rotary position embedding: pairs of a head's elements are rotated by an angle that grows with the position.
//!
//! Which elements form a pair differs between file formats ([`Pairing`]); the angles of a pass are computed once per
//! row ([`angles`]) and used by every layer.

use crate::Isa;
use crate::isa::dispatch;

/// Which two elements of a head are rotated together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairing {
    /// Elements i and i + half (GPT-NeoX style): most Hugging Face checkpoints.
    Halves,
    /// Elements 2i and 2i + 1 (GPT-J style), also in GGUF files whose q and k rows are permuted for it (`llama`).
    Interleaved,
}

/// Writes cosine and sine of `position * frequency` for each frequency, times `magnitude`: `[2, frequencies.len()]`.
///
/// # Panics
/// If `out` is not twice as long as `frequencies`.
pub fn angles(position: usize, frequencies: &[f32], magnitude: f32, out: &mut [f32]) {
    let (cosines, sines) = out.split_at_mut(frequencies.len());
    assert_eq!(cosines.len(), sines.len(), "angles: shape of the output");
    for i in 0..frequencies.len() {
        let (sine, cosine) = (position as f32 * frequencies[i]).sin_cos();
        (sines[i], cosines[i]) = (sine * magnitude, cosine * magnitude);
    }
}

/// Rotates the first `angles.len()` elements of each head of `row` `[heads, head_dim]`.
///
/// # Panics
/// If the rotated part does not fit into a head, or `row` is not a whole number of heads.
pub fn rotate(isa: Isa, row: &mut [f32], head_dim: usize, angles: &[f32], pairing: Pairing) {
    assert!(angles.len() <= head_dim && row.len().is_multiple_of(head_dim), "rotate: shapes");
    dispatch!(isa, rotate(row, head_dim, angles, pairing));
}

/// The loop itself, which `isa/rows.rs` compiles for each instruction set.
pub(crate) mod plain {
    use super::Pairing;

    #[inline(always)]
    pub(crate) fn rotate(row: &mut [f32], head_dim: usize, angles: &[f32], pairing: Pairing) {
        let (cosines, sines) = angles.split_at(angles.len() / 2);
        let half = cosines.len();
        for head in row.chunks_exact_mut(head_dim) {
            match pairing {
                Pairing::Halves => {
                    let (first, second) = head[..2 * half].split_at_mut(half);
                    let pairs = first.iter_mut().zip(second).zip(cosines.iter().zip(sines));
                    pairs.for_each(|((x, y), (cosine, sine))| {
                        (*x, *y) = (*x * cosine - *y * sine, *y * cosine + *x * sine);
                    });
                }
                Pairing::Interleaved => {
                    let (pairs, _) = head[..2 * half].as_chunks_mut::<2>();
                    let pairs = pairs.iter_mut().zip(cosines.iter().zip(sines));
                    pairs.for_each(|(pair, (cosine, sine))| {
                        let [x, y] = *pair;
                        *pair = [x * cosine - y * sine, y * cosine + x * sine];
                    });
                }
            }
        }
    }
}
