//! A draft model that is compared with the table that it runs: the logits from its paged cache must be those of the
//! table for the same tokens, to the bit.
//!
//! A draft model cannot change the output, so rows in the wrong pages of its cache would not show there. Here a
//! difference makes the drafter panic, which the engine reports. Rows that are refused for lack of room are not
//! compared.

use foretoken_drafters::{LogitRows, ScoreAsk, Scorer};
use foretoken_engine::ExecutorScorer;
use foretoken_speculation::{Opening, SequenceId};

use crate::table::{Table, TableScorer};
use crate::toy::ToyExecutor;

/// The number of calls after which the bookkeeping of pages is checked.
const CALLS_PER_CHECK: usize = 8;

/// A draft model in a paged cache, each of whose rows is compared with its table.
pub struct CheckedScorer {
    paged: ExecutorScorer,
    naive: TableScorer,
    /// The rows of the naive scorer; kept to reuse the memory.
    expected: LogitRows,
    calls: usize,
}

impl CheckedScorer {
    /// A draft model of this table, with `pages` pages of `page_len` positions, and passes of up to `rows_max` rows.
    pub fn new(table: Table, page_len: usize, pages: usize, rows_max: usize) -> CheckedScorer {
        CheckedScorer::of(ToyExecutor::new(table.clone(), page_len, pages, rows_max), table)
    }

    /// Like [`CheckedScorer::new`], with recurrent states for `slots` sequences at a time.
    pub fn with_states(table: Table, page_len: usize, pages: usize, rows_max: usize, slots: usize) -> CheckedScorer {
        let toy = ToyExecutor::new(table.clone(), page_len, pages, rows_max).with_states(slots);
        CheckedScorer::of(toy.with_groups_reversed(), table)
    }

    fn of(toy: ToyExecutor, table: Table) -> CheckedScorer {
        let (paged, naive) = (ExecutorScorer::new(Box::new(toy)), TableScorer::new(table));
        CheckedScorer { paged, naive, expected: LogitRows::new(), calls: 0 }
    }
}

impl Scorer for CheckedScorer {
    fn open(&mut self, opening: &Opening<'_>) {
        self.paged.open(opening);
        self.naive.open(opening);
    }

    fn score(&mut self, asks: &[ScoreAsk<'_>], rows: &mut LogitRows) {
        let mut next = rows.len();
        self.paged.score(asks, rows);
        for ask in asks {
            let found = next..next + ask.wanted.len();
            next = found.end;
            self.naive.truncate(ask.sequence, ask.start + ask.computed);
            if !found.is_empty() && found.clone().all(|row| rows.row(row).is_none()) {
                continue;
            }
            self.expected.clear();
            self.naive.score(&[*ask], &mut self.expected);
            for (i, found) in found.enumerate() {
                let bits = |row: &[f32]| row.iter().map(|logit| logit.to_bits()).collect::<Vec<_>>();
                let expected = self.expected.row(i).map(bits);
                let found = rows.row(found).map(bits);
                assert!(found.is_none() || found == expected, "row {i} of {ask:?}: {found:?}, not {expected:?}");
            }
        }
        self.calls += 1;
        if self.calls.is_multiple_of(CALLS_PER_CHECK) {
            self.paged.check_pages().unwrap_or_else(|error| panic!("a draft model's pages: {error}"));
        }
    }

    fn truncate(&mut self, sequence: SequenceId, len: usize) -> usize {
        let left = self.paged.truncate(sequence, len);
        assert!(left <= len, "{left} rows are left of {len}");
        self.naive.truncate(sequence, left)
    }

    fn keep_path(&mut self, sequence: SequenceId, start: usize, rows: &[u32]) {
        self.paged.keep_path(sequence, start, rows);
        self.naive.keep_path(sequence, start, rows);
    }

    fn close(&mut self, sequence: SequenceId) {
        self.paged.close(sequence);
        self.naive.close(sequence);
    }

    fn context_max(&self) -> usize {
        self.paged.context_max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::toy::Fault;
    use foretoken_drafters::HiddenInput;

    /// Drafts one token that is rejected, and continues with the token that was written instead.
    fn draft_once(fault: Fault) {
        let (table, sequence) = (Table::seeded(7, 40, 3), SequenceId(1));
        let toy = ToyExecutor::new(table.clone(), 4, 20, 64).with_states(2).with_fault(fault);
        let mut scorer = CheckedScorer::of(toy, table);
        scorer.open(&Opening::new(sequence, &[]));
        let ask = |start, tokens, wanted, certain| {
            let (parents, computed) = (&[][..], 0);
            ScoreAsk { sequence, start, tokens, parents, computed, wanted, certain, hidden_in: HiddenInput::None }
        };
        let mut rows = LogitRows::new();
        scorer.score(&[ask(0, &[1, 2, 3], &[1, 2], 2)], &mut rows);
        assert_eq!(scorer.truncate(sequence, 2), 2);
        scorer.score(&[ask(2, &[4, 5], &[0, 1], 3)], &mut rows);
        assert!((0..4).all(|row| rows.row(row).is_some()));
        // A state cannot go back before tokens that it has advanced over, so it starts again.
        assert_eq!(scorer.truncate(sequence, 2), 0);
        scorer.score(&[ask(0, &[1, 2, 6], &[2], 3)], &mut rows);
        scorer.close(sequence);
    }

    #[test]
    fn a_state_goes_back_over_drafted_tokens() {
        draft_once(Fault::None);
    }

    #[test]
    fn keys_and_values_go_back_to_any_length() {
        let mut scorer = CheckedScorer::new(Table::seeded(7, 40, 3), 4, 20, 64);
        let (sequence, mut rows) = (SequenceId(1), LogitRows::new());
        scorer.open(&Opening::new(sequence, &[]));
        let ask = ScoreAsk {
            sequence,
            start: 0,
            tokens: &[1, 2, 3, 4, 5, 6],
            parents: &[],
            computed: 0,
            wanted: &[5],
            certain: 6,
            hidden_in: HiddenInput::None,
        };
        scorer.score(&[ask], &mut rows);
        for len in [5, 3, 1] {
            assert_eq!(scorer.truncate(sequence, len), len, "certain or not");
        }
    }

    #[test]
    #[should_panic(expected = "row 0 of ScoreAsk")]
    fn a_state_that_passes_drafted_tokens_is_detected() {
        draft_once(Fault::GuessPassed);
    }
}
