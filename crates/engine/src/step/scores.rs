//! What the model says of a prompt's own tokens, where a request asks for it: OpenAI's `echo` with `logprobs`, by which
//! harnesses judge given answers.
//!
//! The row of a token scores the one behind it. Rows do not know their neighbours, so a token has the bits here that it
//! has where it is written. Each is told once: of rows that are computed again no logits are wanted, and a row that
//! somebody else computed has none, so such rows are not adopted ([`Sequence::adopted_max`]).
//!
//! Left out: how many such rows a pass may have (`scheduler`).

use super::Engine;
use super::stuck::not_numbers;
use crate::law::told;
use crate::output::{Event, FinishReason, Scored};
use crate::scheduler::Scheduled;
use crate::sequence::Sequence;

impl Engine {
    /// Tells the first token of a prompt, which nothing comes before. One that writes nothing and has no other ends.
    pub(super) fn tell_first_score(&mut self, sequence: &mut Sequence) {
        if sequence.request.prompt_log_probabilities && sequence.scored == 0 {
            let first = Scored { token: sequence.tokens[0], log_probability: None, top: Vec::new() };
            self.events.push(Event::PromptScored { sequence: sequence.id, scored: vec![first] });
            sequence.scored = 1;
            if sequence.rows_left() == 0 {
                sequence.finished = Some(FinishReason::Length);
            }
        }
    }

    /// Tells the tokens of a prompt that rows of this pass score, of which the first is the `first`th wanted one. How
    /// many rows that took. A sequence of which one is no number ends.
    pub(super) fn tell_scores(&mut self, entry: Scheduled, first: usize) -> usize {
        let sequence = &mut self.running[entry.at];
        let rows = sequence.rows_to_score(entry.take);
        assert_eq!(rows.len(), sequence.rows.scored, "rows that were laid out to score");
        if rows.is_empty() {
            return 0;
        }
        let (outputs, top_len) = (self.executor.outputs(), sequence.request.top_log_probabilities);
        if let Some(broken) = (0..rows.len()).find(|i| outputs.has_nan(first + i)) {
            sequence.finished = Some(FinishReason::Failed(not_numbers(rows.start + broken + 1)));
            return rows.len();
        }
        let score = |(i, row): (usize, usize)| {
            let token = sequence.tokens[row + 1];
            let (log_probability, top) = told(outputs, first + i, token, top_len, &sequence.request.sampling);
            Scored { token, log_probability: Some(log_probability), top }
        };
        let scored = rows.clone().enumerate().map(score).collect();
        sequence.scored = rows.end + 1;
        self.events.push(Event::PromptScored { sequence: sequence.id, scored });
        rows.len()
    }
}
