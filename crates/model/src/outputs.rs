//! The outputs of a pass: rows of logits and, separately, hidden states.
//!
//! Outputs belong to the executor and are read row by row without a copy: a row of a vocabulary of 128 thousand tokens
//! takes 512 KB. [`HostOutputs`] are those of an executor that computes in this process's memory. An executor whose
//! rows lie on a device may transfer each when it is first read, and compute [`argmax`](Outputs::argmax) and
//! [`largest`](Outputs::largest) on the device: these suffice for greedy and top-k sampling, so that no whole row has
//! to be transferred. Sampling settings are not used here.

use std::sync::Arc;

use crate::batch::Token;

/// The outputs of the latest pass of an executor. Rows are in order of the spans, and within a span in order of
/// [`Span::wanted`](crate::Span::wanted) (logits) or of [`Span::hidden`](crate::Span::hidden) (hidden states).
pub trait Outputs {
    /// Logits of the `row`th wanted row of the pass, one for each token of the vocabulary, or for each of
    /// [`row_tokens`](Self::row_tokens).
    ///
    /// If a row was lost with its device after the pass, it is all NaN: its reader fails, and the executor's next call
    /// returns the error.
    ///
    /// # Panics
    /// If there is no such row.
    fn row(&self, row: usize) -> &[f32];

    /// The tokens that rows have logits of, ascending, if these are not all tokens: the draft vocabulary of a draft
    /// head. It is the same in all passes.
    fn row_tokens(&self) -> Option<&Arc<[Token]>> {
        None
    }

    /// The token with the largest logit of the `row`th wanted row, of ties the lowest. NaN is skipped, and plus
    /// infinity counts as the largest finite number. `None` if no logit is a number above minus infinity.
    ///
    /// # Panics
    /// As [`row`](Self::row).
    fn argmax(&self, row: usize) -> Option<Token> {
        let column = argmax(self.row(row))?;
        Some(self.row_tokens().map_or(column, |tokens| tokens[column as usize]))
    }

    /// Whether a logit of the `row`th wanted row is NaN: then the network has failed, and no logit of the row may be
    /// used.
    ///
    /// # Panics
    /// As [`row`](Self::row).
    fn has_nan(&self, row: usize) -> bool {
        has_nan(self.row(row))
    }

    /// The largest logits of the `row`th wanted row, from an executor that finds them on its device; `None`, the
    /// default, if the row itself has to be read. It is called only if at least `count` logits of the row are above
    /// minus infinity and `count` is below the vocabulary. Plus infinity counts as the largest finite number.
    ///
    /// # Panics
    /// As [`row`](Self::row).
    fn largest(&self, _row: usize, _count: usize) -> Option<Largest> {
        None
    }

    /// The residual stream after the `layer`th layer of [`Batch::hidden_layers`](crate::Batch::hidden_layers), for the
    /// `row`th of the `hidden` rows of the pass: a vector of the network's width.
    ///
    /// # Panics
    /// If there is no such layer or row.
    fn hidden(&self, layer: usize, row: usize) -> &[f32];
}

/// The largest logits of a row that lies on a device.
#[derive(Clone, Debug, PartialEq)]
pub struct Largest {
    /// Every token whose logit is at least the `count`th largest (more than `count` if some are equal), ascending by
    /// token.
    pub logits: Vec<(Token, f32)>,
    /// The natural logarithm of the sum of e^(logit - the largest one) over the whole row, computed in `f64` in the
    /// order and with the exponentials that `foretoken_speculation::RawLaw::log_sum` specifies.
    pub log_sum: f64,
}

impl Largest {
    /// Whether a token is among the largest logits.
    pub fn has(&self, token: Token) -> bool {
        self.logits.binary_search_by_key(&token, |&(token, _)| token).is_ok()
    }
}

/// The index of the largest number, of ties the lowest, as in [`Outputs::argmax`].
fn argmax(logits: &[f32]) -> Option<Token> {
    // Lanes compile to vector code; the largest number does not depend on the order.
    let mut lanes = [f32::NEG_INFINITY; 16];
    for chunk in logits.chunks(lanes.len()) {
        for (lane, &logit) in lanes.iter_mut().zip(chunk) {
            *lane = if logit > *lane { logit } else { *lane };
        }
    }
    let largest = lanes.into_iter().fold(f32::NEG_INFINITY, f32::max).min(f32::MAX);
    if largest == f32::NEG_INFINITY {
        return None;
    }
    logits.iter().position(|&logit| logit >= largest).map(|token| token as Token)
}

/// Whether one of these is NaN. Estimate: 8 comparisons per cycle, 6 microseconds for a row of 152 thousand logits in
/// the L2 cache.
fn has_nan(logits: &[f32]) -> bool {
    // Within a chunk there is no early exit, so that this compiles to vector code.
    let found = |chunk: &[f32]| chunk.iter().fold(false, |found, logit| found | logit.is_nan());
    logits.chunks(1024).any(found)
}

/// Outputs in this process's memory, which is reused from pass to pass.
#[derive(Clone, Default, Debug)]
pub struct HostOutputs {
    /// Number of elements of one row of logits.
    pub vocabulary: usize,
    /// The logits `[wanted rows, vocabulary]`.
    pub logits: Vec<f32>,
    /// The token of each element of a row, ascending; if it is `None`, element i is token i.
    pub row_tokens: Option<Arc<[Token]>>,
    /// Number of elements of one hidden state.
    pub width: usize,
    /// The hidden states of each layer of `hidden_layers`, `[rows, width]`.
    pub hidden: Vec<Vec<f32>>,
}

impl Outputs for HostOutputs {
    fn row(&self, row: usize) -> &[f32] {
        let rows = self.logits.len() / self.vocabulary.max(1);
        assert!(row < rows, "outputs: row {row} of {rows} with logits");
        &self.logits[row * self.vocabulary..][..self.vocabulary]
    }

    fn row_tokens(&self) -> Option<&Arc<[Token]>> {
        self.row_tokens.as_ref()
    }

    fn hidden(&self, layer: usize, row: usize) -> &[f32] {
        let layers = self.hidden.len();
        assert!(layer < layers, "outputs: layer {layer} of {layers} with hidden states");
        let rows = self.hidden[layer].len() / self.width.max(1);
        assert!(row < rows, "outputs: row {row} of {rows} with hidden states");
        &self.hidden[layer][row * self.width..][..self.width]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn argmax_is_the_lowest_of_equals_and_skips_nan() {
        const NO: f32 = f32::NEG_INFINITY;
        for (row, expected) in [
            (&[1.0, 3.0, 3.0, 2.0][..], Some(1)),
            (&[f32::NAN, NO, -5.0, f32::NAN], Some(2)),
            (&[f32::MAX, f32::INFINITY], Some(0)),
            (&[0.0, f32::INFINITY, f32::INFINITY], Some(1)),
            (&[NO, f32::NAN, NO], None),
        ] {
            let outputs = HostOutputs { vocabulary: row.len(), logits: row.to_vec(), ..HostOutputs::default() };
            assert_eq!(outputs.argmax(0), expected, "{row:?}");
        }
    }

    #[test]
    fn argmax_of_a_draft_vocabulary_is_a_token_and_no_index() {
        let (logits, row_tokens) = (vec![1.0, 3.0, 3.0], Some([4, 7, 9].into()));
        let outputs = HostOutputs { vocabulary: 3, logits, row_tokens, ..HostOutputs::default() };
        assert_eq!(outputs.argmax(0), Some(7));
    }

    #[test]
    fn nan_is_found_at_every_index() {
        for at in [0, 7, 1023, 1024, 2999] {
            let mut logits = vec![f32::INFINITY; 3000];
            logits[at / 2] = f32::NEG_INFINITY;
            let mut outputs = HostOutputs { vocabulary: 3000, logits, ..HostOutputs::default() };
            assert!(!outputs.has_nan(0));
            outputs.logits[at] = -f32::NAN;
            assert!(outputs.has_nan(0), "{at}");
        }
    }

    #[test]
    #[should_panic(expected = "outputs: row 1 of 1 with logits")]
    fn reading_a_row_that_was_not_wanted_panics() {
        HostOutputs { vocabulary: 2, logits: vec![0.0; 2], ..HostOutputs::default() }.row(1);
    }
}
