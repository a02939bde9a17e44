//! Log-probabilities of a prompt's tokens, if a request asks for them: OpenAI's `echo` with `logprobs`, by which
//! evaluation harnesses score given answers.
//!
//! The row of a token scores the token after it. Rows do not depend on the other rows of the batch, so a token has the
//! same bits here as if it were generated. Each is reported once: rows that are computed again want no logits, and
//! cached rows have none, so such rows are not adopted ([`Sequence::adopted_max`]).
//!
//! `planner/rows.rs` decides how many such rows a pass may have.

use super::Engine;
use super::stuck::not_numbers;
use crate::law::raw_log_probabilities;
use crate::output::{Event, FinishReason, Scored};
use crate::planner::Scheduled;
use crate::sequence::Sequence;

impl Engine {
    /// Reports the first token of a prompt, which has no score. A sequence without another token that emits nothing
    /// ends.
    pub(super) fn report_first_score(&mut self, sequence: &mut Sequence) {
        if sequence.request.prompt_log_probabilities && sequence.cache.scored == 0 {
            let first = Scored { token: sequence.text.tokens[0], log_probability: None, top: Vec::new() };
            self.events.push(Event::PromptScored { sequence: sequence.id, scored: vec![first] });
            sequence.cache.scored = 1;
            if sequence.rows_left() == 0 {
                sequence.finished = Some(FinishReason::Length);
            }
        }
    }

    /// Reports the tokens of a prompt that rows of this pass score; `first` is the index of the first such row among
    /// those with logits. Returns the number of these rows. A sequence ends if one of them has a NaN.
    pub(super) fn report_scores(&mut self, entry: Scheduled, first: usize) -> usize {
        let sequence = &mut self.running[entry.index];
        let rows = sequence.rows_to_score(entry.token_rows);
        assert_eq!(rows.len(), sequence.rows.scored, "the rows to score are those that were laid out");
        if rows.is_empty() {
            return 0;
        }
        let (outputs, top_len) = (self.executor.outputs(), sequence.request.top_log_probabilities);
        if let Some(broken) = (0..rows.len()).find(|i| outputs.has_nan(first + i)) {
            sequence.finished = Some(FinishReason::Failed(not_numbers(rows.start + broken + 1)));
            return rows.len();
        }
        let score = |(i, row): (usize, usize)| {
            let token = sequence.text.tokens[row + 1];
            let (log_probability, top) =
                raw_log_probabilities(outputs, first + i, token, top_len, &sequence.request.sampling);
            Scored { token, log_probability: Some(log_probability), top }
        };
        let scored = rows.clone().enumerate().map(score).collect();
        sequence.cache.scored = rows.end + 1;
        self.events.push(Event::PromptScored { sequence: sequence.id, scored });
        rows.len()
    }
}
