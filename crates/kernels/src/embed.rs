//! Rows of an embedding table, widened to f32.

use crate::dtype::Matrix;

/// Copies row `tokens[i]` of `table` `[vocabulary, width]` to row i of `out` `[tokens.len(), width]`.
///
/// # Panics
/// If a token lies outside the table or `out` has another shape.
pub fn embed(table: Matrix<'_>, width: usize, tokens: &[u32], out: &mut [f32]) {
    assert_eq!(out.len(), tokens.len() * width, "embed: shape of the output");
    for (token, out) in tokens.iter().zip(out.chunks_exact_mut(width)) {
        let first = *token as usize * width;
        table.slice(first..first + width).widen(out);
    }
}
