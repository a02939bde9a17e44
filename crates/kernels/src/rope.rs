//! Rotary position embedding: pairs of a head's elements are rotated by an angle that grows with the position.
//!
//! Which elements form a pair differs between file formats ([`Pairing`]); the angles of a pass are computed once per
//! row ([`angles`]) and used by every layer.

use crate::Isa;
use crate::isa::dispatch;
pub use crate::isa::shapes::Pairing;

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
