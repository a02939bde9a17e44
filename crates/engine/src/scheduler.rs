//! Who takes part in the next pass, and with how many rows.
//!
//! Sequences whose text is being written come first: each gets its row before any gets a tree, so that nobody's guesses
//! keep another waiting. Trees leave a quarter of the rows to prompts, where these have a use for it. Prompts share the
//! rows that are left. Each time the higher priority comes first, then the earlier arrival. Because rows do not know
//! their neighbours, no choice made here can change a text.

use crate::sequence::{Phase, Sequence};

/// One sequence as it is scheduled for a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scheduled {
    /// Its place among the running sequences.
    pub(crate) at: usize,
    /// Uncached tokens that it runs.
    pub(crate) take: usize,
    /// Whether these end with the pending token, so that a token will be chosen.
    pub(crate) complete: bool,
    /// Nodes that its draft tree may have.
    pub(crate) nodes_max: usize,
    /// Rows that its drafters may ask for beside the tree.
    pub(crate) probes_max: usize,
}

/// Prompts get this part of the rows at least, if they can use it, before trees get theirs.
const PROMPT_PART: usize = 4;

/// Deals out the rows of one pass. `running`: in order of rank.
pub(crate) fn plan(running: &[Sequence], rows_max: usize, scheduled: &mut Vec<Scheduled>) {
    scheduled.clear();
    let mut left = rows_max;
    let of = |phase: Phase| running.iter().filter(move |sequence| sequence.phase == phase);
    // Rows that belong to those who write and have not had their turn.
    let mut owed = of(Phase::Writes).count();
    let prompts: usize = of(Phase::Reads).map(Sequence::uncached).sum();
    let kept = prompts.min(rows_max / PROMPT_PART);
    for phase in [Phase::Writes, Phase::Reads] {
        for (at, sequence) in running.iter().enumerate().filter(|(_, sequence)| sequence.phase == phase) {
            let (uncached, writing) = (sequence.uncached(), phase == Phase::Writes);
            owed -= usize::from(writing);
            if left == 0 {
                continue;
            }
            let take = uncached.min(left);
            left -= take;
            let complete = take == uncached;
            // Of what may still be emitted, the last token needs no draft: it comes from the pass itself.
            let useful = sequence.limit - sequence.tokens.len() - 1;
            let drafting = complete && !sequence.drafters.is_empty();
            let free = left.saturating_sub(owed + if writing { kept } else { 0 });
            let nodes_max = if drafting { sequence.budget.limits().nodes_max.min(useful).min(free) } else { 0 };
            let beside = if nodes_max > 0 { useful.min(free) - nodes_max } else { 0 };
            // Part of a window is of no use, so there is room for all probes or for none.
            let probes_max = if sequence.probes_max <= beside { sequence.probes_max } else { 0 };
            left -= nodes_max + probes_max;
            scheduled.push(Scheduled { at, take, complete, nodes_max, probes_max });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{BudgetKind, Request};
    use foretoken_speculation::SequenceId;

    #[test]
    fn everyone_who_writes_gets_a_row_before_anyone_gets_a_tree() {
        let request = |prompt: usize| Request {
            drafters: vec![0],
            budget: BudgetKind::Fixed { nodes: 9 },
            ..Request::new(vec![1; prompt])
        };
        let running: Vec<Sequence> =
            [8, 1, 1, 1].iter().map(|prompt| Sequence::new(SequenceId(0), request(*prompt), 100, 1)).collect();
        let dealt = |rows_max: usize| {
            let mut scheduled = Vec::new();
            plan(&running, rows_max, &mut scheduled);
            scheduled.iter().map(|entry| (entry.at, entry.take, entry.nodes_max)).collect::<Vec<_>>()
        };
        assert_eq!(dealt(2), [(1, 1, 0), (2, 1, 0)]);
        assert_eq!(dealt(5), [(1, 1, 1), (2, 1, 0), (3, 1, 0), (0, 1, 0)]);
        // A quarter of the rows, but no more than the prompt can use, is kept for it.
        assert_eq!(dealt(12), [(1, 1, 6), (2, 1, 0), (3, 1, 0), (0, 3, 0)]);
        assert_eq!(dealt(34), [(1, 1, 9), (2, 1, 9), (3, 1, 5), (0, 8, 0)]);
        assert_eq!(dealt(40), [(1, 1, 9), (2, 1, 9), (3, 1, 9), (0, 8, 2)]);
    }
}
