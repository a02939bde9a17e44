//! The law of a row that has logits of some tokens only, which is the output of a draft head with a reduced vocabulary.
//!
//! Such a row is much shorter than the vocabulary (8192 of 49152 tokens, for example), and its law should take
//! correspondingly less time. If settings change no logit, the law is that of the short row, with its indices replaced
//! by tokens; if they do, the row is first expanded to the whole vocabulary.

use super::{Context, Law, Sampling, Scratch};
use crate::Token;

impl Sampling {
    /// The law of the next token, given the logits of some tokens, `row_tokens`, which ascend; the others are
    /// impossible. It equals [`law_with`](Self::law_with) of a row with minus infinity for the others, up to the
    /// rounding of sums.
    ///
    /// # Panics
    ///
    /// Panics if `logits` and `row_tokens` differ in length, if they are empty, or if the settings have a
    /// [`Sampling::problem`].
    pub fn law_of_reduced(
        &self,
        (row_tokens, logits): (&[Token], &[f32]),
        context: &Context<'_>,
        scratch: &mut Scratch,
    ) -> Law {
        assert_eq!(row_tokens.len(), logits.len(), "as many logits as tokens");
        if !self.changes_logits(context) {
            return self.law_with(logits, &Context::EMPTY, scratch).with_tokens(row_tokens);
        }
        let mut row = std::mem::take(&mut scratch.row);
        row.clear();
        row.resize(row_tokens.last().map_or(0, |last| *last as usize + 1), f32::NEG_INFINITY);
        row_tokens.iter().zip(logits).for_each(|(token, logit)| row[*token as usize] = *logit);
        let law = self.law_with(&row, context, scratch);
        scratch.row = row;
        law
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW_TOKENS: [Token; 5] = [2, 3, 7, 11, 12];
    const LOGITS: [f32; 5] = [0.5, -1.0, 2.0, 1.9, 0.0];

    /// The row of `ROW_TOKENS` and `LOGITS`, expanded to all tokens.
    fn whole() -> Vec<f32> {
        let mut row = vec![f32::NEG_INFINITY; 14];
        ROW_TOKENS.iter().zip(LOGITS).for_each(|(token, logit)| row[*token as usize] = logit);
        row
    }

    #[test]
    fn it_is_the_law_of_the_whole_row() {
        let plain = Sampling::default();
        let context = Context { tokens: &[7, 3, 7], prompt_len: 1, ..Context::EMPTY };
        for sampling in [
            Sampling { temperature: 0.0, ..plain.clone() },
            Sampling { temperature: 0.7, ..plain.clone() },
            Sampling { top_k: 3, ..plain.clone() },
            Sampling { top_p: 0.8, ..plain.clone() },
            Sampling { min_p: 0.2, typical_p: 0.9, ..plain.clone() },
            Sampling { repetition_penalty: 1.5, ..plain.clone() },
            Sampling { presence_penalty: 0.5, frequency_penalty: 0.25, ..plain.clone() },
            Sampling { logit_bias: vec![(11, 3.0), (5, 9.0), (13, 1.0)], ..plain.clone() },
            Sampling { banned_tokens: vec![7], ..plain.clone() },
            Sampling { end_tokens: vec![7], tokens_min: 9, ..plain.clone() },
            plain,
        ] {
            let mut scratch = Scratch::default();
            let expected = sampling.law_with(&whole(), &context, &mut scratch);
            // The law is computed twice, since memory is reused.
            for _ in 0..2 {
                let found = sampling.law_of_reduced((&ROW_TOKENS, &LOGITS), &context, &mut scratch);
                assert_eq!(found.tokens(), expected.tokens(), "{sampling:?}");
                let pairs = found.probabilities().iter().zip(expected.probabilities());
                assert!(pairs.clone().all(|(a, b)| (a - b).abs() < 1e-12), "{sampling:?}");
            }
        }
    }

    #[test]
    fn most_probable_tokens_are_those_of_the_whole_vocabulary() {
        let (mut scratch, mut out) = (Scratch::default(), Vec::new());
        let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
        assert_eq!(greedy.law_of_reduced((&ROW_TOKENS, &LOGITS), &Context::EMPTY, &mut scratch).tokens(), [7]);
        scratch.most_probable(3, Some(&ROW_TOKENS), &mut out);
        assert_eq!(out, [7, 11, 2]);
        let banned = Sampling { banned_tokens: vec![7], ..greedy };
        assert_eq!(banned.law_of_reduced((&ROW_TOKENS, &LOGITS), &Context::EMPTY, &mut scratch).tokens(), [11]);
        scratch.most_probable(2, Some(&ROW_TOKENS), &mut out);
        assert_eq!(out, [11, 2]);
    }
}
