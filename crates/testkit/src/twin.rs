//! A draft model next to the table that it runs: whatever comes out of its paged cache must be what the table says of
//! the same tokens, to the bit.
//!
//! What a draft model says changes no text, so nobody would notice if its pages were mixed up; here its drafter panics,
//! and the engine tells. Left out: rows that it refuses for want of room, which nobody can expect.

use foretoken_drafters::{LogitRows, ScoreAsk, Scorer};
use foretoken_engine::ExecutorScorer;
use foretoken_speculation::{SequenceId, Tenant};

use crate::table::{Table, TableScorer};
use crate::toy::ToyExecutor;

/// The bookkeeping of pages is checked after each so many calls.
const CHECKED: usize = 8;

/// See the head of this file.
pub struct TwinScorer {
    paged: ExecutorScorer,
    naive: TableScorer,
    /// What the naive one says, kept for its memory.
    expected: LogitRows,
    calls: usize,
}

impl TwinScorer {
    /// A draft model of this table, with `pages` pages of `page_len` positions, and passes of up to `rows_max` rows.
    pub fn new(table: Table, page_len: usize, pages: usize, rows_max: usize) -> TwinScorer {
        TwinScorer::of(ToyExecutor::new(table.clone(), page_len, pages, rows_max), table)
    }

    /// The same with recurrent states, for so many sequences at a time.
    pub fn with_states(table: Table, page_len: usize, pages: usize, rows_max: usize, slots: usize) -> TwinScorer {
        let toy = ToyExecutor::new(table.clone(), page_len, pages, rows_max).with_states(slots);
        TwinScorer::of(toy.with_groups_turned(), table)
    }

    fn of(toy: ToyExecutor, table: Table) -> TwinScorer {
        let (paged, naive) = (ExecutorScorer::new(Box::new(toy)), TableScorer::new(table));
        TwinScorer { paged, naive, expected: LogitRows::new(), calls: 0 }
    }
}

impl Scorer for TwinScorer {
    fn open(&mut self, sequence: SequenceId, tenant: Tenant) {
        self.paged.open(sequence, tenant);
        self.naive.open(sequence, tenant);
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
        if self.calls.is_multiple_of(CHECKED) {
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

    /// A draft of one guess that was wrong, and what comes in its place.
    fn draft_once(fault: Fault) {
        let (table, sequence) = (Table::seeded(7, 40, 3), SequenceId(1));
        let toy = ToyExecutor::new(table.clone(), 4, 20, 64).with_states(2).with_fault(fault);
        let mut twin = TwinScorer::of(toy, table);
        twin.open(sequence, Tenant(0));
        let ask = |start, tokens, wanted, certain| {
            let (parents, computed) = (&[][..], 0);
            ScoreAsk { sequence, start, tokens, parents, computed, wanted, certain, hidden_in: HiddenInput::None }
        };
        let mut rows = LogitRows::new();
        twin.score(&[ask(0, &[1, 2, 3], &[1, 2], 2)], &mut rows);
        assert_eq!(twin.truncate(sequence, 2), 2);
        twin.score(&[ask(2, &[4, 5], &[0, 1], 3)], &mut rows);
        assert!((0..4).all(|row| rows.row(row).is_some()));
        // Behind what it has passed it begins again.
        assert_eq!(twin.truncate(sequence, 2), 0);
        twin.score(&[ask(0, &[1, 2, 6], &[2], 3)], &mut rows);
        twin.close(sequence);
    }

    #[test]
    fn a_state_of_a_draft_goes_back_by_what_it_never_passed() {
        draft_once(Fault::None);
    }

    #[test]
    fn keys_and_values_go_back_wherever_they_are_asked_to() {
        let mut twin = TwinScorer::new(Table::seeded(7, 40, 3), 4, 20, 64);
        let (sequence, mut rows) = (SequenceId(1), LogitRows::new());
        twin.open(sequence, Tenant(0));
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
        twin.score(&[ask], &mut rows);
        for len in [5, 3, 1] {
            assert_eq!(twin.truncate(sequence, len), len, "certain or not");
        }
    }

    #[test]
    #[should_panic(expected = "row 0 of ScoreAsk")]
    fn a_state_of_a_draft_that_passes_guesses_is_seen() {
        draft_once(Fault::GuessPassed);
    }
}
